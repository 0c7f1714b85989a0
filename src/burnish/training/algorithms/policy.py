"""Policy optimisation: sample, score, compute advantages, and take the recipe's policy gradient.

Rollouts are stored before the update, so that an interrupted step is read back and neither sampled
nor judged twice.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.config.schema import Config, PolicyTrain as PolicySettings
from burnish.errors import GuardTripped, RewardError, StoreError, UserError
from burnish.policy import ReferenceFrozen, SeparateCritic, SharedCritic
from burnish.policy.balance import BalanceState
from burnish.policy.batch import Advantages, RewardBatch
from burnish.policy.reference import fit_reference_stats
from burnish.policy.state import PolicyState, ReferenceStats
from burnish.records import Task
from burnish.rewards.scorer import score_groups
from burnish.rollouts.base import MultiTurnSettings
from burnish.store import UNSCORED, StartRewards, read_start_rewards, write_start_rewards
from burnish.store.sample_name import ids_in
from burnish.texts import run_word
from burnish.training import metrics
from burnish.training.algorithm import (
    AlgorithmState,
    HeldOutScores,
    Preparation,
    Setup,
    StepReport,
    StepResult,
    StepUndone,
    stored,
)
from burnish.training.algorithms.policy_update import PolicyBatch, PolicyUpdate, monitored
from burnish.training.algorithms.sft import SftTerm
from burnish.training.collect import (
    GREEDY,
    BrokenStep,
    Collected,
    NoRollouts,
    RolloutCollector,
    Scored,
    reward_batch,
    slot_of,
    useful_groups,
)
from burnish.training.critic import CriticModel, zero_head
from burnish.training.curriculum import (
    FILE as DIFFICULTY,
    Curriculum,
    CurriculumState,
    advance,
    difficulty_of,
    open_curriculum,
)
from burnish.training.data import Data, missing_field
from burnish.training.events import Calibrated, Event, HeldOut, StageBegun
from burnish.training.forecast import Workload
from burnish.training.guards import check_sampled, failing, useless
from burnish.training.validate import recipe_faults, updates_of
from burnish.training.weighing import AdvantageComputer, CriticReading, refreeze_note

SAMPLES = "samples.jsonl"
GREEDY_SAMPLES = "greedy.jsonl"
OLD = "old.safetensors"
CRITIC = "critic.safetensors"
HEAD = "critic.weight"
"""The value head among the parameters and in the state."""


class Sampled(NamedTuple):
    collected: Collected
    rewards: RewardBatch
    is_reread: bool


class PolicyAlgorithm(PolicyUpdate):
    shares_model = True
    samples_prompts = True
    can_be_stage = False

    def __init__(self, setup: Setup, settings: PolicySettings) -> None:
        config = setup.config
        assert setup.scorer is not None, "checked before"
        tokenizer, chosen = setup.trainable.loaded.tokenizer, config.policy.critic
        if config.policy.needs_reference:
            setup.trainable.freeze_reference()
        super().__init__(
            setup.batches,
            config.policy,
            config.update,
            setup.seeds,
            temperature=config.rollout.temperature,
            max_tokens=config.rollout.max_tokens,
            reference=setup.trainable.reference if config.policy.needs_reference else None,
            imitation=SftTerm.open(config, setup.data, tokenizer, setup.seeds),
            copy_gradients=lambda: setup.copy_gradients(),
            mismatch_stop=config.guards.sampler_mismatch_stop if config.rollout.is_sampled else 0.0,
            value_head=zero_head(setup.trainable.loaded)
            if isinstance(chosen, SharedCritic)
            else None,
            critic=CriticModel.open(setup, chosen) if isinstance(chosen, SeparateCritic) else None,
        )
        self.setup = setup
        self.cursor = setup.cursor(setup.data.tasks)
        self.collector = RolloutCollector(
            setup.lm,
            setup.scorer,
            config.policy,
            config.rollout,
            config.rollout.build(),
            setup.world,
            setup.loop,
            setup.send_again,
            depth=config.rollout.max_staleness // updates_of(config) if setup.remote else 0,
        )
        self.computer = AdvantageComputer(
            config.policy,
            config.steps,
            config.rollout.max_tokens,
            setup.seeds,
            tokenizer,
            self.pooled,
            self.read_critic,
        )
        self.curriculum: Curriculum | None = None
        self.curriculum_state = CurriculumState()
        self.useless_streak = 0
        self.scored: list[Scored] = []
        """The rollouts of the step under way, kept for a guard's report."""
        self.greedy: list[Scored] = []
        self.sampled: Sampled | None = None
        self.under_way: PolicyBatch | None = None

    @classmethod
    def faults(cls, config: Config, settings: PolicySettings, data: Data) -> Iterator[str]:
        yield from recipe_faults(config, data.rewards)
        if config.curriculum and config.curriculum.always:
            field, equals, _ = config.curriculum.always.partition("=")
            if not equals:
                yield f"curriculum.always is '{field}'; expected field=value"
            yield from missing_field(data.tasks, field, "curriculum.always")
        if term := config.policy.imitation:
            shown = data.open(config.experts.task)
            yield from missing_field(shown, config.experts.field, "experts.field")
            place = config.policy.auxiliary.index(term)
            if term.by:
                yield from missing_field(shown, term.by, f"policy.auxiliary.{place}.by")

    def workload(self) -> Workload:
        rollout, longest = self.setup.config.rollout, self.setup.prompts.longest
        observed = 0
        if isinstance(rollout, MultiTurnSettings):
            # Tokens that the environment adds: as an earlier start saw, or as set.
            name = "length/observed_max"
            seen = self.setup.store.metrics(name).get(name, [])
            counts = [int(point.value) for point in seen if point.value is not None]
            observed = max(counts, default=rollout.observation_tokens)
        # Answers are no longer than what the model's context leaves.
        left = max(1, self.setup.trainable.module.longest_row(longest) - longest)
        tokens = min(rollout.max_tokens, left)
        return Workload(
            rollout.prompts,
            rollout.samples,
            longest,
            tokens,
            is_sampled=self.setup.remote is None,
            has_reference=self.reference is not None,
            observed_tokens=min(observed, left - tokens),
            critic=self.critic.parameters if self.critic else 0,
        )

    # --- rollouts and advantages

    def batch(self, step: int) -> PolicyBatch:
        self.scored, self.computer.reading = [], None
        begun = self.cursor.position
        try:
            collected, is_reread = self._collect(step)
        except NoRollouts as error:
            self._store_aside(step, Collected([], error.failed), str(error))
            raise
        if not is_reread:
            self._refuse_unscored(step, collected, begun)
        self.cursor.prefetch(self.setup.config.rollout.prompts)
        batch = self._with_advantages(step, collected, is_reread)
        if self.setup.world.is_main:
            rows = metrics.samples(step, collected, batch.values)
            store = self.setup.store
            store.append_rollouts(step, rows)
            assert self.sampled is not None
            note = refreeze_note(self.sampled.rewards, batch.values)
            if note and all(event.step != step for event in store.events("refreeze")):
                store.append_event("refreeze", *note, step)
        if self.collector.depth:
            setup = self.setup
            setup.ready_sampler()
            seed = functools.partial(setup.seeds.for_, "rollout")
            later = range(step + 1, setup.steps)
            self.collector.look_ahead(later, self.cursor, seed, setup.weight_version)
        return batch

    def _refuse_unscored(self, step: int, collected: Collected, begun: int) -> None:
        """Give the step up where too many rewards have no value; its answers are stored aside.

        Nothing was learned from it, so it is not counted: the next start samples and scores it
        again, from where the cursor stood when it was `begun`.
        """
        shares, reasons = metrics.status_shares(collected), metrics.reasons(collected)
        store, limit = self.setup.store, self.setup.config.guards.failed_share
        reason = failing(shares, limit, run_word(store.folder), step, reasons)
        if not reason:
            return
        self.cursor.position = begun
        self._store_aside(step, collected, reason)
        raise StepUndone(reason)

    def _store_aside(self, step: int, collected: Collected, reason: str) -> None:
        """Store the rollouts of a step that is given up, with their statuses and reasons.

        Answers of weights that are no numbers have no rewards either: their guard trips instead.
        """
        self.scored, self.greedy = collected.kept or collected.dropped, collected.greedy
        check_sampled([one.trajectory for one in self.scored], step)
        if not self.setup.world.is_main:
            return
        store, shares = self.setup.store, metrics.status_shares(collected)
        tried = [e for e in store.evaluations() if e.name.startswith(UNSCORED)]
        number = 1 + sum(e.step == step for e in tried)
        name = UNSCORED if number == 1 else f"{UNSCORED}-{number}"
        # Every rollout of the step, as the samples of an evaluation of that name.
        every = (*collected.kept, *collected.dropped, *collected.greedy)
        rows = stored(step, f"eval:{name}", metrics.rows_of(every))
        store.append_evaluation(step, name, rows, {"reason": reason, "statuses": shares})

    def _with_advantages(
        self,
        step: int,
        collected: Collected,
        is_reread: bool = False,
        reading: CriticReading | None = None,
    ) -> PolicyBatch:
        self.scored, self.greedy = collected.kept, collected.greedy
        trajectories = [scored.trajectory for scored in collected.kept]
        check_sampled(trajectories, step)
        rewards, values = self.computer.compute_advantages(
            collected.kept, step, collected.greedy, reading, collected.dropped
        )
        self.sampled = Sampled(collected, rewards, is_reread)
        self.under_way = PolicyBatch(step, trajectories, values)
        return self.under_way

    def updates(self, batch: PolicyBatch) -> list[PolicyBatch]:
        """None where a recipe still warms up beside the policy."""
        self.overlap = {}
        return super().updates(batch) if batch.values.moves else []

    def hold(self, values: Advantages, balance: BalanceState) -> Advantages:
        return self.computer.hold(values, balance)

    def _collect(self, step: int) -> tuple[Collected, bool]:
        setup = self.setup
        known = setup.store.rollouts(step)
        if known is None:
            setup.judging(f"step {step}")
            setup.ready_sampler()
            seed, version = setup.seeds.for_("rollout", step), setup.weight_version
            return self.collector.collect(step, self.cursor, seed, version), False
        slots = {slot_of(s.trajectory) for s in known}
        self.cursor.take(len(slots))
        kept, dropped, greedy = (
            [Scored(s.task, s.trajectory, s.reward) for s in known if s.split == split]
            for split in ("train", "dropped", GREEDY)
        )
        return Collected(kept, dropped, len(slots), greedy=greedy), True

    # --- around the update

    def parameters(self) -> Iterable[tuple[str, Tensor]]:
        return [] if self.value_head is None else [(HEAD, self.value_head.weight)]

    def write(self, folder: Path) -> None:
        if self.critic is not None:
            self.critic.write(folder / "critic")

    def meanwhile(self) -> None:
        self.cursor.look_ahead(self.setup.config.rollout.prompts)

    def finish(self, step: int, batch: PolicyBatch, result: StepResult) -> StepReport:
        assert self.sampled is not None
        collected, sampled = self.sampled.collected, self.sampled
        values, config = batch.values, self.setup.config
        entropies = self.token_entropies(batch.trajectories) if result.updates else {}
        measured = monitored(result)
        bonus = {"loss/entropy/coefficient": self.entropy_coefficient(values)}
        term, entropy = self.recipe.adaptive_entropy, measured.get("policy/entropy")
        if term is not None and entropy is not None:  # a step without an update measures nothing
            state = replace(values.state, entropy=term.after(values.state.entropy, entropy))
            values = replace(values, state=state)
        self.computer.state = values.state
        remembered: dict[str, float] = {}
        if self.collector.game is not None:  # in the order of its slots
            played = [scored.trajectory for scored in (*collected.kept, *collected.dropped)]
            played.sort(key=lambda t: [int(number) for number in t.id.split(".")])
            remembered = dict(self.collector.game.remember(step, played))
        useful, groups = useful_groups(values, sampled.rewards.groups_B)
        self.useless_streak = 0 if useful else self.useless_streak + 1
        if self.setup.world.is_main:
            by_name = metrics.token_values(batch.trajectories, values, entropies)
            for name, by_rollout in by_name.items():
                self.setup.store.append_token_values(step, name, by_rollout)
        limit, run = config.guards.useless_steps, run_word(self.setup.store.folder)
        return StepReport(
            metrics={
                **metrics.status_shares(collected),
                **dict(values.diagnostics),
                **metrics.totals(collected),
                **metrics.lengths(collected),
                **(metrics.lags(collected, self.setup.weight_version) if self.setup.remote else {}),
                **metrics.outcomes(collected, self.collector.scorer.children, config.policy.select),
                **metrics.premises(collected, self.collector.scorer.children),
                **metrics.greedy(collected),
                **measured,
                **(self.critic.finish(step) if self.critic else {}),
                **{name: value for name, value in bonus.items() if value is not None},
                **self.overlap,
                **batch.balance,
                **remembered,
                "groups/useful": float(useful),
                "groups/total": float(groups),
                "groups/tried": float(collected.groups_tried),
            },
            timings={"time/rollout_s": collected.rollout_s, "time/score_s": collected.score_s},
            is_reread=sampled.is_reread,
            stop=useless(self.useless_streak, limit, run),
        )

    # --- before the first step, and after an evaluation

    def prepare(self) -> Iterator[Preparation]:
        calibration = self.recipe.calibration
        if calibration is not None and self.computer.state.reference is None:
            yield Preparation("calibration", lambda: self._calibrate(calibration))
        if self.setup.config.curriculum is not None:
            yield Preparation("measuring the curriculum", self._begin_curriculum)

    def _calibrate(self, piece: ReferenceFrozen) -> Calibrated:
        setup = self.setup
        found = read_start_rewards(setup.folder) or self._measure_start(piece)
        reference = ReferenceStats.from_numbers(found.mean, found.deviation, found.counts)
        self.computer.state = replace(self.computer.state, reference=reference)
        named = dict(zip(found.names, found.deviation, strict=True))
        return Calibrated(
            count=found.answers,
            mean=dict(zip(found.names, found.mean, strict=True)),
            deviation=named,
            constant=tuple(name for name, sd in named.items() if sd <= piece.sd_floor),
        )

    def _measure_start(self, piece: ReferenceFrozen) -> StartRewards:
        self.setup.judging("calibration")
        self.setup.ready_sampler()
        tasks = replace(self.cursor, position=0).take(piece.prompts)
        seed = self.setup.seeds.for_("calibration")
        scored = self.collector.answer(tasks, seed, piece.samples)
        batch = reward_batch(scored)
        names = batch.names
        silent = [n for n, k in zip(names, batch.rewards_BK.isnan().all(0), strict=True) if k]
        if silent:
            raise UserError(
                f"reward '{silent[0]}' has no value for any of {len(scored)} answers of the start "
                "model, so 'reference_frozen' has no unit for it; see why: burnish try"
            )
        fit = fit_reference_stats(batch.rewards_BK, sd_floor=piece.sd_floor, robust=piece.robust)
        numbers = (fit.mean_K.tolist(), fit.sd_K.tolist(), fit.count_K.tolist())
        measured = StartRewards(len(scored), names, *numbers)
        if self.setup.world.is_main:
            write_start_rewards(self.setup.folder, measured)
        return measured

    def _begin_curriculum(self) -> StageBegun:
        setup, config = self.setup, self.setup.config.curriculum
        assert config is not None

        def measure(pool: Sequence[Task]) -> list[float | None]:
            setup.judging("difficulty")
            setup.ready_sampler()
            part = setup.config.evaluation.part
            # A prompt over the limit is never drawn, whatever its stage.
            fitting = [task for task in pool if self.cursor.fits(task)]
            seed = setup.seeds.for_("difficulty")
            scored = self.collector.answer(fitting, seed, config.samples)
            marks: dict[str, list[float | None]] = {task.id: [] for task in pool}
            for s in scored:
                mark = s.reward.components.get(part) if part else s.reward.value
                marks[s.task.id].append(mark)
            return [difficulty_of(marks[task.id], config.passing) for task in pool]

        seed = setup.seeds.for_("curriculum")
        keeps = setup.world.is_main
        self.curriculum = open_curriculum(
            setup.folder, config, setup.data.tasks, measure, seed, keeps=keeps
        )
        return self._enter_stage(self.curriculum_state, setup.done)

    def _enter_stage(self, state: CurriculumState, step: int) -> StageBegun:
        assert self.curriculum is not None
        stages, folder = self.curriculum.stages, self.setup.folder
        if state.stage >= len(stages):
            raise StoreError(
                f"the newest checkpoint of {folder} stands at stage {state.stage} of a curriculum "
                f"with {len(stages)} stages; is {folder / DIFFICULTY} that of this run?"
            )
        self.curriculum_state = state
        self.curriculum.stage = state.stage
        self.cursor.draw_from(self.curriculum.train)
        return StageBegun(state.stage, len(stages), len(stages[state.stage]), step)

    def evaluate(self, step: int) -> HeldOutScores:
        return metrics.held_out_rewards(self.setup, step)

    def evaluated(self, found: HeldOut) -> Iterator[Event]:
        config = self.setup.config.curriculum
        if config is None or self.curriculum is None:
            return
        score = found.score.value if found.score else None
        stages = len(self.curriculum.stages)
        state = advance(self.curriculum_state, score, config.patience, config.gain, stages=stages)
        if state.stage != self.curriculum_state.stage:
            yield self._enter_stage(state, found.step)
        self.curriculum_state = state

    # --- resume and replay

    def state(self) -> AlgorithmState:
        values = {
            "cursor": self.cursor.position,
            "useless_streak": self.useless_streak,
            "curriculum": msgspec.to_builtins(self.curriculum_state),
        }
        if self.collector.game is not None:
            values["game"] = self.collector.game.state()
        # The optimiser's file has the head too; a replay reads only this one.
        head = {name: weight.detach() for name, weight in self.parameters()}
        critic = self.critic.state() if self.critic else {}
        return AlgorithmState(values, self.computer.state.tensors() | head | critic)

    def restore(self, state: AlgorithmState) -> None:
        self.cursor.position = state.values["cursor"]
        self.useless_streak = state.values["useless_streak"]
        self.curriculum_state = msgspec.convert(state.values["curriculum"], CurriculumState)
        if self.collector.game is not None:
            self.collector.game.restore(state.values.get("game", {}))
        self.computer.state = PolicyState.from_tensors(state.tensors)
        with torch.no_grad():
            for name, weight in self.parameters():
                weight.copy_(state.tensors[name])
        if self.critic is not None:
            self.critic.load(state.tensors)

    def save_batch(self, place: Path, error: GuardTripped) -> bool:
        scored = error.scored if isinstance(error, BrokenStep) else self.scored
        if not scored:
            return False
        place.mkdir(parents=True, exist_ok=True)
        for name, items in ((SAMPLES, scored), (GREEDY_SAMPLES, self.greedy)):
            if items:
                # Python's JSON: a log-prob that is NaN stays one, and is what the replay shows.
                lines = [json.dumps(msgspec.to_builtins(item)) + "\n" for item in items]
                (place / name).write_text("".join(lines))
        if self.under_way is not None and self.under_way.old:
            old = {str(i): logp.contiguous() for i, logp in self.under_way.old.items()}
            save_file(old, place / OLD)
        if (reading := self.computer.reading) is not None:
            known = {name: one for name, one in reading._asdict().items() if one is not None}
            save_file({name: one.contiguous() for name, one in known.items()}, place / CRITIC)
        return True

    def load_batch(self, place: Path, step: int) -> PolicyBatch:
        scored, greedy = (
            [msgspec.convert(json.loads(line), Scored) for line in path.read_bytes().splitlines()]
            if path.is_file()
            else []
            for path in (place / SAMPLES, place / GREEDY_SAMPLES)
        )
        if all(item.reward.value is None and not item.reward.parts for item in scored):
            scored, greedy = self._score_again(step, scored), self._score_again(step, greedy)
        # The head may have moved since the step began: what it said then is in the folder.
        read = load_file(place / CRITIC) if (place / CRITIC).is_file() else None
        batch = self._with_advantages(
            step,
            Collected(scored, [], greedy=greedy),
            reading=None if read is None else CriticReading(**read),
        )
        if (place / OLD).is_file():
            old = load_file(place / OLD, device=str(self.batches.device))
            batch.old = {int(i): logprobs for i, logprobs in old.items()}
        return batch

    def _score_again(self, step: int, scored: list[Scored]) -> list[Scored]:
        """Put answers whose scoring was stopped through the rewards as they are now."""
        groups: dict[str, list[Scored]] = {}
        for item in scored:
            groups.setdefault(item.trajectory.group, []).append(item)
        items = [(g[0].task, [s.trajectory.as_response() for s in g]) for g in groups.values()]
        config = self.setup.config.rollout
        work = functools.partial(
            score_groups,
            self.collector.scorer,
            items,
            limit=config.score_concurrency,
            deadline_s=config.score_timeout_s,
        )
        try:
            rewards = self.setup.loop.run(work)
        except RewardError as error:
            line = f"reward guard at step {step + 1}: {error}"
            named = ids_in(line, (item.trajectory.id for item in scored))
            raise GuardTripped(line, stage="reward", step=step, samples=named) from error
        marked = [reward for group in rewards for reward in group]
        members = [item for group in groups.values() for item in group]
        return [replace(s, reward=reward) for s, reward in zip(members, marked, strict=True)]


ALGORITHM = PolicyAlgorithm
