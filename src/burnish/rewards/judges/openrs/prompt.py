"""Prompts of OpenRS in English and Chinese, and the one JSON block that must come back.

    text = prompt("pair", "en", mark, request=..., first=..., second=..., rubric=...)
    table = marked_object(reply, mark)

The mark is made from the texts themselves, so a response cannot know it in advance; only a block
that carries it counts, so a verdict that a response brings along and the judge quotes is no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from burnish.rewards.judges.reading import (
    Maybe,
    Table,
    anything,
    free_table,
    loose_text,
    marked_object,
    rows,
)
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
    keys = [key for key in table if key in ("question_analysis", "rubric_compares")]
    if keys == ["rubric_compares", "question_analysis"]:
        raise Unreadable("expected question_analysis before rubric_compares: analyse, then decide")
    return _JUDGEMENT.read(table)


def _analysis(key: str, value: Any) -> Analysis:
    value = value if isinstance(value, Mapping) else {"analysis": value}
    if not loose_text(key, value.get("analysis")):
        raise Unreadable(f'expected "{key}" to hold a text "analysis"')
    return _ANALYSIS.read(value)


def _needs(key: str, value: Any) -> tuple[str, ...]:
    return tuple(loose_text(key, one) for one in (value if isinstance(value, list) else [value]))


def _compares(key: str, value: Any) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = rows(_CRITERION)(key, value)
    if not LEAST <= len(found) <= MOST:
        raise Unreadable(f"expected {LEAST} to {MOST} criteria, got {len(found)}")
    return found


def _judgement(
    question_analysis: Analysis,
    rubric_list: Sequence[Mapping[str, Any]],
    rubric_compares: Sequence[Mapping[str, Any]],
) -> Judgement:
    planned = {loose_text("title", item.get("title")): item for item in rubric_list}
    criteria = (_comparison(item, n, planned) for n, item in enumerate(rubric_compares))
    return Judgement(question_analysis, tuple(criteria))


_LOOSE = Maybe(loose_text)
_CRITERION = free_table(
    *("title", "evidence", "reason", "description"),
    **dict.fromkeys(("type", "winner", "chosen", "score"), anything),
)
_ANALYSIS = Table(
    Analysis,
    open=True,
    analysis=loose_text,
    question_type=_LOOSE,
    primary_need=_LOOSE,
    secondary_needs=Maybe(_needs, ()),
    user_context=_LOOSE,
)
_JUDGEMENT = Table(
    _judgement,
    open=True,
    question_analysis=_analysis,
    rubric_list=Maybe(rows(_CRITERION), ()),
    rubric_compares=_compares,
)


def _comparison(
    item: Mapping[str, Any], place: int, planned: Mapping[str, Mapping[str, Any]]
) -> Comparison:
    where = f"criterion {place + 1}"
    try:
        # Replies to the reference code's prompt say `chosen` for the winner.
        given = item if item["winner"] is not None else {**item, "winner": item["chosen"]}
        read = read_criterion(given, place)
    except InvalidCriterion as error:
        raise Unreadable(str(error)) from None
    if not item["title"]:
        raise Unreadable(f"{where}: expected a title")
    if abs(read.score) > HIGHEST:
        raise Unreadable(f"{where}: expected a score from -2 to 2, got {read.score:g}")
    if read.signed != 0 and not item["evidence"]:
        raise Unreadable(f"{where}: expected a quotation as evidence, got none")
    plan = planned.get(item["title"], {})
    return Comparison(
        item["title"],
        type_of(item["type"] or plan.get("type")),
        _LETTER[read.sign],
        read.score,
        item["evidence"],
        item["reason"],
        item["description"] or plan.get("description", ""),
    )
