"""What judges and writers of rubrics are asked (`prompts/`), and the texts that fill it.

    ask(judge, "rubric_marks", "mark", {"rubric": [("items", text)], ...}, read, about=about)

Material stands in blocks between lines that carry a mark made of all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from burnish.records import MediaPart
from burnish.rewards.judges import prompting
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import JudgeReply, Question, Reader, V
from burnish.rewards.judges.rubric.items import Rubric, Tag

_SPACE = re.compile(r"\s+")
_QUOTES = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'"})
PROMPTS = Path(__file__).parent / "prompts"

Block = tuple[str, str]
"""A name and material that stands between marked lines."""

STYLES = {
    "basic": "Answer the question for the person who asked it, in plain words.",
    "professional": "Answer as an expert of the field would, with what experts check first.",
    "insight": "Answer, and add what most answers overlook and the person should know.",
}


def wording(name: str) -> str:
    """A prompt file of this method."""
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
    mark = prompting.mark_for(*(text for blocks in material.values() for _, text in blocks))
    for name, blocks in material.items():
        blanks[name] = "\n\n".join(prompting.fence(title, text, mark) for title, text in blocks)
    text = prompting.fill(wording(template), {**blanks, "mark": mark})
    messages = prompting.as_user(text, media, mark)
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


def stands_in(quote: str, text: str) -> bool:
    """Whether the words stand in the text; spaces, case and the shape of quotation marks do not count."""
    wanted = _flat(quote).strip(" .…")
    return bool(wanted) and wanted in _flat(text)


def tag_names() -> str:
    """The tags, for a prompt."""
    return ", ".join(tag.value for tag in Tag)


def numbered(rows: Sequence[tuple[str, str]]) -> str:
    """`id: text` lines."""
    return "\n".join(f"{name}: {text}" for name, text in rows)


def _flat(text: str) -> str:
    return _SPACE.sub(" ", text.translate(_QUOTES)).casefold()
