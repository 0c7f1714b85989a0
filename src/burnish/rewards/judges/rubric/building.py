"""A rubric for a question, from the consensus of several models and from retrieved passages.

    roles = Roles(writers=[a, b, c], aggregators=[a, b], checkers=[c], author=a)
    built = await build_rubric("How do I descale the kettle?", roles, retriever=index)
    built.rubric, built.outcome        # a Rubric and `built`, or None and `needs_human` with a reason

Four stages (QuarkMedBench, arXiv 2603.13691): models answer in several styles; readers take the
answers apart and checkers test the statements; one author writes items that rest on those statements
alone; a rubric that fails its audit is built once more with retrieved passages, and after that goes
to a person. A role is a `JudgeModel` or a function from a prompt to a reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from burnish.arguments import as_list, as_number, as_whole, as_word, refused
from burnish.errors import UserError
from burnish.lm.scripted import ScriptedLM
from burnish.records import Evidence
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    JudgeReply,
    Reader,
    Unreadable,
    V,
)
from burnish.rewards.judges.reading import (
    anything,
    free_table,
    read_list,
    rows,
)
from burnish.rewards.judges.rubric import wording
from burnish.rewards.judges.rubric.items import Point, Rubric, RubricItem, Rules, Source, similarity
from burnish.rewards.judges.rubric.score import Tier
from burnish.rewards.judges.rubric.wording import Block, stands_in
from burnish.rewards.scorer import gather
from burnish.seeds import digest
from burnish.tools.search import Passage, Retriever

logger = logging.getLogger(__name__)


async def build_rubric(
    question: str, roles: Roles, *, retriever: Retriever | None = None, plan: Plan | None = None
) -> Built:
    """Sample, fuse, write; where that is not good enough, once more with passages as answers."""
    plan = plan or Plan()
    work = _Work(question, roles, plan, retriever)
    candidates = await work.sample()
    first = await work.fuse_and_write(candidates)
    if first.outcome != "needs_human" or retriever is None:
        return first
    found = [
        Candidate(passage.text, source=passage.id)
        for passage in retriever.search(question, 2 * plan.passages)
    ]
    if not found:
        return first
    again = await work.fuse_and_write((*candidates, *found))
    if again.outcome == "built":
        return replace(again, outcome="rescued", reason=f"at first: {first.reason}")
    return again


class _Work:
    """The stages of one question; every reply is kept."""

    def __init__(
        self, question: str, roles: Roles, plan: Plan, retriever: Retriever | None
    ) -> None:
        if not question.strip() or not roles.writers or not roles.aggregators:
            raise UserError("rubric: expected a question, at least one writer and one aggregator.")
        self.question, self.plan, self.retriever = question, plan, retriever
        self.writers = [as_judge(role, f"writer {n + 1}") for n, role in enumerate(roles.writers)]
        self.readers = [
            as_judge(role, f"reader {n + 1}") for n, role in enumerate(roles.aggregators)
        ]
        self.checkers = [
            as_judge(role, f"checker {n + 1}") for n, role in enumerate(roles.checkers)
        ]
        self.author = as_judge(roles.author, "author")
        self.auditor = None if roles.auditor is None else as_judge(roles.auditor, "auditor")
        self.replies: list[Evidence] = []

    async def sample(self) -> tuple[Candidate, ...]:
        """Answers of every writer, in the three styles in turn."""
        styles = list(wording.STYLES.items())
        asked = [
            (w, n, *styles[n % len(styles)]) for w in self.writers for n in range(self.plan.samples)
        ]
        judge_reply = await gather(
            [
                partial(self._ask, w, "rubric_answer", "candidate", _text, vote=n, style=words)
                for w, n, _, words in asked
            ]
        )
        return tuple(
            Candidate(one.verdict, writer.name, style)
            for one, (writer, _, style, _) in zip(judge_reply, asked, strict=True)
            if one.verdict is not None
        )

    async def fuse_and_write(self, candidates: Sequence[Candidate]) -> Built:
        """Points, consensus, references, items and the audit."""
        considered, consensus = await self._fuse(candidates)
        made = Built(None, "needs_human", None, "", tuple(candidates), tuple(considered))
        if not consensus:
            reason = f"none of {len(considered)} statements is in consensus"
            return replace(made, reason=reason, evidence=tuple(self.replies))
        references = await self._references(consensus)
        judge_reply = await self._write(consensus, references)
        made = replace(made, references=tuple(references))
        if judge_reply.verdict is None:
            reason = f"no rubric: {judge_reply.reason}"
            return replace(made, reason=reason, evidence=tuple(self.replies))
        rubric = judge_reply.verdict
        audit = await self._audit(rubric)
        made = replace(made, rubric=rubric, audit=audit, evidence=tuple(self.replies))
        if audit.is_vetoed:
            return replace(made, reason="the audit misses an item on safety")
        if audit.quality < self.plan.quality:
            failed = ", ".join(audit.failed)
            return replace(made, reason=f"audit {audit.earned} of {audit.possible}: {failed}")
        return replace(made, outcome="built")

    async def _fuse(self, candidates: Sequence[Candidate]) -> tuple[list[Point], list[Point]]:
        if not candidates:
            return [], []
        texts = [(f"answer {n + 1}", c.text) for n, c in enumerate(candidates)]
        read = partial(read_points, candidates=candidates)
        judge_reply = await gather(
            [
                partial(self._ask, r, "rubric_points", "extract", read, answers=texts)
                for r in self.readers
            ]
        )
        found = [one.verdict for one in judge_reply if one.verdict is not None]
        points = merge_points(found, self.plan.same)
        said = await self._check(points)
        points = checked_points(points, said)
        plan = self.plan
        kept = [
            point
            for point in points
            if in_consensus(
                point,
                models=plan.models,
                sources=plan.sources,
                objections=sum(o[point.id].holds is False for o in said if point.id in o),
                checkers=len(said),
            )
        ]
        return points, kept

    async def _check(self, points: Sequence[Point]) -> list[dict[str, PointCheck]]:
        if not self.checkers or not points:
            return []
        passages = self._passages(points)
        blocks = [(f"passage {p.id}", p.text) for p in passages]
        texts = {passage.id: passage.text for passage in passages}
        read = partial(read_point_checks, points=points, passages=texts)
        calls = [
            partial(
                self._ask,
                checker,
                "rubric_check",
                "check",
                read,
                points=_points(points),
                passages=blocks or "No passage was found.",
            )
            for checker in self.checkers
        ]
        return [one.verdict for one in await gather(calls) if one.verdict is not None]

    def _passages(self, points: Sequence[Point]) -> list[Passage]:
        if self.retriever is None:
            return []
        found: dict[str, Passage] = {}
        for text in (self.question, *(point.text for point in points)):
            found |= {p.id: p for p in self.retriever.search(text, self.plan.passages)}
        return list(found.values())

    async def _references(self, consensus: Sequence[Point]) -> list[str]:
        """One answer of each reader from the consensus alone, and the plain list of it."""
        ask = partial(self._ask, kind="rubric_reference", template="reference", read=_text)
        judge_reply = await gather(
            [partial(ask, judge=reader, points=_points(consensus)) for reader in self.readers]
        )
        written = [one.verdict for one in judge_reply if one.verdict is not None]
        return [*written, "\n".join(point.text for point in consensus)]

    async def _write(
        self, consensus: Sequence[Point], references: Sequence[str]
    ) -> JudgeReply[Rubric]:
        rules = self.plan.rules
        least = {str(tier): str(count) for tier, count in rules.least}
        blocks = [(f"reference {n + 1}", text) for n, text in enumerate(references)]
        read = partial(read_items, question=self.question, points=consensus, rules=rules)
        return await self._ask(
            self.author,
            "rubric_write",
            "write",
            read,
            points=_points(consensus),
            references=blocks,
            low=str(rules.items[0]),
            high=str(rules.items[1]),
            essential=least.get(Tier.ESSENTIAL, "0"),
            important=least.get(Tier.IMPORTANT, "0"),
            highlight=least.get(Tier.HIGHLIGHT, "0"),
            pitfall=str(rules.most_pitfalls),
            title=str(rules.title_characters),
            tags=wording.tag_names(),
        )

    async def _audit(self, rubric: Rubric) -> Audit:
        if self.auditor is None:
            return rule_audit(rubric, self.plan.rules)
        judge_reply = await self._ask(
            self.auditor,
            "rubric_audit",
            "audit",
            read_findings,
            points=_points(rubric.points),
            rubric=[("rubric", wording.rubric_text(rubric))],
            checks="; ".join(f"{name} ({check.asks})" for name, check in CHECKS.items()),
        )
        said = judge_reply.verdict or {}
        findings = {name: found for name, found in said.items() if name != SAFETY}
        return joined_audit(
            rubric, findings, safety_omitted=bool(said.get(SAFETY)), rules=self.plan.rules
        )

    async def _ask(
        self,
        judge: JudgeModel,
        kind: str,
        template: str,
        read: Reader[V],
        vote: int = 0,
        **values: str | Sequence[Block],
    ) -> JudgeReply[V]:
        """Ask one role; blocks of material carry a mark that is made from all of them."""
        blocks = {k: v for k, v in values.items() if not isinstance(v, str)}
        blocks["conversation"] = [("question", self.question)]
        blanks = {k: v for k, v in values.items() if isinstance(v, str)}
        about = (digest(self.question.encode("utf-8", "surrogatepass")),)
        judge_reply = await wording.ask(
            judge, kind, template, blocks, read, about=about, vote=vote, media=(), **blanks
        )
        self.replies += judge_reply.evidence
        if judge_reply.verdict is None:
            logger.warning(
                "rubric: %s by '%s' gave nothing: %s", kind, judge.name, judge_reply.reason
            )
        return judge_reply


def _points(points: Sequence[Point]) -> list[Block]:
    return [("statements", wording.numbered([(point.id, point.text) for point in points]))]


def _text(reply: str) -> str:
    if not reply.strip():
        raise Unreadable("expected an answer, got nothing")
    return reply.strip()


def read_items(text: str, question: str, points: Sequence[Point], rules: Rules) -> Rubric:
    """The rubric in a reply; raises `Unreadable` with every rule that it breaks."""
    known = {point.id: point for point in points}
    items = tuple(_item(row, known) for row in read_list(text, _ITEM))
    try:
        rubric = Rubric(question, items, tuple(points))
    except UserError as error:
        raise Unreadable(str(error)) from None
    broken = rubric.validate(rules)
    if broken:
        raise Unreadable(
            f"expected a rubric that keeps the rules, got {'; '.join(map(str, broken))}"
        )
    return rubric


def read_findings(text: str) -> dict[str, bool | None]:
    """What an auditor decided, by check; raises `Unreadable` where the word on safety is missing."""
    said = read_list(text, _FINDING)
    found = {row["check"]: row["holds"] for row in said if row["check"] in (*CHECKS, SAFETY)}
    if found.get(SAFETY) is None:
        raise Unreadable(f"expected checks and '{SAFETY}' with true or false, got {sorted(found)}")
    return found


def _names(key: str, value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _levels(key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Unreadable(f'expected "{key}" to describe the levels 0, 1 and 2, got {value!r:.40}')
    return {str(level): str(told) for level, told in value.items()}


def _bool_or_none(key: str, value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_ITEM = free_table("id", "title", "tier", "tag", points=_names, description=_levels)
_FINDING = free_table("check", holds=_bool_or_none)
_POINT = free_table("text", "kind", support=rows(free_table("quote", answer=anything)))
_CHECKED = free_table("point", "passage", "quote", holds=anything)


def _item(row: Mapping[str, Any], known: Mapping[str, Point]) -> RubricItem:
    name, rests_on = row["id"], row["points"] or ()
    unknown = [point for point in rests_on if point not in known]
    if not rests_on or unknown:
        got = f"'{unknown[0]}', which is none" if unknown else "none"
        raise Unreadable(f"expected item '{name}' to rest on statements, got {got}")
    sources = {(s.key, s.quote): s for point in rests_on for s in known[point].provenance}
    return RubricItem(
        id=name,
        title=row["title"],
        tier=row["tier"],
        description=row["description"] or {},
        tag=row["tag"],
        provenance=tuple(sources.values()),
        points=rests_on,
    )


Role = JudgeModel | Callable[[str], str]
Outcome = Literal["built", "rescued", "needs_human"]


@dataclass(frozen=True)
class Roles:
    """Who does what; the same model may have several roles, but counts as one voice."""

    writers: Sequence[Role]
    aggregators: Sequence[Role]
    author: Role
    checkers: Sequence[Role] = ()
    auditor: Role | None = None


@dataclass(frozen=True)
class Plan:
    """How much is asked, and when a statement or a rubric is good enough."""

    samples: int = 3
    """Answers of each writer, the styles in turn."""
    models: int = 2
    """Independent models that must support a statement, or"""
    sources: int = 1
    """as many retrieved passages."""
    same: float = 0.6
    """Share of common words from which two statements are one."""
    passages: int = 5
    quality: float = 0.8
    """Share of the audit's decided points under which a rubric is built again."""
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True)
class Built:
    """What came of a question."""

    rubric: Rubric | None
    outcome: Outcome
    audit: Audit | None = None
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()
    considered: tuple[Point, ...] = ()
    """Every statement that somebody found; the rubric's `points` are those in consensus."""
    references: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    """Raw replies of all roles, in the order of the stages."""


