"""A rubric: items in four tiers, each with what its levels mean and where it comes from.

    rubric = Rubric.from_dict({"query": "...", "items": [...]})
    [broken.rule for broken in rubric.validate()]      # [] where every rule holds
    rubric.hash                                        # names this wording in every reward

The rules are QuarkMedBench's (arXiv 2603.13691): few enough items to mark, enough essentials to
matter, errors few and named, and no two items that pay for the same thing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.arguments import as_list, as_number, refused
from burnish.errors import UserError
from burnish.rewards.judges.rubric.score import LEVELS, MarkedItem, Tier
from burnish.seeds import digest

_WORD = re.compile(r"\w+")


class Tag(StrEnum):
    """What an item looks at."""

    INFORMATION = "information quality"
    EVIDENCE = "evidence support"
    SAFETY = "safety"
    READABILITY = "readability"
    CARE = "humane care"


class Source(Struct, frozen=True, omit_defaults=True):
    """One support of an item: a model's answer or a retrieved passage, and its own words."""

    quote: str
    model: str = ""
    source: str = ""
    """Id of a passage; empty where a model said it."""

    @property
    def key(self) -> str:
        """Who said it: supports of one key are not independent."""
        return f"source {self.source}" if self.source else f"model {self.model}"


class Point(Struct, frozen=True, omit_defaults=True):
    """One statement that good answers agree on."""

    id: str
    text: str
    kind: str = "important"
    """important, insight or extended."""
    provenance: tuple[Source, ...] = ()


class RubricItem(Struct, frozen=True, omit_defaults=True):
    """One thing that an answer is marked on."""

    id: str
    title: str
    tier: str
    description: dict[str, str]
    """What the levels "0", "1" and "2" mean; of a pitfall: no, a minor and a major error."""
    weight: float = 1.0
    tag: str = Tag.INFORMATION.value
    provenance: tuple[Source, ...] = ()
    points: tuple[str, ...] = ()
    """Ids of the points that the item rests on."""


class Rules(NamedTuple):
    """What a well-made rubric keeps to."""

    items: tuple[int, int] = (5, 15)
    least: tuple[tuple[str, int], ...] = (
        (Tier.ESSENTIAL, 2),
        (Tier.IMPORTANT, 1),
        (Tier.HIGHLIGHT, 1),
    )
    most_pitfalls: int = 2
    title_characters: int = 15
    overlap: float = 0.7
    """Share of common words from which two items count as one."""


class Broken(NamedTuple):
    """One rule that a rubric breaks."""

    rule: str
    where: str
    got: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where} {self.got}"


class Rubric(Struct, frozen=True, omit_defaults=True):
    """The items that answers to one query are marked on."""

    query: str
    items: tuple[RubricItem, ...]
    points: tuple[Point, ...] = ()
    """The consensus that the items were written from; empty for a rubric written by hand."""
    id: str = ""

    def __post_init__(self) -> None:
        twice = [name for name, count in Counter(i.id for i in self.items).items() if count > 1]
        if twice:
            raise UserError(
                f"rubric '{self.id or self.query[:40]}': two items have the id '{twice[0]}'; "
                "expected different ones."
            )
        for item in self.items:
            if not math.isfinite(item.weight):
                raise UserError(
                    f"rubric item '{item.id}': weight is {item.weight}; expected a finite number."
                )

    @classmethod
    def from_dict(cls, content: Mapping[str, Any] | str) -> Rubric:
        """A rubric from decoded JSON or JSON text; one line says what is wrong with it."""
        try:
            if isinstance(content, str):
                return msgspec.json.decode(content, type=cls, strict=False)
            return msgspec.convert(content, cls, strict=False)
        except UserError:
            raise
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UserError(
                f"rubric: {error}; expected query and items with id, title, tier and description."
            ) from None

    @property
    def hash(self) -> str:
        """Changes with anything that a judge or the formula reads."""
        return digest(msgspec.json.encode((self.query, self.items), order="deterministic"))

    def item(self, name: str) -> RubricItem | None:
        """The item of that id."""
        return next((item for item in self.items if item.id == name), None)

    def validate(self, rules: Rules | None = None) -> list[Broken]:
        """Every rule that is broken, by name; an empty list where the rubric is well made."""
        rules = rules or Rules()
        broken = _counts(self, rules)
        for item in self.items:
            broken += _of_item(item, rules)
        broken += _overlaps(self, rules)
        covered = {point for item in self.items for point in item.points}
        broken += [
            Broken("exhaustive", f"point '{point.id}'", "is in no item")
            for point in self.points
            if point.id not in covered
        ]
        return broken


def similarity(first: str, second: str) -> float:
    """The share of common words of two texts, 0 to 1 (Jaccard); 0 where one has none."""
    a, b = (set(_WORD.findall(text.lower())) for text in (first, second))
    return len(a & b) / len(a | b) if a and b else 0.0


