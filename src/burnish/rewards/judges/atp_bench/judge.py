"""Is a plan of pictures good? Validity by code, then three judges (ATP-Bench with MAM).

An answer calls tools in place of pictures (`parse_calls`). What can be decided by rule is: names,
arguments, image ids, repetitions, quoted calls. Then a judge is asked about each valid call with the text
around it, a second one lists where a picture is critical and absent, and a third one, who reads both
reports, scores the whole. Where the data says what is needed (`needs`), that replaces the second judge,
and without a model the first one too.

The paper (arXiv 2603.29902) names the three questions; prompts and formulas are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from burnish.boundary import Count, Share
from burnish.errors import ArgumentError, UserError
from burnish.records import Response, Status, Task
from burnish.rewards.judge_reward import JudgeRewardConfig, Renamed
from burnish.rewards.judges.atp_bench.calls import (
    TOOLS,
    Call,
    Located,
    Syntax,
    check_calls,
    execute_call,
    render_call,
    with_placeholders,
    without_marks,
)
from burnish.rewards.judges.atp_bench.needs import SECTIONS, NeedsOracle, folded
from burnish.rewards.judges.atp_bench.three_roles import (
    Case,
    Combine,
    Gap,
    Item,
    Mark,
    Missing,
    Passes,
    Present,
    Reports,
    RoleReply,
    ThreeRoles,
    Value,
)
from burnish.rewards.judges.build import Options, check_votes, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Question, as_user, fill, mark_for, request_of, wording
from burnish.rewards.judges.reading import (
    Maybe,
    Table,
    loose_text,
    read_reply,
    rows,
    text,
    truth,
    whole,
)
from burnish.rewards.scorer import Scorer, gather
from burnish.seeds import digest

PROMPTS = Path(__file__).parent / "prompts"
ROLES = ("precision", "missed", "quality")
TOO_MANY = "too_many"
BEST = 100
"""The quality judge's scale ends here."""
MOST_MISSED = 10
"""Places that the second judge may name."""
MOST_CALLS = 64
"""Calls that can be right; further ones are wrong (too_many) and nobody is asked about them."""
_BLANK_LINE = re.compile(r"\n[ \t]*\n\s*")
_WORD = re.compile(r"[^\W\d_]{4,}")


FAILS = "carried out, it fails: "


class AtpOptions(Options, frozen=True):
    value: Value = "f1"
    """f1, precision (right calls of all calls), recall (needs that are met), validity (valid calls of
    all), quality (the third judge alone) or final (quality and f1, by `w_quality`); 0 to 1."""
    syntax: Syntax = "tags"
    """tags: `<tool name="search">{...}</tool>`. json: `{"name": ..., "arguments": {...}}`. markdown:
    `![](tool://search?query=...)`."""
    oracle: Literal["auto", "missed", "both", "none"] = "auto"
    """Which roles the task's needs replace: the second (missed), the first two (both) or none. auto:
    both without a model; missed with one, where the task has needs."""
    needs: str = "needs"
    """Task field with the needs."""
    documents: str = "documents"
    """Task field with the documents: a list of texts, or one."""
    images: str = "images"
    """Task field with the images of the context: their captions in order, or their number."""
    passes: Passes = 1
    """How often the first two judges are asked, with other seeds; above 1 at a temperature above 0."""
    combine: Combine = "union"
    """union: a fault that any pass finds counts. majority: one that most passes find."""
    context: Count = 2
    """Paragraphs before and behind a call that the first judge sees."""
    execute: bool = False
    """Carry out the calls that are cheap: one whose image is not there, or whose program draws none in
    the sandbox, is wrong."""
    w_quality: Share = 0.5
    """Weight of the quality in the final score."""
    otherwise: float | None = None
    """The value where it is not defined, such as the precision of an answer without calls."""
    name: str = "atp"


class AtpConfig(JudgeRewardConfig, frozen=True, kw_only=True, tag="atp"):
    """A plan of tool calls in place of pictures (ATP-Bench): by the task's needs, or by three judges;
    0 to 1."""

    method: Literal["atp"] = msgspec.field(default="atp", name="with")
    model: str = ""
    """The judges; empty: the task's needs decide, and no model is asked."""
    both_orders: bool = False
    """Nothing is compared here."""

    def build(self, base: str | Path) -> Scorer:
        """The scorer: three judges, or the oracle alone."""
        judge = self.judge_model(base) if self.model else None
        scorer = atp_scorer(judge, read_options("atp", self.options, AtpOptions))
        return Renamed(scorer, self.name) if self.name not in ("", scorer.name) else scorer


