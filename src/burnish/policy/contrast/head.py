"""The projection in which rollouts are compared, and its one AdamW step for each step of a run.

    step = head_step(state, hidden_BD, labels, groups, ContrastRule(loss="soft_nn"))
    rewards = contrastive_reward(step.losses.per_sample, labels)     # the head before its update
    state = step.state

A head is linear, D -> d, or D -> D -> ReLU -> d (CLIPO, arXiv 2603.10101), float32 and without biases:
the length of a hidden state then changes nothing, and a missing state stays 0. Where we differ from
the published code: weights, moments and step count are one value that a checkpoint saves, so that a
resumed run goes on bit for bit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from burnish.boundary import (
    INFINITE,
    UNREAD,
    Fraction,
    NonNegative,
    Number,
    Positive,
    PositiveInt,
    public,
)
from burnish.errors import ArgumentError, GuardTripped, StoreError
from burnish.policy.contrast.losses import ContrastiveLosses, ContrastRule, contrast, unit_rows
from burnish.seeds import derive
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Float64
    from torch import Tensor

    from burnish.policy.contrast.losses import Contrast, Keys, Marks
    from burnish.policy.groups import GroupLabels

Floor = Annotated[float, Meta(le=0.0), INFINITE]


HeadKind = Literal["linear", "mlp"]


LAYERS: Mapping[str, tuple[str, ...]] = {"linear": ("output",), "mlp": ("hidden", "output")}


PARTS = ("weight", "first", "second")


PUBLISHED = ContrastRule()
"""The paper's settings: InfoNCE inside groups at temperature 0.05."""


@dataclass(frozen=True, eq=False)
class HeadState:
    """Weights of a head with AdamW's two moments, by layer, and the steps behind them.

    `hidden` is (D, D), of an `mlp` only; `output` is (d, D). Nothing here changes these tensors.
    """

    weight: Mapping[str, Tensor]
    first: Mapping[str, Tensor]
    second: Mapping[str, Tensor]
    steps: int = 0

    @property
    def kind(self) -> HeadKind:
        return "mlp" if "hidden" in self.weight else "linear"

    @property
    def width(self) -> int:
        """D: features of a hidden state."""
        return self.weight["output"].shape[1]

    @property
    def size(self) -> int:
        """d: features of an embedding."""
        return self.weight["output"].shape[0]

    def to(self, device: torch.device | str) -> HeadState:
        weight, first, second = (
            {layer: values.to(device) for layer, values in part.items()} for part in self._parts()
        )
        return HeadState(weight, first, second, self.steps)

    def tensors(self) -> dict[str, Tensor]:
        named = {
            f"{name}.{layer}": values.contiguous()
            for name, part in zip(PARTS, self._parts(), strict=True)
            for layer, values in part.items()
        }
        return {**named, "steps": torch.tensor(self.steps)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> HeadState:
        """What `tensors()` gave, bit for bit."""
        kind = "mlp" if "weight.hidden" in tensors else "linear"
        expected = {f"{part}.{layer}" for part in PARTS for layer in LAYERS[kind]} | {"steps"}
        if set(tensors) != expected:
            raise ArgumentError(
                f"contrastive head: got {', '.join(sorted(tensors)) or 'nothing'}, expected "
                f"{', '.join(sorted(expected))}"
            )
        weight, first, second = (
            {layer: tensors[f"{part}.{layer}"] for layer in LAYERS[kind]} for part in PARTS
        )
        return cls(weight, first, second, int(tensors["steps"]))

    def _parts(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor], Mapping[str, Tensor]]:
        return self.weight, self.first, self.second


@public
def initial_head(
    width: PositiveInt, size: PositiveInt, kind: HeadKind = "linear", seed: int = 0
) -> HeadState:
    """A new head from `width` hidden features to `size`; equal seeds give equal heads.

    Weights are uniform within 1 / sqrt(width), as torch's own linear layers are.
    """
    weight = {}
    for layer in LAYERS[kind]:
        draw = torch.Generator().manual_seed(derive(seed, "contrastive head", layer))
        rows = size if layer == "output" else width
        bound = 1 / math.sqrt(width)
        weight[layer] = torch.empty(rows, width).uniform_(-bound, bound, generator=draw)
    first, second = (
        {layer: torch.zeros_like(values) for layer, values in weight.items()} for _ in range(2)
    )
    return HeadState(weight, first, second)


