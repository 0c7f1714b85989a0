"""Who takes part in distilling a skill: analysts, proposer, merger, anchor, fixer; here a language model.

Every call goes through a `JudgeModel`: limits, retries and cost are those of the model's own pool,
an unreadable reply is asked for once more, and with `cache` as the journal a distillation that was
killed continues without asking anything twice. Own roles are objects with the same methods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from burnish.agents.trace2skill.edits import TEXTS, Edit, headings
from burnish.agents.trace2skill.patches import (
    Patch,
    cite,
    numbered,
    read_patch,
    read_patch_loosely,
)
from burnish.agents.trace2skill.traces import Trace
from burnish.boundary import public
from burnish.records import Status
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    Question,
    Unreadable,
    as_user,
    fill,
    mark_for,
    wording,
)
from burnish.rewards.judges.reading import after_thoughts
from burnish.rewards.judges.skill_rm.package import MANUAL
from burnish.seeds import derive

FAILURES = {"failure cause": "failure_cause", "failure memory": "failure_memory"}
SUCCESSES = {"success memory": "success_memory"}
_FIELDS = {
    "title": "title",
    "description": "description",
    "content": "content",
    "relation to skill": "relation_to_skill",
    "skill reflection": "skill_reflection",
}
_ITEM = re.compile(
    r"\s*#+\s+\**(failure cause|failure memory|success memory) item\s+(\d+)\**:?\s*", re.I
)
_FIELD = re.compile(rf"\s*#+\s+\**({'|'.join(_FIELDS)})\**:?\s*", re.I)
_RULE = re.compile(r"\s*(?:-{3,}|\*{3,}|_{3,})")


@public
def parse_failures(text: str) -> list[dict[str, Any]]:
    """Causes and lessons of one failed trajectory: type, number, title, description, content.

    >>> parse_failures("## Failure Cause Item 1\\n### Title\\nWrong sheet\\n### Content\\nIt wrote to A.")
    [{'type': 'failure_cause', 'number': 1, 'title': 'Wrong sheet', 'description': '', 'content': 'It wrote to A.'}]
    """
    return _report_items(text, FAILURES)


@public
def parse_successes(text: str) -> list[dict[str, Any]]:
    """Lessons of one trajectory that passed: type, number, title, description, content.

    >>> parse_successes("# Success Memory Item 1\\n## Title\\nRead first\\n## Content\\nLook at row 1.")[0]["title"]
    'Read first'
    """
    return _report_items(text, SUCCESSES)


def _report_items(text: str, kinds: dict[str, str]) -> list[dict[str, Any]]:
    try:
        own = after_thoughts(text)
    except Unreadable:
        return []
    fenced = re.fullmatch(r"```\w*\n(.*?)\n?```", own, re.DOTALL)
    if fenced is not None:  # a fence around all of it
        own = fenced[1] if "\n```" not in fenced[1] else own[own.index("\n") + 1 : -3]
    # A report that begins with a line of dashes has no front matter.
    lines = ["", *own.split("\n")]
    known = headings(lines)
    items: list[tuple[dict[str, Any], dict[str, list[str]]]] = []
    parts: dict[str, list[str]] | None = None
    field = ""
    for place, line in enumerate(lines):
        item = _ITEM.fullmatch(line) if place in known else None
        name = _FIELD.fullmatch(line) if place in known else None
        if item is not None:
            parts, field = None, ""
            if item[1].lower() in kinds:
                parts = {}
                items.append(({"type": kinds[item[1].lower()], "number": int(item[2])}, parts))
        elif name is not None and parts is not None:
            field = _FIELDS[name[1].lower()]
            parts.setdefault(field, [])
        elif parts is not None and field:
            parts[field].append(line)
    found = []
    for begin, own_parts in items:
        texts = {}
        for key, inside in own_parts.items():
            whole = "\n".join(inside).strip()
            rest, _, last = whole.rpartition("\n")
            # A line across the page ends an item.
            texts[key] = rest.strip() if rest and _RULE.fullmatch(last) else whole
        usual = {name: texts.pop(name, "") for name in ("title", "description", "content")}
        found.append(begin | usual | {name: text for name, text in texts.items() if text})
    return found


PROMPTS = Path(__file__).parent / "prompts"
MOST_LESSONS = 3
Files = Mapping[str, str]
Check = Callable[[Trace, str], Awaitable[bool | None]]
"""Whether a corrected result of a failed trajectory passes; None: it could not be checked."""


class Record(NamedTuple):
    trace: Trace
    items: tuple[dict[str, Any], ...]
    is_verified: bool = False
    """True where the analyst's own fix passed the check."""


