"""Models outside the built-in families, through transformers, behind the decoder's interface.

A row must get the same numbers in any company: sampled alone or in a batch, token by token or in
one pass. Four things see to that. `check` compares them when a model is loaded, on rows of a few
tokens. `agrees` compares them again whenever a row is longer, or more padded, than any before: a
window may be far longer than what can be tried at first. No batch is wider than the model was made
for: rows that are done go on being padded, and would run off a table of positions. And rotary
positions that depend on the length are kept apart by it:
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.errors import ModelError, UserError, first_line
from burnish.lm.base import TokenIds, TooLong, media_of
from burnish.lm.decoder import plain_state
from burnish.lm.hardware import is_device_full
from burnish.lm.model_input import ModelInput, Segments
from burnish.lm.pretrained import load_pretrained
from burnish.records import MediaPart

Media = Sequence[Sequence[MediaPart]]

_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size")
"""Settings under which families keep how far a layer looks back."""
_LENGTHS = ("max_position_embeddings", "max_target_positions", "max_seq_len", "max_sequence_length")
"""Settings under which families keep the longest sequence they were made for."""
_POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings")
"""Names under which families keep a table with one entry a position."""
_TRIED = 6
_COMPARED_AT_ONCE = 512
"""Positions whose full distributions are held in memory while log-probs are compared."""


class Together(StrEnum):
    """Which prompts a model samples in one batch as it samples them alone."""

    ANY = "any"
    """Of different lengths, padded on the left."""
    SAME_LENGTH = "same length"
    """Only without padding."""
    NONE = "none"
    """It must be given one row at a time."""


class TransformersDecoder(nn.Module):
    """A transformers causal language model that looks like `Decoder`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._config = model.config.get_text_config()
        self._switch, self._is_dynamic = _switch(self._config)
        self._has_position_table = _has_position_table(model)
        self._longest_compared = 0
        self._widest_compared = 0
        self.tried: tuple[int, int, int] = (1, 2, 3)
        self.forbidden: tuple[int, ...] = ()
        self.packs = True
        """Whether several responses may share one row; not where a layer carries a state."""
        self.together = Together.ANY
        self.least_tokens = 1
        """Shortest row; 2 where a single token is taken for the next one of the row before."""
        self.least_prompt = 1
        """Shortest prompt that is continued as one pass would; convolutions may need a few tokens."""

    @classmethod
    def from_folder(
        cls, folder: Path, dtype: torch.dtype, device: torch.device
    ) -> TransformersDecoder:
        """Load a local folder; code that comes with it is not run."""
        import transformers

        model = load_pretrained(transformers.AutoModelForCausalLM, folder, dtype)
        adapter = cls(model.to(device).eval())
        adapter.check(folder)
        return adapter

    def train(self, mode: bool = True) -> TransformersDecoder:
        """Dropout stays off in training too, or trainer and sampler would disagree."""
        super().train(mode)
        self.model.eval()
        return self

    @property
    def head_weight(self) -> Tensor:
        """The output projection, (V, D)."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def head_prefix(self) -> str:
        """How the names of the head's own weights begin."""
        head = self.model.get_output_embeddings()
        name = next(name for name, module in self.model.named_modules() if module is head)
        return f"{name}."

    @property
    def max_positions(self) -> int:
        """Longest sequence that the model was made for."""
        return next(filter(None, (_setting(self._config, name) for name in _LENGTHS)), 2048)

    def longest_row(self, prompt_tokens: int) -> int:
        """How long a row may become that begins with so many tokens of prompt."""
        longest, switch = self.max_positions, self._switch
        return min(longest, switch) if switch is not None and prompt_tokens <= switch else longest

    @property
    def cache_bytes_per_token(self) -> int:
        """What one token of one row costs in the key-value cache, at most."""
        config = self._config
        width = int(config.hidden_size)
        if queries := _setting(config, "num_attention_heads"):
            heads = _setting(config, "num_key_value_heads") or queries
            width = heads * (_setting(config, "head_dim") or width // queries)
        return int(2 * config.num_hidden_layers * width * self.head_weight.element_size())

    def forward(self, inputs: ModelInput) -> Tensor:
        """Final-normed hidden states, (B, S, D).

        Rows without a mask, or whose mask is causal with padding on the right, go to the model
        as they are and count their positions from 0: every causal model computes those. Padding
        has position 0.
        """
        ids_BS, positions_BS, mask, media = inputs
        assert not isinstance(mask, Segments), "only the built-in decoder takes them"
        if ids_BS.shape[1] < self.least_tokens:
            raise UserError(
                f"{type(self.model).__name__} computes a row of one token otherwise; expected at least 2 tokens"
            )
        if self._has_position_table and ids_BS.shape[1] > self.max_positions:
            # Checked before: on a GPU a read beyond the table ends the whole process.
            raise TooLong(
                f"a text of {ids_BS.shape[1]} tokens: {type(self.model).__name__} has a table of "
                f"{self.max_positions} positions.",
                "Shorten it.",
            )
        if self._switch is not None and ids_BS.shape[1] > self._switch:
            return self._by_length(self._switch, ids_BS, positions_BS, mask, media)
        return self._hidden(ids_BS, positions_BS, mask, media)

    def media_inputs(self, ids_BS: Tensor, media: Media | None) -> dict[str, Tensor]:
        """What the model reads beside the ids: nothing, for a model of text."""
        return {}

    def _by_length(
        self,
        switch: int,
        ids_BS: Tensor,
        positions_BS: Tensor,
        mask: Tensor | None,
        media: Media | None,
    ) -> Tensor:
        """Rows that are longer than the switch apart from those that are not."""
        is_long_B = positions_BS.amax(dim=1) >= switch
        if self._is_dynamic and bool(is_long_B.any()):
            raise UserError(
                f"a row of {int(positions_BS.max()) + 1} tokens: the dynamic rotary positions of "
                f"{type(self.model).__name__} change with every token beyond {switch}, so what it "
                f"samples could not be trained. Keep prompt and response within {switch} tokens."
            )
        if bool(is_long_B.all()):
            return self._hidden(ids_BS, positions_BS, mask, media)
        width = ids_BS.shape[1]
        places, parts = [], []
        for is_side_B in (is_long_B, ~is_long_B):
            if not bool(is_side_B.any()):
                continue
            place_R = is_side_B.nonzero().squeeze(1)
            side_mask = None if mask is None else mask[place_R]
            ids_RS, positions_RS = ids_BS[place_R], positions_BS[place_R]
            if side_mask is None or _is_plain(side_mask):
                # Nothing but padding stands behind the longest row of a side.
                end = int(positions_RS.max()) + 1
                ids_RS, positions_RS, side_mask = ids_RS[:, :end], positions_RS[:, :end], None
            side_media = None if media is None else [media[i] for i in place_R.tolist()]
            side_RSD = self._hidden(ids_RS, positions_RS, side_mask, side_media)
            parts.append(F.pad(side_RSD, (0, 0, 0, width - side_RSD.shape[1])))
            places.append(place_R)
        return torch.cat(parts).index_select(0, torch.cat(places).argsort())

    def _hidden(
        self, ids_BS: Tensor, positions_BS: Tensor, mask: Tensor | None, media: Media | None = None
    ) -> Tensor:
        if mask is None or _is_plain(mask):
            beside = self.media_inputs(ids_BS, media)
            output = self._trunk(input_ids=ids_BS, use_cache=False, **beside)
        else:
            if not self.packs or ids_BS.shape[1] > self.packs_up_to:
                raise UserError(
                    f"{type(self.model).__name__} cannot compute {ids_BS.shape[1]} tokens of several "
                    "responses in one row: it keeps a state, or looks back less far "
                    f"({self.packs_up_to} tokens). Set update.share_prompts = false"
                )
            output = self._packed(ids_BS, positions_BS, mask, media)
        hidden: Tensor = output.last_hidden_state
        return hidden

    @property
    def _trunk(self) -> Any:
        base = self.model.base_model
        return base if base is not self.model else getattr(self.model, "model", base)

    def prefetch(self, media: Iterable[Sequence[MediaPart]]) -> None:
        """Prepare the media of coming rows; a model of text has none."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits, with the scaling and soft capping that some families apply."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        if scaling := getattr(self._config, "logits_scaling", None):
            logits = logits / scaling
        if scale := getattr(self._config, "logit_scale", None):
            logits = logits * scale
        cap = getattr(self._config, "final_logit_softcapping", None)
        if cap := cap or getattr(self._config, "logits_soft_cap", None):
            logits = torch.tanh(logits / cap) * cap
        return logits

    def weights_to_save(self) -> dict[str, Tensor]:
        """The state dict without the tensors that are tied to others."""
        seen: set[tuple[int, torch.Size]] = set()
        weights: dict[str, Tensor] = {}
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        for name, tensor in plain_state(self.model).items():
            place = (tensor.data_ptr(), tensor.shape)
            if name not in tied and place not in seen:
                weights[name] = tensor
            seen.add(place)
        return weights

    # Not inference_mode here: a model may keep a tensor that it computes on the way, and training
    # could not use it.
    @torch.no_grad()
    def check(self, folder: Path) -> None:
        """Refuse a model that this adapter would get wrong; find out what else it can do."""
        kind = type(self.model).__name__
        if not self.model.can_generate():
            raise UserError(f"{folder}: {kind} cannot generate text; expected a causal model")
        try:
            self._compare(folder, kind)
        except UserError:
            raise
        # Boundary: a family's own code, given nothing but token ids.
        except Exception as error:
            if is_device_full(error):
                raise
            raise UserError(
                f"{folder}: {kind} fails on rows of token ids ({named_line(error)}). Serve it over HTTP instead"
            ) from error

    def _compare(self, folder: Path, kind: str) -> None:
        a, b, c = self.tried
        ids = torch.tensor([[a, b, c, a], [a, b, b, c]], device=self.head_weight.device)
        positions = torch.arange(4, device=ids.device).expand(2, 4)
        hidden = self(ModelInput(ids, positions))
        if self._gap(hidden[0, :2], hidden[1, :2]) > self._noise:
            raise UserError(
                f"{folder}: in {kind} later tokens change earlier ones; set is_decoder in its config.json"
            )
        self._check_logits(folder, ids, hidden)
        self.packs = self._packs_exactly([a, b], [[c, a], [b, c]], hidden)
        # The largest batches whose cached steps give the logits of one plain pass.
        exact = (
            together
            for together, batches in self._trials().items()
            if all(self._gap_of_steps(prompts) <= self._noise for prompts in batches)
        )
        if (found := next(exact, None)) is None:
            raise UserError(
                f"{folder}: {kind} computes other logits token by token than in one pass, so what it "
                "samples could not be trained. Serve it over HTTP instead."
            )
        self.together = found
        self.least_tokens = 1 if self._gap_of_steps([[b]]) <= self._noise else 2
        is_short_wrong = self._gap_of_steps([[a, b]]) > self._noise
        self.least_prompt = 3 if is_short_wrong else self.least_tokens
        self._longest_compared, self._widest_compared = 0, 0
        self.note_proven(_TRIED, 2 if self.together is Together.ANY else 0)

    def _check_logits(
        self, folder: Path, ids_BS: Tensor, hidden: Tensor, media: Media | None = None
    ) -> None:
        """Refuse a model whose logits are not its head applied to its hidden states."""
        expected = self.model(input_ids=ids_BS, **self.media_inputs(ids_BS, media)).logits.float()
        got = self.logits(hidden).float()
        if not torch.allclose(got, expected, rtol=1e-2, atol=1e-2):
            raise UserError(
                f"{folder}: the logits of {type(self.model).__name__} are not its head applied to its "
                f"hidden states (difference {float((got - expected).abs().max()):.3g}); burnish cannot "
                "train or score it in this process. Serve it over HTTP instead."
            )

    def is_proven(self, tokens: int, padding: int) -> bool:
        """Whether rows as long, and as far padded, have been compared with one pass over each."""
        return tokens <= self._longest_compared and padding <= self._widest_compared

    def note_proven(self, tokens: int, padding: int) -> None:
        """Rows of this length and with this much padding agreed."""
        self._longest_compared = max(self._longest_compared, tokens)
        self._widest_compared = max(self._widest_compared, padding)

    @torch.no_grad()
    def agrees(
        self, row: TokenIds, logprobs: Sequence[float], media: Sequence[MediaPart] = ()
    ) -> bool:
        """Whether sampled log-probs are those that one pass over the row alone gives its last tokens.

        Half precision rounds, and more so where tokens are routed to experts: only what is far
        beyond that counts as another computation. What is no number is for the guards to report.
        """
        ids_1S = torch.tensor([row], device=self.head_weight.device)
        positions_1S = torch.arange(ids_1S.shape[1] - 1, device=ids_1S.device).unsqueeze(0)
        start = len(row) - len(logprobs)
        inputs = ModelInput(ids_1S[:, :-1], positions_1S, media=(media,) if media else None)
        hidden_TD = self(inputs)[0, start - 1 :]
        found = []
        # A few positions at a time: a long response times a large vocabulary fills any memory.
        parts = (part.split(_COMPARED_AT_ONCE) for part in (hidden_TD, ids_1S[0, start:]))
        for hidden_KD, ids_K in zip(*parts, strict=True):
            logprobs_KV = self.logits(hidden_KD).float().log_softmax(dim=-1)
            found.append(logprobs_KV.gather(1, ids_K.unsqueeze(1)).squeeze(1))
        sampled_T = torch.tensor(logprobs, device=ids_1S.device)
        gap = float((torch.cat(found) - sampled_T).abs().mean())
        return not gap > (1e-3 if self._is_exact else 0.5)

    def narrow(self, tokens: int) -> None:
        """Sample fewer prompts in one batch; refuse where a row alone is not computed exactly."""
        if self.together is Together.NONE:
            raise ModelError(
                f"{type(self.model).__name__} computes other log-probs token by token than in one "
                f"pass for a row of {tokens} tokens, so what it samples could not be trained; up to "
                f"{self._longest_compared} tokens they agree. Lower max_tokens or shorten the "
                "prompt, or serve it over HTTP."
            )
        kinds = list(Together)
        self.together = kinds[kinds.index(self.together) + 1]

    def _packs_exactly(self, prompt: TokenIds, answers: Sequence[TokenIds], apart: Tensor) -> bool:
        """Whether a mask hides one answer of two tokens from the other behind the same prompt.

        Recurrent and convolutional layers carry a state past any mask, and some position schemes
        count places in the row and not `position_ids`. `apart`: (2, S, D), the two rows alone.
        """
        parameters = inspect.signature(self._trunk.forward).parameters
        if not {"position_ids", "attention_mask"} <= set(parameters):
            return False
        device, size = self.head_weight.device, len(prompt)
        ids_1S = torch.tensor([[*prompt, *answers[0], *answers[1]]], device=device)
        columns = torch.arange(size + 4, device=device)
        positions_1S = torch.where(columns < size + 2, columns, columns - 2)[None]
        mask = torch.ones(1, size + 4, size + 4, dtype=torch.bool, device=device).tril()
        mask[:, size + 2 :, size : size + 2] = False
        media = media_of(prompt)
        try:
            output = self._packed(ids_1S, positions_1S, mask, (media,) if media else None)
            together = output.last_hidden_state[0]
        # Boundary: a family's own code, given a mask that it may never have met.
        except Exception:
            return False
        first = self._gap(together[: size + 2], apart[0])
        return max(first, self._gap(together[size + 2 :], apart[1, size:])) <= self._noise

    def _trials(self) -> dict[Together, list[list[TokenIds]]]:
        a, b, c = self.tried
        return {
            Together.ANY: [[[a, b, c, a], [a, b], [a, c, b]]],
            Together.SAME_LENGTH: [[[a, b, c], [a, c, b]]],
            Together.NONE: [[[a, b, c]]],
        }

    def _gap_of_steps(self, prompts: list[TokenIds]) -> float:
        """How far the logits of three steps of `generate` are from those of one pass over each row."""
        from transformers import GenerationConfig

        longest = max(map(len, prompts))
        gaps = []
        try:
            output = self.model.generate(
                **self.generation_inputs(prompts, self.tried[2]),
                generation_config=GenerationConfig(
                    max_new_tokens=3,
                    do_sample=False,
                    output_logits=True,
                    return_dict_in_generate=True,
                ),
            )
            for row, prompt in enumerate(prompts):
                ids_1S = output.sequences[row : row + 1, longest - len(prompt) : -1]
                beside = self.media_inputs(ids_1S, [media_of(prompt)])
                alone = self.model(input_ids=ids_1S, **beside).logits[0, -3:]
                gaps.append(self._gap(torch.stack([step[row] for step in output.logits]), alone))
        # Boundary: a family's own code, given a kind of batch that it may not be made for.
        except Exception as error:
            if is_device_full(error):
                raise
            return float("inf")
        return max(gaps)

    def generation_inputs(self, prompts: Sequence[TokenIds], pad: int) -> dict[str, Tensor]:
        """What `generate` reads: prompts padded on the left, and their media."""
        device = self.head_weight.device
        longest = max(map(len, prompts))
        missing = [longest - len(prompt) for prompt in prompts]
        ids = [[pad] * gap + [*prompt] for gap, prompt in zip(missing, prompts, strict=True)]
        seen = [[0] * gap + [1] * (longest - gap) for gap in missing]
        ids_BS = torch.tensor(ids, device=device)
        beside = self.media_inputs(ids_BS, [media_of(prompt) for prompt in prompts])
        return {"input_ids": ids_BS, "attention_mask": torch.tensor(seen, device=device), **beside}

    @property
    def _is_exact(self) -> bool:
        return self.head_weight.dtype in (torch.float32, torch.float64)

    @property
    def _noise(self) -> float:
        """Relative difference that rounding alone explains."""
        return 1e-4 if self._is_exact else 5e-2

    def _gap(self, got: Tensor, expected: Tensor) -> float:
        """Largest difference relative to the largest value; infinite where it is no number."""
        gap = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
        return gap if gap == gap else float("inf")

    @property
    def packs_up_to(self) -> int | float:
        """Longest packed row: within a window, places in the row are as good as positions."""
        found = (_setting(self._config, name) for name in _WINDOWS)
        return min((window for window in found if window and window > 0), default=math.inf)

    def _packed(
        self, ids_BS: Tensor, positions_BS: Tensor, mask_BSK: Tensor, media: Media | None = None
    ) -> Any:
        """The base model's output under an additive mask, which every backend reads."""
        dtype = self.head_weight.dtype
        hidden = torch.zeros(mask_BSK.shape, dtype=dtype, device=mask_BSK.device)
        hidden = hidden.masked_fill_(~mask_BSK, torch.finfo(dtype).min).unsqueeze(1)
        return self._trunk(
            input_ids=ids_BS,
            position_ids=positions_BS,
            attention_mask=hidden,
            use_cache=False,
            **self.media_inputs(ids_BS, media),
        )


def _has_position_table(model: nn.Module) -> bool:
    """Whether positions are read from a table (GPT-2, OPT, GPT-J), which has an end."""
    tables = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    tables += [name for name, _ in model.named_buffers()]
    return any(name.rpartition(".")[2] in _POSITION_TABLES for name in tables)


def _is_plain(mask_BSS: Tensor) -> bool:
    """Whether every row is one causal sequence, with nothing but padding after it."""
    keys_BS = mask_BSS.sum(dim=-1)
    all_S = torch.arange(1, keys_BS.shape[1] + 1, device=keys_BS.device)
    real_BS = (keys_BS == all_S).cumprod(dim=-1).bool()
    return bool((real_BS | (keys_BS == 1)).all())


def _switch(config: Any) -> tuple[int | None, bool]:
    """The length beyond which rotary positions depend on the row's; whether by the length itself."""
    table = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # One table for all layers, or one for each kind of layer.
    tables = [table, *(part for part in table.values() if isinstance(part, dict))]
    switches: list[int] = []
    is_dynamic = False
    for rope in tables:
        kind = str(rope.get("rope_type", rope.get("type", "")))
        if kind == "longrope":
            inside = rope.get("original_max_position_embeddings")
            beside = _setting(config, "original_max_position_embeddings")
            switches.append(int(inside or beside or config.max_position_embeddings))
        elif "dynamic" in kind:
            switches.append(int(config.max_position_embeddings))
            is_dynamic = True
    return min(switches, default=None), is_dynamic


def _setting(config: Any, name: str) -> int | None:
    """A number of a config; the largest of its layers where they differ."""
    try:
        value = getattr(config, name, None)
    except RuntimeError:
        # A config whose layers differ raises one where it is asked for all of them.
        layers = config.per_layer_config
        found = [getattr(layer, name, None) for layer in layers]
        value = max((n for n in found if isinstance(n, int)), default=None)
    return value if isinstance(value, int) else None


def named_line(error: Exception) -> str:
    """The type of an error of somebody else's code and what it says, in one line."""
    kind, said = type(error).__name__, first_line(error)
    return said if said == kind else f"{kind}: {said}"
