"""Connections to one server: reused, as many as needed at once, and the tokens a reply counts."""

import anyio
import pytest
from hostile_server import HostileServer, chat_reply, ok, reply, slow

from burnish.lm.base import Sampling
from burnish.lm.connections import Connections
from burnish.lm.http import OpenAILM, Prices
from burnish.lm.jobs import Limits
from burnish.records import Message

HELLO = (Message("user", "hello"),)


def test_a_connection_is_used_again_and_a_second_one_only_at_need():
    async def run():
        connections = Connections("1")
        async with connections.one() as first:
            assert first.headers["authorization"] == "Bearer 1"
        async with connections.one() as again:
            assert again is first
            async with connections.one() as second:
                assert second is not first
        # The one used last is the warm one.
        async with connections.one() as third:
            assert third is first
        await connections.aclose()
        assert first.is_closed
        assert second.is_closed
        async with connections.one() as fresh:
            assert not fresh.is_closed
        await connections.aclose()

    anyio.run(run)


def test_a_loop_that_ends_closes_its_connections():
    """A judge that is asked once for each of many event loops keeps none of their sockets."""
    connections = Connections()

    async def run():
        async with connections.one() as client, connections.one():
            return client

    used = [anyio.run(run) for _ in range(3)]
    assert len(set(used)) == 3
    assert all(client.is_closed for client in used)


def test_a_client_goes_back_after_an_error_and_a_closed_one_does_not():
    async def run():
        connections = Connections()
        with pytest.raises(ValueError, match="broken"):
            async with connections.one() as client:
                raise ValueError("broken")
        async with connections.one() as same:
            assert same is client
            await same.aclose()
        async with connections.one() as other:
            assert other is not client
        await connections.aclose()

    anyio.run(run)


def test_many_requests_at_once_get_their_own_answers():
    with HostileServer([slow(0.05, ok())]) as server:

        async def run():
            async with OpenAILM(server.url, "m", limits=Limits(concurrency=8)) as lm:
                texts = []

                async def one():
                    texts.append((await lm.sample(HELLO, Sampling()))[0].text)

                async with anyio.create_task_group() as group:
                    for _ in range(24):
                        group.start_soon(one)
                return texts

        assert anyio.run(run) == ["fine"] * 24


def test_completions_carry_what_the_server_counted():
    usage = {"prompt_tokens": 1000, "completion_tokens": 7}
    prices = Prices(prompt_usd=2.0, completion_usd=4.0)
    replies = [reply(chat_reply(n=3) | {"usage": usage}), reply(chat_reply() | {"usage": None})]
    with HostileServer(replies) as server:

        async def run():
            async with OpenAILM(server.url, "m", prices=prices) as lm:
                return await lm.sample(HELLO, Sampling(n=3)), await lm.sample(HELLO, Sampling())

        three, uncounted = anyio.run(run)
    assert [c.prompt_tokens for c in three] == [1000, 0, 0]
    assert [c.completion_tokens for c in three] == [3, 2, 2]
    assert sum(c.cost_usd for c in three) == pytest.approx((1000 * 2 + 7 * 4) / 1e6)
    assert (uncounted[0].prompt_tokens, uncounted[0].cost_usd) == (0, 0.0)
