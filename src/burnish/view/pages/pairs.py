"""Pairs that a reward model scored: both answers side by side, and what the scores go with.

    pairs_page(folder, step=None, split="eval:held_out", sort="wrong", ...)
    pair_view(sample)                  # one pair whole; None for a sample that is none

A pair's sample holds the preferred answer as its text, the other one as evidence, both scores as
parts of the margin, and the label and attributes as `info["pair"]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from burnish.numbers import sigmoid
from burnish.rewards.models.bias_attributes import KEY, REJECTED, text_attributes
from burnish.store import StoredSample
from burnish.store.reader import RunReader
from burnish.store.sample_name import EVAL, shown_step
from burnish.view.pages.groups import TEXT
from burnish.view.pages.runs import NotFound, Page, open_run, paged, score_of

HELD_OUT = "eval:held_out"
SORTS = ("wrong", "close", "right")
"""The most wrong first; the closest scores first; the most right first."""
OUTCOMES = ("wrong", "right", "equal", "tie")
"""The scores contradict the label, agree with it, are equal; the label is a tie."""
SHOWN = 1500
"""Characters of an answer in the list."""


class _Record(Struct, frozen=True):
    """`info["pair"]` of a sample."""

    target: float = 1.0
    attributes: dict[str, tuple[float, float]] = {}


class _Scored(Struct, frozen=True):
    """A pair as far as lists and shares need it."""

    index: int
    margin: float
    record: _Record

    @property
    def outcome(self) -> str:
        return outcome_of(self.margin, self.record.target)


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


def pair_view(sample: StoredSample, shown: int = TEXT) -> Page | None:
    """Two answers with their scores; `chosen` is the one that the data prefers."""
    parts = {part.name: part for part in sample.reward.parts}
    margin = sample.reward.value
    try:
        record = msgspec.convert(sample.trajectory.info.get(KEY), _Record)
    except msgspec.ValidationError:
        return None
    if margin is None or not {"chosen", "rejected"} <= parts.keys():
        return None
    evidence = parts["rejected"].evidence
    other = next((e.observation for e in evidence if e.source == REJECTED), "")
    texts = {"chosen": sample.trajectory.text, "rejected": other}
    attributes = {**text_attributes(*texts.values()), **record.attributes}
    return {
        **{
            side: {"text": text[:shown], "of": len(text), "score": parts[side].value}
            for side, text in texts.items()
        },
        "margin": margin,
        "probability": sigmoid(margin),  # that the chosen one is better, by the scores
        "target": record.target,  # the same by the label; 0.5 is a tie
        "outcome": outcome_of(margin, record.target),
        "attributes": [
            {"name": name, "chosen": attributes[name][0], "rejected": attributes[name][1]}
            for name in dict.fromkeys([*record.attributes, *attributes])
        ],
    }


def pairs_page(
    folder: Path, *, step: int | None, split: str, sort: str, outcome: str, after: int, limit: int
) -> Page:
    """The pairs of a stored step, the newest one where none is named."""
    with open_run(folder) as run:
        name = split.removeprefix(EVAL) if split.startswith(EVAL) else None
        query = "SELECT step FROM rollouts ORDER BY step"
        values: list[str] = []
        if name is not None:
            query = "SELECT step FROM evaluations WHERE name = ? AND samples > 0 ORDER BY step"
            values = [name]
        steps = [row[0] for row in run.query(query, values)]
        at = steps[-1] if step is None and steps else step
        scored = [] if at is None else _scored(run, at, split)
        if at is None or not scored:
            where = "" if step is None else f" at step {shown_step(step, split)}"
            raise NotFound(f"this run has no pairs of {split}{where}; a reward model stores them.")
        fitting = [one for one in scored if outcome in ("", one.outcome)]
        fitting.sort(key=lambda one: (_place(one, sort), one.index))
        shown, behind = paged(fitting, after, limit)
        samples = [run.sample(f"{at}/{split}/{one.index}") for one in shown]
        names = run.names(samples)
        query = (
            "SELECT json_extract(summary, '$.score') FROM evaluations WHERE step = ? AND name = ?"
        )
        score = next((score_of(at, text) for (text,) in run.query(query, (at, name))), None)
    found = [one.outcome for one in scored]
    return {
        "step": at,
        "split": split,
        "number": at if name is not None else at + 1,  # as people count; 0 before training
        "steps": steps,
        "score": score,
        "outcomes": {one: found.count(one) for one in OUTCOMES},
        "attributes": attribute_lines(scored),
        "pairs": [
            {"name": name, "task": s.task.id, "prompt": s.task.prompt[:SHOWN], "pair": pair}
            for name, s in zip(names, samples, strict=True)
            if (pair := pair_view(s, SHOWN)) is not None
        ],
        "count": len(fitting),
        "next": behind,
    }


def attribute_lines(scored: Iterable[_Scored]) -> list[Page]:
    """What the scores and the labels go with, over the pairs that differ in an attribute."""
    # For each pair that differs: the label prefers more, how right the scores are.
    seen: dict[str, list[tuple[bool, float]]] = {}
    for one in scored:
        for name, (chosen, rejected) in one.record.attributes.items():
            if one.record.target != 0.5 and chosen != rejected:
                is_more = (chosen > rejected) == (one.record.target > 0.5)
                right = {"right": 1.0, "wrong": 0.0}.get(one.outcome, 0.5)
                seen.setdefault(name, []).append((is_more, right))
    lines = []
    for name, found in seen.items():
        more = [right for is_more, right in found if is_more]
        less = [right for is_more, right in found if not is_more]
        lines.append(
            {
                "name": name,
                "pairs": len(found),
                "label_more": len(more) / len(found),
                # The higher score is on the answer that has more; equal scores count half.
                "score_more": (sum(more) + len(less) - sum(less)) / len(found),
                "right_more": sum(more) / len(more) if more else None,
                # Where the label prefers the other one the attribute misleads.
                "right_less": sum(less) / len(less) if less else None,
            }
        )
    return lines


def _place(one: _Scored, sort: str) -> float:
    """Where a pair stands in an order, the least first; ties of the label come last."""
    if sort == "close":
        return abs(one.margin)
    if one.record.target == 0.5:
        return float("inf")
    return one.margin if (one.record.target > 0.5) == (sort == "wrong") else -one.margin


def _scored(run: RunReader, step: int, split: str) -> list[_Scored]:
    query = (
        "SELECT idx, reward, json_extract(info, ?) FROM samples WHERE step = ? AND split = ? "
        "AND reward IS NOT NULL"
    )
    found = []
    for index, margin, text in run.query(query, (f"$.{KEY}", step, split)):
        # A sample that is no pair, or not ours.
        with contextlib.suppress(msgspec.MsgspecError, TypeError):
            found.append(_Scored(index, margin, msgspec.json.decode(text, type=_Record)))
    return found
