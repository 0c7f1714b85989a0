"""The search index: built, continued, thrown away, against the plain way of doing the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from viewed_runs import hostile_run, hostile_sample

from burnish.store import RunStore
from burnish.view import index as view_index
from burnish.view.index import (
    Filter,
    Position,
    Range,
    RunIndex,
    Scope,
    Signal,
    SortOrder,
    signal_of,
)
from burnish.view.pages.search import excerpt


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr(view_index, "CHUNK_ROWS", 3)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def complete(index: RunIndex) -> RunIndex:
    """Index all that is stored."""
    while index.advance():
        pass
    return index


def grow(folder: Path, step: int) -> None:
    with RunStore.open(folder) as store:
        store.append_rollouts(step, [hostile_sample(step, index) for index in range(4)])


def test_groups_are_whole_though_chunks_are_cut_anywhere(tmp_path):
    index = complete(RunIndex(hostile_run(tmp_path / "run")))
    assert index.progress.rows == index.progress.total == 8
    found = index.search(Filter(signal=(Signal.MIXED,)), SortOrder("reward"))
    assert found.total == 4
    assert [row.value for row in found.rows] == [1.0, 1.0, 0.0, 0.0]
    assert index.search(Filter(signal=(Signal.NONE,))).total == 4
    assert index.search(Filter(part="judge")).total == 4


def test_what_is_stored_later_is_taken_in(tmp_path):
    folder = hostile_run(tmp_path / "run")
    index = RunIndex(folder)
    assert not index.progress.ready
    index.advance()
    assert (index.progress.rows, index.progress.total) == (4, 8)
    before = complete(index).search(Filter(), text="answer 1")
    assert index.progress.ready
    grow(folder, 2)
    after = complete(index).search(Filter(), text="answer 1")
    assert (before.total, after.total) == (2, 3)
    assert after.rows[0].n > before.rows[0].n


def test_another_run_under_the_same_name_gets_its_own_index(tmp_path):
    folder = hostile_run(tmp_path / "run")
    index = complete(RunIndex(folder))
    shutil.rmtree(folder)
    with RunStore.create(folder, {"steps": 1}, {}) as store:
        store.append_rollouts(7, [hostile_sample(7, 0)])
    complete(index)
    assert index.progress.rows == 1
    assert index.search(Filter(step=Range(8, 8))).total == 1  # as people count


def test_a_later_viewer_goes_on_and_one_beside_it_or_a_damaged_file_does_not_matter(tmp_path):
    folder = hostile_run(tmp_path / "run")
    first = complete(RunIndex(folder))
    found, words = first.search(Filter(part="judge")), dict(first.words)
    beside = RunIndex(folder)
    assert beside.progress.rows == 0
    assert complete(beside).search(Filter(part="judge")) == found
    first._table.close()
    again = RunIndex(folder)
    assert (again.progress.rows, dict(again.words)) == (8, words)
    assert complete(again).search(Filter(part="judge")) == found
    again._table.close()
    (file,) = (tmp_path / "cache" / "view").glob("*.db")
    file.write_bytes(b"no table at all" * 99)
    assert complete(RunIndex(folder)).search(Filter(part="judge")) == found
    assert not file.exists()


def test_a_search_that_is_cut_short_says_so_and_goes_on(tmp_path, monkeypatch):
    index = complete(RunIndex(hostile_run(tmp_path / "run")))
    monkeypatch.setattr(view_index, "SCAN_S", -1.0)
    monkeypatch.setattr(view_index, "SCAN_ROWS", 4)
    first = index.search(Filter(), text="answer", scope=Scope.ANSWERS)
    assert (first.total, first.text_share) == (4, 0.5)  # the newest
    second = index.search(Filter(), text="answer", scope=Scope.ANSWERS)
    assert (second.total, second.text_share) == (8, 1.0)


def test_case_is_folded_beyond_ascii_and_hits_are_forgotten_in_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(view_index, "REMEMBERED", 1)
    folder = hostile_run(tmp_path / "run")
    index = complete(RunIndex(folder))
    for text, scope, total in (
        ("ANSWER 3", Scope.ALL, 2),
        ("<SCRIPT>", Scope.PROMPTS, 8),
        ("> 1?", Scope.ANSWERS, 0),
        ("> 1?", Scope.PROMPTS, 4),
    ):
        assert index.search(Filter(), text=text, scope=scope).total == total
    assert len({row[0] for row in index.query("SELECT text FROM hits")}) == 1


VALUES = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(-3, 3))


def table(rows: list[tuple[float | None, bool]]) -> RunIndex:
    index = RunIndex(Path("unused"))
    index._table.executemany(
        "INSERT INTO rows (n, step, split, status, reward, keep) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (n, 1 + (n - 1) // 2, ("dropped", "train")[n % 2], ("timeout", "ok")[n % 3 > 0], *row)
            for n, row in enumerate(rows, start=1)
        ],
    )
    return index


@given(
    st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=40),
    st.integers(1, 7),
    st.booleans(),
)
def test_pages_joined_are_the_whole_order(rows, limit, descending):
    index, taken, after = table(rows), [], None
    while True:
        order = SortOrder("reward", descending)
        found = index.search(Filter(keep=True), order, after=after, limit=limit)
        taken += [row.n for row in found.rows]
        if not found.has_more:
            break
        after = Position(found.rows[-1].value, found.rows[-1].n)
    sign = -1 if descending else 1
    kept = [(n, value) for n, (value, is_kept) in enumerate(rows, start=1) if is_kept]
    kept.sort(key=lambda one: (one[1] is None, sign * (one[1] or 0.0), sign * one[0]))
    assert taken == [n for n, _ in kept]
    assert found.total == len(kept)


def test_filters_agree_with_the_rows():
    index = table([(None if n % 3 == 0 else n / 10, True) for n in range(1, 13)])
    index._table.executemany("INSERT INTO parts VALUES ('judge', ?, ?)", [(2, 0.0), (5, 1.0)])

    def taken(**filters: object) -> list[int]:
        found = index.search(Filter(**filters), SortOrder("step", descending=False))  # type: ignore[arg-type]
        return [row.n for row in found.rows]

    assert taken() == list(range(1, 13))
    assert taken(split=("dropped",)) == [2, 4, 6, 8, 10, 12]
    assert taken(status=("timeout",)) == [3, 6, 9, 12]
    assert taken(status=("refused",)) == []
    assert taken(step=Range(2, 3)) == [3, 4, 5, 6]
    assert taken(reward=Range(0.7, None)) == [7, 8, 10, 11]  # a missing reward is in no range
    assert taken(split=("train",), status=("ok", "refused")) == [1, 5, 7, 11]
    assert taken(part="judge", value=Range(None, 0.5)) == [2]
    assert taken(part="unknown") == []


def test_the_signal_of_a_group_goes_by_range():
    assert signal_of([0.1, 0.1, 0.1]) is Signal.EQUAL
    assert signal_of([0.1, None, 0.1 + 1e-12]) is Signal.MIXED
    assert signal_of([None, 0.1]) is Signal.NONE
    assert signal_of([]) is Signal.NONE


def test_an_excerpt_shows_the_hit():
    whole = "x" * 500 + "Needle" + "y" * 500
    shown = excerpt(whole, "needle")
    assert shown["match"] is not None
    assert shown["text"][slice(*shown["match"])] == "Needle"
    assert shown["start"] == 420
    assert shown["of"] == 1006
    assert excerpt("short", "")["text"] == "short"
