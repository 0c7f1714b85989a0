"""Ordinary use of the sandbox: results, limits, files, concurrency, and who may run what."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import anyio
import pytest

from burnish.errors import SandboxError, UserError
from burnish.tools import (
    Finding,
    Hold,
    Layer,
    Limit,
    Report,
    RunStatus,
    Sandbox,
    SandboxLimits,
    Strength,
    sandbox as sandbox_module,
)
from burnish.tools.inside.confine import granted
from burnish.tools.inside.descend import remove
from burnish.tools.isolation import EXTRAS, Plan, interpreter_mounts
from burnish.tools.probe import find_plan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")
EASY = SandboxLimits(cpu_s=60, wall_s=300, memory_mb=256)
"""Limits that none of these programs meets, however slow the machine."""


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(EASY, allow_weak=True)


def test_a_program_runs_like_a_program(sandbox):
    code = """
        import sys, os, tempfile, json, random
        print(__name__, input(), len(sys.argv), sorted(os.listdir(".")), open("data/a.txt").read())
        print("to the side", file=sys.stderr)
        with tempfile.TemporaryFile("w") as file:
            file.write("kept inside")
        exit(3)
    """
    ran = sandbox.run(textwrap.dedent(code), stdin="line\n", files={"data/a.txt": "héllo"})
    assert ran.stdout == "__main__ line 1 ['data'] héllo\n"
    assert (ran.stderr, ran.exit_code, ran.status) == ("to the side\n", 3, RunStatus.FAILED)
    assert ran.killed_by is None
    assert 5 < ran.peak_mb < 100


def test_an_uncaught_error_is_told_from_its_own_first_line(sandbox):
    ran = sandbox.run("def f():\n    return 1 / 0\nf()\n")
    assert ran.status is RunStatus.FAILED
    assert ran.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "entry.py" not in ran.stderr
    assert 'File "program.py", line 3' in ran.stderr


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("", RunStatus.OK, 0),
        ("import sys; sys.exit('words')", RunStatus.FAILED, 1),
        ("raise KeyboardInterrupt", RunStatus.FAILED, 1),
        ("def", RunStatus.FAILED, 1),
        ("import os; os._exit(0)", RunStatus.OK, 0),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", RunStatus.CRASHED, -15),
        ("import os; os.abort()", RunStatus.CRASHED, -6),
    ],
)
def test_how_a_run_ends(sandbox, code, status, exit_code):
    ran = sandbox.run(code)
    assert (ran.status, ran.exit_code) == (status, exit_code)


def test_a_run_is_the_same_every_time(sandbox):
    code = "print(hash('text'), list({'a', 'b', 'c', 'd'}))"
    assert sandbox.run(code).stdout == sandbox.run(code).stdout


def test_the_clock_starts_with_the_code():
    ran = Sandbox(SandboxLimits(wall_s=0.3)).run("import time; time.sleep(60)")
    assert ran.killed_by is Limit.WALL
    assert 0.3 <= ran.seconds < 50
    assert str(ran).startswith("killed by the wall limit")


def test_more_processes_where_they_are_allowed():
    sandbox = Sandbox(SandboxLimits(processes=4, wall_s=300), allow_weak=True)
    code = """
        import os
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, b"from a child")
            os._exit(0)
        os.wait()
        print(os.read(reading, 99).decode())
    """
    assert sandbox.run(textwrap.dedent(code)).stdout == "from a child\n"


def test_folders_that_may_be_read_can_be_imported_from(tmp_path):
    (tmp_path / "helper.py").write_text("VALUE = 42\n")
    tmp_path.chmod(0o755)
    code = "import helper; print(helper.VALUE)\nopen(helper.__file__, 'a')"
    ran = Sandbox(EASY, readable=[tmp_path]).run(code)
    assert ran.stdout == "42\n"
    assert "Error" in ran.stderr.splitlines()[-1]
    assert (tmp_path / "helper.py").read_text() == "VALUE = 42\n"
    assert "ModuleNotFoundError" in Sandbox(EASY).run(code).stderr
    with pytest.raises(UserError, match="is not there"):
        Sandbox(readable=[tmp_path / "missing"])


def test_two_runs_share_nothing(sandbox):
    sandbox.run("open('left', 'w').write('x')")
    assert sandbox.run("import os; print(os.listdir('.'))").stdout == "[]\n"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
def test_files_stay_in_the_folder(sandbox, name):
    with pytest.raises(UserError, match="leaves the folder"):
        sandbox.run("", files={name: "x"})


def test_files_that_do_not_fit_are_trouble_of_the_caller_not_a_result():
    with pytest.raises(SandboxError):
        Sandbox(SandboxLimits(disk_mb=1)).run("print(1)", files={"big": "x" * (2 << 20)})


def test_unknown_and_impossible_layers():
    with pytest.raises(UserError, match="Did you mean 'seccomp'"):
        Sandbox(layers=["secomp"])
    with pytest.raises(UserError, match="needs 'namespaces'"):
        Sandbox(layers=["mount"])
    with pytest.raises(UserError, match="exclude each other"):
        Sandbox(layers=["bubblewrap", "namespaces"])


# strength


def test_a_weak_sandbox_refuses_without_the_word():
    weak = Sandbox(EASY, layers=[])
    assert weak.probe().strength is Strength.WEAK
    assert {Hold.NETWORK, Hold.WRITE, Hold.READ} <= {
        breach.hold for breach in weak.probe().breaches
    }
    with pytest.raises(UserError, match=r"weak \(layers: limits only\).*allow_weak = true"):
        weak.run("print(1)")
    assert Sandbox(EASY, layers=[], allow_weak=True).run("print(1)").stdout == "1\n"


def report(*open_holds):
    return Report(
        Plan(frozenset()), tuple(Finding(hold, hold not in open_holds, "seen") for hold in Hold), ()
    )


def test_strength_follows_from_what_was_tried():
    assert report().strength is Strength.STRONG
    assert report(Hold.READ, Hold.WATCH).strength is Strength.MEDIUM
    for hold in set(Hold) - {Hold.READ, Hold.WATCH}:
        assert report(hold).strength is Strength.WEAK
        assert report(hold, Hold.READ).strength is Strength.WEAK
        assert not report(hold).holds(hold)
    assert "network: OPEN" in str(report(Hold.NETWORK))


def test_the_probe_is_made_once(monkeypatch):
    calls = []
    monkeypatch.setattr(sandbox_module, "_known", {})
    monkeypatch.setattr(sandbox_module, "probe", lambda *given: calls.append(given) or report())
    Sandbox().probe()
    Sandbox().probe()
    Sandbox(SandboxLimits(processes=2)).probe()
    assert len(calls) == 2


@pytest.mark.parametrize("missing", ["namespaces", "landlock", "seccomp"])
def test_a_machine_without_a_layer_uses_the_others(monkeypatch, missing):
    """The order names a layer that the kernel refuses: the plan is made without it."""
    from burnish.tools import probe as probing

    real = probing._trouble

    def trouble(plan, mounts):
        if Layer(missing) in plan.layers:
            return f"{missing} is refused here"
        return real(plan, mounts)

    monkeypatch.setattr(probing, "_trouble", trouble)
    monkeypatch.setattr("burnish.tools.isolation.bubblewrap", lambda: None)
    plan, refused = find_plan(frozenset(Layer), interpreter_mounts())
    available, _ = Sandbox(EASY).probe().plan, None
    assert Layer(missing) not in plan.layers
    assert refused[0] == f"{missing} is refused here"
    kept = (available.layers & EXTRAS) - {Layer(missing), Layer.NOBODY}
    assert kept <= plan.layers


def test_root_without_user_namespaces_still_gets_the_others():
    if os.geteuid() != 0:
        pytest.skip("only root may make namespaces without a user namespace")
    from burnish.tools.probe import ATTEMPTS, _run, _trouble  # noqa: F401

    plan = Plan(frozenset({Layer.NAMESPACES, Layer.MOUNT, Layer.SECCOMP}), user_namespace=False)
    why = _trouble(plan, interpreter_mounts())
    if why:
        pytest.skip(f"this container may not make namespaces: {why}")
    code = "import os\nprint(os.getpid(), os.path.exists('/etc/passwd'), os.path.exists('/proc'))"
    ran = _run(plan, interpreter_mounts(), code, EASY).ran
    assert ran.stdout == "2 False False\n"


# the event loop


def test_runs_in_an_event_loop_are_bounded():
    sandbox = Sandbox(SandboxLimits(wall_s=300), workers=2, allow_weak=True)
    sandbox.probe()
    spans = []

    async def one(index):
        ran = await sandbox.arun(
            "import time; a=time.time(); time.sleep(0.2); print(a, time.time())"
        )
        spans.append(tuple(map(float, ran.stdout.split())))

    async def main():
        async with anyio.create_task_group() as group:
            for index in range(5):
                group.start_soon(one, index)

    anyio.run(main)
    for start, _ in spans:
        assert sum(a <= start < b for a, b in spans) <= 2
    assert len(spans) == 5


def test_a_cancelled_run_is_killed_at_once():
    sandbox = Sandbox(SandboxLimits(wall_s=300, cpu_s=300), allow_weak=True)
    sandbox.probe()

    async def main():
        with anyio.move_on_after(0.6) as scope:
            await sandbox.arun("import time; time.sleep(200)")
        return scope.cancelled_caught

    start = time.monotonic()
    assert anyio.run(main)
    assert time.monotonic() - start < 100
    deadline = time.monotonic() + 60
    while (left := children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def children(parent=None) -> list[int]:
    """Sandboxed processes whose parent is this one (or the given one)."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            line = Path(f"/proc/{name}/cmdline").read_bytes()
            above = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            if b"inside.entry" in line and above == (parent or os.getpid()):
                found.append(int(name))
    return found


