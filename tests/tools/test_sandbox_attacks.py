"""Attempts to escape and to exhaust: each contained, with the host as it was before.

An attack that the probe says is not held by a set of layers is not run; the test says so.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from attack_cases import ALL_TRIED, ESCAPES, EXHAUSTION, Attack, together

from burnish.tools import Hold, Limit, Sandbox, SandboxLimits

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's"),
]

LAYERS = {
    "everything": None,
    "filters": ["landlock", "seccomp", "nobody"],
    "namespaces": ["namespaces", "mount", "nobody"],
    "bubblewrap": ["bubblewrap", "landlock", "seccomp"],
}
DEFAULTS = {"cpu_s": 60, "wall_s": 120, "memory_mb": 256, "disk_mb": 8}


class Host:
    """Things outside that must stay as they are."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.secret = folder / "secret.txt"
        self.secret.write_text("the secret MARK")
        self.open_folder = folder / "open"
        self.open_folder.mkdir()
        self.open_folder.chmod(0o777)
        name = f"burnish-test-{os.getpid()}-{time.monotonic_ns()}"
        kinds = [
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "plug")),
            (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}"),
            (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagrams")),
            (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{name}-datagrams"),
        ]
        self.plugs = []
        for family, kind, address in kinds:
            plug = socket.socket(family, kind)
            plug.bind(address)
            plug.setblocking(False)
            if kind == socket.SOCK_STREAM:
                plug.listen()
            self.plugs.append(plug)
        (folder / "plug").chmod(0o777)
        (folder / "datagrams").chmod(0o777)
        self.libc = ctypes.CDLL(None)
        self.shared = {
            "segment": self.libc.shmget(0, 4096, 0o666),
            "semaphore": self.libc.semget(0, 1, 0o666),
            "queue": self.libc.msgget(0, 0o666),
        }
        assert min(self.shared.values()) >= 0
        self.status = self.secret.stat()
        self.leaked = os.open(self.secret, os.O_RDONLY)
        os.set_inheritable(self.leaked, True)
        self.victim = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        self.signals: list[int] = []
        self.targets = {
            "secret": str(self.secret), "open_folder": str(self.open_folder),
            "tcp": self.plugs[0].getsockname()[1], "udp": self.plugs[1].getsockname()[1],
            "unix_path": str(folder / "plug"), "unix_name": name,
            "datagram_path": str(folder / "datagrams"), "datagram_name": f"{name}-datagrams",
            **self.shared, "victim": self.victim.pid, "group": os.getpgid(self.victim.pid),
            "parent": os.getpid(), "home": str(folder), "home_mark": "secret.txt",
            "source": str(Path(__file__).parents[2] / "src"),
            "packages": str(Path(os.path.dirname(pytest.__file__)).parent),
        }  # fmt: skip

    def check(self) -> None:
        """Nothing was heard, written, killed or slowed."""
        for plug in self.plugs:
            with contextlib.suppress(BlockingIOError):
                heard = plug.recv(16) if plug.type == socket.SOCK_DGRAM else plug.accept()
                raise AssertionError(f"a socket heard {heard}")
        assert list(self.open_folder.iterdir()) == []
        assert self.secret.read_text() == "the secret MARK"
        now = self.secret.stat()
        assert (now.st_mode, now.st_mtime) == (self.status.st_mode, self.status.st_mtime)
        assert not os.listxattr(self.secret)
        assert not os.path.exists("/dev/shm/burnish-mark")
        room = ctypes.create_string_buffer(256)
        assert self.libc.shmctl(self.shared["segment"], 2, room) == 0  # IPC_STAT: still there
        assert self.libc.semctl(self.shared["semaphore"], 0, 12) == 0  # GETVAL
        assert self.libc.msgrcv(self.shared["queue"], room, 8, 0, 0o4000) == -1  # nothing arrived
        assert self.victim.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, self.victim.pid) == os.getpriority(
            os.PRIO_PROCESS, 0
        )
        assert self.signals == []

    def close(self) -> None:
        for plug in self.plugs:
            plug.close()
        self.libc.shmctl(self.shared["segment"], 0, None)
        self.libc.semctl(self.shared["semaphore"], 0, 0)
        self.libc.msgctl(self.shared["queue"], 0, None)
        os.close(self.leaked)
        self.victim.kill()
        self.victim.wait()


