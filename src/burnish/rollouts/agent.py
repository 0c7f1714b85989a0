"""A program that was written for an OpenAI-style server, trained as it is: it gets an address.

A program is a child process with the task on stdin and the address in its environment. It runs in its
own process group and ends with the call, however that ends: at its own exit, at a deadline, at more
output than it may write. Nothing of what it says is trusted or run.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
import msgspec

from burnish.errors import ArgumentError, RolloutError, UserError
from burnish.lm.base import JsonObject
from burnish.lm.failures import unwrapped_errors
from burnish.records import Task
from burnish.rollouts.base import MultiTurnSettings, Options, Players, Rollout, play_all
from burnish.rollouts.endpoint import Address, the_endpoint
from burnish.rollouts.env import checked_rewards, plain_table
from burnish.rollouts.episode import Episode
from burnish.rollouts.session import LimitReached
from burnish.rollouts.tool import in_thread
from burnish.seeds import digest
from burnish.source import describe, find_function
from burnish.texts import safe
from burnish.tools.inside import kernel
from burnish.tools.inside.descend import end_carrying
from burnish.tools.supervisor import ChildProcess

LOOK_S = 0.25
SOON_S = 0.01
MOST_OUTPUT = 1 << 20
"""Bytes of a program's output; one that prints more is ended."""
KEPT = 64 << 10
"""Bytes that are kept of the end of what a program writes."""


TRACEBACK = "Traceback (most recent call last):"


def environment(address: Address, model: str, seed: int) -> dict[str, str]:
    """This process's environment with the episode's address in the usual variables."""
    # A proxy cannot reach this machine's own loopback.
    known = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    no_proxy = ",".join(filter(None, [known, "127.0.0.1,localhost"]))
    return {
        **os.environ,
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_BASE": address.base_url,
        "OPENAI_API_KEY": address.key,
        "OPENAI_MODEL": model,
        "BURNISH_SEED": str(seed),
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
    }


async def run_program(
    command: Sequence[str], task: Task, env: Mapping[str, str], *, most: int
) -> tuple[str, str]:
    """Run a program to its end: its last line, and why it failed. One that writes over `most` bytes
    is killed."""
    words = [sys.executable if command[0] in ("python", "python3") else command[0], *command[1:]]
    leashed = [sys.executable, "-I", "-S", kernel.__file__, str(os.getpid()), *words]
    out, err = _Tail(most), _Tail(most)
    # Everything but the fields that give the label away.
    shown = task.for_judge()
    asked = {"id": task.id, "prompt": task.prompt, "messages": shown.messages}
    with tempfile.TemporaryFile() as told:
        told.write(msgspec.json.encode({**asked, "fields": shown.fields}))
        told.seek(0)
        async with _pipe(out) as stdout, _pipe(err) as stderr:
            try:
                child = ChildProcess(
                    leashed, env=env, stdin=told.fileno(), stdout=stdout, stderr=stderr
                )
            except OSError as error:
                raise RolloutError(f"the program cannot be started: {error}") from error
            os.close(stdout)
            os.close(stderr)
            try:
                while child.is_alive and not (out.is_flood or err.is_flood):
                    # Most programs end right after they have closed their output.
                    if out.stirred.is_set():
                        await anyio.sleep(SOON_S)
                        continue
                    with anyio.move_on_after(LOOK_S):
                        await out.stirred.wait()
                is_flood = child.is_alive
            finally:
                child.kill_descendants()
                code = child.kill()
                # What has left the family still carries the episode's key.
                end_carrying(env["OPENAI_API_KEY"].encode())
            # What it wrote last may still be in the pipe; a stranger that holds it is not waited for.
            with anyio.move_on_after(LOOK_S):
                await out.closed.wait()
                await err.closed.wait()
    if is_flood:
        return "", f"the program wrote over {most >> 10} KB"
    if code == 0:
        return out.last_line(), ""
    signalled = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
    said = safe(err.error()[:300])
    problem = f"the program {signalled or f'ended with exit status {code}'}{said and ': '}{said}"
    return out.last_line(), problem


