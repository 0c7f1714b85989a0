"""What is there, what is missing, and the whole: three roles that judge one answer.

`parse` finds the items of an answer: tool calls, citations, function calls, warnings. `present` says of
each whether it is right, `missing` lists what should be there and is not, `overall` scores the whole and
reads both reports; the first two never see each other. A role is a language model or plain code, and one
that fails leaves its figures None. The method is ATP-Bench's judge (arXiv 2603.29902); the tool plans
of that benchmark are `burnish.rewards.judges.atp_bench`, function calls
`burnish.rewards.judges.atp_bench.needs`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import anyio.to_thread
import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from burnish.arguments import refused
from burnish.boundary import Count, Number, Share, public
from burnish.errors import UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict
from burnish.rewards.scorer import Scope, gather
from burnish.seeds import digest


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


class JudgedPlan(TypedDict):
    calls_correct: Sequence[bool | None]
    """None: a call without a verdict."""
    missed: Count | Sequence[object] | None
    """A count or the list of what is missing; None: not known."""
    tools: NotRequired[Sequence[str]]


@public
def response_metrics(
    responses: JudgedPlan | Sequence[JudgedPlan] | Sequence[bool | None] | None = None,
    missed: Count | Sequence[object] | None = None,
    *,
    calls_correct: Sequence[bool | None] | None = None,
) -> Any:
    """Success rate k/n, recall k/(k+m) and F1 2k/(2k + (n-k) + m) of one response, or of each in a list.

    One response is `calls_correct` (true, false, or None without a verdict) and `missed`, or a table with
    these two. A call without a verdict is in neither n nor k, and counted apart.

    >>> response_metrics([True, True, False], 1).f1
    0.6666666666666666
    """
    given: Any = responses if calls_correct is None else calls_correct
    if missed is not None:
        return metrics_of(given, missed)
    if isinstance(given, Mapping):
        return metrics_of(given["calls_correct"], given["missed"])
    if given is None or not all(isinstance(one, Mapping) for one in given):
        raise refused("responses", responses, "tables with `missed`, or the flags beside missed")
    return [metrics_of(one["calls_correct"], one["missed"]) for one in given]


def metrics_of(flags: Sequence[bool | None], missed: int | Sequence[object] | None) -> Metrics:
    m = missed if missed is None or isinstance(missed, int) else len(missed)
    judged = [flag for flag in flags if flag is not None]
    n, k, unjudged = len(judged), sum(judged), len(flags) - len(judged)
    success = k / n if n else None
    if m is None or (k == 0 and unjudged):  # whether any need is met is what nobody said
        return Metrics(success, None, None, n, k, m, unjudged)
    recall = k / (k + m) if k + m else None
    f1 = 2 * k / (2 * k + (n - k) + m) if n or m else 1.0
    return Metrics(success, recall, f1, n, k, m, unjudged)


@public
def aggregate(responses: Sequence[JudgedPlan]) -> Corpus:
    """The figures of a corpus; `tools` of a response are the names that it called.

    A response without a call has no success rate and does not enter the macro mean. Nothing at all is
    None, never 0.

    >>> found = aggregate([{"calls_correct": [True, False], "missed": 0, "tools": ["search"]},
    ...                    {"calls_correct": [], "missed": 3}])
    >>> found.success_rate_macro, found.missed_mean, found.tool_adoption, found.per_tool
    (0.5, 1.5, 0.5, {'search': 0.5})
    """
    each = [metrics_of(one["calls_correct"], one["missed"]) for one in responses]
    named = [set(one.get("tools", ())) for one in responses]
    made = [one.n + one.unjudged for one in each]
    calls, count = sum(one.n for one in each), len(each)
    return Corpus(
        success_rate_macro=_mean([one.success_rate for one in each]),
        success_rate_micro=sum(one.k for one in each) / calls if calls else None,
        missed_mean=_mean([one.m for one in each]),
        tool_adoption=_mean([float(n > 0) for n in made]),
        mean_calls=_mean(made),
        per_tool={
            name: sum(name in own for own in named) / count for name in sorted(set().union(*named))
        },
        f1_mean=_mean([one.f1 for one in each]),
        recall_mean=_mean([one.recall for one in each]),
        responses=count,
        unjudged=sum(one.unjudged for one in each),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


@public
def final_score(
    quality_0_1: Share | None, plan_f1: Share | None, w_quality: Share = 0.5
) -> float | None:
    """100 (w quality + (1 - w) F1); None where either is not known."""
    if quality_0_1 is None or plan_f1 is None:
        return None
    return 100 * (w_quality * quality_0_1 + (1 - w_quality) * plan_f1)


PLAN = "plan"
"""Source of the evidence that holds a whole `Plan` as JSON, for the viewer and for replays."""
SHOWN, CUT = 200, 400
"""Items of a plan that are kept, and characters of each of their texts."""
CONCURRENT = 32

Value = Literal["f1", "precision", "recall", "validity", "quality", "final"]
Combine = Literal["union", "majority"]
Passes = Annotated[int, Meta(ge=1, le=9)]
T = TypeVar("T")


class Item(NamedTuple):
    """One thing that an answer holds."""

    kind: str
    """What it is, such as the name of a tool."""
    value: Any = None
    start: int = 0
    end: int = 0
    valid: bool = True
    """False: wrong by rule, so that no role is asked."""
    reason: str = ""


class Mark(NamedTuple):
    correct: bool
    reason: str = ""


class Gap(Struct, frozen=True):
    """Something that should be there."""

    where: str
    intent: str
    kind: str = ""
    """What should have been used, such as the name of a tool."""
    reason: str = ""


class Case(NamedTuple):
    task: Task
    response: Response
    items: tuple[Item, ...]

    @property
    def valid(self) -> list[int]:
        """Places of the items that a role is asked about."""
        return [place for place, item in enumerate(self.items) if item.valid]


@dataclass(frozen=True)
class RoleReply(Generic[T]):
    """What a role said, or why it said nothing."""

    value: T | None
    status: Status = Status.OK
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    warnings: tuple[str, ...] = ()


class Reports(NamedTuple):
    """What the overall role reads of the other two."""

    marks: tuple[Mark | None, ...]
    gaps: tuple[Gap, ...] | None


Present = Callable[[Case, int], Awaitable[RoleReply[Mapping[int, Mark]]]]
"""From an answer and the number of the pass to marks by the item's place."""
Missing = Callable[[Case, int], Awaitable[RoleReply[Sequence[Gap]]]]


