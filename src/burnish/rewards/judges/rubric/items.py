"""A rubric: items in four tiers, each with what its levels mean and where it comes from.

The rules are QuarkMedBench's (arXiv 2603.13691): few enough items to mark, enough essentials to
matter, errors few and named, and no two items that pay for the same thing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.arguments import as_word
from burnish.boundary import Count, NonNegative, public
from burnish.errors import UserError
from burnish.rewards.judges.prompting import Unreadable
from burnish.rewards.judges.reading import anything, free_table, read_list, rows
from burnish.rewards.judges.rubric.formula import LEVELS, Tier
from burnish.seeds import digest

_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s+")
_QUOTES = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'"})


class Tag(StrEnum):
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
        ids = Counter(item.id for item in self.items)
        for item in self.items:
            if ids[item.id] > 1 or not math.isfinite(item.weight):
                raise UserError(
                    f"rubric '{self.id or self.query[:40]}': item '{item.id}' of weight {item.weight}; "
                    "expected an id of its own and a finite weight."
                )

    @classmethod
    def from_dict(cls, content: Mapping[str, Any] | str) -> Rubric:
        """A rubric from decoded JSON or JSON text; one line says what is wrong with it."""
        try:
            content = msgspec.json.decode(content) if isinstance(content, str) else content
            return msgspec.convert(content, cls, strict=False)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise UserError(
                f"rubric: {error}; expected query and items with id, title, tier and description."
            ) from None

    @property
    def hash(self) -> str:
        """Changes with anything that a judge or the formula reads."""
        return digest(msgspec.json.encode((self.query, self.items), order="deterministic"))

    def item(self, name: str) -> RubricItem | None:
        return next((item for item in self.items if item.id == name), None)

    def validate(self, rules: Rules | None = None) -> list[Broken]:
        """Every rule that is broken, by name; an empty list where the rubric is well made."""
        rules = rules or Rules()
        found = Counter(item.tier for item in self.items)
        (low, high), count, pitfalls = rules.items, len(self.items), found[Tier.PITFALL]
        counts = [("items", count, low <= count <= high, f"{low} to {high}")]
        counts += [(str(t), found[t], found[t] >= n, f"at least {n}") for t, n in rules.least]
        most = rules.most_pitfalls
        counts += [(Tier.PITFALL.value, pitfalls, pitfalls <= most, f"at most {most}")]
        broken = [
            Broken(rule, "the rubric", f"has {has}, not {wanted}")
            for rule, has, holds, wanted in counts
            if not holds
        ]
        for item in self.items:
            broken += _of_item(item, rules)
        broken += _overlaps(self, rules)
        covered = {point for item in self.items for point in item.points}
        missing = [point.id for point in self.points if point.id not in covered]
        return broken + [Broken("exhaustive", f"point '{p}'", "is in no item") for p in missing]


def similarity(first: str, second: str) -> float:
    """The share of common words of two texts, 0 to 1 (Jaccard); 0 where one has none."""
    a, b = (set(_WORD.findall(text.lower())) for text in (first, second))
    return len(a & b) / len(a | b) if a and b else 0.0


def _of_item(item: RubricItem, rules: Rules) -> list[Broken]:
    titled, most = item.title.strip(), rules.title_characters
    levels = {str(level): item.description.get(str(level), "").strip() for level in LEVELS}
    is_described = all(levels.values()) and set(item.description) == set(levels)
    checks = {
        "id": (item.id.strip(), "has no id"),
        "title": (titled and len(titled) <= most, f"has no title of 1 to {most} characters"),
        "tier": (item.tier in list(Tier), f"has the tier '{item.tier}'"),
        "tag": (item.tag in list(Tag), f"has the tag '{item.tag}'"),
        "description": (is_described, "describes other levels than 0, 1 and 2"),
        "levels": (len(set(levels.values())) == 3, "describes two levels in the same words"),
        "weight": (item.weight, "has weight 0"),
    }
    where = f"item '{item.id}'"
    return [Broken(rule, where, got) for rule, (holds, got) in checks.items() if not holds]


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


def tier_of(points: float) -> Tier:
    if points < 0:
        return Tier.PITFALL
    if points >= ESSENTIAL_FROM:
        return Tier.ESSENTIAL
    return Tier.IMPORTANT if points >= IMPORTANT_FROM else Tier.HIGHLIGHT


_POINT = free_table("text", "kind", support=rows(free_table("quote", answer=anything)))
_CHECKED = free_table("point", "passage", "quote", holds=anything)
_FINDING = free_table("check", holds=lambda key, value: value if isinstance(value, bool) else None)


KINDS = ("important", "insight", "extended")


class Candidate(NamedTuple):
    """One text that points are taken from: a model's answer or a passage."""

    text: str
    model: str = ""
    style: str = ""
    source: str = ""

    def quoted(self, quote: str) -> Source:
        return Source(quote, "" if self.source else self.model, self.source)


