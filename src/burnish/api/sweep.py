"""Many runs of one recipe: a grid of settings times seeds, as many at once as fit.

The same call continues a sweep. Each run is trained by `burnish train` in a process of its own; the
first one's forecast and the free memory say how many fit. A child's events come through a pipe: Ctrl-C
is passed on to it, and a child whose parent is gone ends at its next event and can be continued.
"""

from __future__ import annotations

import html
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from burnish.api.needs import find_torch
from burnish.api.sweep_plan import (
    Grid,
    RunState,
    SweepPlan,
    as_axes,
    flat_keys,
    plan_sweep,
    refresh,
    remember,
)
from burnish.bench.run_tables import RunTable, run_table
from burnish.boundary import PositiveInt, Seed, public
from burnish.lm.base import shipped_model
from burnish.lm.hardware import free_memory, usable_cores
from burnish.store import RunStore, manifest
from burnish.store.durable import store_errors
from burnish.store.manifest import lock_sweep
from burnish.texts import toml_value
from burnish.tools.supervisor import ChildProcess

SPARE = 0.9
"""Share of the free memory that runs may take together."""
PROCESS_BYTES = 512 << 20
"""What Python, torch and, on a GPU, its context take beside what a forecast counts."""
BYTES_A_PARAMETER = 16
"""Weights, gradients and two moments in float32: the first guess, before a run's own forecast."""
SHIPPED = {"tiny": 115_264, "smollm2": 134_515_008}
"""Parameters of the models that come with burnish."""
GRACE_S = 120.0
"""How long an interrupted run may take to end its step and close its store."""
POLL_S = 5.0
"""How often a thread looks whether a run that says nothing more has ended."""
TAIL = 40
"""Lines of a child's complaints that are kept."""
DEVICES = "CUDA_VISIBLE_DEVICES"
TRAIN = (sys.executable, "-m", "burnish", "train")
"""The command of a child."""


class SweepEvent(NamedTuple):
    """Something that happened in a sweep."""

    kind: str
    """jobs, started, progress, finished, failed or interrupted."""
    state: RunState | None = None
    text: str = ""
    """Of `jobs`: how many runs go on at once, and why."""


@dataclass(frozen=True, repr=False)
class SweepResult:
    """What a sweep came to: its runs, and their table over seeds.

    >>> from burnish.api.sweep import SweepResult
    >>> SweepResult("tiny-sweep-0", [], None)
    <sweep tiny-sweep-0: 0 of 0 runs finished>
    """

    name: str
    runs: list[RunState]
    table: RunTable | None
    """None where fewer than two runs were started."""

    def __repr__(self) -> str:
        done = sum(state.status == "finished" for state in self.runs)
        return f"<sweep {self.name}: {done} of {len(self.runs)} runs finished>"

    def _repr_html_(self) -> str:
        table = "" if self.table is None else f"<pre>{html.escape(repr(self.table))}</pre>"
        return f"<p>{html.escape(repr(self))}</p>{table}"


@public
def sweep(
    recipe: str | Path,
    grid: Mapping[str, object] | None = None,
    *,
    seeds: PositiveInt | Annotated[list[Seed], Meta(min_length=1)] = 1,
    settings: Mapping[str, object] | None = None,
    runs: Path | None = None,
    jobs: PositiveInt | None = None,
    sample: PositiveInt | None = None,
    retry: bool = False,
    name: str = "",
    show: Callable[[SweepEvent], object] | None = None,
) -> SweepResult:
    """Train every combination of a grid with every seed, and compare them.

    `grid` maps dotted keys to lists of values; `settings` are the same for all runs. `seeds` is a
    count or a list. `jobs` runs go on at once, chosen for the machine where not given. `show` is
    called with every event.

    >>> small = {"steps": 1, "rollout.prompts": 1, "evaluation.prompts": 2}
    >>> found = sweep("tiny", {"optimiser.learning_rate": [1e-3]}, settings=small)
    >>> [(state.label, state.status) for state in found.runs]
    [('learning_rate=0.001 seed=0', 'finished')]
    """
    shared = [f"{key}={toml_value(value)}" for key, value in flat_keys(settings or {}).items()]
    own = Grid([str(recipe), *shared], as_axes(grid or {}), seeds, sample, name)
    plan = plan_sweep(own, runs)
    for event in run_sweep(plan, jobs=jobs, retry=retry):
        if show is not None:
            show(event)
    return SweepResult(plan.record.name, plan.states, compare_sweep(plan))


def compare_sweep(plan: SweepPlan) -> RunTable | None:
    """The table of the runs that were started; None for fewer than two."""
    started = [s.folder for s in plan.states if (s.folder / manifest.FILE).is_file()]
    if len(started) < 2:
        return None
    with ExitStack() as stack:
        stores = [stack.enter_context(RunStore.open(f, read_only=True)) for f in started]
        return run_table(stores, keys=list(plan.record.grid))


