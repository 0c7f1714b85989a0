"""From scored rollouts to advantages: rewards as tensors, and the inputs of a recipe's components.

A contrastive reward reads hidden states, stepwise credit the section of every token, `gae` the values
of a critic. Marks that compare a token with all others of its update are made on the CPU and in the
order of the rollouts, so that every process makes the same.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from burnish.policy.balance import BalanceState
from burnish.policy.batch import Advantages, RewardBatch
from burnish.policy.recipe import Recipe
from burnish.policy.reference import FEWEST_VALUES
from burnish.policy.state import PolicyState
from burnish.policy.tokens import TokenBatch
from burnish.records import Reward, Trajectory
from burnish.rewards.checks.sections import Split, check_headings, find_sections, find_steps
from burnish.seeds import Seeds, derive
from burnish.training.collect import Scored, reward_batch
from burnish.training.guards import check_rows, weigh
from burnish.training.packing import PackedBatch, scatter, to_device

logger = logging.getLogger(__name__)

LONGEST_RUN = 8
"""Tokens that may wait for each other to become a character: one a byte, and some to spare."""
REMEMBERED = 2**16
"""Short runs of tokens whose text is kept; the answers of a run repeat each other."""
BROKEN = "\ufffd"
"""What a decoder writes for bytes that are no character, or not one yet."""


class Decodes(Protocol):
    def decode(self, ids: Sequence[int]) -> str: ...


class Cut(NamedTuple):
    text: str
    ranges: list[tuple[int, int]]
    """First character and the one behind the last; tokens that make a character together share."""


class Segmenter:
    def __init__(
        self,
        tokenizer: Decodes,
        headings: Sequence[str],
        split: Split | Literal["sections"] = "sections",
    ) -> None:
        check_headings(headings)
        self.headings = tuple(headings)
        self._split: Split | None = None if split == "sections" else split
        self._text_of = lru_cache(REMEMBERED)(tokenizer.decode)

    def __call__(self, trajectory: Trajectory) -> list[int]:
        return self.number([t for s in trajectory.spans if s.trainable for t in s.token_ids])

    def number(self, ids: Sequence[int]) -> list[int]:
        """The segment of each token of a response.

        A token that holds the border between two sections belongs to the second one: it is what
        begins the heading. A token without text, such as the end token, belongs to the section it
        stands in, or behind.
        """
        if self._split is not None:
            return self._steps(ids, self._split)
        if not self.headings:
            return [0] * len(ids)
        text, ranges = self.cut(ids)
        owners = [-1] * (len(text) + 1)
        begun: dict[int, int] = {}
        for number, section in enumerate(find_sections(text, self.headings), start=1):
            if section is not None:
                begun[section.start] = number
                owners[section.start : section.end] = [number] * (section.end - section.start)
        return [0 if i == 0 else _segment(*r, owners, begun) for i, r in enumerate(ranges)]

    def _steps(self, ids: Sequence[int], split: Split) -> list[int]:
        text, ranges = self.cut(ids)
        starts = [step.start for step in find_steps(text, split, self.headings)]
        if not starts:
            return [-1] * len(ids)

        def blanks(piece: str) -> int:
            """Before its first other character; 0 where it has none."""
            kept = piece.lstrip()
            return len(piece) - len(kept) if kept else 0

        return [
            bisect.bisect_right(starts, start + blanks(text[start:end])) - 1
            for start, end in ranges
        ]

    def cut(self, ids: Sequence[int]) -> Cut:
        """The text of a response, token by token.

        A decoder may treat the start of a text in its own way (drop a blank), so each piece is
        read behind the piece before it.
        """
        pieces: list[str] = []
        ranges: list[tuple[int, int]] = []
        given, text_of = tuple(ids), self._text_of
        context, done, place = 0, 0, 0
        for i in range(1, len(given) + 1):
            now = text_of(given[context:i])
            if now.endswith(BROKEN) and i - done < LONGEST_RUN and i < len(given):
                continue
            piece = now[len(text_of(given[context:done])) :]
            pieces.append(piece)
            ranges += [(place, place + len(piece))] * (i - done)
            place += len(piece)
            context, done = done, i
        return Cut("".join(pieces), ranges)


def pad_segments(segments: Sequence[Sequence[int]]) -> Tensor:
    """Segments of several rollouts as one tensor, -1 behind the shorter ones: (B, T) int64."""
    width = max((len(one) for one in segments), default=0)
    rows = [[*one, *[-1] * (width - len(one))] for one in segments]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(segments), width)


class StepScores(NamedTuple):
    steps_BJ: Tensor
    """float64; NaN where an answer has no such step, or it has no score."""
    segments_BT: Tensor


def step_scores(
    rewards: Sequence[Reward], name: str, segments: Sequence[Sequence[int]]
) -> StepScores:
    """The scores of each answer's steps: the parts of its reward `name`.

    An answer whose reward has another number of parts than its tokens have steps gets none, and so
    does one without that reward: a score is never credited to another step's tokens.
    """
    rows: list[list[float]] = []
    kept: list[Sequence[int]] = []
    differing = 0
    for reward, numbers in zip(rewards, segments, strict=True):
        own = next((part for part in (*reward.parts, reward) if part.name == name), None)
        parts = own.parts if own is not None else ()
        scores = [float("nan") if part.value is None else part.value for part in parts]
        is_same = len(scores) == max(numbers, default=-1) + 1
        differing += own is not None and own.value is not None and not is_same
        rows.append(scores if is_same else [])
        kept.append(numbers if is_same else [-1] * len(numbers))
    if differing:
        logger.warning(
            "reward '%s' scored other steps than policy.advantage.split finds in %d of %d answers; "
            "they are left out. Give both the same split and headings.",
            *(name, differing, len(rewards)),
        )
    width = max([1, *map(len, rows)])
    padded = [[*row, *[float("nan")] * (width - len(row))] for row in rows]
    steps_BJ = torch.tensor(padded, dtype=torch.float64).reshape(len(rows), width)
    return StepScores(steps_BJ, pad_segments(kept))


def _segment(start: int, end: int, owners: Sequence[int], begun: Mapping[int, int]) -> int:
    """The section that begins inside the token (the last of several), else that of its place."""
    for place in range(end - 1, start - 1, -1):
        if place in begun:
            return begun[place]
    is_behind = start == end > 0 and owners[start] < 0
    return owners[start - 1] if is_behind else owners[start]


Pooled = Callable[[Sequence[Trajectory]], Tensor]
"""Mean hidden state of each response, (B, D)."""


class CriticReading(NamedTuple):
    """What a critic says of the rollouts of a step before its first update; float64 on the CPU."""

    values_BT: Tensor
    kl_BT: Tensor | None = None
    """Log-probs less the reference model's, where the reward loses them."""