class PlanItem(Struct, frozen=True):
    """An item with everything that was found out about it."""

    kind: str
    value: str
    valid: bool
    correct: bool | None
    reason: str
    start: int
    end: int


class Agreement(Struct, frozen=True):
    share: float | None
    """Items on which both say the same, of those that both marked."""
    kappa: float | None
    """Cohen's: the share beyond chance; None where chance alone would do."""
    items: int
    gaps: float | None
    """Gaps that both name, of those that either names."""


class Plan(Struct, frozen=True, kw_only=True):
    items: list[PlanItem]
    missed: list[Gap] | None
    """None: nobody could say."""
    dropped: list[str]
    """Gaps that a correct item covers."""
    metrics: dict[str, float | None]
    unjudged: int
    quality: float | None
    final: float | None
    warnings: list[str]
    agreement: Agreement | None = None
    more: int = 0
    """Items beyond those listed."""


@dataclass(frozen=True)
class ThreeRoles:
    """A point scorer made of a parser and three roles."""

    name: str
    parse: Callable[[Task, Response], Sequence[Item]]
    present: Present
    missing: Missing
    overall: Callable[[Case, Reports], Awaitable[RoleReply[float]]] | None = None
    """To a value from 0 to 1."""
    covers: Callable[[Case, Gap, int], bool] | None = None
    """Whether a correct item already serves what a gap asks for."""
    value: Value = "f1"
    passes: Passes = 1
    combine: Combine = "union"
    """union: a fault that any pass finds counts. majority: one that most passes find does."""
    w_quality: float = 0.5
    otherwise: Number | None = None
    """The value where it is not defined, such as the precision of no call; None: no value."""
    needs: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    """Columns that belong to the question and are no labels: `burnish judge` shows them."""
    shows_media: bool = True
    """False: its model is asked about texts alone, whatever the task holds."""
    settings: str = ""
    """Changes the fingerprint."""
    check_task: Callable[[Task], object] = lambda task: None
    """Raises `UserError` for a task that it cannot judge, before anything is asked."""
    scope: Scope = field(default=Scope.POINT, init=False)

    def __post_init__(self) -> None:
        if self.value in ("quality", "final") and self.overall is None:
            raise UserError(
                f"judge '{self.name}': value '{self.value}' needs the overall role, which is a model; "
                "give one, or take f1, precision, recall or validity."
            )

    @property
    def fingerprint(self) -> str:
        chosen = (self.value, self.passes, self.combine, self.w_quality, self.otherwise)
        return digest("three roles", self.name, repr(chosen), self.settings)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        calls = [partial(self._one, task, response) for response in responses]
        return await gather(calls, limit=CONCURRENT)

    async def _one(self, task: Task, response: Response) -> Reward:
        # In a thread: a parser may carry out what it finds.
        items = await anyio.to_thread.run_sync(self.parse, task, response)
        case = Case(task, response, tuple(items))
        passes = range(self.passes)
        asked = passes if case.valid else ()
        of_items = partial(gather, [partial(self.present, case, n) for n in asked])
        of_gaps = partial(gather, [partial(self.missing, case, n) for n in passes])
        roles: list[Callable[[], Awaitable[list[RoleReply[Any]]]]] = [of_items, of_gaps]
        marks, gaps = await gather(roles)
        found = joined_marks(case, marks, self.combine)
        listed, dropped = self._gaps(case, gaps, found)
        reports = Reports(found, None if listed is None else tuple(listed))
        whole = None if self.overall is None else await self.overall(case, reports)
        heard: list[RoleReply[Any]] = [*marks, *gaps, *([whole] if whole is not None else [])]
        agreement = None if self.passes == 1 else agreement_of(case, marks, gaps)
        return self._reward(case, reports, dropped, whole, heard, agreement)

    def _gaps(
        self, case: Case, heard: Sequence[RoleReply[Sequence[Gap]]], marks: Sequence[Mark | None]
    ) -> tuple[list[Gap] | None, list[str]]:
        """The gaps that count, and those that a correct item covers."""
        lists = [one.value for one in heard if one.value is not None]
        if not lists:
            return None, []
        kept, dropped = [], []
        right = [n for n, mark in enumerate(marks) if mark is not None and mark.correct]
        for gap in joined_gaps(lists, self.combine):
            cover = next((n for n in right if self.covers and self.covers(case, gap, n)), None)
            if cover is None:
                kept.append(gap)
            else:
                dropped.append(f"'{_cut(gap.where, 80)}' is covered by item {cover + 1}")
        return kept, dropped

    def _reward(
        self,
        case: Case,
        reports: Reports,
        dropped: list[str],
        whole: RoleReply[float] | None,
        heard: Sequence[RoleReply[Any]],
        agreement: Agreement | None,
    ) -> Reward:
        flags = [None if mark is None else mark.correct for mark in reports.marks]
        found = metrics_of(flags, reports.gaps)
        quality = None if whole is None else whole.value
        count = len(case.items)
        figures: dict[str, float | None] = {
            "f1": found.f1,
            "precision": found.success_rate,
            "recall": found.recall,
            "validity": len(case.valid) / count if count else None,
            "missed": found.m,
        }
        figures |= {} if whole is None else {"quality": quality}
        final = final_score.plain(quality, found.f1, self.w_quality)
        pairs = list(zip(case.items, reports.marks, strict=True))
        gaps = [Gap(*map(_cut, astuple(gap))) for gap in reports.gaps or ()]
        plan = Plan(
            items=[_plan_item(*pair) for pair in pairs[:SHOWN]],
            missed=None if reports.gaps is None else gaps,
            dropped=dropped,
            metrics=figures,
            unjudged=found.unjudged,
            quality=quality,
            final=final,
            warnings=[line for one in heard for line in one.warnings][:SHOWN],
            agreement=agreement,
            more=max(0, count - SHOWN),
        )
        evidence = tuple(line for one in heard for line in one.evidence)
        evidence += (Evidence(PLAN, msgspec.json.encode(plan).decode()),)
        value = {**figures, "final": None if final is None else final / 100}[self.value]
        told = _told(found, plan)
        nothing = "not defined or not known here"
        parts = tuple(
            Reward.failed(name, Status.ABSTAIN, nothing, weight=0.0)
            if one is None
            else Reward(name, float(one), weight=0.0)
            for name, one in figures.items()
        )
        verdicts = _verdicts(case, reports)
        more: dict[str, Any] = {"evidence": evidence, "verdicts": verdicts, "parts": parts}
        # A role failed, or there is nothing that the figure could be of.
        status, why = Status.ABSTAIN, f"{self.value} is not defined here"
        if (failed := next((one for one in heard if one.value is None), None)) is not None:
            status, why = failed.status, failed.reason
        elif found.unjudged:
            status, why = Status.PARSE_ERROR, f"{found.unjudged} items without a verdict"
        elif value is None:
            value = self.otherwise
        if value is None:
            return Reward.failed(self.name, status, f"{why}; {told}", **more)
        return Reward(self.name, float(value), reason=told, **more)


