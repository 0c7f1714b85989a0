"""Short ways to a task, responses and scores, and scorers that misbehave on purpose."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from burnish.records import Finish, Message, Response, Reward, Status, Task
from burnish.rewards import Scope, Scorer, checked


def a_task(**fields: Any) -> Task:
    return Task("task-1", (Message("user", "How much?"),), fields)


def answers(*texts: str) -> list[Response]:
    return [Response(f"s{i}", text) for i, text in enumerate(texts)]


def score(scorer: Scorer, task: Task, *texts: str) -> list[Reward]:
    """Through the gate, as every caller does."""
    return anyio.run(checked, scorer, task, answers(*texts))


def values(rewards: Sequence[Reward]) -> list[float | None]:
    return [reward.value for reward in rewards]


def statuses(rewards: Sequence[Reward]) -> list[str]:
    return [reward.status.value for reward in rewards]


class Scripted:
    """A scorer that does what it is told, and remembers what it was asked."""

    def __init__(
        self,
        name: str,
        rule: Callable[[Response], float | None],
        scope: Scope = Scope.POINT,
        needs: Sequence[str] = (),
    ) -> None:
        self.name, self.rule, self.scope, self.needs = name, rule, scope, frozenset(needs)
        self.asked: list[str] = []
        self.fingerprint = name

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        self.asked += [response.text for response in responses]
        return [self._one(self.rule(response)) for response in responses]

    def _one(self, value: float | None) -> Reward:
        if value is None:
            return Reward.failed(self.name, Status.ABSTAIN, "cannot say")
        return Reward(self.name, value)


class PairScripted:
    """A pair scorer that prefers by a rule of the two texts, in the order shown."""

    scope = Scope.PAIR
    needs: frozenset[str] = frozenset()

    def __init__(self, rule: Callable[[str, str], float]) -> None:
        self.name, self.rule, self.fingerprint = "pair", rule, "pair"

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        value = self.rule(responses[0].text, responses[1].text)
        return [Reward("pair", value), Reward("pair", -value)]


class Returning:
    """A scorer that returns whatever it was given, valid or not."""

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()

    def __init__(self, result: Any) -> None:
        self.name, self.result = "odd", result

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def broken_generation(name: str) -> Response:
    return Response(name, "", finish=Finish.ERROR)
