"""From evidence to a verdict or a score, by formula: no model is asked here.

    decide_pair(items)                          # +1, -1 or 0, and which tier decided
    capped_score(satisfied=3, total=4, flags=["wrong_language"])     # 0.65

A tier decides a pair where all of its items that name a side name the same one; else the next tier is
asked. Exchanging the responses exchanges the decision.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache, partial
from typing import Any, NamedTuple

from burnish.arguments import as_word
from burnish.boundary import public
from burnish.errors import UserError
from burnish.records import Evidence, Message, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.judges.benchmarks import score_from_counts
from burnish.rewards.judges.prompting import Unreadable
from burnish.rewards.judges.reading import (
    Maybe,
    Table,
    choice,
    field,
    number,
    plain_text,
    read_reply,
    rows,
    truth,
)
from burnish.rewards.judges.skill_rm.package import SkillPackage, load_skill
from burnish.rewards.judges.skill_rm.verifiers import (
    CAPS,
    Case,
    Finding,
    Mode,
    Resource,
    make_verifier,
    run_verifier,
)
from burnish.rewards.scorer import Scope, Scorer, checked, gather
from burnish.seeds import digest

CRITERIA = frozenset({"rubric", "principle", "checklist"})


class Tier(IntEnum):
    """Whose word counts more; the lowest number first."""

    VETO = 0
    HARD = 1
    PIPELINE = 2
    RUBRIC = 3
    OPINION = 4


class Item(NamedTuple):
    """e = (criterion, observation, decision) with the tier it belongs to."""

    tier: Tier
    criterion: str
    side: int
    """+1 for the first response, -1 for the second, 0 for neither."""
    observation: str = ""


class PairDecision(NamedTuple):
    side: int
    tier: Tier
    conflicts: tuple[str, ...] = ()


class Count(NamedTuple):
    criterion: str
    is_met: bool
    observation: str = ""
    resource: str = ""


def tier_of(entry: Resource) -> Tier:
    """Where the findings of a resource stand that veto nobody; a `pipeline` runs another judge."""
    if entry.subtype == "pipeline":
        return Tier.PIPELINE
    return Tier.HARD if entry.hard_or_soft == "hard" else Tier.RUBRIC


@public
def decide_pair(items: Iterable[Item]) -> PairDecision:
    """The first tier whose decided items agree; a tie where none does."""
    by_tier: dict[Tier, set[int]] = {tier: set() for tier in Tier}
    for item in items:
        by_tier[item.tier].add(item.side)
    for tier, found in by_tier.items():
        if len(sides := found - {0}) == 1:
            (side,) = sides
            against = tuple(
                f"{other.name.lower()} evidence says otherwise"
                for other in Tier
                if other is not tier and -side in by_tier[other]
            )
            return PairDecision(side, tier, against)
    return PairDecision(0, next((tier for tier in Tier if by_tier[tier]), Tier.OPINION))


@public
def capped_score(
    satisfied: object, total: object, flags: Sequence[str] = (), *, vetoed: bool = False
) -> float | None:
    """satisfied / total within [0, 1], at most the lowest cap of the flags; 0 where vetoed.

    None where the counts are missing or negative. Nothing asked for is all satisfied: 1.
    """
    base = score_from_counts((satisfied, total))
    if base is None:
        return None
    return 0.0 if vetoed else min([base, *(CAPS[as_word("flags", flag, CAPS)] for flag in flags)])


class PointDecision(NamedTuple):
    value: float | None
    satisfied: int
    total: int
    flags: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    vetoed: str = ""

    @property
    def reason(self) -> str:
        said = [f"{self.satisfied} of {self.total} requirements met"]
        said += [f"capped for {', '.join(self.flags)}"] if self.flags else []
        said += [f"vetoed by {self.vetoed}"] if self.vetoed else []
        return "; ".join(said)


def decide_point(
    findings: Sequence[Finding], counts: Sequence[Count], flags: Sequence[str]
) -> PointDecision:
    """Counts of the verifiers and of the judge, with caps; a verifier outranks the judge.

    An item of the judge's that names a verifier which came to a decision is left out: that
    verifier's own criteria stand in its place.
    """
    decided = [one for one in findings if one.values and one.values[0] is not None]
    settled = {finding.entry.id for finding in decided}
    verdicts: list[Verdict] = []
    for one in decided:
        own = one.verdicts[0] if one.verdicts else ()
        verdicts += own or [Verdict(one.entry.id, one.values[0], reason=one.observation)]
    verdicts += [
        Verdict(count.criterion, float(count.is_met), reason=count.observation)
        for count in counts
        if count.resource not in settled
    ]
    violated = [finding.entry for finding in decided if _fails(finding.values[0])]
    own_flags = [str(entry.options["flag"]) for entry in violated if "flag" in entry.options]
    raised = tuple(dict.fromkeys([*flags, *own_flags]))
    vetoes = [entry.id for entry in violated if entry.decision_impact == "veto"]
    known = [verdict.value for verdict in verdicts if verdict.value is not None]
    satisfied, total = sum(value >= 1 for value in known), len(known)
    value = capped_score.plain(satisfied, total, raised, vetoed=bool(vetoes))
    vetoed = vetoes[0] if vetoes else ""
    return PointDecision(value, satisfied, total, raised, tuple(verdicts), vetoed)


def pair_items(findings: Sequence[Finding]) -> list[Item]:
    """What verifiers say about a pair.

    One that may veto names a side only where exactly one response fails it, and then before all
    other evidence; where both fail, or none, neither wins by it.
    """
    items = []
    for finding in findings:
        if finding.decision == "unavailable":
            continue
        side, tier = {"A": 1, "B": -1}.get(finding.decision, 0), tier_of(finding.entry)
        if finding.entry.decision_impact == "veto":
            first, second = map(_fails, finding.values)
            side = int(second) - int(first)
            tier = Tier.VETO if side else tier
        items.append(Item(tier, finding.entry.id, side, finding.observation))
    return items


def as_pair(
    name: str, side: int, items: Sequence[Item], evidence: tuple[Evidence, ...], reason: str
) -> list[Reward]:
    """The rewards of both responses: the same story with opposite signs."""
    return [
        Reward(
            name,
            float(sign * side),
            evidence=evidence,
            verdicts=tuple(
                Verdict(one.criterion, float(sign * one.side), reason=one.observation)
                for one in items
            ),
            reason=reason,
        )
        for sign in (1, -1)
    ]


def _fails(value: float | None) -> bool:
    return value is not None and value < 1


class Call(NamedTuple):
    tool: str
    arguments: Mapping[str, Any]


class PairAnswer(NamedTuple):
    side: int
    rationale: str
    items: Sequence[Mapping[str, Any]] = ()
    """Each of a criterion, an observation, a decision (the side) and a resource."""


class PointAnswer(NamedTuple):
    score: float | None
    rationale: str
    counts: tuple[Count, ...] = ()
    flags: tuple[str, ...] = ()


Answer = PairAnswer | PointAnswer


_object = field("an object", lambda value: isinstance(value, dict))
_flags = field(
    f"a list of {', '.join(CAPS)}",
    lambda value: isinstance(value, list) and all(flag in [*CAPS] for flag in value),
    tuple,
)
_SIDE = choice({"A": 1, "B": -1, "Tie": 0})
_TEXT = Maybe(plain_text)
_CALL = Table(Call, tool=plain_text, arguments=Maybe(_object, {}))
_SEEN: Table[dict[str, Any]] = Table(
    dict, open=True, criterion=_TEXT, observation=_TEXT, decision=_SIDE, resource=_TEXT
)
_PAIR: Table[dict[str, Any]] = Table(
    dict,
    verdict=_SIDE,
    rationale=_TEXT,
    judgement_package=Maybe(rows(_SEEN), ()),
)
_COUNTS = rows(
    Table(
        lambda **row: Count(
            row["constraint"] or row["criterion"],
            row["satisfied"],
            row["evidence"],
            row["resource"],
        ),
        open=True,
        constraint=_TEXT,
        criterion=_TEXT,
        satisfied=truth,
        evidence=_TEXT,
        resource=_TEXT,
    )
)
_POINT: Table[dict[str, Any]] = Table(
    dict,
    score=Maybe(number(0, 1), None),
    rationale=_TEXT,
    constraints=Maybe(_COUNTS, ()),
    judgement_package=Maybe(_COUNTS, ()),
    flags=Maybe(_flags, ()),
)


def read_call(reply: str, shown: Sequence[str] = ()) -> Call:
    """The one call that a reply consists of; a final answer must not stand in the texts shown.

    `Unreadable` says why there is none: the judge is told, and the step is spent.
    """
    call = read_reply(reply, _CALL)
    return read_reply(reply, _CALL, shown) if call.tool == "final_answer" else call


def read_pair_answer(arguments: Mapping[str, Any]) -> PairAnswer:
    """`verdict` A, B or Tie, with a rationale and a package of evidence."""
    found = _PAIR.read(arguments)
    return PairAnswer(found["verdict"], found["rationale"], found["judgement_package"])


def read_point_answer(arguments: Mapping[str, Any]) -> PointAnswer:
    """`constraints` with satisfied or not, `flags` of severity, and a `score` from 0 to 1."""
    found = _POINT.read(arguments)
    counts = tuple(found["constraints"] or found["judgement_package"])
    if found["score"] is None and not counts:
        raise Unreadable("neither constraints nor a score; expected at least one of them")
    return PointAnswer(found["score"], found["rationale"], counts, found["flags"])


def score_function(
    scorer: Scorer, *, deadline_s: float = 300.0, failed: float = math.nan
) -> Callable[..., Awaitable[dict[str, float]]]:
    """`compute_score(data_source, solution_str, ground_truth, extra_info, **kw)` for a scorer.

    `extra_info` holds `prompt` (text or messages) and any field that the scorer needs; the ground
    truth becomes the field `answer`, which no judge sees unless a resource declares it. `failed`
    stands in `score` where `valid` is 0, for trainers that cannot carry a NaN as far as their mask.
    """
    if scorer.scope is not Scope.POINT:
        raise UserError(
            f"reward '{scorer.name}' has scope {scorer.scope.value}; expected point. "
            "Wrap a pair judge in Anchor."
        )

    async def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> dict[str, float]:
        task = _task(data_source, ground_truth, extra_info or {})
        response = Response(digest(task.id, solution_str), solution_str)
        (reward,) = await checked(scorer, task, [response], deadline_s=deadline_s)
        return flat(reward, failed)

    return compute_score


def flat(reward: Reward, failed: float = math.nan) -> dict[str, float]:
    """A reward as plain numbers, the same keys for every sample."""
    known = [verdict.value for verdict in reward.verdicts if verdict.value is not None]
    first = next((one for one in reward.evidence if one.source == "skill_rm"), None)
    told: dict[str, Any] = json.loads(first.observation) if first else {}
    return {
        "score": failed if reward.value is None else reward.value,
        "valid": float(reward.value is not None),
        "satisfied": float(sum(value >= 1 for value in known)),
        "total": float(len(known)),
        "tool_calls": float(sum(one.source.startswith("tool:") for one in reward.evidence)),
        "steps": float(told.get("steps", 0)),
        "refused": float(told.get("refused", 0)),
        "oracle": float(sum(one.visibility is Visibility.ORACLE for one in reward.evidence)),
        "prompt_tokens": float(told.get("prompt_tokens", 0)),
        "completion_tokens": float(told.get("completion_tokens", 0)),
    }


def _task(source: str, ground_truth: Any, extra: Mapping[str, Any]) -> Task:
    prompt = extra.get("prompt", "")
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        messages = tuple(Message(str(turn["role"]), str(turn["content"])) for turn in turns)
    except (KeyError, TypeError):
        raise UserError(
            f"extra_info['prompt']: got {prompt!r:.60}, expected text or messages"
        ) from None
    fields = {key: value for key, value in extra.items() if key not in ("prompt", "index")}
    if ground_truth is not None:
        fields["answer"] = ground_truth
    index = extra.get("index")
    name = f"{source}/{index}" if index is not None else f"{source}/{digest(repr(messages))}"
    return Task(name, messages, fields)


async def verified(
    task: Task,
    response: Response,
    skill: str = "instruction_following",
    only: Sequence[str] = (),
) -> Reward:
    """A skill's verifiers as a reward of `kind = "function"`: counts, caps and vetoes, no model."""
    (reward,) = await _checks(skill, tuple(only)).score(task, [response])
    return reward


