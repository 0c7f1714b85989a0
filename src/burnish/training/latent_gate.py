"""Which questions does the start model answer without latents? Measured with as few answers as decide.

    gate = CapacityGate(samples=8, threshold=0.5, most=256)
    gate.measure(asked, records, seed, file)     # rates by task, kept in the file: never asked twice
    gate.is_hard("task-7")                       # None where nothing is known of it

A question is asked until its side of the threshold is known: at 8 answers and 0.5 at most, four wrong
ones are enough. Questions are asked in the order of the run, 16 at a time, until `most` of them are
measured, or until at most one in twenty lies on the other side, at 95 %. The side of most measured
questions is then assumed for the others. What is measured follows from weights, records and seed alone,
so that a stopped measurement continues as if it had not been stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from burnish.activity import advance, waiting_for
from burnish.bench.statistics import wilson
from burnish.models.visual_latent import use_latent
from burnish.store.durable import write_file
from burnish.training.latent_answers import ROWS, Asked
from burnish.training.latent_rows import Record

TOGETHER = 16
"""Questions between two writes and two looks at the interval."""
RARE = 0.05
"""Measuring ends when, at 95 %, at most this share lies on the other side of the threshold."""
LABEL = "measuring the start model"

Seed = Callable[[str, int], int]
"""From a task and a round to a seed."""


def most_right(samples: int, threshold: float) -> int:
    """A question is hard where at most so many of its answers are right; -1: none is.

    >>> most_right(8, 0.5)
    4
    """
    return max(k for k in range(-1, samples + 1) if k == -1 or k / samples <= threshold)


def pass_rates(
    asked: Asked, records: Sequence[Record], samples: int, threshold: float, seed: Seed
) -> list[float]:
    """Share of right answers of a model that may not imagine, on the right side of the threshold.

    Each question is asked in rounds, as often as the side could be known at the earliest; the share is
    that of the answers asked for.
    """
    most = most_right(samples, threshold)
    right, wrong = [0] * len(records), [0] * len(records)

    def missing(place: int) -> int:
        """Answers after which the side may be known; 0 where it is."""
        still = min(most + 1 - right[place], samples - most - wrong[place])
        return max(still, 0) if right[place] + wrong[place] else max(still, 1)

    turn = 0
    while places := [place for place in range(len(records)) if missing(place)]:
        rows = [place for place in places for _ in range(missing(place))]
        for begin in range(0, len(rows), ROWS):
            some = rows[begin : begin + ROWS]
            draw = torch.Generator(asked.device)
            draw.manual_seed(seed(f"{records[some[0]].task.id} {begin}", turn) % 2**63)
            answers = asked.answer([records[place] for place in some], draw)
            for place, answer in zip(some, answers, strict=True):
                (right if asked.mark(records[place], answer) else wrong)[place] += 1
        turn += 1
    return [r / (r + w) for r, w in zip(right, wrong, strict=True)]


@dataclass
class CapacityGate:
    """Pass rates of the start model, and the side assumed for questions that were not measured."""

    samples: int
    threshold: float
    most: int
    """Questions that are measured; 0: every one, whatever the interval says."""
    rates: dict[str, float] = field(default_factory=dict)
    rest_is_hard: bool | None = None
    """The side assumed for questions that were not measured; None: all were."""

    def is_hard(self, task: str) -> bool | None:
        """Whether a question gets latents; None where nothing is known of it."""
        rate = self.rates.get(task)
        if rate is None:
            return self.rest_is_hard
        return bool(use_latent([rate], self.threshold, False)[0])

    def read(self, file: Path) -> None:
        """What an earlier start has measured."""
        if file.is_file():
            self.rates = json.loads(file.read_text(encoding="utf-8"))

    def planned(self, records: Sequence[Record]) -> Sequence[Record]:
        """The questions that are measured at most."""
        return records[: self.most] if self.most else records

    def measure(
        self,
        asked: Asked,
        records: Sequence[Record],
        seed: Seed,
        file: Path,
        *,
        writes: bool = True,
        chunks: int | None = None,
    ) -> float:
        """Measure, `chunks` times 16 further questions at most; returns the seconds that took."""
        began, planned, new = time.monotonic(), self.planned(records), 0
        with waiting_for(LABEL, "questions", len(planned)):
            for begin in range(0, len(planned), TOGETHER):
                some = planned[begin : begin + TOGETHER]
                missing = [one for one in some if one.task.id not in self.rates]
                if missing and new == chunks:
                    break
                if missing:
                    found = pass_rates(asked, missing, self.samples, self.threshold, seed)
                    ids = [one.task.id for one in missing]
                    self.rates |= dict(zip(ids, found, strict=True))
                    new += 1
                    if writes:
                        file.parent.mkdir(parents=True, exist_ok=True)
                        write_file(file, json.dumps(self.rates, sort_keys=True).encode())
                advance(LABEL, len(some))
                if self._settles(records, begin + len(some)):
                    break
        return time.monotonic() - began

    def hard(self, records: Sequence[Record]) -> int:
        """How many of the questions get latents."""
        return sum(self.is_hard(one.task.id) is True for one in records)

    def _settles(self, records: Sequence[Record], count: int) -> bool:
        """Assume the side of most of the first `count` for the rest; True where no more are asked."""
        if count == len(records):
            self.rest_is_hard = None
            return True
        share = wilson(self.hard(records[:count]), count)
        self.rest_is_hard = share.value >= 0.5
        return self.most > 0 and (share.high <= RARE or share.low >= 1 - RARE)
