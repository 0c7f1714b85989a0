"""The improvement of a grading instruction, in nouns: labelled records, edits, accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from burnish.arguments import as_list, refused, same_length

Grade = int | str
_Record = TypeVar("_Record")


class Labelled(Struct, frozen=True, omit_defaults=True):
    """A record whose right grade is known."""

    id: str
    grade: Grade
    content: dict[str, Any] = msgspec.field(default_factory=dict)
    """What a grader sees: query, document and the like."""
    rules: tuple[str, ...] = ()
    """Rules of the instruction that decide this record."""


class Disagreement(Struct, frozen=True):
    """A record that was graded otherwise than its label says; None: no grade could be read."""

    record: Labelled
    predicted: Grade | None


class Edit(Struct, frozen=True, omit_defaults=True):
    """A change to an instruction, as pieces of its text."""

    kind: Literal["add", "sharpen", "merge", "delete"]
    new: str = ""
    """What is written: behind everything (`add`), or in the place of the first of `old`."""
    old: tuple[str, ...] = ()
    """Pieces that are taken away; each must stand in the instruction once."""
    cases: tuple[str, ...] = ()
    """Records that this is to put right, by id."""
    reason: str = ""

    def applied_to(self, instruction: str) -> str:
        """The changed instruction; a `ValueError` says why there is none."""
        least, most = {"add": (0, 0), "sharpen": (1, 1), "merge": (2, 99), "delete": (1, 99)}[
            self.kind
        ]
        if not least <= len(self.old) <= most or bool(self.new.strip()) == (self.kind == "delete"):
            raise ValueError(
                f"a '{self.kind}' with {len(self.old)} old pieces and new text {self.new[:40]!r}; "
                "expected add: new; sharpen: one old, new; merge: two old or more, new; delete: old"
            )
        if self.kind == "add":
            return f"{instruction.rstrip()}\n{self.new.strip()}\n"
        changed = instruction
        for place, piece in enumerate(self.old):
            count = changed.count(piece) if piece else 0
            if count != 1:
                raise ValueError(
                    f"{piece[:60]!r} stands {count} times in the instruction, not once"
                )
            changed = changed.replace(piece, "" if place else self.new)
        if changed == instruction:
            raise ValueError("it changes nothing")
        return changed


class Accuracy(Struct, frozen=True):
    """How well an instruction grades labelled records."""

    macro: float
    """Mean over grades of the share of their records that is graded right."""
    overall: float
    by_grade: dict[str, float]
    by_rule: dict[str, float]
    undecided: int
    """Records without a readable grade; they count as not right."""


def accuracy_of(records: Sequence[Labelled], predicted: Sequence[Grade | None]) -> Accuracy:
    """Accuracy over all records, each grade and each rule; grades are compared as texts."""
    records = _all_of(Labelled, "records", as_list("records", records, least=1))
    predicted = as_list("predicted", predicted)
    same_length("predicted", predicted, len(records), "records")
    grades: dict[str, list[bool]] = {}
    rules: dict[str, list[bool]] = {}
    marks: list[bool] = []
    for record, found in zip(records, predicted, strict=True):
        is_right = is_grade(found, record)
        marks.append(is_right)
        grades.setdefault(str(record.grade), []).append(is_right)
        for rule in dict.fromkeys(record.rules):
            rules.setdefault(rule, []).append(is_right)
    by_grade = {name: _mean(grades[name]) for name in sorted(grades)}
    return Accuracy(
        macro=sum(by_grade.values()) / len(by_grade),
        overall=_mean(marks),
        by_grade=by_grade,
        by_rule={name: _mean(rules[name]) for name in sorted(rules)},
        undecided=sum(found is None for found in predicted),
    )


def by_rule(disagreements: Sequence[Disagreement]) -> dict[str, list[Disagreement]]:
    """Disagreements under each rule they touch, the largest cluster first; "" where none is named."""
    clusters: dict[str, list[Disagreement]] = {}
    for one in _all_of(Disagreement, "disagreements", as_list("disagreements", disagreements)):
        for rule in dict.fromkeys(one.record.rules or ("",)):
            clusters.setdefault(rule, []).append(one)
    return dict(sorted(clusters.items(), key=lambda item: (-len(item[1]), item[0])))


def is_grade(found: Grade | None, record: Labelled) -> bool:
    """Whether a grade is the record's."""
    return found is not None and str(found) == str(record.grade)


def fallen_rules(
    before: Mapping[str, float], after: Mapping[str, float], most: float
) -> dict[str, float]:
    """Rules whose accuracy fell by more than `most`, and by how much."""
    # A fall of exactly one point is allowed, whatever 0.99 - 0.98 is in binary.
    falls = {rule: before[rule] - after[rule] for rule in before}
    return {rule: fall for rule, fall in falls.items() if fall > most + 1e-9}


def _all_of(kind: type[_Record], what: str, given: list[Any]) -> list[_Record]:
    for one in given:
        if not isinstance(one, kind):
            raise refused(what, one, f"a {kind.__name__}")
    return given


def _mean(marks: Sequence[bool]) -> float:
    return sum(marks) / len(marks)
