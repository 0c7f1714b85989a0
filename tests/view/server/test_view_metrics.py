"""Curves: thinned without losing a peak, brought up to date without reading all again."""

from hypothesis import given, strategies as st

from burnish.store import RunStore
from burnish.view.pages.run_page import Curves, Line, thinned
from burnish.view.pages.runs import open_run


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(4, 60))
def test_a_thinned_curve_keeps_its_ends_and_extremes(values, points):
    steps = list(range(0, 3 * len(values), 3))
    curve = thinned(Line(steps, values), points)
    assert len(curve["steps"]) <= max(points, 4)
    assert curve["steps"] == sorted(set(curve["steps"]))
    assert (curve["steps"][0], curve["steps"][-1]) == (steps[0], steps[-1])
    assert min(curve["values"]) == min(values)
    assert max(curve["values"]) == max(values)
    assert all(
        values[steps.index(s)] == v for s, v in zip(curve["steps"], curve["values"], strict=True)
    )
    assert curve["of"] == len(values)
    assert curve["thinned"] == (len(values) > points)


def test_an_empty_curve_stays_empty():
    assert thinned(Line([], []), 10)["steps"] == []


def test_curves_grow_with_the_run(tmp_path):
    folder = tmp_path / "run"
    curves = Curves()
    with RunStore.create(folder, {}, {}) as store:
        store.append_metrics(0, {"loss": 1.0, "gap": None})
        with open_run(folder) as run:
            curves.update(run)
        # The same step says more later, and a metric begins at step 1.
        store.append_metrics(0, {"late": 5.0})
        store.append_metrics(1, {"loss": 0.5, "new": 2.0})
        with open_run(folder) as run:
            curves.update(run)
    assert curves.names() == ["gap", "late", "loss", "new"]
    assert [list(side) for side in curves.of("loss")] == [[0, 1], [1.0, 0.5]]
    assert [list(side) for side in curves.of("late")] == [[0], [5.0]]
    assert list(curves.of("gap").steps) == []
    assert list(curves.of("loss", since=0).steps) == [1]
    assert curves.last_step() == 1
