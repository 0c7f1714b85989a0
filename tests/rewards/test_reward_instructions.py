"""The 25 instructions of IFEval: a text that obeys and one that does not for each, and real rows."""

import json
from pathlib import Path
from time import process_time

import pytest
from reward_cases import a_task, score, statuses, values

from burnish.errors import UserError
from burnish.rewards import Instructions, InstructionsConfig
from burnish.rewards.checks.instructions import (
    LANGUAGE_OF,
    RULES,
    check_instruction,
    read_instructions,
)
from burnish.rewards.checks.texts import sentences

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
SPANISH = "El perro corre por el campo y la niña lo mira desde la ventana de su casa."
LONG_ENGLISH = "the dog runs across the field and the girl looks at it from her window."

TITLE, MARKS, FIRST = (
    "detectable_format:title",
    "detectable_format:number_highlighted_sections",
    "length_constraints:nth_paragraph_first_word",
)
SECTIONS, LENGTH = "detectable_format:multiple_sections", "length_constraints:number_"
BULLETS, JSON, POSTSCRIPT, CAPITALS = (
    "detectable_format:number_bullet_lists", "detectable_format:json_format",
    "detectable_content:postscript", "change_case:capital_word_frequency",
)  # fmt: skip


def begins(word, nth=1, of=1):
    return {"num_paragraphs": of, "nth_paragraph": nth, "first_word": word}


def capitals(count):
    return {"capital_relation": "at least", "capital_frequency": count}


def letters(letter, count):
    return {"letter": letter, "let_relation": "at least", "let_frequency": count}


LEAST, BELOW = {"relation": "at least"}, {"relation": "less than"}
CASES = [
    ("keywords:existence", {"keywords": ["river", "Fish"]}, "Fishing in rivers", "a river"),
    ("keywords:frequency", LEAST | {"keyword": "dog", "frequency": 2}, "Dog eats dog", "one dog"),
    ("keywords:frequency", BELOW | {"keyword": "dog", "frequency": 2}, "one dog", "Dog eats dog"),
    ("keywords:forbidden_words", {"forbidden_words": ["man"]}, "a woman", "The MAN."),
    ("keywords:letter_frequency", letters("q", 2), "Quiet queen", "queen"),
    ("language:response_language", {"language": "es"}, SPANISH, LONG_ENGLISH),
    (f"{LENGTH}sentences", LEAST | {"num_sentences": 3}, "One. Two! Three?", "One. Two, Mr. Three"),
    (f"{LENGTH}paragraphs", {"num_paragraphs": 2}, "First\n***\nSecond", "1\n***\n***\n2"),
    (f"{LENGTH}words", BELOW | {"num_words": 4}, "only three words", "now there are four"),
    (FIRST, begins("then", 2, 2), 'First.\n\n"Then, he left.', "First.\n\nLater then."),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] [date]", "[name]"),
    (POSTSCRIPT, {"postscript_marker": "P.S."}, "Bye\nP.S. Hi", "Bye. ps"),
    (POSTSCRIPT, {"postscript_marker": "P.P.S"}, "Bye\nP.P.S Hi", "P.S. Hi"),
    (BULLETS, {"num_bullets": 2}, "* one\n* two", "* one\n- two\n* three"),
    ("detectable_format:constrained_response", {}, "Well. My answer is no.", "My answer: no"),
    (MARKS, {"num_highlights": 2}, "*one* and **two**", "**only one**"),
    (SECTIONS, {"section_spliter": "PART", "num_sections": 2}, "PART 1\na\nPART 2\nb", "PART 1\na"),
    (JSON, {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    (TITLE, {}, "<<A Title>>\ntext", "<< >>\ntext"),
    ("combination:two_responses", {}, "One\n******\nTwo", "One\n******\nOne"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "A poem."}, "a poem.\nRoses", "Roses"),
    ("startend:end_checker", {"end_phrase": "The end."}, 'So it goes. "the END."', "The end. No"),
    ("startend:quotation", {}, '"All of it"', '"Only" this'),
    (CAPITALS, capitals(2), "VERY LOUD words", "VERY Loud"),
    ("change_case:english_capital", {}, LONG_ENGLISH.upper(), LONG_ENGLISH.title()),
    ("change_case:english_lowercase", {}, LONG_ENGLISH, LONG_ENGLISH.title()),
    ("punctuation:no_comma", {}, "no such thing", "well, one"),
]

