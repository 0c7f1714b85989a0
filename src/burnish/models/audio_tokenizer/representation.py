"""What latents mean: a causal encoder over frozen latents, and what it is taught by (arXiv 2606.06357, 2.2).

`prediction_loss` is RQ-MTP: random codes of the next K frames, from a fixed random projection and codebook,
which are buffers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from burnish.arguments import refused, same_length
from burnish.boundary import SOME, Positive, PositiveInt, public
from burnish.errors import ArgumentError
from burnish.models.audio_tokenizer.objective import MtpLoss, mtp_head_loss, rq_codes
from burnish.models.blocks import Attention, ResidualStack, SwiGLU, Topology, rotation
from burnish.models.folders import (
    Layers,
    Size,
    init_transformer,
    new_own,
    open_own,
    read_settings,
)
from burnish.tensors import as_mask, check_shape

if TYPE_CHECKING:
    from jaxtyping import Float64


class AudioRepresentationConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    """Sizes of an `AudioRepresentationModel`."""

    model_type = "burnish-audio-representation"

    latent_size: Size = 64
    hidden_size: Size = 256
    num_hidden_layers: Layers = 4
    num_attention_heads: Size = 4
    norm_topology: str = "pre"
    rope_theta: Positive = 10_000.0
    codes: PositiveInt = 1024
    """Entries of the random codebook."""
    code_size: Size = 16
    ahead: Layers = 3
    """Heads: head h predicts the code of the frame h ahead."""

    def __post_init__(self, **kwargs: Any) -> None:
        read_settings(self)
        check_transformer(self)
        super().__post_init__(**kwargs)


class AudioRepresentationModel(PreTrainedModel):  # type: ignore[misc]
    """Latents (B, T, D) to representations (B, T, hidden_size); a frame sees none behind it.

    >>> model = new_representation(latent_size=6, hidden_size=16, num_hidden_layers=1, codes=8)
    >>> tuple(model(torch.zeros(2, 5, 6)).shape), len(model.prediction_loss(torch.randn(2, 5, 6)).per_head)
    ((2, 5, 16), 3)
    """

    config_class = AudioRepresentationConfig
    base_model_prefix = "audio_representation"
    main_input_name = "latents"

    def __init__(self, config: AudioRepresentationConfig) -> None:
        super().__init__(config)
        size, heads = config.hidden_size, config.num_attention_heads
        self.input = nn.Linear(config.latent_size, size)
        blocks = causal_blocks(size, heads, config.num_hidden_layers)
        self.layers = ResidualStack(blocks, size, Topology(config.norm_topology))
        self.heads = nn.ModuleList(nn.Linear(size, config.codes) for _ in range(config.ahead))
        # Persistent: loading builds a model without values and fills in what the file holds.
        self.register_buffer("latent_mean", torch.zeros(config.latent_size))
        self.register_buffer("latent_std", torch.ones(config.latent_size))
        spread = (6 / (config.latent_size + config.code_size)) ** 0.5
        projection = (2 * torch.rand(config.latent_size, config.code_size) - 1) * spread
        self.register_buffer("projection", projection)
        self.register_buffer("codebook", F.normalize(torch.randn(config.codes, config.code_size)))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Not smaller: an untrained encoder is the control of probes, and must not be a linear map.
        init_transformer(module, self.config.num_hidden_layers, self.config.hidden_size**-0.5)

    def forward(self, latents: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, hidden_size). Padding is at the end, where no frame sees it."""
        check_shape(latents, "latents", (*latents.shape[:2], self.config.latent_size))
        hidden: Tensor = self.input(latents)
        size = self.config.hidden_size // self.config.num_attention_heads
        positions = torch.arange(latents.shape[1], device=latents.device)
        turn = rotation(positions, size, self.config.rope_theta, hidden.dtype)
        found: Tensor = self.layers(hidden, rotation=turn)
        return found

    @torch.no_grad()
    def standardise(self, latents: Tensor) -> None:
        """Take mean and standard deviation of every channel from frames (N, D) of the corpus."""
        self.latent_mean.copy_(latents.mean(0))
        self.latent_std.copy_(latents.std(0, correction=0).clamp(min=1e-5))

    @torch.no_grad()
    def codes(self, latents: Tensor) -> Tensor:
        """Random codes of frames, int64 (B, T)."""
        standard = (latents - self.latent_mean) / self.latent_std
        return rq_codes.plain(standard.double(), self.projection.double(), self.codebook.double())

    def prediction_loss(
        self, latents: Tensor, mask: Tensor | None = None, hidden: Tensor | None = None
    ) -> MtpLoss:
        """RQ-MTP: the codes of the next frames from what was heard; `hidden` where it is known."""
        hidden = self(latents) if hidden is None else hidden
        whole = torch.ones(latents.shape[:2], dtype=torch.bool, device=latents.device)
        valid = whole if mask is None else mask.to(whole)
        codes, heads = self.codes(latents), enumerate(self.heads, start=1)
        per_head = torch.stack([mtp_head_loss(one(hidden), codes, valid, k) for k, one in heads])
        return MtpLoss(per_head.sum(), per_head)


