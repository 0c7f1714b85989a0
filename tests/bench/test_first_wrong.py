"""The F1 of the first wrong step: worked numbers, the best threshold, and no look at one's own label."""

import itertools
import random

import pytest
from hypothesis import given, strategies as st

from burnish.bench import (
    best_threshold,
    calibrated_f1,
    first_flagged,
    first_wrong_f1,
    halves,
    labels_of,
    solution_rows,
)
from burnish.bench.loaders import load
from burnish.errors import ArgumentError, UserError

SCORES = [
    [0.9, 0.2, 0.8],  # flags step 1
    [0.4, 0.1],  # flags step 0
    [0.9, 0.8],  # flags none
    [0.9, 0.3],  # flags step 1
]


def test_f1_by_hand():
    found = first_wrong_f1(SCORES, [1, 1, None, None])
    # Of two wrong solutions one step is found, of two right ones one is left alone.
    assert (found.wrong.value, found.right.value) == (0.5, 0.5)
    assert found.f1.value == pytest.approx(0.5)
    assert found.found == (True, False, True, False)
    found = first_wrong_f1([*SCORES, [0.9]], [1, 0, None, None, None])
    # 2 of 2 and 2 of 3: 2 * 1 * 2/3 / (5/3) = 0.8.
    assert found.f1.value == pytest.approx(0.8)
    assert found.f1.low < 0.8 < found.f1.high < 1
    assert found.f1.size == 5


def test_a_wrong_step_behind_the_first_one_does_not_count():
    assert first_wrong_f1([[0.9, 0.2], [0.9]], [0, None]).wrong.value == 0
    assert first_wrong_f1([[0.9, 0.2], [0.9]], [0, None]).f1.value == 0
    assert first_flagged([0.9, 0.2, 0.1]) == 1
    assert first_flagged([0.9], 0.95) == 0
    assert first_flagged([0.5]) is None  # the threshold itself is no flag


def test_one_kind_alone_has_no_f1():
    only = first_wrong_f1([[0.9, 0.2]], [1])
    assert only.f1 is None
    assert only.right is None
    assert only.wrong.value == 1


def test_intervals_hold_all_and_nothing_found():
    rows, labels = [[0.9, 0.1]] * 10 + [[0.9]] * 10, [1] * 10 + [None] * 10
    best = first_wrong_f1(rows, labels).f1
    assert best.value == best.high == 1
    assert 0.75 < best.low < 1
    worst = first_wrong_f1(rows, [0] * 10 + [None] * 10).f1
    assert worst.value == worst.low == 0
    assert 0 < worst.high < 0.5


cells = st.integers(0, 6).map(lambda x: x / 6)
solutions = st.lists(
    st.tuples(st.lists(cells, min_size=1, max_size=4), st.integers(-1, 3)), min_size=1, max_size=8
)


def plain_f1(rows, labels, threshold):
    """F1 by the book, one class alone by its share."""
    marks = {True: [], False: []}
    for row, label in zip(rows, labels, strict=True):
        marks[label is not None].append(first_flagged(row, threshold) == label)
    shares = [sum(m) / len(m) for m in marks.values() if m]
    return len(shares) / sum(1 / s for s in shares) if all(shares) else 0.0


@given(solutions)
def test_the_best_threshold_is_best(drawn):
    rows = [row for row, _ in drawn]
    labels = [None if place < 0 else min(place, len(row) - 1) for row, place in drawn]
    chosen = best_threshold(rows, labels)
    if all(label is None for label in labels):
        assert chosen == 0.5
        return
    tried = [plain_f1(rows, labels, k / 12 - 0.05) for k in range(16)]
    assert plain_f1(rows, labels, chosen) == pytest.approx(max(tried))
    found = first_wrong_f1(rows, labels, chosen)
    if found.f1 is not None:
        assert found.f1.value == pytest.approx(plain_f1(rows, labels, chosen))


