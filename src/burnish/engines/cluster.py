"""A run of several parts: servers that sample, servers that score, and the processes that train.

`supervise` starts the servers, then the trainers, which are the same `burnish train` with the
environment of torchrun and `BURNISH_CLUSTER`, which names the servers. A server that dies comes back
at its address, and what was asked of it is asked again. Where a trainer dies all of them start again
at the newest checkpoint, which gives the same samples. What happened stands in `cluster/events.log`
of the run's folder, beside the log of each part.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from burnish.activity import waiting_for
from burnish.config.cluster import Cluster
from burnish.engines.placement import Place
from burnish.engines.supervise import TICK_S, Command, Host, LocalHost, Part, PartLost, answers
from burnish.lm.failures import Unreachable
from burnish.store.manifest import now
from burnish.store.processes import read_processes

SERVED = "BURNISH_CLUSTER"
"""Environment variable of a part that trains: where the servers are."""
TOKEN = "BURNISH_CLUSTER_TOKEN"
"""Environment variable of every part: what a request to a server must carry."""
BURNISH = (sys.executable, "-m", "burnish")
FOLDER = "cluster"
"""In the run's folder: logs, and the model folder that samplers serve."""
GRANTED_S = 5.0
"""How soon a supervisor ends a server that it is asked to start again."""
LEAVE_S = 60.0
"""What is left of the trainers when one of them has ended by itself, or all were told to."""
AGAIN = "again"
"""File of a trainer in that folder: the address of a server that it wants started again."""


class Served(Struct, frozen=True, kw_only=True):
    """Where the servers of a run are, for its trainers."""

    samplers: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    folder: str = ""
    """The model folder that the samplers were started on."""
    engine: str = "burnish"
    patience_s: float = 0.0
    """How long a server may be away."""

    def sampler(self) -> dict[str, Any]:
        """The table `sampler` of a trainer's config; empty where it samples itself."""
        if not self.samplers:
            return {}
        is_vllm = self.engine == "vllm"
        return {
            "kind": "remote",
            "urls": [f"{url}/v1" for url in self.samplers],
            "folder": self.folder,
            "dialect": "vllm" if is_vllm else "sglang",
            "weights": "group" if is_vllm else "folder",
            "version_path": "/weight_info" if self.engine == "burnish" else "",
            "api_key_env": TOKEN,
            # One that died is back soon, and until then there may be others.
            "retries": 1,
        }

    async def start_again(self, url: str) -> None:
        """Return once the sampler at `url` was started again, by the supervisor that watches it."""
        url = url.removesuffix("/v1")
        if await anyio.to_thread.run_sync(answers, url):
            (Path(self.folder).parent / AGAIN).write_text(url)
            # It stays up where it was just started: another process found it dead before this one.
            await self._until(url, False, GRANTED_S)
        with waiting_for(f"the sampler at {url} to be started again"):
            if not await self._until(url, True, self.patience_s):
                raise Unreachable(
                    f"the sampler at {url} was not back after {self.patience_s:g} s (cluster.start_s "
                    "and heartbeat_s); expected its supervisor to start it again"
                )

    async def _until(self, url: str, is_well: bool, within_s: float) -> bool:
        with anyio.move_on_after(within_s):
            while await anyio.to_thread.run_sync(answers, url) is not is_well:  # noqa: ASYNC110
                await anyio.sleep(TICK_S)
            return True
        return False


