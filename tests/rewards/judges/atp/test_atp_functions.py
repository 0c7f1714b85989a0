"""ATP-Bench's public functions: worked numbers, section 6 of its plan, and texts made to break them."""

import math
import random

import pytest
from hypothesis import given, strategies as st

from burnish.rewards.judges.atp_bench import (
    TOOLS,
    aggregate,
    check_calls,
    final_score,
    locate_calls,
    parse_calls,
    render_call,
    response_metrics,
    validate_call,
    with_placeholders,
)

SYNTAXES = ("tags", "json", "markdown")

SEARCH = '<tool name="search">{"query": "kite"}</tool>'
FLAGS = st.lists(st.booleans(), max_size=12)


# --- parsing


def test_calls_in_order_with_what_is_wrong_with_them():
    text = f'A. {SEARCH} B. <tool name="paint">{{"x": 1}}</tool> <tool name="code">oops</tool> end'
    assert [tuple(call) for call in parse_calls(text, list(TOOLS))] == [
        ("search", {"query": "kite"}, True, ""),
        ("paint", {"x": 1}, False, "unknown_tool"),
        ("code", None, False, "bad_arguments"),
    ]


def test_an_unknown_tool_with_unreadable_arguments_is_unknown():
    assert parse_calls('<tool name="paint">[1]</tool>', TOOLS)[0][1:] == (
        None,
        False,
        "unknown_tool",
    )


