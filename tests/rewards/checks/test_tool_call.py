"""Tool calls: worked numbers of the three rewards, the parts as checks, hostile texts."""

import json
import time

import anyio
import msgspec
import pytest
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.records import Message, Response, Status, Task
from burnish.rewards import (
    RewardConfig,
    ToolCall,
    ToolCallConfig,
    build,
    checked,
    tool_call_rewards,
)

CALL = {"name": "cagr", "parameters": {"start": 750, "end": 1500}}
OTHER = {"name": "lcm", "parameters": {"a": 7, "b": 9}}
PARTS = ("format", "name", "arguments", "correctness", "exact", "length")


def blocks(*calls, think="Let me see.", response=None):
    text = f"<think> {think} </think>"
    if calls:
        lines = "\n".join(json.dumps(call) for call in calls)
        text += f"\n<tool_call>\n{lines}\n</tool_call>"
    return text if response is None else f"{text}\n<response> {response} </response>"


def call(name, **parameters):
    return {"name": name, "parameters": parameters}


def judged(text, gold, **chosen):
    """Every part of one answer, each by its own check."""
    task = Task("t", (Message("user", "?"),), {"answer": gold})
    checks = {part: ToolCall(ToolCallConfig(part=part, **chosen)) for part in PARTS}
    return {part: check.judge(task, Response("r", text)).value for part, check in checks.items()}


@pytest.mark.parametrize(
    ("calls", "correctness"),
    [
        ([CALL], 3.0),
        # one of two values: names 1, keys 1, values 1 of 1 + (1 + 2)
        ([call("cagr", start=750, end=9)], 6 * 3 / 4 - 3),
        # one key of two, and right: names 1, keys 1/2, values 1
        ([call("cagr", start=750)], 6 * 2.5 / 4 - 3),
        # a key too many: keys 2/3
        ([call("cagr", start=750, end=1500, x=1)], 6 * (1 + 2 / 3 + 2) / 4 - 3),
        # a call too many: names 1/2, all else right
        ([CALL, OTHER], 6 * 3.5 / 4 - 3),
        # the right name with nothing right inside
        ([call("cagr", x=1)], 6 * 1 / 4 - 3),
        # text is not a number, and a truth is not one
        ([call("cagr", start="750", end=True)], 6 * 2 / 4 - 3),
        ([call("other", start=750, end=1500)], -3.0),
    ],
)
def test_correctness_by_hand(calls, correctness):
    rewards = tool_call_rewards(blocks(*calls), blocks(CALL))
    assert rewards["correctness"] == pytest.approx(correctness)
    assert rewards["format"] == 1.0


def test_two_calls_by_hand():
    gold = blocks(CALL, OTHER)
    assert tool_call_rewards(blocks(CALL, OTHER), gold)["correctness"] == 3.0
    assert tool_call_rewards(blocks(OTHER, CALL), gold)["correctness"] == 3.0
    # names 1/2, the first call whole (3) of 1 + 3 + 3
    assert tool_call_rewards(blocks(CALL), gold)["correctness"] == pytest.approx(6 * 3.5 / 7 - 3)


def test_a_prediction_is_used_once():
    twice = blocks(call("f", x=1), call("f", x=1))
    once = tool_call_rewards(blocks(call("f", x=1)), twice)["correctness"]
    # names 1/2, one of two calls whole (2) of 1 + 2 + 2
    assert once == pytest.approx(6 * 2.5 / 5 - 3)
    # the better namesake is taken, not the first
    mixed = blocks(call("f", x=5), call("f", x=1))
    assert tool_call_rewards(mixed, blocks(call("f", x=1)))["correctness"] == pytest.approx(
        6 * 2.5 / 3 - 3
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "cagr(750, 1500)", "<think> a </think>",
        "<think> a </think>\n<tool_call>\n{'name': 'cagr'}\n</tool_call>",
        '<think> a </think>\n<tool_call>\n{"name": "cagr"}\n</tool_call>',
        '<think> a </think>\n<tool_call>\n{"name": 1, "parameters": {}}\n</tool_call>',
        '<think> a </think>\n<tool_call>\n["cagr"]\n</tool_call>',
        "<think> a </think>\n<tool_call>\n</tool_call>", blocks(CALL).removesuffix("</tool_call>"),
        blocks(think=f"I write <tool_call>\n{json.dumps(CALL)}\n</tool_call>"),
        blocks(response="It is 26 percent."), json.dumps(CALL),
    ],
)  # fmt: skip
def test_answers_without_readable_calls_get_the_worst(text):
    assert tool_call_rewards(text, blocks(CALL))["correctness"] == -3.0
    assert judged(text, blocks(CALL))["exact"] == 0.0


