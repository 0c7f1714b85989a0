"""Short ways to a judge that says what it is told, and to its rewards."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from burnish.lm.base import Completion, Prompt, Sampling, Scores
from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Response, Reward, Task
from burnish.rewards import Scorer, checked
from burnish.rewards.judges import JudgeModel


def a_task(text: str = "Name the capital of France.", **fields: Any) -> Task:
    return Task("task-1", (Message("user", text),), fields)


def answers(*texts: str) -> list[Response]:
    return [Response(f"s{i}", text) for i, text in enumerate(texts)]


def score(scorer: Scorer, *texts: str, task: Task | None = None) -> list[Reward]:
    return anyio.run(checked, scorer, task or a_task(), answers(*texts))


def verdict(winner: str, reasons: str = "because") -> str:
    return json.dumps({"reasons": reasons, "winner": winner})


def block(prompt: str, label: str) -> str:
    """The text that a prompt shows under a label, as a judge would find it."""
    start = prompt.index(f"=== {label} ")
    head, _, rest = prompt[start:].partition("\n")
    mark = head.split()[-2]
    return rest[: rest.index(f"\n=== end of {label} {mark} ===")]


def judge_of(rule: Callable[[str, str], str], **settings: Any) -> JudgeModel:
    """A pair judge whose reply is a function of the two texts, in the order shown."""

    def script(messages: Sequence[Message], index: int) -> str:
        prompt = messages[0].content
        return rule(block(prompt, "response A"), block(prompt, "response B"))

    return JudgeModel(ScriptedLM(script), **settings)


def longer_wins(a: str, b: str) -> str:
    return verdict("A" if len(a) > len(b) else "B" if len(a) < len(b) else "Tie")


class SlowLM:
    """A model that takes its time, counts its calls and fails when told to."""

    name = "slow"

    def __init__(self, text: str = "", *, seconds: float = 0.0, error: Exception | None = None):
        self.text, self.seconds, self.error, self.calls = text, seconds, error, 0

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        self.calls += 1
        await anyio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return [Completion(self.text, model=self.name, prompt_tokens=100, completion_tokens=20)]

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, top_k: int = 0
    ) -> Scores:
        raise NotImplementedError
