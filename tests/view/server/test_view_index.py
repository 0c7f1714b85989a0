"""The search index: built, continued, thrown away, shared by two viewers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from viewed_runs import hostile_run, hostile_sample

from burnish.store import RunStore
from burnish.view.index import columns, index_file
from burnish.view.index.columns import Filter, Signal
from burnish.view.index.index_file import Scope
from burnish.view.index.run_index import RunIndex, SortOrder


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(columns, "CHUNK_ROWS", 4)
    monkeypatch.setattr(columns, "BATCH", 3)


def complete(index: RunIndex) -> RunIndex:
    """Index all that is stored."""
    index.refresh()
    while not index.progress.ready:
        index.advance()
        index.refresh()
    return index


def grow(folder: Path, step: int) -> None:
    with RunStore.open(folder) as store:
        store.append_rollouts(step, [hostile_sample(step, index) for index in range(4)])


def test_groups_are_whole_though_batches_are_cut_anywhere(tmp_path):
    index = complete(RunIndex(hostile_run(tmp_path / "run")))
    assert index.progress.rows == index.progress.total == 8
    found = index.search(Filter(signal=(Signal.MIXED,)), SortOrder("reward"))
    assert found.total == 4
    assert found.values == [1.0, 1.0, 0.0, 0.0]
    assert index.search(Filter(signal=(Signal.NONE,))).total == 4
    assert index.search(Filter(part="judge")).total == 4


def test_an_index_goes_on_where_it_was(tmp_path, monkeypatch):
    folder = hostile_run(tmp_path / "run")
    half = RunIndex(folder)
    half.refresh()
    half.advance()  # opens
    half.advance()  # one chunk: step 0
    assert half.progress.rows == 4
    read: list[int] = []
    real = columns.read_batch

    def watched(run: object, after: int) -> list[columns.Sample]:
        read.append(after)
        return real(run, after)  # type: ignore[arg-type]

    monkeypatch.setattr("burnish.view.index.run_index.read_batch", watched)
    index = complete(RunIndex(folder))
    assert min(read) == 4  # the first step is not read again
    assert index.search(Filter(), text="ANSWER 3").total == 2


def test_what_is_stored_later_is_taken_in(tmp_path):
    folder = hostile_run(tmp_path / "run")
    index = complete(RunIndex(folder))
    before = index.search(Filter(), text="answer 1")
    grow(folder, 2)
    index.refresh()
    assert not index.progress.ready
    assert index.progress.total == 12
    complete(index)
    after = index.search(Filter(), text="answer 1")
    assert (before.total, after.total) == (2, 3)
    assert after.n[0] > before.n[0]


def test_another_run_under_the_same_name_gets_its_own_index(tmp_path):
    folder = hostile_run(tmp_path / "run")
    index = complete(RunIndex(folder))
    shutil.rmtree(folder)
    with RunStore.create(folder, {"steps": 1}, {}) as store:
        store.append_rollouts(7, [hostile_sample(7, 0)])
    complete(index)
    assert index.progress.rows == 1
    assert index.snapshot().column("step").tolist() == [7]
    assert complete(RunIndex(folder)).progress.rows == 1


def test_a_damaged_index_is_made_again(tmp_path):
    folder = hostile_run(tmp_path / "run")
    complete(RunIndex(folder))
    (path,) = (tmp_path / "cache" / "view").glob("*.db")
    path.write_bytes(b"this is no database at all, but long enough")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert complete(RunIndex(folder)).progress.rows == 8


def test_two_viewers_share_one_file(tmp_path):
    folder = hostile_run(tmp_path / "run")
    one, two = RunIndex(folder), RunIndex(folder)
    for index in (one, two):
        index.refresh()
        index.advance()
    one.advance()
    two.advance()  # finds that the other was first, and takes what it made
    complete(two)
    complete(one)
    assert one.progress.rows == two.progress.rows == 8
    assert one.search(Filter(), text="answer 2").total == 2
    assert two.search(Filter(), text="answer 2").total == 2


def test_without_a_cache_folder_the_index_is_temporary(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "file" / "cache"))
    index = complete(RunIndex(hostile_run(tmp_path / "run")))
    assert index.search(Filter(), text="answer 1").total == 2


def test_old_indexes_leave_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(index_file, "KEPT", 2)
    for number in range(4):
        complete(RunIndex(hostile_run(tmp_path / f"run-{number}")))
    assert len(list((tmp_path / "cache" / "view").glob("*.db"))) <= 3


def test_a_search_that_is_cut_short_says_so_and_goes_on(tmp_path, monkeypatch):
    index = complete(RunIndex(hostile_run(tmp_path / "run")))
    monkeypatch.setattr("burnish.view.index.run_index.SCAN_S", -1.0)
    first = index.search(Filter(), text="answer", scope=Scope.ANSWERS)
    assert (first.total, first.text_share) == (4, 0.5)  # the newest chunk
    second = index.search(Filter(), text="answer", scope=Scope.ANSWERS)
    assert (second.total, second.text_share) == (8, 1.0)


def test_many_small_chunks_become_one(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.view.index.run_index.TAIL", 3)
    folder = hostile_run(tmp_path / "run")
    index = complete(RunIndex(folder))
    before = index.search(Filter(), text="answer 1")
    for step in range(2, 6):
        grow(folder, step)
        complete(index)
        assert index.search(Filter(), text="answer 1").text_share == 1.0
    assert len(index._state.spans) < 6
    again = complete(RunIndex(folder))
    for one in (index, again):
        for scope in Scope:
            found = one.search(Filter(), text="<script>", scope=scope)
            assert (found.total, found.text_share) == (24, 1.0)
        assert one.search(Filter(), text="answer 1").total == 6
        assert one.search(Filter(), text="> 1?", scope=Scope.PROMPTS).total == 12
        assert one.search(Filter(part="judge")).total == 12
        assert one.progress.rows == 24
    assert before.total == 2
