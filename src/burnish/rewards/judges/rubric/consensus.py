"""Which statements good answers agree on: support that is quoted, counted and kept.

    merged = merge_points(found, same=0.6)           # the same statement in other words, once
    [p for p in merged if in_consensus(p, models=2, sources=1)]

A statement counts where two independent models make it or one retrieved passage does. Support is a
quotation that stands in what was said; a claim of support without one is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from burnish.arguments import as_list, as_number, as_whole
from burnish.rewards.judges.questions import Unreadable
from burnish.rewards.judges.rubric.items import Point, Source, similarity
from burnish.rewards.judges.rubric.wording import read_list, stands_in

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


class Opinion(NamedTuple):
    """What a checker says of one point."""

    point: str
    holds: bool | None
    support: Source | None = None


def read_points(text: str, candidates: Sequence[Candidate]) -> list[Point]:
    """Points with support that stands in the numbered texts; raises `Unreadable` without any."""
    points = []
    for row in read_list(text):
        said = str(row.get("text") or "").strip()
        support = _support(row.get("support"), candidates)
        if said and support:
            kind = str(row.get("kind") or "")
            points.append(Point("", said, kind if kind in KINDS else KINDS[0], support))
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


def read_opinions(
    text: str, points: Sequence[Point], passages: Mapping[str, str]
) -> dict[str, Opinion]:
    """A checker's word on points; support by a passage needs words that stand in it."""
    known = {point.id for point in points}
    found: dict[str, Opinion] = {}
    for row in read_list(text):
        name, holds = str(row.get("point") or ""), row.get("holds")
        if name not in known or not (holds is None or isinstance(holds, bool)):
            continue
        passage, quote = str(row.get("passage") or ""), str(row.get("quote") or "")
        stands = holds is True and stands_in(quote, passages.get(passage, ""))
        found[name] = Opinion(name, holds, Source(quote, source=passage) if stands else None)
    if not found:
        raise Unreadable(f"expected a word on the statements {', '.join(sorted(known))}, got none")
    return found


def checked_points(points: Sequence[Point], said: Sequence[Mapping[str, Opinion]]) -> list[Point]:
    """Points with the passages that checkers found for them."""
    result = []
    for point in points:
        more = [opinions[point.id].support for opinions in said if point.id in opinions]
        supports = [*point.provenance, *(support for support in more if support is not None)]
        unique = {(s.key, s.quote): s for s in supports}
        result.append(Point(point.id, point.text, point.kind, tuple(unique.values())))
    return result


def _support(given: Any, candidates: Sequence[Candidate]) -> tuple[Source, ...]:
    found: dict[tuple[str, str], Source] = {}
    for row in given if isinstance(given, list) else ():
        if not isinstance(row, dict):
            continue
        number, quote = row.get("answer"), str(row.get("quote") or "")
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