CriticReader = Callable[[Sequence[Trajectory]], CriticReading]


@dataclass
class AdvantageComputer:
    recipe: Recipe
    run_steps: int
    max_tokens: int
    seeds: Seeds
    tokenizer: Decodes
    pooled: Pooled
    read_critic: CriticReader
    state: PolicyState = field(default_factory=PolicyState)
    reading: CriticReading | None = None
    """The critic's, of the step under way; kept for a guard's report."""
    _segment: Segmenter | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.recipe.stepwise:
            stepwise = self.recipe.stepwise
            self._segment = Segmenter(self.tokenizer, stepwise.headings, stepwise.split)

    def compute_advantages(
        self,
        scored: Sequence[Scored],
        step: int,
        greedy: Sequence[Scored] = (),
        reading: CriticReading | None = None,
        lost: Sequence[Scored] = (),
    ) -> tuple[RewardBatch, Advantages]:
        """The rewards of a step as tensors, and the advantages of its rollouts.

        `greedy` are the greedy answers to its prompts, where the recipe compares with those;
        `reading` is what the critic said of them, where it is not to be asked now; `lost` are rollouts
        that are not trained on.
        """
        self.reading = reading
        recipe, trajectories = self.recipe, [s.trajectory for s in scored]
        ids, more = [t.id for t in trajectories], dict[str, Any]()
        if recipe.contrastive:
            more["hidden_BD"] = self.pooled(trajectories)
            more["keys_B"] = torch.tensor([derive(id_) for id_ in ids])
            # The same number for rollouts with the same trained tokens.
            seen: dict[tuple[int, ...], int] = {}
            spans = ([s.token_ids for s in t.spans if s.trainable] for t in trajectories)
            numbers = [seen.setdefault(sum(one, ()), len(seen)) for one in spans]
            more["duplicate_id_B"] = torch.tensor(numbers)
        if self._segment and (stepwise := recipe.stepwise):
            segments = [self._segment(trajectory) for trajectory in trajectories]
            more["segments_BT"] = pad_segments(segments)
            if stepwise.by_steps:
                rewards = [s.reward for s in scored]
                more |= step_scores(rewards, stepwise.rewards[0], segments)._asdict()
        if recipe.gae:
            self.reading = self.reading or self.read_critic(trajectories)
            check_rows("value", "the critic's value", self.reading.values_BT, ids, step)
            if self.reading.kl_BT is not None:
                check_rows("logprob", "the KL in the reward", self.reading.kl_BT, ids, step)
            more |= self.reading._asdict()
        batch = replace(
            reward_batch(scored, greedy, lost),
            seed=self.seeds.for_("policy", step),
            run_steps=self.run_steps,
            max_tokens=self.max_tokens,
            **more,
        )
        return batch, weigh(recipe, batch, ids, step, self.state)

    def hold(self, values: Advantages, balance: BalanceState) -> Advantages:
        """The step's values with the coefficient of imitation, so that a crash report has it too."""
        self.state = replace(self.state, balance=balance)
        return replace(values, state=replace(values.state, balance=balance))