def _counts(rubric: Rubric, rules: Rules) -> list[Broken]:
    found = Counter(item.tier for item in rubric.items)
    low, high = rules.items
    broken = []
    if not low <= len(rubric.items) <= high:
        broken.append(
            Broken("items", "the rubric", f"has {len(rubric.items)}, not {low} to {high}")
        )
    for tier, least in rules.least:
        if found[tier] < least:
            got = f"has {found[tier]}, not at least {least}"
            broken.append(Broken(str(tier), "the rubric", got))
    if found[Tier.PITFALL] > rules.most_pitfalls:
        got = f"has {found[Tier.PITFALL]}, not at most {rules.most_pitfalls}"
        broken.append(Broken(Tier.PITFALL.value, "the rubric", got))
    return broken


def _of_item(item: RubricItem, rules: Rules) -> list[Broken]:
    where = f"item '{item.id}'"
    titled = item.title.strip()
    levels = {str(level): item.description.get(str(level), "").strip() for level in LEVELS}
    checks = (
        ("id", bool(item.id.strip()), "has no id"),
        ("title", bool(titled), "has no title"),
        (
            "title",
            len(titled) <= rules.title_characters,
            f"has a title of {len(titled)} characters, not at most {rules.title_characters}",
        ),
        ("tier", item.tier in list(Tier), f"has the tier '{item.tier}'"),
        ("tag", item.tag in list(Tag), f"has the tag '{item.tag}'"),
        (
            "description",
            all(levels.values()) and set(item.description) == set(levels),
            f"describes {sorted(item.description)}, not the levels 0, 1 and 2",
        ),
        (
            "levels",
            len(set(levels.values())) == len(levels),
            "describes two levels in the same words",
        ),
        ("weight", item.weight != 0, "has weight 0"),
    )
    return [Broken(rule, where, got) for rule, holds, got in checks if not holds]


def _overlaps(rubric: Rubric, rules: Rules) -> list[Broken]:
    broken = []
    for place, one in enumerate(rubric.items):
        for other in rubric.items[:place]:
            same_title = one.title.strip().lower() == other.title.strip().lower()
            common = similarity(one.description.get("2", ""), other.description.get("2", ""))
            # An error is often what an essential asks for, turned round: other words count there.
            kinds = {one.tier == Tier.PITFALL, other.tier == Tier.PITFALL}
            if same_title or (len(kinds) == 1 and common >= rules.overlap):
                got = f"pays for the same as '{other.id}'"
                broken.append(Broken("exclusive", f"item '{one.id}'", got))
    return broken


ESSENTIAL_FROM, IMPORTANT_FROM = 8.0, 5.0


class PointsItem(NamedTuple):
    """An item worth points where it is met."""

    points: float
    is_met: bool | None
    """None where nobody marked it."""
    tag: str = ""


def points_items(rows: Iterable[Sequence[object]]) -> list[PointsItem]:
    """Items from `(points, met)` or `(points, met, tag)` rows."""
    items = []
    for row in as_list("rows", rows):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) not in (2, 3):
            raise refused("rows", row, "(points, met) or (points, met, tag)")
        points, is_met = row[0], row[1]
        tag = str(row[2]) if len(row) > 2 else ""
        if isinstance(points, bool) or not isinstance(is_met, bool | int | None):
            raise refused("rows", row, "points as a number and met as yes, no or None")
        items.append(
            PointsItem(as_number("rows", points), None if is_met is None else bool(is_met), tag)
        )
    return items


def points_score(items: Sequence[PointsItem]) -> float | None:
    """Points of the items that are met, over all positive points; None without any, or a mark."""
    items = _checked(items)
    possible = math.fsum(item.points for item in items if item.points > 0)
    if possible <= 0 or any(item.is_met is None for item in items):
        return None
    return math.fsum(item.points for item in items if item.is_met) / possible


def tier_of(
    points: float, essential_from: float = ESSENTIAL_FROM, important_from: float = IMPORTANT_FROM
) -> Tier:
    """The tier of an item with these points."""
    if points < 0:
        return Tier.PITFALL
    if points >= essential_from:
        return Tier.ESSENTIAL
    return Tier.IMPORTANT if points >= important_from else Tier.HIGHLIGHT


def tiered(
    items: Sequence[PointsItem],
    essential_from: float = ESSENTIAL_FROM,
    important_from: float = IMPORTANT_FROM,
) -> list[MarkedItem]:
    """The items in tiers, each of weight 1: met is level 2, not met level 0."""
    items = _checked(items)
    essential_from = as_number("essential_from", essential_from)
    important_from = as_number("important_from", important_from, high=essential_from)
    return [
        MarkedItem(
            tier_of(item.points, essential_from, important_from).value,
            None if item.is_met is None else 2.0 * item.is_met,
            tag=item.tag,
            id=str(number),
        )
        for number, item in enumerate(items)
    ]


def _checked(items: Sequence[PointsItem]) -> list[PointsItem]:
    found = as_list("items", items)
    for item in found:
        if not isinstance(item, PointsItem):
            raise refused("items", item, "an item with points")
        as_number("items", item.points)
    return found
