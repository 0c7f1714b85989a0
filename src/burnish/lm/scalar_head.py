"""A scalar head: one number from a hidden state, and the folders of models that have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.lm.base import JsonObject, MediaIds, Messages, TokenIds, media_of
from burnish.lm.hardware import is_device_full
from burnish.lm.model_input import ModelInput, passes
from burnish.lm.tokenizer import Tokenizer
from burnish.lm.weights import read_json, write_json
from burnish.records import Message, Span

if TYPE_CHECKING:
    from burnish.lm.folder import LoadedModel

SCORE = "score.weight"
CLASSIFIER = "ForSequenceClassification"


class ScalarHead(nn.Module):
    """`w . h`, in float32 also where the model is in half precision."""

    def __init__(self, weight_1D: Tensor) -> None:
        super().__init__()
        exact = weight_1D.dtype if weight_1D.dtype == torch.float64 else torch.float32
        self.weight = nn.Parameter(weight_1D.detach().to(exact))

    @classmethod
    def fresh(cls, *, std: float, seed: int, like: Tensor) -> ScalarHead:
        """A head drawn from a seed, for hidden states as wide as `like` (..., D)."""
        generator = torch.Generator().manual_seed(seed)
        drawn_1D = std * torch.randn(1, like.shape[-1], generator=generator, dtype=torch.float64)
        return cls(drawn_1D.to(device=like.device, dtype=like.dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (...)."""
        return F.linear(hidden.to(self.weight.dtype), self.weight).squeeze(-1)


def freeze_language_head(module: nn.Module) -> None:
    """Nothing reads the logits; a head that is the embedding itself stays under training."""
    start = str(module.head_prefix)
    for name, parameter in module.named_parameters():
        if name.startswith((start, f"model.{start}")):
            parameter.requires_grad_(False)


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a model with a classification head."""
    named = config.get("architectures")
    return isinstance(named, list) and any(str(name).endswith(CLASSIFIER) for name in named)


def score_weight(folder: Path, weights: Mapping[str, Tensor]) -> Tensor:
    """The weight (1, D) of the head among a classifier's weights; other heads are refused."""
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    found = weights.get(SCORE)
    if found is None or found.ndim != 2 or found.shape[0] != 1 or "score.bias" in weights:
        raise UserError(
            f"{folder} is a classifier with the head {shapes}; expected {SCORE} (1, D) alone"
        )
    return found


def as_classifier(tokenizer: Tokenizer, config: JsonObject) -> JsonObject:
    """The config under which transformers loads the model with its head."""
    config = {name: value for name, value in config.items() if name != "num_labels"}
    family = str((config.get("architectures") or ["Model"])[0])
    for ending in ("ForCausalLM", "LMHeadModel", CLASSIFIER):
        family = family.removesuffix(ending)
    return {
        **config,
        "architectures": [family + CLASSIFIER],
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
        "problem_type": "regression",
        "pad_token_id": padding_token(tokenizer),
    }


def classifier_weights(
    head: ScalarHead, weights: Mapping[str, Tensor], head_prefix: str
) -> dict[str, Tensor]:
    """The weights of the classifier: no language-model head, and the score."""
    kept = {name: value for name, value in weights.items() if not name.startswith(head_prefix)}
    return {**kept, SCORE: head.weight.detach()}


# --- what is scored


def scored_ids(tokenizer: Tokenizer, messages: Messages) -> tuple[int, ...]:
    """A whole conversation as the ids that a reward model reads.

    The chat template's own text, as everyone's reward models get it. Without a template the text
    is closed by the end token, so that the last token says that it is the last.
    """
    ids = tokenizer.prompt_ids(messages, add_generation_prompt=False)
    if tokenizer.template is None and tokenizer.eos_ids and ids[-1:] != tokenizer.eos_ids[:1]:
        media = media_of(ids)
        ids = (*ids, tokenizer.eos_ids[0])
        return MediaIds(ids, media) if media else ids
    return ids


def padding_token(tokenizer: Tokenizer) -> int:
    """A padding token that no scored conversation ends with: the tokenizer's, or another one."""
    try:
        last = scored_ids(tokenizer, [Message("user", "a"), Message("assistant", "b")])[-1]
    except UserError:  # a template for other roles
        last = -1
    added = tokenizer.backend.get_added_tokens_decoder()
    specials = sorted(i for i, token in added.items() if token.special)
    others = [i for i in specials if i not in tokenizer.eos_ids]
    candidates = [tokenizer.pad_id, *others, *specials, 0, 1]
    return next(i for i in candidates if i != last)


def write_padding(tokenizer: Tokenizer, folder: Path) -> None:
    """Name that padding token in the tokenizer's settings, where it is another one."""
    pad = padding_token(tokenizer)
    file = folder / "tokenizer_config.json"
    text = tokenizer.backend.id_to_token(pad)
    settings = read_json(file)
    if text is not None and settings.get("pad_token") != text:
        write_json(file, {**settings, "pad_token": text})


