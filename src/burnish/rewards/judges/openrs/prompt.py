"""Prompts of OpenRS in English and Chinese, and the one JSON block that must come back.

    text = prompt("pair", "en", mark, request=..., first=..., second=..., rubric=...)
    table = marked_object(reply, mark)

The mark is made from the texts themselves, so a response cannot know it in advance; only a block
that carries it counts, so a verdict that a response brings along and the judge quotes is no verdict.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from burnish.rewards.judges.openrs.extract import first_object, json_text, read_object
from burnish.rewards.judges.openrs.meta_rubric import Language
from burnish.rewards.judges.prompting import fill
from burnish.rewards.judges.questions import Unreadable
from burnish.rewards.judges.verdicts import after_thoughts
from burnish.seeds import digest

FOLDER = Path(__file__).parent / "prompts"
_MARKED = re.compile(r'\{\s*"mark"\s*:')


def prompt(name: str, language: Language, mark: str, **values: str) -> str:
    """A shipped prompt with its blanks filled in one pass."""
    return fill(template(name, language), {**values, "mark": mark})


@cache
def template(name: str, language: Language) -> str:
    """The wording that ships with the package."""
    return (FOLDER / f"{name}.{language}.md").read_text(encoding="utf-8")


@cache
def templates_hash() -> str:
    """Changes with any prompt."""
    return digest(*(file.read_bytes() for file in sorted(FOLDER.glob("*.md"))))


def marked_object(reply: str, mark: str | None) -> dict[str, Any]:
    """The last JSON object of a reply that carries the mark; `Unreadable` says what came instead.

    Without a mark (replies that were recorded elsewhere) it is the object that `extract_json` finds.
    """
    said = after_thoughts(reply)
    problem = ""
    if mark is not None:
        for found in reversed(list(_MARKED.finditer(said))):
            try:
                table = first_object(said[found.start() :])
            except ValueError as error:
                problem = problem or str(error)
                continue
            if table["mark"] == mark:
                return table
            problem = problem or f'expected "mark": "{mark}", got {table["mark"]!r:.40}'
    try:
        table = read_object(json_text(said))
    except ValueError as error:
        raise Unreadable(problem or str(error)) from None
    if mark is not None and table.get("mark") != mark:
        raise Unreadable(problem or f'expected "mark": "{mark}", got {table.get("mark")!r:.40}')
    return table
