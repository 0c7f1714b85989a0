"""Lay rollouts out for a forward pass, and read the log-probs of their trained tokens.

A packed row holds a group's prompt once and the responses after it; positions restart behind the prompt
and the attention mask hides the responses from each other, so log-probs and gradients are those of
separate rows. There are no logits for tokens that are not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from burnish.lm.decoder import plain_head
from burnish.lm.head import token_logprobs
from burnish.lm.model_input import ModelInput
from burnish.lm.scalar_head import ScalarHead
from burnish.records import MediaPart, Span, Trajectory

MASK_STEP = 8
"""Attention kernels of a GPU read masks of this width as they are, and copy others for each layer."""
ROW_TOKENS = 512
"""Rows grow to this many tokens: beyond it the masked part of attention costs more than the
repeated prompt."""
LONG_ANSWER = 4
"""A response of more than this many times its prompt does not share a row: it would save little of
the work, and a row of its own needs no mask but the causal one."""
FULL_TOKENS = 16384
"""A pass of this many tokens keeps a GPU busy: beyond it less padding is worth another pass."""
SIMILAR = 0.75
"""Rows of at least this share of the longest one go into its full batch."""

Integers = NDArray[np.int64]
Media = tuple[MediaPart, ...]


@dataclass(frozen=True)
class Row:
    """Rollouts (by position in the batch) that share one prefix."""

    prefix: tuple[int, ...]
    members: tuple[int, ...]
    tokens: int
    media: tuple[MediaPart, ...] = ()
    """Images and sounds of the row's placeholder tokens, in their order."""


@dataclass(frozen=True)
class PackedBatch:
    """Rows as tensors, and where each trained token's prediction is read.

    `source_N` is the flat position (row * S + column) whose hidden state predicts trained token n,
    `place_N` its own, `target_N` its id, `sampled_N` the log-prob its sampler gave it, `rollout_N` and `column_N` its
    place in the (B, T) tensors of the loss. Trained tokens are in the order of `members`.
    """

    ids_RS: Tensor
    positions_RS: Tensor
    mask_RSS: Tensor | None
    """None where every row holds one rollout: padding stands on the right, so causal is enough."""
    source_N: Tensor
    place_N: Tensor
    target_N: Tensor
    sampled_N: Tensor
    rollout_N: Tensor
    column_N: Tensor
    trained_BT: Tensor
    members: tuple[int, ...]
    media: tuple[tuple[MediaPart, ...], ...] | None = None

    @property
    def inputs(self) -> ModelInput:
        return ModelInput(self.ids_RS, self.positions_RS, self.mask_RSS, self.media)

    @property
    def width(self) -> int:
        """T: longest trained length among the members."""
        return self.trained_BT.shape[1]

    @property
    def trained(self) -> int:
        """N: how many tokens are trained."""
        return self.target_N.shape[0]


def make_rows(trajectories: Sequence[Trajectory], share: bool) -> list[Row]:
    """Put a group's rollouts with equal prefixes into rows; without `share`, one rollout a row.

    Two groups that happen to have one prompt stay apart: a row twice as wide as the others would
    pad them all.
    """
    by_prefix: dict[tuple[str, tuple[int, ...], Media], list[tuple[int, int, Media]]] = {}
    # The rollouts of a group begin with the very same span objects: joined once.
    joined: dict[tuple[int, ...], tuple[int, ...]] = {}
    for i, trajectory in enumerate(trajectories):
        first = _first_trained(trajectory.spans)
        before = trajectory.spans[:first]
        same = tuple(map(id, before))
        prefix = joined.get(same)
        if prefix is None:
            prefix = joined[same] = sum((span.token_ids for span in before), ())
        rest = sum([len(span.token_ids) for span in trajectory.spans[first:]])
        seen, later = _media(before), _media(trajectory.spans[first:])
        by_prefix.setdefault((trajectory.group, prefix, seen), []).append((i, rest, later))
    rows: list[Row] = []
    for (_, prefix, seen), responses in by_prefix.items():
        members: list[int] = []
        tokens = len(prefix)
        for i, rest, later in responses:
            if not share or later or rest > LONG_ANSWER * len(prefix):
                rows.append(Row(prefix, (i,), len(prefix) + rest, seen + later))
                continue
            if members and tokens + rest > ROW_TOKENS:
                rows.append(Row(prefix, tuple(members), tokens, seen))
                members, tokens = [], len(prefix)
            members.append(i)
            tokens += rest
        if members:
            rows.append(Row(prefix, tuple(members), tokens, seen))
    return rows


def _media(spans: Sequence[Span]) -> Media:
    return tuple([part for span in spans if span.media for part in span.media])


