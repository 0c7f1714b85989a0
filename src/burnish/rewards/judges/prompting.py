"""Prompts for judges: wording in files, texts to judge fenced by marks they cannot know.

    template = wording("pair")                              # prompts/pair.txt
    mark = mark_for(request, a.text, b.text)
    text = fill(template, {"mark": mark, "request": request, "first": a.text, "second": b.text})

Blanks are filled in one pass, so a response that contains `{second}` stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.seeds import digest

_BLANK = re.compile(r"\{([a-z_]+)\}")


PROMPTS = Path(__file__).parent / "prompts"


@cache
def wording(name: str, folder: Path = PROMPTS) -> str:
    """The prompt of that name that ships with the package, in a method's own folder or here."""
    return (folder / f"{name}.txt").read_text(encoding="utf-8")


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with every known blank filled, in one pass over the template alone."""
    return _BLANK.sub(lambda found: values.get(found[1], found[0]), template)


def check_template(template: str, blanks: Sequence[str], owner: str) -> None:
    """Refuse a wording that leaves out what the judge must see."""
    missing = [name for name in blanks if f"{{{name}}}" not in template]
    if missing:
        expected = ", ".join(f"{{{name}}}" for name in blanks)
        raise UserError(f"{owner}: the prompt has no {{{missing[0]}}}; expected {expected}")


def mark_for(*texts: str) -> str:
    """A mark that none of the texts contains and none could have been written to contain."""
    mark = digest(*(text.encode("utf-8", "surrogatepass") for text in texts))
    while any(mark in text for text in texts):
        mark = digest(mark)
    return mark


def fence(label: str, text: str, mark: str) -> str:
    """The text between two lines that carry the mark."""
    return f"=== {label} {mark} ===\n{text}\n=== end of {label} {mark} ==="


def request_of(task: Task) -> str:
    """What the responses were written for, as a judge may see it: the conversation, no fields."""
    turns = task.for_judge().messages
    if len(turns) == 1 and turns[0].role == "user":
        return turns[0].content
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in turns)


def as_user(text: str) -> tuple[Message, ...]:
    """One message by the user: every chat model takes that."""
    return (Message("user", text),)