def plan_of(reward: Reward) -> Plan | None:
    """The plan that a reward, or the first of its parts that has one, rests on."""
    for one in reward.evidence:
        if one.source == PLAN:
            try:
                return msgspec.json.decode(one.observation, type=Plan)
            except msgspec.DecodeError:
                continue  # another tool's evidence of the same name
    return next((plan for part in reward.parts if (plan := plan_of(part)) is not None), None)


def joined_marks(
    case: Case, heard: Sequence[RoleReply[Mapping[int, Mark]]], combine: Combine
) -> tuple[Mark | None, ...]:
    """One mark an item from all passes; None without a verdict, and wrong where it is not valid."""
    found: list[Mark | None] = []
    for place, item in enumerate(case.items):
        if not item.valid:
            found.append(Mark(False, item.reason))
            continue
        votes = [mark for one in heard if (mark := (one.value or {}).get(place)) is not None]
        right = [mark for mark in votes if mark.correct]
        wrong = [mark for mark in votes if not mark.correct]
        # An even split is wrong, as a claim on which checkers differ is.
        is_wrong = wrong if combine == "union" else len(right) <= len(wrong)
        found.append((wrong if is_wrong else right)[0] if votes else None)
    return tuple(found)


def joined_gaps(lists: Sequence[Sequence[Gap]], combine: Combine) -> list[Gap]:
    """The gaps of all passes without repetitions; by majority those that most passes name."""
    kept: dict[_Key, Gap] = {}
    named: Counter[_Key] = Counter()
    for gaps in lists:
        found = _by_place(gaps)
        kept |= {key: gap for key, gap in found.items() if key not in kept}
        named.update(list(found))
    if combine == "union":
        return list(kept.values())
    return [gap for key, gap in kept.items() if 2 * named[key] > len(lists)]