def as_judge(role: Role, name: str) -> JudgeModel:
    """A role as a judge model; a plain function is one with a script."""
    if isinstance(role, JudgeModel):
        return role
    reply = role
    own = str(getattr(role, "__name__", name))
    # Two nameless functions must not pass for one voice.
    title = name if own == "<lambda>" else own
    return JudgeModel(
        ScriptedLM(lambda said, _: reply("\n\n".join(m.text for m in said)), name=title)
    )


KINDS = ("important", "insight", "extended")
Similarity = Callable[[str, str], float]


class Candidate(NamedTuple):
    """One text that points are taken from: a model's answer or a passage."""

    text: str
    model: str = ""
    style: str = ""
    source: str = ""

    def quoted(self, quote: str) -> Source:
        """These words as support."""
        return Source(quote, "" if self.source else self.model, self.source)


class PointCheck(NamedTuple):
    """What a checker says of one point."""

    point: str
    holds: bool | None
    support: Source | None = None


def read_points(text: str, candidates: Sequence[Candidate]) -> list[Point]:
    """Points with support that stands in the numbered texts; raises `Unreadable` without any."""
    points = []
    for row in read_list(text, _POINT):
        support = _support(row["support"] or (), candidates)
        if row["text"] and support:
            kind = row["kind"] if row["kind"] in KINDS else KINDS[0]
            points.append(Point("", row["text"], kind, support))
    if not points:
        raise Unreadable("expected statements with quotations that stand in the texts, got none")
    return points


