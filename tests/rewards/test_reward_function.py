"""Plain functions as rewards: binding by name, what they may return, how they may fail."""

import functools
import threading
import time

import anyio
import numpy as np
import pytest
from reward_cases import a_task, answers, score, statuses, values

from burnish.errors import RewardError, UserError
from burnish.records import Reward, Status
from burnish.rewards import Scope, bind_check, checked, from_function, function_fingerprint
from burnish.rewards.function import MOST_LEAKED, _leaked_threads, call_each


def test_arguments_are_bound_by_name():
    def grade(text, response, prompt, task, answer, finish, missing="default"):
        assert (text, finish, prompt) == (response.text, "stop", "How much?")
        assert task.fields["answer"] == answer
        return float(text == answer and missing == "default")

    scorer = from_function(grade)
    assert scorer.name == "grade"
    assert scorer.needs == {"answer"}
    assert values(score(scorer, a_task(answer="4"), "4", "5")) == [1.0, 0.0]


def test_a_plural_name_sees_the_group():
    def rank(texts, tokens, answer):
        assert tokens == [0, 0, 0]
        return [float(sorted(texts).index(text)) for text in texts]

    scorer = from_function(rank)
    assert scorer.scope is Scope.GROUP
    assert values(score(scorer, a_task(answer=1), "b", "c", "a")) == [1.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, 1.0), (3, 3.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.bool_(True), 1.0)],
)
def test_real_numbers_are_values(value, expected):
    assert values(score(from_function(lambda text: value, "f"), a_task(), "x")) == [expected]


def test_an_exit_is_an_error_at_once():
    def leave(text):
        raise SystemExit(3)

    async def leave_async(text):
        raise SystemExit(3)

    for function in (leave, leave_async):
        started = time.monotonic()
        rewards = score(from_function(function, deadline_s=600), a_task(), "x", "y")
        assert statuses(rewards) == ["reward_error"] * 2
        assert "SystemExit" in rewards[0].reason
        assert time.monotonic() - started < 120


def test_nothing_is_called_after_the_deadline_of_the_gate():
    called, may_end = [], threading.Event()

    def slow(text):
        called.append(text)
        may_end.wait(600)
        return 1.0

    async def main(deadline_s):
        texts = answers(*"abcdef")
        rewards = await checked(from_function(slow), a_task(), texts, deadline_s=deadline_s)
        may_end.set()
        await anyio.sleep(0.3)  # time enough to go on with the next, if it did
        return rewards

    for deadline_s in (0.1, 1, 10):  # on a slow machine the first call may begin late
        may_end.clear()
        assert statuses(anyio.run(main, deadline_s)) == ["timeout"] * 6
        if called:
            break
    assert called == ["a"]


def test_keyword_defaults_are_part_of_a_fingerprint():
    def make(bound):
        def grade(text, *, limit=bound):
            return float(len(text) < limit)

        return grade

    one, two, three = (function_fingerprint(make(n)) for n in (3, 4, 3))
    assert one != two
    assert one == three


def test_none_abstains_and_a_reward_is_kept_whole():
    (none,) = score(from_function(lambda text: None, "f"), a_task(), "x")
    assert (none.status, none.value) == ("abstain", None)
    inner = Reward("inner", 0.5, reason="because")
    (reward,) = score(from_function(lambda text: inner, "f"), a_task(), "x")
    assert (reward.name, reward.value, reward.reason) == ("f", 0.5, "because")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("1.0", "str '1.0'"), (float("nan"), "returned nan"), (float("inf"), "returned inf"),
        (-float("inf"), "returned -inf"), (np.array([1.0]), "ndarray"), (1 + 0j, "complex"),
        ([1.0], "list [1.0]"), ({"score": 1.0}, "dict"), (10**400, "int 1000"),
    ],
)  # fmt: skip
def test_anything_else_stops_with_one_line(value, got):
    with pytest.raises(RewardError) as caught:
        score(from_function(lambda text: value, "gate"), a_task(), "x")
    message = str(caught.value)
    assert message.startswith("reward 'gate' returned")
    assert got in message
    assert "for sample s0; expected a finite number" in message
    assert "\n" not in message


