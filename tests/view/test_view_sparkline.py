"""Curves on one line: heights by hand, shared scales, gaps."""

from hypothesis import given, strategies as st

from burnish.view.curves import BLOCKS, scale_of, sparkline


def line(values, width=40, **more):
    points = list(enumerate(values))
    return sparkline(points, scale_of(points), width=width, **more)


def test_a_character_is_the_mean_of_its_points():
    assert line([0, 2, 7, 5, 14, 14], width=3) == "▁▄█"


def test_curves_that_share_a_scale_can_be_compared():
    short, long = [(0, 0.0), (1, 1.0)], [(0, 0.0), (1, 1.0), (2, 1.0), (3, 7.0)]
    scale = scale_of(short, long)
    assert sparkline(short, scale, width=9) == "▁▂"
    assert sparkline(long, scale, width=9) == "▁▂▂█"


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60), st.integers(1, 30))
def test_any_numbers_fit_the_width(values, width):
    shown = line(values, width)
    assert len(shown) <= width
    assert set(shown) <= {*BLOCKS, " "}
