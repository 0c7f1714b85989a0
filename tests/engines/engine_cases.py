"""Scorers and servers for the tests of the engines room."""

import socket
import threading
import time
from contextlib import contextmanager

import anyio
import httpx

from burnish.records import Evidence, Response, Reward, Status
from burnish.rewards import Numeric, NumericConfig, Scope, Weighted, from_function


def correct():
    """1.0 where the last number is the answer."""
    return Numeric(NumericConfig(name="correct"))


def length(text):
    return float(len(text))


def total():
    return Weighted([correct(), from_function(length, weight=0.0)])


class Fussy:
    """Scores the length of a text; texts that begin with a word of the table fail that way."""

    name = "fussy"
    scope = Scope.POINT
    needs = frozenset()
    fingerprint = "fussy-1"
    table = {s.value: s for s in Status if s is not Status.OK}  # noqa: RUF012

    def __init__(self, slow_s=0.0, held=False):
        self.slow_s = slow_s
        self.free = threading.Event()
        if not held:
            self.free.set()
        self.running = self.peak = 0
        self.tasks = []

    async def score(self, task, responses):
        self.tasks.append(task)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            while not self.free.is_set():  # noqa: ASYNC110  set by another thread
                await anyio.sleep(0.01)
            await anyio.sleep(self.slow_s)
        finally:
            self.running -= 1
        return [self._one(response) for response in responses]

    def _one(self, response):
        for word, status in self.table.items():
            if response.text.startswith(word):
                return Reward.failed(self.name, status, f"told to: {word}")
        if response.text.startswith("bug"):
            raise ZeroDivisionError("a bug in the scorer")
        evidence = (Evidence("fussy", f"saw {response.text}"),)
        return Reward(self.name, float(len(response.text)), evidence=evidence)


class LongerWins:
    """A pair scorer: +1 and -1 by length."""

    name = "longer"
    scope = Scope.PAIR
    needs = frozenset()
    fingerprint = "longer-1"

    async def score(self, task, responses):
        a, b = (len(response.text) for response in responses)
        value = float((a > b) - (a < b))
        return [Reward(self.name, value), Reward(self.name, -value)]


class Group(LongerWins):
    name = "group"
    scope = Scope.GROUP


class Broken(Fussy):
    """Returns too few rewards: a breach of the contract."""

    name = "broken"

    async def score(self, task, responses):
        return []


WEB = httpx.Client(trust_env=False, timeout=120)
"""One client for all requests: each new one reads the machine's certificates."""


def wait_until(is_so):
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


ANCHOR = Response("anchor", "four")


@contextmanager
def serving(scorer, settings=None, token="", port=0):
    """A real server on a loopback port, in a thread; its address."""
    from burnish.engines.server import create_app
    from burnish.web.server import Bounds, make_server

    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    app = create_app(scorer, settings, token=token)
    server = make_server(app, Bounds(connections=512), stop_s=1, lifespan=True)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(120)
        bound.close()
