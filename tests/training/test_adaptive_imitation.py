import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, strategies as st
from method_cases import METHODS, SHOWN
from safetensors.torch import load_file
from training_cases import assert_same, finish, finish_with_stops, outcome, trainer

from burnish.errors import GuardTripped, UserError
from burnish.lm import load_model
from burnish.policy import SFT
from burnish.policy.balance import BalanceState, adapted_coefficient
from burnish.policy.state import PolicyState
from burnish.tasks.base import content_key
from burnish.training.algorithms.sft import SftTerm
from burnish.training.checkpoint import replay
from burnish.training.data import Experts, hold_back
from expert_cases import Endless, finite, graded

ADAPTIVE = {
    "kind": "sft",
    "coefficient": 0.3,
    "batch": 3,
    "schedule": "adaptive",
    "every": 2,
    "held_out": 4,
}
BY_RULE = {**ADAPTIVE, "by": "rule", "rate": 40.0, "gradients_every": 2}
RUN = {
    **METHODS["afrl"],
    "policy": {**METHODS["afrl"]["policy"], "auxiliary": [BY_RULE]},
    "optimiser": {"learning_rate": 1e-2},
}
PLAIN = {"task": SHOWN, "policy": {"auxiliary": [ADAPTIVE]}, "evaluation": {"prompts": 0}}
TOKENIZER = load_model("tiny", device="cpu").tokenizer


def held(tasks, **settings):
    return hold_back(tasks, SFT(0.3, schedule="adaptive", **settings), "demonstration")


def rules(found):
    return sorted(task.fields["rule"] for task in found.tasks)


RULES = ["common"] * 17 + ["odd"] * 2 + ["rare"]
TASKS = finite([graded(i, rule=rule) for i, rule in enumerate(RULES)])


def test_training_tasks_are_held_back_but_never_the_last_of_a_rule():
    found = held(TASKS, by="rule", held_out=4)
    assert rules(found) == ["common", "common", "common", "odd"]
    shown = Experts(TASKS, TOKENIZER, by="rule", exclude=found.keys)
    assert shown.counts == {"common": 14, "odd": 1, "rare": 1}
    drawn = {t.task_id for step in range(60) for t in shown.take(step, 3)}
    assert drawn.isdisjoint(task.id for task in found.tasks)
    assert len(drawn) == 16


def test_at_most_half_are_held_back():
    assert len(held(TASKS, held_out=100).tasks) == 10
    lists = finite([graded(i, rule=["all", f"r{i // 2}"]) for i in range(6)])
    found = held(lists, by="rule", held_out=100)
    assert len(found.tasks) == 3
    assert len({task.fields["rule"][1] for task in found.tasks}) == 3


def test_a_question_asked_twice_is_held_back_or_imitated_never_both():
    twice = finite([graded(i % 5) for i in range(10)])
    found = held(twice, held_out=2)
    shown = Experts(twice, TOKENIZER, exclude=found.keys)
    assert shown.counts == {"": 6}


def copied(pairs):
    """Rows of (question, rule); each row has an id of its own."""
    rows = [graded(number, rule=rule) for number, rule in pairs]
    return finite([msgspec.structs.replace(task, id=f"row{i}") for i, task in enumerate(rows)])


