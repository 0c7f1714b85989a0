"""The smaller checks: match, pattern, schema, tags, length, language, and how texts are counted."""

import time

import pytest
from hypothesis import given, strategies as st
from reward_cases import a_task, answers, score, statuses, values

from burnish.errors import UserError
from burnish.records import Response
from burnish.rewards import (
    JsonSchema,
    JsonSchemaConfig,
    Language,
    LanguageConfig,
    Length,
    LengthConfig,
    Match,
    MatchConfig,
    Regex,
    RegexConfig,
    Tags,
    TagsConfig,
    constraint_tools,
    contained_match,
    count_occurrences,
    exact_match,
    normalize_answer,
    token_f1,
)
from burnish.rewards.checks.texts import sentences


def test_answers_are_normalised_as_in_squad():
    assert normalize_answer("The  Eiffel-Tower, a.k.a. AN icon!") == "eiffeltower aka icon"
    assert exact_match("the Cat.", ["dog", "cat"]) == 1.0
    assert exact_match(pred="cats", golds="cat") == 0.0
    assert contained_match("It is the cat, I think", ["cat"]) == 1.0
    assert contained_match("14 of them", ["4"]) == 0.0
    assert contained_match("anything", [""]) == 0.0
    assert token_f1("the black cat", ["black dog", "cat"]) == pytest.approx(2 / 3)
    assert token_f1("black black", "black") == pytest.approx(2 / 3)
    assert (token_f1("", "x"), token_f1("x", [])) == (0.0, 0.0)


def test_references_need_not_be_texts_and_empty_ones_match_nothing():
    assert (exact_match("4", 4), exact_match("4", [3, 4]), exact_match("4", None)) == (
        1.0,
        1.0,
        0.0,
    )
    assert token_f1("4 apples", 4) == pytest.approx(2 / 3)
    assert (exact_match("", ""), exact_match("the", ["", "."]), token_f1("", "")) == (0.0, 0.0, 0.0)


@given(st.text(max_size=40), st.text(max_size=40))
def test_f1_is_symmetric_bounded_and_one_for_equal_words(a, b):
    assert 0.0 <= token_f1(a, b) <= 1.0
    assert token_f1(a, b) == pytest.approx(token_f1(b, a))
    assert token_f1(a, a) == float(normalize_answer(a) != "")
    assert normalize_answer(normalize_answer(a)) == normalize_answer(a)


@pytest.mark.parametrize(
    ("mode", "text", "value"),
    [
        ("exact", "Paris", 1.0), ("exact", "paris", 0.0),
        ("normalised", "The answer is PARIS.", 1.0),
        ("normalised", "<answer> paris </answer>", 1.0), ("normalised", "I say paris", 0.0),
        ("contains", "I say paris, France", 1.0), ("contains", "comparison", 0.0),
        ("f1", "paris france", pytest.approx(2 / 3)),
    ],
)  # fmt: skip
def test_match_modes(mode, text, value):
    scorer = Match(MatchConfig(mode=mode))
    assert values(score(scorer, a_task(answer=["Paris", "Lutetia"]), text)) == [value]


def test_a_match_needs_something_to_match():
    assert statuses(score(Match(MatchConfig()), a_task(answer="the"), "the")) == ["abstain"]
    strict = Match(MatchConfig(where="tag"))
    assert values(score(strict, a_task(answer="x"), "x", "<answer>x</answer>")) == [0.0, 1.0]


def test_patterns():
    scorer = Regex(RegexConfig(pattern=r"(?m)^Answer: \d+$"))
    rewards = score(scorer, a_task(), "so\nAnswer: 12\n", "Answer: x")
    assert values(rewards) == [1.0, 0.0]
    assert "matched 'Answer: 12'" in rewards[0].evidence[0].observation
    whole = Regex(RegexConfig(pattern="[a-z]+", mode="fullmatch", ignore_case=True))
    assert values(score(whole, a_task(), "ABC", "ab1")) == [1.0, 0.0]
    forbid = Regex(RegexConfig(pattern="sorry", forbid=True))
    assert values(score(forbid, a_task(), "fine", "so sorry")) == [1.0, 0.0]


def test_a_catastrophic_pattern_costs_its_own_response_only():
    scorer = Regex(RegexConfig(pattern=r"^(a+)+$", timeout_s=0.1))
    started = time.monotonic()
    rewards = score(scorer, a_task(), "aaa", "a" * 40 + "!", "b")
    assert time.monotonic() - started < 120
    assert values(rewards) == [1.0, None, 0.0]
    assert rewards[1].status == "timeout"


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_json_that_fits_and_json_that_does_not():
    scorer = JsonSchema(JsonSchemaConfig(schema=SCHEMA))
    rewards = score(
        scorer, a_task(), '{"name": "Ada", "age": 36}', 'Here:\n```json\n{"name": "Ada"}\n```',
        '{"name": "Ada", "age": -1}', '{"age": 3}', "name: Ada", '{"name": NaN}', "[" * 100_000,
    )  # fmt: skip
    assert values(rewards) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    saw = [reward.evidence[0].observation for reward in rewards]
    assert "at age: -1 is less than the minimum" in saw[2]
    assert "'name' is a required property" in saw[3]
    assert "nested too deeply" in saw[6]