def merge_points(
    found: Sequence[Sequence[Point]], same: float = 0.6, alike: Similarity = similarity
) -> list[Point]:
    """The points of several readers, the same statement once, its supports joined.

    Single linkage: a statement joins every cluster that holds one like it. The text with most
    supports speaks for its cluster, and the gravest kind wins.
    """
    same = as_number("same", same, low=0)
    found = [as_list("found", reader) for reader in as_list("found", found)]
    clusters: list[list[Point]] = []
    for point in (point for reader in found for point in reader):
        near = [c for c in clusters if any(alike(point.text, p.text) >= same for p in c)]
        joined = [p for cluster in near for p in cluster] + [point]
        clusters = [c for c in clusters if not any(c is n for n in near)] + [joined]
    return [_joined(number, cluster) for number, cluster in enumerate(clusters, start=1)]


def in_consensus(
    point: Point, *, models: int = 2, sources: int = 1, objections: int = 0, checkers: int = 0
) -> bool:
    """Enough independent models or retrieved sources, and no majority of checkers against it."""
    for what, number in (
        ("models", models),
        ("sources", sources),
        ("objections", objections),
        ("checkers", checkers),
    ):
        as_whole(what, number, low=0)
    if checkers and objections * 2 > checkers:
        return False
    keys = {support.key for support in point.provenance}
    by_model = sum(key.startswith("model ") for key in keys)
    return by_model >= models or len(keys) - by_model >= sources