PUBLISHED = [
    (TITLE, {}, "<<a<b>>", True), (TITLE, {}, "<<<x>>>", True),
    (TITLE, {}, "x << a >> b >> c", True), (TITLE, {}, "<<>>>>", False),
    (TITLE, {}, "<< >>", False), (TITLE, {}, "<<a\nb>>", False),
    (MARKS, {"num_highlights": 2}, "***x***", True),
    (MARKS, {"num_highlights": 3}, "***x***", False),
    (MARKS, {"num_highlights": 2}, "**a** b", False), (MARKS, {"num_highlights": 1}, "****", False),
    (MARKS, {"num_highlights": 1}, "*a\nb*", False),
    (FIRST, begins("president"), "President's day", True),
    (FIRST, begins("president's"), "President's day", False),
    (FIRST, begins("then"), "'Then' he", True), (FIRST, begins("then"), "**Then** he", False),
    (FIRST, begins("then"), "then: he", False),
    (FIRST, begins("well-known"), "Well-known, he", True),
    (FIRST, begins("b", 2, 2), "a\n\n\n\nb", False), (FIRST, begins("b", 2, 2), "a\n\nb\n\n", True),
    (BULLETS, {"num_bullets": 2}, "* a\n---\n**b**", True),
    (BULLETS, {"num_bullets": 1}, "-", True), (BULLETS, {"num_bullets": 0}, "*", True),
    (JSON, {}, "```\n{}\n```", True), (JSON, {}, "Here: ```json\n{}\n```", False),
    (JSON, {}, "```json\n{}", True),
    (POSTSCRIPT, {"postscript_marker": "P.S."}, "Bye\nP. S. Hi", True),
    (POSTSCRIPT, {"postscript_marker": "P.S."}, "Bye\nP.S Hi", False),
    (POSTSCRIPT, {"postscript_marker": "PS:"}, "Bye\nPS: Hi", True),
    (CAPITALS, capitals(2), "DON'T", True), (CAPITALS, capitals(1), "JOHN's", True),
    (CAPITALS, capitals(2), "U.S. A-B", True), (CAPITALS, capitals(3), "U.S. A-B", False),
    (CAPITALS, capitals(2), "CANNOT", True),
]  # fmt: skip
"""What the published checker rules, by hand from its patterns."""


@pytest.mark.parametrize(("name", "arguments", "text", "obeyed"), PUBLISHED)
def test_rulings_are_those_of_the_published_checker(name, arguments, text, obeyed):
    assert check_instruction(text, name, arguments).obeyed is obeyed


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Take vitamin a. Next comes sleep.", 2), ("Take vitamin c. Next comes sleep.", 1),
        ("Better than I. Next.", 2), ("By J. Smith. He wrote.", 2),
        ("By J.K. Rowling. He wrote.", 2), ("a. next", 1), ("Two, e.g. this.", 2),
        ("Mr. Smith saw it at 5 p.m. today.", 1), ("It was 5 p.m. The sun set.", 2),
        ("In 1995. then", 1), ("1. First\n2. Second", 3), ('"Stop!" he said. (Yes.) "No."', 4),
        ("What?! Next", 2), ("Wait... what", 1), ("Wait... The end", 2),
        ("Version 2.5 is out. Get it.", 2), ("A heading\n\nA text.", 1), ("**Bold.** Text.", 2),
        ("你好。再见！好？", 3), ("No stop", 1), ("", 0),
    ],
)  # fmt: skip
def test_sentences_are_cut_as_by_punkt(text, count):
    assert len(sentences(text)) == count


