"""Two runs compared prompt by prompt: worked numbers, gaps that are named, and refusals."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings, strategies as st

from burnish.bench import (
    Answered,
    HeldOutRun,
    Method,
    compare,
    differing,
    mcnemar,
    sign_flip,
    statistics,
)
from burnish.errors import UserError
from burnish.records import Message, Task

SETTINGS = {
    "task.kind": "arithmetic", "task.level": 1, "rewards.0.kind": "numeric", "rewards.0.name": "",
    "rewards.0.weight": 1.0, "rewards.0.timeout_s": 1.0, "rewards.1.kind": "length",
    "rewards.1.name": "short", "rewards.1.max": 20, "rewards.1.weight": 0.1, "evaluation.part": "",
    "run.name": "one",
}  # fmt: skip


def task(key, text="What is 1 + 1?"):
    return Task(key, (Message("user", f"{text} ({key})"),), {"answer": "2"})


def held_out(marks, name="a", step=10, **changes):
    """A run whose answer to prompt `key` got `marks[key]`."""
    answers = [
        Answered(task(key), f"{name} says {mark}", mark, "" if mark is not None else "timeout")
        for key, mark in marks.items()
    ]
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return HeldOutRun(name, step, answers, SETTINGS | keys)


def many(both, only_a, only_b, neither):
    """Two runs with these counts of right answers."""
    kinds = [(1.0, 1.0)] * both + [(1.0, 0.0)] * only_a + [(0.0, 1.0)] * only_b
    kinds += [(0.0, 0.0)] * neither
    ids = [f"p{i:03d}" for i in range(len(kinds))]
    first = {key: a for key, (a, _) in zip(ids, kinds, strict=True)}
    second = {key: b for key, (_, b) in zip(ids, kinds, strict=True)}
    return held_out(first), held_out(second, "b")


# --- the tests themselves


def test_mcnemar_by_hand():
    """2 against 8 of 10: 2 (1 + 10 + 45) / 1024 = 112 / 1024."""
    assert mcnemar(2, 8) == 112 / 1024
    assert mcnemar(0, 5) == 2 / 32
    assert mcnemar(0, 6) == 2 / 64
    assert mcnemar(1, 9) == 22 / 1024


def test_mcnemar_without_evidence_is_one():
    assert mcnemar(0, 0) == mcnemar(3, 3) == mcnemar(1, 0) == mcnemar(4, 5) == 1.0


def test_mcnemar_of_thousands_neither_overflows_nor_vanishes():
    assert 0.0 < mcnemar(2400, 2600) < 0.01
    assert mcnemar(2500, 2500) == 1.0
    assert mcnemar(0, 3000) == 0.0  # smaller than the smallest float


@pytest.mark.parametrize(("fewer", "more"), [(4900, 5100), (3, 9000), (4999, 5001), (4000, 6000)])
def test_mcnemar_in_floats_is_the_exact_one(monkeypatch, fewer, more):
    exact = mcnemar(fewer, more)
    monkeypatch.setattr(statistics, "EXACT_ITEMS", 0)
    assert mcnemar(fewer, more) == mcnemar(more, fewer) == pytest.approx(exact, rel=1e-8)


def test_mcnemar_of_a_billion_is_the_normal_tail():
    """One of the largest counts there may be: z = (d - 1) / sqrt(n), two-sided."""
    few, many = 499_950_000, 500_050_000
    z = (many - few - 1) / math.sqrt(few + many)
    assert mcnemar(few, many) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-4)
    assert mcnemar(10**9, 3) == 0.0
    assert mcnemar(10**9, 10**9) == 1.0


def test_sign_flip_by_hand():
    """0.1, 0.2 and 0.3 of one sign: only that pattern and its mirror reach the sum, 2 of 8."""
    assert sign_flip([0.1, 0.2, 0.3]) == 2 / 8
    assert sign_flip([0.1, 0.2, 0.3, 0.0, 0.0]) == 2 / 8
    # -0.1 + 0.2 + 0.3 = 0.4 is reached by it, by all plus (0.6), and by their mirrors.
    assert sign_flip([-0.1, 0.2, 0.3]) == 4 / 8


def test_sign_flip_of_nothing_is_one():
    assert sign_flip([]) == sign_flip([0.0, 0.0]) == 1.0


def test_sign_flip_counts_ties_however_they_were_rounded():
    """The observed pattern ties with itself, though 0.4 + 0.3 + 0.2 is rounded below 0.9."""
    assert sign_flip([-0.4, -0.3, -0.2]) == 2 / 8
    assert sign_flip([-0.4, -0.3, 0.2]) == 4 / 8


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
def test_sign_flip_is_the_share_of_all_patterns(values):
    patterns = list(itertools.product((1, -1), repeat=len(values)))
    reached = sum(
        abs(sum(s * v for s, v in zip(p, values, strict=True))) >= abs(sum(values))
        for p in patterns
    )
    assert sign_flip([v / 10 for v in values]) == pytest.approx(reached / len(patterns))


def test_drawn_sign_patterns_agree_with_mcnemar():
    """Differences of one size: the sign-flip test is the McNemar test, here by 10,000 draws."""
    for only_a, only_b in ((10, 14), (8, 20), (30, 47)):
        drawn = sign_flip([-0.5] * only_a + [0.5] * only_b)
        assert drawn == pytest.approx(mcnemar(only_a, only_b), abs=0.015)


def test_a_drawn_p_value_is_never_zero_and_has_no_side():
    values = [0.5 + 0.01 * i for i in range(50)]
    assert sign_flip(values) == sign_flip([-v for v in values]) == 1 / 10_001


def test_a_p_value_under_no_difference_is_small_rarely():
    rng = random.Random(3)
    found = [sign_flip([rng.gauss(0, 1) for _ in range(10)]) for _ in range(200)]
    assert 2 <= sum(p < 0.05 for p in found) <= 20


# --- two runs


def test_right_and_wrong_answers_by_hand():
    found = compare(*many(both=60, only_a=2, only_b=8, neither=30))
    test = found.test
    assert test.fourfold == (60, 2, 8, 30)
    assert (test.mean_a.value, test.mean_b.value) == (0.62, 0.68)
    assert test.difference.value == pytest.approx(0.06)
    assert (test.method, test.p_value) == (Method.MCNEMAR, 112 / 1024)
    assert found.verdict.startswith("cannot be told apart: B - A is +6.0 points [")
    assert found.verdict.endswith("p = 0.11, over 100 prompts")


def test_the_better_run_is_named_from_either_side():
    a, b = many(both=20, only_a=1, only_b=12, neither=7)
    there, back = compare(a, b), compare(b, a)
    assert there.test.p_value == back.test.p_value == 2 * 14 / 2**13
    assert there.test.difference.value == -back.test.difference.value == 11 / 40
    assert there.test.difference.low == pytest.approx(-back.test.difference.high)
    assert there.verdict.startswith("B is better by 27.5 points [")
    assert there.verdict.removeprefix("B") == back.verdict.removeprefix("A")
    assert there.verdict.endswith("p = 0.0034, over 40 prompts")


@settings(max_examples=15, deadline=None)
@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=4), st.tuples(st.floats(-2, 2), st.floats(-2, 2)),
        min_size=1, max_size=25,
    ),
    st.randoms(),
)  # fmt: skip
def test_neither_order_nor_sides_matter(marks, rng):
    """Graded marks: shuffled prompts give the same numbers, swapped runs the mirrored ones."""
    a, b = ({key: pair[side] for key, pair in marks.items()} for side in (0, 1))
    shuffled = list(b)
    rng.shuffle(shuffled)
    there = compare(held_out(a), held_out(b, "b")).test
    again = compare(held_out(a), held_out({key: b[key] for key in shuffled}, "b")).test
    back = compare(held_out(b, "b"), held_out(a)).test
    assert there == again
    assert there.p_value == back.p_value
    assert there.difference.value == pytest.approx(-back.difference.value)
    assert there.difference.low == pytest.approx(-back.difference.high)
    assert there.mean_a == back.mean_b


def test_graded_marks_take_the_sign_flip_test_and_their_own_unit():
    a = {f"p{i:02}": 0.25 for i in range(10)}
    b = {f"p{i:02}": 0.5 + 0.01 * i for i in range(10)}
    found = compare(held_out(a), held_out(b, "b"))
    assert (found.test.method, found.test.fourfold) == (Method.SIGN_FLIP, None)
    assert found.test.p_value == 2 / 2**10
    assert found.test.difference.value == pytest.approx(0.295)
    assert found.verdict.startswith("B is better by 0.295 [0.")
    assert "points" not in found.verdict


def test_a_run_against_itself():
    run = held_out({"x": 1.0, "y": 0.0, "z": 1.0})
    found = compare(run, run)
    assert found.test.p_value == 1.0
    assert found.test.difference.value == 0.0
    assert found.most_changed(3) == []
    assert found.verdict == "too few to say: every mark is the same, over 3 prompts"


def test_six_prompts_are_too_few_whatever_the_test_says():
    a = {f"p{i}": -1.0 for i in range(6)}
    b = {f"p{i}": 0.0 for i in range(6)}
    found = compare(held_out(a), held_out(b, "b"))
    assert found.test.p_value < 0.05
    assert found.test.difference[:3] == (1.0, 1.0, 1.0)
    assert found.verdict == "too few to say: B - A is +1, p = 0.031, over 6 prompts"


def test_prompts_of_one_run_and_prompts_without_a_mark_are_named():
    a = held_out({"p1": 1.0, "p2": None, "p3": 0.0, "p4": None, "p5": 1.0})
    b = held_out({"p5": None, "p4": None, "p3": 1.0, "p2": 1.0, "p1": 1.0, "p9": 0.0}, "b")
    found = compare(a, b)
    assert [pair.id for pair in found.pairs] == ["p1", "p3"]
    assert (found.only_a, found.only_b) == ([], ["p9"])
    assert found.unmarked == [
        ("p2", "timeout", ""),
        ("p4", "timeout", "timeout"),
        ("p5", "", "timeout"),
    ]
    assert found.test.fourfold == (1, 0, 1, 0)
    assert compare(b, a).only_a == ["p9"]


def test_no_prompt_with_two_marks_is_no_number():
    found = compare(held_out({"x": 1.0, "y": None}), held_out({"x": None, "y": 0.0}, "b"))
    assert (found.test, found.pairs) == (None, [])
    assert found.verdict == "cannot be told apart: no prompt has a mark in both runs"


def test_prompts_that_changed_most_in_either_direction():
    a = {"p1": 0.0, "p2": 0.5, "p3": 0.9, "p4": 1.0, "p5": 0.3, "p6": 0.0}
    b = {"p1": 0.4, "p2": 0.5, "p3": 0.0, "p4": 0.9, "p5": 0.4, "p6": 0.4}
    changed = compare(held_out(a), held_out(b, "b")).most_changed(2)
    assert [pair.id for pair in changed] == ["p1", "p6", "p4", "p3"]
    assert changed[0].answer_b == "b says 0.4"
    assert changed[0].prompt == "What is 1 + 1? (p1)"


# --- what may be compared

MARKS = {"x": 1.0, "y": 0.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation__part": "short"}, "the total of all rewards and the reward 'short'"),
        ({"rewards__1__max": 40}, r"their rewards differ \(rewards.short.max: 20 and 40\)"),
        ({"rewards__1__weight": 0.2}, r"rewards.short.weight: 0.1 and 0.2"),
        ({"rewards__2__kind": "regex"}, r"rewards.regex.kind: nothing and 'regex'"),
    ],
)
def test_other_scores_and_rewards_are_refused(changes, message):
    with pytest.raises(UserError, match=message) as raised:
        compare(held_out(MARKS), held_out(MARKS, "b", **changes))
    assert str(raised.value).startswith("runs 'a' and 'b' cannot be compared: ")
    assert "\n" not in str(raised.value)


def test_deadlines_and_the_order_of_rewards_define_no_reward():
    swapped = {
        key.replace("rewards.0", "rewards.2"): value
        for key, value in SETTINGS.items()
        if key != "rewards.0.timeout_s"
    }
    b = HeldOutRun("b", 0, held_out(MARKS).answers, swapped)
    assert compare(held_out(MARKS), b).test.p_value == 1.0


def test_a_score_of_one_reward_does_not_depend_on_the_others():
    one = {"evaluation__part": "numeric"}
    other = {**one, "rewards__1__max": 99, "rewards__0__weight": 5.0}
    assert compare(held_out(MARKS, **one), held_out(MARKS, "b", **other)).test.fourfold.both == 1
    with pytest.raises(UserError, match=r"rewards.numeric.tolerance: nothing and 0.1"):
        compare(held_out(MARKS, **one), held_out(MARKS, "b", **one, rewards__0__tolerance=0.1))


def test_a_function_counts_by_its_code_not_by_its_folder():
    def run(name, folder, digest):
        code = {
            "rewards.0.kind": "function",
            "rewards.0.path": f"{folder}mine.py:good",
            "files.mine.py": digest,
        }
        return HeldOutRun(name, 0, held_out(MARKS).answers, SETTINGS | code)

    assert compare(run("a", "", "1f"), run("b", "/other/place/", "1f")).test.p_value == 1.0
    with pytest.raises(UserError, match=r"contents of mine.py: '1f' and '2c'"):
        compare(run("a", "", "1f"), run("b", "", "2c"))


def test_other_tasks_are_refused():
    with pytest.raises(UserError, match=r"\(task.level: 1 and 2; no prompt in common\)"):
        compare(held_out(MARKS), held_out({"z": 1.0}, "b", task__level=2))
    with pytest.raises(UserError, match=r"held-out tasks differ \(task.level: 1 and 2\)"):
        compare(held_out(MARKS), held_out({"x": 1.0}, "b", task__level=2))
    other = HeldOutRun("b", 0, [Answered(task("x", "What is 2 + 2?"), "4", 1.0)], SETTINGS)
    with pytest.raises(UserError, match="prompt 'x' is not the same in both"):
        compare(held_out(MARKS), other)
    with pytest.raises(UserError, match="no prompt in common"):
        compare(held_out(MARKS), held_out({}, "b"))


def test_the_same_prompts_after_training_on_other_data_are_compared():
    other = held_out(MARKS, "b", task__level=2, task__path="elsewhere/rows.jsonl")
    assert compare(held_out(MARKS), other).test.p_value == 1.0


def test_what_differs_leaves_out_where_a_run_lives():
    changes = differing(SETTINGS, SETTINGS | {"run.name": "two", "task.level": 3, "steps": 9})
    assert list(changes) == ["task.level", "steps"]
    assert changes["task.level"] == (1, 3)
    assert changes["steps"] == (None, 9)


def test_less_is_better_where_marks_are_losses():
    def run(name, marks):
        answers = [Answered(task(f"p{i}"), "", mark) for i, mark in enumerate(marks)]
        return HeldOutRun(name, 5, answers, SETTINGS, "loss")

    low, high = [1.0 + 0.01 * i for i in range(12)], [2.0 + 0.02 * i for i in range(12)]
    assert compare(run("a", high), run("b", low)).verdict.startswith("B is better by 1.0")
    assert compare(run("a", low), run("b", high)).verdict.startswith("A is better by 1.0")


def test_scores_of_different_kinds_are_not_compared():
    answers = [Answered(task("x"), "", 1.0)]
    loss, bits = (HeldOutRun("a", 0, answers, SETTINGS, m) for m in ("loss", "bits_per_byte"))
    with pytest.raises(UserError, match=r"by loss, .* by bits_per_byte"):
        compare(loss, bits)