def test_correctness_is_nought_where_no_call_is_wanted():
    gold = blocks(response="Which text?")
    for text in (gold, blocks(CALL), "", "nonsense"):
        assert tool_call_rewards(text, gold)["correctness"] == 0.0
    assert judged(gold, gold)["exact"] == 1.0
    assert judged(blocks(response="Another question?"), gold)["exact"] == 1.0
    assert judged(blocks(CALL), gold)["exact"] == 0.0
    assert judged("", gold)["exact"] == 0.0
    assert judged(blocks(response=" "), gold)["exact"] == 0.0


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (blocks(CALL), 1), (blocks(OTHER, CALL, think="other words"), 1),
        (f"  {blocks(CALL)}\n", 1), (blocks(CALL).replace("\n", ""), 1),
        (blocks(CALL, think="no <response> and one <tool_call> suffice"), 1),
        (blocks(CALL, response="Done."), 0), (blocks(response="Done."), 0), (blocks(), 0),
        (f"Sure. {blocks(CALL)}", 0), (f"{blocks(CALL)} Done.", 0),
        (blocks(CALL).replace("</think>", "</think> so"), 0),
        (blocks(CALL) + "\n<tool_call>\n{}\n</tool_call>", 0),
        (blocks(CALL) + "\n<think> again </think>", 0),
        (blocks(CALL).replace("<tool_call>", "<tool_call><tool_call>"), 0),
        (blocks(CALL, think="<tool_call>{}</tool_call>"), 0),
        ("\n".join(reversed(blocks(CALL).split("\n", 1))), 0),
        (blocks(CALL).removesuffix("</tool_call>"), 0), (blocks(CALL).removeprefix("<think>"), 0),
        ("", 0),
    ],
)  # fmt: skip
def test_format(text, is_right):
    assert tool_call_rewards(text, blocks(CALL))["format"] == is_right


@pytest.mark.parametrize(
    "gold",
    [
        blocks(CALL), blocks(CALL, OTHER), blocks(response="Hello."),
        blocks(CALL, response="Hello."), "<response> Hello. </response>", blocks(),
    ],
)  # fmt: skip
def test_every_reference_has_its_own_format(gold):
    assert tool_call_rewards(gold, gold)["format"] == 1.0


@pytest.mark.parametrize(
    ("words", "length"), [(0, 0.0), (1, 0.0), (128, 0.25), (130, 0.25), (512, 1.0), (9000, 1.0)]
)
def test_length_counts_the_words_of_the_thought(words, length):
    text = blocks(CALL, think="word " * words)
    assert tool_call_rewards(text, blocks(CALL))["length"] == length
    assert tool_call_rewards("word " * words, blocks(CALL))["length"] == 0.0


@pytest.mark.parametrize(
    "gold",
    [
        blocks(CALL), [CALL], CALL, (CALL,), json.dumps(CALL), json.dumps([CALL], indent=2),
        {"name": "cagr", "arguments": {"end": 1500, "start": 750.0}},
        [{**CALL, "accepted": {}, "optional": []}],
    ],
)  # fmt: skip
def test_forms_of_the_reference(gold):
    assert tool_call_rewards(blocks(CALL, think=""), gold) == {
        "correctness": 3.0,
        "format": 1.0,
        "length": 0.0,
    }
    assert judged(blocks(CALL), gold)["exact"] == 1.0


def test_a_reference_may_leave_a_choice():
    gold = [
        {
            "name": "weather",
            "arguments": {"city": "New York", "unit": "C"},
            "accepted": {"city": ["New York", "NYC"], "unit": ["C", "celsius"]},
            "optional": ["unit"],
        }
    ]
    for arguments in (
        {"city": "NYC"},
        {"city": "New York", "unit": "celsius"},
        {"city": "NYC", "unit": "C"},
    ):
        text = json.dumps(call("weather", **arguments))
        assert judged(text, gold, dialect="json")["exact"] == 1.0
    for arguments in ({"unit": "C"}, {"city": "Paris"}, {"city": "NYC", "unit": "K"}):
        text = json.dumps(call("weather", **arguments))
        found = judged(text, gold, dialect="json")
        assert found["exact"] == 0.0
        assert 0 < found["arguments"] < 1


@pytest.mark.parametrize(
    "gold", ["", "hello", 3, None, [3], {"name": "x"}, "<tool_call>\n{oops}\n</tool_call>",
             [{**CALL, "accepted": {"start": 1}}], [{**CALL, "optional": "start"}]],
)  # fmt: skip
def test_references_that_cannot_be_read(gold):
    with pytest.raises(UserError, match="cannot be read") as caught:
        tool_call_rewards("", gold)
    assert "\n" not in str(caught.value)


