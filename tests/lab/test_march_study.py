"""MARCH's study on SmolLM2: its oracle by hand, and what a study says before it begins."""

from __future__ import annotations

import pytest
from lab.march.study import figures
from recipes.march.passages import prior

from burnish.records import Message, Task, Trajectory


def played(text: str, claims: list[tuple[str, list[str | None]]], facts: dict[str, int]):
    task = Task("t", (Message("user", "q"),), {"town": "Arlen", "facts": facts})
    traced = [
        {
            "question": f"How many {thing} does Arlen have?", "answer": "1", "checks": checks,
            "vote": 1, "holds": True, "by_heart": None,
        }
        for thing, checks in claims
    ]  # fmt: skip
    info = {"march": {"claims": traced}}
    return task, Trajectory("t.0", "t", "t.solver", (), text, role="solver", info=info)


def test_the_oracle_counts_what_stands_against_the_passages():
    known = prior("Arlen", "wells")
    facts = {"wells": known + 1, "parks": prior("Arlen", "parks"), "inns": 5}
    text = f"Arlen has {known} wells, {facts['parks']} parks and 5 inns."
    pairs = [played(text, [("wells", [str(known + 1), str(known), None])], facts)]
    found = figures(pairs)
    # The report states three facts, one of them (wells) from memory.
    assert found["against"] == pytest.approx(1 / 3)
    differing = 1 + (prior("Arlen", "inns") != 5)
    assert found["conflict"] == pytest.approx(1 / differing)
    assert (found["facts"], found["claims"], found["proposed"]) == (3.0, 1.0, 1.0)
    assert found["checker_right"] == pytest.approx(1 / 3)
    assert found["checked"] == pytest.approx(2 / 3)
    assert "by_heart" not in found
