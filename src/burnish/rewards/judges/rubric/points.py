"""Statements that a rubric rests on, with the words that support them, and their consensus.

    points = merge_points([read_points(reply, candidates) for reply in replies])
    [point for point in points if in_consensus(point)]

Support is a quotation that stands in a model's answer or in a retrieved passage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from burnish.arguments import as_list, as_number, as_whole
from burnish.rewards.judges.prompting import Unreadable
from burnish.rewards.judges.reading import anything, free_table, read_list, rows
from burnish.rewards.judges.rubric.items import Point, Source, similarity
from burnish.rewards.judges.rubric.wording import stands_in

_POINT = free_table("text", "kind", support=rows(free_table("quote", answer=anything)))
_CHECKED = free_table("point", "passage", "quote", holds=anything)


KINDS = ("important", "insight", "extended")
Similarity = Callable[[str, str], float]


class Candidate(NamedTuple):
    """One text that points are taken from: a model's answer or a passage."""

    text: str
    model: str = ""
    style: str = ""
    source: str = ""

    def quoted(self, quote: str) -> Source:
        """These words as support."""
        return Source(quote, "" if self.source else self.model, self.source)


class PointCheck(NamedTuple):
    """What a checker says of one point."""

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


def merge_points(
    found: Sequence[Sequence[Point]], same: float = 0.6, alike: Similarity = similarity
) -> list[Point]:
    """The points of several readers, the same statement once, its supports joined.

    Single linkage: a statement joins every cluster that holds one like it. The text with most
    supports speaks for its cluster, and the gravest kind wins.
    """
    same = as_number("same", same, low=0)
    found = [as_list("found", reader) for reader in as_list("found", found)]
    clusters: list[list[Point]] = []
    for point in (point for reader in found for point in reader):
        near = [c for c in clusters if any(alike(point.text, p.text) >= same for p in c)]
        joined = [p for cluster in near for p in cluster] + [point]
        clusters = [c for c in clusters if not any(c is n for n in near)] + [joined]
    return [_joined(number, cluster) for number, cluster in enumerate(clusters, start=1)]


def in_consensus(
    point: Point, *, models: int = 2, sources: int = 1, objections: int = 0, checkers: int = 0
) -> bool:
    """Enough independent models or retrieved sources, and no majority of checkers against it."""
    for what, number in (
        ("models", models),
        ("sources", sources),
        ("objections", objections),
        ("checkers", checkers),
    ):
        as_whole(what, number, low=0)
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