def test_a_question_under_several_rules_counts_for_each_of_them():
    """Held back, it leaves all of them: the only question of a rule stays, whichever row is last."""
    for rows in ([(0, "rare"), (0, "common")], [(0, "common"), (0, "rare")]):
        tasks = copied([*rows, (1, "common")])
        found = held(tasks, by="rule", held_out=9)
        assert [task.messages for task in found.tasks] == [graded(1).messages]
        shown = Experts(tasks, TOKENIZER, by="rule", exclude=found.keys)
        assert shown.counts == {"common": 1, "rare": 1}


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from("abc")), min_size=1, max_size=24))
def test_half_the_questions_of_every_rule_are_left(pairs):
    tasks = copied(pairs)
    asked = {rule: {number for number, other in pairs if other == rule} for _, rule in pairs}
    single = set().union(*(numbers for numbers in asked.values() if len(numbers) == 1))
    if single == {number for number, _ in pairs}:
        with pytest.raises(UserError, match="no stratum has two"):
            held(tasks, by="rule", held_out=100)
        return
    found = held(tasks, by="rule", held_out=100)
    gone = {task.messages for task in found.tasks}
    for numbers in asked.values():
        questions = {graded(number).messages for number in numbers}
        assert 2 * len(questions & gone) <= len(questions)
    turned = dataclasses.replace(tasks, train_tasks=tasks.train_tasks[::-1])
    assert held(turned, by="rule", held_out=100) == found, "rows in another order"


def test_held_out_demonstrations_come_first_and_in_turns():
    out = [graded(100 + i, rule="rare" if i == 9 else "common") for i in range(10)]
    tasks = finite(TASKS.train_tasks)
    tasks = type(tasks)("items", tasks.fields, "v1", 0, tasks.train_tasks, tuple(out))
    found = held(tasks, by="rule", held_out=3)
    assert rules(found) == ["common", "common", "rare"]
    assert {task.id for task in found.tasks} <= {task.id for task in out}
    assert Experts(tasks, TOKENIZER, exclude=found.keys).counts == {"": 20}


def test_the_same_are_held_back_whatever_the_order_of_the_data():
    turned = type(TASKS)("items", TASKS.fields, "v1", 5, TASKS.train_tasks[::-1], ())
    assert held(turned, by="rule").keys == held(TASKS, by="rule").keys
    assert held(Endless(), by="rule", held_out=2).keys


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive")
    trained = trainer(folder, RUN)
    finish(trained)
    return outcome(folder / "run"), folder / "run", trained


def curve(result, name):
    return {point.step: point.value for point in result["metrics"][name]}


def balance_of(folder):
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return PolicyState.from_tensors(load_file(last / "trainer" / "algorithm.safetensors")).balance


def test_the_coefficient_follows_the_held_out_likelihood(whole):
    result, folder, _ = whole
    weights = curve(result, "loss/sft/coefficient")
    nll = curve(result, "loss/sft/held_out_nll")
    assert list(weights) == list(range(6))
    assert list(nll) == [0, 2, 4], "measured every second step"
    assert weights[0] == 0.3, "the start model is its own target"
    now = 0.3
    for step in (2, 4):
        now = adapted_coefficient(now, nll[step], nll[0], 40.0, 0.3 / 4, 3.0)
        assert weights[step] == weights[step + 1] == now
    assert len({weights[0], weights[2], weights[4]}) > 1, "this run must move it"
    assert balance_of(folder) == BalanceState(now, nll[0], 4)


def test_the_term_is_the_coefficient_times_the_nll(tmp_path):
    """The first update of two runs sees the same demonstrations with another weight."""
    terms = []
    for name, target in (("own", 0.0), ("far", 1e-3)):
        table = {**PLAIN, "steps": 1, "policy": {"auxiliary": [{**ADAPTIVE, "target": target}]}}
        finish(trainer(tmp_path, table, run=name))
        result = outcome(tmp_path / name)
        terms.append((curve(result, "loss/sft/coefficient")[0], curve(result, "loss/sft")[0]))
    (own, first), (far, second) = terms
    assert (own, far) == (0.3, 3.0), "far above its target the weight goes to the upper bound"
    assert second == pytest.approx(10 * first, rel=1e-5)


def test_what_is_held_back_is_imitated_by_nothing(whole):
    _, _, trained = whole
    imitation = trained.algorithm.imitation
    keys = {t.task_id for t in imitation.held}
    assert len(keys) == 4
    experts = imitation.experts
    shown = {t.task_id for step in range(50) for t in experts.take(step, 16)}
    assert keys.isdisjoint(shown)
    assert experts.exclude == {content_key(t.messages) for t in held_tasks(trained)}


