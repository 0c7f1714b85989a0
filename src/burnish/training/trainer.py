"""One trainer for every kind of training: steps, guards, evaluation, checkpoints and exact resume.

`Trainer.run()` yields events and keeps nothing that is not also in the run folder. What a step
trains on and its loss are the business of an `Algorithm`. Stages run first, one after another on
the same weights, each with its own algorithm and optimiser; the weights that one leaves lie in
`stages/NAME/final`. Killed at any moment, the next start continues from the newest checkpoint of
the stage it was in; steps that were already sampled and scored after it are read back from the
store, so nothing is sampled or judged twice, and on the CPU the weights and metrics come out bit
for bit as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from burnish.config.schema import Checkpoint, Config, Optimiser
from burnish.errors import GuardTripped, StoreError
from burnish.lm.base import Sampler
from burnish.lm.call_log import PaidReplies
from burnish.lm.hardware import device_full
from burnish.rewards.combine import Weighted
from burnish.rewards.function import FunctionReward
from burnish.rewards.scorer import leaves
from burnish.store import STAGE, RunStore
from burnish.store.durable import remove_drafts, remove_folder, store_errors, whole_folder
from burnish.tasks.base import TaskSet
from burnish.texts import shown_path
from burnish.training import checkpoint, metrics
from burnish.training.algorithm import AnyAlgorithm, Setup, StepReport, StepResult
from burnish.training.checkpoint import TrainState
from burnish.training.devices import World
from burnish.training.event_loop import EventLoop, calm_collector
from burnish.training.events import Event, Finished, HeldOut, Saved, Started, StepDone
from burnish.training.forecast import Forecast
from burnish.training.optimiser import MasterAdamW, learning_rate
from burnish.training.replay import save_crash
from burnish.training.trackers import Trackers
from burnish.training.trainable import Trainable
from burnish.training.update import Updater
from burnish.user_code import restored

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

FINAL = "final"
"""Folder of a finished stage's weights, in `stages/NAME/`."""
MORE_MEMORY = (
    "Free the GPU, or lower rollout.prompts or update.micro_batch_tokens. Checkpoints stay: the "
    "same command continues the run."
)


@dataclass
class Stage:
    """One training on the run's weights: the main one, or one before it."""

    name: str
    """Empty for the main training."""
    steps: int
    settings: Optimiser
    checkpoint: Checkpoint
    setup: Setup
    algorithm: AnyAlgorithm
    optimiser: MasterAdamW
    state: TrainState
    updater: Updater = field(init=False)

    def __post_init__(self) -> None:
        self.updater = Updater(self.algorithm, self.optimiser, self.setup.batches)

    @property
    def checkpoints(self) -> Path:
        return self.setup.folder if self.name else self.setup.folder / "checkpoints"

    def step_name(self, step: int) -> str:
        return f"step {step} of {self.name}" if self.name else f"step {step}"


