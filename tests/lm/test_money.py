"""A limit in tokens or dollars holds, whatever the server says or leaves out."""

import json
import logging

import anyio
import msgspec
import pytest
from hostile_server import HostileServer, chat_reply, no_answer, ok, raw, reply, slow, status

from burnish.lm.base import Completion
from burnish.lm.budget import Cost, estimate_tokens
from burnish.lm.failures import RateLimited, Refused, TimedOut, Unreachable
from burnish.lm.http import OpenAILM, Prices
from burnish.lm.jobs import Limits
from burnish.lm.wire import Usage, counted
from burnish.records import Message
from burnish.rewards.judges import Budget, BudgetSpent, JudgeModel, Question, Unreadable

PRICES = Prices(prompt_usd=1.0, completion_usd=1.0)
DEAR = {"prompt_tokens": 1_900_000, "completion_tokens": 100_000}
"""2 M tokens: two dollars."""
QUICK = Limits(backoff_base_s=0.0, backoff_cap_s=0.0, retries=2, concurrency=64)


def read_letter(text):
    if text != "A":
        raise Unreadable(f"expected A, got {text!r}")
    return text


def ask_at_once(server, count, *, text="Which one?", limits=QUICK, **limit):
    """So many questions at the same time; the judge and the statuses."""

    async def main():
        async with OpenAILM(server.url, "m", limits=limits, prices=PRICES) as lm:
            judge = JudgeModel(lm, budget=Budget(**limit), repairs=0)
            heard = []

            async def one(number):
                question = Question("pair", (Message("user", f"{text} {number}"),))
                heard.append(await judge.ask(question, read_letter))

            async with anyio.create_task_group() as group:
                for number in range(count):
                    group.start_soon(one, number)
            return judge, heard

    return anyio.run(main)


REFUSED = {"message": {"content": None, "refusal": "I will not"}}
FILTERED = {"message": {"content": None}, "finish_reason": "content_filter"}


@pytest.mark.parametrize(
    "content",
    [
        chat_reply("A") | {"usage": DEAR},
        chat_reply(**REFUSED) | {"usage": DEAR},
        chat_reply(**FILTERED) | {"usage": DEAR},
        chat_reply(None) | {"usage": DEAR},
        chat_reply(7) | {"usage": DEAR},
        chat_reply("no verdict") | {"usage": DEAR},
        chat_reply("A", model="another") | {"usage": DEAR},
        chat_reply("A", n=3) | {"usage": DEAR},
        {"model": "m", "choices": [], "usage": DEAR},
        {"error": "overloaded", "usage": DEAR},
        chat_reply("A") | {"usage": {"prompt_tokens": 1.9e6, "completion_tokens": 1e5}},
        chat_reply("A") | {"usage": {"prompt_tokens": "1900000", "completion_tokens": "100000"}},
        chat_reply("A") | {"usage": {"total_tokens": 2_000_000}},
        chat_reply("A")
        | {"usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 2_000_000}},
    ],
    ids=[
        "answered", "refused", "filtered", "null", "wrong-type", "no-verdict", "wrong-model",
        "wrong-n", "no-choices", "error", "floats", "strings", "total-only", "thoughts-in-total",
    ],
)  # fmt: skip
def test_a_dear_reply_is_paid_whatever_comes_of_it(content):
    """64 questions at once, two dollars a reply: the limit of five is passed by one call at most."""
    with HostileServer([reply(content)]) as server:
        judge, heard = ask_at_once(server, 64, usd=5.0)
    assert 5.0 <= judge.spent.usd <= 5.0 + 2.1 * (1 + QUICK.retries)
    assert 2 * len(server.requests) == pytest.approx(judge.spent.usd, rel=0.01)
    assert judge.budget.exhausted == "the budget of $5 is spent"
    assert sum("is spent" in h.reason for h in heard) == 64 - judge.spent.calls


@pytest.mark.parametrize(
    "usage",
    [
        None, {}, [7], "many", {"prompt_tokens": -5, "completion_tokens": -5},
        {"prompt_tokens": True, "completion_tokens": True}, {"prompt_tokens": 0},
        {"prompt_tokens": 10**30, "completion_tokens": 10**30},
        {"prompt_tokens": {"text": 5}, "completion_tokens": [1]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("said", [{}, REFUSED, {"message": {"content": None}}])
def test_a_server_that_does_not_count_is_estimated_and_named_once(usage, said, caplog):
    text = "word " * 80_000  # about 100 k tokens: ten cents, fifteen as an estimate
    content = chat_reply("A", **said) | {"usage": usage}
    with HostileServer([reply(content)]) as server, caplog.at_level(logging.WARNING):
        judge, _ = ask_at_once(server, 12, text=text, usd=0.4)
    assert judge.spent.calls == len(server.requests) == 3
    assert judge.spent.usd == pytest.approx(0.45, rel=0.05)
    assert judge.spent.prompt_tokens == pytest.approx(300_000, rel=0.01)
    assert judge.spent.estimated == 3
    named = [r.getMessage() for r in caplog.records if "does not count" in r.getMessage()]
    assert len(named) == 1
    assert "so that the budget of $0.4 holds" in named[0]


def test_a_count_that_no_number_can_hold_does_not_lose_the_answer():
    body = json.dumps(chat_reply("A")).replace('"prompt_tokens": 10', '"prompt_tokens": 1e999')
    with HostileServer([raw(body.encode())]) as server:
        judge, heard = ask_at_once(server, 1, usd=1.0)
    assert heard[0].verdict == "A"
    assert judge.spent.estimated == 1


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, (3, 2)),
        ({"prompt_tokens": 2.2, "completion_tokens": 2}, (3, 2)),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, (0, 0)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 9}, (3, 6)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 1}, (3, 2)),
        ({"completion_tokens": 2, "total_tokens": 9}, (7, 2)),
        ({"total_tokens": 9}, (0, 9)),
        ({"prompt_tokens": "٣"}, (0, 0)),
        (None, (0, 0)),
    ],
)
def test_counts_as_servers_write_them(usage, expected):
    assert counted(usage) == Usage(*expected)