def run_sweep(
    plan: SweepPlan, *, jobs: int | None = None, retry: bool = False
) -> Iterator[SweepEvent]:
    """Train what is not finished; leaving the loop early stops the runs under way cleanly."""
    find_torch()
    with store_errors(f"make {plan.folder}", plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
    # Invariant: one process trains a sweep. Of two, each would count the other's runs as failed.
    with ExitStack() as stack:
        stack.callback(lock_sweep(plan.folder, plan.record.name).release)
        remember(plan)  # another process may have trained it since the plan was made
        for state in plan.states:
            if retry and state.status == "failed":
                state.status, state.reason, state.run.failure = "interrupted", "", ""
        plan.save()
        pending = [state for state in plan.states if state.status in ("waiting", "interrupted")]
        for event in Jobs(plan, pending, jobs).run() if pending else ():
            if event.kind == "failed" and event.state is not None:
                event.state.run.failure = event.state.reason
                plan.save()
            yield event


# --- processes


class Gpu(NamedTuple):
    """A GPU that runs may use."""

    name: str
    """As CUDA_VISIBLE_DEVICES takes it."""
    free: int


Said = tuple[RunState, dict[str, Any] | None, int]
"""What a child said, or None with its exit code at its end."""


class Child:
    """One run under way."""

    def __init__(
        self, state: RunState, words: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.state = state
        self.gpu = environment.get(DEVICES, "")
        self.complaints: deque[str] = deque(maxlen=TAIL)
        (events, to_events), (errors, to_errors) = os.pipe(), os.pipe()
        self._events = os.fdopen(events, encoding="utf-8", errors="replace")
        self._errors = os.fdopen(errors, encoding="utf-8", errors="replace")
        try:
            self.process = ChildProcess(
                [*TRAIN, *words], env=environment, stdout=to_events, stderr=to_errors
            )
        finally:
            os.close(to_events)
            os.close(to_errors)

    def listen(self, said: queue.Queue[Said]) -> None:
        """Read both pipes in threads; the exit code comes after the last event."""

        def complain() -> None:
            with self._errors:
                self.complaints.extend(line.rstrip() for line in self._errors if line.strip())

        complaining = threading.Thread(target=complain, daemon=True)
        complaining.start()
        threading.Thread(target=self._read_events, args=(said, complaining), daemon=True).start()

    def _read_events(self, said: queue.Queue[Said], complaining: threading.Thread) -> None:
        with self._events:
            for line in self._events:
                try:
                    said.put((self.state, msgspec.json.decode(line), 0))
                except msgspec.DecodeError:
                    self.complaints.append(line.rstrip())  # a function of the user's own prints
        while (code := self.process.wait(POLL_S)) is None:
            pass
        complaining.join(POLL_S)
        said.put((self.state, None, code))

    def reason(self, code: int) -> str:
        """Why it failed, in one line."""
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        own = [line for line in self.complaints if line.startswith("burnish: ")]
        line = (own or self.complaints or [f"exit code {code}"])[-1]
        return line.removeprefix("burnish: ")

    def interrupt(self) -> None:
        """What Ctrl-C does to a run in a terminal; one that ended already is left alone."""
        if self.process.is_alive:
            os.kill(self.process.pid, signal.SIGINT)


class Jobs:
    """Runs that wait, runs under way, and how many there may be."""

    def __init__(self, plan: SweepPlan, pending: Sequence[RunState], asked: int | None) -> None:
        self.plan = plan
        self.pending = deque(pending)
        self.asked = asked
        self.cores = usable_cores()
        self.gpus = [] if plan.device == "cpu" else find_gpus()
        if plan.device.startswith("cuda:"):
            self.gpus = self.gpus[:1]  # the setting says which one
        # Runs that the cores, and a guess of the model's size, allow.
        self.most = asked or max(1, self.cores // max(1, plan.threads))
        if not asked and not self.gpus:
            need = PROCESS_BYTES + BYTES_A_PARAMETER * parameters_of(plan.model)
            self.most = max(1, min(self.most, int(SPARE * free_memory() / need)))
        self.at_once = asked or max(1, len(self.gpus))
        """Of an automatic number, one run (a GPU) until the first forecast is there."""
        self.is_settled = asked is not None
        self.under_way: dict[str, Child] = {}
        self.said: queue.Queue[Said] = queue.Queue()

    def run(self) -> Iterator[SweepEvent]:
        """Train them all; whoever leaves early stops what is under way."""
        if self.is_settled:
            yield SweepEvent("jobs", text=f"{self._count()}, {self.asked} at once, as asked")
        try:
            while self.pending or self.under_way:
                while self.pending and len(self.under_way) < self.at_once:
                    yield self._start(self.pending.popleft())
                yield from self._heard(self.said.get())
        finally:
            # Interrupt what is under way and wait for it; who asks again kills it.
            left = list(self.under_way.values())
            deadline = time.monotonic() + GRACE_S
            try:
                for child in left:
                    child.interrupt()
                for child in left:
                    child.process.wait(max(0.1, deadline - time.monotonic()))
            except KeyboardInterrupt:
                pass
            finally:
                for child in left:
                    if child.process.is_alive:
                        child.process.kill()
                    refresh(child.state)
                self.under_way.clear()

    def _count(self) -> str:
        count = len(self.pending) + len(self.under_way)
        return f"{count} run{'s' * (count != 1)} to train"

    def _start(self, state: RunState) -> SweepEvent:
        words = [*state.run.words, "--json", "--runs", str(self.plan.folder)]
        # Not model.threads: that is a setting of the run, and would give it another name.
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        if self.gpus and not self.plan.device.startswith("cuda:"):
            taken = [child.gpu for child in self.under_way.values()]
            environment[DEVICES] = min((gpu.name for gpu in self.gpus), key=taken.count)
        child = Child(state, words, environment)
        self.under_way[state.run.name] = child
        child.listen(self.said)
        state.status, state.reason = "running", ""
        return SweepEvent("started", state)

    @property
    def threads(self) -> int:
        """Of each run: the cores divided by the runs at once."""
        runs = min(self.most, len(self.pending) + len(self.under_way) + 1)
        return max(1, self.cores // max(1, runs))

    def _heard(self, said: Said) -> Iterator[SweepEvent]:
        state, event, code = said
        if event is None:
            yield self._ended(state, code)
            return
        kind = event.get("event")
        if kind == "started":
            state.step, state.steps = event["done"], event["steps"]
            if not self.asked:
                yield from self._fit(event["forecast"])
        elif kind == "step" and not event.get("stage"):
            state.step, state.remaining_s = event["step"] + 1, event["remaining_s"]
        elif kind == "held_out":
            score = event["score"]
            value = score["value"] if score else None
            state.before, state.after = (
                (value, None) if event["step"] == 0 else (state.before, value)
            )
        elif kind == "finished" and event["status"] == "stopped":
            state.reason = event["reason"]
        yield SweepEvent("progress", state)

    def _ended(self, state: RunState, code: int) -> SweepEvent:
        child = self.under_way.pop(state.run.name)
        guard = state.reason
        state.run.failure, state.remaining_s = "", None
        if code == 0:
            refresh(state)
        elif code in (130, -signal.SIGINT):
            state.status, state.reason = "interrupted", ""
        else:
            state.status, state.reason = "failed", guard or child.reason(code)
        return SweepEvent(state.status, state)

    # --- how many at once

    def _fit(self, forecast: Mapping[str, Any]) -> Iterator[SweepEvent]:
        """Settle the number at the first forecast; a later run that needs more can only lower it."""
        memory, available = forecast["memory"], forecast["available"]
        total = sum(memory.values()) + PROCESS_BYTES
        # The weights of the run that speaks are loaded: they are no longer part of what is free.
        rest = SPARE * available - (total - PROCESS_BYTES - memory.get("weights", 0))
        more = max(0, int(rest / total))
        if self.is_settled:
            self.at_once = max(1, min(self.at_once, len(self.under_way) + more))
            return
        places = max(1, len(self.gpus))
        self.most = self.at_once = min(self.most, (1 + more) * places)
        self.is_settled = True
        where = f"{len(self.gpus)} GPU{'s' * (len(self.gpus) != 1)}" if self.gpus else "memory"
        yield SweepEvent(
            "jobs",
            text=f"{self._count()}, {self.at_once} at once: {self.cores} "
            f"core{'s' * (self.cores != 1)}, {self.threads} thread{'s' * (self.threads != 1)} each; a "
            f"run needs about {total / 2**30:.1f} GiB, {available / 2**30:.1f} GiB of {where} are free",
        )


def parameters_of(model: str) -> int:
    """About how many parameters a model has: two bytes each in its files at least."""
    if shipped := shipped_model(model):
        return SHIPPED[shipped]
    try:
        return sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) // 2
    except OSError:
        return 0


def find_gpus() -> list[Gpu]:
    """The GPUs that a child may be given, without loading torch here; none where there are none."""
    visible = os.environ.get(DEVICES)
    program = shutil.which("nvidia-smi")
    if program is None or visible in ("", "-1"):
        return []
    query = [program, "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    found = {row[0]: Gpu(row[0], int(row[2]) << 20) for row in rows if row[-1].isdigit()}
    if visible is None:
        return list(found.values())
    by_uuid = {row[1]: found[row[0]] for row in rows if row[0] in found}
    named = {**found, **by_uuid}
    return [named[name]._replace(name=name) for name in visible.split(",") if name in named]
