"""Procedural arithmetic: right answers, a held-out side that training never meets, the dial."""

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from burnish.errors import UserError
from burnish.tasks import LEVELS, Arithmetic, ArithmeticTasks, Expression, Part, TaskSet


def key_of(task) -> str:
    return Expression(tuple(task.fields["operands"]), tuple(task.fields["operators"])).key


expressions = st.integers(2, 6).flatmap(
    lambda terms: st.builds(
        Expression,
        st.tuples(*[st.integers(0, 99)] * terms),
        st.tuples(*[st.sampled_from(["+", "-", "*", "//"])] * (terms - 1)),
    )
)


@pytest.mark.parametrize(
    ("operands", "operators", "value"),
    [
        ((3, 5), ("+",), 8), ((2, 3, 4), ("+", "*"), 14), ((20, 3, 4), ("-", "*"), 8),
        ((17, 5), ("//",), 3), ((7, 2, 3, 1), ("//", "*", "-"), 8), ((1, 2, 3), ("-", "-"), -4),
        ((4, 0), ("//",), None),
    ],
)  # fmt: skip
def test_worked_values(operands, operators, value):
    assert Expression(operands, operators).value == value


@settings(deadline=None)
@given(expressions)
def test_value_agrees_with_python(expression):
    try:
        expected = eval(expression.text)  # our own digits and operators
    except ZeroDivisionError:
        expected = None
    assert expression.value == expected


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_answers_can_be_recomputed_and_held_out_is_never_trained(level):
    tasks = ArithmeticTasks(Arithmetic(level=level), seed=3)
    held_out = {key_of(task) for task in tasks.held_out()}
    assert len(held_out) >= 10
    for index in range(3000):
        task = tasks.train(index)
        value = Expression(tuple(task.fields["operands"]), tuple(task.fields["operators"])).value
        assert task.fields["answer"] == str(value)
        assert value >= 0
        assert key_of(task) not in held_out


def test_every_one_digit_sum_is_on_exactly_one_side():
    tasks = ArithmeticTasks(Arithmetic(level=1), seed=0)
    trained = {tuple(tasks.train(index).fields["operands"]) for index in range(5000)}
    held_out = {tuple(task.fields["operands"]) for task in tasks.held_out()}
    assert not trained & held_out
    assert trained | held_out == {(a, b) for a in range(10) for b in range(10)}
    assert {(b, a) for a, b in held_out} == held_out


@settings(max_examples=10, deadline=None)  # each lists every question of its parts
@given(
    seed=st.integers(0, 2**62), index=st.integers(0, 10**12),
    share=st.sampled_from([0.05, 0.2, 0.5, 0.9]), examples=st.integers(0, 3),
)  # fmt: skip
def test_same_index_same_task_and_no_held_out_question_in_sight(seed, index, share, examples):
    config = Arithmetic(level=2, held_out_share=share, examples=examples)
    tasks, again = ArithmeticTasks(config, seed), ArithmeticTasks(config, seed)
    assert tasks.train(index) == again.train(index)
    all_held_out = tasks.held_out()
    held_out = {task.fields["question"] for task in all_held_out}
    examples_of_held_out = [m for task in all_held_out[:5] for m in task.messages[:-1]]
    for shown in (*tasks.train(index).messages, *examples_of_held_out):
        assert shown.content.partition("?")[0] + "?" not in held_out


def test_held_out_is_the_same_for_every_seed_and_limits_are_prefixes():
    config = Arithmetic(level=2, examples=2)
    one, other = ArithmeticTasks(config, seed=1), ArithmeticTasks(config, seed=2)
    assert one.held_out() == other.held_out()
    assert one.held_out(20) == one.held_out()[:20]
    assert [t.id for t in one.sample(5)] == [t.id for t in other.sample(5)]
    assert one.sample(5) != other.sample(5)


def test_held_out_keeps_the_proportions_of_the_mixture():
    shown = ArithmeticTasks(Arithmetic(level=2), seed=0).held_out(20)
    parts = [task.fields["part"] for task in shown]
    assert {part: parts.count(part) for part in parts} == {
        "1-digit +": 8, "1-digit *": 4, "1-digit -": 4, "2-digit +": 4,
    }  # fmt: skip