def agreement_of(
    case: Case,
    marks: Sequence[RoleReply[Mapping[int, Mark]]],
    gaps: Sequence[RoleReply[Sequence[Gap]]],
) -> Agreement:
    """The first two passes that said anything, held against each other."""
    two = [one.value for one in marks if one.value is not None][:2]
    pairs = []
    if len(two) == 2:
        both = [place for place in case.valid if all(place in one for one in two)]
        pairs = [(two[0][place].correct, two[1][place].correct) for place in both]
    share, kappa = cohen(pairs)
    named = [set(_by_place(one.value)) for one in gaps if one.value is not None][:2]
    either = set().union(*named)
    same = len(named[0] & named[1]) / len(either) if len(named) == 2 and either else None
    return Agreement(share, kappa, len(pairs), same)


def cohen(pairs: Sequence[tuple[bool, bool]]) -> tuple[float | None, float | None]:
    """Share of pairs that agree, and Cohen's kappa; None where it is not defined."""
    if not pairs:
        return None, None
    n = len(pairs)
    share = sum(a == b for a, b in pairs) / n
    first, second = sum(a for a, _ in pairs) / n, sum(b for _, b in pairs) / n
    chance = first * second + (1 - first) * (1 - second)
    return share, None if chance == 1 else (share - chance) / (1 - chance)


_Key = tuple[str, str, int]


def _by_place(gaps: Sequence[Gap]) -> dict[_Key, Gap]:
    """The gaps of one pass by place, kind, and how many with other intents came before them there.

    Intents are counted, not held against each other: two passes put the same one in other words.
    """
    intents: dict[tuple[str, str], list[str]] = {}
    found = {}
    for gap in gaps:
        where, intent = (" ".join(text.casefold().split()) for text in (gap.where, gap.intent))
        known = intents.setdefault((where, gap.kind), [])
        if intent not in known:
            found[where, gap.kind, len(known)] = gap
            known.append(intent)
    return found


def _verdicts(case: Case, reports: Reports) -> tuple[Verdict, ...]:
    found = []
    for number, (item, mark) in enumerate(zip(case.items, reports.marks, strict=True), start=1):
        value = None if mark is None else float(mark.correct)
        reason = "no verdict" if mark is None else _cut(mark.reason)
        found.append(Verdict(f"{number}. {_cut(item.kind, 80)}", value, reason=reason))
    for gap in reports.gaps or ():
        reason = _cut(f"{gap.kind}: {gap.intent}. {gap.reason}")
        found.append(Verdict(f"missing at {_cut(gap.where, 80)}", 0.0, reason=reason))
    return tuple(found[:SHOWN])


def _plan_item(item: Item, mark: Mark | None) -> PlanItem:
    value = "" if item.value is None else item.value
    if not isinstance(value, str):
        value = msgspec.json.encode(value, enc_hook=repr).decode()
    correct = None if mark is None else mark.correct
    reason = item.reason or ("no verdict" if mark is None else mark.reason)
    texts = (_cut(item.kind), _cut(value))
    return PlanItem(*texts, item.valid, correct, _cut(reason), item.start, item.end)


def _cut(text: str, most: int = CUT) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _told(found: Metrics, plan: Plan) -> str:
    told = [f"{found.k} of {found.n} right"]
    told += ["what is missing is not known" if found.m is None else f"{found.m} missing"]
    told += [f"{found.unjudged} without a verdict"] * bool(found.unjudged)
    told += [f"{len(plan.dropped)} said to be missing are there"] * bool(plan.dropped)
    return ", ".join([*told, *plan.warnings[:3]])
