"""The journal: restart, torn lines, damage, locks, cancellation and kill -9."""

import json
import os
import signal
import subprocess
import sys
import time

import anyio
import msgspec
import pytest
from msgspec import Struct

from burnish.errors import StoreError, UserError
from burnish.lm.failures import Rejected
from burnish.lm.lines import LineFile
from burnish.lm.request_pool import Answer, Job, Limits, Line, RequestPool
from burnish.records import Status

CHILD = """
import sys
from pathlib import Path
import anyio
from burnish.lm.request_pool import Answer, RequestPool, Job, Limits

async def worker(job):
    # Most jobs never end, so that nobody is too slow to kill this in time.
    await anyio.sleep(0.01 if job.payload < 200 else 3600)
    return Answer({"square": job.payload ** 2}, completion_tokens=1)

jobs = [Job(f"job{i}", i) for i in range(400)]
anyio.run(RequestPool(Limits(concurrency=4), journal=Path(sys.argv[1])).run, jobs, worker)
"""


def jobs(count):
    return [Job(f"job{i}", i) for i in range(count)]


def counting_worker(called, bad=()):
    async def worker(job):
        called.append(job.id)
        if job.id in bad:
            raise Rejected("HTTP 400")
        return Answer({"square": job.payload**2})

    return worker


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_finished_jobs_are_not_called_again_and_errors_are(tmp_path):
    path, called = tmp_path / "deep" / "journal.jsonl", []
    first = anyio.run(RequestPool(journal=path).run, jobs(6), counting_worker(called, {"job2"}))
    assert [o.status for o in first].count(Status.OK) == 5
    called.clear()
    pool = RequestPool(journal=path)
    second = anyio.run(pool.run, jobs(8), counting_worker(called))
    assert sorted(called) == ["job2", "job6", "job7"]
    assert [o.value for o in second] == [{"square": i**2} for i in range(8)]
    assert [o.from_journal for o in second] == [True, True, False, True, True, True, False, False]
    assert (pool.totals.from_journal, pool.totals.ok) == (5, 3)


def test_values_come_back_as_their_type(tmp_path):
    class Square(Struct):
        square: int

    path = tmp_path / "j"
    anyio.run(RequestPool(journal=path).run, jobs(1), counting_worker([]))

    async def again(kind):
        return await RequestPool(journal=path).run(jobs(1), counting_worker([]), value_type=kind)

    assert anyio.run(again, Square)[0].value == Square(0)
    with pytest.raises(UserError, match="the value of job 'job0' is not"):
        anyio.run(again, list[str])


def test_a_torn_last_line_costs_that_job_alone(tmp_path):
    path, called = tmp_path / "j", []
    anyio.run(RequestPool(Limits(concurrency=1), journal=path).run, jobs(4), counting_worker([]))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    anyio.run(RequestPool(journal=path).run, jobs(4), counting_worker(called))
    assert called == ["job3"]
    assert [line["id"] for line in lines_of(path)] == ["job0", "job1", "job2", "job3"]


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path):
    path = tmp_path / "j"
    first, second = (Line(id=name, payload="", status=Status.OK) for name in "ab")
    whole = msgspec.json.encode(first) + b"\n"
    path.write_bytes(whole + b'{"id":"' + b"x" * 200_000)
    with LineFile(path, Line) as file:
        assert file.records == [first]
        file.append(second)
    assert path.read_bytes() == whole + msgspec.json.encode(second) + b"\n"


@pytest.mark.parametrize("known", [b"", b'{"id":"a","payload":"","status":"ok"}\n'])
@pytest.mark.parametrize(
    "content",
    [
        b"my only copy of a thesis",
        b"chapter one\nchapter two, without a line end",
        b'{"id": "x", "payload": "pretty JSON of someone else"}',
        b'{"id":"x","name":"a whole record of something else"}',
        b"\xff\xfe\x00\n\x00",
        b"\n\n",
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path, known, content):
    path, called = tmp_path / "notes.txt", []
    path.write_bytes(known + content)
    with pytest.raises(StoreError, match="something else") as caught:
        anyio.run(RequestPool(journal=path).run, jobs(1), counting_worker(called))
    assert path.read_bytes() == known + content
    assert "\n" not in str(caught.value)
    assert called == []


def test_a_later_opening_reads_only_what_is_new_and_numbers_its_lines(tmp_path):
    path = tmp_path / "j"
    lines = [Line(id=name, payload="", status=Status.OK) for name in "abc"]
    with LineFile(path, Line) as file:
        file.append(lines[0])
        start = file.end
    with LineFile(path, Line, start) as file:
        assert file.records == [lines[0]]
        file.append(lines[1])
        middle = file.end
    with LineFile(path, Line, middle) as file:
        assert file.records == [lines[1]]
    with path.open("ab") as end:
        end.write(b"{broken\n")
    with pytest.raises(StoreError, match="line 3"), LineFile(path, Line, file.end):
        pass
    path.write_bytes(b"")
    with LineFile(path, Line, middle) as file:
        assert (file.records, file.end) == ([], (0, 0))


def test_single_calls_are_journaled_and_resumed(tmp_path):
    path, called = tmp_path / "j", []

    async def main(pool, bad=()):
        worker, values = counting_worker(called, bad), []
        for job in jobs(3):
            try:
                values.append(await pool.call(job, worker))
            except Rejected:
                values.append(None)
        return values

    assert anyio.run(main, RequestPool(journal=path), {"job1"}) == [
        {"square": 0},
        None,
        {"square": 4},
    ]
    assert [line["status"] for line in lines_of(path)] == ["ok", "infra_error", "ok"]
    called.clear()
    pool = RequestPool(journal=path)
    assert anyio.run(main, pool) == [{"square": 0}, {"square": 1}, {"square": 4}]
    assert called == ["job1"]
    assert (pool.totals.from_journal, pool.totals.ok) == (2, 1)
    with pytest.raises(UserError, match="recorded with another payload"):
        anyio.run(pool.call, Job("job1", 7), counting_worker(called))


def test_calls_at_once_and_a_run_share_one_journal(tmp_path):
    path, called = tmp_path / "j", []
    pool = RequestPool(journal=path)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(pool.run, jobs(3), counting_worker(called))
            for i in range(5):
                group.start_soon(pool.call, Job(f"call{i}", i), counting_worker(called))

    anyio.run(main)
    assert len(called) == len(lines_of(path)) == 8
    with LineFile(path, Line) as file:
        assert len(file.records) == 8


def test_damage_elsewhere_is_reported_with_its_line(tmp_path):
    path = tmp_path / "j"
    anyio.run(RequestPool(Limits(concurrency=1), journal=path).run, jobs(3), counting_worker([]))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"{broken", *lines[2:]]))
    with pytest.raises(StoreError, match="line 2"):
        anyio.run(RequestPool(journal=path).run, jobs(3), counting_worker([]))