@pytest.mark.parametrize("layers", [None, ["landlock", "seccomp"], []])
def test_nothing_outlives_a_parent_that_is_killed(tmp_path, layers):
    script = tmp_path / "parent.py"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script.write_text(
        "from burnish.tools import Sandbox, SandboxLimits\n"
        f"s = Sandbox(SandboxLimits(wall_s=300, processes=4), layers={layers}, allow_weak=True)\n"
        "s.probe(); print('ready', flush=True)\n"
        "s.run('import os, time; os.fork() or os.setsid(); time.sleep(250)')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["TMPDIR"] = str(temporary)
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment
    )
    assert parent.stdout.readline() == b"ready\n"
    below: set[int] = set()
    deadline = time.monotonic() + 120
    while len(below) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
        below = descendants(parent.pid)
    time.sleep(0.5)
    below |= descendants(parent.pid)
    assert len(below) >= 3
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while (alive := {pid for pid in below if is_alive(pid)}) and time.monotonic() < deadline + 120:
        time.sleep(0.1)
    assert alive == set()
    while os.listdir(temporary) and time.monotonic() < deadline + 120:
        time.sleep(0.05)
    assert os.listdir(temporary) == []


def descendants(root: int) -> set[int]:
    above = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            above[int(name)] = int(
                Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
            )
    found, new = set(), {root}
    while new:
        new = {pid for pid, parent in above.items() if parent in new} - found
        found |= new
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# folders


