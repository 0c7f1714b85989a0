"""How a run ended, where what says so is damaged, long or strange."""

import sqlite3

import pytest

from burnish.errors import StoreError
from burnish.store import RunStatus, RunStore
from burnish.store.frames import list_runs
from burnish.store.processes import ProcessRecord, read_processes


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("status", "zzz"), ("summary", "{{{"), ("summary", "[1, 2]"), ("summary", "null"),
        ("summary", '{"step": 1e400}'), ("summary", '{"reason": {"a": 1}}'),
    ],
)  # fmt: skip
def test_a_damaged_end_is_one_line_and_costs_no_other_run(tmp_path, column, value):
    for name in ("good", "bad"):
        store = RunStore.create(tmp_path / name, {}, {}, recipe="grpo")
        store.finish("stopped", {"reason": "enough", "step": 2})
        store.close()
    with sqlite3.connect(tmp_path / "bad" / "run.db") as database:
        database.execute(f"UPDATE sessions SET {column} = ?", [value])
    found = {info.name: info for info in list_runs(tmp_path)}
    assert found["good"].end.reason == "enough"
    assert found["bad"].status is RunStatus.UNREADABLE
    assert "\n" not in found["bad"].problem
    with (
        RunStore.open(tmp_path / "bad", read_only=True) as store,
        pytest.raises(StoreError, match="bad"),
    ):
        store.summary()


@pytest.mark.parametrize("line", ["\U0001f600" * 1200, "x" * 9000, "\x01" * 1200, "\ud800" * 50])
def test_last_words_always_fit(tmp_path, line):
    record = ProcessRecord(tmp_path)
    record.beat(step=3, doing=line)
    record.die("exception", line, exception="E" * 5000, sample=line)
    record.leave()
    (state,) = read_processes(tmp_path)
    assert state.words is not None
    assert state.words.line
    assert state.step == 3


def test_files_that_are_no_process_are_let_be(tmp_path):
    folder = tmp_path / "processes"
    folder.mkdir()
    (folder / "².json").write_text("?")
    (folder / "7.json").write_text("?")
    ProcessRecord(tmp_path).leave()
    assert sorted(path.name for path in folder.iterdir()) == ["0.json", "².json"]
