"""The log of calls: shared by processes, whole after any kill, and never wrong about an answer."""

import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from burnish.errors import StoreError, UserError
from burnish.lm.base import Completion, Sampling
from burnish.lm.call_log import Call, CallLog, asked_sample, read_calls
from burnish.lm.lines import LineFile
from burnish.records import Finish, Message

CHILD = """
import sys
from msgspec.structs import replace
from burnish.lm.base import Completion, Sampling
from burnish.lm.call_log import CallLog, asked_sample
from burnish.records import Message
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = CallLog(path)
for i in range(first, first + count):
    asked = asked_sample("m", (Message("user", f"question {i}"),), Sampling())
    log.append(replace(asked, completions=(Completion(f"answer {i}"),)))
"""


def asked(number, **more):
    return replace(asked_sample("m", (Message("user", f"question {number}"),), Sampling()), **more)


def answered(number, text="", **more):
    said = Completion(text or f"answer {number}")
    return replace(asked(number, **more), completions=(said,))


def filled(path, count=3):
    log = CallLog(path)
    for number in range(count):
        log.append(answered(number))
    return log


@pytest.mark.parametrize("where", ["memory", "file"])
def test_an_answer_is_found_by_its_call_alone(tmp_path, where):
    log = CallLog(None if where == "memory" else tmp_path / "new" / "log.jsonl")
    assert log.find(asked(0)) is None
    log.append(answered(0))
    log.append(answered(0, "again"))
    log.append(asked(1, reason="it failed"))
    log.append(replace(asked(2), completions=(Completion("half", finish=Finish.ERROR),)))
    log.append(answered(3, identity="http://a"))
    assert log.find(asked(0)) == answered(0)
    assert log.find(asked(0), 1) == log.find(asked(0), -1) == answered(0, "again")
    others = [asked(1), asked(2), asked(3), asked(3, identity="http://b"), asked(0, scope="s")]
    assert [log.find(one) for one in others] == [None] * 5
    assert log.find(asked(0), 2) is None
    assert log.find(asked(3, identity="http://a")) is not None


@given(st.lists(st.tuples(st.integers(0, 4), st.text(max_size=5)), max_size=20))
def test_file_and_memory_agree(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    memory, file = CallLog(), CallLog(path)
    for number, text in rows:
        for log in (memory, file):
            log.append(answered(number, text))
    again = CallLog(path)
    for number in range(5):
        for place in (-1, 0, 1, 7):
            found = memory.find(asked(number), place)
            assert file.find(asked(number), place) == found == again.find(asked(number), place)


def test_one_log_sees_what_another_appends(tmp_path):
    path = tmp_path / "log.jsonl"
    one, two = CallLog(path), CallLog(path)
    one.append(answered(0))
    assert two.find(asked(0)) == answered(0)
    two.append(answered(1))
    assert one.find(asked(1)) == answered(1)
    assert [call.key for call in read_calls(path)] == [asked(0).key, asked(1).key]


def test_processes_that_write_at_once_leave_whole_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    words = [sys.executable, "-c", CHILD, str(path)]
    children = [subprocess.Popen([*words, str(200 * i), "200"]) for i in range(3)]
    assert [child.wait(timeout=300) for child in children] == [0, 0, 0]
    assert len({call.key for call in read_calls(path)}) == 600
    log = CallLog(path)
    assert all(log.find(asked(number)) == answered(number) for number in range(600))


def test_kill_nine_loses_no_answer(tmp_path):
    path = tmp_path / "log.jsonl"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), "0", "1000000"])
    try:
        deadline = time.monotonic() + 300
        while not path.exists() or path.read_bytes().count(b"\n") < 40:
            assert child.poll() is None, "the child ended before it could be killed"
            assert time.monotonic() < deadline, "the child wrote no log"
            time.sleep(0.01)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    done = len(read_calls(path))
    log = CallLog(path)
    log.append(answered("new"))
    assert len(read_calls(path)) == done + 1
    assert log.find(asked(done - 1)) == answered(done - 1)


def test_a_torn_last_line_is_cut_by_the_next_writer(tmp_path):
    path = tmp_path / "log.jsonl"
    filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    log = CallLog(path)
    assert log.find(asked(2)) is None
    log.append(answered(2))
    assert path.read_bytes() == whole


