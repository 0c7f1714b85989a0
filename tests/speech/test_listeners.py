"""Words that were heard, counted in any language."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.speech import word_errors


@pytest.mark.parametrize(
    ("said", "heard", "expected"),
    [
        ("café naïve", "cafe naive", (0, 2)),
        ("café naïve", "CAFE\u0301, nai\u0308ve!", (0, 2)),
        ("привет мир", "Привет, мир!", (0, 2)),
        ("привет мир", "x", (2, 2)),
        ("Straße", "STRASSE", (0, 1)),
        ("नमस्ते दुनिया", "नमस्ते दुनिया", (0, 2)),
        ("सीता", "सूता", (1, 1)),
        ("don’t stop", "don't stop", (0, 2)),
        ("one_two", "one two", (0, 2)),
        ("… — !", "", (0, 0)),
    ],
)
def test_words_of_any_language(said: str, heard: str, expected: tuple[int, int]) -> None:
    assert word_errors(said, heard) == expected


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_plain_english_are_letters_digits_and_apostrophes(text: str) -> None:
    words = re.findall(r"[a-z0-9']+", text.lower())
    assert word_errors(text, " ".join(words)) == (0, len(words))