def refreeze_note(batch: RewardBatch, values: Advantages) -> tuple[str, dict[str, Any]] | None:
    """A line and its numbers where the unit of the rewards was measured again in this step."""
    reference = values.state.reference
    if reference is None or not values.diagnostics.get("reference/refrozen"):
        return None
    shares = {name: values.diagnostics[f"reference/{name}/saturated"] for name in batch.names}
    kept = [name for name in batch.names if not values.diagnostics[f"reference/{name}/refrozen"]]
    counted = [n for n, w in zip(batch.names, batch.weights_K.tolist(), strict=True) if w]
    most = max((name for name in counted if name not in kept), key=lambda name: shares[name])
    line = (
        f"{shares[most]:.0%} of the values of reward '{most}' stood at the clip: the unit of the "
        f"rewards was measured again on {len(batch.rewards_BK)} answers of this step"
    )
    if kept:
        line += (
            f"; {', '.join(kept)} kept the old one (constant here, or fewer than {FEWEST_VALUES} "
            "values)"
        )
    columns = {"mean": reference.mean_K, "deviation": reference.sd_K, "count": reference.count_K}
    data = {k: dict(zip(batch.names, v.tolist(), strict=True)) for k, v in columns.items()}
    return line, {"saturated": shares, **data, "kept": kept}


Marks = Mapping[str, Mapping[int, Tensor]]
"""Slot of a component -> rollout -> which of its trained tokens are marked, (T,) bool."""


def mark_rollouts(
    recipe: Recipe,
    values: Advantages,
    measured: Mapping[int, Tensor],
    old: Mapping[int, Tensor],
    seed: int,
) -> dict[str, dict[int, Tensor]]:
    """The marks of a mini-batch, from log-probs and entropies (2, T) of each of its rollouts.

    `old` are the log-probs before the step's first update; empty where this is the first.
    """
    rows = {i: measured[i].cpu().double() for i in sorted(measured)}
    lengths = [row_2T.shape[1] for row_2T in rows.values()]
    # Which trained tokens enter the loss at all, rollout by rollout.
    is_counted_N = torch.ones(sum(lengths), dtype=torch.bool)
    if (counted_BT := values.counted_BT) is not None:
        is_counted_N = torch.cat([counted_BT[i, : row.shape[1]].cpu() for i, row in rows.items()])

    def spread(part: Tensor) -> Tensor:
        """A value a rollout, or one a token, as one row of tokens."""
        cells = [
            part[i].expand(row.shape[1]) if part.dim() == 1 else part[i, : row.shape[1]]
            for i, row in rows.items()
        ]
        return torch.cat(cells).cpu().double()[is_counted_N]

    logp_N, entropy_N = torch.cat(list(rows.values()), 1)[:, is_counted_N]
    old_logp_N = logp_N
    if old:
        old_logp_N = torch.cat([old[i].cpu().double() for i in rows])[is_counted_N]
    bounds = spread(values.low_B), spread(values.high_B)
    tokens = TokenBatch(logp_N, old_logp_N, spread(values.values_B), *bounds, entropy_N, seed)
    marks = {}
    for slot, component in recipe.token_markers.items():
        marked_N = component.mark(tokens)
        whole_N = torch.zeros_like(is_counted_N).masked_scatter(is_counted_N, marked_N)
        marks[slot] = dict(zip(rows, torch.split(whole_N, lengths), strict=True))
    return marks


def packed_marks(marks: Marks, packed: PackedBatch, device: torch.device) -> dict[str, Tensor]:
    found = {}
    for slot, rows in marks.items():
        marked_N = torch.cat([rows[i] for i in packed.members])
        found[slot] = scatter(to_device(marked_N, device), packed)
    return found
