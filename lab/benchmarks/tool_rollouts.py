"""Rollouts of several turns with a slow tool, beside loops that take turns with their tools.

    python lab/benchmarks/tool_rollouts.py                            # tiny, 32 episodes, on the CPU
    python lab/benchmarks/tool_rollouts.py --model smollm2 --episodes 256 --device cuda --trl

Every episode writes up to `--tokens` tokens, waits `--tool-ms` for a tool, and goes on, `--turns` times.

  burnish     `roll_out`: the calls of a turn run at the same time, each on its own episode
  at once     a loop: generate for all, then all tools in threads, then the next turn
  one by one  a loop: generate for all, then one tool after the other
  trl         with --trl: GRPOTrainer's own generation and tool loop, whose tools also run one by one

Every reply has a seed of its own, in the loops too: with one seed for all, replies end together and a
turn is over sooner. The tokens that were sampled stand beside the time. The loops keep texts alone,
burnish the exact tokens and log-probs of every conversation.

The model is busy while a batch is being sampled; the rest of the time it waits for tools or for the
bookkeeping of conversations. On the CPU only ratios mean something.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import anyio

from burnish.lm.base import Completion, Sampling
from burnish.lm.folder import load_model
from burnish.lm.local import LocalLM
from burnish.lm.sampler import Request
from burnish.records import Message, Task
from burnish.rollouts.base import MultiTurnSettings, Players, play_all, roll_out
from burnish.rollouts.session import Limits
from burnish.seeds import derive

RESULT = "The tool says: 42."


class Timed(LocalLM):
    """A model that notes how long it was sampling, by the wall and the CPU, and how many tokens."""

    busy_s = cpu_s = 0.0
    tokens = 0

    def sample_batch(self, requests: Sequence[Request]) -> list[list[Completion]]:
        began, cpu = time.perf_counter(), time.process_time()
        replies = super().sample_batch(requests)
        self.busy_s += time.perf_counter() - began
        self.cpu_s += time.process_time() - cpu
        self.tokens += sum(len(one.token_ids) for group in replies for one in group)
        return replies


class Result(NamedTuple):
    wall_s: float
    busy: float
    """Share of the time in which the model was sampling."""
    tokens: int
    """That our sampler wrote; 0 for others."""
    between_s: float
    """CPU time outside of sampling."""


def tasks_of(episodes: int) -> list[Task]:
    return [
        Task(f"t{n}", (Message("user", f"Question {n}: what does the tool say?"),), {})
        for n in range(episodes)
    ]


def ours(lm: Timed, options: argparse.Namespace) -> None:
    """The rollouts that a training step plays."""

    async def play(task: Task, players: Players) -> None:
        session = players.session(task.messages)
        for turn in range(options.turns):
            await players.generate(session)
            if turn + 1 < options.turns:
                await anyio.sleep(options.tool_ms / 1000)
                session.observe([Message("user", RESULT)])

    limits = Limits(turns=options.turns)
    settings = MultiTurnSettings(limits=limits, turn_tokens=options.tokens)
    sampling = Sampling(n=1, max_tokens=options.tokens * options.turns)
    slots = list(enumerate(tasks_of(options.episodes)))
    rollout = partial(play_all, play=play, settings=settings)
    played = anyio.run(partial(roll_out, slots, lm, sampling, rollout, seed=0))
    assert all(trajectory.status == "ok" for group in played for trajectory in group)


def loop(lm: Timed, options: argparse.Namespace, call_tools: Callable[[int], None]) -> None:
    """All episodes generate, then all tools, then the next turn."""
    talks = [list(task.messages) for task in tasks_of(options.episodes)]
    for turn in range(options.turns):
        requests = [
            lm.request(talk, Sampling(n=1, max_tokens=options.tokens, seed=derive(turn, episode)))
            for episode, talk in enumerate(talks)
        ]
        for talk, (reply,) in zip(talks, lm.sample_batch(requests), strict=True):
            talk.append(Message("assistant", reply.text))
        if turn + 1 < options.turns:
            call_tools(len(talks))
            for talk in talks:
                talk.append(Message("user", RESULT))


def measured(
    lm: Timed, work: Callable[[], None], busy: Callable[[], float] | None = None
) -> Result:
    lm.busy_s, lm.cpu_s, lm.tokens = 0.0, 0.0, 0
    began, cpu = time.perf_counter(), time.process_time()
    work()
    wall, between = time.perf_counter() - began, time.process_time() - cpu - lm.cpu_s
    return Result(wall, (busy() if busy else lm.busy_s) / wall, lm.tokens, between)


def tell(name: str, which: str, result: Result) -> None:
    """A pass that is over: a benchmark that is cut short has said something."""
    told = f"{name}, {which}: {result.wall_s:.2f} s, model busy {100 * result.busy:.0f} %"
    print(told, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--tool-ms", type=float, default=50.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trl", action="store_true", help="also TRL's tool loop")
    options = parser.parse_args()
    lm = Timed(load_model(options.model, device=options.device))
    tool_ms, options.tool_ms = options.tool_ms, 0.0  # while everything is warmed up

    def wait(_: Any = None) -> None:
        time.sleep(options.tool_ms / 1000)

    pool = ThreadPoolExecutor(max_workers=options.episodes)

    def at_once(count: int) -> None:
        list(pool.map(wait, range(count)))

    def one_by_one(count: int) -> None:
        for _ in range(count):
            wait()

    ways: dict[str, Callable[[], Any]] = {
        "burnish": partial(ours, lm, options),
        "at once": partial(loop, lm, options, at_once),
        "one by one": partial(loop, lm, options, one_by_one),
    }
    busy_of: dict[str, Callable[[], float]] = {}
    if options.trl:
        from _trl_tools import trl_rollouts

        prompts = [task.messages[0].text for task in tasks_of(options.episodes)]
        ways["trl"], busy_of["trl"] = trl_rollouts(
            options.model, options.device, prompts, options.turns, options.tokens, wait, RESULT
        )
    for name, work in ways.items():
        tell(name, "warm", measured(lm, work, busy_of.get(name)))  # caches, graphs and threads
    options.tool_ms = tool_ms
    found: dict[str, list[Result]] = {name: [] for name in ways}
    for turn in range(options.repeats):
        for name, work in ways.items():  # in turn, so that other work on the machine meets all
            found[name].append(measured(lm, work, busy_of.get(name)))
            tell(name, f"{turn + 1}/{options.repeats}", found[name][-1])
    print(
        f"{options.model} on {options.device}: {options.episodes} episodes of {options.turns} turns, "
        f"{options.tokens} tokens each, a tool of {options.tool_ms:g} ms; median of {options.repeats}"
    )
    ours_s = statistics.median(one.wall_s for one in found["burnish"])
    for name, results in found.items():
        wall = statistics.median(one.wall_s for one in results)
        busy = statistics.median(one.busy for one in results)
        seconds = "" if options.device == "cpu" else f"{wall:7.2f} s   "
        written = max(one.tokens for one in results) // options.episodes
        between = statistics.median(one.between_s for one in results)
        turn_ms = 1000 * between / options.episodes / options.turns
        told = f"   {written} tokens an episode, {turn_ms:.2f} ms of CPU a turn beside sampling"
        told = told if written else ""
        print(f"{name:10}   {seconds}{wall / ours_s:5.2f} x   model busy {100 * busy:3.0f} %{told}")


if __name__ == "__main__":
    main()
