"""Pairs that a reward model scored: both answers side by side, and what the scores go with.

    pairs_page(folder, step=None, split="eval:held_out", sort="wrong", ...)
    pair_view(sample)                  # one pair whole; None for a sample that is none

A pair's sample holds the preferred answer as its text, the other one as evidence, both scores as
parts of the margin, and the label and attributes as `info["pair"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from burnish.numbers import sigmoid
from burnish.records import Reward
from burnish.rewards.models.bias_attributes import KEY, REJECTED, text_attributes
from burnish.store import StoredSample
from burnish.store.reader import RunReader
from burnish.store.sample_name import EVAL, sample_names, shown_step
from burnish.view.pages.groups import TEXT
from burnish.view.pages.runs import NotFound, Score, open_run, score_of

HELD_OUT = "eval:held_out"
SORTS = ("wrong", "close", "right")
"""The most wrong first; the closest scores first; the most right first."""
OUTCOMES = ("wrong", "right", "equal", "tie")
"""The scores contradict the label, agree with it, are equal; the label is a tie."""
SHOWN = 1500
"""Characters of an answer in the list."""


class Side(Struct, frozen=True):
    text: str
    of: int
    """Characters of the whole text."""
    score: float | None


class PairAttribute(Struct, frozen=True):
    """An attribute of both answers, such as their markdown marks."""

    name: str
    chosen: float
    rejected: float


class PairView(Struct, frozen=True, kw_only=True):
    """Two answers with their scores; `chosen` is the one that the data prefers."""

    chosen: Side
    rejected: Side
    margin: float
    """The chosen answer's score less the rejected one's."""
    probability: float
    """That the chosen one is better, by the scores."""
    target: float
    """The same by the label; 0.5 is a tie."""
    outcome: str
    """One of `OUTCOMES`."""
    attributes: list[PairAttribute]


class PairLine(Struct, frozen=True, kw_only=True):
    name: str
    task: str
    prompt: str
    pair: PairView


class AttributeLine(Struct, frozen=True, kw_only=True):
    """What the scores and the labels go with, over the pairs that differ in an attribute."""

    name: str
    pairs: int
    """With a label, and with more of it on one side."""
    label_more: float
    """Share in which the label prefers the answer that has more."""
    score_more: float
    """Share in which the higher score is on that answer; equal scores count half."""
    right_more: float | None
    """Accuracy where the label prefers the answer that has more; null where there is none."""
    right_less: float | None
    """Accuracy where it prefers the other one: here the attribute misleads."""


class PairsPage(Struct, frozen=True, kw_only=True):
    """Pairs of one evaluation or step; `next` goes into `after`."""

    step: int
    split: str
    number: int
    """The step as people count; 0 before training."""
    steps: list[int]
    """Stored steps that have pairs of this split."""
    score: Score | None
    """The accuracy of the evaluation with its interval."""
    outcomes: dict[str, int]
    """Pairs by outcome, whatever is shown."""
    attributes: list[AttributeLine]
    pairs: list[PairLine]
    count: int
    next: int | None


class _Record(Struct, frozen=True):
    """`info["pair"]` of a sample."""

    target: float = 1.0
    margin: float = 0.0
    attributes: dict[str, tuple[float, float]] = {}


class _Scored(Struct, frozen=True):
    """A pair as far as lists and shares need it."""

    row: int
    margin: float
    record: _Record

    @property
    def outcome(self) -> str:
        return outcome_of(self.margin, self.record.target)

    @property
    def towards_label(self) -> float:
        """The margin, counted in the direction of the label."""
        return self.margin if self.record.target >= 0.5 else -self.margin


def outcome_of(margin: float, target: float) -> str:
    """How the scores of a pair stand to its label."""
    if target == 0.5:
        return "tie"
    if margin == 0:
        return "equal"
    return "right" if (margin > 0) == (target > 0.5) else "wrong"


def has_pairs(run: RunReader) -> bool:
    """True if the newest held-out evaluation of a run stored pairs."""
    query = (
        "SELECT json_type(info, ?) IS NOT NULL FROM samples WHERE split = ? AND step = "
        "(SELECT max(step) FROM evaluations WHERE name = ?) AND idx = 0"
    )
    name = HELD_OUT.removeprefix(EVAL)
    return any(found for (found,) in run.query(query, (f"$.{KEY}", HELD_OUT, name)))


def pair_view(sample: StoredSample, shown: int = TEXT) -> PairView | None:
    """The pair that a sample is; None for any other one."""
    record = _record(sample.trajectory.info.get(KEY))
    parts = {part.name: part for part in sample.reward.parts}
    margin = sample.reward.value
    if record is None or margin is None or not {"chosen", "rejected"} <= parts.keys():
        return None
    texts = (sample.trajectory.text, _rejected(parts["rejected"]))
    attributes = {**text_attributes(*texts), **record.attributes}
    order = dict.fromkeys([*record.attributes, *attributes])
    return PairView(
        chosen=Side(texts[0][:shown], len(texts[0]), parts["chosen"].value),
        rejected=Side(texts[1][:shown], len(texts[1]), parts["rejected"].value),
        margin=margin,
        probability=sigmoid(margin),
        target=record.target,
        outcome=outcome_of(margin, record.target),
        attributes=[PairAttribute(name, *attributes[name]) for name in order],
    )


def pairs_page(
    folder: Path, *, step: int | None, split: str, sort: str, outcome: str, after: int, limit: int
) -> PairsPage:
    """The pairs of a stored step, the newest one where none is named."""
    with open_run(folder) as run:
        steps = _steps(run, split)
        at = (steps[-1] if steps else None) if step is None else step
        scored = [] if at is None else _scored(run, at, split)
        if at is None or not scored:
            where = "" if step is None else f" at step {shown_step(step, split)}"
            raise NotFound(f"this run has no pairs of {split}{where}; a reward model stores them.")
        fitting = [one for one in scored if outcome in ("", one.outcome)]
        ordered = sorted(fitting, key=lambda one: (_place(one, sort), one.row))
        shown = ordered[after : after + limit]
        lines = _lines(run, [one.row for one in shown])
        score = _score(run, at, split)
    end = after + limit
    found = [one.outcome for one in scored]
    return PairsPage(
        step=at,
        split=split,
        number=at if split.startswith(EVAL) else at + 1,
        steps=steps,
        score=score,
        outcomes={name: found.count(name) for name in OUTCOMES},
        attributes=attribute_lines(scored),
        pairs=lines,
        count=len(fitting),
        next=end if end < len(fitting) else None,
    )


def attribute_lines(scored: Iterable[_Scored]) -> list[AttributeLine]:
    """A line for each attribute in which a labelled pair differs."""
    labelled = [one for one in scored if one.record.target != 0.5]
    names = dict.fromkeys(name for one in labelled for name in one.record.attributes)
    return [line for name in names if (line := _attribute_line(name, labelled)) is not None]


def _attribute_line(name: str, labelled: Sequence[_Scored]) -> AttributeLine | None:
    # (the label prefers more, how right the scores are) for each pair that differs
    seen = []
    for one in labelled:
        chosen, rejected = one.record.attributes.get(name, (0.0, 0.0))
        if chosen != rejected:
            is_more = (chosen > rejected) == (one.record.target > 0.5)
            right = {"right": 1.0, "wrong": 0.0}.get(one.outcome, 0.5)
            seen.append((is_more, right))
    if not seen:
        return None
    more = [right for is_more, right in seen if is_more]
    less = [right for is_more, right in seen if not is_more]
    return AttributeLine(
        name=name,
        pairs=len(seen),
        label_more=len(more) / len(seen),
        score_more=(sum(more) + len(less) - sum(less)) / len(seen),
        right_more=sum(more) / len(more) if more else None,
        right_less=sum(less) / len(less) if less else None,
    )


def _place(one: _Scored, sort: str) -> float:
    """Where a pair stands in an order, the least first; ties of the label come last."""
    if sort == "close":
        return abs(one.margin)
    if one.record.target == 0.5:
        return float("inf")
    return one.towards_label if sort == "wrong" else -one.towards_label


def _steps(run: RunReader, split: str) -> list[int]:
    if split.startswith(EVAL):
        query = "SELECT step FROM evaluations WHERE name = ? AND samples > 0 ORDER BY step"
        return [step for (step,) in run.query(query, (split.removeprefix(EVAL),))]
    return [step for (step,) in run.query("SELECT step FROM rollouts ORDER BY step")]


def _score(run: RunReader, step: int, split: str) -> Score | None:
    query = "SELECT json_extract(summary, '$.score') FROM evaluations WHERE step = ? AND name = ?"
    name = split.removeprefix(EVAL) if split.startswith(EVAL) else None
    return next((score_of(step, text) for (text,) in run.query(query, (step, name))), None)


def _scored(run: RunReader, step: int, split: str) -> list[_Scored]:
    query = (
        "SELECT rowid, reward, json_extract(info, ?) FROM samples "
        "WHERE step = ? AND split = ? AND reward IS NOT NULL"
    )
    found = []
    for row, margin, text in run.query(query, (f"$.{KEY}", step, split)):
        record = _record(text)
        if record is not None:
            found.append(_Scored(row, margin, record))
    return found


def _lines(run: RunReader, rows: Sequence[int]) -> list[PairLine]:
    marks = ", ".join("?" * len(rows))
    query = f"SELECT rowid, step, split, idx FROM samples WHERE rowid IN ({marks})"
    places = {row: place for row, *place in run.query(query, list(rows))}
    kept = [places[row] for row in rows if row in places]
    names = sample_names(run, (tuple(place) for place in kept))
    lines = []
    for name, (step, split, index) in zip(names, kept, strict=True):
        sample = run.sample(f"{step}/{split}/{index}")
        pair = pair_view(sample, SHOWN)
        if pair is not None:
            prompt = sample.task.prompt[:SHOWN]
            lines.append(PairLine(name=name, task=sample.task.id, prompt=prompt, pair=pair))
    return lines


def _record(found: Any) -> _Record | None:
    """What `info` holds of a pair; None where that is nothing, or not ours."""
    try:
        if isinstance(found, str):
            return msgspec.json.decode(found, type=_Record)
        return None if found is None else msgspec.convert(found, _Record)
    except msgspec.MsgspecError:
        return None


def _rejected(part: Reward) -> str:
    return next((e.observation for e in part.evidence if e.source == REJECTED), "")