@pytest.mark.parametrize(
    ("text", "value", "partial"),
    [
        ("<think>a</think><answer>b</answer>", 1.0, 1.0),
        (" <think>a</think>\n\n<answer>b</answer>\n", 1.0, 1.0),
        ("<think>a</think> so <answer>b</answer>", 0.0, 0.75),
        ("<answer>b</answer><think>a</think>", 0.0, 0.5),
        ("<think>a<answer>b</answer></think>", 0.0, 0.5),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0, 0.5),
        ("<think></think><answer>b</answer>", 0.0, 0.5),
        ("<think>a</think><answer>b", 0.0, 0.5),
        ("</think>a<think><answer>b</answer>", 0.0, 0.5),
        ("b", 0.0, 0.0),
    ],
)
def test_tags_stand_once_in_order_with_nothing_else(text, value, partial):
    assert values(score(Tags(TagsConfig()), a_task(), text)) == [value]
    assert values(score(Tags(TagsConfig(partial=True)), a_task(), text)) == [partial]


def test_length_has_a_range_and_soft_edges():
    hard = Length(LengthConfig(min=2, max=3))
    assert values(score(hard, a_task(), "a", "a b", "a b c", "a b c d")) == [0, 1, 1, 0]
    soft = Length(LengthConfig(unit="characters", max=4, edge=3))
    rewards = score(soft, a_task(), *("x" * n for n in (4, 5, 6, 7, 8, 9)))
    assert values(rewards) == pytest.approx([1.0, 2 / 3, 1 / 3, 0.0, 0.0, 0.0])
    assert rewards[1].evidence[0].observation == "5 characters; wanted 0 to 4"


def test_length_in_tokens_needs_a_count():
    scorer = Length(LengthConfig(unit="tokens", max=5))
    assert statuses(score(scorer, a_task(), "unknown")) == ["abstain"]
    counted = Response("s", "text", tokens=6)
    assert scorer.judge(a_task(), counted).value == 0.0


GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund und läuft danach in den Wald."
ENGLISH = "The quick brown fox jumps over the lazy dog and then runs away into the forest."


def test_language():
    scorer = Language(LanguageConfig(language="de"))
    rewards = score(scorer, a_task(), GERMAN, ENGLISH, "ja", "12345 67890 12345 67890 123")
    assert values(rewards) == [1.0, 0.0, None, None]
    assert statuses(rewards)[2:] == ["abstain", "abstain"]
    again = score(scorer, a_task(), GERMAN, ENGLISH)
    assert again == rewards[:2]


def test_sentences_are_not_split_at_points_that_end_nothing():
    text = "Dr. Smith paid 3.50 dollars, e.g. for tea. Really?! Yes... J. Doe said so"
    assert len(sentences(text)) == 4
    assert sentences("你好。再见！") == ["你好。", "再见！"]
    assert sentences("") == sentences("...") == []


def test_the_constraint_toolkit_counts_plain_spans():
    assert constraint_tools("It is 3.5 m.  Is it?! Yes. And so")["sentences"] == 5
    assert constraint_tools("你好。再见！")["sentences"] == 2
    assert constraint_tools("...")["sentences"] == constraint_tools("")["sentences"] == 0


def test_everything_is_counted():
    text = "# Head\n\nOne two-three. Don't (stop)!\n- a\n* b\n1. c\n\nLast"
    counts = constraint_tools(text)
    assert counts["paragraphs"] == 3
    assert counts["lines"] == 6
    assert counts["bullets"] == 3
    assert counts["headings"] == 1
    assert counts["words"] == 10
    assert counts["brackets_balanced"] is True
    assert constraint_tools("([)]")["brackets_balanced"] is False


def test_occurrences():
    assert count_occurrences("aAaA", "aa") == 2
    assert count_occurrences("aAaA", "aa", overlapping=True) == 3
    assert count_occurrences("abc", "") == 0


def test_ten_megabytes_do_not_stall_any_rule():
    huge = answers("word " * 2_000_000)[0].text
    started = time.process_time()
    for scorer in (Match(MatchConfig(mode="f1")), Tags(TagsConfig()), Length(LengthConfig(max=5))):
        assert values(score(scorer, a_task(answer="other"), huge)) == [0.0]
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    ("kind", "chosen", "message"),
    [
        (RegexConfig, {"pattern": "("}, r"pattern: got '\(', expected a regular expression"),
        (JsonSchemaConfig, {"schema": {"type": "objekt"}}, "schema: is not valid at type"),
        (LengthConfig, {}, "min: got 0 with max None"),
        (LengthConfig, {"min": 5, "max": 3}, "min: got 5 with max 3"),
        (TagsConfig, {"tags": ("a", "a")}, "expected each of them once"),
    ],
)
def test_settings_that_cannot_work(kind, chosen, message):
    with pytest.raises(UserError, match=message):
        kind(**chosen)


@pytest.mark.parametrize("text", ["." * 40_000 + "x", ". " * 20_000, ")." * 20_000, "\n" * 40_000])
def test_counting_is_linear_in_hostile_texts(text):
    started = time.process_time()
    constraint_tools(text)
    sentences(text)
    assert time.process_time() - started < 5.0
