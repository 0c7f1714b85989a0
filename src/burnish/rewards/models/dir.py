"""Losses that keep a named attribute of a pair out of a reward model (DIR).

DIR (arXiv 2512.23461) adds to Bradley-Terry an upper bound of the mutual information between what the
model looks at, `h_chosen - h_rejected`, and an attribute of the pair such as "chosen is longer". The
bound is CLUB with a head `q(b | difference)`; its normaliser cancels, so that it is the sum over classes
of `Cov(logit_k, 1[b = k])`: it costs O(N C), and it removes what the head can see and no more.

Where we differ from the published code: ties are left out, logits that are not finite drop the penalty
instead of reaching the weights, and the penalty is that of the whole step. The published gather keeps the
local slice, so that its lambda shrinks with the number of processes: ours = theirs / processes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from burnish.arguments import refused
from burnish.boundary import MISSING, Count, NonNegative, Positive, Seed, Share, public
from burnish.rewards.models.dir_term import BiasSettings, Clamp, Representation
from burnish.rewards.models.pair_metrics import auc
from burnish.rewards.models.term import bradley_terry_loss
from burnish.seeds import derive
from burnish.tensors import as_logp

if TYPE_CHECKING:
    from jaxtyping import Float, Float64, Int

    Logits = Float[Tensor, "N C"]
    Classes = Annotated[Int[Tensor, " N"], Meta(ge=-1)]
    PastClasses = Annotated[Int[Tensor, " Q"], Meta(ge=-1)]
    States = Float[Tensor, "N d"]
    PairScores = Float[Tensor, " N"]
    ClassLabels = Annotated[Float64[Tensor, " N"], Meta(ge=-1), MISSING]

logger = logging.getLogger(__name__)

Head = Callable[[Tensor], Tensor] | Mapping[str, object]

LEFT_OUT = -1
"""The label of a pair that says nothing, such as a tie: it has no part in the penalty."""


class DirLoss(NamedTuple):
    """Bradley-Terry with DIR's penalty, all with their graphs."""

    loss_preference: Tensor
    mi: Tensor | None
    """CLUB's estimate; None where it was dropped, because a logit was not finite."""
    total: Tensor


@public
def club_categorical(
    logits: Logits,
    labels: Classes,
    *,
    past_labels: PastClasses | None = None,
    clamp: Clamp = "none",
) -> Tensor:
    """CLUB's upper bound of the information that logits have of labels: (N, C), (N,) -> ().

    `mean_i log q(b_i | i) - mean_i mean_j log q(b_j | i)`, computed as a covariance. A label of -1
    leaves its pair out. `past_labels` (Q,) join the second mean, so that a batch of one pair has
    something to be compared with. Exactly 0 for one pair or one class without past labels, and for
    constant logits. Not bounded: a wrong head gives less than 0, which `clamp="zero"` cuts off.
    """
    past_Q = None if past_labels is None else _known("past_labels", past_labels, logits)
    return club(logits, _known("labels", labels, logits), past_Q, clamp)


@public
def bias_head_loss(logits: Logits, labels: Classes) -> Tensor:
    """Mean cross entropy, which the head alone minimises: (N, C), (N,) -> (); 0 without a label."""
    return head_cross_entropy(logits, _known("labels", labels, logits))


@public
def total_loss(
    h_chosen: States,
    h_rejected: States,
    r_chosen: PairScores,
    r_rejected: PairScores,
    bias_label: Classes,
    lam: NonNegative = 1.0,
    representation: Representation = "difference",
    head: Head | None = None,
    *,
    clamp: Clamp = "none",
) -> DirLoss:
    """`mean -log sigma(r_w - r_l) + lam * CLUB(head(x), b)`: (N, d) twice, (N,) three times.

    x is `h_chosen - h_rejected` or, for `concat`, both side by side. `head` maps x to logits (N, C):
    a function or module, or its weights {W1, b1, W2, b2} (a ReLU between) or {W, b}. Gradients reach
    the states and the rewards; detach the head's own weights by giving a head that does not train.
    With `lam` 0 the total is Bradley-Terry's loss itself.
    """
    pair = bradley_terry_loss.plain(r_chosen, r_rejected)
    logits_NC = _apply(head, represent(h_chosen, h_rejected, representation))
    labels_N = _known("bias_label", bias_label, logits_NC)
    if not logits_NC.isfinite().all():
        return DirLoss(pair, None, pair)
    mi = club(logits_NC, labels_N, clamp=clamp)
    return DirLoss(pair, mi, pair + lam * mi if lam else pair)