UNREADABLE = "not readable"
"""How the reason begins where a reply did not keep to its form."""


class Refused(NamedTuple):
    reason: str
    raw: str = ""
    is_outside: bool = False
    """True where a server failed, not the model: the same call may succeed next time."""


class Roles(Protocol):
    """What a distillation asks for; None or `Refused` where there is nothing."""

    async def analyse(self, trace: Trace, files: Files) -> Record | Refused: ...

    async def propose(self, records: Sequence[Record], files: Files) -> Patch | Refused: ...

    async def merge(
        self, patches: Sequence[Patch], files: Files, level: int
    ) -> Sequence[Patch] | Refused: ...

    async def anchor(self, edit: Edit, text: str) -> Edit | Refused | None: ...

    async def fix(self, files: Files, problems: Sequence[str]) -> Patch | Refused: ...


class LMRoles:
    """All roles played by one language model."""

    def __init__(self, model: JudgeModel, *, check: Check | None = None) -> None:
        """`check` re-evaluates the analyst's fix: a failure counts only when it passes. Without it
        every analysis is made from the log alone."""
        self.model, self.check = model, check

    async def analyse(self, trace: Trace, files: Files) -> Record | Refused:
        """Causes and lessons of a failure whose fix passes, or the lessons of a success."""
        asks = not trace.passed and self.check is not None
        blanks = {
            "instruction": trace.instruction,
            "log": trace.log,
            "skill": shown(files),
            "fix_request": _FIX if asks else "",
        }
        kind = "analyse_success" if trace.passed else "analyse_failure"
        parse = parse_successes.plain if trace.passed else parse_failures.plain
        found = await self._ask(kind, blanks, (trace.id,), partial(_items, parse=parse))
        if isinstance(found, Refused):
            return found
        items, text = found
        if not asks or self.check is None:
            return Record(trace, items)
        _, opened, rest = text.partition("```fixed\n")
        fixed, closed, _ = rest.partition("\n```")
        verdict = await self.check(trace, fixed) if opened and closed else None
        if verdict:
            return Record(trace, items, True)
        return Refused("its fix does not pass" if verdict is False else "no fix to check", text)

    async def propose(self, records: Sequence[Record], files: Files) -> Patch | Refused:
        """A patch from a few records; each of its edits is supported by all of them."""
        lessons = _json([list(record.items) for record in records])
        ids = tuple(record.trace.id for record in records)
        blanks = {"skill": shown(files), "lessons": lessons, "count": str(len(records))}
        found = await self._patch("propose", blanks, ids)
        if isinstance(found, Refused):
            return found
        edits = tuple({**edit, "source_ids": sorted(ids)} for edit in found.edits)
        return found._replace(edits=edits, source_ids=tuple(sorted(ids)))

    async def merge(
        self, patches: Sequence[Patch], files: Files, level: int
    ) -> Sequence[Patch] | Refused:
        """One patch out of several; edits that cite nothing are left out, and listed in `dropped`."""
        rows = [{"id": name} | _plain(edit) for name, edit in numbered(patches)]
        blanks = {"skill": shown(files), "patches": _json(rows)}
        ids = tuple(sorted({one for patch in patches for one in patch.source_ids}))
        found = await self._patch("merge", blanks, ids, cited=True)
        if isinstance(found, Refused):
            return found
        cited = cite(found, patches, level)
        if not cited.kept:
            what = "no edit of the merge names what it was made from"
            return Refused(what if found.edits else "the merge has no edits")
        kept, dropped = tuple(cited.kept), tuple(cited.dropped)
        return [found._replace(edits=kept, source_ids=ids, dropped=dropped)]

    async def anchor(self, edit: Edit, text: str) -> Edit | Refused | None:
        """The edit with targets that are in the text; None where the model finds none either."""
        blanks = {"file": str(edit.get("file")), "text": text, "edit": _json(_plain(edit))}
        found = await self._patch("anchor", blanks, tuple(edit.get("source_ids", ())))
        if isinstance(found, Refused):
            return found
        if not found.edits:
            return None
        names = ("target_section", "target_text", "old_text", "after_section")
        return edit | {name: found.edits[0][name] for name in names if name in found.edits[0]}

    async def fix(self, files: Files, problems: Sequence[str]) -> Patch | Refused:
        """A patch against what a check of the skill has found."""
        listed = "\n".join(f"- {line}" for line in problems)
        return await self._patch("fix", {"skill": shown(files), "problems": listed}, ())

    async def draft(
        self, instructions: Sequence[str], name: str, description: str
    ) -> str | Refused:
        """A first SKILL.md from a few tasks, for creation."""
        tasks = "\n".join(f"- {' '.join(text.split())[:400]}" for text in instructions)
        found = await self._ask("draft", {"tasks": tasks}, (), _markdown)
        if isinstance(found, Refused):
            return found
        front = json.dumps(description, ensure_ascii=False)
        return f"---\nname: {name}\ndescription: {front}\n---\n\n{found.strip()}\n"

    async def _patch(
        self, kind: str, blanks: Mapping[str, str], about: tuple[str, ...], *, cited: bool = False
    ) -> Patch | Refused:
        form = wording("format", PROMPTS)
        read = partial(read_patch, cited=cited)
        found: Patch | Refused = await self._ask(kind, {**blanks, "format": form}, about, read)
        if isinstance(found, Refused) and found.raw:
            rest = read_patch_loosely(found.raw, cited=cited)
            return rest if rest.edits else found
        return found

    async def _ask(
        self,
        kind: str,
        blanks: Mapping[str, str],
        about: tuple[str, ...],
        read: Callable[[str], Any],
    ) -> Any:
        mark = mark_for(*blanks.values())
        # The wording of a format is ours and has braces of its own; other blanks are data.
        text = fill(wording(kind, PROMPTS), {**blanks, "mark": mark})
        # Equal words about other trajectories are another draw: support must be independent.
        vote = derive(kind, *about) % 2**31
        reply = await self.model.ask(Question(kind, as_user(text), about, vote), read)
        if reply.verdict is not None:
            return reply.verdict
        raw = reply.replies[-1].text if reply.replies else ""
        if reply.status is not Status.PARSE_ERROR:
            is_outside = reply.status in (Status.INFRA_ERROR, Status.TIMEOUT)
            return Refused(f"{reply.status}: {reply.reason}", is_outside=is_outside)
        return Refused(f"{UNREADABLE}: {reply.reason}", raw)