class PointCheck(NamedTuple):
    point: str
    holds: bool | None
    support: Source | None = None


def read_points(text: str, candidates: Sequence[Candidate]) -> list[Point]:
    """Points with support that stands in the numbered texts; raises `Unreadable` without any."""
    points = []
    for row in read_list(text, _POINT):
        support = _support(row["support"] or (), candidates)
        if row["text"] and support:
            kind = row["kind"] if row["kind"] in KINDS else KINDS[0]
            points.append(Point("", row["text"], kind, support))
    if not points:
        raise Unreadable("expected statements with quotations that stand in the texts, got none")
    return points


@public
def merge_points(found: Sequence[Sequence[Point]], same: NonNegative = 0.6) -> list[Point]:
    """The points of several readers, the same statement once, its supports joined.

    Single linkage: a statement joins every cluster that holds one like it. The text with most
    supports speaks for its cluster, and the gravest kind wins.
    """
    clusters: list[list[Point]] = []
    for point in (point for reader in found for point in reader):
        near = [c for c in clusters if any(similarity(point.text, p.text) >= same for p in c)]
        joined = [p for cluster in near for p in cluster] + [point]
        clusters = [c for c in clusters if not any(c is n for n in near)] + [joined]
    return [_joined(number, cluster) for number, cluster in enumerate(clusters, start=1)]


@public
def in_consensus(
    point: Point,
    *,
    models: Count = 2,
    sources: Count = 1,
    objections: Count = 0,
    checkers: Count = 0,
) -> bool:
    """Enough independent models or retrieved sources, and no majority of checkers against it."""
    if checkers and objections * 2 > checkers:
        return False
    keys = {support.key for support in point.provenance}
    by_model = sum(key.startswith("model ") for key in keys)
    return by_model >= models or len(keys) - by_model >= sources


def read_point_checks(
    text: str, points: Sequence[Point], passages: Mapping[str, str]
) -> dict[str, PointCheck]:
    """A checker's word on points; support by a passage needs words that stand in it."""
    known = {point.id for point in points}
    found: dict[str, PointCheck] = {}
    for row in read_list(text, _CHECKED):
        name, holds = row["point"], row["holds"]
        if name not in known or not (holds is None or isinstance(holds, bool)):
            continue
        passage, quote = row["passage"], row["quote"]
        stands = holds is True and stands_in(quote, passages.get(passage, ""))
        found[name] = PointCheck(name, holds, Source(quote, source=passage) if stands else None)
    if not found:
        raise Unreadable(f"expected a word on the statements {', '.join(sorted(known))}, got none")
    return found


def checked_points(
    points: Sequence[Point], said: Sequence[Mapping[str, PointCheck]]
) -> list[Point]:
    """Points with the passages that checkers found for them."""
    result = []
    for point in points:
        more = [opinions[point.id].support for opinions in said if point.id in opinions]
        supports = [*point.provenance, *(support for support in more if support is not None)]
        unique = {(s.key, s.quote): s for s in supports}
        result.append(Point(point.id, point.text, point.kind, tuple(unique.values())))
    return result


def _support(
    given: Sequence[Mapping[str, Any]], candidates: Sequence[Candidate]
) -> tuple[Source, ...]:
    found: dict[tuple[str, str], Source] = {}
    for row in given:
        number, quote = row["answer"], row["quote"]
        if isinstance(number, bool) or not isinstance(number, int):
            continue
        if 1 <= number <= len(candidates) and stands_in(quote, candidates[number - 1].text):
            support = candidates[number - 1].quoted(quote)
            found.setdefault((support.key, quote), support)
    return tuple(found.values())


