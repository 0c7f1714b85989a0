"""DIR's penalty in training: a head for each attribute, its own optimiser, queue and lambda.

    penalty = BiasPenalty({"length": BiasSettings(lam=1.0)}, width=576)
    found = penalty(h_chosen, h_rejected, {"length": labels})
    (bradley_terry + found.loss).backward()         # reaches the reward model, never the heads

Each call first trains the heads on detached states, then computes the penalty with the heads as they
are. `tensors()` and `load()` carry heads, moments, queues and lambdas through a checkpoint bit for bit.
From DIR (arXiv 2512.23461), whose defaults these are. Ours beside it: several attributes at once, the
queue of past differences, and a lambda that follows a target (`target_auc`), because a large constant one
overshoots: the model then prefers the opposite.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor, nn

from burnish.arguments import refused
from burnish.boundary import MISSING, Count, NonNegative, Positive, Seed, Share, public
from burnish.errors import ArgumentError
from burnish.rewards.models.dir import (
    LEFT_OUT,
    club,
    club_sum,
    club_weights,
    gather_rows,
    head_cross_entropy,
    represent,
)
from burnish.rewards.models.dir_term import BiasSettings, Representation
from burnish.rewards.models.pair_metrics import auc
from burnish.seeds import derive
from burnish.tensors import check_shape

if TYPE_CHECKING:
    from jaxtyping import Float64

    ClassLabels = Annotated[Float64[Tensor, " N"], Meta(ge=LEFT_OUT), MISSING]

logger = logging.getLogger(__name__)

_AUC_MEMORY = 0.9
"""Share of the running probe AUC that a step keeps: one batch is too few pairs to judge by."""


class Penalty(NamedTuple):
    """What a batch costs, and what was measured on the way."""

    loss: Tensor | None
    """Sum of lambda times CLUB over the attributes; None where no attribute has one."""
    metrics: dict[str, float]
    """By `ATTRIBUTE/measure`; what has no value is left out."""


class BiasHead(nn.Module):
    """`q(attribute | pair)`: Linear, ReLU, Linear, with an AdamW that only it uses."""

    def __init__(
        self,
        width: int,
        classes: int = 2,
        hidden: int = 1024,
        *,
        learning_rate: float = 1e-4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, classes)
        # Drawn apart from the global generator, so that the model's own randomness stays as it is.
        draw = torch.Generator().manual_seed(derive(seed, "bias head"))
        for layer in (self.first, self.second):
            bound = 1 / math.sqrt(layer.in_features)
            for values in (layer.weight, layer.bias):
                nn.init.uniform_(values, -bound, bound, generator=draw)
        self.optimiser = torch.optim.AdamW(self.parameters(), lr=learning_rate)

    def forward(self, pairs_ND: Tensor) -> Tensor:
        """Logits: (N, D) -> (N, C), float32 whatever the states are."""
        logits: Tensor = self.second(torch.relu(self.first(pairs_ND.float())))
        return logits

    def frozen(self, pairs_ND: Tensor) -> Tensor:
        """Logits whose gradient reaches the pairs but not the head."""
        weights = {name: values.detach() for name, values in self.named_parameters()}
        logits: Tensor = torch.func.functional_call(self, weights, (pairs_ND,))
        return logits

    def fit(self, pairs_ND: Tensor, labels_N: Tensor, steps: int) -> float | None:
        """Train on pairs without their graph; the last loss, or None where there was nothing to learn.

        One class alone would only teach the head that class, so such a batch is passed over.
        """
        pairs_ND, known_N = pairs_ND.detach(), labels_N[labels_N >= 0]
        if not len(known_N) or bool((known_N == known_N[0]).all()):
            return None
        loss = None
        with torch.enable_grad():
            for _ in range(steps):
                self.optimiser.zero_grad(set_to_none=True)
                loss = head_cross_entropy(self(pairs_ND), labels_N)
                if not bool(loss.detach().isfinite()):
                    self.optimiser.zero_grad(set_to_none=True)
                    return None
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return None if loss is None else loss.item()

    def tensors(self) -> dict[str, Tensor]:
        """Weights, moments and step counts, by name."""
        found = {name: values.detach() for name, values in self.named_parameters()}
        for name, values in self.named_parameters():
            for key, moment in self.optimiser.state.get(values, {}).items():
                found[f"{name}.{key}"] = moment
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors()` gave."""
        parameters = dict(self.named_parameters())
        moments = [name for name in tensors if name not in parameters]
        missing = set(parameters) - set(tensors)
        if missing:
            raise ArgumentError(f"bias head: {', '.join(sorted(missing))} missing from its state")
        with torch.no_grad():
            for name, values in parameters.items():
                check_shape(tensors[name], f"bias head: {name}", tuple(values.shape))
                values.copy_(tensors[name])
        for name in moments:
            owner, key = name.rsplit(".", 1)
            value = tensors[name].clone()
            # AdamW counts its steps on the CPU.
            at = value if key == "step" else value.to(parameters[owner].device)
            self.optimiser.state[parameters[owner]][key] = at


