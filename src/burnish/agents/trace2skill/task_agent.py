"""An agent for `evolve`: a model plays a task with a skill in front of it, and a scorer says if it passed.

    async with TaskAgent(lm, scorer, sampling, journal=Path("plays.jsonl")) as agent:
        await evolve(files, tasks, agent, roles)

Every game played stands in the journal under the task, the skill's text and the seed: a search that
was killed plays none twice. A game that something outside failed is not in it, and is tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.agents.trace2skill.skill_env import behind_skill
from burnish.agents.trace2skill.skill_files import skill_prompt
from burnish.agents.trace2skill.traces import Trace, gold_of
from burnish.bench.evaluate import Evaluated, evaluate_slots, summarise
from burnish.digest import code_digest
from burnish.lm.base import LM, Sampling, model_key
from burnish.lm.lines import LineFile
from burnish.records import Task
from burnish.rewards.fingerprint import fingerprint
from burnish.rewards.scorer import Scorer
from burnish.rollouts import Rollout, single_turn
from burnish.seeds import digest


class Play(Struct, frozen=True):
    """A line of the journal."""

    key: str
    trace: Trace


class TaskAgent:
    """Plays tasks with a skill; see the module."""

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    async def __call__(self, task: Task, files: Mapping[str, str], seed: int) -> Trace | None:
        """The trajectory of one game; None where it could not be played or scored."""
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
        return self._trace(task, items[0], marks[0])

    def _trace(self, task: Task, item: Evaluated, mark: float) -> Trace:
        return Trace(
            id=task.id,
            task_id=task.id,
            instruction=task.prompt,
            messages=(*task.messages, *item.trajectory.messages),
            passed=mark >= self.pass_at,
            score=mark,
            gold=gold_of(task),
        )
