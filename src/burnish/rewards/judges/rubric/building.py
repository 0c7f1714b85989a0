"""A rubric for a question, from the consensus of several models and from retrieved passages.

Four stages (QuarkMedBench, arXiv 2603.13691): models answer in several styles; readers take the
answers apart and checkers test the statements; one author writes items that rest on those statements
alone; a rubric that fails its audit is built once more with retrieved passages, and after that goes
to a person. A role is a `JudgeModel` or a function from a prompt to a reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from burnish.errors import UserError
from burnish.lm.replay import ScriptedLM
from burnish.records import Evidence, MediaPart
from burnish.rewards.judges import prompting
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Block, JudgeReply, Question, Reader, Unreadable, V
from burnish.rewards.judges.reading import free_table, read_list
from burnish.rewards.judges.rubric.formula import Tier
from burnish.rewards.judges.rubric.items import (
    CHECKS,
    SAFETY,
    Audit,
    Candidate,
    Point,
    PointCheck,
    Rubric,
    RubricItem,
    Rules,
    Tag,
    checked_points,
    in_consensus,
    joined_audit,
    merge_points,
    read_findings,
    read_point_checks,
    read_points,
    rule_audit,
)
from burnish.rewards.scorer import gather
from burnish.seeds import digest
from burnish.tools.search import Retriever

PROMPTS = Path(__file__).parent / "prompts"


STYLES = {
    "basic": "Answer the question for the person who asked it, in plain words.",
    "professional": "Answer as an expert of the field would, with what experts check first.",
    "insight": "Answer, and add what most answers overlook and the person should know.",
}


def wording(name: str) -> str:
    return prompting.wording(name, PROMPTS)


async def ask(
    judge: JudgeModel,
    kind: str,
    template: str,
    material: Mapping[str, Sequence[Block]],
    read: Reader[V],
    *,
    about: tuple[str, ...] = (),
    vote: int = 0,
    media: Sequence[MediaPart] = (),
    **blanks: str,
) -> JudgeReply[V]:
    """Ask by a prompt file, its material in blocks under one mark."""
    messages = prompting.fenced(wording(template), material, media, **blanks)
    return await judge.ask(Question(kind, messages, about, vote), read)


def rubric_text(rubric: Rubric, ids: Iterable[str] | None = None) -> str:
    """The items as a judge sees them: no weights, no provenance."""
    wanted = None if ids is None else set(ids)
    lines = []
    for item in rubric.items:
        if wanted is None or item.id in wanted:
            lines.append(f"item {item.id} ({item.tier}): {item.title}")
            lines += [
                f"  level {level}: {item.description[level]}" for level in sorted(item.description)
            ]
    return "\n".join(lines)


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

        self.question, self.plan, self.retriever = question, plan, retriever
        self.writers, self.readers, self.checkers = (
            [as_judge(role, f"{what} {n}") for n, role in enumerate(own, start=1)]
            for what, own in (
                ("writer", roles.writers), ("reader", roles.aggregators), ("checker", roles.checkers)
            )
        )  # fmt: skip
        self.author = as_judge(roles.author, "author")
        self.auditor = None if roles.auditor is None else as_judge(roles.auditor, "auditor")
        self.replies: list[Evidence] = []

    async def sample(self) -> tuple[Candidate, ...]:
        """Answers of every writer, in the three styles in turn."""
        styles = list(STYLES.items())
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
        if audit.quality is not None and audit.quality >= self.plan.quality:
            return replace(made, outcome="built")
        told = f"audit {audit.earned} of {audit.possible}: {', '.join(audit.failed)}"
        nothing = "the audit decided nothing, so nothing speaks for the rubric"
        return replace(made, reason=nothing if audit.quality is None else told)

    async def _fuse(self, candidates: Sequence[Candidate]) -> tuple[list[Point], list[Point]]:
        if not candidates:
            return [], []
        texts = [(f"answer {n + 1}", c.text) for n, c in enumerate(candidates)]
        read = partial(read_points, candidates=candidates)
        ask = partial(self._ask, kind="rubric_points", template="extract", read=read, answers=texts)
        judge_reply = await gather([partial(ask, reader) for reader in self.readers])
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
        passages: dict[str, str] = {}
        if self.retriever is not None:
            for text in (self.question, *(point.text for point in points)):
                hits = self.retriever.search(text, self.plan.passages)
                passages |= {passage.id: passage.text for passage in hits}
        blocks = [(f"passage {name}", text) for name, text in passages.items()]
        ask = partial(
            self._ask,
            kind="rubric_check",
            template="check",
            read=partial(read_point_checks, points=points, passages=passages),
            points=_points(points),
            passages=blocks or "No passage was found.",
        )
        replies = await gather([partial(ask, checker) for checker in self.checkers])
        return [one.verdict for one in replies if one.verdict is not None]

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
            tags=", ".join(Tag),
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
            rubric=[("rubric", rubric_text(rubric))],
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
        judge_reply = await ask(
            judge, kind, template, blocks, read, about=about, vote=vote, media=(), **blanks
        )
        self.replies += judge_reply.evidence
        if judge_reply.verdict is None:
            logger.warning(
                "rubric: %s by '%s' gave nothing: %s", kind, judge.name, judge_reply.reason
            )
        return judge_reply


def _points(points: Sequence[Point]) -> list[Block]:
    return [("statements", "\n".join(f"{point.id}: {point.text}" for point in points))]


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
        broken = "; ".join(map(str, rubric.validate(rules)))
    except UserError as error:
        broken = str(error)
    if broken:
        raise Unreadable(f"expected a rubric that keeps the rules, got {broken}")
    return rubric


def _names(key: str, value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _levels(key: str, value: Any) -> dict[str, str]:
    return (
        {str(level): str(told) for level, told in value.items()} if isinstance(value, dict) else {}
    )


_ITEM = free_table("id", "title", "tier", "tag", points=_names, description=_levels)


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
