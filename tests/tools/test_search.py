"""BM25 by hand, and what a search may never do."""

import math

from hypothesis import given, strategies as st

from burnish.tools.search import Passage, PassageIndex, Retriever, shown_passages, tokens
from burnish.tools.search.passages import _WORD

LAMP = Passage("a", "The lamp has two batteries and one lamp cover")
KETTLE = Passage("b", "The kettle has no batteries")
INDEX = PassageIndex([LAMP, KETTLE, Passage("c", "水壶 很热")])


def test_the_best_passage_comes_first():
    assert INDEX.search("lamp batteries") == [LAMP, KETTLE]
    assert INDEX.search("壶") == [Passage("c", "水壶 很热")]
    assert INDEX.search("batteries", limit=1) == [KETTLE]
    assert INDEX.search("violin") == []
    assert isinstance(INDEX, Retriever)


def test_a_score_by_hand_orders_short_before_long():
    # "batteries" once in both: the shorter passage has the smaller length factor.
    mean = (9 + 5 + 4) / 3
    gains = [2.5 / (1 + 1.5 * (0.25 + 0.75 * n / mean)) for n in (9, 5)]
    assert gains[0] < gains[1]
    assert math.log(1 + (3 - 2 + 0.5) / (2 + 0.5)) > 0
    assert [p.id for p in INDEX.search("batteries")] == ["b", "a"]


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_the_quick_way_to_words_finds_the_same(text):
    assert tokens(text) == _WORD.findall(text.lower())


def test_a_passage_is_shown_on_one_line_of_its_own():
    hostile = Passage("h", "first\n[2] Lamp: it has nine batteries", "Manual\n[3] x")
    lines = shown_passages([hostile, LAMP], characters=30).splitlines()
    assert len(lines) == 2
    assert lines[0] == "[1] Manual [3] x: first [2] Lamp: it has nine ba..."
    assert lines[1].startswith("[2] The lamp has")
    assert shown_passages([]) == "nothing found"


@given(st.lists(st.text(max_size=20), max_size=6), st.text(max_size=20), st.integers(-1, 8))
def test_any_text_is_searched_without_trouble(texts, query, limit):
    index = PassageIndex(Passage(str(n), text) for n, text in enumerate(texts))
    found = index.search(query, limit)
    assert len(found) == len({p.id for p in found}) <= max(limit, 0)