def check_transformer(config: Any) -> None:
    """Refuse sizes that causal attention with rotary positions cannot have."""
    size, heads = config.hidden_size, config.num_attention_heads
    Topology(config.norm_topology)
    if size % heads or size // heads % 2:
        raise refused("num_attention_heads", heads, f"parts of {size} of an even size")


def causal_blocks(size: int, heads: int, layers: int) -> list[tuple[nn.Module, nn.Module]]:
    """Causal attention and SwiGLU, for a `ResidualStack`."""
    inner = -(-8 * size // 3 // 8) * 8
    return [(Attention(size, heads, index=index), SwiGLU(size, inner)) for index in range(layers)]


def new_representation(
    folder: str | Path | None = None, *, seed: int = 0, **sizes: Any
) -> AudioRepresentationModel:
    """An encoder with random weights and quantiser; written to `folder` too, where there is one."""
    return new_own(AudioRepresentationModel, sizes, folder, seed)


def open_representation(folder: str | Path) -> AudioRepresentationModel:
    """The encoder in a folder that `save_pretrained` wrote."""
    return open_own(AudioRepresentationModel, folder, "a representation encoder")


class Probe(NamedTuple):
    """What a linear map reads."""

    accuracy: float
    """Of the test rows."""
    majority: float
    """What the most frequent label of the training rows reaches there."""
    train_accuracy: float
    hits: list[bool]
    """Of each test row."""


@public
def linear_probe(
    train: Annotated[Float64[Tensor, "N D"], SOME],
    train_labels: Sequence[object],
    test: Annotated[Float64[Tensor, "M D"], SOME],
    test_labels: Sequence[object],
) -> Probe:
    """Multinomial logistic regression of features (N, D) and a label each, deterministic.

    Features are standardised by the training rows; labels that were not trained on count as wrong. Always
    probe an untrained network of the same shape too: random features carry more than one expects.

    >>> found = linear_probe([[0.0], [1.0], [0.1], [0.9]], list("abab"), [[0.2], [0.8]], list("ab"))
    >>> found.accuracy, found.majority
    (1.0, 0.5)
    """
    same_length("train_labels", train_labels, len(train), "rows of features")
    same_length("test_labels", test_labels, len(test), "rows of features")
    names = sorted({str(label) for label in train_labels})
    number = {name: place for place, name in enumerate(names)}
    target_N = torch.tensor([number[str(label)] for label in train_labels])
    mean_D, std_D = train.mean(0), train.std(0, correction=0).clamp(min=1e-8)
    x_ND, y_MD = (train - mean_D) / std_D, (test - mean_D) / std_D
    weight_DC = torch.zeros(x_ND.shape[1], len(names), dtype=x_ND.dtype, requires_grad=True)
    bias_C = torch.zeros(len(names), dtype=x_ND.dtype, requires_grad=True)
    solver = torch.optim.LBFGS([weight_DC, bias_C], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        fit = F.cross_entropy(x_ND @ weight_DC + bias_C, target_N)
        loss = fit + 1e-2 * weight_DC.square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    with torch.enable_grad():
        solver.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        said_N = (x_ND @ weight_DC + bias_C).argmax(1)
        said_M = (y_MD @ weight_DC + bias_C).argmax(1).tolist()
    hits = [names[place] == str(label) for place, label in zip(said_M, test_labels, strict=True)]
    (common, _), *_ = Counter(str(label) for label in train_labels).most_common(1)
    frequent = sum(str(label) == common for label in test_labels) / len(test_labels)
    trained = float((said_N == target_N).double().mean())
    return Probe(sum(hits) / len(hits), frequent, trained, hits)


AutoConfig.register(AudioRepresentationConfig.model_type, AudioRepresentationConfig, exist_ok=True)
AutoModel.register(AudioRepresentationConfig, AudioRepresentationModel, exist_ok=True)


class FrozenLMBridge(nn.Module):
    """Representations as a prefix of a frozen language model that must write their text.

    Each `stacked` frames become one embedding by two layers; gradients pass through the language model
    and never into it. It is held outside of the module, so that nothing trains or saves it.
    """

    def __init__(self, lm: Any, size: int, stacked: int = 2) -> None:
        super().__init__()
        lm.requires_grad_(False)
        self._held = (lm.eval(),)
        self.stacked = stacked
        width = lm.get_input_embeddings().weight.shape[1]
        self.projector = nn.Sequential(
            nn.Linear(stacked * size, width), nn.GELU(), nn.Linear(width, width)
        )

    @property
    def lm(self) -> Any:
        return self._held[0]

    def forward(self, hidden: Tensor, mask: Tensor, ids: Tensor, is_target: Tensor) -> Tensor:
        """Mean cross-entropy of the target tokens: (B, T, D), (B, T), (B, L), (B, L) -> ().

        `ids` are prompt and target, padded at the end; `is_target` says which of them are to be written.
        """
        self.check_frozen()
        prefix, seen = self.prefix(hidden, mask)
        embed = self.lm.get_input_embeddings()
        inputs = torch.cat((prefix.to(embed.weight.dtype), embed(ids)), dim=1)
        last = is_target.long() * torch.arange(1, ids.shape[1] + 1, device=ids.device)
        is_text = torch.arange(ids.shape[1], device=ids.device) < last.amax(1, keepdim=True)
        attention = torch.cat((seen, is_text), dim=1)
        places = (attention.long().cumsum(1) - 1).clamp(min=0)
        logits = self.lm(
            inputs_embeds=inputs, attention_mask=attention.long(), position_ids=places
        ).logits
        # The token before a target predicts it; before the first text token stands the last frame.
        said = logits[:, prefix.shape[1] - 1 : -1].float()
        losses = F.cross_entropy(said.flatten(0, 1), ids.flatten(), reduction="none")
        chosen = is_target.flatten()
        return torch.where(chosen, losses, 0.0).sum() / chosen.sum().clamp(min=1)

    def prefix(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings (B, T / stacked, width) and which of them hold sound; padding goes to the left.

        So the last frame stands right before the text in every row.
        """
        rows, frames, size = hidden.shape
        missing = -frames % self.stacked
        heard = as_mask(mask, "mask", (rows, frames)).to(hidden.device)
        # A frame of padding may share an embedding with the last one of sound.
        padded = F.pad(torch.where(heard[..., None], hidden, 0.0), (0, 0, 0, missing))
        joined = padded.reshape(rows, -1, self.stacked * size)
        is_sound = F.pad(heard, (0, missing)).view(rows, -1, self.stacked).any(-1)
        order = is_sound.long().argsort(dim=1, stable=True)
        moved = joined.gather(1, order[..., None].expand_as(joined))
        found: Tensor = self.projector(moved)
        return found, is_sound.gather(1, order)

    def check_frozen(self) -> None:
        """Refuse a language model that is trained, or that a gradient has reached."""
        for name, weight in self.lm.named_parameters():
            if weight.requires_grad or weight.grad is not None:
                raise ArgumentError(f"lm: trains {name}, expected a frozen language model")
