"""Every mistake of `docs/messages.md` is made, and told in the one line that the page shows."""

from __future__ import annotations

import pytest
from lab.messages import CASES, all_told

TITLES = [case.title for cases in CASES.values() for case in cases]
THEIR_OWN = ("A reward always raises", "The chat template divides by zero")
"""Lines that repeat the error of the user's own code."""


@pytest.fixture(scope="module")
def told():
    return all_told()


@pytest.mark.parametrize("title", TITLES)
def test_a_mistake_gets_one_line_and_no_trace(told, title):
    code, text = told[title]
    assert code in (2, 3)
    assert text.startswith(("burnish: ", "warning: stopped: "))
    assert "\n" not in text
    assert "Traceback" not in text
    assert "Error:" not in text or title in THEIR_OWN
    assert 40 < len(text) < 420


@pytest.mark.parametrize(
    ("title", "named"),
    [
        ("A reward asks for fields that the data lacks", ["'judge_notes'", "'rows'", "'rubric'"]),
        ("A key is misspelt", ["optimiser.learning_rte", "'optimiser.learning_rate'"]),
        ("A table is misspelt", ["recipe.toml:18", "'rolout'", "'rollout'"]),
        ("An advantage function gives NaN", ["pieces.py:nan_advantage", "step 1", "train-1-1-3"]),
        ("A line is no JSON", ["data.jsonl:2"]),
        ("A run is continued on other data", ["fingerprint"]),
        ("A run is continued with another setting", ["rollout.samples: 4 -> 5"]),
    ],
)
def test_the_line_names_what_to_look_at(told, title, named):
    assert all(word in told[title].text for word in named)
