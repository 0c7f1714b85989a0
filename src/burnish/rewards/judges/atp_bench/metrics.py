"""What a plan of tool calls is worth: success rate, recall, F1, and the figures of a corpus.

    response_metrics(calls_correct=[True, False], missed=1)     # success_rate 0.5, recall 0.5, f1 0.5
    aggregate([{"calls_correct": [True], "missed": 0}, {"calls_correct": [], "missed": 2}])

n calls, k of them correct, m missed: success rate k/n, recall k/(k+m), F1 2k/(2k + (n-k) + m). A call
that no judge decided is None: it is in neither n nor k, and counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from burnish.arguments import as_list, as_number, as_text, as_whole, refused
from burnish.numbers import plain

_FLAGS = ("calls_correct", "correct", "calls")


class Metrics(NamedTuple):
    success_rate: float | None
    """Correct calls over calls; None where there is no call."""
    recall: float | None
    """Correct calls over needs; None where there is no need, or nobody knows what is missing or right."""
    f1: float | None
    """1 where nothing was needed and nothing called; None where that is not known, or where no call is
    right and some have no verdict."""
    n: int
    k: int
    m: int | None
    unjudged: int = 0
    """Calls without a verdict, which are not in n."""


class Corpus(NamedTuple):
    success_rate_macro: float | None
    """Mean over responses with calls."""
    success_rate_micro: float | None
    """Over all calls."""
    missed_mean: float | None
    """Missed pictures a response, over those where that is known."""
    tool_adoption: float | None
    """Share of responses with at least one call."""
    mean_calls: float | None
    per_tool: dict[str, float]
    """Share of responses that call the tool."""
    f1_mean: float | None
    recall_mean: float | None
    responses: int
    unjudged: int


class _Read(NamedTuple):
    flags: list[bool | None]
    missed: int | None
    tools: list[str]


def response_metrics(
    responses: Any = None, missed: Any = None, *, calls_correct: Any = None
) -> Any:
    """Success rate, recall and F1 of one response, or of each in a list.

    One response is `calls_correct` (true, false, or None without a verdict) and `missed` (a count or
    the list of what is missing; None in a table: not known); or a table with these two, or with `n`,
    `k` and `m`. A list of such tables gives a list.

    >>> response_metrics([True, True, False], 1).f1
    0.6666666666666666
    >>> response_metrics([{"calls_correct": [], "missed": 0}])[0].f1
    1.0
    """
    if calls_correct is not None or missed is not None:
        if calls_correct is not None and responses is not None:
            raise refused("responses", responses, "none beside calls_correct")
        named = "responses" if calls_correct is None else "calls_correct"
        given = responses if calls_correct is None else calls_correct
        if missed is None:
            raise refused("missed", missed, "a count, or the list of what is missing")
        count = _missing("missed", missed)
        return _metrics(_flags(named, given), count)
    if isinstance(responses, Mapping | Metrics):
        return _of(_read("responses", responses))
    return [_of(_read(f"responses: item {n}", one)) for n, one in enumerate(_all(responses))]


def aggregate(responses: Sequence[Any]) -> Corpus:
    """The figures of a corpus, from tables as `response_metrics` takes them; `tools` of a response, or
    `tool` of each of its calls, are the names that it called.

    A response without a call has no success rate and does not enter the macro mean. Nothing at all is
    None, never 0.

    >>> found = aggregate([{"calls_correct": [True, False], "missed": 0, "tools": ["search"]},
    ...                    {"calls_correct": [], "missed": 3}])
    >>> found.success_rate_macro, found.missed_mean, found.tool_adoption, found.per_tool
    (0.5, 1.5, 0.5, {'search': 0.5})
    """
    read = [_read(f"responses: item {n}", one) for n, one in enumerate(_all(responses))]
    each = [_of(one) for one in read]
    calls = sum(one.n for one in each)
    names = sorted({name for one in read for name in one.tools})
    count = len(each)
    return Corpus(
        success_rate_macro=_mean([one.success_rate for one in each]),
        success_rate_micro=sum(one.k for one in each) / calls if calls else None,
        missed_mean=_mean([one.m for one in each]),
        tool_adoption=_mean([float(bool(one.flags)) for one in read]),
        mean_calls=_mean([len(one.flags) for one in read]),
        per_tool={name: sum(name in one.tools for one in read) / count for name in names},
        f1_mean=_mean([one.f1 for one in each]),
        recall_mean=_mean([one.recall for one in each]),
        responses=count,
        unjudged=sum(one.unjudged for one in each),
    )


def final_score(
    quality_0_1: float | None, plan_f1: float | None, w_quality: float = 0.5
) -> float | None:
    """100 (w quality + (1 - w) F1); None where either is not known.

    >>> final_score(0.8, 0.5)
    65.0
    >>> final_score(None, 0.5) is None
    True
    """
    weight = as_number("w_quality", w_quality, low=0, high=1)
    quality = None if quality_0_1 is None else as_number("quality_0_1", quality_0_1, low=0, high=1)
    f1 = None if plan_f1 is None else as_number("plan_f1", plan_f1, low=0, high=1)
    if quality is None or f1 is None:
        return None
    return 100 * (weight * quality + (1 - weight) * f1)


def _of(read: _Read) -> Metrics:
    return _metrics(read.flags, read.missed)


def _metrics(flags: Sequence[bool | None], m: int | None) -> Metrics:
    judged = [flag for flag in flags if flag is not None]
    n, k, unjudged = len(judged), sum(judged), len(flags) - len(judged)
    success = k / n if n else None
    if m is None:
        return Metrics(success, None, None, n, k, m, unjudged)
    if k == 0 and unjudged:  # whether any need is met is what nobody said
        return Metrics(success, None, None, n, k, m, unjudged)
    recall = k / (k + m) if k + m else None
    f1 = 2 * k / (2 * k + (n - k) + m) if n or m else 1.0
    return Metrics(success, recall, f1, n, k, m, unjudged)


def _all(responses: Any) -> list[Any]:
    return as_list("responses", responses)


def _read(what: str, given: Any) -> _Read:
    """A response from a table, a `Metrics` or a pair (calls_correct, missed)."""
    if isinstance(given, Metrics):
        given = given._asdict()
    if isinstance(given, list | tuple) and len(given) == 2 and isinstance(given[0], list | tuple):
        given = {"calls_correct": given[0], "missed": given[1]}
    if not isinstance(given, Mapping):
        raise refused(what, given, "a table with calls_correct and missed")
    key = next((name for name in _FLAGS if name in given), None)
    if key is None and not {"n", "k"} <= given.keys():
        raise refused(what, given, "a table with calls_correct and missed, or with n, k and m")
    flags = _counted(what, given) if key is None else _flags(f"{what}, {key}", given[key])
    name = "missed" if "missed" in given else "m"
    missed = given.get(name)
    return _Read(
        flags,
        None if missed is None else _missing(f"{what}, {name}", missed),
        _tools(what, given, None if key is None else given[key]),
    )


def _counted(what: str, given: Mapping[str, Any]) -> list[bool | None]:
    n = as_whole(f"{what}, n", given["n"], low=0, high=10**7)
    k = as_whole(f"{what}, k", given["k"], low=0, high=n)
    unjudged = as_whole(f"{what}, unjudged", given.get("unjudged", 0), low=0, high=10**7)
    return [True] * k + [False] * (n - k) + [None] * unjudged


def _flags(what: str, given: Any) -> list[bool | None]:
    return [_flag(what, one) for one in as_list(what, given)]


def _flag(what: str, given: Any) -> bool | None:
    if isinstance(given, Mapping) and "correct" in given:
        given = given["correct"]
    given = plain(given)
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, int | float) and not math.isnan(given) and given in (0, 1):
        return bool(given)
    raise refused(what, given, "true, false or None for each call")


def _missing(what: str, given: Any) -> int:
    if isinstance(given, list | tuple):
        return len(given)
    return as_whole(what, given, low=0)


def _tools(what: str, given: Mapping[str, Any], calls: Any) -> list[str]:
    if "tools" in given:
        return [
            as_text(f"{what}, tools", name) for name in as_list(f"{what}, tools", given["tools"])
        ]
    named = [one["tool"] for one in calls or () if isinstance(one, Mapping) and "tool" in one]
    return [as_text(f"{what}, tool", name) for name in named]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