@pytest.mark.parametrize("result", [[1.0], 1.0, None, np.ones(2), [1.0, 2.0, 3.0]])
def test_a_group_function_returns_one_value_a_response(result):
    with pytest.raises(RewardError, match="expected a list of 2 values"):
        score(from_function(lambda texts: result, "g"), a_task(), "x", "y")


def test_an_exception_fails_its_own_sample():
    def divide(text):
        return 1 / int(text)

    rewards = score(from_function(divide), a_task(), "2", "0", "4")
    assert values(rewards) == [0.5, None, 0.25]
    assert rewards[1].status == "reward_error"
    assert rewards[1].reason.startswith("ZeroDivisionError: division by zero (test_reward_function")


def test_a_stuck_function_times_out_alone_and_holds_up_nothing():
    may_end = threading.Event()

    def slow(text):
        if text == "slow":
            may_end.wait(600)
        return 1.0

    started = time.monotonic()
    try:
        for deadline_s in (0.1, 1, 10):  # a slow machine may need longer for the quick ones
            rewards = score(from_function(slow, deadline_s=deadline_s), a_task(), "a", "slow", "b")
            if statuses(rewards[::2]) == ["ok", "ok"]:
                break
    finally:
        may_end.set()
    assert time.monotonic() - started < 120
    assert statuses(rewards) == ["ok", "timeout", "ok"]


def test_async_functions_are_awaited_together():
    running = set()

    async def judge(text):
        running.add(text)
        while len(running) < 4 or text == "slow":  # noqa: ASYNC110  the others set it
            await anyio.sleep(0.005)
        return 1 / int(text)

    for deadline_s in (0.1, 1, 10):  # a slow machine may need longer for the quick ones
        running.clear()
        scorer = from_function(judge, deadline_s=deadline_s)
        rewards = score(scorer, a_task(), "1", "2", "slow", "0")
        if statuses(rewards[:2]) == ["ok", "ok"]:
            break
    assert statuses(rewards) == ["ok", "ok", "timeout", "reward_error"]


def test_signatures_that_cannot_be_bound_are_refused():
    for function in (lambda text, texts: 0.0, lambda *args: 0.0):
        with pytest.raises(UserError, match=r"'f': got the parameters .*expected names"):
            from_function(function, "f")
    with pytest.raises(UserError, match="takes no option 'scale'"):
        from_function(lambda text: 0.0, "f", options={"scale": 2})
    with pytest.raises(UserError, match="does not tell its parameters"):
        from_function(max)


def test_a_missing_field_is_found_before_and_during():
    scorer = from_function(lambda text, rubric: 1.0, "f")
    with pytest.raises(UserError, match="'rubric'"):
        bind_check(scorer, ["answer"])
    (reward,) = score(scorer, a_task(answer=1), "x")
    assert (reward.status, "'rubric'" in reward.reason) == ("abstain", True)


def test_options_and_partials_are_bound():
    def scaled(text, scale):
        return scale * len(text)

    assert values(score(from_function(scaled, options={"scale": 2}), a_task(), "abc")) == [6.0]
    bound = functools.partial(scaled, scale=3)
    scorer = from_function(bound, "p")
    assert values(score(scorer, a_task(), "ab")) == [6.0]
    assert scorer.fingerprint != from_function(functools.partial(scaled, scale=4), "p").fingerprint


def test_objects_that_can_be_called_are_functions():
    class Judge:
        async def __call__(self, text):
            return len(text)

    assert values(score(from_function(Judge()), a_task(), "abc")) == [3.0]


def answers_texts(count):
    return [response.text for response in answers(*(str(n) for n in range(count)))]


def test_calls_that_never_return_stop_the_run_instead_of_slowing_it():
    ended = threading.Event()

    def stuck(text):
        ended.wait(600)

    try:
        calls = call_each([functools.partial(stuck, "x")] * MOST_LEAKED, deadline_s=0.05)
        assert [call.failure[0] for call in calls] == [Status.TIMEOUT] * MOST_LEAKED
        with pytest.raises(RewardError, match=r"never returned .*the next would be 'stuck'"):
            call_each([functools.partial(stuck, "x")], deadline_s=0.05)
    finally:
        ended.set()
    for thread in _leaked_threads:
        thread.join(60)
    assert call_each([len], deadline_s=60)[0].failure[0] is Status.REWARD_ERROR
