"""Component `function`: your own function, named in a recipe by its path.

    [policy]
    select = { kind = "function", path = "mine.py:lucky_half", options = { seed = 7 } }

| slot           | signature                                                                  |
|----------------|----------------------------------------------------------------------------|
| `shaping`      | `f(rewards_BK, batch: RewardBatch, **options) -> rewards_BK`               |
| `advantage`    | `f(rewards_BK, groups_B, weights_K, **options) -> (values_B or values_BT, per_reward_BK)` |
| `select`       | `f(estimate: Estimate, batch: RewardBatch, **options) -> (keep_B, weights_B)` |
| `trust_region` | `f(values_B, batch: RewardBatch, **options) -> (low_B, high_B)`            |
| `auxiliary`    | `f(batch: LossBatch, **options) -> values_BT, aggregated and added to the loss` |

An `advantage` function that also has a parameter `batch` is given the `RewardBatch`. Its values may be
one a token, (B, T), where T is the longest answer (`batch.lengths_B.max()`), with 0 behind the end of
each answer: `batch.has_token(T)` is the mask.

A missing reward is NaN in the arguments. In the results NaN is allowed only for rollouts without any
reward (and in shaped rewards); groups without reward differences get advantage 0 whatever the
function returns. An auxiliary function returns one value a token; the recipe's aggregate reduces
it, so that micro-batches do not change it, and `batch.entropy_BT` carries no gradient. From `select`
on, `batch` holds the shaped rewards. A relative file path starts at the recipe file's folder, or at
the working folder where it is typed or used from Python.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from burnish.errors import ArgumentError, UserError, is_out_of_memory
from burnish.policy.base import ClipBounds, Component, Selection
from burnish.policy.batch import Estimate
from burnish.policy.groups import as_groups, is_constant
from burnish.source import describe, find_function
from burnish.tensors import torch
from burnish.user_code import kept

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.policy.aggregate import Aggregate
    from burnish.policy.base import Shaped
    from burnish.policy.batch import LossBatch, RewardBatch
    from burnish.policy.objective import RatioLevel

SLOTS: dict[str, tuple[str, ...]] = {
    "shaping": ("rewards_BK", "batch"),
    "advantage": ("rewards_BK", "groups_B", "weights_K"),
    "select": ("estimate", "batch"),
    "trust_region": ("values_B", "batch"),
    "auxiliary": ("batch",),
}


class Function(Component, frozen=True, tag="function"):
    """Your own component, by path: `my_file.py:name` or `package.module:name`.

    `burnish.policy.plugins` lists what a function of each slot takes and returns.
    """

    path: str
    """Your function: `my_file.py:name` or `package.module:name`."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Fixed arguments of the function."""

    @property
    def name(self) -> str:
        return self.path.rpartition(":")[2]

    def shape(self, shaped: Shaped, batch: RewardBatch) -> Shaped:
        where = f"shaping function '{self.path}'"
        result = _call(self, "shaping", shaped.rewards_BK, batch)
        rewards_BK = _tensor(result, shaped.rewards_BK.shape, where)
        if rewards_BK.isinf().any():
            raise UserError(f"{where} returned inf; expected finite or NaN.")
        return dataclasses.replace(shaped, rewards_BK=rewards_BK)

    def estimate(self, batch: RewardBatch) -> Estimate:
        where = f"advantage function '{self.path}'"
        rewards_BK, has_any_B = batch.rewards_BK, batch.has_any_B
        asks = _has_batch(load_function(self, "advantage"), self)
        more = {"batch": batch} if asks else {}
        result = _call(self, "advantage", rewards_BK, batch.groups_B, batch.weights_K, **more)
        values, per_reward = _pair(result, where)
        size, width = len(rewards_BK), int(batch.lengths_B.max()) if len(rewards_BK) else 0
        shapes = ((size,), (size, width))
        if not isinstance(values, torch.Tensor) or tuple(values.shape) not in shapes:
            raise UserError(
                f"{where} returned {_describe(values)}; expected a tensor of shape ({size},), one "
                f"value a rollout, or ({size}, {width}), one a token up to the longest answer."
            )
        values_B = values.detach().to(torch.float64)
        if values_B.ndim == 2:
            behind = ~batch.has_token(width).to(values_B.device) & (values_B != 0)
            if behind.any():
                rollout, token = behind.nonzero()[0].tolist()
                raise UserError(
                    f"{where} returned {values_B[rollout, token]:g} for token {token} of rollout "
                    f"{rollout}, which has {int(batch.lengths_B[rollout])} tokens; expected 0 behind "
                    "its end."
                )
        by_row = (len(values_B),) + (1,) * (values_B.ndim - 1)
        values_B = values_B.masked_fill(~has_any_B.view(by_row), 0.0)
        per_reward_BK = _tensor(per_reward, rewards_BK.shape, where)
        per_reward_BK = per_reward_BK.masked_fill(rewards_BK.isnan(), 0.0)
        values_B = _finite(values_B, values_B.shape, where)
        per_reward_BK = _finite(per_reward_BK, rewards_BK.shape, where)
        is_flat_B = is_constant(rewards_BK, as_groups(batch.groups_B)).all(1)
        flat = is_flat_B.view(by_row)
        return Estimate(values_B.masked_fill(flat, 0.0), per_reward_BK, has_any_B)

    def select(self, estimate: Estimate, signal_B: Tensor, batch: RewardBatch) -> Selection:
        where = f"select function '{self.path}'"
        keep, weights = _pair(_call(self, "select", estimate, batch), where)
        shape = estimate.values_B.shape[:1]
        keep_B, weights_B = _finite(keep, shape, where), _finite(weights, shape, where)
        if (weights_B < 0).any():
            raise UserError(f"{where} returned a weight of {weights_B.min()}; expected at least 0.")
        return Selection(keep_B.bool(), weights_B)

    def bounds(self, values_B: Tensor, batch: RewardBatch, given: RewardBatch) -> ClipBounds:
        where = f"trust_region function '{self.path}'"
        low, high = _pair(_call(self, "trust_region", values_B, batch), where)
        low_B, high_B = _finite(low, values_B.shape, where), _finite(high, values_B.shape, where)
        if (low_B < 0).any() or (low_B >= 1).any() or (high_B < 0).any():
            raise UserError(
                f"{where} returned low {low_B.min():g} to {low_B.max():g} and high from "
                f"{high_B.min():g}; expected 0 <= low < 1 and high >= 0."
            )
        return ClipBounds(low_B, high_B)

    def term(self, batch: LossBatch, aggregate: Aggregate, ratio: RatioLevel) -> Tensor:
        values_BT = _call(self, "auxiliary", batch)
        if not isinstance(values_BT, torch.Tensor) or values_BT.shape != batch.logp_BT.shape:
            raise UserError(
                f"auxiliary function '{self.path}' returned {_describe(values_BT)}; expected a "
                f"tensor of shape {tuple(batch.logp_BT.shape)}, one value a token."
            )
        return aggregate.total(values_BT, batch)