class StepRow(NamedTuple):
    """A prompt and the steps of an answer to it, as ids."""

    prompt: tuple[Span, ...]
    answer: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def start(self) -> int:
        """Tokens of the prompt."""
        return sum(len(span.token_ids) for span in self.prompt)

    @property
    def ids(self) -> list[int]:
        """The whole row."""
        return [*(token for span in self.prompt for token in span.token_ids), *self.answer]

    @property
    def places(self) -> list[int]:
        """Place of each step's last token in the whole row."""
        return [self.start + end for end in self.ends]


def step_row(
    tokenizer: Tokenizer, messages: Messages, steps: Sequence[str], separator: str
) -> StepRow:
    """The row of one solution; the text of control tokens in a step is plain text."""
    answer: list[int] = []
    ends = []
    for step in steps:
        answer += tokenizer.encode_data(f"{step.strip()}{separator}")
        ends.append(len(answer) - 1)
    return StepRow(tokenizer.render_spans(messages), tuple(answer), tuple(ends))


ROW_TOKENS = 8192
"""Tokens of one forward pass of `score_rows` on a CPU; eight times as many on a GPU."""


@torch.no_grad()
def score_rows(loaded: LoadedModel, rows: Sequence[TokenIds], tokens: int = 0) -> list[float]:
    """Scores of token rows, in their order; rows of similar length share a pass.

    `tokens` bounds one pass, 0 for what the device likes; a full GPU halves it.
    """
    found = score_places(loaded, rows, [[len(row) - 1] for row in rows], tokens)
    return [score for (score,) in found]


@torch.no_grad()
def score_places(
    loaded: LoadedModel,
    rows: Sequence[TokenIds],
    places: Sequence[TokenIds],
    tokens: int = 0,
) -> list[list[float]]:
    """Scores at some places of each row, in their order."""
    assert loaded.score_head is not None
    score_N = loaded.score_head(_hidden_places(loaded, rows, places, tokens)).double().cpu()
    return [part.tolist() for part in score_N.split([len(wanted) for wanted in places])]


@torch.no_grad()
def hidden_rows(loaded: LoadedModel, rows: Sequence[TokenIds], tokens: int = 0) -> Tensor:
    """The hidden state at the last token of each row, (N, D), in their order."""
    return _hidden_places(loaded, rows, [[len(row) - 1] for row in rows], tokens)


def _hidden_places(
    loaded: LoadedModel, rows: Sequence[TokenIds], places: Sequence[TokenIds], tokens: int
) -> Tensor:
    size = tokens or (ROW_TOKENS if loaded.device.type == "cpu" else 8 * ROW_TOKENS)
    while True:
        try:
            return _in_passes(loaded, rows, places, size)
        except RuntimeError as error:
            if not is_device_full(error) or size < 512:
                raise
        # Outside the handler: the error's frames hold the tensors that did not fit.
        size //= 2
        torch.cuda.empty_cache()


def _in_passes(
    loaded: LoadedModel, rows: Sequence[TokenIds], places: Sequence[TokenIds], size: int
) -> Tensor:
    order: list[int] = []
    pad, device = padding_token(loaded.tokenizer), loaded.device
    found: list[Tensor] = []
    for part in passes(range(len(rows)), size, lambda i: len(rows[i])):
        order += part
        width = len(rows[part[0]])
        ids_RS = torch.tensor([[*rows[i], *[pad] * (width - len(rows[i]))] for i in part])
        length_R = torch.tensor([len(rows[i]) for i in part], device=device)
        column_S = torch.arange(width, device=device)
        # Padding has position 0, as in training; a row's largest position tells its own length.
        positions_RS = column_S * (column_S < length_R[:, None])
        media = [media_of(rows[i]) for i in part]
        inputs = ModelInput(ids_RS.to(device), positions_RS, media=media if any(media) else None)
        hidden_RSD = loaded.module(inputs)
        flat = [row * width + place for row, i in enumerate(part) for place in places[i]]
        wanted_N = torch.tensor(flat, dtype=torch.int64, device=device)
        found.append(hidden_RSD.flatten(0, 1).index_select(0, wanted_N))
    if not found:
        return loaded.module.head_weight.new_zeros(0, loaded.module.head_weight.shape[-1])
    # Back from longest first to the order of the rows.
    starts = dict(zip(order, accumulate((len(places[i]) for i in order), initial=0), strict=False))
    back = [starts[i] + k for i in range(len(rows)) for k in range(len(places[i]))]
    return torch.cat(found).index_select(0, torch.tensor(back, dtype=torch.int64, device=device))
