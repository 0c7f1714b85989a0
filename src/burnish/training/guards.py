"""Stop before a bad number reaches the weights, and name it.

Looking at a number makes a GPU's queue run dry, so the update leaves its numbers with a `Watch`, which
looks at all of them once, before the weights move; the norm of the moved weights is read together with
the numbers of the step. What goes to disk is looked at once more.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from burnish.errors import GuardTripped, StoreError
from burnish.policy.batch import Advantages, RewardBatch
from burnish.policy.compute import advantages, informative
from burnish.policy.plugins import NotFinite
from burnish.policy.recipe import Recipe
from burnish.policy.state import PolicyState
from burnish.records import Trajectory
from burnish.store.sample_name import Readable, names_of_ids, renamed

HINTS = {
    "advantage": "Check the recipe's advantage component and the rewards of these samples.",
    "logprob": "The model's output is not finite: lower optimiser.learning_rate or use "
    "model.dtype=float32.",
    "value": "The critic's output is not finite: lower optimiser.learning_rate, "
    "policy.critic.coefficient or policy.critic.learning_rate, or use model.dtype=float32.",
    "loss": "Check the recipe's trust region and auxiliary terms, or train.terms.",
    "gradient": "Lower optimiser.learning_rate or set optimiser.clip_norm.",
    "weight": "The update broke the weights; they were not saved, and earlier checkpoints are whole. "
    "Lower optimiser.learning_rate or optimiser.weight_decay, or raise optimiser.eps, in a new run.",
}


def weigh(
    recipe: Recipe,
    batch: RewardBatch,
    ids: Sequence[str],
    step: int,
    state: PolicyState | None = None,
) -> Advantages:
    with _named(ids, step):
        values = advantages(recipe, batch, state)
    check_rows("advantage", "advantages", values.values_B, ids, step)
    return values


def find_useful(recipe: Recipe, batch: RewardBatch, ids: Sequence[str], step: int) -> Tensor:
    """True for rollouts of groups that can teach something, (B,); guarded like `weigh`."""
    with _named(ids, step):
        return informative(recipe, batch)


@contextlib.contextmanager
def _named(ids: Sequence[str], step: int) -> Iterator[None]:
    """Name the sample for which a function of the recipe gave no number."""
    try:
        yield
    except NotFinite as error:
        trip("advantage", error.where, step, (ids[error.rollout],), error.value)


def check_sampled(trajectories: Sequence[Trajectory], step: int) -> None:
    for trajectory in trajectories:
        bad = [p for span in trajectory.spans for p in span.logprobs if not math.isfinite(p)]
        if bad:
            trip("logprob", "sampled logprobs", step, (trajectory.id,), bad[0])


def check_rows(stage: str, name: str, values_BX: Tensor, ids: Sequence[str], step: int) -> None:
    """Trip where a row (one a sample) holds a NaN or an infinity; names the guilty samples."""
    fine = torch.isfinite(values_BX)
    if bool(fine.all()):
        return
    bad = (~fine).reshape(len(ids), -1).any(1).nonzero()[:, 0].tolist()
    trip(stage, name, step, tuple(ids[i] for i in bad), values_BX[~fine][0].item())


def check_tensors(
    stage: str, named: Iterable[tuple[str, Tensor]], ids: Sequence[str], step: int, hint: str = ""
) -> None:
    """Trip at the first tensor that is not finite; `hint` says what to do, where it is not usual."""
    for name, tensor in named:
        fine = torch.isfinite(tensor)
        if not bool(fine.all()):
            trip(stage, name, step, tuple(ids), tensor[~fine].flatten()[0].item(), hint)


def check_saved(tensors: Mapping[str, Tensor], step: int) -> None:
    """Trip at the first tensor on its way to disk that is not finite."""
    floating = [(name, t) for name, t in tensors.items() if t.is_floating_point() and t.numel()]
    norms = [torch.linalg.vector_norm(t.detach().float()).cpu() for _, t in floating]
    suspects = [pair for pair, norm in zip(floating, norms, strict=True) if not norm.isfinite()]
    check_tensors("weight", suspects, (), step)


class Watch:
    """The numbers of one optimiser step, to be looked at together and named one by one."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._flags: list[Tensor] = []
        self._checks: list[Callable[[], None]] = []

    def rows(self, stage: str, name: str, values_BX: Tensor, ids: Sequence[str]) -> None:
        self._flags.append(torch.isfinite(values_BX).all())
        self._checks.append(partial(check_rows, stage, name, values_BX, ids, self._step))

    def tensors(self, stage: str, named: Sequence[tuple[str, Tensor]], ids: Sequence[str]) -> None:
        values = torch.stack([value.double() for _, value in named])
        self._flags.append(torch.isfinite(values).all())
        self._checks.append(partial(check_tensors, stage, named, ids, self._step))

    def settle(self, norm: Tensor, gradients: Callable[[], None], ids: Sequence[str]) -> float:
        """The gradient's norm, read with everything left here; trips where a number is bad.

        `gradients` is called to name the gradient where only the norm is not finite; where each
        gradient is finite and their squares are not, it is the norm of these samples that trips.
        """
        is_fine = torch.stack([*self._flags, torch.isfinite(norm)]).all()
        read, fine = torch.stack([norm.double(), is_fine.double()]).tolist()
        if not fine:
            for check in (*self._checks, gradients):
                check()
            trip("gradient", "gradient norm", self._step, tuple(ids), read)
        return float(read)