def test_estimates_count_other_scripts_by_the_sign():
    assert [estimate_tokens(t) for t in ("", "x", "x" * 400, "数学数学", "aé🙂")] == [
        0,
        1,
        100,
        4,
        3,
    ]


def test_a_request_that_is_never_answered_counts_as_its_most():
    """The server may have read the prompt and written on, whether we waited or not."""
    patient = msgspec.structs.replace(QUICK, attempt_s=0.3, retries=1)
    with HostileServer([slow(60, ok("A"))]) as server:
        judge, heard = ask_at_once(server, 1, limits=patient, usd=1.0)
    assert heard[0].status == "timeout"
    each = (estimate_tokens("Which one? 0") + 4 + judge.sampling.max_tokens) * 1.5 / 1e6
    assert judge.spent.usd == pytest.approx(2 * each)
    with HostileServer([no_answer]) as server:
        judge, _ = ask_at_once(server, 1, limits=patient, usd=1.0)
    assert judge.spent.usd == pytest.approx(2 * each)


def test_attempts_before_the_good_one_are_paid_too():
    dear = chat_reply(model="another") | {"usage": DEAR}
    torn = json.dumps(chat_reply("A")).encode()[:-20]
    with HostileServer([raw(torn), ok("A")]) as server:
        judge, heard = ask_at_once(server, 1, usd=50.0)
    most = (estimate_tokens("Which one? 0") + 4 + judge.sampling.max_tokens) * 1.5 / 1e6
    assert heard[0].verdict == "A"
    assert judge.spent.usd == pytest.approx(most + 12 / 1e6)
    assert judge.spent.completion_tokens == 2 + judge.sampling.max_tokens
    with HostileServer([reply(dear)]) as server:
        assert ask_at_once(server, 1, usd=50.0)[0].spent.usd == 2.0


@pytest.mark.parametrize("behaviour", [status(500), status(429), status(400), raw(b"<html>")])
def test_what_no_model_answered_costs_nothing(behaviour):
    with HostileServer([behaviour]) as server:
        judge, _ = ask_at_once(server, 3, usd=1.0)
    assert (judge.spent.usd, judge.spent.failed, judge.spent.calls) == (0.0, 3, 3)


def test_a_server_that_is_not_there_costs_nothing():
    server = HostileServer([ok()])
    server._server.server_close()
    assert ask_at_once(server, 2, usd=1.0)[0].spent.usd == 0.0


def test_a_limit_of_tokens_holds_at_once_too():
    with HostileServer([ok("A", finish_reason="stop")]) as server:
        judge, _ = ask_at_once(server, 64, tokens=100)
    assert judge.spent.tokens == 108  # nine calls of twelve
    assert len(server.requests) == 9


def test_far_from_its_limit_a_budget_holds_nobody_up():
    with HostileServer([slow(0.2, ok("A"))]) as server:
        judge, _ = ask_at_once(server, 33, usd=50.0)
    assert judge.spent.calls == 33
    assert server.peak > 8


