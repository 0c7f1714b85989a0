"""Recorded marks of a real benchmark: its scores reproduced, then the same marks in tiers."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from lab.quarkmedbench.recorded import PointsItem, points_score, tiered

from burnish.rewards.judges.rubric import explain, score
from burnish.rewards.judges.rubric.items import tier_of

FILE = Path(__file__).parents[2] / ".." / "shared" / "data" / "healthbench_sample" / "test.parquet"


def opened(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


@pytest.fixture(scope="module")
def rows():
    if not FILE.is_file():
        pytest.skip("shared data 'healthbench_sample' is not here")
    parquet = pytest.importorskip("pyarrow.parquet")
    found = []
    for row in parquet.read_table(FILE, columns=["score", "responses"]).to_pylist():
        marks = [
            PointsItem(m["points"], m["response_dict"]["criteria_met"])
            for m in opened(row["responses"])
        ]
        found.append((row["score"], marks))
    return found


def test_recorded_scores_are_reproduced_from_marks_and_points(rows):
    assert len(rows) == 70
    assert sum(len(items) for _, items in rows) == 816
    for recorded, items in rows:
        assert points_score(items) == pytest.approx(recorded, abs=5e-11)


def test_tiers_and_truncation_lower_the_scores(rows):
    everything = [tiered(items) for _, items in rows]
    plain = [score(items) for items in everything]
    cut = [explain(items, truncation=True) for items in everything]
    assert fmean(recorded for recorded, _ in rows) == pytest.approx(0.4749, abs=1e-4)
    assert fmean(plain) == pytest.approx(0.3881, abs=1e-4)
    assert fmean(found.score for found in cut) == pytest.approx(0.2369, abs=1e-4)
    assert sum(bool(found.fired) for found in cut) == 32
    assert all(a.score <= b + 1e-12 for a, b in zip(cut, plain, strict=True))


def test_points_by_hand():
    assert [tier_of(p).value for p in (10, 8, 7, 5, 4, 1, -1)] == [
        "essential", "essential", "important", "important", "highlight", "highlight", "pitfall",
    ]  # fmt: skip
    items = [PointsItem(8, True), PointsItem(4, False), PointsItem(-3, True)]
    assert points_score(items) == pytest.approx(5 / 12)
    assert points_score([PointsItem(-3, True)]) is None
    assert points_score([PointsItem(8, None)]) is None