def test_a_hostile_folder_is_removed_and_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder = tmp_path / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("x")
    os.symlink(outside, folder / "a" / "link")
    os.symlink("/nowhere", folder / "dangling")
    os.mkfifo(folder / "fifo")
    os.chmod(folder / "a" / "b", 0)
    os.chmod(folder / "a", 0)
    here = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(1100):
            os.mkdir("d" * 50)
            os.chdir("d" * 50)
    finally:
        os.chdir(here)
    remove(str(folder))
    assert not folder.exists()
    assert (outside / "kept").read_text() == "kept"


def test_a_folder_that_was_replaced_by_a_link_is_not_entered(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("kept")
    (tmp_path / "outside").chmod(0o755)
    os.symlink(tmp_path / "outside", tmp_path / "folder")
    remove(str(tmp_path / "folder"))
    assert not os.path.lexists(tmp_path / "folder")
    assert (tmp_path / "outside" / "kept").read_text() == "kept"
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o755
    remove(str(tmp_path / "never was there"))


def test_event_loops_and_copies_run_behind_every_wall():
    """What the filter leaves: pairs of streams for event loops, files copied with their modes."""
    code = """
        import asyncio, shutil, socket
        from multiprocessing.connection import Pipe
        async def main():
            reader, writer = await asyncio.open_connection(sock=socket.socketpair()[0])
            return await asyncio.to_thread(sum, [1, 2])
        here, there = Pipe()
        here.send([1])
        open("a", "w").write("text")
        print(asyncio.run(main()), there.recv(), open(shutil.copy2("a", "b")).read())
    """
    for layers in (None, ["landlock", "seccomp"]):
        ran = Sandbox(EASY, layers=layers, allow_weak=True).run(textwrap.dedent(code))
        assert ran.stdout == "3 [1] text\n", ran


def test_pairs_of_streams_are_forbidden_where_their_buffers_exceed_the_memory(monkeypatch):
    assert SandboxLimits().bounds().socket_pairs
    assert not SandboxLimits(memory_mb=64, open_files=4096).bounds().socket_pairs
    monkeypatch.setattr("burnish.tools.isolation._socket_buffer", lambda: float("inf"))
    assert not SandboxLimits().bounds().socket_pairs


def test_landlock_grants_leave_hidden_folders_and_links_out(tmp_path):
    for name in ("lib/python/site-packages/secret", "lib/python/json", "lib/other"):
        (tmp_path / name).mkdir(parents=True)
    os.symlink("/etc", tmp_path / "lib" / "link")
    lib = str(tmp_path / "lib")
    hidden = {f"{lib}/python/site-packages"}
    assert set(granted([lib], hidden)) == {f"{lib}/other", f"{lib}/python/json"}
    assert list(granted([lib], set())) == [lib]