def trip(
    stage: str, tensor: str, step: int, samples: tuple[str, ...], value: float, hint: str = ""
) -> NoReturn:
    """Raise with one line: what, where, got, next step; that of the stage, without a `hint`."""
    shown = ", ".join(samples[:3]) + (f" and {len(samples) - 3} more" if len(samples) > 3 else "")
    of = f" (samples {shown})" if samples else ""
    raise GuardTripped(
        f"{stage} guard: {tensor} is {value} at step {step + 1}{of}. {hint or HINTS[stage]}",
        stage=stage,
        tensor=tensor,
        step=step,
        samples=samples,
    )


def name_samples(error: GuardTripped, run: Readable) -> None:
    with contextlib.suppress(StoreError):  # the ids of trajectories are names too
        error.names = tuple(names_of_ids(run, error.samples, error.step))
        error.args = (renamed(str(error), dict(zip(error.samples, error.names, strict=True))),)


def trip_mismatch(distance: float, limit: float, step: int, samples: Sequence[str]) -> NoReturn:
    """The sampler does not have the weights that are trained, or computes something else."""
    raise GuardTripped(
        f"sampler guard: the sampler's and the trainer's log-probs are {distance:.3g} nats a token "
        f"apart at step {step + 1}; guards.sampler_mismatch_stop allows {limit:g}. Does the sampler "
        "have this run's weights, its tokenizer, and log-probs at rollout.temperature?",
        stage="sampler",
        tensor="sampled logprobs",
        step=step,
        samples=tuple(samples),
    )


def failing(
    shares: Mapping[str, float], limit: float, run: str, step: int, reasons: Mapping[str, str]
) -> str:
    """More rewards of a step have no value than `guards.failed_share` allows.

    `reasons` has one reason of each status, so that the line can say why.
    """
    failed = 1.0 - shares["status/ok"]
    if failed <= limit:
        return ""
    worst = max((k for k in shares if k != "status/ok"), key=lambda k: shares[k])
    status = worst.removeprefix("status/")
    reason = " ".join(reasons.get(status, "").split())[:180]
    why = f"{status}, {reason}" if reason else status
    return (
        f"{failed:.0%} of the rewards of step {step + 1} have no value (most: {why}); "
        f"guards.failed_share allows {limit:.0%}. "
        "The step is not counted: the same command takes it again. "
        f"See why: burnish show {run} --failed 3"
    )


def useless(streak: int, limit: int, run: str) -> str:
    if streak < limit:
        return ""
    return (
        f"no group had both better and worse answers for {limit} steps, so nothing was "
        "learned. Make the task easier or harder, raise rollout.samples or "
        f"rollout.temperature, or check the reward: burnish show {run}"
    )
