"""Evolve a skill on tasks: run the agent, distil, pick the best seed, and accept it only if not worse.

`agent` plays one task with a skill and gives a trajectory with its verdict. A share of the tasks is
held out from learning; there the old and the new skill meet in a paired sign test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.agents.trace2skill.distillation import CHANGED, Distilled, Settings, distil
from burnish.agents.trace2skill.roles import Roles
from burnish.agents.trace2skill.skill_env import behind_skill
from burnish.agents.trace2skill.skill_files import skill_prompt
from burnish.agents.trace2skill.traces import Trace, gold_of, pool_of
from burnish.arguments import same_length
from burnish.bench.evaluation import evaluate_slots, summarise
from burnish.bench.statistics import Estimate, mcnemar, paired_difference
from burnish.boundary import Fraction, PositiveInt, Seed, public
from burnish.concurrency import gather
from burnish.digest import code_digest
from burnish.lm.base import LM, Sampling, model_key
from burnish.lm.lines import LineFile
from burnish.records import Task
from burnish.rewards.scorer import Scorer, fingerprint
from burnish.rollouts import Rollout, single_turn
from burnish.seeds import derive, digest

Agent = Callable[[Any, Mapping[str, str], int], Awaitable[Trace | None]]
"""A task, the skill's files and a seed: the trajectory; None where something outside failed."""


ALPHA = 0.05
"""A p-value from which a difference may be noise."""


class Choice(NamedTuple):
    accepted: bool
    better: int
    """Tasks that only the new skill passes."""
    worse: int
    p: float


class Change(NamedTuple):
    before: float
    after: float
    difference: Estimate
    """After minus before with its 95 % interval, paired by task."""
    p: float

    @property
    def is_noise(self) -> bool:
        """Whether skills that are equally good would often differ as much."""
        return self.p >= ALPHA


def paired_change(before: Sequence[bool], after: Sequence[bool]) -> Change | None:
    """What a new skill changed on the same tasks; None where there is none.

    >>> paired_change([False, False, True], [True, False, True]).is_noise
    True
    """
    choice = choose_skill.plain(before, after)
    if not before:
        return None
    old, new = [float(one) for one in before], [float(one) for one in after]
    rates = math.fsum(old) / len(old), math.fsum(new) / len(new)
    return Change(*rates, paired_difference.plain(old, new), choice.p)


@public
def choose_skill(before: Sequence[bool], after: Sequence[bool]) -> Choice:
    """Accept the new skill unless it passes fewer of the same tasks; without a task there is no reason to.

    >>> choose_skill([False, False, True], [True, True, True])
    Choice(accepted=True, better=2, worse=0, p=0.5)
    """
    same_length("after", after, len(before), "tasks")
    better = sum(b and not a for a, b in zip(before, after, strict=True))
    worse = sum(a and not b for a, b in zip(before, after, strict=True))
    return Choice(bool(before) and better >= worse, better, worse, mcnemar.plain(worse, better))


@public
def held_out(ids: Sequence[str], share: Fraction = 0.2, seed: Seed = 0) -> list[bool]:
    """Which tasks are held out from learning: the same ones whatever their order.

    >>> sum(held_out([str(i) for i in range(50)]))
    10
    """
    drawn = sorted(set(ids), key=lambda one: (derive(seed, "held_out", one), one))
    chosen = set(drawn[: round(share * len(drawn))])
    return [one in chosen for one in ids]


class Evolved(NamedTuple):
    files: dict[str, str]
    accepted: bool
    choice: Choice | None
    runs: tuple[Distilled, ...]
    rates: tuple[float | None, ...]
    """Pass rates of their skills on the tasks they learnt from; None where no task was played twice."""
    before: float | None
    """The best pass rate of the old skill there, on the same tasks."""
    changes: tuple[Change | None, ...] = ()
    held: Change | None = None
    """What the chosen one changed on the held-out tasks."""