def test_a_task_with_a_bad_reference_has_no_reward():
    check = build(msgspec.convert({"kind": "tool_call"}, RewardConfig))
    for fields in ({"answer": "hello"}, {"answer": None}):
        task = Task("t", (Message("user", "?"),), fields)
        (reward,) = anyio.run(checked, check, task, [Response("r", blocks(CALL))])
        assert reward.value is None
        assert reward.status is Status.ABSTAIN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(CALL), (1, 1, 1, 3, 1)), (json.dumps([CALL]), (1, 1, 1, 3, 1)),
        (f"\n{json.dumps([CALL], indent=1)}\n", (1, 1, 1, 3, 1)),
        (f"{json.dumps(CALL)}\n{json.dumps(OTHER)}", (1, 0.5, 1, 6 * 3.5 / 4 - 3, 0)),
        (json.dumps(call("cagr", start=750)), (1, 1, 0.5, 0.75, 0)),
        (json.dumps(OTHER), (1, 0, 0, -3, 0)), ("[]", (1, 0, 0, -3, 0)),
        (f"Here: {json.dumps(CALL)}", (0, 0, 0, -3, 0)), (blocks(CALL), (0, 0, 0, -3, 0)),
        ("", (0, 0, 0, -3, 0)),
    ],
)  # fmt: skip
def test_the_json_dialect_by_hand(text, expected):
    found = judged(text, [CALL], dialect="json")
    parts = ("format", "name", "arguments", "correctness", "exact")
    assert tuple(found[part] for part in parts) == pytest.approx(expected)


def test_no_call_in_the_json_dialect_is_an_empty_list():
    assert judged("[]", [], dialect="json")["exact"] == 1.0
    for text in ("", "I cannot.", json.dumps(CALL)):
        assert judged(text, [], dialect="json")["exact"] == 0.0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(0.5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
calls = st.lists(
    st.builds(
        lambda name, parameters: {"name": name, "parameters": parameters},
        st.sampled_from(["f", "g", "h"]),
        st.dictionaries(st.sampled_from("abcd"), json_values, max_size=3),
    ),
    min_size=1,
    max_size=4,
)
pieces = st.lists(
    st.sampled_from(
        [
            *(
                f"<{slash}{tag}>"
                for tag in ("think", "tool_call", "response")
                for slash in ("", "/")
            ),
            *(json.dumps(CALL), '{"name":', "[", "}", "\ud800", "\\u0000", "1e999", "NaN", "\n"),
        ]
    )
    | st.text(max_size=5),
    max_size=14,
).map("".join)


@given(wanted=calls, predicted=calls)
def test_bounds_and_the_meaning_of_the_best(wanted, predicted):
    found = judged(json.dumps(predicted), wanted, dialect="json")
    assert -3 <= found["correctness"] <= 3
    assert all(0 <= found[part] <= 1 for part in PARTS if part != "correctness")
    assert (found["exact"] == 1) == (found["correctness"] == 3)
    assert judged(json.dumps(wanted), wanted, dialect="json")["exact"] == 1
    assert judged(json.dumps(wanted[::-1]), wanted, dialect="json")["exact"] == 1
    assert judged(json.dumps([*wanted, CALL]), wanted, dialect="json")["exact"] == 0
    assert judged(json.dumps(wanted[1:]), wanted, dialect="json")["exact"] == 0


@given(text=pieces | st.text(), gold=st.sampled_from([blocks(CALL), blocks(response="x"), [CALL]]))
def test_no_text_raises(text, gold):
    for dialect in ("blocks", "json"):
        rewards = tool_call_rewards(text, gold, dialect=dialect)
        assert -3 <= rewards["correctness"] <= 3
        assert rewards["format"] in (0, 1)
        assert 0 <= rewards["length"] <= 1
    assert judged(text, gold)["exact"] in (0, 1)


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"name": "f", "parameters": {"a": ' + "[" * 900 + "]" * 900 + "}}",
        '{"name": "f", "parameters": {"a": ' + "9" * 100_000 + "}}",
        "\n".join(['{"name": "cagr", "parameters": {"start": 1}}'] * 5_000),
        "<tool_call>" * 50_000,
    ],
)
def test_hostile_texts_are_quick_and_wrong(body):
    started = time.process_time()
    for text, dialect in ((body, "json"), (f"<tool_call>\n{body}\n</tool_call>", "blocks")):
        assert tool_call_rewards(text, [CALL], dialect=dialect)["correctness"] < 0
    assert time.process_time() - started < 10