@cache
def _checks(skill: str, only: tuple[str, ...]) -> SkillChecks:
    return SkillChecks(load_skill(skill), only=only)


class SkillChecks:
    """The runtime resources of one skill as a scorer of pairs or single responses."""

    def __init__(
        self,
        skill: SkillPackage,
        *,
        scope: Scope = Scope.POINT,
        only: Sequence[str] = (),
        name: str = "skill_checks",
    ) -> None:
        """`only`: ids of the verifiers to run; all of them by default."""
        there = [e for e in skill.seen_in(Mode.OPERATIONAL).resources if e.is_runtime]
        missing = sorted(set(only) - {entry.id for entry in there})
        if missing or not there:
            known = ", ".join(entry.id for entry in there) or "none"
            what = f"no verifier '{missing[0]}'" if missing else "no verifiers"
            raise UserError(f"reward '{name}': skill '{skill.name}' has {what}; it has {known}")
        self.entries = tuple(entry for entry in there if not only or entry.id in only)
        self.skill, self.scope, self.name = skill, scope, name
        scorers = [make_verifier(entry) for entry in self.entries]
        self.needs: frozenset[str] = frozenset().union(*(scorer.needs for scorer in scorers))

    @property
    def fingerprint(self) -> str:
        return digest(self.skill.hash, self.scope.value, *(entry.id for entry in self.entries))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        if self.scope is Scope.PAIR:
            return await self._judge(Case(task, responses))
        found = await gather([partial(self._judge, Case(task, [one])) for one in responses])
        return [reward for rewards in found for reward in rewards]

    async def _judge(self, case: Case) -> list[Reward]:
        findings = [await run_verifier(entry, case) for entry in self.entries]
        evidence = tuple(
            Evidence(f"verifier:{f.entry.id}", f.observation, f.visibility, error=f.error)
            for f in findings
        )
        if case.is_pair:
            items = pair_items(findings)
            found = decide_pair.plain(items)
            reason = f"decided by {found.tier.name.lower()} evidence"
            if found.side:
                return as_pair(self.name, found.side, items, evidence, reason)
        else:
            point = decide_point(findings, (), ())
            if point.total and point.value is not None:
                told: dict[str, Any] = {"verdicts": point.verdicts, "reason": point.reason}
                return [Reward(self.name, point.value, evidence=evidence, **told)]
        # No decision: an outage where each was one, else an abstention.
        errors = [finding.error for finding in findings if finding.error]
        status = Status.INFRA_ERROR if len(errors) == len(findings) else Status.ABSTAIN
        reason = errors[0] if errors else "no verifier came to a decision"
        return [Reward.failed(self.name, status, reason, evidence=evidence)] * len(case.responses)
