"""One trainer for every kind of training: steps, guards, evaluation, checkpoints and exact resume.

`Trainer.run()` yields events and keeps nothing that is not also in the run folder. Stages run first,
on the same weights, each with its own algorithm and optimiser. Killed at any moment, the next start
continues from the newest checkpoint; steps that were already sampled and scored after it are read back
from the store, and on the CPU weights and metrics come out bit for bit as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from burnish.activity import Activity, moved, observed, told_every, waiting_for
from burnish.config.schema import Checkpoint, Optimiser
from burnish.errors import (
    BurnishError,
    GuardTripped,
    NoServer,
    ProcessDied,
    StoreError,
    UserError,
    is_out_of_memory,
)
from burnish.lm.base import Sampler
from burnish.lm.hardware import device_full
from burnish.models.norm_report import LayerWatch, last_quarter, without_layers
from burnish.rewards.function import FunctionReward
from burnish.rewards.scorer import leaves
from burnish.source import describe
from burnish.store import STAGE, RunStore
from burnish.store.durable import remove_drafts, remove_folder, store_errors, whole_folder
from burnish.store.processes import Death, ProcessRecord, death_line
from burnish.tasks.base import TaskSet
from burnish.texts import counted, run_word, shown_path
from burnish.training import checkpoint, metrics
from burnish.training.algorithm import (
    AnyAlgorithm,
    HeldOutScores,
    Parts,
    Setup,
    StepResult,
    StepUndone,
)
from burnish.training.checkpoint import TrainState, save_crash
from burnish.training.devices import PeerLost
from burnish.training.events import (
    Evaluating,
    Event,
    Finished,
    HeldOut,
    Pace,
    Preparing,
    Saved,
    Started,
    StepDone,
    Work,
)
from burnish.training.forecast import Forecast
from burnish.training.guards import name_samples
from burnish.training.optimiser import MasterAdamW, learning_rate
from burnish.training.trackers import Trackers
from burnish.training.trainable import Trainable
from burnish.training.update import Updater
from burnish.training.watchdog import Watchdog, calm_collector, died_before
from burnish.user_code import restored

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

TELL_S = 10.0
FINAL = "final"


@dataclass
class Stage:
    name: str
    steps: int
    settings: Optimiser
    checkpoint: Checkpoint
    setup: Setup
    algorithm: AnyAlgorithm
    optimiser: MasterAdamW
    state: TrainState
    forecast: Forecast
    updater: Updater = field(init=False)

    def __post_init__(self) -> None:
        self.updater = Updater(self.algorithm, self.optimiser, self.setup.batches)

    @property
    def checkpoints(self) -> Path:
        return self.setup.folder if self.name else self.setup.folder / "checkpoints"

    def step_name(self, step: int) -> str:
        """A step from 0 as people count."""
        return f"step {step + 1} of {self.name}" if self.name else f"step {step + 1}"


@dataclass(kw_only=True)
class Trainer(Parts):
    """A run's live objects; built by `burnish.training.builder`."""

    store: RunStore
    trainable: Trainable
    threads: int
    stage: Stage
    next_stage: Callable[[], Stage]
    """Opens the stage after the one under way, on the weights that this one left."""
    trackers: Trackers | None = None
    pace: Pace = field(default_factory=Pace)
    warned: set[str] = field(default_factory=set)
    """Changes of the process by the user's functions that were reported."""
    watchdog: Watchdog | None = None
    tell: Callable[[Event], None] = lambda event: None
    """Hears of `Evaluating`, which comes while `run` is at work and cannot be yielded."""
    is_between_steps: bool = False
    """The last step is done and the next has not begun: evaluations, checkpoints, the end."""
    has_ended: bool = False
    saved_step: int = 0

    @property
    def folder(self) -> Path:
        return self.store.folder

    @property
    def tasks(self) -> TaskSet:
        return self.stage.setup.data.tasks

    @property
    def forecast(self) -> Forecast:
        return self.stage.forecast

    @property
    def state(self) -> TrainState:
        return self.stage.state

    @property
    def algorithm(self) -> AnyAlgorithm:
        return self.stage.algorithm

    @property
    def lm(self) -> Sampler:
        return self.stage.setup.lm

    @property
    def optimiser(self) -> MasterAdamW:
        return self.stage.optimiser

    def run(self) -> Iterator[Event]:
        self.loop.around = functools.partial(restored, self._warn_of_change)
        try:
            with self._watched(), calm_collector():
                for event in self._events():
                    if self.trackers is not None:
                        self.trackers.see(event)
                    with waiting_for("whoever reads the run's events, to take the next"):
                        yield event
        finally:
            self.loop.close()
            if self.trackers is not None:
                self.trackers.close()
            if self.paid is not None:
                self.paid.close()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Around the run: signs of life, a word where nothing moves, and last words at its end."""
        record = ProcessRecord(self.folder, self.world.rank, self.world.size)
        quiet_s, is_main = self.config.guards.quiet_s, self.world.is_main
        with Watchdog(
            record, quiet_s, self._next_step, is_main=is_main, loop=self.loop.running
        ) as watchdog:
            self.watchdog = watchdog
            try:
                yield
            except GeneratorExit:
                raise  # whoever reads the events has left, and knows why
            except BaseException as error:
                watchdog.note(error)
                died: list[Death] = []
                is_own = isinstance(error, BurnishError | KeyboardInterrupt)
                if self.world.size > 1 and (not is_own or isinstance(error, PeerLost)):
                    died = died_before(record)
                if not died:
                    self.note_end(error)
                    raise
                # What this error follows from. Told at once: a launcher that ends the other processes
                # may leave this one no time to report it.
                line = "; then ".join(map(death_line, died))
                if is_main:
                    logger.warning("%s", line)
                first = ProcessDied(line)
                self.note_end(first)
                raise first from error

    def note_end(self, error: BaseException) -> None:
        """Store why the run ends early, once, for whoever lists or opens it."""
        if self.has_ended:
            return
        try:
            self._end(*ending(error), error)
        except StoreError as failed:
            logger.warning("why the run ended could not be stored: %s", failed)

    def _end(
        self, status: str, reason: str, error: BaseException | None = None, **result: Any
    ) -> None:
        self.has_ended = True
        if self.world.is_main:
            # From 0; one that is done counts.
            last = max(0, self.state.step - 1) if self.is_between_steps else self._next_step()
            about = {"reason": reason, "step": last, **result}
            if error is not None:
                about["exception"] = type(error).__name__
            self.store.finish(status, about)

    def _next_step(self) -> int:
        """The step under way, from 0; the last one while what follows it is done."""
        return max(0, min(self.state.step, self.stage.steps - 1))

    def _warn_of_change(self, what: str) -> None:
        if what in self.warned:
            return
        self.warned.add(what)
        parts = leaves(self.scorer) if self.scorer else ()
        own = [part.name for part in parts if isinstance(part, FunctionReward)]
        who = f"reward '{own[0]}'" if len(own) == 1 else "a reward or judge function"
        line = f"{who} changed {what}; it was set back, and the run goes on."
        logger.warning(line)
        # A store that fails now fails at the next write too, which is not on the way out of
        # another error and reports it.
        with contextlib.suppress(StoreError):
            if self.world.is_main:
                self.store.append_event("user_code", line, {}, self.state.step)

    def _events(self) -> Iterator[Event]:
        began = time.perf_counter()
        if self.world.is_main:
            self._store_forecast()
        yield self._started()
        stop = yield from self._train()
        while self.stage.name and not stop:
            yield self._end_stage()
            stop = yield from self._train()
        yield self._finish(stop, time.perf_counter() - began)

    def _train(self) -> Generator[Event, None, str]:
        """The steps of the stage under way; returns why it stopped early, if it did."""
        stage = self.stage
        self.saved_step = self.state.step
        tellers: dict[str, Callable[[Activity], None]] = {}  # work in two parts has one clock
        for what, work in stage.algorithm.prepare():
            with (
                observed(tellers.setdefault(what, self._teller(Preparing))),
                self.trainable.whole(),
            ):
                done = self.guarded(work, what)
            yield done
        evaluates = self.config.evaluation.prompts > 0 and not stage.name
        if evaluates and self.state.step == 0:
            yield from self._evaluate()
        stop = ""
        while self.state.step < stage.steps and not stop:
            what = stage.step_name(self.state.step)
            self.is_between_steps = False
            try:
                step_done, stop = self.guarded(self._step, what, keeps=True)
            except StepUndone as undone:
                if self.state.step and not stage.name:
                    yield self._save()
                return str(undone)
            self.is_between_steps = True
            if self.watchdog is not None:
                self.watchdog.beat()
            yield step_done
            yield from self._tell_time(stop)
            if evaluates and self._is_due(self.config.evaluation.every):
                yield from self._evaluate()
            if self._is_due(stage.checkpoint.every):
                yield self._save()
        if evaluates:
            yield from self._evaluate()
        if not stage.name:
            yield self._save()
        return stop

    def _is_due(self, every: int) -> bool:
        done = self.state.step
        return every > 0 and done % every == 0 and done < self.stage.steps

    def _store_forecast(self) -> None:
        expected = self.forecast
        data = {
            "memory_bytes": expected.total,
            "available_bytes": expected.available,
            "steps": self.config.steps - self._main_steps,
            "threads": self.threads,
        }
        need, free = expected.total / 2**30, expected.available / 2**30
        line = f"{need:.3g} GiB of memory, {free:.3g} GiB free"
        self.store.append_event("forecast", line, data, self._main_steps)

    # --- time

    def _tell_time(self, stop: str) -> Iterator[Event]:
        found = None if stop else self.pace.tell(self.state.step, self._work_left())
        if found is None:
            return
        if self.world.is_main:
            names = ("low_s", "high_s", "measured")
            data = {name: getattr(found, name) for name in names}
            data |= {"stage": self.stage.name, "steps": found.work.steps}
            self.store.append_event("time", str(found), data, self._main_steps)
        yield found

    def _work_left(self) -> Work:
        stage, done = self.stage, self.state.step
        saves = _times(done, stage.steps, stage.checkpoint.every) + 1
        if stage.name:
            names = [one.name for one in self.config.stages]
            later = self.config.stages[names.index(stage.name) + 1 :]
            ahead = sum(self.config.stage_steps(one) for one in later) + self.config.steps
            return Work(stage.steps - done, 0, saves, stage.name, ahead)
        evaluation = self.config.evaluation
        evaluations = _times(done, stage.steps, evaluation.every) + 1 if evaluation.prompts else 0
        return Work(stage.steps - done, evaluations, saves)

    @property
    def _main_steps(self) -> int:
        return 0 if self.stage.name else self.state.step

    # --- guards

    def guarded(self, work: Callable[[], Result], what: str, *, keeps: bool = False) -> Result:
        """Do the work; a guard or a full device ends the run, and `what` says what it stopped.

        With `keeps`, a step that a guard stopped is kept for `burnish replay`.
        """
        try:
            return work()
        except GuardTripped as error:
            name_samples(error, self.store)
            if self.world.is_main:
                self._store_guard(error, keeps)
            raise
        except NoServer as error:
            stopped = GuardTripped(str(error), stage="judge", step=self.state.step)
            if self.world.is_main:
                self._store_guard(stopped, keeps=False)
            raise stopped from error
        except Exception as error:
            # Boundary: a full device has errors of several types; all others go on as they are.
            freed = self.forecast.advice
            lower = f", or lower what it needs: {freed}" if freed else ""
            remedy = f"Free the GPU{lower}. Checkpoints stay: the same command continues the run."
            full = device_full(error, what, remedy)
            if full is None:
                raise
            if self.world.is_main:
                self.store.append_event("device", str(full), {}, self.state.step)
            self._end("stopped", str(full), error)
            raise full from error

    def _store_guard(self, error: GuardTripped, keeps: bool) -> None:
        """Save what a replay needs and let the error's line end with how to see it again."""
        line = str(error)
        try:
            # Weights that an update broke are never written; the step can be taken again from the
            # newest checkpoint and what is stored.
            # Nor those of which this process holds a slice: the others may be at work.
            if keeps and error.stage != "weight" and self.trainable.shards is None:
                self._keep_crash(error, line)
            self.store.append_event("guard", line, {"stage": error.stage}, self.state.step)
            self._end("stopped", line, error)
        except StoreError as failed:
            error.args = (f"{line} It could not be recorded: {failed}",)

    def _keep_crash(self, error: GuardTripped, line: str) -> None:
        stage = self.stage
        name = f"{stage.name}-step" if stage.name else "step"
        place = self.folder / "crash" / f"{name}-{self.state.step + 1:06d}"
        with store_errors(f"write {place}", place):
            if not stage.algorithm.save_batch(place, error):
                return
            state = stage.algorithm.state()
            save_crash(place, error, stage.name, state, stage.updater.done)
            self.trainable.write(place / "weights")
            stage.algorithm.write(place / "weights")
        error.args = (f"{line} Saved; see it again: burnish replay {shown_path(place)}",)

    # --- one step

    def _step(self) -> tuple[StepDone, str]:
        stage, step = self.stage, self.state.step
        began = time.perf_counter()
        samples = stage.algorithm.samples_answers
        with self.trainable.whole() if samples else contextlib.nullcontext():
            batch = stage.algorithm.batch(step)
        ready = time.perf_counter()
        rate = learning_rate(stage.settings, step, stage.steps)
        result, layers = self._updated(step, batch, rate)
        report = stage.algorithm.finish(step, batch, result)
        version = self.state.weight_version + result.updates
        stage.state = msgspec.structs.replace(self.state, step=step + 1, weight_version=version)
        stage.setup.moved(version)
        now = time.perf_counter()
        numbers = {
            **report.metrics,
            **{f"loss/{name}": value for name, value in result.losses.items()},
            **({"optimiser/gradient_norm": result.gradient_norm} if result.updates else {}),
            "optimiser/learning_rate": rate,
            "optimiser/updates": float(result.updates),
            **layers,
        }
        timings = {**report.timings, "time/update_s": now - ready, "time/step_s": now - began}
        if self.world.is_main:
            self._store_metrics(step, numbers, timings)
        if not report.is_reread:
            self.pace.steps.append(now - began)
        left = self.pace.left(step + 1, self._work_left())
        spent = timings.get("time/rollout_s", timings["time/step_s"])
        tokens = 0.0 if report.is_reread else numbers.get("length/tokens", 0.0)
        done = StepDone(
            step=step,
            steps=stage.steps,
            metrics={**numbers, **timings},
            useful_groups=int(numbers.get("groups/useful", 0)),
            groups=int(numbers.get("groups/total", 0)),
            seconds=timings["time/step_s"],
            tokens_per_s=tokens / max(spent, 1e-9),
            remaining_s=left.middle_s if left else None,
            reused=report.is_reread,
            stage=stage.name,
        )
        return done, report.stop

    def _updated(self, step: int, batch: Any, rate: float) -> tuple[StepResult, dict[str, float]]:
        """The updates of a step, and figures of every layer where they are due.

        Streams are those of this process, gradients those of all; of several updates the last.
        """
        updater, every = self.stage.updater, self.config.layer_metrics_every
        if not every or step % every:
            return updater.run(step, batch, rate), {}
        with LayerWatch(self.trainable.module, only_training=True) as updater.layers:
            try:
                result = updater.run(step, batch, rate)
                watch = updater.layers
                return result, {} if watch.is_empty else watch.report().metrics()
            finally:
                updater.layers = None

    def _store_metrics(
        self, step: int, numbers: Mapping[str, float], timings: Mapping[str, float]
    ) -> None:
        """A repeated step must bring the same numbers where bits repeat: one process on a CPU.

        Elsewhere (sums in another order on a GPU or over processes) what was stored first stays.
        """
        prefix = f"{STAGE}{self.stage.name}/" if self.stage.name else ""
        numbers = {prefix + name: value for name, value in numbers.items()}
        timings = {prefix + name: value for name, value in timings.items()}
        if self.trainable.device.type == "cpu" and self.world.size == 1:
            self.store.append_metrics(step, numbers, timings=timings)
        else:
            self.store.append_metrics(step, {}, timings={**numbers, **timings})

    # --- beside the steps

    def _started(self) -> Started:
        return Started(
            folder=self.folder,
            model=self.trainable.loaded.name,
            parameters=self.trainable.parameters,
            trained_parameters=sum(p.numel() for p in self.optimiser.parameters),
            device=str(self.trainable.device),
            dtype=str(self.trainable.dtype).removeprefix("torch."),
            threads=self.threads,
            steps=self.config.steps,
            done=self._main_steps,
            forecast=self.forecast,
            prompts=self.stage.setup.prompts,
            answers=self.answers,
            again=max(0, self.store.steps_done() - self._main_steps),
        )

    def _evaluate(self) -> Iterator[Event]:
        when = f"after step {self.state.step}" if self.state.step else "before training"
        found = self.guarded(self._held_out, f"the evaluation {when}")
        if found is not None:
            yield found
            yield from self.algorithm.evaluated(found)

    def _teller(self, event: Callable[..., Event]) -> Callable[[Activity], None]:
        def tell(activity: Activity, seconds: float) -> None:
            if self.world.is_main:
                done, total = activity.done, activity.total
                self.tell(event(activity.label, activity.unit, done, total, seconds))

        return told_every(TELL_S, tell)

    def _held_out(self) -> HeldOut | None:
        """Ask the algorithm for held-out scores, unless those of this step are stored."""
        step = self.state.step
        stored = self._stored_evaluation(step)
        if stored is None:
            began = time.perf_counter()
            said = self._teller(lambda label, unit, *more: Evaluating(step, label, *more))
            with observed(said), self.trainable.whole():
                scores = self.algorithm.evaluate(step)
            if scores is None:
                self.pace.is_evaluated = False
                return None
            self.pace.evaluations.append(time.perf_counter() - began)
            stored = metrics.summary(scores)
            if self.config.layer_metrics_every and step == self.stage.steps:
                stored |= self._without_deep_layers(step, scores, stored)
            if self.world.is_main:
                self.store.append_evaluation(step, "held_out", scores.samples, stored)
        return HeldOut(
            step,
            metrics.estimate(stored),
            stored["valid"],
            stored["count"],
            stored.get("measure", "reward"),
            stored.get("beside", ""),
        )

    def _without_deep_layers(
        self, step: int, scores: HeldOutScores, stored: Mapping[str, Any]
    ) -> dict[str, Any]:
        """At the end: the same loss without the last quarter of the layers, how much they matter."""
        module = self.trainable.module
        deep = last_quarter(module) if scores.measure in ("loss", "bits_per_byte") else []
        if not deep:
            return {}
        with without_layers(module, deep):
            found = self.algorithm.evaluate(step)
        marks = [] if found is None else [mark for mark in found.marks if mark is not None]
        value = math.fsum(marks) / len(marks) if marks else math.nan
        if not math.isfinite(value):
            return {}
        said = f"without the last {counted(len(deep), 'layer')}: {value:.3f}"
        beside = "; ".join(filter(None, (stored.get("beside", ""), said)))
        return {"without_last_quarter": value, "beside": beside}

    def _stored_evaluation(self, step: int) -> dict[str, Any] | None:
        found = [e for e in self.store.evaluations("held_out") if e.step == step]
        return found[0].summary if found else None

    def _save(self) -> Saved:
        what = f"saving {self.stage.step_name(self.state.step - 1)}"
        return self.guarded(self._write_checkpoint, what)

    def _write_checkpoint(self) -> Saved:
        stage, step = self.stage, self.state.step
        began = time.perf_counter()
        with self.trainable.whole():
            if self.world.is_main:
                self.store.flush()
                moved()
                checkpoint.save(
                    stage.checkpoints,
                    stage.state,
                    stage.optimiser,
                    stage.algorithm.state(),
                    self._write_model,
                    stage.checkpoint.keep,
                    self.store,
                    self.world,
                )
            elif self.trainable.shards is not None:
                checkpoint.save_part(self.world, stage.optimiser)
        self.world.wait()
        self.pace.saves.append(time.perf_counter() - began)
        self.saved_step = step
        return Saved(step, stage.checkpoints / f"step-{step:06d}")

    def _write_model(self, folder: Path) -> None:
        self.trainable.write(folder, step=self.state.step)
        self.algorithm.write(folder)

    def _end_stage(self) -> Saved:
        place, step = self.stage.checkpoints / FINAL, self.state.step
        if self.world.is_main:
            self.store.flush()
            place.parent.mkdir(parents=True, exist_ok=True)
            remove_drafts(place.parent)
        with self.trainable.whole():
            if self.world.is_main:
                with whole_folder(place, f"the weights of stage {self.stage.name}") as draft:
                    self.guarded(functools.partial(self._write_model, draft), "saving the stage")
                for old in place.parent.glob("step-*"):
                    remove_folder(old)
        self.world.wait()
        self.pace.begin_stage()
        self.stage = self.next_stage()
        self.trainable = self.stage.setup.trainable
        return Saved(step, place)

    def _finish(self, reason: str, seconds: float) -> Finished:
        scored = self.store.metrics("status/ok").get("status/ok", [])
        if not reason and scored and not any(point.value for point in scored):
            run = run_word(self.folder)
            reason = f"no reward of any step had a value. See why: burnish show {run} --failed 3"
        moved_weights = self.store.query(
            "SELECT 1 FROM metrics WHERE name LIKE '%optimiser/updates' AND value > 0 LIMIT 1"
        )
        status = "stopped" if reason else "finished"
        before = self._stored_evaluation(0)
        # Before the first step there is nothing to compare: the newest evaluation is the start's.
        after = self._stored_evaluation(self._main_steps) if self._main_steps else None
        finished = Finished(
            status=status,
            reason=reason,
            folder=self.folder,
            before=metrics.estimate(before),
            after=metrics.estimate(after),
            change=metrics.change(before, after),
            seconds=seconds,
            measure=(after or before or {}).get("measure", "reward"),
            evaluations=len(self.store.evaluations("held_out")),
            is_trained=any(True for _ in moved_weights),
        )
        self._end(status, reason, before=finished.before, after=finished.after)
        return finished


def ending(error: BaseException) -> tuple[str, str]:
    """How a run ends that an exception ends, `stopped` or `crashed`, and why, in one line."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted with Ctrl-C"
    if isinstance(error, GuardTripped | UserError):
        return "stopped", str(error)
    if isinstance(error, BurnishError):
        return "crashed", str(error)
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        return "crashed", f"out of memory: {describe(error)}"
    return "crashed", describe(error)


def _times(done: int, steps: int, every: int) -> int:
    """How often something is due after `done` steps, every so many, before the last."""
    return sum(step % every == 0 for step in range(done, steps)) if every else 0
