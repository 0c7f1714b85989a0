"""The bridge that every adapter stands on: rows to tasks, rewards to numbers, traces to a file."""

import asyncio
import os
import pickle
import threading

import anyio
import pytest
from engine_cases import ANCHOR, Fussy, Group, LongerWins, correct, total
from hypothesis import given, strategies as st

from burnish.engines import Bridge, as_trl, read_traces
from burnish.engines.background import call, call_async
from burnish.engines.bridge import as_messages, completion_text
from burnish.errors import StoreError, UserError
from burnish.records import Message, Reward, Status
from burnish.seeds import digest


def test_prompts_are_texts_or_messages():
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "3 + 4?"}]
    assert as_messages("3 + 4?") == (Message("user", "3 + 4?"),)
    assert as_messages(chat) == (Message("system", "be brief"), Message("user", "3 + 4?"))
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, "b"]}]
    assert as_messages(parts) == (Message("user", "ab"),)


def test_a_completion_is_what_the_model_said_last():
    turns = [
        {"role": "assistant", "content": "let me look"},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "it is 42"},
    ]
    assert completion_text(turns) == "it is 42"
    assert completion_text("plain") == "plain"
    assert completion_text([{"role": "tool", "content": "42"}]) == ""
    assert completion_text([{"role": "assistant", "content": None}]) == ""


def test_columns_become_fields_and_labels_stay_hidden_from_judges():
    bridge = Bridge(correct(), columns={"solution": "answer"})
    item = bridge.item("3 + 4?", "7", {"solution": "7", "topic": "sums"})
    assert item.task.fields == {"answer": "7", "topic": "sums"}
    assert item.task.for_judge().fields == {"topic": "sums"}


def test_a_renamed_label_is_still_a_label():
    bridge = Bridge(correct(), columns={"solution": "reference"})
    item = bridge.item("3 + 4?", "7", {"solution": "7"})
    assert item.task.for_judge().fields == {}


def test_ids_come_from_the_data_or_from_the_content():
    bridge = Bridge(correct())
    assert bridge.item("p", "c", {"id": 5}).task.id == "5"
    one = bridge.item("p", "c", {"answer": "7", "more": [1]})
    two = bridge.item("p", "other", {"more": [1], "answer": "7"})
    assert one.task.id == two.task.id != bridge.item("q", "c", {"answer": "7"}).task.id
    assert one.response.id != two.response.id


def test_neighbours_with_the_same_task_are_asked_together_and_order_is_kept():
    scorer = Fussy()
    bridge = Bridge(scorer)
    rows = [("p", "a"), ("p", "bb"), ("q", "ccc"), ("p", "dddd")]
    scored = bridge.score_now([bridge.item(p, c, {}) for p, c in rows])
    assert [one.reward.value for one in scored] == [1.0, 2.0, 3.0, 4.0]
    assert len(scorer.tasks) == 3


def test_numbers_have_the_same_keys_for_every_reward():
    bridge = Bridge(total())
    part = Reward("correct", 1.0)
    full = Reward("total", 1.0, parts=(part, Reward("length", 3.0)))
    failed = Reward.failed("length", Status.TIMEOUT, "late")
    half = Reward.failed("total", Status.TIMEOUT, "late", parts=(part, failed))
    bare = Reward.failed("total", Status.INFRA_ERROR, "no server")
    rows = [bridge.numbers(reward) for reward in (full, half, bare)]
    assert rows[0] == {
        "valid": 1.0,
        "correct": 1.0,
        "correct_valid": 1.0,
        "length": 3.0,
        "length_valid": 1.0,
    }
    assert [row["valid"] for row in rows] == [1.0, 0.0, 0.0]
    assert [row["correct_valid"] for row in rows] == [1.0, 1.0, 0.0]
    assert len({tuple(row) for row in rows}) == 1


def test_rewards_that_compare_need_an_anchor():
    with pytest.raises(UserError, match=r"compares responses .scope pair.*anchor='FIELD'"):
        Bridge(LongerWins())
    with pytest.raises(UserError, match=r"compares responses .scope group"):
        Bridge(Group())
    with pytest.raises(UserError, match="takes no anchor"):
        Bridge(correct(), anchor="reference")
    fixed = Bridge(LongerWins(), anchor=ANCHOR)
    items = [fixed.item("p", text, {}) for text in ("12345", "123", "1234")]
    assert [one.reward.value for one in fixed.score_now(items)] == [1.0, -1.0, 0.0]
    named = Bridge(LongerWins(), anchor="reference")
    (one,) = named.score_now([named.item("p", "12345", {"reference": "123"})])
    assert one.reward.value == 1.0