def atp_scorer(judge: JudgeModel | None = None, options: AtpOptions | None = None) -> ThreeRoles:
    """The scorer of plans; without a judge by the task's needs alone.

    >>> atp_scorer().needs
    frozenset({'needs'})
    """
    chosen = options or AtpOptions()
    which = ("missed" if judge else "both") if chosen.oracle == "auto" else chosen.oracle
    if judge is None and which != "both":
        raise UserError(
            f"judge '{chosen.name}': oracle is '{chosen.oracle}' without a model, so nobody judges "
            "the calls; give a model, or leave oracle at auto."
        )
    if judge is not None:
        check_votes(judge, chosen.name, "passes", chosen.passes)
    oracle = NeedsOracle(chosen.needs)
    mam = None if judge is None else MultiAgent(judge, chosen)
    is_free = chosen.oracle == "auto" and mam is not None
    present: Present = oracle.present
    missing: Missing = oracle.missing
    if mam is not None and which != "both":
        present = mam.present
        missing = mam.missing if which == "none" else missing

    async def either(case: Case, number: int) -> RoleReply[Sequence[Gap]]:
        """The oracle where the task has needs, else the second judge."""
        has_needs = case.task.fields.get(chosen.needs) is not None
        return await (oracle if mam is None or has_needs else mam).missing(case, number)

    def check_task(task: Task) -> None:
        """Refuse what cannot be judged; where a judge is free to decide, a task may have no needs."""
        image_count(task.fields.get(chosen.images), task.id, chosen.images)
        is_open = is_free and task.fields.get(chosen.needs) is None
        if which != "none" and not is_open:
            oracle.needs_of(task)

    return ThreeRoles(
        chosen.name,
        parse=partial(read_plan, options=chosen),
        present=present,
        missing=either if is_free else missing,
        overall=None if mam is None or chosen.value not in ("quality", "final") else mam.overall,
        covers=None if mam is None else covers,
        value=chosen.value,
        passes=chosen.passes,
        combine=chosen.combine,
        w_quality=chosen.w_quality,
        otherwise=chosen.otherwise,
        needs=frozenset() if is_free or which == "none" else frozenset({chosen.needs}),
        inputs=frozenset({chosen.documents, chosen.images, SECTIONS}),
        check_task=check_task,
        settings=digest(
            msgspec.json.encode(chosen),
            judge.fingerprint if judge else "",
            *(wording(role, PROMPTS) for role in ROLES),
        ),
    )


def read_plan(task: Task, response: Response, options: AtpOptions) -> list[Item]:
    """The calls of an answer as items, through the deterministic layer."""
    given = task.fields.get(options.images)
    count = image_count(given, task.id, options.images)
    images = given if isinstance(given, list | tuple) else range(count)
    items = []
    right = 0
    for call, start, end in check_calls(response.text, TOOLS, count, syntax=options.syntax):
        reason = call.reason
        if call.valid:
            right += 1
            reason = TOO_MANY if right > MOST_CALLS else ""
            if options.execute and not reason:
                ran = execute_call(call, list(images))
                reason = FAILS + ran.reason if ran.ok is False else ""
        items.append(Item(call.tool, call.args, start, end, not reason, reason))
    return items


def image_count(given: Any, task: str = "", field: str = "images") -> int:
    """Number of images of a context: of a list, or the number itself; nothing is 0."""
    count = len(given) if isinstance(given, list | tuple) else given or 0
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UserError(
            f"task {task}: field '{field}' is {given!r:.60}; expected captions in a list, or a number."
        )
    return count