def test_a_line_that_tears_while_the_log_is_open_is_cut(tmp_path):
    path = tmp_path / "log.jsonl"
    log = filled(path, 1)
    with path.open("ab") as file:
        file.write(b'{"key":"' + b"x" * 200_000)
    assert log.find(asked(1)) is None
    log.append(answered(1))
    assert [call.completions[0].text for call in read_calls(path)] == ["answer 0", "answer 1"]


@pytest.mark.parametrize(
    "content",
    [
        b"my only copy of a thesis",
        b"chapter one\nchapter two, without a line end",
        b'{"key": "pretty JSON of someone else"}',
        b'{"key":"x","model":3}',
        b'["key"]\n',
        b"SQLite format 3\0" + b"\0" * 100,
    ],
)
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_file_that_is_no_log_is_refused_and_left_alone(tmp_path, content, is_begun):
    path = tmp_path / "thesis.txt"
    known = msgspec.json.encode(answered(0)) + b"\n" if is_begun else b""
    path.write_bytes(known + content)
    with pytest.raises(StoreError, match=r"does not end as|the file is damaged"):
        CallLog(path)
    assert path.read_bytes() == known + content


def test_damage_is_reported_with_its_line(tmp_path):
    path = tmp_path / "log.jsonl"
    filled(path)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:-3], *lines[2:]]))
    with pytest.raises(StoreError, match="line 2"):
        CallLog(path)
    with pytest.raises(StoreError, match="line 2"):
        read_calls(path)


def test_a_full_disk_stops_a_needed_log_and_leaves_whole_lines(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "log.jsonl"
    old_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, old_limits[1]))
    try:
        with pytest.raises(StoreError, match=r"is the disk full|cannot be written"):
            filled(path, 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limits)
        signal.signal(signal.SIGXFSZ, old_handler)
    done = len(read_calls(path))
    assert 2 < done < 100
    log = CallLog(path)
    log.append(answered(done))
    assert [call.completions[0].text for call in read_calls(path)][-1] == f"answer {done}"


def test_an_optional_log_warns_once_and_is_given_up(tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    log = CallLog(path, is_needed=False)
    log.append(answered(0))
    path.unlink()
    path.mkdir()
    for number in range(3):
        log.append(answered(number))
    assert sum("not kept there any more" in r.getMessage() for r in caplog.records) == 1


def test_a_deleted_log_begins_anew(tmp_path):
    path = tmp_path / "log.jsonl"
    log = filled(path)
    assert log.find(asked(0)) is not None
    path.unlink()
    assert log.find(asked(0)) is None
    log.append(answered(7))
    assert [call.completions[0].text for call in read_calls(path)] == ["answer 7"]
    assert log.find(asked(7)) is not None


def test_only_what_is_wanted_is_kept(tmp_path):
    path = tmp_path / "log.jsonl"
    log = filled(path)
    assert log.find(asked(0)) is not None
    log.keep_only(lambda call: call.key == asked(1).key)
    assert [log.find(asked(number)) is not None for number in range(3)] == [False, True, False]
    log.append(answered(2))
    assert len(read_calls(path)) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_log_in_memory_has_a_bound(monkeypatch):
    monkeypatch.setattr("burnish.lm.call_log.MOST_IN_MEMORY", 3)
    log = CallLog()
    for number in range(10):
        log.append(answered(number))
    assert [log.find(asked(number)) is not None for number in range(10)] == [False] * 7 + [True] * 3


def test_a_file_for_one_writer_refuses_a_second(tmp_path):
    path = tmp_path / "results.jsonl"
    with LineFile(path, Call), pytest.raises(UserError, match="in use by another process"):
        LineFile(path, Call).__enter__()


def test_a_line_of_an_earlier_version_is_a_call(tmp_path):
    """A record as it was written before the log had scopes, owners and identities."""
    line = {
        "key": asked(0).key,
        "model": "m",
        "messages": [{"role": "user", "content": "question 0"}],
        "sampling": msgspec.to_builtins(Sampling()),
        "completions": [{"text": "answer 0"}],
        "kind": "pair",
        "about": ["task-1", "s0", "s1"],
        "status": "ok",
        "seconds": 0.25,
    }
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(line) + "\n")
    found = CallLog(path).find(asked(0))
    assert found is not None
    assert (found.completions[0].text, found.kind, found.seconds) == ("answer 0", "pair", 0.25)