async def evolve(
    files: Mapping[str, str],
    tasks: Mapping[str, Any],
    agent: Agent,
    roles: Callable[[int], Roles],
    settings: Settings | None = None,
    *,
    seeds: PositiveInt = 3,
    share: Fraction = 0.2,
    limit: PositiveInt = 4,
) -> Evolved:
    """Distil with several seeds, keep the best on the learning tasks, test it on the held-out ones.

    `tasks` are by id; `roles` gives those of a seed.
    """
    names = sorted(tasks)
    out = dict(zip(names, held_out(names, share), strict=True))
    learn, rest = [n for n in names if not out[n]], [n for n in names if out[n]]

    async def play(
        chosen: Sequence[str], skill: Mapping[str, str], seed: int
    ) -> list[Trace | None]:
        calls = [partial(agent, tasks[name], skill, derive(seed, name)) for name in chosen]
        return await gather(calls, limit=limit)

    runs: list[Distilled] = []
    changes: list[Change | None] = []
    for seed in range(seeds):
        first = await play(learn, files, seed)
        traces = [one for one in first if one is not None]
        runs.append(await distil(pool_of(traces), files, roles(seed), settings))
        changes.append(paired_change(*_marks(first, await play(learn, runs[-1].files, seed))))
    rates = [None if one is None else one.after for one in changes]
    before = max((one.before for one in changes if one is not None), default=None)
    changed = [seed for seed, run in enumerate(runs) if run.status == CHANGED]
    best = max(changed, key=lambda i: (-1.0 if rates[i] is None else rates[i], -i), default=None)
    choice = held = None
    if best is not None:
        marks = _marks(await play(rest, files, 0), await play(rest, runs[best].files, 0))
        choice, held = choose_skill.plain(*marks), paired_change(*marks)
    is_kept = best is not None and choice is not None and choice.accepted
    return Evolved(
        runs[best].files if best is not None and is_kept else dict(files),
        is_kept,
        choice,
        tuple(runs),
        tuple(rates),
        before,
        tuple(changes),
        held,
    )


def _marks(
    old: Sequence[Trace | None], new: Sequence[Trace | None]
) -> tuple[list[bool], list[bool]]:
    """Who passed, of the tasks that were played on both sides."""
    both = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
    return [a.passed for a, _ in both], [b.passed for _, b in both]


class Play(Struct, frozen=True):
    key: str
    trace: Trace


class TaskAgent:
    def __init__(
        self,
        lm: LM,
        scorer: Scorer,
        sampling: Sampling,
        *,
        rollout: Rollout = single_turn,
        part: str = "",
        pass_at: float = 1.0,
        deadline_s: float = 60.0,
        references: bool = True,
        journal: Path | None = None,
        on_play: Callable[[Trace | None], None] | None = None,
    ) -> None:
        """`part`: the reward that counts, the total where empty; `on_play` is told of every game.

        `references`: shows these files of the skill too, which the agent has no tool to open.
        """
        self.lm, self.scorer, self.sampling, self.rollout = lm, scorer, sampling, rollout
        self.part, self.pass_at, self.deadline_s = part, pass_at, deadline_s
        self.references, self.on_play = references, on_play
        settings = msgspec.json.encode((sampling, part, pass_at)).decode()
        self._player = digest(*model_key(lm), fingerprint(scorer), settings, code_digest(rollout))
        self._journal = None if journal is None else LineFile(journal, Play)
        self.failures: Counter[str] = Counter()
        """Why games could not be played or scored."""
        self._open = ExitStack()
        self._known: dict[str, Trace] = {}

    async def __aenter__(self) -> Self:
        if self._journal is not None:
            self._open.enter_context(self._journal)
            self._known = {one.key: one.trace for one in self._journal.records}
        return self

    async def __aexit__(self, *error: object) -> None:
        self._open.close()

    async def __call__(self, task: Task, files: Mapping[str, str], seed: int) -> Trace | None:
        prompt = skill_prompt(files, references=self.references)
        # With the fields: a game is scored again where its reference has changed.
        shown = msgspec.json.encode(
            (task.messages, task.fields), enc_hook=lambda one: type(one).__name__
        )
        key = digest(self._player, task.id, shown.decode(), prompt, f"{seed}")
        found: Trace | None = self._known.get(key)
        if found is None:
            found = await self._play(task, prompt, seed)
            if found is not None and self._journal is not None:
                self._journal.append(Play(key, found))
                self._known[key] = found
        if self.on_play is not None:
            self.on_play(found)
        return found

    async def _play(self, task: Task, prompt: str, seed: int) -> Trace | None:
        shown = replace(task, messages=behind_skill(prompt, task))
        groups = await evaluate_slots(
            self.lm,
            [(0, shown)],
            self.scorer,
            replace(self.sampling, seed=seed),
            deadline_s=self.deadline_s,
            rollout=self.rollout,
        )
        items = [one for group in groups for one in group]
        marks = summarise(items, self.part).marks
        if not items or marks[0] is None:
            self.failures[items[0].reward.reason if items else "no rollout"] += 1
            return None
        return Trace(
            id=task.id,
            task_id=task.id,
            instruction=task.prompt,
            messages=(*task.messages, *items[0].trajectory.messages),
            passed=marks[0] >= self.pass_at,
            score=marks[0],
            gold=gold_of(task),
        )
