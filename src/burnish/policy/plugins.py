"""Your own pieces: functions named in a recipe by path, loaded, called and checked here.

    [policy]
    select = { kind = "function", path = "my_pieces.py:lucky_half", options = { seed = 7 } }

| slot           | signature                                                                  |
|----------------|----------------------------------------------------------------------------|
| `shaping`      | `f(rewards_BK, batch: RewardBatch, **options) -> rewards_BK`               |
| `advantage`    | `f(rewards_BK, groups_B, weights_K, **options) -> (values_B, per_reward_BK)` |
| `select`       | `f(estimate: Estimate, batch: RewardBatch, **options) -> (keep_B, weights_B)` |
| `trust_region` | `f(values_B, batch: RewardBatch, **options) -> (low_B, high_B)`            |
| `auxiliary`    | `f(batch: LossBatch, **options) -> values_BT, aggregated and added to the loss` |

A missing reward is NaN on the way in. On the way out NaN may stand only for rollouts without any
reward (and in shaped rewards); groups without reward differences get advantage 0 whatever a
function says. An auxiliary function gives one value a token; the recipe's aggregate makes it a
number, so that micro-batches do not change it, and `batch.entropy_BT` carries no gradient. From the
select piece on, `batch` holds the shaped rewards. A relative file path starts at the recipe file's
folder, or at the working folder where it is typed or used from Python.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.errors import ArgumentError, UserError, is_out_of_memory
from burnish.policy.batch import Estimate, LossBatch, RewardBatch
from burnish.policy.pieces import Function
from burnish.source import describe, find_function
from burnish.surroundings import kept

SLOTS: dict[str, tuple[str, ...]] = {
    "shaping": ("rewards_BK", "batch"),
    "advantage": ("rewards_BK", "groups_B", "weights_K"),
    "select": ("estimate", "batch"),
    "trust_region": ("values_B", "batch"),
    "auxiliary": ("batch",),
}


class NotFinite(UserError):
    """A function gave NaN or infinity for a rollout; a trainer knows which sample that is."""

    def __init__(self, where: str, rollout: int, value: float) -> None:
        super().__init__(
            f"{where} returned {value} for rollout {rollout}; expected finite numbers, 0 where "
            "there is no signal."
        )
        self.where = where
        self.rollout = rollout
        self.value = value


def load_function(piece: Function, slot: str) -> Callable[..., Any]:
    """The function a piece names, once its file, its name and its signature are known to fit."""
    function = _function_at(piece.path, f"{slot} function")
    name = piece.path.rpartition(":")[2]
    try:
        inspect.signature(function).bind(*SLOTS[slot], **piece.options)
    except TypeError as error:
        expected = ", ".join((*SLOTS[slot], *(f"{key}=..." for key in piece.options)))
        raise UserError(
            f"{slot} function '{piece.path}' is {name}{inspect.signature(function)}; expected "
            f"{name}({expected}): {error}."
        ) from None
    return function


def call_shaping(piece: Function, rewards_BK: Tensor, batch: RewardBatch) -> Tensor:
    """Shaped rewards, (B, K); NaN stays allowed."""
    result = _call(piece, "shaping", rewards_BK, batch)
    shaped_BK = _tensor(result, rewards_BK.shape, f"shaping function '{piece.path}'")
    if shaped_BK.isinf().any():
        raise UserError(f"shaping function '{piece.path}' returned inf; expected finite or NaN.")
    return shaped_BK


def call_advantage(
    piece: Function, rewards_BK: Tensor, groups_B: Tensor, weights_K: Tensor, has_any_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages (B,) and each reward's own (B, K); 0 for rollouts without any reward."""
    where = f"advantage function '{piece.path}'"
    values, per_reward = _pair(_call(piece, "advantage", rewards_BK, groups_B, weights_K), where)
    values_B = _tensor(values, rewards_BK.shape[:1], where).masked_fill(~has_any_B, 0.0)
    per_reward_BK = _tensor(per_reward, rewards_BK.shape, where)
    per_reward_BK = per_reward_BK.masked_fill(rewards_BK.isnan(), 0.0)
    return _finite(values_B, values_B.shape, where), _finite(per_reward_BK, rewards_BK.shape, where)


def call_select(piece: Function, estimate: Estimate, batch: RewardBatch) -> tuple[Tensor, Tensor]:
    """Which rollouts to keep, bool (B,), and how much each counts, (B,)."""
    where = f"select function '{piece.path}'"
    keep, weights = _pair(_call(piece, "select", estimate, batch), where)
    shape = estimate.values_B.shape
    keep_B, weights_B = _finite(keep, shape, where), _finite(weights, shape, where)
    if (weights_B < 0).any():
        raise UserError(f"{where} returned a weight of {weights_B.min()}; expected at least 0.")
    return keep_B.bool(), weights_B


def call_trust_region(
    piece: Function, values_B: Tensor, batch: RewardBatch
) -> tuple[Tensor, Tensor]:
    """Clip bounds below and above 1, each (B,)."""
    where = f"trust_region function '{piece.path}'"
    low, high = _pair(_call(piece, "trust_region", values_B, batch), where)
    low_B, high_B = _finite(low, values_B.shape, where), _finite(high, values_B.shape, where)
    if (low_B < 0).any() or (low_B >= 1).any() or (high_B < 0).any():
        raise UserError(
            f"{where} returned low {low_B.min():g} to {low_B.max():g} and high from "
            f"{high_B.min():g}; expected 0 <= low < 1 and high >= 0."
        )
    return low_B, high_B


def call_auxiliary(piece: Function, batch: LossBatch) -> Tensor:
    """One value a token, (B, T), with its gradient."""
    values_BT = _call(piece, "auxiliary", batch)
    if not isinstance(values_BT, Tensor) or values_BT.shape != batch.logp_BT.shape:
        raise UserError(
            f"auxiliary function '{piece.path}' returned {_describe(values_BT)}; expected a "
            f"tensor of shape {tuple(batch.logp_BT.shape)}, one value a token."
        )
    return values_BT


def _call(piece: Function, slot: str, *arguments: object) -> Any:
    """Call a function of the user's; what it raises becomes one line that names the place."""
    function = load_function(piece, slot)
    try:
        with kept(f"{slot} function '{piece.path}'"):
            return function(*arguments, **piece.options)
    # The boundary to other people's code: whatever it raises is theirs to mend, but for a full GPU
    # and Ctrl-C.
    except BaseException as error:
        # An argument refused inside it is the function's own doing, and its line names it.
        is_told = isinstance(error, UserError) and not isinstance(error, ArgumentError)
        if is_told or isinstance(error, KeyboardInterrupt) or is_out_of_memory(error):
            raise
        raise UserError(f"{slot} function '{piece.path}' failed: {describe(error)}") from error


@functools.cache
def _function_at(path: str, where: str) -> Callable[..., Any]:
    """Looked up once: a file that is edited while a run goes on does not change the run."""
    return find_function(path, where)


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
    if not isinstance(value, Tensor) or tuple(value.shape) != tuple(shape):
        raise UserError(
            f"{where} returned {_describe(value)}; expected a tensor of shape {tuple(shape)}."
        )
    return value.detach().to(torch.float64)


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]
