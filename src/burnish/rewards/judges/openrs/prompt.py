"""Prompts of OpenRS in English and Chinese, and the one JSON block that must come back.

    text = prompt("pair", "en", mark, request=..., first=..., second=..., rubric=...)
    table = marked_object(reply, mark)

The mark is made from the texts themselves, so a response cannot know it in advance; only a block
that carries it counts, so a verdict that a response brings along and the judge quotes is no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from burnish.rewards.judges.openrs.aggregate import (
    InvalidCriterion,
    read_criterion,
    type_of,
)
from burnish.rewards.judges.openrs.meta_rubric import Language
from burnish.rewards.judges.prompting import Unreadable, fill
from burnish.rewards.judges.reading import marked_object
from burnish.seeds import digest

FOLDER = Path(__file__).parent / "prompts"


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


LEAST, ASKED, MOST = 1, 5, 15
"""Criteria that a reply must have, that the prompt asks for, and that a reply may have."""
HIGHEST = 2

_LETTER = {1: "A", -1: "B", 0: "S"}
_MIRROR = {"A": "B", "B": "A", "S": "S"}


class Analysis(Struct, frozen=True, omit_defaults=True):
    """What the request is, before any response is looked at."""

    analysis: str
    question_type: str = ""
    primary_need: str = ""
    secondary_needs: tuple[str, ...] = ()
    user_context: str = ""


class Comparison(Struct, frozen=True, omit_defaults=True):
    """One criterion and how the two responses compare on it."""

    title: str
    type: str
    winner: str
    """A, B, or S for the same."""
    score: float
    evidence: str = ""
    """The words that show it."""
    reason: str = ""
    description: str = ""

    def mirrored(self) -> Comparison:
        """The same, seen with the responses exchanged."""
        return Comparison(
            self.title,
            self.type,
            _MIRROR[self.winner],
            -self.score + 0.0,
            self.evidence,
            self.reason,
            self.description,
        )


class Judgement(Struct, frozen=True):
    """A whole reply."""

    analysis: Analysis
    criteria: tuple[Comparison, ...]


def read_comparison(reply: str, mark: str | None = None) -> Judgement:
    """The judgement of a reply; `Unreadable` names the first rule that it breaks."""
    table = marked_object(reply, mark)
    keys = list(table)
    for key in ("question_analysis", "rubric_compares"):
        if key not in table:
            raise Unreadable(f"expected the key '{key}', got {', '.join(keys)[:80] or 'no keys'}")
    if keys.index("question_analysis") > keys.index("rubric_compares"):
        raise Unreadable("expected question_analysis before rubric_compares: analyse, then decide")
    analysis = _analysis(table["question_analysis"])
    listed = _listed(table.get("rubric_list", []))
    compares = table["rubric_compares"]
    if not isinstance(compares, list):
        raise Unreadable(f"expected rubric_compares as a list, got {type(compares).__name__}")
    if not LEAST <= len(compares) <= MOST:
        raise Unreadable(f"expected {LEAST} to {MOST} criteria, got {len(compares)}")
    return Judgement(analysis, tuple(_comparison(c, i, listed) for i, c in enumerate(compares)))


def _analysis(value: Any) -> Analysis:
    if isinstance(value, str):
        value = {"analysis": value}
    if not isinstance(value, Mapping) or not _text(value.get("analysis")):
        raise Unreadable("expected question_analysis with a text 'analysis'")
    needs = value.get("secondary_needs")
    return Analysis(
        _text(value["analysis"]),
        _text(value.get("question_type")),
        _text(value.get("primary_need")),
        tuple(map(_text, needs)) if isinstance(needs, list) else (_text(needs),) if needs else (),
        _text(value.get("user_context")),
    )


def _listed(value: Any) -> dict[str, Mapping[str, Any]]:
    """The criteria of `rubric_list` by title."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise Unreadable("expected rubric_list as a list of tables")
    return {_text(item.get("title")): item for item in value}


def _comparison(item: Any, place: int, listed: Mapping[str, Mapping[str, Any]]) -> Comparison:
    try:
        read = read_criterion(item, place)
    except InvalidCriterion as error:
        raise Unreadable(str(error)) from None
    where = f"criterion {place + 1}"
    title = _text(item.get("title"))
    if not title:
        raise Unreadable(f"{where}: expected a title")
    if abs(read.score) > HIGHEST:
        raise Unreadable(f"{where}: expected a score from -2 to 2, got {read.score:g}")
    evidence = _text(item.get("evidence"))
    if read.signed != 0 and not evidence:
        raise Unreadable(f"{where}: expected a quotation as evidence, got none")
    planned = listed.get(title, {})
    return Comparison(
        title,
        type_of(item.get("type") or planned.get("type")),
        _LETTER[read.sign],
        read.score,
        evidence,
        _text(item.get("reason")),
        _text(item.get("description") or planned.get("description")),
    )


def _text(value: Any) -> str:
    """A value as one text; quotations may come as a list or by response."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_text(part)}" for key, part in value.items() if part)
    if isinstance(value, list):
        return "; ".join(_text(part) for part in value if part)
    text = str(value).strip()
    # The dots of the form that the prompt shows, copied back, say nothing.
    return "" if not text.strip(".… ") else text