def served() -> Served | None:
    """What this process is told where it is a part of a run; None where it is not."""
    given = os.environ.get(SERVED)
    return msgspec.json.decode(given, type=Served) if given else None


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the parts of a run are started for."""

    folder: Path
    settings: Cluster
    words: Sequence[str]
    """Of `burnish train`, flags included."""
    judging: Sequence[str]
    """Of `burnish serve-reward`."""
    tell: Callable[[str], object]
    """Shows a line to whoever started the run."""

    @property
    def home(self) -> Path:
        return self.folder / FOLDER

    def note(self, line: str, *, is_shown: bool = True) -> None:
        """Keep what happened, and show it."""
        if is_shown:
            self.tell(line)
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "events.log").open("a") as file:
            file.write(f"{now()} {line}\n")


class Supervisor:
    """Keeps the parts of one run alive until its trainers have ended."""

    def __init__(self, run: Run, hosts: Mapping[str, Host], places: Sequence[Place]) -> None:
        """`hosts` by the name of the part that runs there."""
        self.run, self.hosts, self.settings = run, hosts, run.settings
        self._places = {place.name: place for place in places}
        self._secret = {TOKEN: secrets.token_urlsafe(24)}
        self._urls: dict[str, str] = {}
        self._where: dict[str, str] = {}
        """The machine of each trainer when it was last started."""
        self.servers = [self._server(name) for name in hosts if not name.startswith("trainer")]
        self.trainers = [self._trainer(name) for name in hosts if name.startswith("trainer")]
        self._asked = 0
        self._leaving = 0.0
        """When the trainers are ended that have not ended by themselves; 0: not yet known."""
        self._shown = self._port = 0

    def watch(self) -> int:
        """Run to the end; the exit code of the first trainer."""
        with ExitStack() as stack:
            stack.callback(self._end)
            stack.enter_context(_asked_to_end(self._ask))
            for part in self.servers:
                self._start(part)
            while not all(part.is_ready for part in self.servers):
                if self._asked:
                    return 128 + self._asked
                self._look_at_servers()
            for part in self.trainers:
                self._start(part)
            while (code := self._look_at_trainers()) is None:
                self._look_at_servers()
            return code

    def _start(self, part: Part) -> None:
        part.start()
        line = f"{part.name} runs as process {part.pid} of {part.host.address}"
        self.run.note(line, is_shown=False)

    def _start_if_due(self, part: Part) -> None:
        if part.due and time.monotonic() >= part.due:
            self._start(part)

    def _look_at_servers(self) -> None:
        time.sleep(TICK_S)
        wanted = self._wanted_again()
        for part in self.servers:
            before = self._urls[part.name]
            self._start_if_due(part)
            if self._urls[part.name] != before and self.trainers[0].pid:
                self._begin_again(f"{part.name} has moved to {self._urls[part.name]}")
            why = part.lost() if part.is_started else ""
            is_wanted = self._urls[part.name] == wanted and part.age_s > self.settings.heartbeat_s
            if part.is_started and is_wanted:
                why = "does not take the weights"
            if why:
                self.run.note(part.start_again(why))

    def _wanted_again(self) -> str:
        """The address of a server that a trainer wants started again; empty without one."""
        file = self.run.home / AGAIN
        try:
            url = file.read_text()
        except FileNotFoundError:
            return ""
        file.unlink()
        return url

    def _look_at_trainers(self) -> int | None:
        """Their exit code once all have ended."""
        self._show()
        for part in list(self.trainers):
            try:
                self._start_if_due(part)
            except PartLost as lost:
                if not self._may_go_without:
                    raise
                self._begin_again(str(lost), part)
        if not all(part.is_started for part in self.trainers):
            return 128 + self._asked if self._asked else None
        if not self._asked:
            for part in self.trainers:
                if why := part.lost():
                    self._begin_again(why, part)
                    return None
        codes = [part.host.poll() for part in self.trainers]
        if None in codes and (self._asked or codes.count(None) < len(codes)):
            self._leaving = self._leaving or time.monotonic() + LEAVE_S
        if None in codes and (not self._leaving or time.monotonic() < self._leaving):
            return None
        self._show()
        return next((128 - code if code < 0 else code for code in codes if code), 0)

    def _begin_again(self, why: str, lost: Part | None = None) -> None:
        """All trainers from the newest checkpoint; without the one that has had all its tries."""
        for part in self.trainers:
            part.end(0.0)
        line, due = why, time.monotonic()
        if lost and (lost.is_spent or not lost.is_started) and self._may_go_without:
            self.trainers.remove(lost)
            line = f"{lost.name} {why}; the run goes on without it"
        elif lost:
            line, due = lost.start_again(why), lost.due
        for part in self.trainers:
            part.due = due
        self.run.note(f"{line}, from the newest checkpoint")

    @property
    def _may_go_without(self) -> bool:
        return self.settings.fewer and len(self.trainers) > 1

    def _ask(self, number: int) -> None:
        """Pass Ctrl-C or SIGTERM on; at the second one everything ends at once."""
        if self._asked:
            self._leaving = time.monotonic()
        self._asked = number
        for part in self.trainers:
            part.host.signal(number)

    def _end(self) -> None:
        for part in (*self.trainers, *self.servers):
            part.end()

    def _show(self) -> None:
        """What the first trainer said, where it cannot say it to the terminal itself."""
        log = self.trainers[0].log
        if log is not None and log.is_file():
            with log.open("rb") as file:
                file.seek(self._shown)
                said = file.read()
            self._shown += len(said)
            sys.stdout.write(said.decode(errors="replace"))
            sys.stdout.flush()

    # --- the commands

    def _server(self, name: str) -> Part:
        host, make = self.hosts[name], self._sampler if name.startswith("sampler") else self._judge
        port = host.free_port()
        self._urls[name] = f"http://{host.address}:{port}"

        def command() -> Command:
            # It may have been made again on another machine.
            address = host.address
            self._urls[name] = f"http://{address}:{port}"
            words = (*make(), "--host", address, "--port", str(port))
            return self._command(name, words, self._secret | {"VLLM_API_KEY": self._secret[TOKEN]})

        return Part(name, host, command, self.settings, lambda part: answers(self._urls[name]))

    def _sampler(self) -> tuple[str, ...]:
        samplers, folder = self.settings.samplers, str(self.run.home / "served")
        if samplers.engine == "burnish":
            words: tuple[str, ...] = (*BURNISH, "serve-model", folder, "--token-env", TOKEN)
        else:
            from burnish.engines.sampling_server import DIALECTS

            # The command that a person would type, variables before it included.
            typed = DIALECTS[samplers.engine].start % shlex.quote(folder)
            words = ("/usr/bin/env", *shlex.split(typed))
        return (*words, *samplers.arguments)

    def _judge(self) -> tuple[str, ...]:
        return (*BURNISH, "serve-reward", *self.run.judging, "--token-env", TOKEN)

    def _trainer(self, name: str) -> Part:
        host = self.hosts[name]
        self._where[name] = host.address

        def command() -> Command:
            names = [part.name for part in self.trainers]
            rank, self._where[name] = names.index(name), host.address
            here = [self._where[one] for one in names]
            if rank == 0:
                self._port = host.free_port()
            # A process that has a GPU of its own sees no other.
            local = 0 if self.settings.trainers.gpus else here[:rank].count(here[rank])
            world = {
                "RANK": rank,
                "WORLD_SIZE": len(names),
                "LOCAL_RANK": local,
                "LOCAL_WORLD_SIZE": here.count(here[rank]),
                "MASTER_ADDR": here[0],
                "MASTER_PORT": self._port,
            }
            environment = {key: str(value) for key, value in world.items()}
            environment[SERVED] = msgspec.json.encode(self._served()).decode()
            words = (*BURNISH, "train", *self.run.words)
            return self._command(name, words, self._secret | environment, shows=rank == 0)

        heard = partial(self._hears_trainer, {})
        return Part(name, host, command, self.settings, heard, may_end=True)

    def _hears_trainer(self, known: dict[int, str], part: Part) -> bool:
        """Whether its record in the run's folder is newer than at the last look."""
        for state in read_processes(self.run.folder):
            if state.pid == part.pid:
                is_new = known.get(part.pid) != state.time
                known[part.pid] = state.time
                return is_new or state.is_over
        return False

    def _served(self) -> Served:
        def of(role: str) -> tuple[str, ...]:
            return tuple(url for name, url in self._urls.items() if name.startswith(role))

        return Served(
            samplers=of("sampler"),
            judges=of("judge"),
            folder=str(self.run.home / "served"),
            engine=self.settings.samplers.engine,
            patience_s=self.settings.start_s + self.settings.heartbeat_s,
        )

    def _command(
        self, name: str, words: Sequence[str], environment: Mapping[str, str], shows: bool = False
    ) -> Command:
        place, host = self._places[name], self.hosts[name]
        to_terminal = shows and isinstance(host, LocalHost)
        log = None if to_terminal else self.run.home / f"{name}.log"
        return Command(tuple(words), {**environment, **place.environment()}, log, place.cores)


@contextmanager
def _asked_to_end(ask: Callable[[int], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM reach `ask` while inside."""

    def hear(number: int, frame: FrameType | None) -> None:
        ask(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def supervise(run: Run, places: Sequence[Place]) -> int:
    """Start the parts where they were placed and keep them alive; the first trainer's exit code."""
    with ExitStack() as stack:
        if run.settings.kind == "ray":
            from burnish.engines.ray_hosts import ray_hosts

            hosts = stack.enter_context(ray_hosts(run.settings, places))
        else:
            hosts = {place.name: LocalHost() for place in places}
        try:
            return Supervisor(run, hosts, places).watch()
        except PartLost as lost:
            run.note(str(lost), is_shown=False)
            raise
