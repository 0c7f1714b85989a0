"""Faithful answers and others: four published sets, balanced accuracy with its interval."""

from __future__ import annotations

import json

import pytest
from bench_cases import data

from burnish.bench import detection
from burnish.bench.loaders import load
from burnish.errors import UserError


@pytest.mark.parametrize(
    ("name", "file", "items", "faithful"),
    [
        ("faithbench", ("faithbench", "test.parquet"), 139, 48),
        ("wice", ("wice", "test.parquet"), 100, 23),
        ("halueval", ("halueval_general", "test.parquet"), 400, 329),
        ("rgb", ("rgb_fact", "test.parquet"), 130, 65),
    ],
)
def test_the_sets_have_documents_and_a_hidden_label(name, file, items, faithful):
    found = load(name, data(*file))
    assert len(found) == items
    assert sum(item.hidden["faithful"] for item in found) == faithful
    for item in found:
        assert set(item.task().fields) == {"documents", "query"}
        assert item.shown["documents"]
        assert all(text.strip() for text in item.shown["documents"])
        assert len(item.responses) == 1


def test_a_questionable_summary_has_no_label_and_a_strange_one_is_refused(tmp_path):
    def row(label, **more):
        marks = json.dumps([{"label": [label]}] if label else [])
        return {"source": "a", "summary": "b", "annotations": marks, "metadata": "{}", **more}

    file = tmp_path / "a.jsonl"
    rows = [
        row(label, sample_id=n)
        for n, label in enumerate(["Unwanted.Intrinsic", "Benign", "Questionable", ""])
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert [item.hidden["faithful"] for item in load("faithbench", file)] == [False, True, True]
    file.write_text(json.dumps({"claim": "a", "evidence": ["b"], "label": "maybe"}) + "\n")
    with pytest.raises(UserError, match="'label' is 'maybe'; expected supported"):
        load("wice", file)


def test_balanced_accuracy_by_hand():
    scores = [0.0, 0.4, 0.9, 1.0, 1.0, None]
    faithful = [False, False, False, True, True, True]
    found = detection(scores, faithful, threshold=0.5)
    assert found.caught is not None
    assert found.caught.value == pytest.approx(2 / 3)
    assert found.passed is not None
    assert found.passed.value == 1.0
    assert found.balanced is not None
    assert found.balanced.value == pytest.approx(5 / 6)
    # Half the root of the squares of Wilson's two reaches below.
    low = ((2 / 3 - found.caught.low) ** 2 + (1 - found.passed.low) ** 2) ** 0.5 / 2
    assert found.balanced.low == pytest.approx(5 / 6 - low)
    assert found.all is not None
    assert found.all.value == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert (found.decided, found.items) == (5, 6)


def test_one_kind_alone_has_no_balanced_accuracy():
    found = detection([0.1, None], [False, False])
    assert (found.balanced, found.passed) == (None, None)
    assert found.caught is not None