def read_point_checks(
    text: str, points: Sequence[Point], passages: Mapping[str, str]
) -> dict[str, PointCheck]:
    """A checker's word on points; support by a passage needs words that stand in it."""
    known = {point.id for point in points}
    found: dict[str, PointCheck] = {}
    for row in read_list(text, _CHECKED):
        name, holds = row["point"], row["holds"]
        if name not in known or not (holds is None or isinstance(holds, bool)):
            continue
        passage, quote = row["passage"], row["quote"]
        stands = holds is True and stands_in(quote, passages.get(passage, ""))
        found[name] = PointCheck(name, holds, Source(quote, source=passage) if stands else None)
    if not found:
        raise Unreadable(f"expected a word on the statements {', '.join(sorted(known))}, got none")
    return found


def checked_points(
    points: Sequence[Point], said: Sequence[Mapping[str, PointCheck]]
) -> list[Point]:
    """Points with the passages that checkers found for them."""
    result = []
    for point in points:
        more = [opinions[point.id].support for opinions in said if point.id in opinions]
        supports = [*point.provenance, *(support for support in more if support is not None)]
        unique = {(s.key, s.quote): s for s in supports}
        result.append(Point(point.id, point.text, point.kind, tuple(unique.values())))
    return result


def _support(
    given: Sequence[Mapping[str, Any]], candidates: Sequence[Candidate]
) -> tuple[Source, ...]:
    found: dict[tuple[str, str], Source] = {}
    for row in given:
        number, quote = row["answer"], row["quote"]
        if isinstance(number, bool) or not isinstance(number, int):
            continue
        if 1 <= number <= len(candidates) and stands_in(quote, candidates[number - 1].text):
            support = candidates[number - 1].quoted(quote)
            found.setdefault((support.key, quote), support)
    return tuple(found.values())


