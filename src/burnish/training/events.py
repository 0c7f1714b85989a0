"""What a training run says while it works, and how long it still takes; the command line shows it.

Time is told from steps and evaluations that were done: no arithmetic knows when answers end or judges
reply. It is told again only when the end moves out of the interval that was given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from burnish.bench.statistics import Estimate
from burnish.texts import counted
from burnish.training.data import AnswerBudget, PromptReport
from burnish.training.forecast import Forecast

FEW = 3
"""Quick steps that are measured before anything is told."""
SLOW_S = 20.0
"""A step of so many seconds is told of at once."""
SHORT_RUN = 10
"""A run of fewer steps waits for its second step: the first one warms up."""
WARM_UP = 4.0
"""The first step may take so many times as long as the others."""
RECENT = 9
"""Steps that count: answers grow and shrink in the course of a run."""
WORTH_S = 10.0
"""By less than this the end may move without a word."""


class Work(NamedTuple):
    steps: int
    evaluations: int = 0
    saves: int = 0
    stage: str = ""
    later: int = 0
    """Steps of later stages and of the main training, of which nothing is known yet."""


@dataclass(frozen=True)
class TimeLeft:
    """How long the rest will take, from what was measured."""

    low_s: float
    high_s: float
    measured: int
    step: int
    work: Work
    unknown: int = 0
    """Evaluations ahead, none of which was measured."""

    @property
    def middle_s(self) -> float:
        return (self.low_s + self.high_s) / 2

    def __str__(self) -> str:
        """`about 12 to 16 min for the 27 steps and 1 evaluation left, from 3 steps`."""
        work, of = self.work, f" of {self.work.stage}" if self.work.stage else ""
        rest = [f"{counted(work.steps, 'step')}{of}"] if work.steps else []
        if work.evaluations and not self.unknown:
            rest.append(counted(work.evaluations, "evaluation"))
        what = " and ".join(rest) or "what is"
        line = f"about {span(self.low_s, self.high_s)} for the {what} left, from "
        is_first = self.measured == 1
        line += "the first step, which warms up" if is_first else counted(self.measured, "step")
        if self.unknown:
            line += f"; {counted(self.unknown, 'evaluation')}, not measured yet, on top"
        if work.later:
            line += f"; then {counted(work.later, 'step')}, not measured yet"
        return line


@dataclass
class Pace:
    steps: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)
    is_evaluated: bool = True
    """False once an evaluation found nothing held out."""
    _told: tuple[float, float] | None = None
    """The moments between which the end was announced."""

    def begin_stage(self) -> None:
        self.steps.clear()
        self._told = None

    def left(self, step: int, work: Work) -> TimeLeft | None:
        if not self.steps:
            return None
        if not self.is_evaluated:
            work = work._replace(evaluations=0)
        low = high = 0.0
        unknown = 0
        for seconds, count in (
            (self.steps, work.steps),
            (self.evaluations, work.evaluations),
            (self.saves, work.saves),
        ):
            if not seconds:
                # A save that was not measured is a small thing; an evaluation is not.
                unknown += count if seconds is self.evaluations else 0
                continue
            shortest, longest = likely(seconds)
            if seconds is self.steps and len(seconds) == 1:
                shortest = seconds[0] / WARM_UP
            low, high = low + count * shortest, high + count * longest
        return TimeLeft(low, high, len(self.steps), step, work, unknown)

    def tell(self, step: int, work: Work) -> TimeLeft | None:
        found = self.left(step, work)
        if found is None or not work.steps:
            return None
        if len(self.steps) < FEW and max(self.steps) < SLOW_S:
            return None
        if len(self.steps) == 1 and step + work.steps < SHORT_RUN:
            return None
        now = time.monotonic()
        if self._told is not None:
            first, last = self._told
            end = now + found.middle_s
            if first - WORTH_S <= end <= last + WORTH_S:
                return None
        self._told = (now + found.low_s, now + found.high_s)
        return found


def likely(seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds between which one more piece of such work will most likely take.

    The first piece of all warms up and counts only where there are few. The widest fifths are left
    out, and few measurements are trusted less.
    """
    recent = sorted((seconds[1:] if len(seconds) > 2 else seconds)[-RECENT:])
    trim = len(recent) // 5
    width = 1 + 0.5 / len(recent)
    return recent[trim] / width, recent[-1 - trim] * width


