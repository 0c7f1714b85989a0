"""The one loop for every recipe: roll out, score, weigh, update, store; evaluate and save.

`Trainer.run()` yields events and keeps nothing that is not also in the run folder. Killed at any
moment, the next start continues from the newest checkpoint; steps that were already sampled and
scored after it are read back from the store, so nothing is sampled or judged twice, and on the CPU
the weights and metrics come out bit for bit as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from burnish.bench.evaluate import evaluate
from burnish.config.schema import Config
from burnish.errors import GuardTripped, StoreError
from burnish.lm.base import Sampling
from burnish.lm.device_full import device_full
from burnish.lm.local import LocalLM
from burnish.policy.batch import Advantages, RewardBatch
from burnish.rewards.function import FunctionReward
from burnish.rewards.judges.ledger import Ledger
from burnish.rewards.scorer import Scorer, leaves
from burnish.seeds import Seeds
from burnish.store import RunStore
from burnish.store.durable import telling
from burnish.surroundings import Surroundings
from burnish.tasks.base import TaskSet
from burnish.texts import shown_path
from burnish.training import checkpoint, ledger
from burnish.training.checkpoint import TrainState
from burnish.training.collect import (
    BrokenStep,
    Collected,
    Collector,
    Scored,
    slot_of,
    useful_groups,
)
from burnish.training.curriculum import Curriculum
from burnish.training.data import Cursor, PromptReport
from burnish.training.devices import World
from burnish.training.event_loop import EventLoop
from burnish.training.events import (
    Event,
    Finished,
    HeldOut,
    Saved,
    Started,
    StepDone,
)
from burnish.training.forecast import Forecast
from burnish.training.garbage import calm_collector
from burnish.training.guards import check_sampled
from burnish.training.optimiser import MasterAdamW, learning_rate
from burnish.training.preparation import after_evaluation, prepare
from burnish.training.replay import save_crash
from burnish.training.stopping import failing, useless
from burnish.training.trainable import Trainable
from burnish.training.update import Updater
from burnish.training.warm_start import WarmUp
from burnish.training.weighing import Weigher, refreeze_note

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

MORE_ROOM = (
    "Free the GPU, or lower rollout.prompts or update.micro_batch_tokens. Checkpoints stay: the "
    "same command continues the run."
)


@dataclass
class Trainer:
    """A run's live objects; built by `burnish.training.build`."""

    config: Config
    store: RunStore
    tasks: TaskSet
    scorer: Scorer
    trainable: Trainable
    lm: LocalLM
    optimiser: MasterAdamW
    collector: Collector
    weigher: Weigher
    updater: Updater
    cursor: Cursor
    seeds: Seeds
    world: World
    loop: EventLoop
    state: TrainState
    forecast: Forecast
    prompts: PromptReport
    threads: int
    warm_up: WarmUp | None = None
    """What is left to do before the first step."""
    curriculum: Curriculum | None = None
    """The stages, once they are measured."""
    judges: Ledger | None = None
    """What the rewards' judges were paid for, where there are any."""
    step_times: list[float] = field(default_factory=list)
    current: list[Scored] = field(default_factory=list)
    """The rollouts of the step under way, kept for a guard's report."""
    told: set[str] = field(default_factory=set)
    """What functions of the user's own changed in the process, each told once."""

    @property
    def folder(self) -> Path:
        return self.store.folder

    def run(self) -> Iterator[Event]:
        """Train to the end, or to a clear reason to stop."""
        self.loop.around = self._unchanged
        try:
            with calm_collector():
                yield from self._run()
        finally:
            self.loop.close()

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """While rewards and judges run; what they did to the process is undone and told once."""
        before = Surroundings()
        try:
            yield
        finally:
            self._tell(before.restore())
            before.close()

    def _tell(self, changed: list[str]) -> None:
        for what in changed:
            if what in self.told:
                continue
            self.told.add(what)
            own = [s.name for s in leaves(self.scorer) if isinstance(s, FunctionReward)]
            who = f"reward '{own[0]}'" if len(own) == 1 else "a reward or judge function"
            line = f"{who} changed {what}; it was set back, and the run goes on."
            logger.warning(line)
            # A store that fails now fails at the next write too, which is not on the way out of
            # another error and tells it.
            with contextlib.suppress(StoreError):
                if self.world.is_main:
                    self.store.append_event("surroundings", line, {}, self.state.step)

    def _run(self) -> Iterator[Event]:
        began = time.perf_counter()
        if self.world.is_main:
            self._keep_forecast()
        yield self._started()
        yield from prepare(self)
        if self.config.evaluation.prompts and self.state.step == 0:
            yield from self._evaluate()
        stop = ""
        while self.state.step < self.config.steps and not stop:
            done, stop = self.guarded(self._step, f"step {self.state.step}")
            yield done
            if self._due(self.config.evaluation.every) and self.config.evaluation.prompts:
                yield from self._evaluate()
            if self._due(self.config.checkpoint.every):
                yield self._save()
        if self.config.evaluation.prompts:
            yield from self._evaluate()
        yield self._save()
        yield self._finish(stop, time.perf_counter() - began)

    def _keep_forecast(self) -> None:
        """Put the forecast in the store, so that a report can hold the facts against it."""
        expected = self.forecast
        data = {
            "step_s": expected.step_s,
            "rollout_s": expected.rollout_s,
            "update_s": expected.update_s,
            "memory_bytes": expected.total,
            "available_bytes": expected.available,
            "steps": self.config.steps - self.state.step,
            "threads": self.threads,
        }
        line = f"at least {expected.step_s:.3g} s a step and {expected.total / 2**30:.3g} GiB"
        self.store.append_event("forecast", line, data, self.state.step)

    # --- one step

    def guarded(self, work: Callable[[], Result], what: str) -> Result:
        """Do the work; a guard or a full device ends the run, and `what` says what it stopped."""
        self.current = []
        try:
            return work()
        except GuardTripped as error:
            if self.world.is_main:
                self._keep_evidence(error)
            raise
        except Exception as error:
            # Boundary: a full device has errors of several types; all others go on as they are.
            full = device_full(error, what, MORE_ROOM)
            if full is None:
                raise
            if self.world.is_main:
                self.store.append_event("device", str(full), {}, self.state.step)
                self.store.finish("stopped", {"reason": str(full)})
            raise full from error

    def _keep_evidence(self, error: GuardTripped) -> None:
        """Save what a replay needs and let the error's line end with how to see it again."""
        line = str(error)
        try:
            scored = error.scored if isinstance(error, BrokenStep) else self.current
            # Weights that an update broke are never written; the step can be taken again from the
            # newest checkpoint and what is stored.
            if scored and error.stage != "weight":
                place = self.folder / "crash" / f"step-{self.state.step:06d}"
                with telling(f"write {place}", place):
                    save_crash(place, error, scored, self.updater.progress, self.weigher.state)
                    self.trainable.write(place / "weights")
                error.args = (f"{line} Saved; see it again: burnish replay {shown_path(place)}",)
            self.store.append_event("guard", line, {"stage": error.stage}, self.state.step)
            self.store.finish("stopped", {"reason": line})
        except StoreError as failed:
            error.args = (f"{line} It could not be recorded: {failed}",)

    def _step(self) -> tuple[StepDone, str]:
        step = self.state.step
        began = time.perf_counter()
        collected, reused = self._collect(step)
        self.current = collected.kept
        trajectories = [s.trajectory for s in collected.kept]
        check_sampled(trajectories, step)
        batch, values = self.weigher.weigh(collected.kept, step)
        if self.world.is_main:
            self.store.append_rollouts(step, ledger.samples(step, collected, values))
            self._note_refreeze(step, batch, values)
        shares = ledger.status_shares(collected)
        limit = self.config.guards.failed_share
        stop = failing(shares, limit, self.folder.name, step, ledger.reasons(collected))
        rate = learning_rate(self.config.optimiser, step, self.config.steps)
        scored_at = time.perf_counter()
        update: dict[str, float] = {}
        balance: dict[str, float] = {}
        updates = 0
        if not stop and values.moves:
            measured = self.updater.balance(step, values)
            if measured is not None:
                values = self.weigher.hold(values, measured.state)
                balance = measured.metrics()
            update, updates = self.updater.update(step, trajectories, values, rate)
        entropies = self.updater.token_entropies(trajectories) if updates else {}
        self.weigher.remember(values)
        useful, groups = useful_groups(values, batch.groups_B)
        streak = 0 if useful else self.state.useless_streak + 1
        self.state = msgspec.structs.replace(
            self.state,
            step=step + 1,
            cursor=self.cursor.position,
            weight_version=self.state.weight_version + updates,
            useless_streak=streak,
        )
        self.lm.weight_version = self.state.weight_version
        metrics = {
            **shares,
            **dict(values.diagnostics),
            **ledger.totals(collected),
            **ledger.lengths(collected),
            **ledger.outcomes(collected, self.collector.scorer.children, self.config.policy.select),
            **update,
            **balance,
            "optimiser/learning_rate": rate,
            "optimiser/updates": float(updates),
            "groups/useful": float(useful),
            "groups/total": float(groups),
            "groups/tried": float(collected.groups_tried),
        }
        now = time.perf_counter()
        timings = {
            "time/rollout_s": collected.rollout_s,
            "time/score_s": collected.score_s,
            "time/update_s": now - scored_at,
            "time/step_s": now - began,
        }
        if self.world.is_main:
            for name, by_rollout in ledger.token_values(trajectories, values, entropies).items():
                self.store.append_token_values(step, name, by_rollout)
            self._store_metrics(step, metrics, timings)
        if not reused:
            self.step_times.append(now - began)
        streak, limit = self.state.useless_streak, self.config.guards.useless_steps
        done = self._step_done(step, metrics, useful, groups, timings, reused)
        return done, stop or useless(streak, limit, self.folder.name)

    def ask_judges_about(self, part: str) -> None:
        """What is judged from now on belongs to this part of the run."""
        if self.judges is not None:
            self.judges.begin(part)

    def _note_refreeze(self, step: int, batch: RewardBatch, values: Advantages) -> None:
        """A new unit of the rewards is told once, also where a resumed run repeats the step."""
        note = refreeze_note(batch, values)
        if note and all(event.step != step for event in self.store.events("refreeze")):
            self.store.append_event("refreeze", note[0], note[1], step)

    def _store_metrics(
        self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]
    ) -> None:
        """A repeated step must bring the same numbers where bits repeat: one process on a CPU.

        Elsewhere (sums in another order on a GPU or over processes) what was stored first stays.
        """
        if self.trainable.device.type == "cpu" and self.world.size == 1:
            self.store.append_metrics(step, metrics, timings=timings)
        else:
            self.store.append_metrics(step, {}, timings={**metrics, **timings})

    def _collect(self, step: int) -> tuple[Collected, bool]:
        """Sample and score, or read back what an interrupted start had already stored."""
        stored = self.store.rollouts(step)
        if stored is None:
            self.ask_judges_about(f"step {step}")
            seed = self.seeds.for_("rollout", step)
            version = self.state.weight_version
            return self.collector.collect(step, self.cursor, seed, version), False
        kept = [s for s in stored if s.split == "train"]
        dropped = [s for s in stored if s.split == "dropped"]
        slots = {slot_of(s.trajectory) for s in stored}
        self.cursor.take(len(slots))
        collected = Collected(
            kept=[Scored(s.task, s.trajectory, s.reward) for s in kept],
            dropped=[Scored(s.task, s.trajectory, s.reward) for s in dropped],
            groups_tried=len(slots),
            rollout_s=0.0,
            score_s=0.0,
        )
        return collected, True

    # --- beside the steps

    def _due(self, every: int) -> bool:
        done = self.state.step
        return every > 0 and done % every == 0 and done < self.config.steps

    def _started(self) -> Started:
        return Started(
            folder=self.folder,
            model=self.lm.name,
            parameters=self.trainable.parameters,
            trained_parameters=sum(p.numel() for p in self.optimiser.parameters),
            device=str(self.trainable.device),
            dtype=str(self.trainable.dtype).removeprefix("torch."),
            threads=self.threads,
            steps=self.config.steps,
            done=self.state.step,
            forecast=self.forecast,
            prompts=self.prompts,
        )

    def _step_done(
        self,
        step: int,
        metrics: Mapping[str, float],
        useful: int,
        groups: int,
        timings: Mapping[str, float],
        reused: bool,
    ) -> StepDone:
        recent = sorted(self.step_times[-9:]) or [self.forecast.step_s]
        tokens = metrics["length/tokens"]
        return StepDone(
            step=step,
            steps=self.config.steps,
            metrics={**metrics, **timings},
            useful_groups=useful,
            groups=groups,
            seconds=timings["time/step_s"],
            tokens_per_s=tokens / max(timings["time/rollout_s"], 1e-9) if not reused else 0.0,
            remaining_s=recent[len(recent) // 2] * (self.config.steps - step - 1),
            reused=reused,
        )

    def _evaluate(self) -> Iterator[Event]:
        found = self.guarded(self._held_out, f"the evaluation at step {self.state.step}")
        yield found
        yield from after_evaluation(self, found)

    def _held_out(self) -> HeldOut:
        """Score the held-out prompts greedily, unless this step's evaluation is stored."""
        stored = self._stored_evaluation(self.state.step)
        if stored is None:
            self.ask_judges_about(f"held out {self.state.step}")
            config = self.config
            tasks = self.tasks.held_out(config.evaluation.prompts)
            tokens = config.evaluation.max_tokens or config.rollout.max_tokens
            sampling = Sampling(temperature=0.0, max_tokens=tokens, stop=config.rollout.stop)
            work = functools.partial(
                evaluate,
                self.lm,
                tasks,
                self.scorer,
                sampling,
                part=config.evaluation.part,
                deadline_s=config.rollout.score_timeout_s,
            )
            result = self.loop.run(work)
            stored = ledger.summary(result)
            samples = ledger.evaluated(self.state.step, self.state.weight_version, result)
            check_sampled([s.trajectory for s in samples], self.state.step)
            if self.world.is_main:
                self.store.append_evaluation(self.state.step, "held_out", samples, stored)
        score = ledger.estimate(stored)
        return HeldOut(self.state.step, score, stored["valid"], stored["count"])

    def _stored_evaluation(self, step: int) -> dict[str, Any] | None:
        found = [e for e in self.store.evaluations("held_out") if e.step == step]
        return found[0].summary if found else None

    def _save(self) -> Saved:
        return self.guarded(self._write_checkpoint, f"saving step {self.state.step}")

    def _write_checkpoint(self) -> Saved:
        folder = self.folder / "checkpoints"
        step = self.state.step
        if self.world.is_main:
            self.store.flush()
            checkpoint.save(
                folder,
                self.state,
                self.optimiser,
                self.weigher.state,
                functools.partial(self.trainable.write, step=step),
                self.config.checkpoint.keep,
                self.store,
            )
        self.world.wait()
        return Saved(step, folder / f"step-{step:06d}")

    def _finish(self, reason: str, seconds: float) -> Finished:
        status = "stopped" if reason else "finished"
        before = self._stored_evaluation(0)
        after = self._stored_evaluation(self.state.step)
        finished = Finished(
            status=status,
            reason=reason,
            folder=self.folder,
            before=ledger.estimate(before),
            after=ledger.estimate(after),
            change=ledger.change(before, after),
            seconds=seconds,
        )
        if self.world.is_main:
            self.store.finish(
                status,
                {"reason": reason, "before": finished.before, "after": finished.after},
            )
        return finished