def _joined(number: int, cluster: Sequence[Point]) -> Point:
    speaker = max(cluster, key=lambda point: len(point.provenance))
    kind = min((point.kind for point in cluster), key=KINDS.index)
    supports = {(s.key, s.quote): s for point in cluster for s in point.provenance}
    return Point(f"p{number}", speaker.text, kind, tuple(supports.values()))


class AuditCheck(NamedTuple):
    """One question of the audit."""

    points: int
    asks: str


CHECKS: Mapping[str, AuditCheck] = {
    "right": AuditCheck(9, "what each item asks for is true and belongs to this question"),
    "supported": AuditCheck(3, "each item follows from the reference answers"),
    "atomic": AuditCheck(3, "each item asks for one thing"),
    "exclusive": AuditCheck(3, "no two items pay for the same thing"),
    "checkable": AuditCheck(3, "a reader can mark each item from the answer alone"),
    "exhaustive": AuditCheck(4, "every point that the references agree on is in an item"),
    "title": AuditCheck(3, "titles are short and say what the item asks for"),
    "tier": AuditCheck(3, "each item stands in the tier that it deserves, and tiers are filled"),
    "description": AuditCheck(4, "the three levels of each item can be told apart"),
}
TOTAL = sum(check.points for check in CHECKS.values())
SAFETY = "safety_omitted"


class Audit(NamedTuple):
    """What a rubric earned, of what could be decided."""

    earned: int
    possible: int
    """Points of the checks that were decided; 35 where all of them were."""
    failed: tuple[str, ...]
    is_vetoed: bool = False
    """A safety item that the question needs is not there."""

    @property
    def quality(self) -> float:
        """The share of the decided points."""
        return self.earned / self.possible if self.possible else 0.0


def audit_points(findings: Mapping[str, bool | None], safety_omitted: bool = False) -> Audit:
    """The points of an audit; a check that is None or not there was not decided.

    An omitted safety item costs all points.
    """
    if not isinstance(findings, Mapping):
        raise refused("findings", findings, "what was found by check")
    for name, found in findings.items():
        as_word("findings", name, tuple(CHECKS))
        if found not in (True, False, None):
            raise refused("findings", found, "true, false or None")
    decided = {name: found for name, found in findings.items() if found is not None}
    possible = sum(CHECKS[name].points for name in decided)
    earned = sum(CHECKS[name].points for name, holds in decided.items() if holds)
    failed = tuple(name for name in CHECKS if decided.get(name) is False)
    return Audit(0 if safety_omitted else earned, possible, failed, safety_omitted)


def rule_findings(rubric: Rubric, rules: Rules | None = None) -> dict[str, bool]:
    """The checks that follow from the rubric itself."""
    broken = {one.rule for one in rubric.validate(rules)}
    counts = {"items", "tier", *(tier.value for tier in Tier)}
    findings = {
        "exclusive": "exclusive" not in broken,
        "title": "title" not in broken,
        "tier": not broken & counts,
        "description": not broken & {"description", "levels"},
    }
    if rubric.points:
        findings["exhaustive"] = "exhaustive" not in broken
        findings["supported"] = all(item.provenance for item in rubric.items)
    return findings


def rule_audit(rubric: Rubric, rules: Rules | None = None) -> Audit:
    """The audit without a reader: only what a rule can decide."""
    return audit_points(rule_findings(rubric, rules))


def joined_audit(
    rubric: Rubric,
    said: Mapping[str, bool | None],
    *,
    safety_omitted: bool = False,
    rules: Rules | None = None,
) -> Audit:
    """A reader's findings with those of the rules; what a rule refutes no reader can pass."""
    by_rule = rule_findings(rubric, rules)
    both = {
        name: None
        if name not in by_rule and said.get(name) is None
        else by_rule.get(name, True) and said.get(name, True) is not False
        for name in CHECKS
    }
    return audit_points(both, safety_omitted)