_find = functools.cache(find_function)


class NotFinite(UserError):
    """A function returned NaN or infinity for a rollout; the trainer adds the sample's id."""

    def __init__(self, where: str, rollout: int, value: float) -> None:
        super().__init__(
            f"{where} returned {value} for rollout {rollout}; expected finite numbers, 0 where "
            "there is no signal."
        )
        self.where = where
        self.rollout = rollout
        self.value = value


def load_function(component: Function, slot: str) -> Callable[..., Any]:
    """The function that a component names; its file, name and signature are checked."""
    # Looked up once: editing the file during a run does not change the run.
    function = _find(component.path, f"{slot} function")
    name = component.path.rpartition(":")[2]
    more = {"batch": "batch"} if slot == "advantage" and _has_batch(function, component) else {}
    try:
        inspect.signature(function).bind(*SLOTS[slot], **component.options, **more)
    except TypeError as error:
        expected = ", ".join((*SLOTS[slot], *(f"{key}=..." for key in component.options)))
        raise UserError(
            f"{slot} function '{component.path}' is {name}{inspect.signature(function)}; expected "
            f"{name}({expected}): {error}."
        ) from None
    return function


def _has_batch(function: Callable[..., Any], component: Function) -> bool:
    return "batch" in inspect.signature(function).parameters and "batch" not in component.options


def _call(component: Function, slot: str, *arguments: object, **more: object) -> Any:
    """Call the user's function; what it raises becomes one line that names the place."""
    function = load_function(component, slot)
    try:
        with kept(f"{slot} function '{component.path}'"):
            return function(*arguments, **component.options, **more)
    # The boundary to other people's code: whatever it raises is their error, except a full GPU
    # and Ctrl-C.
    except BaseException as error:
        # An argument refused inside the function is its own error, so the line names the function.
        is_user_error = isinstance(error, UserError) and not isinstance(error, ArgumentError)
        if is_user_error or isinstance(error, KeyboardInterrupt) or is_out_of_memory(error):
            raise
        raise UserError(f"{slot} function '{component.path}' failed: {describe(error)}") from error


def _pair(result: object, where: str) -> tuple[object, object]:
    if not isinstance(result, Sequence) or len(result) != 2:
        raise UserError(f"{where} returned {_describe(result)}; expected two tensors.")
    return result[0], result[1]


def _finite(value: object, shape: Sequence[int], where: str) -> Tensor:
    read = _tensor(value, shape, where)
    if not read.isfinite().all():
        place = (~read.isfinite()).nonzero()[0]
        raise NotFinite(where, int(place[0]), float(read[tuple(place)]))
    return read


def _tensor(value: object, shape: Sequence[int], where: str) -> Tensor:
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != tuple(shape):
        raise UserError(
            f"{where} returned {_describe(value)}; expected a tensor of shape {tuple(shape)}."
        )
    return value.detach().to(torch.float64)


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]
