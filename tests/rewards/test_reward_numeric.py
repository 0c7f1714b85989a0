"""Numbers read exactly, from the places where models put them."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from reward_cases import a_task, score, statuses, values

from burnish.records import Message, Task
from burnish.rewards import (
    Mathematics,
    MathematicsConfig,
    Numeric,
    NumericConfig,
    normalize_numeric_answer,
)
from burnish.rewards.checks.numeric import last_number, read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42), ("-7", -7), ("+7", 7), ("\u22127", -7), ("1,234,567.5", Fraction("1234567.5")),
        ("1{,}234", 1234), ("12\\,000", 12000), (".5", Fraction(1, 2)), ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)), ("1 1/2", Fraction(3, 2)), ("1\\frac{1}{2}", Fraction(3, 2)),
        ("-1 \\frac12", Fraction(-3, 2)), ("1\\,\\tfrac{1}{2}", Fraction(3, 2)),
        ("1\\ 1/2", Fraction(3, 2)), ("10,\\!000", 10000), ("\\frac{3}{4}", Fraction(3, 4)),
        ("-\\dfrac{3}{4}", Fraction(-3, 4)), ("\\frac34", Fraction(3, 4)), ("$18$", 18),
        ("\\$18", 18), ("-$5", -5), ("1.5e3", 1500), ("3 \\times 10^{5}", 300000),
        ("2.5*10^-2", Fraction(1, 40)), ("**12**", 12), ("12.", 12),
    ],
)  # fmt: skip
def test_numbers_are_read_exactly(text, value):
    assert read_number(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        "", "twelve", "1 2", "1\\,2", "9^9^9^9", "12 apples", "1/0", "x=3", "1e99999", "9" * 401,
        "1" * 10**6, "nan",
    ],
)  # fmt: skip
def test_what_is_not_a_readable_number_is_none(text):
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 + 5 = 12", 12), ("between 10-15", 15), ("between 10\u201315", 15),
        ("it costs $1,250.50 in all.", Fraction("1250.5")), ("a list: 1,2,3", 3),
        ("so -4 it is", -4), ("about 3/4 of them", Fraction(3, 4)),
        ("so $1\\frac{1}{2}$ cups", Fraction(3, 2)),
    ],
)  # fmt: skip
def test_the_last_number_of_a_sentence(text, value):
    assert last_number(text).value == value


@given(st.fractions(max_denominator=10**6), st.booleans())
def test_written_numbers_come_back(number, latex):
    top, below = number.numerator, number.denominator
    text = f"\\frac{{{top}}}{{{below}}}" if latex else f"{top:,}/{below}"
    assert read_number(text).value == number


@given(st.integers(-(10**30), 10**30))
def test_thousands_separators_do_not_change_a_number(number):
    for text in (f"{number:,}", str(number), f"the total is {number:,}."):
        assert last_number(text).value == number


@given(st.text(max_size=200))
def test_reading_is_total(text):
    read_number(text)
    last_number(text)


def test_the_answer_is_found_where_models_put_it():
    task = a_task(answer="She has <<2*6=12>>12 left.\n#### 12")
    scorer = Numeric(NumericConfig())
    texts = [
        "12", "The answer is 12.", "First 3, then \\boxed{12} (not 13)", "<answer>12</answer> 99",
        "#### 12", "7 + 5 = 12", "The answer is 13.", "I do not know", "",
        "The answer is not obvious. So 5 + 7 = 12", "The answer is 12 apples for 3 days",
        "The answer is 3 + 9 = 12", "Option a: 5, but 12",
    ]  # fmt: skip
    rewards = score(scorer, task, *texts)
    assert values(rewards) == [1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1]
    evidence = rewards[2].evidence[0]
    assert evidence.observation == "extracted '12' (box); reference '12'"
    assert evidence.visibility == "oracle"


@pytest.mark.parametrize(
    ("question", "answer", "right", "echoes"),
    [
        (
            "What is 0 - 0? Answer with only the number.",
            "0",
            ["0", "0 - 0 = 0", "0 - 0 is 0", "zero minus zero: 0", "0.", "it is 0, as 0 - 0 is 0"],
            ["0 - 0 is a contradictory term", "What is 0 - 0?", "0 \u2212 0", "0 - 0, so 0 - 0"],
        ),
        ("What is 7 + 0?", "7", ["7 + 0 = 7", "7", "0 + 7 is 7"], []),
        ("What is 1 1/2 + 0?", "3/2", ["1 1/2", "1 1/2 + 0 = 1 1/2"], []),
        ("What is the square root of 1?", "1", ["The square root of 1 is 1."], ["What is the square root of 1"]),
        ("Tom has 5 apples and eats none. How many has he?", "5", ["Tom has 5 apples."], []),
        ("Take 1,000 and 20 away from 1,020: what is left of 0?", "20", [], ["1,000 and 20"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reward", [Numeric(NumericConfig()), Mathematics(MathematicsConfig())])
def test_a_text_that_only_repeats_the_question_earns_nothing(
    question, answer, right, echoes, reward
):
    task = Task("t", (Message("user", question),), {"answer": answer})
    assert values(score(reward, task, *right, *echoes)) == [1] * len(right) + [0] * len(echoes)
    boxed = [f"\\boxed{{{answer}}}"]
    assert values(score(reward, task, *boxed)) == [1], "a marked answer is one"


@pytest.mark.parametrize(
    ("gold", "texts", "expected"),
    [
        (
            "2",
            [
                "\\boxed{2\\text{ cm}}", "\\boxed{2 cm^2}", "\\boxed{2^{\\circ}}",
                "\\boxed{x_{1} = 2}", "\\boxed{\\textbf{2}}", "<answer>2 apples</answer>",
                "\\boxed{\\text{Total} = \\$2}",
            ],
            1.0,
        ),
        (
            "2",
            [
                "\\boxed{10^{10^{2}}}", "\\boxed{1 + 2}", "\\boxed{2x}", "\\boxed{2\\pi}",
                "<answer>1 or 2</answer>",
            ],
            0.0,
        ),
        ("5", ["\\boxed{1, 2, 3, 4, 5}", "<answer>3, then 5</answer>"], 0.0),
        ("3/2", ["\\boxed{1\\frac{1}{2}}", "\\boxed{1 1/2}", "\\boxed{1.5}"], 1.0),
        ("11/2", ["\\boxed{1\\frac{1}{2}}", "\\boxed{1 1/2}"], 0.0),
    ],
)  # fmt: skip
def test_a_marked_answer_is_a_number_and_nothing_more(gold, texts, expected):
    rewards = score(Numeric(NumericConfig()), a_task(answer=gold), *texts)
    assert values(rewards) == [expected] * len(texts)


def test_the_whole_text_is_held_to_the_same():
    whole = Numeric(NumericConfig(where="whole"))
    assert values(score(whole, a_task(answer=5), "5", "5 km", "not 4 but 5")) == [1, 1, 0]


def test_percent_and_tolerance():
    half = a_task(answer="0.5")
    assert values(score(Numeric(NumericConfig()), half, "50%", "0.5", "50")) == [1, 1, 0]
    face = Numeric(NumericConfig(percent="face"))
    assert values(score(face, half, "50%", "0.5%")) == [0, 1]
    third = a_task(answer="1/3")
    assert values(score(Numeric(NumericConfig()), third, "0.333")) == [0]
    assert values(score(Numeric(NumericConfig(relative=0.01)), third, "0.333", "0.34")) == [1, 0]
    assert values(score(Numeric(NumericConfig(absolute=1)), a_task(answer=10), "11", "12")) == [
        1,
        0,
    ]


def test_a_reference_without_a_number_abstains():
    rewards = score(Numeric(NumericConfig()), a_task(answer="blue"), "4")
    assert statuses(rewards) == ["abstain"]
    assert statuses(score(Numeric(NumericConfig()), a_task(), "4")) == ["abstain"]


def test_hostile_numbers_are_refused_in_no_time():
    hostile = [
        "9" * 1_000_000, "\\boxed{" + "9" * 1_000_000 + "}", "1," * 500_000 + "1",
        "1,234" * 200_000, "1 " * 5_000_000, "1e999999999", "-" * 1_000_000, "\\frac{" * 300_000,
        "9/" * 500_000,
    ]  # fmt: skip
    started = time.process_time()
    rewards = score(Numeric(NumericConfig()), a_task(answer="42"), *hostile)
    assert time.process_time() - started < 10.0
    assert values(rewards) == [0.0] * len(hostile)
    assert all(len(reward.evidence[0].observation) < 400 for reward in rewards)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("work\n#### 1,234.", "1234"), ("so \\boxed{ 1 2 } or 9", "12"),
        ("first 3 then 1,500!", "1500"), ("it costs $1,234.50.", "1234.50"),
        ("so \\boxed{\\$7}", "7"), ("none", None), ("####", None),
    ],
)  # fmt: skip
def test_normalized_numeric_answers(text, answer):
    assert normalize_numeric_answer(text) == answer


@given(st.lists(st.sampled_from(["4", "4.0", "8/2", "5", "", "so 4", "4" * 300]), min_size=1))
def test_a_group_is_scored_as_its_answers_are_alone(texts):
    scorer, task = Numeric(NumericConfig()), a_task(answer="4")
    fresh = [score(Numeric(NumericConfig()), task, text)[0] for text in texts]
    assert score(scorer, task, *texts) == fresh
    assert score(scorer, task, *texts) == fresh, "what is remembered does not change the score"


@given(st.text(alphabet="0123456789 .,-+*%/eE=xab", max_size=12))
def test_plain_text_reads_the_same_with_and_without_latex_around_it(text):
    assert read_number(text) == read_number(f"{text}\\!")