def held_tasks(trained):
    ids = {t.task_id for t in trained.algorithm.imitation.held}
    return [task for task in trained.tasks.held_out() if task.id in ids]


def test_stopped_and_continued_equals_uninterrupted(tmp_path, whole):
    """Before the first checkpoint, right behind it, and between two of them."""
    more = {"checkpoint": {"every": 3, "keep": 1}}
    finish_with_stops(lambda: trainer(tmp_path, RUN, more), 1, "3 saved", 5)
    assert_same(outcome(tmp_path / "run"), whole[0])
    assert balance_of(tmp_path / "run") == balance_of(whole[1])


def test_a_rate_of_zero_is_the_constant_schedule_bit_for_bit(tmp_path):
    """On held-out tasks nothing is taken from the demonstrations, and measuring moves nothing."""
    constant = {"kind": "sft", "coefficient": 0.3, "batch": 3}
    for name, piece in (("still", {**ADAPTIVE, "rate": 0.0}), ("constant", constant)):
        table = {**PLAIN, "steps": 3, "policy": {"auxiliary": [piece]}}
        finish(trainer(tmp_path, table, run=name))
    still, base = outcome(tmp_path / "still"), outcome(tmp_path / "constant")
    assert still["weights"] == base["weights"]
    assert still["optimiser"] == base["optimiser"]
    more = set(still["metrics"]) - set(base["metrics"])
    assert more == {"loss/sft/coefficient", "loss/sft/held_out_nll"}
    assert balance_of(tmp_path / "constant") is None


def test_demonstrations_of_a_file_are_held_back_where_none_is_held_out(tmp_path):
    shown = tmp_path / "shown.jsonl"
    rows = [{"question": f"{i}?", "answer": "yes"} for i in range(6)]
    shown.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "kind": "file",
        "path": str(shown),
        "prompt": "question",
        "fields": {"demonstration": "answer"},
        "held_out": {"by": "share", "share": 0},
    }
    table = {"experts": {"task": task}, "policy": {"auxiliary": [ADAPTIVE]}, "steps": 1}
    trained = trainer(tmp_path, table)
    finish(trained)
    imitation = trained.algorithm.imitation
    assert len(imitation.held) == 3
    assert imitation.experts.counts == {"": 3}


def test_a_measurement_that_is_not_finite_stops_the_run_and_is_seen_again(tmp_path, monkeypatch):
    trained = trainer(tmp_path, PLAIN)
    measure = SftTerm.measure

    def broken(term, batches, state, step):
        if step == 2:
            with torch.no_grad():
                trained.trainable.module.head_weight[5] = math.nan
        return measure(term, batches, state, step)

    monkeypatch.setattr(SftTerm, "measure", broken)
    with pytest.raises(GuardTripped) as caught:
        finish(trained)
    line, _, place = str(caught.value).partition(" Saved; see it again: burnish replay ")
    assert line.startswith("logprob guard: held-out logprobs is nan at step 3 (samples ")
    assert all(".expert" in sample for sample in caught.value.samples)
    assert "\n" not in line
    assert replay(Path(place)) == line


def test_a_stop_behind_the_measurement_is_seen_again_with_the_weight_of_its_step(
    tmp_path, monkeypatch
):
    """A measured weight of more than float32 holds."""
    trained = trainer(tmp_path, PLAIN)
    measure = SftTerm.measure
    huge = BalanceState(1e40, 1e-3, 0)

    def broken(term, batches, state, step):
        return replace(measure(term, batches, state, step), state=huge)

    monkeypatch.setattr(SftTerm, "measure", broken)
    with pytest.raises(GuardTripped, match="loss guard: sft is inf at step 1") as caught:
        finish(trained)
    line, _, place = str(caught.value).partition(" Saved; see it again: burnish replay ")
    kept = PolicyState.from_tensors(load_file(Path(place) / "algorithm.safetensors"))
    assert kept.balance == huge
    assert replay(Path(place)) == line
