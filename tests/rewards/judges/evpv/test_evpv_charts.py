"""Values of a chart by their labels: pure geometry over words, whatever read them."""

import random
import time

import pytest
from hypothesis import given, strategies as st

from burnish.rewards.judges.evpv.charts import (
    Word,
    find_legend,
    find_ticks,
    number_in,
    read_chart,
    split_words,
)

BLUE, NAVY = (40, 117, 220), (15, 40, 62)


def word(text, x, y, width=None):
    width = width or 8 * len(text)
    return Word(text, x - width / 2, y - 6, x + width / 2, y + 6)


TICKS = [word(str(value), 20, 300 - 2 * value) for value in (0, 50, 100, 150)]
YEARS = [word(str(2015 + n), 80 + 100 * n, 320) for n in range(4)]
VALUES = [
    word(str(value), 80 + 100 * n, 290 - 2 * value) for n, value in enumerate((40, 61, 87, 23))
]


def found(words, *colours):
    return {(one.label, one.series, one.value) for one in read_chart(words, *colours)}


@pytest.mark.parametrize(
    ("text", "number"),
    [("143", "143"), ("143.", "143"), ("1 250", "1250"), ("12,500", "12500"), ("35 %", "35%"),
     ("1 0%", "10%"), ("2020*", "2020"), ("-3.2", "-3.2"), ("2005 2006", None), ("App Store", None),
     ("–5", "-5"), ("—5%", "-5%"), ("(–$3.5", "-$3.5"), ("– 5", "5"), ("2005–", "2005"), ("$12mn", "$12mn"),
     ("2015/16", None), ("", None), ("6G", "6G"), ("n" * 300, None)],
)  # fmt: skip
def test_what_is_one_number(text, number):
    assert number_in(text) == number


def test_values_stand_over_their_labels_and_ticks_are_none():
    assert find_ticks([*TICKS, *VALUES], 12) == set(TICKS)
    wanted = {("2015", "", "40"), ("2016", "", "61"), ("2017", "", "87"), ("2018", "", "23")}
    assert found([*TICKS, *YEARS, *VALUES]) == wanted


def test_a_tick_that_was_misread_leaves_the_others_ticks():
    ticks = [word("O", 20, 300), *TICKS[1:], word("27", 20, -100)]
    assert found([*ticks, *YEARS, *VALUES]) >= {("2015", "", "40"), ("2018", "", "23")}


def test_labels_in_a_column_with_values_beside_them():
    names = ("Tea", "Salt and pepper", "Rye")
    labels = [
        Word(name, 100 - 8 * len(name), 50 + 40 * n, 100, 62 + 40 * n)
        for n, name in enumerate(names)
    ]
    values = [
        word(value, 150 + 60 * n, 56 + 40 * n) for n, value in enumerate(("3.2%", "7%", "1%"))
    ]
    ticks = [word(f"{value}%", 110 + 20 * value, 200) for value in (0, 2, 4, 6, 8)]
    assert found([*labels, *values, *ticks]) == {
        ("Tea", "", "3.2%"), ("Salt and pepper", "", "7%"), ("Rye", "", "1%"),
    }  # fmt: skip


def test_a_box_of_several_years_is_split():
    glued = Word("2015 2016 2017 2018", 62, 314, 398, 326)
    assert [one.text for one in split_words([glued])] == ["2015", "2016", "2017", "2018"]
    assert found([*TICKS, glued, *VALUES]) == found([*TICKS, *YEARS, *VALUES])


def two_series():
    """Two bars a year, and what the picture's colours are around each value."""
    labels = [word("2017", 100, 320), word("2018", 300, 320)]
    legend = [word("App Store", 150, 360), word("Google Play", 300, 360)]
    values = [
        word(text, x, 150) for text, x in (("143", 70), ("71", 130), ("164", 270), ("88", 330))
    ]

    def colours(left, top, right, bottom):
        for entry, colour in zip(legend, (BLUE, NAVY), strict=True):
            if abs(right - entry.left) < 2 and top > 340:
                return [(colour, 0.5)]
        for place, value in enumerate(values):
            if abs(top - value.bottom) < 2 and abs(left - value.left) < 2:
                return [((BLUE, NAVY)[place % 2], 0.8)]
        return []

    return [*labels, *legend, *values], colours, legend


def test_the_colour_says_which_series_a_value_belongs_to():
    words, colours, legend = two_series()
    assert find_legend(words, colours, 12) == dict(zip(legend, (BLUE, NAVY), strict=True))
    assert found(words, colours) == {
        ("2017", "App Store", "143"), ("2017", "Google Play", "71"),
        ("2018", "App Store", "164"), ("2018", "Google Play", "88"),
    }  # fmt: skip


def test_what_cannot_be_told_apart_is_no_reading():
    words, colours, _ = two_series()
    assert read_chart(words) == []

    def one_colour(*sides):
        return [(BLUE, seen[0][1])] if (seen := colours(*sides)) else []

    assert read_chart(words, one_colour) == []


@given(st.integers(-2000, 2000), st.integers(-2000, 2000), st.randoms())
def test_a_chart_elsewhere_in_its_picture_reads_the_same(across, down, rng):
    words = [*TICKS, *YEARS, *VALUES]
    rng.shuffle(words)
    moved = [
        w._replace(
            left=w.left + across, right=w.right + across, top=w.top + down, bottom=w.bottom + down
        )
        for w in words
    ]
    assert found(moved) == found(words)


def test_words_without_order_and_far_too_many_of_them():
    rng = random.Random(0)
    noise = [
        word(rng.choice(["7", "x", "2019", "a b"]), rng.random() * 900, rng.random() * 900)
        for _ in range(800)
    ]
    start = time.process_time()
    read_chart(noise)
    assert read_chart(noise * 125) == []
    assert time.process_time() - start < 60
    assert read_chart([]) == []
