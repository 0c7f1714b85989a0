"""What speed.py and its child processes tell each other: jobs, and raw measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct


class Rates(Struct, frozen=True):
    """What the device was seen to do at its best."""

    bytes_per_s: float
    """Of a large copy, bytes read plus bytes written."""
    operations_per_s: float
    """Of a large matrix product in the dtype."""


class StepSize(Struct, frozen=True, kw_only=True):
    """One size of the whole reinforcement-learning step."""

    prompts: int
    samples: int
    max_tokens: int
    steps: int
    warm: int = 3
    """Steps left out of the median."""
    peer_steps: int = 0
    peer_warm: int = 1
    learning_rate: float = 1e-5
    warmup_steps: int = 0
    instruction: str = "Answer with only the number."
    questions: int = 0
    """Held-out questions answered greedily before and after; 0: none."""

    @property
    def label(self) -> str:
        return f"{self.prompts} x {self.samples} x {self.max_tokens}"


class Tail(Struct, frozen=True):
    """A batch whose rows end where the model ends their first line."""

    rows: int
    longest: int
    """Budget of every row."""


class Plan(Struct, frozen=True, kw_only=True):
    """Everything that is measured on one device."""

    dtypes: tuple[str, ...]
    train_dtype: str
    batches: tuple[int, ...]
    new_tokens: tuple[int, ...]
    samples: int
    """Rollouts of a prompt in the grouped layout."""
    tails: tuple[Tail, ...]
    steps: tuple[StepSize, ...]
    learn: StepSize
    memory: tuple[StepSize, ...]


class DeviceJob(Struct, frozen=True):
    """Which device to look at."""

    device: str
    quick: bool


class Device(Struct, frozen=True, kw_only=True):
    """What everything was measured on."""

    kind: str
    """cuda or cpu."""
    name: str
    threads: int
    memory_bytes: int
    python: str
    versions: dict[str, str]
    rates: dict[str, Rates]
    """By dtype."""


class GenerationJob(Struct, frozen=True, kw_only=True):
    """Work of `_speed_generation.py`."""

    part: str
    """generation or tail."""
    plan: Plan
    rates: dict[str, Rates]
    model: str
    device: str
    repeats: int
    patience_s: float
    cache: str = ""
    """`cache_implementation` of transformers' generate; empty: its default."""
    gsm8k: str = ""
    """A GSM8K file; empty: arithmetic."""


class Row(Struct, frozen=True, kw_only=True):
    """One measurement, raw."""

    program: str
    """burnish or generate."""
    layout: str
    """groups, distinct; for the tail: tail, full."""
    dtype: str
    batch: int
    new_tokens: int
    """Budget of the longest row."""
    measured_tokens: int
    """New tokens of the longest row in the runs that were timed."""
    tokens: int
    """New tokens of all rows of one run."""
    prompt_tokens: int
    """Of all rows, a shared prompt counted for each."""
    warm_up_s: float
    seconds: list[float]
    floor_s: float
    lengths: list[int] = msgspec.field(default_factory=list)
    """New tokens of each row of one run, where rows may end before their budget."""
    note: str = ""


class StepJob(Struct, frozen=True, kw_only=True):
    """Work of `_burnish_step.py` and `_trl_step.py`."""

    size: StepSize
    rates: Rates
    model: str
    device: str
    dtype: str
    threads: int = 0
    """CPU threads of torch; 0: its own choice."""
    watch_memory: bool = False
    """Rows run to their full budget and every group has signal, as the forecast assumes."""
    accumulate: int = 1
    """Backward passes a step, for the peer where one does not fit."""


class Step(Struct, frozen=True, kw_only=True):
    """One step, raw."""

    seconds: float
    """Wall clock, the device synchronised."""
    rollout_s: float
    score_s: float
    update_s: float
    tokens: int
    """Sampled."""
    rollouts: int
    computed_tokens: int
    """That the update must compute: prompts of useful groups once, their responses."""
    trained_tokens: int
    floor_s: float
    mismatch: float | None
    """Mean absolute difference of the sampler's and the trainer's log-probs; None where no group
    had signal and so nothing was updated."""


class Accuracy(Struct, frozen=True):
    """A held-out evaluation."""

    step: int
    value: float | None
    questions: int


class Result(Struct, frozen=True, kw_only=True):
    """What a run of steps took."""

    program: str = "burnish"
    steps: list[Step]
    accuracy: list[Accuracy]
    peak_bytes: int
    peak_kind: str
    forecast_bytes: dict[str, int]
    update_bytes: int
    """Added by updates at their peak; see `_speed_memory.UpdateMemory`."""


class PeerResult(Struct, frozen=True, kw_only=True):
    """What a run of steps took."""

    program: str = "trl"
    seconds: list[float]
    """From the end of one optimiser step to the end of the next."""
    tokens: list[int]
    rollouts: int
    peak_bytes: int
    peak_kind: str
    accumulate: int
    out_of_memory: bool = False


J = TypeVar("J")


def read_job(kind: type[J]) -> tuple[J, Path]:
    """A child's job and the file its result belongs in, from its two arguments."""
    return msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=kind), Path(sys.argv[2])


def say(line: str) -> None:
    """A progress line; the parent lets lines through that begin like this."""
    print(f"speed: {line}", file=sys.stderr, flush=True)