def test_an_answer_is_never_given_to_another_question(tmp_path):
    path = tmp_path / "j"
    anyio.run(RequestPool(journal=path).run, jobs(2), counting_worker([]))
    with pytest.raises(UserError, match="job 'job1' is recorded with another payload"):
        anyio.run(
            RequestPool(journal=path).run, [Job("job0", 0), Job("job1", 5)], counting_worker([])
        )


def test_what_json_cannot_hold_is_refused(tmp_path):
    async def worker(job):
        return Answer(object())

    with pytest.raises(UserError, match="its payload cannot be written as JSON"):
        anyio.run(RequestPool(journal=tmp_path / "a").run, [Job("x", object())], worker)
    with pytest.raises(UserError, match="its value cannot be written to the journal"):
        anyio.run(RequestPool(journal=tmp_path / "b").run, [Job("x", 1)], worker)


def test_two_runs_cannot_share_a_journal(tmp_path):
    path = tmp_path / "j"
    with LineFile(path, Line), pytest.raises(UserError, match="in use by another process"):
        anyio.run(RequestPool(journal=path).run, jobs(1), counting_worker([]))


def test_an_unwritable_journal_is_a_store_error(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened"):
        anyio.run(RequestPool(journal=tmp_path).run, jobs(1), counting_worker([]))


def test_a_full_disk_stops_the_run_and_leaves_whole_lines(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "j"
    old_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old_limits[1]))
    try:
        with pytest.raises(StoreError, match=r"is the disk full|cannot be written"):
            anyio.run(RequestPool(journal=path).run, jobs(100), counting_worker([]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limits)
        signal.signal(signal.SIGXFSZ, old_handler)
    assert 5 < len(lines_of(path)) < 100
    called = []
    anyio.run(RequestPool(journal=path).run, jobs(100), counting_worker(called))
    assert len(lines_of(path)) == 100
    assert len(called) < 95


def test_cancellation_leaves_a_valid_journal(tmp_path):
    path, called = tmp_path / "j", []

    async def slow(job):
        await anyio.sleep(0.001 if job.payload < 15 else 3600)
        return Answer({"square": job.payload**2})

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(RequestPool(Limits(concurrency=50), journal=path).run, jobs(50), slow)
            with anyio.fail_after(300):
                while not path.exists() or path.read_bytes().count(b"\n") < 5:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
            group.cancel_scope.cancel()

    anyio.run(main)
    done = {line["id"] for line in lines_of(path)}
    assert 5 <= len(done) <= 15
    outcomes = anyio.run(RequestPool(journal=path).run, jobs(50), counting_worker(called))
    assert set(called) == {job.id for job in jobs(50)} - done
    assert [o.value["square"] for o in outcomes] == [i**2 for i in range(50)]


def test_kill_nine_loses_no_finished_job(tmp_path):
    path, called = tmp_path / "j", []
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)])
    try:
        deadline = time.monotonic() + 300
        while not path.exists() or path.read_bytes().count(b"\n") < 40:
            assert child.poll() is None, "the child ended before it could be killed"
            assert time.monotonic() < deadline, "the child wrote no journal"
            time.sleep(0.01)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    done = {json.loads(line)["id"] for line in path.read_bytes().split(b"\n")[:-1]}
    assert 40 <= len(done) < 400
    outcomes = anyio.run(RequestPool(journal=path).run, jobs(400), counting_worker(called))
    assert set(called) == {f"job{i}" for i in range(400)} - done
    assert len(called) == len(set(called))
    assert [o.value["square"] for o in outcomes] == [i**2 for i in range(400)]
    assert sum(o.from_journal for o in outcomes) == len(done)
