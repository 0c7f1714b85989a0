"""Environments and rollout functions that tests name by path."""

import random
import time

from burnish.errors import ModelError
from burnish.records import Message
from burnish.rollouts import Observation, Tool


def double(number: int, times: int = 1) -> int:
    """Double a number.

    Args:
        number: what is doubled
        times: how often
    """
    return number * 2**times


class Echo:
    """Says back what it was told, `turns` times; rewards the letters."""

    tools = ()

    def __init__(self, turns=2):
        self.left = turns

    async def reset(self, task, seed):
        self.rng = random.Random(seed)
        return Observation()

    async def step(self, reply):
        self.left -= 1
        share = sum(c.isalpha() for c in reply.content) / max(1, len(reply.content))
        said = Message("user", f"{reply.content[:4]} {self.rng.randrange(10)}?")
        return Observation((said,), self.left == 0, {"letters": share})


class Doubling:
    """A tool of the environment's class."""

    def __init__(self):
        self.tools = (Tool(double),)

    async def reset(self, task, seed):
        return Observation(info={"seed": seed})

    async def step(self, reply):
        return Observation(done=True, rewards={"won": float("8" in reply.content)})


class Broken(Echo):
    """Fails where it is told to."""

    def __init__(self, where="step", how="raise"):
        super().__init__(turns=3)
        self.where, self.how = where, how

    async def reset(self, task, seed):
        return self._fail() if self.where == "reset" else Observation()

    async def step(self, reply):
        return self._fail() if self.where == "step" else await super().step(reply)

    def _fail(self):
        if self.how == "raise":
            raise OSError("the board fell off the table")
        return {
            "nan": Observation(done=True, rewards={"won": float("nan")}),
            "text": Observation(done=True, rewards={"won": "yes"}),
            "nothing": Observation(),
            "other": "hello",
            "messages": Observation(("hello",)),
            "info": Observation(done=True, info={"board": object()}),
        }[self.how]


async def two_roles(task, players, seed):
    """A writer and a reader; the reader sees only what the writer wrote."""
    writer = players.session(task.messages, role="writer")
    hint = await players.generate(writer)
    reader = players.session([Message("user", hint.content[:8])], role="reader")
    guess = await players.generate(reader)
    shared = float(len(set(hint.content) & set(guess.content)))
    return {"writer": {"rewards": {"shared": shared}}, "reader": {"rewards": {"shared": shared}}}


async def fails_sometimes(task, players, seed, of=4):
    session = players.session(task.messages)
    await players.generate(session)
    if players.place[1] % of == 0:
        raise ModelError("this one was lost")


async def always_fails(task, players, seed):
    raise KeyError("nothing works")


async def slow(task, players, seed):
    session = players.session(task.messages)
    await players.generate(session)
    if players.place[1] == 0:
        import anyio

        await anyio.sleep(60)


def raises(text: str) -> str:
    raise LookupError(f"no {text}")


def hangs(text: str) -> str:
    time.sleep(3)
    return text


def huge(text: str) -> str:
    return text * 10_000_000


def nan(text: str) -> float:
    return float("nan")


def unserialisable(text: str) -> object:
    return object()


def half(text: str) -> str:
    return "\ud800 half a character"


def exits(text: str) -> str:
    raise SystemExit(3)


async def fails_first(task, players, seed):
    """Every rollout of the step's first prompt fails."""
    await players.generate(players.session(task.messages))
    if players.place[0] == 0:
        raise ModelError("this one was lost")