class _Tail(asyncio.Protocol):
    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self.end = b""
        self.closed, self.stirred = anyio.Event(), anyio.Event()
        """`stirred` where there is something to look at: a flood, or the end."""

    @property
    def is_flood(self) -> bool:
        return self.size > self.most

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        self.end = (self.end + data)[-KEPT:]
        if self.is_flood:
            self.stirred.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self.stirred.set()

    def last_line(self) -> str:
        return next((line.strip() for line in reversed(self._lines()) if line.strip()), "")

    def error(self) -> str:
        """What a program that failed says of it: the exception of its last traceback, whole, in one
        line; else its last line."""
        lines = self._lines()
        starts = [n for n, line in enumerate(lines) if line.startswith(TRACEBACK)]
        told = lines[starts[-1] + 1 :] if starts else []
        first = next((n for n, line in enumerate(told) if line and not line[0].isspace()), None)
        if first is None:
            return self.last_line()
        return " ".join(" ".join(told[first:]).split())

    def _lines(self) -> list[str]:
        return self.end.decode("utf-8", "replace").splitlines()


@asynccontextmanager
async def _pipe(tail: _Tail) -> AsyncIterator[int]:
    """A pipe whose other end the loop reads into a tail; inside, the end that is written."""
    read, write = os.pipe()
    file = os.fdopen(read, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: tail, file)
    try:
        yield write
    finally:
        transport.close()


MOST_ANSWER = 64 << 10


class AgentRollout(MultiTurnSettings, frozen=True, kw_only=True, tag="agent"):
    """A program or function that asks the model over an OpenAI-compatible address."""

    command: tuple[str, ...] = ()
    """The program and its arguments, such as `["python", "my_agent.py"]`; `python` is the one that
    runs burnish. The task is JSON on stdin; `OPENAI_BASE_URL` and `OPENAI_API_KEY` are set."""
    path: str = ""
    """In the place of a program, a function `run(task, *, base_url, api_key)`: `my_file.py:run`."""
    options: Options = msgspec.field(default_factory=dict)
    """Further arguments of the function."""
    result: Literal["text", "json"] = "text"
    """What the last line that a program prints is: the answer itself, or a JSON object that the
    program wrote, with `answer`, `rewards` (name to number, for rewards of kind `env`) and facts of
    its own. Choose json only where no line of the model's can be the last one."""
    crash: Literal["drop", "zero"] = "drop"
    """What an episode is worth whose program failed after the model was asked. drop: it has no reward
    and leaves its group. zero: it is scored with an empty answer, so that a policy which crashes its
    program is paid for that."""
    batching: Literal["arrival", "rounds"] = "arrival"
    """arrival: requests are sampled as they come, those that wait in one batch, so that a program
    that is busy holds up nobody. rounds: all at once, when every episode waits or has ended; a run
    of repeatable programs is then repeatable bit by bit. Of `arrival` four programs for each
    processor core run at a time, at least 16."""

    def check(self) -> None:
        if bool(self.command) == bool(self.path):
            got = "both" if self.path else "neither"
            raise ArgumentError(f"kind 'agent' needs a command or a path; got {got}")
        if self.options and not self.path:
            raise ArgumentError("kind 'agent': options need a path; leave them out")

    def build(self, root: Path = Path()) -> Rollout:
        return self._built(root, is_trained=True)

    def build_evaluation(self, root: Path = Path()) -> Rollout:
        """One trajectory an episode: a task counts once, however many conversations it took."""
        return self._built(root, is_trained=False)

    def _built(self, root: Path, *, is_trained: bool) -> Rollout:
        run = self._function(root) if self.path else self._command(root)
        in_rounds = self.batching == "rounds"
        at_once = None if in_rounds else anyio.Semaphore(max(16, 4 * (os.cpu_count() or 1)))
        make = partial(Episode, most_tokens=self.max_prompt_tokens, in_rounds=in_rounds)
        play = partial(_play, run=run, make=make, is_trained=is_trained, crash=self.crash)
        return partial(play_all, play=play, settings=self, at_once=at_once)

    def _command(self, root: Path) -> Run:
        first = self.command[0]
        if first not in ("python", "python3") and shutil.which(first) is None:
            raise UserError(f"rollout.command: no program '{first:.80}' is found; expected one")
        words = (str(root / word) if (root / word).is_file() else word for word in self.command)
        here = Command(tuple(words))

        async def run(task: Task, players: Players, address: Address) -> Outcome:
            env = environment(address, players.lm.name, players.sampling.seed)
            line, problem = await run_program(here.words, task, env, most=MOST_OUTPUT)
            if problem or not line:
                return Outcome(problem=problem)
            if self.result == "text":
                return Outcome(line[:MOST_ANSWER])
            try:
                found = msgspec.json.decode(line, type=JsonObject)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return Outcome(
                    problem=f"the program's last line is no JSON object: {safe(line[:80])}"
                )
            return _outcome("the program", found)

        return run

    def _function(self, root: Path) -> Run:
        function = partial(find_function(self.path, "agent", root), **self.options)
        what = f"agent '{self.path}'"

        async def run(task: Task, players: Players, address: Address) -> Outcome:
            def called() -> Any:
                # In a thread: a function that blocks must not keep the model from answering it.
                try:
                    found = function(
                        task.for_judge(), base_url=address.base_url, api_key=address.key
                    )
                    if inspect.iscoroutine(found):
                        found = asyncio.run(found)
                    return found
                except BaseException as error:  # boundary: the function is foreign code
                    return Outcome(problem=f"{what} failed: {describe(error)}")

            found = await in_thread(called, what)
            return found if isinstance(found, Outcome) else _outcome(what, found)

        return run


