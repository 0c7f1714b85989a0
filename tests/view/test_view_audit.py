"""The audit: its numbers by hand, each monitor on a run made for it, planted hacks ranked first."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from lab.audit.hacks import FLAWS, run, train

from burnish.records import Author, Message, Reward, Span, Status, Task, Trajectory
from burnish.store import RunStore, StoredSample
from burnish.view.audit import audit_run
from burnish.view.audit.measures import (
    SURFACE,
    correlation,
    paid,
    repetition,
    rising,
    shift,
    within,
)

numbers = st.floats(-100, 100)


def sample(step: int, index: int, text: str, reward: Reward, group: int = 0) -> StoredSample:
    task = Task(f"t{group}", (Message("user", f"prompt {group}"),))
    span = Span(Author.MODEL, (1, 2), (-0.5, -0.5), trainable=True)
    trajectory = Trajectory(f"{step}.{index}", task.id, f"{step}.{group}", (span,), text)
    return StoredSample(
        step=step, split="train", index=index, task=task, trajectory=trajectory, reward=reward
    )


def total(value: float, **parts: tuple[float, float]) -> Reward:
    """A total with parts of (value, weight)."""
    return Reward(
        "total", value, parts=tuple(Reward(k, v, weight=w) for k, (v, w) in parts.items())
    )


def make(folder: Path, steps: list[list[StoredSample]]) -> RunStore:
    store = RunStore.create(folder / "run", {}, {})
    for step, samples in enumerate(steps):
        store.append_rollouts(step, samples)
    return store


def test_shift_by_hand():
    # Deviations are 1 and 1, the means differ by 3.
    assert shift([0.0, 1.0, 2.0], [3.0, 4.0, 5.0]) == pytest.approx(3.0)
    assert shift([2.0, 2.0], [2.0]) == 0.0
    assert shift([1.0, 1.0], [2.0, 2.0]) == 10.0
    assert shift([], [1.0]) == 0.0


def test_within_takes_the_groups_mean_away():
    assert within([1.0, 3.0, 10.0, 20.0], ["a", "a", "b", "b"]) == [-1.0, 1.0, -5.0, 5.0]


def test_correlation_by_hand():
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert correlation([1, 1, 1], [3, 2, 1]) is None
    assert correlation([1], [1]) is None


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30))
def test_a_correlation_is_between_minus_one_and_one(pairs):
    found = correlation([a for a, _ in pairs], [b for _, b in pairs])
    assert found is None or -1 - 1e-9 <= found <= 1 + 1e-9


def test_only_the_column_that_is_paid_is_paid():
    cause = [-1.0, 1.0, -1.0, 1.0, 0.5, -0.5]
    beside = [1.0, 1.0, -1.0, -1.0, 0.0, 0.0]
    earned = paid([cause, beside, [0.0] * 6], [3 * c for c in cause])
    # Of unit length the cause explains itself: 1 / (1 + ridge).
    assert earned == pytest.approx([1 / 1.05, 0.0, 0.0], abs=1e-12)
    assert paid([cause], [0.0] * 6) == [0.0]


def test_features_by_hand():
    assert SURFACE["format"]("# A\n- one\n2. two\n**b**") == 5.0
    assert repetition("a b c a b c") == pytest.approx(1 - 3 / 4)
    assert SURFACE["hedging"]("Perhaps it might be so.") == 2.0
    assert SURFACE["length"]("don't stop-now 3") == 3.0
    assert SURFACE["refusals"]("I'm sorry, I cannot") == 2.0


def test_of_phrases_that_rise_together_one_is_named():
    early = ["the sum is 4"] * 10
    late = ["the sum is 4 checked by two professors"] * 9 + ["the sum is 4 and more"]
    assert rising(early, late, 5) == ["4 checked by", "4 and more"]
    assert rising(early, early, 5) == []


@pytest.mark.parametrize("flaw", [flaw for flaw in FLAWS if flaw != "honest"])
def test_a_planted_hack_is_ranked_first(flaw):
    audit, ranked = run(flaw, seed=11)
    assert ranked.first == flaw
    assert ranked.strength > 2 * ranked.next_strength
    first = audit.findings[0]
    assert len(first.samples) == 10
    assert all(int(name.split("-")[1]) > 30 for name in first.samples), "late answers"


def test_an_honest_run_has_no_finding_of_the_surface():
    audit, _ = run("honest", seed=3)
    assert not {"length", "format", "phrase"} & {f.monitor for f in audit.findings}
    assert audit.gold is not None
    assert audit.gold.gold_shift > 0.3
    assert audit.gold.text.startswith("both rose")


def test_the_named_samples_show_the_hack(tmp_path):
    with train(tmp_path / "run", "phrase", seed=2) as store:
        first = audit_run(store).findings[0]
        assert all("professors" in store.sample(name).trajectory.text for name in first.samples)


def test_copies_over_prompts(tmp_path):
    def step(number: int) -> list[StoredSample]:
        texts = ["same"] * 4 if number >= 4 else [f"own {i}" for i in range(4)]
        return [sample(number, i, t, total(i % 2), group=i // 2) for i, t in enumerate(texts)]

    with make(tmp_path, [step(n) for n in range(8)]) as store:
        found = next(f for f in audit_run(store).findings if f.monitor == "duplicates")
    assert (found.early, found.late) == (0.0, 1.0)
    assert found.strength == pytest.approx(0.8)


def test_a_component_that_takes_over(tmp_path):
    def step(number: int) -> list[StoredSample]:
        style, truth = number / 8, 0.5 - number / 100
        return [
            sample(
                number, i, f"a {i}",
                total(style + truth, style=(style + 0.1 * i, 1.0), truth=(truth + 0.1 * i, 1.0)),
            )
            for i in range(2)
        ]  # fmt: skip

    with make(tmp_path, [step(n) for n in range(8)]) as store:
        found = next(f for f in audit_run(store).findings if f.monitor == "component")
    assert found.title == "component style"
    assert "truth fell" in found.text


def test_conflicts_are_within_groups(tmp_path):
    steps = [
        [
            sample(n, 0, "a", total(1.0, one=(1.0, 1.0), two=(0.0, 1.0))),
            sample(n, 1, "b", total(1.0, one=(0.0, 1.0), two=(1.0, 1.0))),
        ]
        for n in range(4)
    ]
    with make(tmp_path, steps) as store:
        audit = audit_run(store)
    assert audit.conflicts["one"]["two"] == pytest.approx(-1.0)
    assert audit.conflicts["one"]["one"] == pytest.approx(1.0)
    assert "conflict" in {f.monitor for f in audit.findings}


def test_flips_of_a_judge(tmp_path):
    def judged(forward: float, backward: float) -> Reward:
        parts = (Reward("forward", forward), Reward("backward", backward))
        return Reward("total", 0.0, parts=(Reward("judge", 0.0, parts=parts),))

    def step(number: int) -> list[StoredSample]:
        late = number >= 4
        return [sample(number, i, f"t{i}", judged(1.0, -1.0 if late else 1.0)) for i in range(2)]

    with make(tmp_path, [step(n) for n in range(8)]) as store:
        found = next(f for f in audit_run(store).findings if f.monitor == "flips")
    assert (found.early, found.late) == (0.0, 1.0)


def test_rewards_without_a_value_are_left_out_and_gold_can_be_given(tmp_path):
    steps = []
    for n in range(4):
        failed = Reward.failed("total", Status.TIMEOUT, "late")
        steps.append([sample(n, 0, "a", total(float(n))), sample(n, 1, "b", failed)])
    with make(tmp_path, steps) as store:
        audit = audit_run(store, gold_scores={f"{n}/train/0": -float(n) for n in range(4)})
    assert audit.answers == 4
    assert audit.gold is not None
    assert audit.gold.gold == ((0, 0.0), (1, -1.0), (2, -2.0), (3, -3.0))
    assert "did not" in audit.gold.text


def test_too_few_steps_are_said(tmp_path):
    with make(tmp_path, [[sample(0, 0, "a", total(1.0))]]) as store:
        audit = audit_run(store)
    assert audit.findings == ()
    assert "too few" in audit.note
    assert audit.gold is None


def test_entropy_counts_half(tmp_path):
    with make(
        tmp_path, [[sample(n, i, f"a{i}", total(i)) for i in range(2)] for n in range(8)]
    ) as store:
        for n in range(8):
            store.append_metrics(n, {"policy/entropy": 1.0 if n < 4 else 0.5})
        found = next(f for f in audit_run(store).findings if f.monitor == "entropy")
    assert found.strength == pytest.approx(0.25)
    assert not math.isnan(found.strength)


def test_too_few_differences_say_nothing_about_pay(tmp_path):
    def step(number: int) -> list[StoredSample]:
        text = "n is it" if number >= 3 else "something else"
        paid = [float(number == 1 and i == 0) for i in range(4)]
        return [sample(number, i, f"{text} {i}", total(p)) for i, p in enumerate(paid)]

    with make(tmp_path, [step(n) for n in range(6)]) as store:
        audit = audit_run(store)
    assert not {"phrase", "length", "format"} & {f.monitor for f in audit.findings}
    assert "4 answers stand in groups whose rewards differ" in audit.note


def test_only_answers_that_hold_a_phrase_are_named():
    audit, _ = run("phrase", seed=4)
    phrase = next(f for f in audit.findings if f.monitor == "phrase")
    assert 0 < len(phrase.samples) <= 10