@pytest.fixture(scope="module", autouse=True)
def own_folder():
    """Sandboxes of this process lie apart from those of tests that run beside it."""
    former, folder = tempfile.tempdir, tempfile.mkdtemp(prefix="burnish-attacks-")
    os.chmod(folder, 0o755)  # the sandboxed user must get through
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = former
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def host(own_folder):
    os.environ["BURNISH_TEST_SECRET"] = "MARK"
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder))
        former = signal.signal(signal.SIGUSR2, lambda number, _: host.signals.append(number))
        try:
            yield host
        finally:
            signal.signal(signal.SIGUSR2, former)
            host.close()
            del os.environ["BURNISH_TEST_SECRET"]


def attacked(layers: str, attack: Attack, host: Host):
    """Run one attack and check that the host is as before; returns what came of it."""
    if layers == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    limits = SandboxLimits(**{**DEFAULTS, **attack.limits})
    sandbox = Sandbox(limits, layers=LAYERS[layers], allow_weak=True)
    report = sandbox.probe()
    if not report.holds(attack.hold):
        why = "; ".join(f"{f.hold.value}: {f.detail}" for f in report.breaches)
        pytest.xfail(f"not contained here, and the probe says so ({report.plan}): {why}")
    targets = {**host.targets, "strict": "seccomp" in str(report.plan)}
    folders, descriptors = sandbox_folders(), len(os.listdir("/proc/self/fd"))
    start = time.monotonic()
    try:
        ran = sandbox.run(f"T = {targets!r}\n{attack.code}", stdin="unread\n" * 100_000)
    finally:
        left = left_processes()
        deadline = time.monotonic() + 20
        # Bubblewrap's are killed but not waited for; others may be of a test beside this.
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = [pid for pid in left if pid in left_processes()]
        for pid in left:  # what got away must not go on
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)
    took = time.monotonic() - start
    assert took < limits.wall_s + 60
    host.check()
    assert sandbox_folders() == folders
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert left == []
    return ran


def sandbox_folders() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if "burnish-sandbox" in name}


def left_processes() -> list[int]:
    """Sandboxed processes of this test that still run: descendants of ours, or orphans."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
            parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1:2]
            ours = parent in ([str(os.getpid())], ["1"])
            if b"inside.entry" in line and ours:
                found.append(int(name))
    return found


@pytest.mark.parametrize("attack", ESCAPES, ids=lambda a: a.name)
def test_nothing_escapes(attack, host):
    ran = attacked("everything", attack, host)
    assert "ESCAPED" not in ran.stdout + ran.stderr.replace("print(", ""), ran
    assert "MARK" not in ran.stdout


@pytest.mark.parametrize("hold", sorted({attack.hold for attack in ESCAPES}))
@pytest.mark.parametrize("layers", [name for name in LAYERS if name != "everything"])
def test_nothing_escapes_through_fewer_walls(layers, hold, host):
    """Every attack again, but those on one thing in one process: each wall must hold by itself."""
    group = [attack for attack in ESCAPES if attack.hold == hold]
    # Whoever has namespaces of its own goes on in another world: that attack comes last.
    group.sort(key=lambda attack: "namespace" in attack.name)
    ran = attacked(layers, Attack(str(hold), hold, together(group)), host)
    assert "ESCAPED" not in ran.stdout + ran.stderr.replace("print(", ""), ran
    assert "MARK" not in ran.stdout
    assert ran.stdout.splitlines()[-1] == ALL_TRIED, ran
    assert ran.stdout.count("trying: ") == len(group)


EXHAUSTING = [
    pytest.param(layers, attack, id=f"{layers}-{attack.name}")
    for layers in LAYERS
    for attack in EXHAUSTION
    if layers == "everything"
    or (layers == "filters" and attack.killed_by != (Limit.CPU,))
    or attack.hold in (Hold.DISK, Hold.SURVIVE)
]
"""Every attack behind all walls; behind fewer of them those that a wall and not rlimits hold."""


@pytest.mark.parametrize(("layers", "attack"), EXHAUSTING)
def test_nothing_is_exhausted(layers, attack, host):
    ran = attacked(layers, attack, host)
    assert "ESCAPED" not in ran.stdout, ran
    if attack.killed_by:
        assert ran.killed_by in attack.killed_by, ran
    assert ran.peak_mb < 300
    assert len(ran.stdout) <= 1 << 20


def test_there_are_enough_attacks():
    names = [attack.name for attack in (*ESCAPES, *EXHAUSTION)]
    assert len(set(names)) == len(names) >= 25
