"""What the boundary takes, gives on and refuses, on functions of every kind of argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
import pytest
import torch

from burnish.boundary import (
    MISSING,
    Count,
    Fraction,
    NonNegative,
    Positive,
    PositiveInt,
    Settings,
    Share,
    argument_types,
    expected,
    public,
)
from burnish.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int
    from torch import Tensor

    Rewards = Annotated[Float64[Tensor, " B"] | Float64[Tensor, "B K"], MISSING]


class Criterion(TypedDict):
    name: str
    weight: Share
    notes: NotRequired[list[str]]


@public
def scalars(low: Fraction, word: Literal["mean", "sum"] = "mean", flag: bool = False) -> object:
    return low, word, flag


@public
def counts(n: PositiveInt, k: Count | None = None, cap: Positive | None = None) -> object:
    return n, k, cap


@public
def texts(names: Sequence[str], by: dict[str, float], pair: tuple[str, int] = ("a", 1)) -> object:
    return names, by, pair


@public
def records(
    criteria: list[Criterion], ask: Callable[[str], str] = str, at: Path = Path()
) -> object:
    return criteria, ask, at


@public
def arrays(
    rewards: Rewards,
    keep: Bool[Tensor, " B"] | None = None,
    ids: Int[Tensor, "B T"] | None = None,
    share: Annotated[Float64[Tensor, " B"], msgspec.Meta(ge=0, le=1)] | None = None,
    bound: float | Float64[Tensor, " B"] = 0.5,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, float | Tensor]:
    return rewards, keep, ids, share, bound


@public
def logp(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Tensor:
    return (values * mask).sum()


class Region(Settings, frozen=True):
    low: Fraction = 0.2
    high: NonNegative = 0.2
    names: tuple[str, ...] = ()
    range: tuple[float, float] | None = None

    def check(self) -> None:
        if self.low > self.high:
            raise ArgumentError(f"low: got {self.low}, expected at most high, {self.high}")


def test_numbers_arrive_as_their_type_says() -> None:
    assert scalars(np.float32(0.5), flag=False) == (0.5, "mean", False)
    assert counts(torch.tensor(3), 2.0) == (3, 2, None)
    assert texts(("a", "b"), {"x": 1}) == (["a", "b"], {"x": 1.0}, ("a", 1))
    given = {"name": "n", "weight": 1, "extra": object()}
    assert records([given])[0] == [given]  # other keys stay


def test_arrays_arrive_as_their_notation_says() -> None:
    rewards, keep, ids, share, bound = arrays([1, None], [1, 0], [[1.0], [2.0]], [0, 1], [1, 2])
    assert rewards.dtype == torch.float64
    assert rewards[1].isnan()
    assert keep.dtype == torch.bool
    assert ids.dtype == torch.int64
    assert share.tolist() == [0.0, 1.0]
    assert bound.tolist() == [1.0, 2.0]
    assert arrays(np.ones((2, 3)))[4] == 0.5


def test_log_probs_keep_their_graph_and_dtype() -> None:
    values = torch.zeros(2, 3, requires_grad=True)
    logp(values, torch.ones(2, 3)).backward()
    assert values.grad is not None
    assert logp(values.half(), torch.ones(2, 3)).dtype == torch.float32


def test_the_plain_function_is_not_checked() -> None:
    assert scalars.plain(7.0) == (7.0, "mean", False)


REFUSED = [
    (scalars, {"low": 1.0}, "low: got 1.0, expected a number from 0 to below 1"),
    (scalars, {"low": math.nan}, "low: got nan, expected a number from 0 to below 1"),
    (scalars, {"low": True}, "low: got True, expected a number from 0 to below 1"),
    (
        scalars,
        {"low": 0, "word": "man"},
        "word: got 'man', expected mean, sum. Did you mean 'mean'?",
    ),
    (scalars, {"low": 0, "flag": 1}, "flag: got 1, expected True or False"),
    (scalars, {}, "scalars: missing a required argument: 'low'"),
    (scalars, {"low": 0, "x": 1}, "scalars: got an unexpected keyword argument 'x'"),
    (counts, {"n": 0}, "n: got 0, expected a whole number of at least 1"),
    (counts, {"n": 1, "k": -1}, "k: got -1, expected a whole number of at least 0 or none"),
    (counts, {"n": 1, "cap": math.inf}, "cap: got inf, expected a number above 0 or none"),
    (counts, {"n": 10**400}, "expected a whole number of at least 1"),
    (texts, {"names": "ab", "by": {}}, "names: got 'ab', expected a list, each a text"),
    (texts, {"names": ["a", 5], "by": {}}, "names[1]: got 5, expected a text"),
    (texts, {"names": [], "by": {"x": math.nan}}, "by.x: got nan, expected a finite number"),
    (texts, {"names": [], "by": {}, "pair": ("a",)}, "pair: got ('a',), expected a list of 2"),
    (
        records,
        {"criteria": [{"weight": 1}]},
        "criteria[0]: got no 'name', expected a dict with name",
    ),
    (records, {"criteria": [{"name": "n", "weight": 2}]}, "criteria[0].weight: got 2, expected"),
    (records, {"criteria": [5]}, "criteria[0]: got 5, expected a dict with name, weight"),
    (records, {"criteria": [], "ask": 5}, "ask: got 5, expected a function"),
    (
        arrays,
        {"rewards": [1, math.inf]},
        "rewards: [1] is inf, expected finite numbers of shape (B)",
    ),
    (arrays, {"rewards": [1e200]}, "rewards: [0] is 1e+200, expected finite numbers"),
    (arrays, {"rewards": "a"}, "rewards: got 'a', expected numbers"),
    (arrays, {"rewards": [[[1.0]]]}, "rewards: got shape (1, 1, 1), expected (B) or (B, K)"),
    (
        arrays,
        {"rewards": [1, 2], "keep": [1]},
        "keep: got shape (1,), expected (B) with B = 2 as in",
    ),
    (arrays, {"rewards": [1], "keep": [0.5]}, "keep: got [0.5], expected 1 (yes) and 0 (no)"),
    (arrays, {"rewards": [1], "ids": [[0.5]]}, "ids: got [0.5], expected whole numbers"),
    (arrays, {"rewards": [1], "share": [1.5]}, "share: [0] is 1.5, expected finite numbers from 0"),
    (arrays, {"rewards": [1], "bound": "x"}, "bound: got 'x', expected a finite number"),
    (
        logp,
        {"values": [[1.0]], "mask": [[1, 1]]},
        "mask: got shape (1, 2), expected (B, T) with B = 1 as in values",
    ),
    (Region, {"high": math.nan}, "high: got nan, expected a number of at least 0"),
    (Region, {"range": (1.0, math.nan)}, "range[1]: got nan, expected a finite number"),
    (Region, {"low": 0.5}, "low: got 0.5, expected at most high, 0.2"),
]


@pytest.mark.parametrize(("call", "given", "message"), REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(call, given, message) -> None:
    with pytest.raises(ArgumentError) as refusal:
        call(**given)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_type_that_says_nothing_is_a_mistake_of_ours() -> None:
    @public
    def loose(values: list[Criterion], anything: Region | Undefined) -> None: ...  # noqa: F821

    with pytest.raises(NameError, match="Undefined"):
        argument_types(loose)


def test_words_of_a_type() -> None:
    assert expected(Share | None) == "a number from 0 to 1 or none"
    assert expected(Annotated[int, msgspec.Meta(ge=1, le=5)]) == "a whole number from 1 to 5"
