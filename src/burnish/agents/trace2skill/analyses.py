"""Reports of analysts, read from Markdown: causes and lessons of failures, lessons of successes.

    parse_failures("# Failure Memory Item 1\\n## Title\\nRead back\\n## Content\\nOpen the file again.")

An item is a heading such as `# Failure Cause Item 2` of any level, with the headings Title,
Description and Content below it (the released parser of failures takes level 1 alone). Headings in
fenced code are text. A thinking part and a fence around the whole reply are left out.
"""

from __future__ import annotations

import re
from typing import Any

from burnish.agents.trace2skill.edits import headings
from burnish.arguments import as_text
from burnish.rewards.judges.prompting import Unreadable
from burnish.rewards.judges.reading import after_thoughts

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
_RULE = re.compile(r"\n\s*(?:---+|\*\*\*+|___+)\s*\Z")


def parse_failures(text: str) -> list[dict[str, Any]]:
    """Causes and lessons of one failed trajectory: type, number, title, description, content.

    >>> parse_failures("## Failure Cause Item 1\\n### Title\\nWrong sheet\\n### Content\\nIt wrote to A.")
    [{'type': 'failure_cause', 'number': 1, 'title': 'Wrong sheet', 'description': '', 'content': 'It wrote to A.'}]
    """
    return _items(text, FAILURES)


def parse_successes(text: str) -> list[dict[str, Any]]:
    """Lessons of one trajectory that passed: type, number, title, description, content.

    >>> parse_successes("# Success Memory Item 1\\n## Title\\nRead first\\n## Content\\nLook at row 1.")[0]["title"]
    'Read first'
    """
    return _items(text, SUCCESSES)


def _items(text: str, kinds: dict[str, str]) -> list[dict[str, Any]]:
    # A report that begins with a line of dashes has no front matter.
    lines = ["", *_own_words(as_text("text", text)).split("\n")]
    known = headings(lines)
    items: list[dict[str, Any]] = []
    parts: dict[str, list[str]] | None = None
    field = ""
    for place, line in enumerate(lines):
        item = _ITEM.fullmatch(line) if place in known else None
        name = _FIELD.fullmatch(line) if place in known else None
        if item is not None:
            parts, field = None, ""
            if item[1].lower() in kinds:
                parts = {}
                items.append({"type": kinds[item[1].lower()], "number": int(item[2]), "": parts})
        elif name is not None and parts is not None:
            field = _FIELDS[name[1].lower()]
            parts.setdefault(field, [])
        elif parts is not None and field:
            parts[field].append(line)
    return [_item(item) for item in items]


def _item(item: dict[str, Any]) -> dict[str, Any]:
    parts = item.pop("")
    texts = {name: _RULE.sub("", "\n".join(lines).strip()).strip() for name, lines in parts.items()}
    usual = {name: texts.pop(name, "") for name in ("title", "description", "content")}
    return item | usual | {name: text for name, text in texts.items() if text}


def _own_words(text: str) -> str:
    """The reply without thoughts and without a fence around all of it."""
    try:
        own = after_thoughts(text)
    except Unreadable:
        return ""
    fenced = re.fullmatch(r"```\w*\n(.*?)\n?```", own, re.DOTALL)
    inner = fenced[1] if fenced is not None else own
    return inner if "\n```" not in inner or fenced is None else own[own.index("\n") + 1 : -3]
