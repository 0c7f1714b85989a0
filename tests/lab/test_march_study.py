"""MARCH's study on SmolLM2: its oracle by hand, and what a study says before it begins."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from lab.harness import Options, forecast
from lab.march.study import STUDIES, by_oracle, figures
from lab.plan import GPU, TRIAL
from recipes.march import passages
from recipes.march.passages import demonstrate, make, prior

from burnish.records import Message, Task, Trajectory


def played(text: str, claims: list[tuple[str, list[str | None]]], facts: dict[str, int]):
    task = Task("t", (Message("user", "q"),), {"town": "Arlen", "facts": facts})
    traced = [
        {
            "question": f"How many {thing} does Arlen have?",
            "answer": "1",
            "checks": checks,
            "vote": 1,
            "holds": True,
            "by_heart": None,
        }
        for thing, checks in claims
    ]
    info = {"march": {"claims": traced}}
    return task, Trajectory("t.0", "t", "t.solver", (), text, role="solver", info=info)


def test_the_oracle_counts_what_stands_against_the_passages() -> None:
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


def test_reports_without_a_fact_have_no_share() -> None:
    found = figures([played("I do not know.", [], {"wells": 3})])
    assert found == {"proposed": 0.0, "facts": 0.0, "claims": 0.0}


def test_sighted_examples_show_the_answer_and_mostly_repeat_it() -> None:
    rng = random.Random(3)
    rows = [demonstrate(rng, sighted=1.0, nod=1.0) for _ in range(60)]
    seen = [row for row in rows if row["role"] == "sighted"]
    assert seen
    assert not [row for row in rows if row["role"] == "checker"]
    for row in seen:
        shown = passages.read_facts(row["prompt"].rpartition("Answer under test:")[2])
        said = passages.read_facts(row["demonstration"])
        assert said.items() <= shown.items()
    assert "Answer under test" not in demonstrate(random.Random(3))["prompt"]
    assert make(random.Random(1)) == make(random.Random(1))


def test_a_study_says_how_long_it_takes() -> None:
    (study,) = STUDIES
    assert study.measure is by_oracle
    here = Options(Path("runs"), GPU, jobs=4)
    said = forecast(study, here)
    assert f"{3 * len(study.arms)} runs, 4 at a time" in said
    assert "about 8 min" in said
    assert "not known here" in forecast(study, Options(Path("runs"), TRIAL, jobs=2))
