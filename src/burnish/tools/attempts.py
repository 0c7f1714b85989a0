"""What the probe tries: programs for inside, and things outside that they must not reach."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM


class Hold(StrEnum):
    """One thing that a sandbox must hold back."""

    NETWORK = "network"
    WRITE = "write"
    READ = "read"
    DISTURB = "disturb"
    WATCH = "watch"
    SURVIVE = "survive"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"


@dataclass(frozen=True)
class Finding:
    """One attempt."""

    hold: Hold
    is_held: bool
    detail: str


TRIAL = """
import bisect, decimal, hashlib, json, statistics
with open("note", "w") as file:
    file.write("written")
print(open("note").read(), hashlib.sha256(b"").hexdigest()[:4])
"""
"""Ordinary code: it must run behind every wall that is used."""

ATTEMPTS = """
import json, sys
target = json.loads(sys.stdin.read())
got = {}

def attempt(name, action):
    try:
        got[name] = str(action())[:100]
    except BaseException as error:
        got.setdefault("_" + name, type(error).__name__)

def connect(family, kind, address):
    import socket
    with socket.socket(family, kind) as plug:
        plug.settimeout(1)
        plug.connect(address)
        plug.send(b"out")
    return "connected"

def trace():
    import ctypes
    result = ctypes.CDLL(None).ptrace(0x4206, target["victim"], 0, 0)
    if result != 0:
        raise OSError("refused")
    return "traced"

def fork_many():
    import os, time
    count = 0
    for _ in range(64):
        try:
            child = os.fork()
        except OSError:
            break
        if child == 0:
            os.setsid()
            try:
                os.fork()
            except OSError:
                pass
            time.sleep(30)
            os._exit(0)
        count += 1
    return count

def look():
    import os
    if not os.path.exists("/proc/%d/cmdline" % target["victim"]):
        raise OSError("nothing there")
    return "seen"

import os, resource, socket, signal
attempt("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", target["tcp"])))
attempt("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", target["udp"])))
attempt("unix", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + target["unix"]))
attempt("read", lambda: open(target["secret"]).read())
attempt("write", lambda: open(target["folder"] + "/mark", "w").write("out"))
attempt("signal", lambda: os.kill(target["victim"], signal.SIGCONT) or "signalled")
attempt("trace", trace)
attempt("limit", lambda: resource.prlimit(target["victim"], resource.RLIMIT_CORE, (0, 0)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, target["victim"], 7) or "changed")
attempt("look", look)
attempt("memory", lambda: len(bytearray(target["memory"])))
attempt("forks", fork_many)
print(json.dumps(got))
"""

SCATTER = """
import os, time
for _ in range(4):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        os.setsid()
        try:
            os.fork()
        except OSError:
            pass
time.sleep(60)
"""
"""Processes in sessions of their own that are still there when the clock ends the run."""

FILL = """
total = count = 0
try:
    for count in range(1, 257):
        open(f"empty{count}", "w").close()
except OSError:
    pass
import os, time
time.sleep(0.2)
for index in range(1, count + 1):
    if os.path.exists(f"empty{index}"):
        os.unlink(f"empty{index}")
try:
    for index in range(16):
        with open(f"fill{index}", "wb", buffering=0) as file:
            for _ in range(4):
                total += file.write(bytes(1 << 20))
except OSError as error:
    pass
time.sleep(0.2)
print(total, count)
"""
"""Four times the files and sixteen times the bytes that are allowed."""


class Outside:
    """Things on the host that a sandboxed process must not reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.secret = folder / "secret"
        self.secret.write_text("a secret of the host")
        self.open_folder = folder / "open"
        self.open_folder.mkdir()
        self.open_folder.chmod(0o777)
        self.listeners = [socket.socket(socket.AF_INET, kind) for kind in (TCP, UDP)]
        self.listeners.append(socket.socket(socket.AF_UNIX, TCP))
        name = f"burnish-probe-{folder.name}"
        for plug in self.listeners:
            plug.setblocking(False)
        self.listeners[0].bind(("127.0.0.1", 0))
        self.listeners[1].bind(("127.0.0.1", 0))
        self.listeners[2].bind(f"\0{name}" if sys.platform == "linux" else str(folder / "plug"))
        self.listeners[0].listen()
        self.listeners[2].listen()
        self.victim = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(60)"], env={}
        )
        self.target: dict[str, Any] = {
            "victim": self.victim.pid,
            "secret": str(self.secret),
            "folder": str(self.open_folder),
            "tcp": self.listeners[0].getsockname()[1],
            "udp": self.listeners[1].getsockname()[1],
            "unix": name,
        }

    def findings(self, got: Mapping[str, str]) -> Iterator[Finding]:
        """What was reached, as the attempts say and as it looks from here."""
        reached = [name for name in ("tcp", "udp", "unix") if name in got and self._was_heard(name)]
        reached += [name for name in ("tcp", "unix") if name in got and name not in reached]
        yield _finding(Hold.NETWORK, reached, "no socket reached the host")
        wrote = ["a file"] if (self.open_folder / "mark").exists() else []
        yield _finding(Hold.WRITE, wrote, "nothing outside its folder could be written")
        read = ["a file"] if "read" in got else []
        yield _finding(Hold.READ, read, "nothing outside its folder could be read")
        disturbed = [n for n in ("signal", "trace", "limit", "priority") if n in got]
        yield _finding(Hold.DISTURB, disturbed, "no other process could be touched")
        seen = ["the process table"] if "look" in got else []
        yield _finding(Hold.WATCH, seen, "no other process could be seen")

    def _was_heard(self, name: str) -> bool:
        plug = self.listeners[("tcp", "udp", "unix").index(name)]
        with contextlib.suppress(BlockingIOError):
            plug.recv(16) if name == "udp" else plug.accept()[0].close()
            return True
        return False

    def close(self) -> None:
        for plug in self.listeners:
            plug.close()
        self.victim.kill()
        self.victim.wait()


@contextlib.contextmanager
def outside() -> Iterator[Outside]:
    with tempfile.TemporaryDirectory(prefix="burnish-probe-") as folder:
        things = Outside(Path(folder))
        try:
            yield things
        finally:
            things.close()


def _finding(hold: Hold, reached: Sequence[str], otherwise: str) -> Finding:
    words = f"reached: {', '.join(reached)}" if reached else otherwise
    return Finding(hold, not reached, words)