def span(low_s: float, high_s: float) -> str:
    """Two durations in the unit of the longer one: `12 to 16 min`, `50 s`, `1.5 to 2 h`."""
    unit, name = next(
        (u, n) for u, n in ((3600.0, "h"), (60.0, "min"), (1.0, "s")) if high_s >= 2 * u or u == 1
    )

    def rounded(value: float) -> str:
        """Two digits: a measured time is no more exact."""
        if value < 10:
            return f"{value:.1f}".removesuffix(".0")
        digits = 10 ** (math.floor(math.log10(value)) - 1)
        return f"{round(value / digits) * digits:.0f}"

    low, high = (rounded(seconds / unit) for seconds in (low_s, high_s))
    if high == "0":
        return "1 s"
    return f"{high} {name}" if low == high else f"{low} to {high} {name}"


@dataclass(frozen=True)
class Started:
    folder: Path
    model: str
    parameters: int
    trained_parameters: int
    device: str
    dtype: str
    threads: int
    steps: int
    done: int
    """Steps already done by an earlier start of this run."""
    forecast: Forecast
    prompts: PromptReport
    answers: AnswerBudget
    again: int = 0
    """Steps of an earlier start that no checkpoint holds: they are done once more."""


@dataclass(frozen=True)
class Calibrated:
    """The start model's rewards, in which those of the run are measured."""

    count: int
    mean: Mapping[str, float]
    deviation: Mapping[str, float]
    constant: tuple[str, ...] = ()
    """Rewards that were the same for all answers: their first change will be clipped."""


@dataclass(frozen=True)
class Preparing:
    """Work before the first step under way, told every ten seconds."""

    doing: str
    unit: str
    done: int
    total: int
    seconds: float

    def __str__(self) -> str:
        share = f"{100 * self.done // max(self.total, 1)} % of {self.total:,} {self.unit}"
        return f"{self.doing}, {share}, {self.seconds:.0f} s"


@dataclass(frozen=True)
class Prepared:
    what: str
    line: str


@dataclass(frozen=True)
class StageBegun:
    """A stage of the curriculum: it goes on to harder tasks."""

    stage: int
    stages: int
    tasks: int
    step: int


@dataclass(frozen=True)
class StepDone:
    step: int
    steps: int
    metrics: Mapping[str, float]
    useful_groups: int
    groups: int
    seconds: float
    tokens_per_s: float
    remaining_s: float | None
    """Of this stage with its evaluations and checkpoints; None before a step was measured."""
    reused: bool
    """The rollouts were read back from an interrupted start instead of sampled."""
    stage: str = ""


@dataclass(frozen=True)
class Evaluating:
    """A held-out evaluation under way, told every ten seconds."""

    step: int
    doing: str
    done: int
    total: int
    """Prompts of the sampler, answers of a reward; of this process where there are several."""
    seconds: float

    def __str__(self) -> str:
        of = f"{self.done} of {self.total}"
        is_sampler = self.doing == "sampler"
        what = f"{of} prompts" if is_sampler else f"{self.doing}, {of} answers"
        return f"{what}, {self.seconds:.0f} s"


@dataclass(frozen=True)
class HeldOut:
    step: int
    score: Estimate | None
    valid: int
    count: int
    measure: str = "reward"
    """What the score is: `reward`, or `loss` of held-out demonstrations or `bits_per_byte` of
    held-out text (lower is better)."""
    beside: str = ""


@dataclass(frozen=True)
class Saved:
    step: int
    path: Path


@dataclass(frozen=True)
class Finished:
    status: str
    reason: str
    folder: Path
    before: Estimate | None = None
    after: Estimate | None = None
    change: Estimate | None = None
    """Paired over the held-out prompts."""
    seconds: float = 0.0
    measure: str = "reward"
    evaluations: int = 0
    """Held-out evaluations that were done, also those in which nothing could be scored."""
    is_trained: bool = True
    """An update has moved the weights: there is a trained model."""


Event = (
    Started
    | Calibrated
    | Preparing
    | Prepared
    | StageBegun
    | StepDone
    | TimeLeft
    | Evaluating
    | HeldOut
    | Saved
    | Finished
)