_FLAGS = ("needed", "right_tool", "arguments_ok", "placed_ok")
_CALL: Table[dict[str, Any]] = Table(
    dict,
    call=whole(0, 10**6),
    reason=Maybe(loose_text),
    needed=truth,
    right_tool=truth,
    arguments_ok=truth,
    placed_ok=truth,
)
_GAP: Table[Gap] = Table(
    lambda tool, **said: Gap(kind=tool, **said),
    where=text,
    intent=text,
    tool=Maybe(loose_text),
    reason=Maybe(loose_text),
)
_FORMS: dict[str, Table[Any]] = {
    "precision": _CALL,
    "missed": Table(dict, missed=rows(_GAP)),
    "quality": Table(dict, reasons=text, score=whole(0, BEST)),
}


class MultiAgent:
    """The three judges; each sees its own prompt and nothing of the others' words, save the third."""

    def __init__(self, judge: JudgeModel, options: AtpOptions) -> None:
        self.judge, self.options = judge, options

    async def present(self, case: Case, number: int) -> RoleReply[Mapping[int, Mark]]:
        """A question a valid call, with the text around it."""
        heard = await gather([partial(self._call, case, place, number) for place in case.valid])
        marks = {
            place: one.value for place, one in zip(case.valid, heard, strict=True) if one.value
        }
        evidence = tuple(line for one in heard for line in one.evidence)
        silent = [one for one in heard if one.value is None]
        warnings = tuple(one.reason for one in silent)
        if silent and not marks:
            return RoleReply(None, silent[0].status, silent[0].reason, evidence, warnings)
        return RoleReply(marks, evidence=evidence, warnings=warnings)

    async def _call(self, case: Case, place: int, number: int) -> RoleReply[Mark]:
        item = case.items[place]
        around = surroundings(case, place, self.options.context)
        try:
            call = render_call(item.kind, item.value)
        except ArgumentError as error:
            return RoleReply(None, Status.PARSE_ERROR, f"call {place + 1} cannot be shown: {error}")
        blanks = {"number": str(place + 1), "around": around, "call": call}
        reply = await self._ask("precision", case, number, blanks)
        said = reply.value
        if said is None:
            return replace(reply, reason=f"call {place + 1} has no verdict: {reply.reason}")
        if said["call"] != place + 1:
            why = f"the judge named call {said['call']} when asked about {place + 1}: ignored"
            return RoleReply(None, Status.PARSE_ERROR, why, reply.evidence)
        wrong = [name for name in _FLAGS if not said[name]]
        reason = f"not {', '.join(wrong)}: {said['reason']}" if wrong else said["reason"]
        return replace(reply, value=Mark(not wrong, reason))

    async def missing(self, case: Case, number: int) -> RoleReply[Sequence[Gap]]:
        """Places at which a picture is critical and absent."""
        blanks = {"most": str(MOST_MISSED), "answer": placeholders(case)}
        reply = await self._ask("missed", case, number, blanks)
        if reply.value is None:
            return reply
        gaps = reply.value["missed"]
        told = f"{len(gaps) - MOST_MISSED} missing places beyond {MOST_MISSED} were left out"
        warnings = (told,) * (len(gaps) > MOST_MISSED)
        return replace(reply, value=gaps[:MOST_MISSED], warnings=warnings)

    async def overall(self, case: Case, reports: Reports) -> RoleReply[float]:
        """The whole, by a judge that reads both reports."""
        marks = [
            f"[picture {n}] " + without_marks(_line(f"{item.kind}: {_said(mark)}"))
            for n, (item, mark) in enumerate(zip(case.items, reports.marks, strict=True), start=1)
        ]
        gaps = [_line(f"- {gap.where}: {gap.intent} ({gap.kind})") for gap in reports.gaps or ()]
        unknown = "(the second reviewer could not be read)" if reports.gaps is None else "(none)"
        blanks = {
            "answer": placeholders(case),
            "marks": "\n".join(marks[:MOST_CALLS]) or "(none)",
            "gaps": "\n".join(gaps) or unknown,
        }
        reply = await self._ask("quality", case, 0, blanks)
        return reply if reply.value is None else replace(reply, value=reply.value["score"] / BEST)

    async def _ask(
        self, role: str, case: Case, vote: int, blanks: dict[str, str]
    ) -> RoleReply[Any]:
        task = case.task.for_judge()
        values = {
            **blanks,
            "request": request_of(task),
            "documents": "\n\n".join(self._documents(task)) or "(none)",
            "images": self._images(task),
            "tools": "; ".join(f"{name} ({', '.join(args)})" for name, args in TOOLS.items()),
        }
        values["mark"] = mark_for(*values.values())
        about = (case.task.id, case.response.id)
        text = fill(wording(role, PROMPTS), values)
        messages = as_user(text, task.media, values["mark"])
        form = _FORMS[role]
        shown = (case.response.text, *self._documents(case.task))
        question = Question(role, messages, about, vote, form.schema)
        reply = await self.judge.ask(question, partial(read_reply, table=form, shown=shown))
        return RoleReply(reply.verdict, reply.status, reply.reason, reply.evidence)

    def _documents(self, task: Task) -> list[str]:
        given = task.fields.get(self.options.documents)
        listed = [given] if isinstance(given, str) else given
        return [str(one) for one in listed] if isinstance(listed, list | tuple) else []

    def _images(self, task: Task) -> str:
        given = task.fields.get(self.options.images)
        if not isinstance(given, list | tuple):
            count = image_count(given, task.id, self.options.images)
            return f"{count} images without captions" if count else "(none)"
        captions = (one.get("caption", "") if isinstance(one, Mapping) else one for one in given)
        lines = [f"{n}: {_line(str(one))}" for n, one in enumerate(captions)]
        return "\n".join(lines) or "(none)"