# The same without checks: no value is looked at, for that would wait for the device.


def represent(h_chosen: Tensor, h_rejected: Tensor, kind: Representation = "difference") -> Tensor:
    """What the head sees of a pair: (N, d) twice -> (N, d) or (N, 2 d)."""
    if kind == "concat":
        return torch.cat([h_chosen, h_rejected], 1)
    return h_chosen - h_rejected


def club(
    logits_NC: Tensor, labels_N: Tensor, past_Q: Tensor | None = None, clamp: Clamp = "none"
) -> Tensor:
    """`club_categorical` without its checks; labels are int64."""
    weight_NC, shift_C = club_weights(logits_NC, labels_N, past_Q)
    estimate = club_sum(logits_NC, weight_NC, shift_C)
    return estimate.clamp(min=0) if clamp == "zero" else estimate


def club_weights(
    logits_NC: Tensor, labels_N: Tensor, past_Q: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`CLUB = club_sum(logits, weight, shift)`: weights (N, C) and shift (C,), without a graph.

    The weights depend on the labels alone, so that parts of a batch add up to the whole.
    """
    one_hot_NC, known_N = _one_hot(labels_N, logits_NC)
    count = known_N.sum().clamp(min=1)
    # A shift by column changes no covariance, and makes that of constant logits exactly 0.
    shift_C = logits_NC[:1].detach().sum(0)
    share_C = one_hot_NC.sum(0) / count
    if past_Q is not None and len(past_Q):
        past_QC, past_known_Q = _one_hot(past_Q, logits_NC)
        seen = (known_N.sum() + past_known_Q.sum()).clamp(min=1)
        share_C = (one_hot_NC.sum(0) + past_QC.sum(0)) / seen
        shift_C = torch.zeros_like(shift_C)
    return (one_hot_NC - share_C) * known_N[:, None] / count, shift_C


def club_sum(logits_NC: Tensor, weight_NC: Tensor, shift_C: Tensor) -> Tensor:
    """`sum((logits - shift) * weight)` of all pairs or of some of them.

    The weights of a pair add up to 0, so that its largest logit can be taken from all of them: large
    logits then lose no digits in float32.
    """
    moved_NC = logits_NC - shift_C
    return ((moved_NC - moved_NC.detach().amax(1, keepdim=True)) * weight_NC).sum()


def head_cross_entropy(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """`bias_head_loss` without its checks; labels are int64."""
    known_N = labels_N >= 0
    each_N = functional.cross_entropy(logits_NC, labels_N.clamp(min=0), reduction="none")
    return (each_N * known_N).sum() / known_N.sum().clamp(min=1)


# The penalty in training.


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
        self.load_state_dict({name: tensors[name] for name in parameters})
        for name in set(tensors) - set(parameters):
            owner, key = name.rsplit(".", 1)
            value = tensors[name].clone()
            # AdamW counts its steps on the CPU.
            at = value if key == "step" else value.to(parameters[owner].device)
            self.optimiser.state[parameters[owner]][key] = at


class BiasPenalty:
    """DIR over one named attribute in training: its head, queue and lambda.

    Each step first trains the head on detached states, then computes the penalty with the head as it
    is. `tensors()` and `load()` carry head, moments, queue and lambda through a checkpoint bit for bit.
    Ours beside the paper: the queue of past differences, and a lambda that follows a target
    (`target_auc`), because a large constant one overshoots: the model then prefers the opposite.
    """

    def __init__(
        self,
        name: str,
        settings: BiasSettings,
        width: int,
        *,
        representation: Representation = "difference",
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.name, self.settings, self.lam = name, settings, settings.lam
        self.representation: Representation = representation
        size = width * (2 if representation == "concat" else 1)
        self.head = BiasHead(
            size,
            settings.classes,
            settings.head_width,
            learning_rate=settings.head_learning_rate,
            seed=derive(seed, name),
        ).to(device)
        self.auc = math.nan
        """Of the head on pairs that it has not seen; a running mean."""
        empty = torch.zeros(0, dtype=torch.long, device=device)
        self.past = torch.zeros(0, size, device=device), empty
        """The queue before the newest step, and behind it that step's own pairs."""
        self.newest = 0
        """How many pairs of `past` are those of the newest step."""
        self.dropped = 0
        """Batches whose penalty was left out because a logit was not finite."""
        self._is_told = False
        self._ready: tuple[Tensor, Tensor] | None = None

    @property
    def is_active(self) -> bool:
        """Whether there is a weight, or may be one."""
        return bool(self.settings.lam or self.settings.target_auc)

    def prepare(
        self, pairs_ND: Tensor, labels: Any, *, learn: bool = True, counts: bool = True
    ) -> dict[str, float]:
        """Train the head on all pairs of a step, and fix what `part` adds up.

        `pairs_ND` are represented pairs without their graph, equal on every process, `labels` their
        classes, -1 or None for none; `learn=False`
        leaves head, lambda and queue as they are; `counts=False` leaves lambda as it is and has no
        penalty, so that only the head learns. Gives the metrics.
        """
        self._ready = None
        settings, head = self.settings, self.head
        labels_N = class_labels(labels, len(pairs_ND), settings.classes, self.name)
        pairs_ND, labels_N = pairs_ND.float(), labels_N.to(pairs_ND.device)
        # Past pairs that the step is compared with; a replay sees those that the step saw.
        rows_QD, rows_Q = self.past
        seen = slice(max(len(rows_Q) - settings.queue, 0), None)
        past_QD, past_Q = (
            one[seen if learn else slice(len(rows_Q) - self.newest)] for one in (rows_QD, rows_Q)
        )
        known_N = labels_N >= 0
        metrics: dict[str, float] = {"pairs": float(known_N.sum())}
        if learn and bool(pairs_ND.isfinite().all()):
            # Before the head has seen these pairs: what it then finds is not memory.
            self._follow(pairs_ND, labels_N, metrics, counts)
            every_ND, every_N = torch.cat([past_QD, pairs_ND]), torch.cat([past_Q, labels_N])
            fitted = head.fit(every_ND, every_N, settings.head_steps)
            metrics |= {} if fitted is None else {"head_loss": fitted}
        with torch.no_grad():
            logits_NC = head(pairs_ND)
        if not bool(logits_NC.isfinite().all()):
            self.dropped += learn
            return {**metrics, "dropped": 1.0}

        if metrics["pairs"] + len(past_Q) < 2 and not self._is_told:
            self._is_told = True
            logger.warning(
                "attribute '%s': MI batch too small, the penalty of a single pair is 0; raise the "
                "batch or give the attribute a queue",
                self.name,
            )
        mi = float(club(logits_NC, labels_N, past_Q))
        metrics |= {"mi": mi, "lam": self.lam if counts else 0.0}
        if counts and (mi >= 0 or settings.clamp == "none"):
            weight_NC, shift_C = club_weights(logits_NC, labels_N, past_Q)
            self._ready = (self.lam * weight_NC, shift_C)
        if learn and settings.queue:
            new_QD, new_Q = (rows[known_N][-settings.queue :] for rows in (pairs_ND, labels_N))
            self.past = torch.cat([past_QD, new_QD]), torch.cat([past_Q, new_Q])
            self.newest = len(new_Q)
        return metrics

    def part(self, pairs_PD: Tensor, places_P: Tensor) -> Tensor | None:
        """What these of the prepared pairs add to the penalty, with its graph; None for nothing.

        The parts of a step add up to its penalty, however it is cut: the covariance of the whole step
        is a sum over pairs once the shares of the classes are known.
        """
        if self._ready is None:
            return None
        weight_NC, shift_C = self._ready
        return club_sum(
            self.head.frozen(pairs_PD), weight_NC[places_P.to(weight_NC.device)], shift_C
        )

    def _follow(
        self, pairs_ND: Tensor, labels_N: Tensor, metrics: dict[str, float], counts: bool
    ) -> None:
        """Measure how well the head finds the attribute, and move lambda towards its target."""
        known = labels_N >= 0
        with torch.no_grad():
            logp_NC = self.head(pairs_ND)[known].double().log_softmax(1)
        # How well it tells each class from the others.
        each = (
            auc.plain(logp_K.tolist(), (labels_N[known] == k).long().tolist())
            for k, logp_K in enumerate(logp_NC.T)
        )
        values = [value for value in each if value is not None]
        if not values:
            return
        found = sum(values) / len(values)
        before = found if math.isnan(self.auc) else self.auc
        # A running mean: one batch is too few pairs to judge by.
        metrics["probe_auc"] = self.auc = 0.9 * before + (1 - 0.9) * found
        settings = self.settings
        if counts and settings.target_auc is not None:
            self.lam = dual_lambda.plain(
                self.lam, self.auc, settings.target_auc, rate=settings.lam_rate
            )

    def tensors(self) -> dict[str, Tensor]:
        """All that an exact resume needs, by name, as safetensors stores it."""
        found = {f"head.{key}": values for key, values in self.head.tensors().items()}
        found["past"], found["past_labels"] = self.past
        found["lam_auc"] = torch.tensor([self.lam, self.auc], dtype=torch.float64)
        found |= {"newest": torch.tensor(self.newest), "dropped": torch.tensor(self.dropped)}
        return {name: values.contiguous() for name, values in found.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors()` gave."""
        heads = {k.removeprefix("head."): v for k, v in tensors.items() if k.startswith("head.")}
        self.head.load(heads)
        device = self.head.first.weight.device
        self.past = tensors["past"].to(device), tensors["past_labels"].to(device)
        self.newest, self.dropped = int(tensors["newest"]), int(tensors["dropped"])
        self.lam, self.auc = tensors["lam_auc"].tolist()


@public
def dual_lambda(
    lam: NonNegative,
    auc: Share,
    target: Share = 0.55,
    *,
    rate: Positive = 0.1,
) -> float:
    """One step of dual ascent: `lam + rate * (auc - target)`, kept within 0 and 10.

    `auc` says how well a head finds the attribute: above the target lambda grows, below it falls, so
    that it stops before the model prefers the opposite.
    """
    return min(max(lam + rate * (auc - target), 0.0), 10.0)


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
        eye = torch.eye(seen.shape[1], dtype=seen.dtype, device=seen.device)
        gram = seen[mine].T @ seen[mine] + ridge * eye
        weights = torch.linalg.solve(gram, seen[mine].T @ (target[mine] - target[mine].mean()))
        scores_N[~mine] = seen[~mine] @ weights + target[mine].mean()
    return auc.plain(scores_N.tolist(), labels_N.tolist())


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


def _one_hot(labels_N: Tensor, like_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with a 1 at the label, all 0 where it is left out; and which are known."""
    known_N = labels_N >= 0
    one_hot_NC = functional.one_hot(labels_N.clamp(min=0), like_NC.shape[1]).to(like_NC.dtype)
    return one_hot_NC * known_N[:, None], known_N.to(like_NC.dtype)


def _known(what: str, labels_N: Tensor, logits_NC: Tensor) -> Tensor:
    """The labels beside the logits, none of a class that these lack."""
    return class_labels(labels_N, len(labels_N), logits_NC.shape[1], what).to(logits_NC.device)


def _apply(head: Head | None, pairs_ND: Tensor) -> Tensor:
    """Logits of a head that is a function or a table of weights."""
    if callable(head):
        return head(pairs_ND)
    layers = [(head.get(f"W{n}"), head.get(f"b{n}")) for n in ("", "1", "2")] if head else []
    given: list[tuple[Any, Any]] = [(w, b) for w, b in layers if w is not None]
    if not given:
        raise refused("head", head, "a function to logits (N, C), or W1, b1, W2 and b2, or W and b")
    for place, (weight, bias) in enumerate(given):
        rows_ND = torch.relu(pairs_ND) if place else pairs_ND
        # A layer whose weight is (out, in) as torch has it, or (in, out).
        matrix = as_logp(weight, "head").to(rows_ND)
        if matrix.shape[-1] != rows_ND.shape[1]:
            matrix = matrix.T
        pairs_ND = functional.linear(
            rows_ND, matrix, None if bias is None else as_logp(bias, "head").to(rows_ND)
        )
    return pairs_ND