class HeadStep(NamedTuple):
    state: HeadState
    """The head after its update, or the given one where there was none."""
    losses: ContrastiveLosses
    """By the head before its update; detached."""
    metrics: dict[str, float]


class ContrastiveHead:
    """A head from D hidden features to unit vectors of d; `state` is all that it holds.

    head = ContrastiveHead(576, 512)
    step = head.step(hidden_BD, labels, groups)     # losses by the head before this step
    head.save("head.safetensors")
    """

    def __init__(self, D: int, d: int, kind: HeadKind = "linear", *, seed: int = 0) -> None:
        self.state = initial_head(D, d, kind, seed)

    def __call__(self, hidden_BD: Tensor) -> Tensor:
        return embed(self.state, hidden_BD)

    def step(self, *arguments: Any, **settings: Any) -> HeadStep:
        result = head_step(self.state, *arguments, **settings)
        self.state = result.state
        return result

    def to(self, device: torch.device | str) -> ContrastiveHead:
        self.state = self.state.to(device)
        return self

    def save(self, path: str | Path) -> None:
        """Write weights, moments and step count as one safetensors file, whole or not at all."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        draft = path.with_name(f".writing-{path.name}-{os.getpid()}")
        try:
            save_file(self.state.tensors(), draft)
            os.replace(draft, path)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            raise StoreError(f"contrastive head could not be written to {path}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> ContrastiveHead:
        """The head that `save` wrote, bit for bit."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state = HeadState.from_tensors(load_file(path))
        except (OSError, SafetensorError, ValueError) as error:
            raise StoreError(
                f"contrastive head {path} could not be read: {error}; expected a file that "
                "ContrastiveHead.save wrote"
            ) from error
        head = cls.__new__(cls)
        head.state = state
        return head


def embed(state: HeadState, hidden_BD: Tensor) -> Tensor:
    """Unit vectors of pooled hidden states: (B, D) -> (B, d); 0 for a state that is not finite."""
    return unit_rows(_project(state.weight, _readable(state, hidden_BD)))[0]


@public
def head_step(
    state: HeadState,
    hidden_BD: Annotated[Float[Tensor, "B D"], UNREAD],
    labels: Marks,
    groups: GroupLabels,
    rule: ContrastRule = PUBLISHED,
    *,
    seed: int = 0,
    keys: Keys | None = None,
    duplicate_ids: GroupLabels | None = None,
    usable: Marks | None = None,
    lam: NonNegative = 0.2,
    floor: Floor = -0.5,
    constant: Number = 0.0,
    learning_rate: NonNegative = 1e-3,
    weight_decay: NonNegative = 0.01,
    betas: tuple[Fraction, Fraction] = (0.9, 0.999),
    eps: Positive = 1e-8,
    frozen: bool = False,
) -> HeadStep:
    """One forward gives the losses of all rollouts and, unless `frozen`, the head's AdamW step.

    `hidden_BD` are pooled states, (B, D); arguments up to `usable` are those of `contrastive_losses`.
    Without anchors there is no step. `lam`, `floor` and `constant` are the reward's, for the log.
    Metrics: `anchors` and `dropped_nan` (rollouts without a usable state) are counts, `anchor_share`
    is of all rollouts; with anchors also `loss`, `floor_share` (of right anchors),
    `positive_similarity` and `negative_similarity`, the anchors' mean cosines; with a step
    `head_grad_norm`. What has no value is left out.
    """
    # A trainer may call from inside no_grad or inference_mode; the head's own step needs a graph.
    with torch.inference_mode(False), torch.set_grad_enabled(not frozen):
        leaves = {
            layer: values.detach().clone().requires_grad_(not frozen)
            for layer, values in state.weight.items()
        }
        projected_BE = _project(leaves, _readable(state, hidden_BD))
        more: dict[str, Any] = {"keys": keys, "duplicate_ids": duplicate_ids, "usable": usable}
        found = contrast(projected_BE, labels, groups, rule, seed=seed, **more)
        _require_finite(float(found.losses.mean.detach()), "loss", "loss")
        metrics = _describe(found, labels, lam=lam, floor=floor, constant=constant)
        losses = ContrastiveLosses(*(values.detach() for values in found.losses))
        if frozen or not metrics["anchors"]:
            return HeadStep(state, losses, metrics)
        gradients = torch.autograd.grad(found.losses.mean, list(leaves.values()))
    by_layer = dict(zip(leaves, gradients, strict=True))
    norms = torch.stack([torch.linalg.vector_norm(one.double()) for one in gradients])
    metrics["head_grad_norm"] = float(torch.linalg.vector_norm(norms))
    _require_finite(metrics["head_grad_norm"], "gradient", "gradient norm")
    # AdamW (arXiv 1711.05101), in new tensors.
    steps, (keep_first, keep_second) = state.steps + 1, betas
    weight, first, second = {}, {}, {}
    for layer, gradient in by_layer.items():
        first[layer] = state.first[layer].lerp(gradient, 1 - keep_first)
        second[layer] = state.second[layer].lerp(gradient.square(), 1 - keep_second)
        spread = (second[layer] / (1 - keep_second**steps)).sqrt() + eps
        change = first[layer] / (1 - keep_first**steps) / spread
        decayed = state.weight[layer] * (1 - learning_rate * weight_decay)
        weight[layer] = decayed - learning_rate * change
    return HeadStep(HeadState(weight, first, second, steps), losses, metrics)