def test_missing_columns_are_told_before_anything_is_scored():
    reward = as_trl(correct())
    with pytest.raises(UserError, match=r"needs 'answer'.*Did you mean 'answers'"):
        reward(prompts=["p"], completions=["7"], answers=["7"])
    assert reward(prompts=["p"], completions=["7"], answer=["7"]) == [1.0]
    with pytest.raises(UserError, match="needs 'answer'"):
        reward(prompts=["p"], completions=["7"])


def test_the_trace_holds_the_whole_reward_under_its_key(tmp_path):
    path = tmp_path / "deep" / "traces.jsonl"
    bridge = Bridge(Fussy(), trace=path)
    items = [bridge.item("p", text, {"id": "t1"}) for text in ("hello", "timeout please")]
    scored = bridge.score_now(items)
    lines = list(read_traces(path))
    assert [line.key for line in lines] == [one.key for one in scored]
    assert lines[0].key == f"t1/{digest('hello')}"
    assert lines[0].reward.evidence[0].observation == "saw hello"
    assert lines[1].reward.status is Status.TIMEOUT
    path.write_bytes(path.read_bytes() + b"{broken\n")
    with pytest.raises(StoreError, match="line 3"):
        list(read_traces(path))


def test_threads_share_a_trace_file_without_mixing_lines(tmp_path):
    path = tmp_path / "traces.jsonl"
    bridge = Bridge(Fussy(), trace=path)

    def write(word):
        for turn in range(20):
            bridge.score_now([bridge.item("p", f"{word}{turn}" * 50, {})])

    threads = [threading.Thread(target=write, args=(word,)) for word in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(read_traces(path))) == 80


def test_a_trace_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    bridge = Bridge(Fussy(), trace=tmp_path / "file" / "traces.jsonl")
    with pytest.raises(StoreError, match="cannot be written"):
        bridge.score_now([bridge.item("p", "c", {})])


def test_a_bridge_can_be_pickled():
    bridge = Bridge(LongerWins(), anchor=ANCHOR, trace="traces.jsonl", columns={"a": "b"})
    again = pickle.loads(pickle.dumps(bridge))
    assert again.columns == {"a": "b"}
    assert again.trace.path == bridge.trace.path


def test_work_runs_on_one_loop_from_everywhere():
    async def where():
        return threading.current_thread().name

    async def inside():
        return [call(where), await call_async(where)]

    names = {call(where), *asyncio.run(inside())}
    assert names == {f"burnish-scoring-{os.getpid()}"}


def test_an_error_reaches_the_caller_as_itself():
    async def breaks():
        raise UserError("one line")

    with pytest.raises(UserError, match="one line"):
        call(breaks)

    async def inside():
        await call_async(breaks)

    with pytest.raises(UserError, match="one line"):
        anyio.run(inside)


def test_a_cancelled_caller_cancels_the_work():
    begun, ended = threading.Event(), threading.Event()

    async def slow():
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def inside():
        async with anyio.create_task_group() as group:
            group.start_soon(call_async, slow)
            while not begun.is_set():  # noqa: ASYNC110  set by another thread
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()

    anyio.run(inside)
    assert ended.wait(60)


def test_the_loop_refuses_to_wait_for_itself():
    async def again():
        return call(again)

    with pytest.raises(RuntimeError, match="waits for itself"):
        call(again)


@given(
    st.lists(
        st.tuples(st.sampled_from("pq"), st.sampled_from(["", "a", "bb", "timeout", "refused"])),
        max_size=8,
    )
)
def test_every_item_gets_its_own_reward(rows):
    bridge = Bridge(Fussy())
    scored = bridge.score_now([bridge.item(p, c, {}) for p, c in rows])
    expected = [None if text in ("timeout", "refused") else float(len(text)) for _, text in rows]
    assert [one.reward.value for one in scored] == expected
