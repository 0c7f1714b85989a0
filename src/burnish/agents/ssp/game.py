"""Search self-play as a game of the common trainer: propose, check, complete, solve, score.

A task is an answer (`answer`, a text or a list of aliases) with the proposer's prompt as its messages;
for an evaluation it also has a `question`. Both roles are trajectories of one step, so the trainer
scores them together, before any update. A solver's group is its question; a proposer is a group of one
(`policy.advantage.singletons = "raw"`). What the step learned about questions goes into the pool when
it is done, from the trajectories alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from burnish.agents.ssp.check import Proposed, Verifier
from burnish.agents.ssp.pool import Filled, QuestionPool, complete, question_id, step_metrics
from burnish.agents.ssp.rules import (
    REWARD,
    SelfPlay,
    as_golds,
    dynamic_filter,
    extract_answer,
    proposer_reward,
    rule_filter,
    solver_score,
    success_rate,
    tag_penalty,
)
from burnish.agents.ssp.searching import Searcher, play_searching, solver_messages
from burnish.concurrency import gather
from burnish.errors import UserError
from burnish.lm.base import LM, Sampling
from burnish.records import Status, Task, Trajectory
from burnish.rollouts.base import (
    FileOptions,
    MultiTurnSettings,
    Players,
    Rollout,
    Slot,
    StepGame,
    play_all,
    roll_out,
)
from burnish.rollouts.search import ANSWER, QUESTION
from burnish.seeds import derive
from burnish.source import find_function
from burnish.tools.search import Retriever

logger = logging.getLogger(__name__)


class SearchSelfPlay(StepGame):
    file_options = FileOptions(
        functions=("corpus", "reader_path"),
        sources=("corpus_options.source", "corpus_options.path"),
        written=("corpus_options.folder",),
    )

    def __init__(self, settings: MultiTurnSettings, root: Path = Path(), **options: Any) -> None:
        try:
            self.options = msgspec.convert(options, SelfPlay)
        except (msgspec.ValidationError, ValueError) as error:
            raise UserError(f"rollout.options of search self-play: {error}.") from None
        own, self.settings = self.options, settings
        retriever = find_function(own.corpus, "corpus", root)(**own.corpus_options)
        if not isinstance(retriever, Retriever):
            got = type(retriever).__name__
            raise UserError(f"corpus '{own.corpus}' gave {got}; expected search(query, limit).")
        self.searcher = Searcher(retriever, own.top_k)
        self.verifier = Verifier(own, root)
        reset_every = own.reset_every if own.strategy == "periodic" else 0
        self.pool = QuestionPool(reset_every, own.keep_ratio)
        self.spare = own.retries if own.strategy == "resample" and own.mode == "game" else 0
        if own.invalid_reward < 0:
            _warn_of_penalty(own.invalid_reward)

    # --- a step

    async def play_step(
        self, slots: Sequence[Slot], spare: Sequence[Task], lm: LM, sampling: Sampling, seed: int
    ) -> list[list[Trajectory]]:
        if self.options.mode == "solver":
            return await self._solve_given(slots, lm, sampling, seed)
        proposals = await self._propose(slots, lm, sampling, seed, retry=0)
        for retry in range(1, 1 + self.spare):
            empty = [
                slot for slot, _ in slots if not any(p.valid for p in proposals if p.slot == slot)
            ]
            if not empty or not spare:
                break
            again = list(zip(empty, spare, strict=False))
            spare = spare[len(again) :]
            proposals += await self._propose(again, lm, sampling, seed, retry, proposals)
        units = self._units(slots, proposals)
        filled = complete(
            [
                Filled(p.found.question, tuple(p.golds), "proposed")
                if p is not None and p.valid and p.found is not None
                else None
                for _, _, p in units
            ],
            [number for number, _, _ in units],
            self.pool,
            self.options.strategy,
            self.options.ceiling,
            seed,
        )
        solved = await self._solve(units, filled, dict(slots), lm, sampling, seed)
        return self._with_rewards(slots, proposals, units, solved)

    async def _propose(
        self,
        slots: Sequence[Slot],
        lm: LM,
        sampling: Sampling,
        seed: int,
        retry: int,
        earlier: Sequence[Proposed] = (),
    ) -> list[Proposed]:
        how = msgspec.structs.replace(sampling, n=self.options.proposer_samples)
        turn = partial(self._play, role="proposer", final=QUESTION)
        play = partial(play_all, play=turn, settings=self.settings)
        rolled = await roll_out(slots, lm, how, play, derive(seed, "propose", retry))
        proposals = []
        for (slot, task), group in zip(slots, rolled, strict=True):
            golds = as_golds(f"task {task.id}: field 'answer'", task.fields.get("answer"))
            for index, trajectory in enumerate(group):
                ending = f".retry{retry}" if retry else ""
                named = msgspec.structs.replace(
                    trajectory, role="proposer", group=f"{trajectory.task_id}.proposer{ending}"
                )
                found = rule_filter.plain(named, golds, self.options.rules) if named.info else None
                proposals.append(Proposed(slot, index, retry, golds, named, found))
        await self.verifier.check(
            proposals, [*earlier, *proposals], lm, derive(seed, "check", retry)
        )
        return proposals

    def _units(
        self, slots: Sequence[Slot], proposals: Sequence[Proposed]
    ) -> list[tuple[int, int, Proposed | None]]:
        """Places for questions: number, slot, and the proposal whose question stands there."""
        count = self.options.proposer_samples
        units: list[tuple[int, int, Proposed | None]] = []
        for slot, _ in slots:
            own = [p for p in proposals if p.slot == slot]
            late = next((p for p in own if p.retry and p.valid), None)
            for index in range(count):
                first = next((p for p in own if not p.retry and p.index == index), None)
                chosen = first if first is None or first.valid or late is None else late
                units.append((slot * count + index, slot, chosen))
        return units

    async def _play(self, task: Task, players: Players, *, role: str, final: str) -> None:
        session = players.session(task.messages, role=role)
        await play_searching(players, session, self.searcher, final)

    async def _solve(
        self,
        units: Sequence[tuple[int, int, Proposed | None]],
        filled: Sequence[Filled | None],
        tasks: Mapping[int, Task],
        lm: LM,
        sampling: Sampling,
        seed: int,
    ) -> dict[int, list[Trajectory]]:
        """Scored attempts by the unit's number; a unit without a question has none."""
        asked: list[Slot] = []
        about: dict[int, dict[str, Any]] = {}
        for (number, slot, _), question in zip(units, filled, strict=True):
            if question is None:
                continue
            answer = list(question.answer)
            fields = {"question": question.question, "answer": answer}
            messages = tuple(solver_messages(question.question))
            asked.append((number, Task(tasks[slot].id, messages, fields)))
            about[number] = {
                **fields,
                "id": question_id.plain(question.question, answer),
                "origin": question.origin,
                "is_above": question.is_above,
            }
        if not asked:
            return {}
        turn = partial(self._play, role="solver", final=ANSWER)
        play = partial(play_all, play=turn, settings=self.settings)
        rolled = await roll_out(asked, lm, sampling, play, derive(seed, "solve"))
        groups = dict(zip(about, rolled, strict=True))
        calls = [partial(self._scored, t, about[n]) for n, group in groups.items() for t in group]
        scored = iter(await gather(calls))
        return {number: [next(scored) for _ in group] for number, group in groups.items()}

    async def _scored(self, trajectory: Trajectory, about: Mapping[str, Any]) -> Trajectory:
        said = "\n".join(m.text for m in trajectory.messages if m.role == "assistant")
        facts: dict[str, Any] = {**about, "judge_calls": 0, "cost_usd": 0.0}
        score: float | None = None
        if trajectory.status is Status.OK:
            score = solver_score.plain(said, about["answer"])
            answer = extract_answer(said)
            if score == 0.0 and answer is not None and self.verifier.judge is not None:
                verdict = await self.verifier.same_answer(
                    about["question"], answer, about["answer"]
                )
                facts |= {"judge_calls": verdict.calls, "cost_usd": verdict.cost_usd}
                score = None if verdict.said is None else verdict.said * tag_penalty(said)
        facts["score"] = score
        return msgspec.structs.replace(
            trajectory, role="solver", info={**trajectory.info, "ssp": facts}
        )

    def _with_rewards(
        self,
        slots: Sequence[Slot],
        proposals: Sequence[Proposed],
        units: Sequence[tuple[int, int, Proposed | None]],
        solved: Mapping[int, Sequence[Trajectory]],
    ) -> list[list[Trajectory]]:
        played = {slot: list[Trajectory]() for slot, _ in slots}
        own, each = self.options, self.options.proposer_samples
        scores = {n: [t.info["ssp"]["score"] for t in found] for n, found in solved.items()}
        for number, _, proposed in units:
            if proposed is not None and proposed.valid:
                proposed.scores = scores.get(number, [])
        earned = [
            proposer_reward.plain(
                p.scores or [None],
                own.reward_type,
                valid=p.valid,
                invalid_reward=own.invalid_reward,
                left=own.left,
                right=own.right,
            )
            if p.trajectory.status is Status.OK
            else None
            for p in proposals
        ]
        if own.drop_flat:
            _mark_flat(proposals, earned)
        for proposal, reward in zip(proposals, earned, strict=True):
            rate = success_rate.plain(proposal.scores)
            facts = {**proposal.facts, "success": rate, "reward": reward}
            is_trained = "proposer" in own.train and not proposal.is_flat
            paid = _paid(proposal.trajectory, facts, reward, is_trained)
            played[proposal.slot].append(paid)
        for number, slot, proposed in units:
            is_trained = "solver" in own.train and not (proposed and proposed.is_flat)
            for trajectory in solved.get(number, ()):
                facts = {**trajectory.info["ssp"], "success": success_rate.plain(scores[number])}
                ending = f".{number % each}" if each > 1 else ""
                group = f"{trajectory.task_id}.solver{ending}"
                named = msgspec.structs.replace(trajectory, group=group)
                played[slot].append(_paid(named, facts, facts["score"], is_trained))
        return [played[slot] for slot, _ in slots]

    # --- questions that are given

    async def _solve_given(
        self, slots: Sequence[Slot], lm: LM, sampling: Sampling, seed: int
    ) -> list[list[Trajectory]]:
        """Solve each task's own question; the same seeds and groups as any rollout has."""
        play = partial(play_all, play=self._play_given, settings=self.settings)
        rolled = await roll_out(slots, lm, sampling, play, seed)
        calls = [
            partial(self._scored_given, task, trajectory)
            for (_, task), group in zip(slots, rolled, strict=True)
            for trajectory in group
        ]
        scored = iter(await gather(calls))
        return [[next(scored) for _ in group] for group in rolled]

    async def _play_given(self, task: Task, players: Players) -> None:
        asked = task.fields.get("question")
        if not isinstance(asked, str) or not asked.strip():
            raise UserError(f"task {task.id} has no text in field 'question'; a solver needs one.")
        session = players.session(solver_messages(asked), role="solver")
        await play_searching(players, session, self.searcher, ANSWER)

    async def _scored_given(self, task: Task, trajectory: Trajectory) -> Trajectory:
        golds = as_golds(f"task {task.id}: field 'answer'", task.fields.get("answer"))
        question = str(task.fields.get("question"))
        facts = {"question": question, "answer": golds, "origin": "given", "is_above": False}
        facts["id"] = question_id.plain(question, golds)
        scored = await self._scored(trajectory, facts)
        facts = scored.info["ssp"]
        return _paid(scored, facts, facts["score"])

    def evaluation(self) -> Rollout:
        async def solve(task: Task, players: Players) -> list[Trajectory]:
            played = await play_all(task, players, self._play_given, self.settings)
            return [await self._scored_given(task, trajectory) for trajectory in played]

        return solve

    # --- between steps

    def remember(self, step: int, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Put the step's questions into the pool; the metrics of the step."""
        seen: dict[str, list[dict[str, Any]]] = {}
        if self.options.strategy in ("full", "periodic"):
            for trajectory in trajectories:
                facts = trajectory.info.get("ssp", {})
                if trajectory.role == "solver" and facts.get("origin") in ("proposed", "replayed"):
                    seen.setdefault(facts["id"], []).append(facts)
        for own in seen.values():  # one question may have filled several places
            rates = [facts["success"] for facts in own if facts["success"] is not None]
            success = fmean(rates) if rates else None
            self.pool.add(own[0]["question"], own[0]["answer"], success=success, step=step)
        dropped = self.pool.end_step(step)
        return step_metrics(trajectories, pool=len(self.pool), dropped=dropped)

    def state(self) -> dict[str, Any]:
        return {"pool": self.pool.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.pool.restore(state.get("pool", {}))


def _mark_flat(proposals: Sequence[Proposed], earned: Sequence[float | None]) -> None:
    known = [(p, r) for p, r in zip(proposals, earned, strict=True) if r is not None]
    groups = [f"{p.slot}/{p.retry}" for p, _ in known]
    kept = dynamic_filter.plain([r for _, r in known], groups, 1).proposer
    for place, (proposal, _) in enumerate(known):
        proposal.is_flat = place not in kept


def _paid(
    trajectory: Trajectory, facts: Mapping[str, Any], value: float | None, is_trained: bool = True
) -> Trajectory:
    """The trajectory with its facts and, where it is trained and has one, its reward."""
    info = {**trajectory.info, "ssp": dict(facts)}
    if not is_trained and trajectory.status is Status.OK:
        info["untrained"] = True
    elif value is not None:
        info |= {"rewards": {REWARD: value}, "reasons": {REWARD: _reason(facts)}}
    return msgspec.structs.replace(trajectory, info=info)


@cache
def _warn_of_penalty(value: float) -> None:
    collapse = "a penalty for invalid questions collapsed the valid rate in the paper"
    logger.warning("invalid_reward is %g: %s; 0 is usual.", value, collapse)


def _reason(facts: Mapping[str, Any]) -> str:
    if "score" in facts:
        if 0 < facts["score"] < 1:
            return "the answer is right, in a text flooded with answer tags"
        return "the answer is right" if facts["score"] else "the answer is wrong"
    if facts["rejected"]:
        return f"the question is rejected ({facts['rejected']})"
    rate = facts["success"]
    return "" if rate is None else f"{rate:.0%} of the answers to its question are right"