def covers(case: Case, gap: Gap, place: int) -> bool:
    """Whether a correct call serves a gap: the place that the gap names, words of the answer as the
    judge saw it, holds the call's placeholder; or the call shares a word of its intent and stands within
    a paragraph of that place, or in that very paragraph with the same tool."""
    item = case.items[place]
    text, where = placeholders(case), gap.where.strip()
    at = folded(text).find(folded(where)) if where else -1
    if at < 0:
        return False
    mark = text.find(f"[picture {place + 1}]")
    if at <= mark < at + len(where):
        return True
    parts = paragraphs(text)
    away = abs(_inside(parts, at) - _inside(parts, mark))
    own = " ".join(map(str, item.value.values())) if isinstance(item.value, Mapping) else ""
    is_alike = bool(_words(gap.intent) & _words(own))
    return (away == 0 and gap.kind == item.kind) or (away <= 1 and is_alike)


def surroundings(case: Case, place: int, context: int) -> str:
    """The paragraphs around a call, with placeholders for all calls in them."""
    whole_text = case.response.text
    parts = paragraphs(whole_text)
    at = _inside(parts, case.items[place].start)
    start, end = parts[max(0, at - context)][0], parts[min(len(parts) - 1, at + context)][1]
    end = max(end, case.items[place].end)
    pieces, last = [], start
    for n, item in enumerate(case.items, start=1):
        if start <= item.start and item.end <= end:
            pieces += [without_marks(whole_text[last : item.start]), f"[picture {n}]"]
            last = item.end
    return "".join([*pieces, without_marks(whole_text[last:end])])


def placeholders(case: Case) -> str:
    """The whole answer with `[picture 1]` and so on in place of its calls."""
    found = [
        Located(Call(item.kind, item.value, item.valid, item.reason), item.start, item.end)
        for item in case.items
    ]
    return with_placeholders(case.response.text, found)


def paragraphs(text: str) -> list[tuple[int, int]]:
    """Where paragraphs begin and end: by blank lines, or lines where there is no blank one."""
    breaks = [found.span() for found in _BLANK_LINE.finditer(text)]
    breaks = breaks or [found.span() for found in re.finditer(r"\n", text)]
    starts = [0, *(end for _, end in breaks)]
    ends = [*(start for start, _ in breaks), len(text)]
    return list(zip(starts, ends, strict=True))


def _inside(parts: Sequence[tuple[int, int]], at: int) -> int:
    return max((n for n, (start, _) in enumerate(parts) if start <= at), default=0)


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def _line(text: str) -> str:
    """A text on one line: it can begin no line of the prompt."""
    return " ".join(text.split())


def _said(mark: Mark | None) -> str:
    if mark is None:
        return "no verdict"
    return f"{'right' if mark.correct else 'wrong'}. {mark.reason}"


def build(judge: JudgeModel | None, options: Mapping[str, Any]) -> Scorer:
    return atp_scorer(judge, read_options("atp", options, AtpOptions))