def test_a_solution_has_no_say_in_its_own_threshold():
    """Changing the labels of one part changes none of the thresholds that judge it."""
    rng = random.Random(3)
    rows = [[rng.random() for _ in range(3)] for _ in range(20)]
    labels = [rng.choice([None, 0, 1, 2]) for _ in rows]
    parts = [i % 2 for i in range(20)]
    found = calibrated_f1(rows, labels, parts)
    own = {
        part: best_threshold(
            *zip(
                *[(r, a) for r, a, p in zip(rows, labels, parts, strict=True) if p != part],
                strict=True,
            )
        )
        for part in (0, 1)
    }
    wanted = tuple(
        first_flagged(r, own[p]) == a for r, a, p in zip(rows, labels, parts, strict=True)
    )
    assert found.found == wanted
    # Scores without a meaning: chosen on the test part itself, the threshold flatters.
    flattered = first_wrong_f1(rows, labels, best_threshold(rows, labels))
    assert flattered.f1.value >= found.f1.value


def test_one_part_alone_is_judged_by_one_half():
    assert calibrated_f1([[0.4], [0.6]], [0, None], [7, 7]).found == (True, True)


# --- published files


def write(tmp_path, rows):
    import json

    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_published_solutions_become_rows(tmp_path):
    big = {"id": "word_sorting-1", "task": "word_sorting", "input": "b a", "steps": ["x", "y", "z"]}
    rows = [big | {"mistake_index": 1}, big | {"id": "word_sorting-2", "mistake_index": None}]
    made = solution_rows(load("bigbench_mistake", write(tmp_path, rows)))
    assert [row["labels"] for row in made] == [[1, 0, None], [1, 1, 1]]
    assert [row["first_wrong"] for row in made] == [1, None]
    assert made[0]["meta"] == {"id": "word_sorting-1", "subset": "word_sorting"}
    assert made[0]["prompt"][0]["content"] == "b a"

    start = "model_output_solution_"
    grade = {"uuid": "u", "question": "q", "question_type": "POT", "model_output_steps": ["x", "y"]}
    wrong = grade | {f"{start}correctness": "wrong", f"{start}first_error_step": "1"}
    right = grade | {
        "uuid": "v",
        f"{start}correctness": "correct",
        f"{start}first_error_step": "N/A",
    }
    made = solution_rows(load("mr_gsm8k", write(tmp_path, [wrong, right])))
    assert [row["labels"] for row in made] == [[0, None], [1, 1]]

    for grade in ("incorrect", "", None):
        path = write(tmp_path, [wrong | {f"{start}correctness": grade}])
        with pytest.raises(UserError, match=r"_correctness' is .*; expected correct, wrong"):
            load("mr_gsm8k", path)

    bench = {"id": "gsm8k-0", "problem": "q", "steps": ["x", "y"]}
    rows = [bench | {"label": 1}, bench | {"id": "gsm8k-1", "label": -1}]
    made = solution_rows(load("processbench", write(tmp_path, rows)))
    assert [row["labels"] for row in made] == [[1, 0], [1, 1]]
    assert made[0]["meta"]["subset"] == "gsm8k"


def test_ties_in_the_f1_go_to_the_threshold_nearest_to_a_half():
    # Every threshold above 0.1 and up to 0.9 judges both rightly.
    assert best_threshold([[0.9, 0.1], [0.9]], [1, None]) == pytest.approx(0.5)
    pairs = itertools.product([0.2, 0.4], [0.7])
    for low, high in pairs:
        assert low < best_threshold([[high, low], [high]], [1, None]) <= high


def test_labels_and_halves_by_hand():
    assert labels_of(0, 1) == [0]
    assert labels_of(2.0, 4) == [1, 1, 0, None]
    assert labels_of(None, 3) == [1, 1, 1]
    for place, count in ((3, 3), (-1, 3), (True, 3), (0.5, 3), (float("nan"), 3), (None, 0)):
        with pytest.raises(ArgumentError, match=r"first_wrong|count"):
            labels_of(place, count)
    keys = [f"q{i % 7}" for i in range(20)]
    found = halves(keys)
    assert halves(keys[::-1]) == found[::-1]
    by_key = {key: {half for k, half in zip(keys, found, strict=True) if k == key} for key in keys}
    assert all(len(own) == 1 for own in by_key.values())
    assert sorted(next(iter(own)) for own in by_key.values()) == [0, 0, 0, 0, 1, 1, 1]
    judged = calibrated_f1([[0.4], [0.9], [0.6], [0.9]], [0, None, 0, None], [0, 0, 1, 1])
    assert judged.thresholds[0] == judged.thresholds[1] > 0.6
    assert judged.thresholds[2] == judged.thresholds[3] < 0.9