class Command(NamedTuple):
    """The words of a command; its digest counts what their files hold."""

    words: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        files = [Path(word) for word in self.words[1:]]
        return digest(*self.words, *(file.read_bytes() for file in files if file.is_file()))


class Outcome(msgspec.Struct):
    answer: str | None = None
    rewards: dict[str, float] = msgspec.field(default_factory=dict)
    facts: JsonObject = msgspec.field(default_factory=dict)
    problem: str = ""


Run = Callable[[Task, Players, Address], Any]


async def _play(
    task: Task,
    players: Players,
    *,
    run: Run,
    make: Callable[..., Episode],
    is_trained: bool,
    crash: str,
) -> None:
    episode = make(task, players)
    outcome: Outcome | None = None
    async with the_endpoint(episode) as address:
        with unwrapped_errors():
            async with anyio.create_task_group() as group:

                async def end() -> None:
                    await episode.over.wait()
                    group.cancel_scope.cancel()

                group.start_soon(end)
                try:
                    outcome = await run(task, players, address)
                except (RolloutError, UserError) as error:
                    outcome = Outcome(problem=str(error))
                group.cancel_scope.cancel()
    ended = outcome or Outcome(
        problem=f"the program was ended after {episode.refused} refused requests"
    )
    if ended.problem and crash == "zero":
        ended.answer = ""
    _settle(episode, players, ended, is_trained, address.key)


def _settle(episode: Episode, players: Players, ended: Outcome, is_trained: bool, key: str) -> None:
    """What the episode leaves: its sessions with the answer, or the reason why it failed."""
    if episode.error is not None:
        raise episode.error
    sessions = episode.sessions()
    trained = [s for s in sessions if any(span.trainable for span in s.spans)]
    problem = ended.problem.replace(key, "(key)")
    told = f"; its last request was refused: {episode.refusal}" if episode.refusal else ""
    players.sessions[:] = (trained or sessions)[0 if is_trained else -1 :]
    for session in players.sessions:
        session.info["agent"] = episode.counts
        if ended.facts:
            session.info["program"] = ended.facts
        if ended.rewards:
            session.info["rewards"] = ended.rewards
        if ended.answer is not None:
            # Scorers read the answer; the turns stay in `messages`.
            session.info["messages"] = msgspec.to_builtins(session.shown)
            session.info["turns"] = session.turns
            session.text = ended.answer.replace(key, "(key)")
    if not sessions:
        early = "before the model had replied" if episode.requests else "and never asked the model"
        what = (
            f"{problem} ({early}" if problem else "the program ended without a reply of the model"
        )
        raise RolloutError(what + told + (")" if problem else ""))
    if episode.limit:
        raise LimitReached(episode.limit)
    if problem and episode.is_overlong:
        raise LimitReached("context")
    if problem and ended.answer is None:
        raise RolloutError(problem + told)
    for session in players.sessions if problem else ():
        session.info["crash"] = problem + told


def _outcome(what: str, found: Any) -> Outcome:
    if found is None or isinstance(found, str | int | float):
        return Outcome(answer=None if found is None else str(found)[:MOST_ANSWER])
    plain = plain_table(what, found)
    answer, rewards = plain.pop("answer", None), plain.pop("rewards", {})
    text = None if answer is None else str(answer)[:MOST_ANSWER]
    return Outcome(text, checked_rewards(what, rewards), plain)