def test_training_keeps_the_proportions_of_the_mixture():
    parts = [t.fields["part"] for t in ArithmeticTasks(Arithmetic(level=2), seed=0).sample(2000)]
    assert abs(parts.count("1-digit +") / 2000 - 0.4) < 0.05


def test_prompt_styles():
    mix = (Part(operators=("*",)),)
    bare = ArithmeticTasks(Arithmetic(mix=mix, instruction=""), seed=1).train(0)
    told = ArithmeticTasks(Arithmetic(mix=mix, system="Be brief."), seed=1).train(0)
    assert bare.prompt == bare.fields["question"]
    assert told.prompt == f"{bare.prompt} Answer with only the number."
    assert [m.role for m in told.messages] == ["system", "user"]
    assert bare.fields["level"] is None


def test_examples_are_solved_and_differ_from_the_question():
    tasks = ArithmeticTasks(Arithmetic(level=1, examples=3), seed=5)
    for index in range(50):
        task = tasks.train(index)
        assert [m.role for m in task.messages] == ["user", "assistant"] * 3 + ["user"]
        shown = [m.content for m in task.messages[:-1:2]]
        answers = [m.content for m in task.messages[1::2]]
        assert not any(task.fields["question"] in text for text in shown)
        assert len(set(shown)) == 3
        for text, answer in zip(shown, answers, strict=True):
            a, b = text.split("What is ")[1].split("?")[0].split(" + ")
            assert int(a) + int(b) == int(answer)


def test_labels_hide_the_answer_from_judges():
    shown = ArithmeticTasks(Arithmetic(), seed=0).train(0).for_judge().fields
    assert "answer" not in shown
    assert "value" not in shown
    assert shown["operator"] == "+"


def test_negative_answers_only_when_asked_for():
    mix = (Part(operators=("-",)),)
    some = ArithmeticTasks(Arithmetic(mix=mix, negative=True), seed=0).sample(300)
    assert min(task.fields["value"] for task in some) < 0
    none = ArithmeticTasks(Arithmetic(mix=mix), seed=0).sample(300)
    assert min(task.fields["value"] for task in none) == 0


def test_fingerprint_follows_settings_and_not_the_seed():
    def fingerprint(seed=0, **chosen):
        return ArithmeticTasks(Arithmetic(**chosen), seed).fingerprint

    assert fingerprint(level=1) == fingerprint() == fingerprint(seed=9)
    others = [{"level": 2}, {"instruction": ""}, {"examples": 1}, {"held_out_share": 0.3}]
    assert len({fingerprint(**other) for other in [{}, *others]}) == 5


def test_no_held_out_share_holds_nothing_out():
    assert ArithmeticTasks(Arithmetic(held_out_share=0.0), seed=0).held_out() == []


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"level": 2, "mix": (Part(),)}, "level: got 2, expected either it or mix"),
        ({"mix": ({"digits": (1, 2, 3)},)}, r"digits: got \(1, 2, 3\), expected one number, or 2"),
        (
            {"mix": (Part(operators=("-",), digits=(1, 3)),)},
            "part '1-digit,3-digit -': no answer of 0 or more",
        ),
        (
            {"mix": (Part(operators=("-",), digits=(1, 2)),)},
            "part '1-digit,2-digit -': 0 of 0 questions",
        ),
        ({"held_out_share": 0.001}, "questions held out; expected some on both sides"),
    ],
)
def test_settings_that_cannot_work(chosen, message):
    with pytest.raises(UserError, match=message) as caught:
        ArithmeticTasks(Arithmetic(**chosen), seed=0)
    assert "\n" not in str(caught.value)


def test_tasks_survive_json():
    tasks = ArithmeticTasks(Arithmetic(level=6), seed=0)
    assert isinstance(tasks, TaskSet)
    for task in tasks.sample(20):
        assert msgspec.json.decode(msgspec.json.encode(task), type=type(task)) == task
        assert set(task.fields) == tasks.fields