def _joined(number: int, cluster: Sequence[Point]) -> Point:
    speaker = max(cluster, key=lambda point: len(point.provenance))
    kind = min((point.kind for point in cluster), key=KINDS.index)
    supports = {(s.key, s.quote): s for point in cluster for s in point.provenance}
    return Point(f"p{number}", speaker.text, kind, tuple(supports.values()))


def stands_in(quote: str, text: str) -> bool:
    """Whether the words stand in the text; spaces, case and the shape of quotation marks do not count."""
    wanted = _flat(quote).strip(" .…")
    return bool(wanted) and wanted in _flat(text)


def _flat(text: str) -> str:
    return _SPACE.sub(" ", text.translate(_QUOTES)).casefold()


class AuditCheck(NamedTuple):
    points: int
    asks: str


CHECKS: Mapping[str, AuditCheck] = {
    "right": AuditCheck(9, "what each item asks for is true and belongs to this question"),
    "supported": AuditCheck(3, "each item follows from the reference answers"),
    "atomic": AuditCheck(3, "each item asks for one thing"),
    "exclusive": AuditCheck(3, "no two items pay for the same thing"),
    "checkable": AuditCheck(3, "a reader can mark each item from the answer alone"),
    "exhaustive": AuditCheck(4, "every point that the references agree on is in an item"),
    "title": AuditCheck(3, "titles are short and say what the item asks for"),
    "tier": AuditCheck(3, "each item stands in the tier that it deserves, and tiers are filled"),
    "description": AuditCheck(4, "the three levels of each item can be told apart"),
}

SAFETY = "safety_omitted"


class Audit(NamedTuple):
    """What a rubric earned, of what could be decided."""

    earned: int
    possible: int
    """Points of the checks that were decided; 35 where all of them were."""
    failed: tuple[str, ...]
    is_vetoed: bool = False
    """A safety item that the question needs is not there."""

    @property
    def quality(self) -> float | None:
        """The share of the decided points; None where nothing was decided."""
        return self.earned / self.possible if self.possible else None


@public
def audit_points(findings: Mapping[str, bool | None], safety_omitted: bool = False) -> Audit:
    """The points of an audit; a check that is None or not there was not decided.

    An omitted safety item costs all points.
    """
    for name in findings:
        as_word("findings", name, tuple(CHECKS))
    decided = {name: found for name, found in findings.items() if found is not None}
    possible = sum(CHECKS[name].points for name in decided)
    earned = sum(CHECKS[name].points for name, holds in decided.items() if holds)
    failed = tuple(name for name in CHECKS if decided.get(name) is False)
    return Audit(0 if safety_omitted else earned, possible, failed, safety_omitted)


def rule_findings(rubric: Rubric, rules: Rules | None = None) -> dict[str, bool]:
    """The checks that follow from the rubric itself."""
    broken = {one.rule for one in rubric.validate(rules)}
    counts = {"items", "tier", *(tier.value for tier in Tier)}
    findings = {
        "exclusive": "exclusive" not in broken,
        "title": "title" not in broken,
        "tier": not broken & counts,
        "description": not broken & {"description", "levels"},
    }
    if rubric.points:
        findings["exhaustive"] = "exhaustive" not in broken
        findings["supported"] = all(item.provenance for item in rubric.items)
    return findings


def rule_audit(rubric: Rubric, rules: Rules | None = None) -> Audit:
    """The audit without a reader: only what a rule can decide."""
    return audit_points.plain(rule_findings(rubric, rules))


def joined_audit(
    rubric: Rubric,
    said: Mapping[str, bool | None],
    *,
    safety_omitted: bool = False,
    rules: Rules | None = None,
) -> Audit:
    """A reader's findings with those of the rules; what a rule refutes no reader can pass."""
    by_rule = rule_findings(rubric, rules)
    both: dict[str, bool | None] = {**said, **by_rule}
    both |= {name: False for name in by_rule if said.get(name) is False}
    return audit_points.plain({name: both.get(name) for name in CHECKS}, safety_omitted)


def read_findings(text: str) -> dict[str, bool | None]:
    """What an auditor decided, by check; raises `Unreadable` where the word on safety is missing."""
    said = read_list(text, _FINDING)
    found = {row["check"]: row["holds"] for row in said if row["check"] in (*CHECKS, SAFETY)}
    if found.get(SAFETY) is None:
        raise Unreadable(f"expected checks and '{SAFETY}' with true or false, got {sorted(found)}")
    return found