class BiasPenalty:
    """DIR over named attributes. A lambda of 0 with no target computes nothing at all."""

    def __init__(
        self,
        attributes: Mapping[str, BiasSettings],
        width: int,
        *,
        representation: Representation = "difference",
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.representation: Representation = representation
        self.settings = dict(attributes)
        size = width * (2 if representation == "concat" else 1)
        self.heads: dict[str, BiasHead] = {}
        self.lam = {name: settings.lam for name, settings in self.settings.items()}
        self.auc: dict[str, float] = {}
        self.past: dict[str, tuple[Tensor, Tensor]] = {}
        """The queue before the newest step, and behind it that step's own pairs."""
        self.newest = dict.fromkeys(self.settings, 0)
        """How many pairs of `past` are those of the newest step."""
        self.dropped = 0
        """Batches whose penalty was left out because a logit was not finite."""
        self._told: set[str] = set()
        self._ready: dict[str, tuple[Tensor, Tensor]] = {}
        for name, settings in self.settings.items():
            head = BiasHead(
                size,
                settings.classes,
                settings.head_width,
                learning_rate=settings.head_learning_rate,
                seed=derive(seed, name),
            )
            self.heads[name] = head.to(device)
            empty = torch.zeros(0, dtype=torch.long, device=device)
            self.past[name] = (torch.zeros(0, size, device=device), empty)

    def __call__(self, h_chosen: Tensor, h_rejected: Tensor, labels: Mapping[str, Any]) -> Penalty:
        """The penalty of a batch: (N, d) twice, and (N,) classes by attribute, -1 or None for none.

        Over several processes it is that of the whole batch, for gradients that are averaged.
        """
        if not self.active:
            return Penalty(None, {})
        local_N = {name: self.labels(name, labels, len(h_chosen)) for name in self.active}
        pairs_ND = gather_rows(represent(h_chosen, h_rejected, self.representation))
        whole_N = {
            name: gather_rows(values.to(pairs_ND.device)) for name, values in local_N.items()
        }
        metrics = self.prepare(pairs_ND.detach(), whole_N)
        return Penalty(self.part(pairs_ND, torch.arange(len(pairs_ND))), metrics)

    @property
    def active(self) -> list[str]:
        """Attributes that have a weight, or may get one."""
        return [name for name, one in self.settings.items() if one.lam or one.target_auc]

    def labels(self, name: str, labels: Mapping[str, Any], pairs: int) -> Tensor:
        """The classes of one attribute, checked; -1 for none."""
        if name not in labels:
            raise refused("labels", sorted(labels), f"labels of {name} too")
        return class_labels(labels[name], pairs, self.settings[name].classes, name)

    def prepare(
        self,
        pairs_ND: Tensor,
        labels: Mapping[str, Tensor],
        *,
        learn: bool = True,
        counts: bool = True,
    ) -> dict[str, float]:
        """Train the heads on all pairs of a step, and fix what `part` adds up.

        `pairs_ND` are represented pairs without their graph, equal on every process; `learn=False`
        leaves heads, lambdas and queues as they are; `counts=False` leaves lambdas as they are and
        has no penalty, so that only the heads learn. Gives the metrics.
        """
        metrics: dict[str, float] = {}
        self._ready = {}
        for name in self.active:
            found = self._prepare(name, pairs_ND, labels[name].to(pairs_ND.device), learn, counts)
            metrics |= {f"{name}/{measure}": value for measure, value in found.items()}
        return metrics

    def part(self, pairs_PD: Tensor, places_P: Tensor) -> Tensor | None:
        """What these of the prepared pairs add to the penalty, with its graph; None for nothing.

        The parts of a step add up to its penalty, however it is cut: the covariance of the whole step
        is a sum over pairs once the shares of the classes are known.
        """
        found = []
        for name, (weight_NC, shift_C) in self._ready.items():
            logits_PC = self.heads[name].frozen(pairs_PD)
            weight_PC = weight_NC[places_P.to(weight_NC.device)]
            found.append(club_sum(logits_PC, weight_PC, shift_C))
        return torch.stack(found).sum() if found else None

    def _prepare(
        self, name: str, pairs_ND: Tensor, labels_N: Tensor, learn: bool, counts: bool
    ) -> dict[str, float]:
        settings, head = self.settings[name], self.heads[name]
        past_QD, past_Q = self._queue(name, learn)
        known_N = labels_N >= 0
        metrics: dict[str, float] = {"pairs": float(known_N.sum())}
        pairs_ND = pairs_ND.float()
        if learn and bool(pairs_ND.isfinite().all()):
            # Before the head has seen these pairs: what it then finds is not memory.
            self._follow(name, head, pairs_ND, labels_N, metrics, counts)
            every_ND, every_N = torch.cat([past_QD, pairs_ND]), torch.cat([past_Q, labels_N])
            fitted = head.fit(every_ND, every_N, settings.head_steps)
            metrics |= {} if fitted is None else {"head_loss": fitted}
        with torch.no_grad():
            logits_NC = head(pairs_ND)
        if not bool(logits_NC.isfinite().all()):
            self.dropped += learn
            return {**metrics, "dropped": 1.0}
        self._warn_of_one(name, int(metrics["pairs"]) + len(past_Q))
        mi = float(club(logits_NC, labels_N, past_Q))
        metrics |= {"mi": mi, "lam": self.lam[name] if counts else 0.0}
        if counts and (mi >= 0 or settings.clamp == "none"):
            weight_NC, shift_C = club_weights(logits_NC, labels_N, past_Q)
            self._ready[name] = (self.lam[name] * weight_NC, shift_C)
        if learn and settings.queue:
            new_QD, new_Q = (rows[known_N][-settings.queue :] for rows in (pairs_ND, labels_N))
            self.past[name] = torch.cat([past_QD, new_QD]), torch.cat([past_Q, new_Q])
            self.newest[name] = len(new_Q)
        return metrics

    def _queue(self, name: str, learn: bool) -> tuple[Tensor, Tensor]:
        """Past pairs that a step is compared with; a replay sees those that the step saw."""
        past_QD, past_Q = self.past[name]
        if learn:
            first, end = max(len(past_Q) - self.settings[name].queue, 0), len(past_Q)
        else:
            first, end = 0, len(past_Q) - self.newest[name]
        return past_QD[first:end], past_Q[first:end]

    def _warn_of_one(self, name: str, pairs: int) -> None:
        if pairs < 2 and name not in self._told:
            self._told.add(name)
            logger.warning(
                "attribute '%s': MI batch too small, the penalty of a single pair is 0; raise the "
                "batch or give the attribute a queue",
                name,
            )

    def _follow(
        self,
        name: str,
        head: BiasHead,
        pairs_ND: Tensor,
        labels_N: Tensor,
        metrics: dict[str, float],
        counts: bool,
    ) -> None:
        """Measure how well the head finds the attribute, and move lambda towards its target."""
        settings = self.settings[name]
        with torch.no_grad():
            found = _head_auc(head(pairs_ND), labels_N)
        if found is None:
            return
        before = self.auc.get(name, found)
        self.auc[name] = _AUC_MEMORY * before + (1 - _AUC_MEMORY) * found
        metrics["probe_auc"] = self.auc[name]
        if counts and settings.target_auc is not None:
            self.lam[name] = dual_lambda.plain(
                self.lam[name],
                self.auc[name],
                settings.target_auc,
                rate=settings.lam_rate,
                most=settings.lam_most,
            )

    def tensors(self) -> dict[str, Tensor]:
        """All that an exact resume needs, by name, as safetensors stores it."""
        found: dict[str, Tensor] = {"dropped": torch.tensor(self.dropped)}
        for name, head in self.heads.items():
            found |= {f"{name}.head.{key}": values for key, values in head.tensors().items()}
            found[f"{name}.past"], found[f"{name}.past_labels"] = self.past[name]
            found[f"{name}.newest"] = torch.tensor(self.newest[name])
            numbers = [self.lam[name], self.auc.get(name, math.nan)]
            found[f"{name}.lam_auc"] = torch.tensor(numbers, dtype=torch.float64)
        return {name: values.contiguous() for name, values in found.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors()` gave."""
        for name, head in self.heads.items():
            mine = {
                key.removeprefix(f"{name}."): values
                for key, values in tensors.items()
                if key.startswith(f"{name}.")
            }
            if not {"past", "past_labels", "lam_auc"} <= set(mine):
                raise ArgumentError(f"bias penalty: the checkpoint has no state of '{name}'")
            head.load({k.removeprefix("head."): v for k, v in mine.items() if k[:5] == "head."})
            device = next(head.parameters()).device
            self.past[name] = mine["past"].to(device), mine["past_labels"].to(device)
            # Checkpoints of before have no such count, and no step to see again.
            self.newest[name] = int(mine.get("newest", 0))
            lam, running = mine["lam_auc"].tolist()
            self.lam[name] = lam
            if not math.isnan(running):
                self.auc[name] = running
        self.dropped = int(tensors["dropped"])


@public
def dual_lambda(
    lam: NonNegative,
    auc: Share,
    target: Share = 0.55,
    *,
    rate: Positive = 0.1,
    most: NonNegative = 10.0,
) -> float:
    """One step of dual ascent: `lam + rate * (auc - target)`, kept within 0 and `most`.

    `auc` says how well a head finds the attribute: above the target lambda grows, below it falls, so
    that it stops before the model prefers the opposite.
    """
    return min(max(lam + rate * (auc - target), 0.0), most)


@public
def probe_auc(
    features: Float64[Tensor, "N D"],
    labels: ClassLabels,
    *,
    folds: Annotated[int, Meta(ge=2)] = 5,
    ridge: Positive = 1.0,
    seed: Seed = 0,
) -> float | None:
    """How well a linear probe finds a binary label in features of pairs it was not fitted on.

    (N, D), (N,) of 0, 1 or -1 (left out) -> AUC, 0.5 is chance; None where a class is missing. The
    probe is ridge regression on standardised features, cross-fitted over `folds`.
    """
    labels_N = class_labels.plain(labels, len(features)).to(features.device)
    rows_ND, labels_N = features[labels_N >= 0], labels_N[labels_N >= 0]
    if len(rows_ND) < folds:
        return None
    draw = torch.Generator().manual_seed(derive(seed, "probe"))
    fold_N = (torch.randperm(len(rows_ND), generator=draw) % folds).to(rows_ND.device)
    scores_N = torch.zeros(len(rows_ND), dtype=torch.float64, device=rows_ND.device)
    for fold in range(folds):
        mine = fold_N != fold
        mean_D, scale_D = rows_ND[mine].mean(0), rows_ND[mine].std(0, correction=0).clamp(min=1e-12)
        seen = (rows_ND - mean_D) / scale_D
        target = 2.0 * labels_N.double() - 1
        gram = seen[mine].T @ seen[mine] + ridge * torch.eye(
            seen.shape[1], dtype=seen.dtype, device=seen.device
        )
        weights = torch.linalg.solve(gram, seen[mine].T @ (target[mine] - target[mine].mean()))
        scores_N[~mine] = seen[~mine] @ weights + target[mine].mean()
    return auc.plain(scores_N.tolist(), labels_N.tolist())


def _head_auc(logits_NC: Tensor, labels_N: Tensor) -> float | None:
    """Mean over classes of how well the head tells a class from the others."""
    known = labels_N >= 0
    logp_NC = logits_NC[known].double().log_softmax(1)
    found = [
        auc.plain(logp_NC[:, k].tolist(), (labels_N[known] == k).long().tolist())
        for k in range(logits_NC.shape[1])
    ]
    values = [value for value in found if value is not None]
    return sum(values) / len(values) if values else None


@public
def class_labels(
    labels: ClassLabels, pairs: Count, classes: Count = 2, name: str = "labels"
) -> Tensor:
    """Classes as int64, -1 for none: a label of -1, NaN or None."""
    whole_N = labels.nan_to_num(nan=LEFT_OUT).long()
    is_odd_N = (whole_N >= classes) | (labels.nan_to_num(nan=LEFT_OUT) != whole_N)
    if len(whole_N) != pairs or bool(is_odd_N.any()):
        given = labels[is_odd_N][0].item() if bool(is_odd_N.any()) else f"{len(whole_N)} labels"
        raise refused(name, given, f"a class from 0 to {classes - 1} for each of {pairs} pairs")
    return whole_N