@pytest.mark.parametrize("text", [".", ". ", "<<", "\n", "*", "a-", '!"', "p. ", "'", "。"])
def test_no_text_makes_a_rule_slow(text):
    long = text * (60_000 // len(text))
    start = process_time()
    for name, arguments, *_ in CASES:
        check_instruction(long + "x", name, arguments)
    assert process_time() - start < 20


def instruction_task(*pairs):
    ids = [name for name, _ in pairs]
    return a_task(instruction_id_list=ids, kwargs=[arguments for _, arguments in pairs])


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES)
def test_each_instruction_tells_good_from_bad(name, arguments, good, bad):
    scorer = Instructions(InstructionsConfig())
    rewards = score(scorer, instruction_task((name, arguments)), good, bad, " ")
    assert values(rewards) == [1.0, 0.0, 0.0]
    verdict = rewards[1].verdicts[0]
    assert (verdict.criterion, verdict.value) == (name, 0.0)
    assert verdict.reason


def test_every_published_instruction_has_a_case():
    assert {name for name, *_ in CASES} == set(RULES)
    assert len(RULES) == 25


def test_a_language_that_cannot_be_told_is_not_a_verdict():
    scorer = Instructions(InstructionsConfig())
    (reward,) = score(
        scorer, instruction_task(("language:response_language", {"language": "es"})), "42"
    )
    assert (reward.value, reward.status) == (None, "abstain")
    assert "language:response_language" in reward.reason


def test_capitals_in_another_language_are_not_english():
    task = instruction_task(("change_case:english_capital", {}))
    assert values(score(Instructions(InstructionsConfig()), task, SPANISH.upper())) == [0.0]


def test_all_or_nothing_and_the_mean():
    task = instruction_task(("punctuation:no_comma", {}), ("detectable_format:title", {}))
    strict, mean = (Instructions(InstructionsConfig(mode=mode)) for mode in ("all", "mean"))
    texts = ("<<T>> fine", "<<T>> well, no", "a, b")
    assert values(score(strict, task, *texts)) == [1.0, 0.0, 0.0]
    assert values(score(mean, task, *texts)) == [1.0, 0.5, 0.0]
    (reward,) = score(mean, task, "<<T>> well, no")
    assert [v.value for v in reward.verdicts] == [0.0, 1.0]
    assert reward.evidence[0].visibility == "benchmark"


@pytest.mark.parametrize(
    ("ids", "arguments", "message"),
    [
        (["keywords:existance"], [{}], "Did you mean 'keywords:existence'?"),
        (["keywords:existence"], [{"words": ["a"]}], r"expected \['keywords'\]"),
        (["punctuation:no_comma"], [], "of 1 instructions: got"),
        (["punctuation:no_comma"], "{", "expected a table each"),
        (["language:response_language"], [{"language": "english"}], "language: got 'english'"),
        (
            ["length_constraints:number_words"],
            [{"relation": "at most", "num_words": 3}],
            "relation: got 'at most'",
        ),
    ],
)
def test_wrong_instructions_name_the_task(ids, arguments, message):
    task = a_task(instruction_id_list=ids, kwargs=arguments or "[]")
    with pytest.raises(UserError, match=message) as caught:
        score(Instructions(InstructionsConfig()), task, "text")
    assert str(caught.value).startswith("task task-1: ")


def test_a_task_without_instructions_abstains():
    rewards = score(Instructions(InstructionsConfig()), a_task(instruction_id_list=[]), "x")
    assert statuses(rewards) == ["abstain"]


def test_every_row_of_ifeval_is_understood():
    pandas = pytest.importorskip("pandas")
    file = DATA / "ifeval" / "test.parquet"
    if not file.is_file():
        pytest.skip("no ifeval data beside the repository")
    seen = set()
    for _, row in pandas.read_parquet(file).iterrows():
        ids = list(row["instruction_id_list"])
        padded = [{**table, "unused": None} for table in json.loads(row["kwargs"])]
        instructions = read_instructions(ids, row["kwargs"])
        assert read_instructions(ids, padded) == instructions
        for instruction in instructions:
            ruling = check_instruction(row["prompt"], *instruction)
            assert ruling.obeyed in (True, False)
            assert ruling.saw
        seen |= set(ids)
    assert seen <= set(RULES)
    assert set(LANGUAGE_OF) <= seen
