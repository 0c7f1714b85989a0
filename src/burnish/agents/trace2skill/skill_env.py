"""A skill in the system message of any rollout, with whatever tools the recipe offers.

    [rollout]
    kind = "env"
    path = "burnish.agents.trace2skill.skill_env:SkillEnv"
    options = { skill = "new/tables" }

The rollout ends with the first reply that calls no tool. A system message of the task stays, behind
the skill.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnish.agents.trace2skill.skill_files import read_skill, skill_prompt
from burnish.records import Message, Task
from burnish.rollouts import Observation, Tool


class SkillEnv:
    """Nothing but a skill in front of the task."""

    tools: Sequence[Tool] = ()

    def __init__(self, *, skill: str, references: bool = True) -> None:
        """`skill`: a folder, a zip or a shipped skill.

        `references`: their text too; false where the agent has a tool that opens them.
        """
        self._prompt = skill_prompt(read_skill(skill), references=references) if skill else ""

    def opening(self, task: Task) -> tuple[Message, ...]:
        """The task's messages with the skill in the system message."""
        return behind_skill(self._prompt, task)

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(self.opening(task))

    async def step(self, reply: Message) -> Observation:
        return Observation(done=True)


def behind_skill(prompt: str, task: Task) -> tuple[Message, ...]:
    """The task's messages with a skill's text in the system message, before its own."""
    own = [message.text for message in task.messages[:1] if message.role == "system"]
    text = "\n\n".join(part for part in (prompt, *own) if part)
    rest = task.messages[len(own) :]
    return (Message("system", text), *rest) if text else task.messages