_FIX = (
    "First write the corrected result that would have passed, alone between a line ```fixed and a "
    "line ```."
)


def _items(
    text: str, parse: Callable[[str], list[dict[str, Any]]]
) -> tuple[tuple[dict[str, Any], ...], str]:
    found = parse(text)
    lessons = [item for item in found if item["type"] != "failure_cause"][:MOST_LESSONS]
    kept = [
        item
        for item in found
        if (item["type"] == "failure_cause" or item in lessons)
        and (item["content"] or item["description"])
    ]
    if not kept:
        raise Unreadable("expected items such as '# Failure Memory Item 1' with Title and Content")
    return tuple(kept), text


def _markdown(text: str) -> str:
    own = after_thoughts(text)
    if own.startswith("```") and own.endswith("```"):
        own = own.split("\n", 1)[-1][:-3].strip()
    if "#" not in own:
        raise Unreadable("expected Markdown with a heading")
    return own


def _plain(edit: Edit) -> dict[str, Any]:
    return {key: edit[key] for key in ("op", *TEXTS) if edit.get(key)}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def shown(files: Files) -> str:
    """A skill's text files for a prompt, SKILL.md first."""
    names = sorted(files, key=lambda path: (path != MANUAL, path))
    return "\n\n".join(f"--- file {name} ---\n{files[name].rstrip()}" for name in names)
