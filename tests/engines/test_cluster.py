"""Parts as real processes, and where they are placed."""

import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.config.cluster import Cluster, Judges, Samplers, Trainers
from burnish.engines.cluster import Run, Supervisor
from burnish.engines.placement import Machine, on_ray, place, rows_of
from burnish.engines.supervise import Command, LocalHost, Part, PartLost
from burnish.errors import UserError


def part(words: list[str], *, heard: bool, log: Path | None = None, **settings: object) -> Part:
    limits = Cluster(kind="local", **settings)
    return Part("part", LocalHost(), lambda: Command(words, log=log), limits, lambda part: heard)


def until_lost(one: Part) -> str:
    ends = time.monotonic() + 20
    while not (why := one.lost()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return why


def is_gone(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True


def test_a_part_is_started_again_so_often_and_ever_later(tmp_path):
    one = part(["sleep", "100"], heard=True, restarts=3)
    waits = []
    for _ in range(3):
        one.start()
        assert one.lost() == ""
        one.host.signal(signal.SIGKILL)
        assert one.start_again(until_lost(one)).startswith("part was killed by SIGKILL")
        waits.append(round(max(0.0, one.due - time.monotonic())))
    assert waits == [0, 1, 2]
    one.start()
    with pytest.raises(PartLost, match="was started again 3 times already"):
        one.start_again("hangs")
    assert one.host.poll() is None
    assert is_gone(one.pid)


def test_a_part_that_never_becomes_ready_is_lost_and_its_last_words_are_told(tmp_path):
    silent = part(["sleep", "100"], heard=False, start_s=0.2)
    silent.start()
    assert re.fullmatch(r"was not ready after 0\.\d s \(cluster.start_s\)", until_lost(silent))
    silent.end(0.0)
    log = tmp_path / "part.log"
    wrong = part(["sh", "-c", "echo no such model; exit 3"], heard=False, log=log)
    wrong.start()
    with pytest.raises(
        PartLost, match=r"exit code 3 before it was ready: no such model \(.*part.log"
    ):
        until_lost(wrong)
    wrong.end(0.0)


STARTER = """
import os, signal, sys, time
from burnish.engines.supervise import Command, LocalHost
host = LocalHost()
print(host.start(Command(["sh", "-c", "trap '' TERM HUP; sleep 300 & echo $! > child; wait"])), flush=True)
time.sleep(300)
"""


def test_no_part_outlives_a_supervisor_that_is_killed(tmp_path):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid, ends = int(starter.stdout.readline()), time.monotonic() + 10
    while not (child := (tmp_path / "child")).is_file() or not child.read_text().strip():
        time.sleep(0.01)
    pids = [pid, int(child.read_text())]
    assert not any(map(is_gone, pids))
    starter.kill()
    starter.communicate()
    while not all(map(is_gone, pids)) and time.monotonic() < ends:
        time.sleep(0.02)
    assert all(map(is_gone, pids))


# --- the parts of one run


class Scripted(Supervisor):
    """Its parts are shell scripts, each in the environment that the part would have."""

    def __init__(self, folder, scripts, **settings):
        self.scripts = scripts
        names = [f"trainer-{rank}" for rank in range(len(scripts))]
        limits = Cluster(kind="local", trainers=Trainers(count=len(scripts)), **settings)
        run = Run(folder=folder, settings=limits, words=[], judging=[], tell=lambda line: None)
        super().__init__(run, {name: LocalHost() for name in names}, place(limits, MACHINE))

    def _command(self, name, words, environment, shows=False):
        script = self.scripts[int(name[-1])]
        return Command(["sh", "-c", script], environment, self.run.home / f"{name}.log")


def test_the_first_trainers_exit_code_is_the_runs_and_an_end_by_itself_is_final(tmp_path):
    scripted = Scripted(tmp_path, ["echo rank $RANK of $WORLD_SIZE; exit 3", "exit 0"])
    assert scripted.watch() == 3
    told = (tmp_path / "cluster" / "events.log").read_text()
    assert told.count("runs as process") == 2
    assert "again" not in told
    assert (tmp_path / "cluster" / "trainer-0.log").read_text() == "rank 0 of 2\n"


def test_a_run_goes_on_without_a_trainer_only_where_fewer_are_allowed(tmp_path):
    alone = 'test "$WORLD_SIZE" = 1 && exit 0; sleep 100'
    scripts = [alone, "kill -9 $$", alone]
    with pytest.raises(
        PartLost, match="trainer-1 was killed by SIGKILL, and was started again 1 times"
    ):
        Scripted(tmp_path / "all", scripts, restarts=1).watch()
    scripts[2] = 'test "$RANK/$WORLD_SIZE" = 1/2 && kill -9 $$; sleep 100'
    assert Scripted(tmp_path / "fewer", scripts, restarts=1, fewer=True).watch() == 0
    told = (tmp_path / "fewer" / "cluster" / "events.log").read_text()
    assert "trainer-1 was killed by SIGKILL; the run goes on without it" in told
    assert "trainer-2 was killed by SIGKILL; the run goes on without it" in told


WELL = """
import http.server, sys

class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Well).serve_forever()
"""


class Serving(Supervisor):
    """A sampler that is well, and a trainer that asks for another start of it, in time and too early."""

    def __init__(self, folder):
        limits = Cluster(kind="local", samplers=Samplers(count=1), heartbeat_s=3.0)
        run = Run(folder=folder, settings=limits, words=[], judging=[], tell=lambda line: None)
        hosts = {name: LocalHost() for name in ("trainer-0", "sampler-0")}
        super().__init__(run, hosts, place(limits, MACHINE))

    def _command(self, name, words, environment, shows=False):
        log, again = self.run.home / f"{name}.log", self.run.home / "again"
        if name == "sampler-0":
            return Command([sys.executable, "-c", WELL, words[-1]], {}, log)
        ask = f"printf {self._urls['sampler-0']} > {again}"
        return Command(["sh", "-c", f"sleep 4; {ask}; sleep 1; {ask}; sleep 1"], {}, log)


def test_a_trainer_may_have_a_server_started_again_that_was_not_just_started(tmp_path):
    assert Serving(tmp_path).watch() == 0
    told = (tmp_path / "cluster" / "events.log").read_text()
    assert told.count("sampler-0 runs as process") == 2
    assert told.count("sampler-0 does not take the weights; it is started again (1 of 3)") == 1
    assert not (tmp_path / "cluster" / "again").exists()


# --- where parts run

MACHINE = Machine("here", (0, 1, 2, 3), (24 << 30, 24 << 30), 16 << 30)


def test_parts_get_cores_gpus_and_shares_of_them_in_order():
    settings = Cluster(
        kind="local",
        trainers=Trainers(count=1, gpus=1, cpus=2),
        samplers=Samplers(count=2, gpus=0.5, cpus=1),
        judges=Judges(count=1),
    )
    places = place(settings, MACHINE)
    assert [one.name for one in places] == ["trainer-0", "sampler-0", "sampler-1", "judge-0"]
    assert [one.gpus for one in places] == [(0,), (1,), (1,), ()]
    assert [one.cores for one in places] == [(0, 1), (2,), (3,), ()]
    assert places[1].environment() == {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        "BURNISH_GPU_SHARE": "0.5",
    }
    assert places[3].environment() == {}
    assert places[0].bundle() == {"CPU": 2.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("wants", "line"),
    [
        ({"gpus": 3}, "judge-0 wants cluster.judges.gpus = 3, and 2 of 2 are left"),
        ({"gpus": 0.6, "count": 3}, "judge-2 wants cluster.judges.gpus = 0.6, and 0.8 of 2"),
        ({"cpus": 3, "count": 2}, "judge-1 wants cluster.judges.cpus = 3, and 1 of 4 are left"),
        ({"memory_gb": 9, "count": 2}, "judge-1 wants .*memory_gb = 9.*, and 7.0 of 16.0 GiB"),
        ({"gpus": 1.5}, "expected a share below 1, or whole GPUs"),
    ],
)
def test_what_a_machine_does_not_have_is_refused(wants, line):
    settings = Cluster(kind="local", judges=Judges(**{"count": 1, **wants}))
    with pytest.raises(UserError, match=line):
        place(settings, MACHINE)


def test_what_all_machines_of_ray_do_not_have_is_refused():
    settings = Cluster(kind="ray", trainers=Trainers(count=4, gpus=1))
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}]
    with pytest.raises(UserError, match="want 4 GPU, and Ray's 2 machines have 3"):
        on_ray(settings, nodes)
    assert len(on_ray(settings, [*nodes, {"CPU": 8.0, "GPU": 1.0}])) == 4


def test_memory_is_counted_part_by_part_and_what_is_too_much_is_refused():
    settings = Cluster(
        kind="local",
        trainers=Trainers(count=2, gpus=0.5),
        samplers=Samplers(count=1, gpus=1),
        judges=Judges(count=1, memory_gb=2),
    )
    places, parts = place(settings, MACHINE), {"weights": 3 << 30, "optimiser": 6 << 30}
    rows = rows_of(places, parts, MACHINE)
    assert [(one.name, one.gpus, one.memory) for one in rows] == [
        ("trainer-0", "0", 9 << 30),
        ("trainer-1", "0", 9 << 30),
        ("sampler-0", "1", 3 << 30),
        ("judge-0", "0", 2 << 30),
    ]
    line = r"trainer-1 needs 13 GiB .*, 2 GiB more than the parts before it leave of GPU 0"
    with pytest.raises(UserError, match=line):
        rows_of(places, {"weights": 3 << 30, "optimiser": 10 << 30}, MACHINE)