class Unmetered:
    """A model of one's own with prices, which keeps no books."""

    name = "own"
    prices = PRICES

    def __init__(self, error=None, **more):
        self.error, self.more = error, more

    async def sample(self, prompt, sampling):
        if self.error is not None:
            raise self.error
        return [Completion("A", **self.more)]

    async def score(self, *args, **more):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("lm", "usd"),
    [
        (Unmetered(prompt_tokens=5, completion_tokens=5, cost_usd=0.25), 0.25),
        (Unmetered(cost_usd=0.25), 0.25),
        (Unmetered(), (1 + 1) * 1.5 / 1e6),
        (Unmetered(Refused("no")), (1 + 1024) * 1.5 / 1e6),
        (Unmetered(TimedOut("late")), (1 + 1024) * 1.5 / 1e6),
        (Unmetered(Unreachable("cut")), (1 + 1024) * 1.5 / 1e6),
        (Unmetered(RateLimited("busy")), 0.0),
    ],
)
def test_a_model_without_a_meter_is_paid_by_its_reply(lm, usd):
    judge = JudgeModel(lm, budget=Budget(usd=1.0))
    anyio.run(judge.ask, Question("pair", (Message("user", "ABCD"),)), read_letter)
    assert judge.spent.usd == pytest.approx(usd)


def test_calls_wait_for_those_under_way_and_start_when_they_end():
    budget = Budget(tokens=100)
    first = budget.take(Cost(10, 10))
    assert budget.take(Cost(10, 10)) is None, "nothing is known of the server yet"
    budget.settle(Cost(1, 1), first)
    held = [budget.take(Cost(10, 10)) for _ in range(5)]
    assert [one is not None for one in held] == [True] * 4 + [False]
    budget.settle(Cost(40, 40), held[0])
    assert budget.take(Cost(1, 1)) is None
    for one in held[1:4]:
        budget.settle(Cost(0, 8), one)
    with pytest.raises(BudgetSpent, match="100 tokens"):
        budget.take(Cost(1, 1))


def test_while_all_calls_fail_more_and_more_may_start():
    budget = Budget(usd=1.0)
    sizes = []
    for _ in range(4):
        held = []
        while (one := budget.take(Cost(1, 1, 1e-6))) is not None:
            held.append(one)
        sizes.append(len(held))
        for one in held:
            budget.fail(Cost(), one)
    assert sizes == [1, 2, 4, 8]


def test_a_copy_that_lost_the_race_is_paid_too():
    hedging = msgspec.structs.replace(QUICK, hedge_after_s=0.1)
    with HostileServer([slow(60, ok("A")), ok("A")]) as server:
        judge, heard = ask_at_once(server, 1, limits=hedging, usd=1.0)
    most = (estimate_tokens("Which one? 0") + 4 + judge.sampling.max_tokens) * 1.5 / 1e6
    assert (heard[0].verdict, len(server.requests)) == ("A", 2)
    assert judge.spent.usd == pytest.approx(most + 12 / 1e6)


def test_a_call_past_the_judges_own_deadline_is_paid():
    async def main():
        async with OpenAILM(server.url, "m", limits=QUICK, prices=PRICES) as lm:
            judge = JudgeModel(lm, budget=Budget(usd=1.0), deadline_s=0.2)
            await judge.ask(Question("pair", (Message("user", "x"),)), read_letter)
            return judge.spent

    with HostileServer([slow(60, ok("A"))]) as server:
        spent = anyio.run(main)
    assert (spent.failed, spent.estimated) == (1, 1)
    assert spent.usd == pytest.approx((1 + 4 + 1024) * 1.5 / 1e6)


@pytest.mark.parametrize(
    "said",
    [
        {"cost_usd": float("nan"), "prompt_tokens": 5},
        {"cost_usd": -1.0, "prompt_tokens": 5},
        {"cost_usd": float("inf")},
        {"prompt_tokens": -(10**6)},
    ],
)
def test_a_model_cannot_earn_money_by_answering(said):
    judge = JudgeModel(Unmetered(**said), budget=Budget(usd=1.0))
    for number in range(3):
        question = Question("pair", (Message("user", f"ABCD {number}"),))
        anyio.run(judge.ask, question, read_letter)
    assert judge.spent.usd == pytest.approx(3 * 3 * 1.5 / 1e6)
    assert judge.spent.tokens == 9