def micro_batches(rows: Sequence[Row], budget: int) -> list[list[Row]]:
    """Rows of similar length together, so that rows x longest stays within the token budget.

    A batch that is full as far as the device's speed goes takes no rows that are much shorter. Where
    a budget allows such batches, rows with and without a mask are not mixed if there are enough of
    both: one masked row would make all rows of its batch pay for a mask.
    """
    shared = [row for row in rows if len(row.members) > 1]
    single = [row for row in rows if len(row.members) == 1]
    smaller = min(sum(row.tokens for row in kind) for kind in (shared, single))
    batches: list[list[Row]] = []
    for kind in [shared, single] if min(budget, smaller) >= FULL_TOKENS else [rows]:
        batch: list[Row] = []
        for row in sorted(kind, key=lambda row: -row.tokens):
            longest = batch[0].tokens if batch else 0
            is_full = len(batch) * longest >= FULL_TOKENS and row.tokens < SIMILAR * longest
            if not batch or is_full or (len(batch) + 1) * longest > budget:
                batch = []
                batches.append(batch)
            batch.append(row)
    return batches


def pack(
    rows: Sequence[Row], trajectories: Sequence[Trajectory], device: torch.device, pad: int = 0
) -> PackedBatch:
    size = max(row.tokens for row in rows)
    is_shared = any(len(row.members) > 1 for row in rows)
    if is_shared and device.type == "cuda":
        size = MASK_STEP * -(-size // MASK_STEP)
    layout = _lay_out(rows, trajectories, size)
    table_3RS = np.empty((3, len(rows), size), dtype=np.int64)
    table_3RS[0] = pad
    # A row's largest position tells its own length, which some rotary positions depend on.
    table_3RS[1] = 0
    table_3RS[2] = np.arange(size)
    flat_3X = table_3RS.reshape(3, -1)
    flat_3X[0, layout.place] = layout.token
    flat_3X[1, layout.place] = layout.position
    flat_3X[2, layout.place] = layout.start
    is_trained = layout.is_trained
    rollout = layout.member[is_trained]
    counts = np.bincount(rollout, minlength=sum(len(row.members) for row in rows))
    column = _ramps(counts)
    prompt_R = torch.tensor([len(row.prefix) for row in rows])
    source = np.where(layout.is_first, layout.prompt_end, layout.place - 1)[is_trained]
    place, target = layout.place[is_trained], layout.token[is_trained]
    numbers_5N = np.stack([source, place, target, rollout, column])
    trained_BT = np.arange(max(counts.max(), 1)) < counts[:, None]
    ids_RS, positions_RS, start_RS = to_device(torch.from_numpy(table_3RS), device).unbind()
    numbers = to_device(torch.from_numpy(numbers_5N), device)
    source_N, place_N, target_N, rollout_N, column_N = numbers
    return PackedBatch(
        ids_RS=ids_RS,
        positions_RS=positions_RS,
        mask_RSS=_mask(start_RS, to_device(prompt_R, device)) if is_shared else None,
        source_N=source_N,
        place_N=place_N,
        target_N=target_N,
        sampled_N=to_device(torch.from_numpy(layout.sampled), device),
        rollout_N=rollout_N,
        column_N=column_N,
        trained_BT=to_device(torch.from_numpy(trained_BT), device),
        members=tuple(i for row in rows for i in row.members),
        media=tuple(row.media for row in rows) if any(row.media for row in rows) else None,
    )


class _Layout(NamedTuple):
    """All tokens of the rows one after the other, (X,) each, and the samplers' log-probs (N,)."""

    token: Integers
    place: Integers
    """row * S + column."""
    position: Integers
    start: Integers
    """Column at which the token's own piece of the row begins: 0 for the prefix."""
    member: Integers
    """Row of the (B, T) tensors; for a prefix that of the row's first member."""
    prompt_end: Integers
    """Place of the last token of the row's prefix."""
    is_first: NDArray[np.bool_]
    """The first token of its piece; a response's is predicted from the prefix, wherever it stands."""
    is_trained: NDArray[np.bool_]
    sampled: NDArray[np.float32]


def _lay_out(rows: Sequence[Row], trajectories: Sequence[Trajectory], size: int) -> _Layout:
    tokens: list[int] = []
    sampled: list[float] = []
    # Python loops over pieces (a row's prefix and its responses) and spans; numpy then repeats the
    # numbers of a piece for each of its tokens, so that no loop runs over tokens.
    pieces: list[tuple[int, int, int, int, int]] = []
    spans: list[tuple[int, bool]] = []
    members = 0
    for r, row in enumerate(rows):
        prompt, begin = len(row.prefix), len(tokens)
        prompt_end = r * size + prompt - 1
        tokens.extend(row.prefix)
        # (tokens, first position, first column, member, end of the prefix): see `_Layout`.
        pieces.append((prompt, 0, 0, members, prompt_end))
        spans.append((prompt, False))
        for i in row.members:
            before = len(tokens)
            all_spans = trajectories[i].spans
            for span in all_spans[_first_trained(all_spans) :]:
                tokens.extend(span.token_ids)
                spans.append((len(span.token_ids), span.trainable))
                if span.trainable:
                    sampled.extend(span.logprobs)
            # Positions go on behind the prompt for every response: each is as if it were alone.
            pieces.append((len(tokens) - before, prompt, before - begin, members, prompt_end))
            members += 1
    piece_5P = np.array(pieces, dtype=np.int64).T
    length_P = piece_5P[0]
    ramp = _ramps(length_P)
    first, start, member, ends = (np.repeat(line, length_P) for line in piece_5P[1:])
    span_2P = np.array(spans, dtype=np.int64).T
    row_tokens = np.array([row.tokens for row in rows])
    return _Layout(
        token=np.array(tokens, dtype=np.int64),
        place=np.repeat(np.arange(len(rows)) * size, row_tokens) + _ramps(row_tokens),
        position=first + ramp,
        start=start,
        member=member,
        prompt_end=ends,
        is_first=ramp == 0,
        is_trained=np.repeat(span_2P[1], span_2P[0]).astype(bool),
        sampled=np.array(sampled, dtype=np.float32),
    )


def _ramps(lengths: Integers) -> Integers:
    """0, 1, ... up to each length, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def _first_trained(spans: Sequence[Span]) -> int:
    for k, span in enumerate(spans):
        if span.trainable:
            return k
    return len(spans)


def _mask(start_RS: Tensor, prompt_R: Tensor) -> Tensor:
    """May a query see a key: earlier or itself, and in the prefix or in the query's own piece.

    Padding is a piece of its own for each token, so that no softmax runs over nothing.
    """
    size = start_RS.shape[1]
    column_S = torch.arange(size, device=start_RS.device)
    mask_RSS = column_S >= start_RS[:, :, None]
    mask_RSS |= (column_S < prompt_R[:, None])[:, None, :]
    mask_RSS &= column_S <= column_S[:, None]
    return mask_RSS


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device; not pinned first, which takes longer than these copies do."""
    return tensor.to(device, non_blocking=True)


def scatter(values_N: Tensor, batch: PackedBatch) -> Tensor:
    """Trained-token values as a (B, T) tensor, zeros elsewhere; differentiable."""
    out = values_N.new_zeros(batch.trained_BT.shape)
    return out.index_put((batch.rollout_N, batch.column_N), values_N)


CHUNK = 2048
"""Trained tokens whose logits exist at one time, where a model computes them in its own way."""


class CausalModel(Protocol):
    """What the training room needs of a model."""

    def __call__(self, inputs: ModelInput) -> Tensor:
        """Final hidden states (R, S, D)."""
        ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class TokenScores(NamedTuple):
    """Each (B, T), 0 where there is no trained token."""

    logp_BT: Tensor
    entropy_BT: Tensor
    value_BT: Tensor | None = None


def token_scores(
    model: CausalModel,
    batch: PackedBatch,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    head: ScalarHead | None = None,
    hidden_RSD: Tensor | None = None,
) -> TokenScores:
    """Log-prob under the tempered distribution and entropy for every trained token.

    A value `head` reads the same hidden states, those that predict the tokens. `hidden_RSD` are the
    model's states of this batch, where they are known.
    """
    if hidden_RSD is None:
        hidden_RSD = model(batch.inputs)
    hidden_ND = hidden_RSD.flatten(0, 1).index_select(0, batch.source_N)
    weight_VD = plain_head(model)
    if weight_VD is not None:
        logp_N, entropy_N = token_logprobs(
            hidden_ND,
            weight_VD,
            None,
            batch.target_N,
            temperature,
            entropy_gradient=entropy_gradient,
        )
    else:
        logp_N, entropy_N = through_logits(
            model, hidden_ND, batch.target_N, temperature, entropy_gradient
        )
    value_BT = None if head is None else scatter(head(hidden_ND), batch)
    return TokenScores(scatter(logp_N, batch), scatter(entropy_N, batch), value_BT)


def through_logits(
    model: CausalModel,
    hidden_ND: Tensor,
    target_N: Tensor,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The same through the model's own logits, a chunk of tokens at a time."""

    def piece(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = model.logits(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = logits if temperature == 1.0 else logits / temperature
        norm = logits.logsumexp(-1)
        logp = logits.gather(-1, target[:, None])[:, 0] - norm
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            probability = torch.exp(logits - norm[:, None])
            entropy = norm - (probability * logits).sum(-1)
        return logp, entropy

    pieces: list[tuple[Tensor, Tensor]] = []
    for hidden, target in zip(
        torch.split(hidden_ND, CHUNK), torch.split(target_N, CHUNK), strict=True
    ):
        if hidden_ND.shape[0] > CHUNK and torch.is_grad_enabled():
            pieces.append(checkpoint(piece, hidden, target, use_reentrant=False))
        else:
            pieces.append(piece(hidden, target))
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])