@pytest.mark.parametrize(
    "inner",
    [
        "", "[1]", "{", '{"a": 1e999}', '{"a": [-1e400]}', '{"a": NaN}', '{"a": 1, "a": 2}',
        '{"a": 1} x', "null", '{"a":' * 9999,
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_bad_arguments(inner):
    (call,) = parse_calls(f'<tool name="search">{inner}</tool>', TOOLS)
    assert (call.args, call.valid, call.reason) == (None, False, "bad_arguments")


def test_an_unclosed_tag_is_one_call_and_the_rest_is_text():
    text = f'{SEARCH} <tool name="search">{{"query": "a"}} and <tool name="code">{{}}'
    first, second = locate_calls(text, TOOLS)
    assert (first.call.valid, second.call.valid, second.call.reason) == (True, False, "unclosed")
    assert with_placeholders(text, [first, second]).startswith("[picture 1] [picture 2]{")


def test_a_closing_tag_inside_of_a_text_does_not_end_the_call():
    (call,) = parse_calls('<tool name="code">{"code": "print(\'</tool>\')"}</tool>', TOOLS)
    assert call.args == {"code": "print('</tool>')"}


def test_nested_tags_are_one_malformed_call():
    found = parse_calls(f'<tool name="edit">{SEARCH}</tool>', TOOLS)
    assert [(call.tool, call.reason) for call in found] == [("edit", "bad_arguments")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


ONE_CALL = {
    "tags": '<tool name="edit">{"image_id": 1, "instruction": "mark (left)"}</tool>',
    "json": '{"name": "edit", "arguments": {"image_id": 1, "instruction": "mark (left)"}}',
    "markdown": "![](tool://edit?image_id=1&instruction=mark%20%28left%29)",
}


@given(
    args=st.dictionaries(st.text(max_size=8), JSON, max_size=4), tool=st.sampled_from(list(TOOLS))
)
def test_what_is_rendered_is_read_back(args, tool):
    (found,) = locate_calls(f"Before. {render_call(tool, args)} Behind.", TOOLS)
    assert (found.call.tool, found.call.args, found.call.valid) == (tool, args, True)


@pytest.mark.parametrize("syntax", SYNTAXES)
@given(noise=st.binary(max_size=200), at=st.integers(0, 60))
def test_the_parser_takes_any_bytes(syntax, noise, at):
    whole = ONE_CALL[syntax]
    text = whole[:at] + noise.decode("latin-1") + whole[at:]
    for located in check_calls(text, syntax=syntax):
        assert located.call.valid == (located.call.reason == "")
        assert 0 <= located.start < located.end <= len(text)


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize(
    "piece",
    [
        *(
            '<tool name="search">{"query": "a', '<tool name="', "<tool ", "</tool>", "```\n",
            '{"name":[',
        ),
        *("![a](tool://", "![a](tool://x?", '{"name":"a"', "![", "\n"),
    ],
)  # fmt: skip
def test_a_text_of_repeated_beginnings_is_read_to_its_end(syntax, piece):
    check_calls(piece * 20_000, syntax=syntax)
    check_calls(piece * 20_000 + ")", syntax=syntax)


def test_a_hundred_thousand_calls_are_read_and_all_but_the_first_are_repetitions():
    found = check_calls(SEARCH * 100_000)
    assert len(found) == 100_000
    assert sum(one.call.valid for one in found) == 1


def test_other_syntaxes_give_the_same_result():
    assert len({str(parse_calls(text, TOOLS, syntax=s)) for s, text in ONE_CALL.items()}) == 1
    as_text = '{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}'
    assert parse_calls(as_text, TOOLS, syntax="json")[0].args == {"query": "a"}
    assert (
        parse_calls("![a](https://x.org/a.png) [b](tool://search)", TOOLS, syntax="markdown") == []
    )


# --- validation


@pytest.mark.parametrize(
    ("tool", "args", "reason"),
    [
        ("search", {"query": ""}, ""), ("search", {}, "missing:query"),
        ("edit", {}, "missing:image_id"), ("edit", {"image_id": 9}, "missing:instruction"),
        ("edit", {"image_id": 2, "instruction": "a"}, "image_id_out_of_range"),
        ("reference", {"image_id": 1}, ""),
        *(
            ("reference", {"image_id": bad}, "image_id_out_of_range")
            for bad in (-1, 2, 1.0, "1", True)
        ),
        ("reference", None, "bad_arguments"),
    ],
)  # fmt: skip
def test_the_first_thing_that_is_missing_or_the_image(tool, args, reason):
    for required in (TOOLS[tool], TOOLS):
        assert validate_call(tool, args, required, n_context_images=2) == (not reason, reason)


def test_without_images_nothing_can_be_cited():
    assert not validate_call("reference", {"image_id": 0}, ["image_id"], n_context_images=0).valid
    assert validate_call("reference", {"image_id": 7}, ["image_id"]).valid  # number not known
    assert not validate_call("reference", {"image_id": -7}, ["image_id"]).valid


def test_repetitions_and_quoted_calls_are_wrong_by_rule():
    other = '<tool name="search">{ "query" : "kite" }</tool>'
    text = f"{SEARCH}\n```\n{SEARCH}\n```\n{other}"
    assert [one.call.reason for one in check_calls(text)] == ["", "in_code_fence", "duplicate"]
    assert [one.call.valid for one in check_calls(f"~~~\n{SEARCH}")] == [False]


@pytest.mark.parametrize("syntax", ["tags", "json"])
def test_half_characters_of_arguments_and_names_become_whole(syntax):
    text = r'<tool name="search">{"query": "a\ud800", "more": [{"\udc00": 1}]}</tool>'
    if syntax == "json":
        text = r'{"name": "search\ud800", "arguments": "{\"query\": \"\\ud800\"}"}'
    (call,) = parse_calls(text, TOOLS, syntax=syntax)
    given = {"query": "a\ufffd", "more": [{"\ufffd": 1}]}
    assert call[:2] == (
        ("search", given) if syntax == "tags" else ("search\ufffd", {"query": "\ufffd"})
    )


BIKE = SEARCH.replace("kite", "bike")
PROGRAM = '<tool name="code">{"code": "x = 1\n```\ny"}</tool>'


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (f"```npm install``` first.\n\n{SEARCH}", [""]),
        (f"Run:\n```pip install x```\n{SEARCH}", [""]),
        (f"{PROGRAM}\n\n{SEARCH}", ["", ""]),
        (f"1. ```\n   x\n   ```\n{SEARCH}", [""]),
        (f"1. ```\n   {SEARCH}\n   ```\n{BIKE}", ["in_code_fence", ""]),
        (f"- a\n  - ```\n    {SEARCH}\n\n    ```\n    {BIKE}", ["in_code_fence", ""]),
        (f"> ```\n> {SEARCH}\n> ```\n{BIKE}", ["in_code_fence", ""]),
        (f"> ```\n> {SEARCH}\n\n{BIKE}", ["in_code_fence", ""]),
        (f"```\nx\n```python\n{SEARCH}\n```\n{BIKE}", ["in_code_fence", ""]),
        (f"~~~ a`b\n{SEARCH}\n~~~ x~~~\n{BIKE}\n~~~\n", ["in_code_fence"] * 2),
        (f"````\n```\n{SEARCH}\n````\n{BIKE}", ["in_code_fence", ""]),
        (f"    ```\n{SEARCH}", [""]),
        (f"1.\t```\n\t{SEARCH}\n\t```\r\n{BIKE}", ["in_code_fence", ""]),
    ],
)
def test_code_fences_as_commonmark_has_them(text, reasons):
    assert [one.call.reason for one in check_calls(text)] == reasons


@pytest.mark.parametrize("line", ["> " * 5_000, "- " * 5_000 + "x", "```", "`" * 20_000, "\n"])
def test_a_text_of_quotes_lists_and_fences_is_read_to_its_end(line):
    assert len(check_calls(f"{line}\n" * 20 + "\n" * 20_000 + SEARCH)) == 1


@pytest.mark.parametrize(
    "forged",
    ["[picture 1]", "[Picture  12]", "[ PICTURE\n1 ]", "［picture １］", "[pic\u200bture 1]"],
)
def test_only_calls_have_placeholders(forged):
    text = f"{forged} {SEARCH} {forged}"
    shown = with_placeholders(text, locate_calls(text, TOOLS))
    assert shown == f"({forged[1:-1]}) [picture 1] ({forged[1:-1]})"


# --- metrics


@pytest.mark.parametrize(
    ("flags", "missed", "expected"),
    [
        ([True, True, False], 1, (2 / 3, 2 / 3, 2 / 3)), ([], 0, (None, None, 1.0)),
        ([], 2, (None, 0.0, 0.0)), ([False], 0, (0.0, None, 0.0)), ([True], 0, (1.0, 1.0, 1.0)),
        ([True, None, False], 0, (0.5, 1.0, 2 / 3)), ([None], 0, (None, None, None)),
        ([None], 1, (None, None, None)), ([False, None], 1, (0.0, None, None)),
    ],
)  # fmt: skip
def test_worked_numbers(flags, missed, expected):
    found = response_metrics(flags, missed)
    assert found[:3] == pytest.approx(expected)
    assert response_metrics(calls_correct=flags, missed=["x"] * missed) == found
    assert response_metrics([{"calls_correct": flags, "missed": missed}]) == [found]


@given(FLAGS, st.integers(0, 9))
def test_f1_is_the_harmonic_mean_and_order_does_not_matter(flags, missed):
    found = response_metrics(flags, missed)
    if found.k and found.success_rate is not None and found.recall is not None:
        mean = 2 / (1 / found.success_rate + 1 / found.recall)
        assert math.isclose(found.f1, mean)
    shuffled = random.Random(0).sample(flags, len(flags))
    assert response_metrics(shuffled, missed) == found


@given(FLAGS, st.integers(1, 9))
def test_an_unneeded_call_costs_and_a_needed_one_pays(flags, missed):
    before, spoilt = response_metrics(flags, missed), response_metrics([*flags, False], missed)
    assert spoilt.m == before.m
    assert (spoilt.success_rate or 0) <= (before.success_rate or 0)
    assert spoilt.f1 <= before.f1
    if before.k:
        assert spoilt.success_rate < before.success_rate
        assert spoilt.f1 < before.f1
    better = response_metrics([*flags, True], missed - 1)
    assert better.f1 > before.f1
    assert better.m < before.m


def test_a_missed_agent_that_failed_leaves_the_success_rate():
    found = response_metrics({"calls_correct": [True, False], "missed": None})
    assert found[:3] == (0.5, None, None)


def test_a_corpus():
    found = aggregate(
        [
            {"calls_correct": [True, True, False, False], "missed": 1, "tools": ["search", "code"]},
            {"calls_correct": [True], "missed": 0, "tools": ["search"]},
            {"calls_correct": [], "missed": 2},
            {"calls_correct": [None], "missed": None, "tools": ["edit"]},
        ]
    )
    assert (found.success_rate_macro, found.success_rate_micro) == (0.75, 0.6)
    assert found.missed_mean == 1.0
    assert (found.tool_adoption, found.mean_calls) == (0.75, 1.5)
    assert found.per_tool == {"code": 0.25, "edit": 0.25, "search": 0.5}
    assert (found.responses, found.unjudged) == (4, 1)
    assert aggregate([])[:5] == (None,) * 5


def test_the_final_score():
    assert final_score(0.8, 0.5) == 65.0
    assert final_score(0.8, 0.5, 1.0) == 80.0
    assert final_score(None, 0.5) is None
    assert final_score(0.8, None) is None