@public
def contrastive_reward(
    per_sample_loss: Float64[Tensor, " B"],
    labels: Marks,
    lam: NonNegative = 0.2,
    floor: Floor = -0.5,
    constant: Number = 0.0,
    *,
    usable: Marks | None = None,
) -> Tensor:
    """`max(floor, constant - lam * loss)` where `labels` is 1, else 0: (B,), (B,) -> (B,) float64.

    A right rollout that was no anchor has loss 0 and gets the constant; where `usable` (B,) is 0 there
    was nothing to compare, and it gets 0.
    """
    is_paid_B = labels if usable is None else labels & usable
    return (constant - lam * per_sample_loss).clamp(min=floor).masked_fill(~is_paid_B, 0.0)


def floor_share(rewards_B: Tensor, is_anchor_B: Tensor, floor: float) -> float:
    """The share of anchors whose reward is the floor, where all look equally bad; NaN without any."""
    return (rewards_B[is_anchor_B] <= floor).double().mean().item()


def _readable(state: HeadState, hidden_BD: Tensor) -> Tensor:
    """States as float32 without a graph; rows that are not finite become 0, which has no direction."""
    if hidden_BD.ndim != 2 or hidden_BD.shape[1] != state.width:
        raise ArgumentError(
            f"hidden_BD: got shape {tuple(hidden_BD.shape)}, expected (B, {state.width}), the width "
            "that the contrastive head was made for"
        )
    hidden_BD = hidden_BD.detach().to(torch.float32)
    # Not only the embedding: a NaN state times a gradient of 0 would still be a NaN in the weights.
    return hidden_BD.masked_fill(~hidden_BD.isfinite().all(1, keepdim=True), 0.0)


def _project(weight: Mapping[str, Tensor], hidden_BD: Tensor) -> Tensor:
    if "hidden" in weight:
        hidden_BD = torch.relu(hidden_BD @ weight["hidden"].T)
    return hidden_BD @ weight["output"].T


def _describe(
    found: Contrast, labels: Tensor, *, lam: float, floor: float, constant: float
) -> dict[str, float]:
    per_sample_B, mean, is_anchor_B = (values.detach() for values in found.losses)
    anchors, rollouts = int(is_anchor_B.sum()), len(is_anchor_B)
    metrics = {"anchors": float(anchors), "dropped_nan": float((~found.has_direction_B).sum())}
    if rollouts:
        metrics["anchor_share"] = anchors / rollouts
    if anchors:
        metrics["loss"] = mean.item()
        metrics["positive_similarity"] = found.positive_cos_B[is_anchor_B].mean().item()
        per_sample_B = per_sample_B.double()
        rewards_B = contrastive_reward.plain(per_sample_B, labels, lam, floor, constant)
        is_right_B = is_anchor_B & labels.bool()
        optional = {
            "floor_share": floor_share(rewards_B, is_right_B, floor),
            "negative_similarity": found.negative_cos_B[is_anchor_B].nanmean().item(),
        }
        metrics.update((name, value) for name, value in optional.items() if math.isfinite(value))
    return metrics


def _require_finite(value: float, stage: str, what: str) -> None:
    if not math.isfinite(value):
        raise GuardTripped(
            f"{stage} guard: the contrastive head's {what} is {value}; expected a finite number. "
            "Raise the temperature, or leave the contrast out of the recipe.",
            stage=stage,
            tensor="contrastive head",
        )
