"""Text plots by hand, and a picture that shows something."""

import math

from hypothesis import given, strategies as st

from burnish.store import RunStore
from burnish.view import HeldOutPoint, curves_of, text_plot


def test_a_rising_line_by_hand():
    # Four cells across are 8 dots, two down are 8: the diagonal lights one dot a column.
    plot = text_plot([(0, 0.0), (7, 7.0)], width=7, height=2)
    assert plot == "7 ┤  ⡠⠊\n0 ┤⡠⠊\n   0  7"


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40),
    st.integers(12, 100),
    st.integers(2, 12),
)
def test_any_numbers_fit_into_the_frame(values, width, height):
    plot = text_plot(list(enumerate(values)), width=width, height=height)
    lines = plot.split("\n")
    if any(math.isfinite(v) for v in values):
        assert len(lines) == height + 1
        labels = max(len(line.split("┤")[0]) for line in lines[:-1])
        assert all(len(line) <= max(width, labels + 5) for line in lines[:-1])
        assert any(0x2800 < ord(c) <= 0x28FF for c in plot)
    else:
        assert lines == ["(nothing to plot)"]


def test_curves_are_read_from_a_store(tmp_path):
    with RunStore.create(tmp_path / "run", {}, {}) as store:
        for step in range(3):
            metrics = {"groups/useful": 1.0 + step, "groups/total": 4.0, "length/mean": 9.0 - step}
            store.append_metrics(
                step,
                {
                    **metrics, "reward/total": 0.1 * step,
                    "reward/correct/mean": None if step == 1 else 1.0, "reward/correct/std": 0.5,
                },
            )  # fmt: skip
        store.append_evaluation(3, "held_out", [], {"score": [0.5, 0.4, 0.6, 10]})
        store.append_evaluation(4, "held_out", [], {"score": None})
        curves = curves_of(store)
    assert curves.reward == [(1, 0.0), (2, 0.1), (3, 0.2)]
    assert curves.parts == {"correct": [(1, 1.0), (3, 1.0)]}
    assert curves.useful == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert curves.held_out == [HeldOutPoint(3, 0.5, 0.4, 0.6, 10)]


def test_a_run_without_rewards_shows_what_it_learns_and_its_stages(tmp_path):
    with RunStore.create(tmp_path / "run", {}, {}) as store:
        for step in range(2):
            own = {"loss/total": 2.0 - step, "rewards/margins": 0.5 * step, "length/mean": 4.0}
            store.append_metrics(step, {**own, "stage/warm/loss/total": 3.0 - step})
        learned = curves_of(store).learned
        store.append_metrics(2, {"reward/total": 0.5})
        rewarded = curves_of(store).learned
    assert learned == {
        "loss": [(1, 2.0), (2, 1.0)],
        "reward margin": [(1, 0.0), (2, 0.5)],
        "stage warm: loss": [(1, 3.0), (2, 2.0)],
    }
    assert list(rewarded) == ["stage warm: loss"]
