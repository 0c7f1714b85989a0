"""Columns against the plain way of doing the same: filters, orders, pages, signals."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from burnish.view.index.columns import (
    ROW,
    Columns,
    Filter,
    Position,
    Range,
    Signal,
    chosen,
    page,
    signal_of,
)

NAN = float("nan")
VALUES = st.one_of(st.just(NAN), st.sampled_from([0.0, 0.5, 1.0]), st.floats(-3, 3))


def pages(values: list[float], mask: list[bool], limit: int, descending: bool) -> list[int]:
    """All pages one after the other."""
    column, n = np.array(values), np.arange(1, len(values) + 1)
    taken: list[int] = []
    after = None
    while True:
        found = page(
            column, n, np.array(mask, bool), after=after, limit=limit, descending=descending
        )
        taken += found
        if len(found) < limit:
            return taken
        last = values[found[-1]]
        after = Position(None if math.isnan(last) else last, int(n[found[-1]]))


@given(
    st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=40),
    st.integers(1, 7),
    st.booleans(),
)
def test_pages_joined_are_the_whole_order(rows, limit, descending):
    values, mask = [v for v, _ in rows], [m for _, m in rows]
    sign = -1 if descending else 1
    expected = sorted(
        (i for i in range(len(rows)) if mask[i]),
        key=lambda i: (
            math.isnan(values[i]),
            0.0 if math.isnan(values[i]) else sign * values[i],
            sign * i,
        ),
    )
    assert pages(values, mask, limit, descending) == expected


def test_a_row_that_comes_later_does_not_disturb_the_next_page():
    values = np.array([0.5, 0.9, 0.7, NAN])
    n = np.array([1, 2, 3, 4])
    first = page(values, n, np.ones(4, bool), after=None, limit=2, descending=True)
    assert first == [1, 2]
    values, n = np.append(values, 0.95), np.append(n, 5)
    rest = page(values, n, np.ones(5, bool), after=Position(0.7, 3), limit=5, descending=True)
    assert rest == [0, 3]


def columns(count: int) -> Columns:
    made = Columns(room=2)
    for name in ("train", "dropped"):
        made.code("split", name)
    for name in ("ok", "timeout"):
        made.code("status", name)
    made.code("part", "judge")
    rows = np.zeros(count, ROW)
    rows["n"] = np.arange(1, count + 1)
    rows["step"] = np.arange(count) // 2
    rows["split"] = np.arange(count) % 2
    rows["status"] = np.arange(count) % 3 == 0
    rows["reward"] = np.where(rows["status"] == 1, np.nan, np.arange(count) / 10)
    parts = np.arange(count, dtype=float).reshape(count, 1)
    made.append(rows[: count // 2], parts[: count // 2])
    made.append(rows[count // 2 :], parts[count // 2 :])
    return made


def test_filters_agree_with_the_rows():
    rows = columns(12).snapshot()
    assert rows.rows == 12

    def taken(**filters: object) -> list[int]:
        return [int(i) for i in np.flatnonzero(chosen(rows, Filter(**filters)))]  # type: ignore[arg-type]

    assert taken() == list(range(12))
    assert taken(split=("dropped",)) == [1, 3, 5, 7, 9, 11]
    assert taken(status=("timeout",)) == [0, 3, 6, 9]
    assert taken(status=("refused",)) == []
    assert taken(step=Range(2, 3)) == [2, 3, 4, 5]  # as people count
    assert taken(reward=Range(0.7, None)) == [7, 8, 10, 11]  # a missing reward is in no range
    assert taken(reward=Range(None, None), split=("train",), status=("ok",)) == [2, 4, 8, 10]
    assert taken(part="judge", part_range=Range(None, 1)) == [0, 1]
    assert taken(part="unknown") == []


def test_a_snapshot_stays_as_it_was_and_new_parts_are_missing_in_old_rows():
    made = columns(4)
    before = made.snapshot()
    made.code("part", "format")
    row = np.zeros(1, ROW)
    row["n"] = 5
    made.append(row, np.array([[1.0, 2.0]]))
    assert before.rows == 4
    assert before.parts.shape == (4, 1)
    after = made.snapshot()
    assert after.part("format")[-1] == 2.0
    assert np.isnan(after.part("format")[:4]).all()
    assert after.part("judge").tolist() == [0.0, 1.0, 2.0, 3.0, 1.0]


def test_the_signal_of_a_group_goes_by_range():
    assert signal_of([0.1, 0.1, 0.1]) is Signal.EQUAL
    assert signal_of([0.1, None, 0.1 + 1e-12]) is Signal.MIXED
    assert signal_of([None, 0.1]) is Signal.NONE
    assert signal_of([]) is Signal.NONE
