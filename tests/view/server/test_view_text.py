"""Finding a text in many, against looking into each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from burnish.view.index.columns import Texts, fold
from burnish.view.index.index_file import holding
from burnish.view.pages.search import excerpt

LETTERS = st.text("ab é\n<", max_size=12)


def joined(texts: list[str]) -> Texts:
    folded = [(fold(text) + "\0").encode() for text in texts]
    return Texts(np.frombuffer(b"".join(folded), np.uint8), np.cumsum([len(f) for f in folded]))


@given(st.lists(LETTERS, min_size=1, max_size=30), st.text("ab é<A", min_size=1, max_size=6))
def test_the_same_texts_are_found_as_by_looking_into_each(texts, needle):
    found = set(holding(joined(texts), fold(needle).encode()).tolist())
    assert found == {i for i, text in enumerate(texts) if fold(needle) in fold(text)}


def test_nothing_is_found_across_two_texts_or_for_nothing():
    texts = joined(["abc", "def"])
    assert holding(texts, b"cd").tolist() == []
    assert holding(texts, b"").tolist() == []
    assert holding(texts, b"a" * 99).tolist() == []


def test_case_is_folded_beyond_ascii():
    texts = joined(["STRASSE", "Straße", "ÄRGER"])
    assert sorted(holding(texts, fold("straße").encode()).tolist()) == [0, 1]
    assert holding(texts, fold("ärger").encode()).tolist() == [2]


def test_an_excerpt_shows_the_hit():
    whole = "x" * 500 + "Needle" + "y" * 500
    shown = excerpt(whole, "needle")
    assert shown["match"] is not None
    assert shown["text"][slice(*shown["match"])] == "Needle"
    assert shown["start"] == 420
    assert shown["of"] == 1006
    assert excerpt("short", "")["text"] == "short"
