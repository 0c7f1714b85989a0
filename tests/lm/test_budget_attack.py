"""Limits of a judge under attack: many questions at once, hedged copies and retries, all paid."""

import anyio
import pytest
from hostile_server import HostileServer, chat_reply, ok, reply, slow, status

from burnish.lm.base import Sampling
from burnish.lm.http import OpenAILM, Prices
from burnish.lm.jobs import Limits
from burnish.records import Message
from burnish.rewards.judges import Budget, JudgeModel, Question

MOST = 1000
"""Tokens that a reply may have, and that the hostile server always writes."""
PRICES = Prices(prompt_usd=0.0, completion_usd=1000.0)  # a tenth of a cent a token: $1 a reply


def paid(text="A"):
    usage = {"prompt_tokens": 5, "completion_tokens": MOST}
    return reply(chat_reply(text) | {"usage": usage})


def attack(behaviours, *, questions=40, limits, **budget):
    """Ask many questions at once; the judge and the server's requests."""

    async def main(server):
        async with OpenAILM(server.url, "m", limits=limits, prices=PRICES) as lm:
            sampling = Sampling(temperature=0.0, max_tokens=MOST)
            judge = JudgeModel(lm, budget=Budget(**budget), repairs=0, sampling=sampling)

            async def one(number):
                await judge.ask(Question("pair", (Message("user", f"{number}?"),)), str)

            async with anyio.create_task_group() as group:
                for number in range(questions):
                    group.start_soon(one, number)
            return judge

    with HostileServer(behaviours) as server:
        judge = anyio.run(main, server)
    return judge, server.requests


HEDGED = Limits(concurrency=64, retries=1, hedge_after_s=0.1, backoff_base_s=0.0)
RETRIED = Limits(concurrency=64, retries=2, attempt_s=0.3, backoff_base_s=0.0, backoff_cap_s=0.0)


def slow_after_the_first(number, seen):
    return paid() if number == 0 else slow(0.4, paid())


@pytest.mark.parametrize("limits", [HEDGED, RETRIED], ids=["hedged", "timed out and retried"])
@pytest.mark.parametrize("budget", [{"tokens": 20 * MOST}, {"usd": 20.0}], ids=["tokens", "usd"])
def test_what_the_server_may_bill_stays_within_the_limit(limits, budget):
    judge, requests = attack(slow_after_the_first, limits=limits, **budget)
    # Every request that was sent may be billed as its most, answered or not.
    billed = len(requests) * (MOST + 5)
    most_of_one_call = (1 + limits.retries) * (MOST + 40)
    limit = 20 * MOST
    assert billed <= limit + most_of_one_call
    assert judge.spent.tokens <= limit + most_of_one_call
    assert len(requests) > 10  # and the limit is used, not left


@pytest.mark.parametrize("limits", [HEDGED, RETRIED], ids=["hedged", "retried"])
def test_the_limit_of_calls_is_exact_and_bounds_the_requests(limits):
    judge, requests = attack(slow_after_the_first, limits=limits, calls=7)
    assert judge.spent.calls == 7
    assert len(requests) <= 7 * (1 + limits.retries)


def test_errors_that_cost_nothing_do_not_spend_the_limit():
    limits = Limits(concurrency=64, retries=2, backoff_base_s=0.0, backoff_cap_s=0.0)

    def flaky(number, seen):
        return status(503) if number % 2 else ok("A")

    judge, _ = attack(flaky, limits=limits, questions=20, tokens=10**6)
    assert judge.spent.tokens < 20 * 50
    assert judge.spent.failed < 20