@dataclass
class Trainer:
    """A run's live objects; built by `burnish.training.build`."""

    config: Config
    store: RunStore
    scorer: Weighted | None
    trainable: Trainable
    world: World
    loop: EventLoop
    forecast: Forecast
    threads: int
    stage: Stage
    """The one under way."""
    next_stage: Callable[[], Stage]
    """Opens the stage after the one under way, on the weights that this one left."""
    paid: PaidReplies | None = None
    """What the rewards' judges were paid for, where there are any."""
    trackers: Trackers | None = None
    """Of the main process, where the config names any."""
    step_times: list[float] = field(default_factory=list)
    warned: set[str] = field(default_factory=set)
    """Changes of the process by the user's functions that were reported."""

    @property
    def folder(self) -> Path:
        return self.store.folder

    @property
    def tasks(self) -> TaskSet:
        return self.stage.setup.data.tasks

    @property
    def state(self) -> TrainState:
        return self.stage.state

    @property
    def algorithm(self) -> AnyAlgorithm:
        return self.stage.algorithm

    @property
    def lm(self) -> Sampler:
        """What samples: the model under training, or a server with its weights."""
        return self.stage.setup.lm

    @property
    def optimiser(self) -> MasterAdamW:
        return self.stage.optimiser

    def run(self) -> Iterator[Event]:
        """Train to the end, or to a clear reason to stop."""
        self.loop.around = functools.partial(restored, self._warn_of_change)
        try:
            with calm_collector():
                for event in self._run():
                    if self.trackers is not None:
                        self.trackers.see(event)
                    yield event
        finally:
            self.loop.close()
            if self.trackers is not None:
                self.trackers.close()
            if self.paid is not None:
                self.paid.close()

    def _warn_of_change(self, what: str) -> None:
        """Say once what a reward or judge has changed in the process."""
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

    def _run(self) -> Iterator[Event]:
        began = time.perf_counter()
        if self.world.is_main:
            self._store_forecast()
        yield self._started()
        while self.stage.name:
            stop = yield from self._train()
            if stop:
                yield self._finish(stop, time.perf_counter() - began)
                return
            yield self._end_stage()
        stop = yield from self._train()
        yield self._finish(stop, time.perf_counter() - began)

    def _train(self) -> Generator[Event, None, str]:
        """The steps of the stage under way; returns why it stopped early, if it did."""
        stage = self.stage
        for what, work in stage.algorithm.prepare():
            yield self.guarded(work, what)
        evaluates = self.config.evaluation.prompts > 0 and not stage.name
        if evaluates and self.state.step == 0:
            yield from self._evaluate()
        stop = ""
        while self.state.step < stage.steps and not stop:
            what = stage.step_name(self.state.step)
            done, stop = self.guarded(self._step, what, keeps=True)
            yield done
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
        """Put the forecast in the store, so that a report can hold the facts against it."""
        expected = self.forecast
        data = {
            "step_s": expected.step_s,
            "rollout_s": expected.rollout_s,
            "update_s": expected.update_s,
            "memory_bytes": expected.total,
            "available_bytes": expected.available,
            "steps": self.config.steps - self._main_steps,
            "threads": self.threads,
        }
        line = f"at least {expected.step_s:.3g} s a step and {expected.total / 2**30:.3g} GiB"
        self.store.append_event("forecast", line, data, self._main_steps)

    @property
    def _main_steps(self) -> int:
        """Steps of the main training that are done."""
        return 0 if self.stage.name else self.state.step

    # --- guards

    def guarded(self, work: Callable[[], Result], what: str, *, keeps: bool = False) -> Result:
        """Do the work; a guard or a full device ends the run, and `what` says what it stopped.

        With `keeps`, a step that a guard stopped is kept for `burnish replay`.
        """
        try:
            return work()
        except GuardTripped as error:
            if self.world.is_main:
                self._store_guard(error, keeps)
            raise
        except Exception as error:
            # Boundary: a full device has errors of several types; all others go on as they are.
            full = device_full(error, what, MORE_MEMORY)
            if full is None:
                raise
            if self.world.is_main:
                self.store.append_event("device", str(full), {}, self.state.step)
                self.store.finish("stopped", {"reason": str(full)})
            raise full from error

    def _store_guard(self, error: GuardTripped, keeps: bool) -> None:
        """Save what a replay needs and let the error's line end with how to see it again."""
        line = str(error)
        try:
            # Weights that an update broke are never written; the step can be taken again from the
            # newest checkpoint and what is stored.
            if keeps and error.stage != "weight":
                self._keep_crash(error, line)
            self.store.append_event("guard", line, {"stage": error.stage}, self.state.step)
            self.store.finish("stopped", {"reason": line})
        except StoreError as failed:
            error.args = (f"{line} It could not be recorded: {failed}",)

    def _keep_crash(self, error: GuardTripped, line: str) -> None:
        stage = self.stage
        name = f"{stage.name}-step" if stage.name else "step"
        place = self.folder / "crash" / f"{name}-{self.state.step:06d}"
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
        batch = stage.algorithm.batch(step)
        ready = time.perf_counter()
        rate = learning_rate(stage.settings, step, stage.steps)
        result = stage.updater.run(step, batch, rate)
        report = stage.algorithm.finish(step, batch, result)
        version = self.state.weight_version + result.updates
        stage.state = msgspec.structs.replace(self.state, step=step + 1, weight_version=version)
        stage.setup.moved(version)
        now = time.perf_counter()
        numbers = {**report.metrics, **_update_metrics(result, rate)}
        timings = {
            **report.timings,
            "time/update_s": now - ready,
            "time/step_s": now - began,
        }
        if self.world.is_main:
            self._store_metrics(step, numbers, timings)
        if not report.is_reread:
            self.step_times.append(now - began)
        return self._step_done(step, numbers, timings, report), report.stop

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

    def _step_done(
        self,
        step: int,
        numbers: Mapping[str, float],
        timings: Mapping[str, float],
        report: StepReport,
    ) -> StepDone:
        recent = sorted(self.step_times[-9:]) or [self.forecast.step_s]
        spent = timings.get("time/rollout_s", timings["time/step_s"])
        tokens = 0.0 if report.is_reread else numbers.get("length/tokens", 0.0)
        return StepDone(
            step=step,
            steps=self.stage.steps,
            metrics={**numbers, **timings},
            useful_groups=int(numbers.get("groups/useful", 0)),
            groups=int(numbers.get("groups/total", 0)),
            seconds=timings["time/step_s"],
            tokens_per_s=tokens / max(spent, 1e-9),
            remaining_s=recent[len(recent) // 2] * (self.stage.steps - step - 1),
            reused=report.is_reread,
            stage=self.stage.name,
        )

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
        )

    def _evaluate(self) -> Iterator[Event]:
        found = self.guarded(self._held_out, f"the evaluation at step {self.state.step}")
        if found is not None:
            yield found
            yield from self.algorithm.evaluated(found)

    def _held_out(self) -> HeldOut | None:
        """Ask the algorithm for held-out scores, unless those of this step are stored."""
        step = self.state.step
        stored = self._stored_evaluation(step)
        if stored is None:
            scores = self.algorithm.evaluate(step)
            if scores is None:
                return None
            stored = metrics.summary(scores)
            if self.world.is_main:
                self.store.append_evaluation(step, "held_out", scores.samples, stored)
        return HeldOut(
            step,
            metrics.estimate(stored),
            stored["valid"],
            stored["count"],
            stored.get("measure", "reward"),
        )

    def _stored_evaluation(self, step: int) -> dict[str, Any] | None:
        found = [e for e in self.store.evaluations("held_out") if e.step == step]
        return found[0].summary if found else None

    def _save(self) -> Saved:
        what = f"saving {self.stage.step_name(self.state.step)}"
        return self.guarded(self._write_checkpoint, what)

    def _write_checkpoint(self) -> Saved:
        stage, step = self.stage, self.state.step
        if self.world.is_main:
            self.store.flush()
            checkpoint.save(
                stage.checkpoints,
                stage.state,
                stage.optimiser,
                stage.algorithm.state(),
                self._write_model,
                stage.checkpoint.keep,
                self.store,
            )
        self.world.wait()
        return Saved(step, stage.checkpoints / f"step-{step:06d}")

    def _write_model(self, folder: Path) -> None:
        self.trainable.write(folder, step=self.state.step)
        self.algorithm.write(folder)

    def _end_stage(self) -> Saved:
        """Write the weights that the stage leaves, and go on to the next one."""
        place, step = self.stage.checkpoints / FINAL, self.state.step
        if self.world.is_main:
            self.store.flush()
            place.parent.mkdir(parents=True, exist_ok=True)
            remove_drafts(place.parent)
            with whole_folder(place, f"the weights of stage {self.stage.name}") as draft:
                self.guarded(functools.partial(self._write_model, draft), "saving the stage")
            for old in place.parent.glob("step-*"):
                remove_folder(old)
        self.world.wait()
        self.step_times.clear()
        self.stage = self.next_stage()
        self.trainable = self.stage.setup.trainable
        return Saved(step, place)

    def _finish(self, reason: str, seconds: float) -> Finished:
        status = "stopped" if reason else "finished"
        before = self._stored_evaluation(0)
        after = self._stored_evaluation(self._main_steps)
        finished = Finished(
            status=status,
            reason=reason,
            folder=self.folder,
            before=metrics.estimate(before),
            after=metrics.estimate(after),
            change=metrics.change(before, after),
            seconds=seconds,
            measure=(after or {}).get("measure", "reward"),
        )
        if self.world.is_main:
            self.store.finish(
                status,
                {"reason": reason, "before": finished.before, "after": finished.after},
            )
        return finished


def _update_metrics(result: StepResult, rate: float) -> dict[str, float]:
    """Loss and optimiser of a step."""
    found = {f"loss/{name}": value for name, value in result.losses.items()}
    if result.updates:
        found["optimiser/gradient_norm"] = result.gradient_norm
    return {
        **found,
        "optimiser/learning_rate": rate,
        "optimiser/updates": float(result.updates),
    }
