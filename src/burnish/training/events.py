"""What a training run says while it works; the command line decides how to show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from burnish.bench.statistics import Estimate
from burnish.training.data import AnswerBudget, PromptReport
from burnish.training.forecast import Forecast
from burnish.training.pace import TimeLeft


@dataclass(frozen=True)
class Started:
    """Everything is built; nothing is trained yet."""

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
    """Since it began."""

    def __str__(self) -> str:
        """`tokenising the text, 40 % of 1,000,000 bytes, 12 s`."""
        share = f"{100 * self.done // max(self.total, 1)} % of {self.total:,} {self.unit}"
        return f"{self.doing}, {share}, {self.seconds:.0f} s"


@dataclass(frozen=True)
class Prepared:
    """Something that is done before the first step."""

    what: str
    """One word, such as `text`."""
    line: str
    """What came of it."""


@dataclass(frozen=True)
class StageBegun:
    """A stage of the curriculum: it goes on to harder tasks."""

    stage: int
    stages: int
    tasks: int
    step: int


@dataclass(frozen=True)
class StepDone:
    """One step of the main training or of a stage, done and stored."""

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
    """Name of the stage that it is a step of; empty for the main training."""


@dataclass(frozen=True)
class Evaluating:
    """A held-out evaluation under way, told every ten seconds."""

    step: int
    """Steps made before it."""
    doing: str
    """`sampler`, or `reward NAME`."""
    done: int
    total: int
    """Prompts of the sampler, answers of a reward; of this process where there are several."""
    seconds: float
    """Since the evaluation began."""

    def __str__(self) -> str:
        """`40 of 100 prompts, 12 s`, `reward my_judge, 12 of 100 answers, 31 s`."""
        of = f"{self.done} of {self.total}"
        is_sampler = self.doing == "sampler"
        what = f"{of} prompts" if is_sampler else f"{self.doing}, {of} answers"
        return f"{what}, {self.seconds:.0f} s"


@dataclass(frozen=True)
class HeldOut:
    """A held-out evaluation."""

    step: int
    score: Estimate | None
    valid: int
    count: int
    measure: str = "reward"
    """What the score is: `reward`, or `loss` of held-out demonstrations or `bits_per_byte` of
    held-out text (lower is better)."""
    beside: str = ""
    """What the score is to be compared with, in words."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint."""

    step: int
    path: Path


@dataclass(frozen=True)
class Finished:
    """The end of the run and, where it stopped early, why."""

    status: str
    """finished or stopped."""
    reason: str
    folder: Path
    before: Estimate | None = None
    after: Estimate | None = None
    change: Estimate | None = None
    """Paired over the held-out prompts."""
    seconds: float = 0.0
    measure: str = "reward"
    """What was evaluated, as in `HeldOut`."""
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
