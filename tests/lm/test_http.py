"""What goes over the wire and what is made of good replies, vLLM's extensions included."""

import json
from typing import ClassVar

import anyio
import pytest
from anyio.lowlevel import RunVar
from fake_clock import run_jobs
from hostile_server import HostileServer, chat_reply, ok, reply, status, together

from burnish.errors import ModelError
from burnish.lm import wire
from burnish.lm.base import Sampling
from burnish.lm.capabilities import Capabilities
from burnish.lm.failures import BadReply, Unsupported, WrongModel
from burnish.lm.http import OpenAILM, Prices
from burnish.lm.jobs import Answer, Job, Limits
from burnish.lm.request_pool import RequestPool
from burnish.records import Finish, Message, Status

HELLO = (Message("system", "be brief"), Message("user", "hello"))


def using(server, work, **more):
    """Run `work(lm)` against the server."""

    async def main():
        async with OpenAILM(server.url, "m", limits=Limits(retries=0), **more) as lm:
            return await work(lm)

    return anyio.run(main)


def vllm(handler, body):
    """A server with the capabilities of vLLM: prompt ids 1 2 3, completion i samples 70 + i, 2."""
    n, prompt = body.get("n", 1), body.get("prompt")
    choices = []
    for i in range(n):
        ids = [70 + i + body["seed"] % 5 if "seed" in body else 70, 2]
        choice = {"index": i, "finish_reason": "stop", "stop_reason": None}
        name = "token_id:{}" if body.get("return_tokens_as_token_ids") else "tok{}"
        if body.get("logprobs") not in (None, False):
            alternatives = [{"token": name.format(9), "logprob": -3.0}]
            content = [
                {"token": name.format(t), "logprob": -0.5 * k, "top_logprobs": alternatives}
                for k, t in enumerate(ids)
            ]
            lists = {
                "tokens": [name.format(t) for t in ids],
                "token_logprobs": [-0.5 * k for k in range(len(ids))],
                "top_logprobs": [{name.format(9): -3.0} for _ in ids],
            }
            choice["logprobs"] = {"content": content} if prompt is None else lists
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
        text = {"message": {"content": f"text {ids[0]}"}}
        if prompt is not None:
            text = {"text": f"text {ids[0]}"}
            if "prompt_logprobs" in body:
                rows = [{str(t): {"logprob": -0.1 * t}, "8": {"logprob": -9.0}} for t in prompt]
                choice["prompt_logprobs"] = [None, *rows[1:]]
        choices.append(choice | text)
    content = {"model": body["model"], "choices": choices, "prompt_token_ids": [1, 2, 3]}
    handler.send(200, json.dumps(content).encode())


def test_messages_go_to_chat_and_only_changed_settings_are_sent():
    with HostileServer([ok()]) as server:
        using(server, lambda lm: lm.sample(HELLO, Sampling(max_tokens=9, temperature=0.5, seed=3)))
    (seen,) = server.requests
    assert seen.path == "/v1/chat/completions"
    assert seen.body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ],
        "max_tokens": 9,
        "temperature": 0.5,
        "seed": 3,
    }


def test_every_setting_reaches_the_server():
    sampling = Sampling(
        n=2, top_k=5, top_p=0.9, min_p=0.1, stop=("a", "b"), seed=2**40 + 7, top_logprobs=3
    )
    body = wire.request_body("m", [4, 5], sampling, logprobs=True, token_ids=True)
    assert body == {
        "model": "m",
        "prompt": [4, 5],
        "max_tokens": 256,
        "temperature": 1.0,
        "seed": 7,
        "n": 2,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "stop": ["a", "b"],
        "logprobs": 3,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def test_tokens_and_cost_are_counted():
    with HostileServer([ok()]) as server:
        prices = Prices(prompt_usd=3.0, completion_usd=15.0)

        async def work(lm):
            await lm.sample(HELLO, Sampling(n=5))
            return lm.pool.totals

        totals = using(server, work, prices=prices)
    assert (totals.prompt_tokens, totals.completion_tokens) == (10, 10)
    assert totals.cost_usd == pytest.approx(10 * 3e-6 + 10 * 15e-6)


def test_models_behind_one_quota_share_a_pool():
    pool = RequestPool(Limits(concurrency=2, retries=0))
    with HostileServer([together(2, ok())]) as server:

        async def main():
            lms = [OpenAILM(server.url, name, pool=pool) for name in "abcd"]
            async with anyio.create_task_group() as group:
                for lm in lms:
                    group.start_soon(lm.sample, HELLO, Sampling())
            for lm in lms:
                await lm.aclose()

        anyio.run(main)
    assert (server.peak, pool.totals.ok) == (2, 4)


def test_choices_are_put_in_order_and_finish_reasons_mapped():
    content = chat_reply(n=5)
    reasons = ["stop", "length", "tool_calls", "content_filter", "stop"]
    for choice, reason in zip(content["choices"], reasons, strict=True):
        choice["finish_reason"] = reason
        choice["message"] = {"content": f"text {choice['index']}"}
    content["choices"][2]["message"] = {"content": None, "tool_calls": []}
    content["choices"][4]["message"] = {"content": None, "refusal": "I will not"}
    content["choices"].reverse()
    with HostileServer([reply(content)]) as server:
        completions = using(server, lambda lm: lm.sample(HELLO, Sampling(n=5)))
    assert [c.text for c in completions] == ["text 0", "text 1", "", "text 3", "I will not"]
    finishes = [Finish.STOP, Finish.LENGTH, Finish.STOP, Finish.ERROR, Finish.ERROR]
    assert [c.finish for c in completions] == finishes


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("eos", Finish.STOP),
        ("end_turn", Finish.STOP),
        (None, Finish.STOP),
        ("max_tokens", Finish.LENGTH),
    ],
)
def test_an_unusual_finish_reason_does_not_lose_the_answer(reason, finish):
    with HostileServer([ok(finish_reason=reason)]) as server:
        (completion,) = using(server, lambda lm: lm.sample(HELLO, Sampling()))
    assert (completion.text, completion.finish) == ("fine", finish)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": None, "completion_tokens": 3}, (0, 3)),
        ({"prompt_tokens": "many", "completion_tokens": -1}, (0, 0)),
        (None, (0, 0)),
        ([7], (0, 0)),
    ],
)
def test_odd_usage_does_not_lose_the_answer(usage, counted):
    async def work(lm):
        return await lm.sample(HELLO, Sampling()), lm.pool.totals

    with HostileServer([reply(chat_reply() | {"usage": usage})]) as server:
        (completion,), totals = using(server, work)
    assert completion.text == "fine"
    assert (totals.prompt_tokens, totals.completion_tokens) == counted


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"finish_reason": "content_filter", "message": {"content": None}}, "content_filter"),
        ({"message": {"content": None, "refusal": "I will not"}}, "I will not"),
    ],
)
def test_a_refused_answer_has_the_status_refused(choice, said):
    with HostileServer([reply(chat_reply(n=2, **choice))]) as server:

        async def judge(lm):
            async def worker(job):
                return Answer(await lm.sample(HELLO, Sampling(n=2)))

            return await run_jobs(RequestPool(), [Job("judge")], worker)

        (outcome,) = using(server, judge)
    assert outcome.status is Status.REFUSED
    assert said in outcome.error
    assert len(server.requests) == 1


def test_half_a_character_is_one_clear_line_and_no_request():
    with HostileServer([ok()]) as server, pytest.raises(ModelError, match="half a character"):
        using(server, lambda lm: lm.sample((Message("user", "x\ud800"),), Sampling()))
    assert server.requests == []


class RunVarByName:
    """The run variables of anyio before 4.10: one value a name."""

    values: ClassVar[dict[str, object]] = {}

    def __init__(self, name, default):
        self.name, self.default = name, default

    def get(self):
        return self.values.get(self.name, self.default)

    def set(self, value):
        self.values[self.name] = value


@pytest.mark.parametrize("kind", [RunVar, RunVarByName])
def test_two_models_on_one_loop_keep_their_keys_apart(monkeypatch, kind):
    monkeypatch.setattr("burnish.lm.connections.RunVar", kind)
    with HostileServer([ok()]) as one, HostileServer([ok()]) as two:

        async def main():
            first = OpenAILM(one.url, "m", api_key="key-one")
            second = OpenAILM(two.url, "m", api_key="key-two")
            async with first, second:
                for lm in (first, second, first):
                    await lm.sample(HELLO, Sampling())

        anyio.run(main)
    keys = [[r.headers["authorization"] for r in server.requests] for server in (one, two)]
    assert keys == [["Bearer key-one"] * 2, ["Bearer key-two"]]


def test_a_stop_string_that_a_server_leaves_in_is_cut_off():
    with HostileServer([ok("one END two STOP")]) as server:
        work = lambda lm: lm.sample(HELLO, Sampling(stop=("STOP", "END")))  # noqa: E731
        (completion,) = using(server, work)
    assert completion.text == "one "


@pytest.mark.parametrize("prompt", [HELLO, [1, 2, 3]], ids=["chat", "token ids"])
def test_token_ids_and_logprobs_of_a_capable_server(prompt):
    capabilities = Capabilities(logprobs=True, token_ids=True)
    with HostileServer([vllm]) as server:
        sampling = Sampling(n=2, top_logprobs=1, seed=0)
        work = lambda lm: lm.sample(prompt, sampling)  # noqa: E731
        completions = using(server, work, capabilities=capabilities)
    assert [c.token_ids for c in completions] == [(70, 2), (71, 2)]
    assert [c.logprobs for c in completions] == [(0.0, -0.5)] * 2
    assert completions[0].top_logprobs == ({9: -3.0}, {9: -3.0})
    assert completions[0].prompt_ids == (1, 2, 3)
    assert completions[0].model == "m"


def test_logprobs_at_another_temperature_are_left_out_not_mislabelled():
    with HostileServer([vllm]) as server:
        work = lambda lm: lm.sample(HELLO, Sampling(temperature=0.7))  # noqa: E731
        (completion,) = using(
            server, work, capabilities=Capabilities(logprobs=True, token_ids=True)
        )
    assert completion.token_ids == (70, 2)
    assert completion.logprobs == ()


def test_ids_and_logprobs_of_different_length_are_refused():
    content = chat_reply(token_ids=[1, 2], logprobs={"content": [{"token": "a", "logprob": -1.0}]})
    with HostileServer([reply(content)]) as server, pytest.raises(BadReply, match="2 token ids"):
        using(
            server,
            lambda lm: lm.sample(HELLO, Sampling()),
            capabilities=Capabilities(logprobs=True, token_ids=True),
        )


def test_without_n_each_completion_is_asked_for_with_its_own_seed():
    with HostileServer([vllm]) as server:
        completions = using(
            server,
            lambda lm: lm.sample(HELLO, Sampling(n=3, seed=1)),
            capabilities=Capabilities(n=False),
        )
    assert [c.text for c in completions] == ["text 71", "text 72", "text 73"]
    assert sorted(r.body["seed"] for r in server.requests) == [1, 2, 3]
    assert all("n" not in r.body for r in server.requests)


@pytest.mark.parametrize(
    ("asked", "got", "same"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("gpt-4", "gpt-4-0613", True),
        ("claude-x", "claude-x-20250514", True),
        ("llama3", "llama3:latest", True),
        ("m", "alias", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4", "gpt-4-32k", False),
        ("a.c", "abc", False),
    ],
)
def test_which_names_count_as_the_same_model(asked, got, same):
    if same:
        wire.check_model(asked, got, ("alias",), "here")
    else:
        with pytest.raises(WrongModel, match="accept_models"):
            wire.check_model(asked, got, ("alias",), "here")


def test_score_with_prompt_logprobs():
    with HostileServer([vllm]) as server:
        scores = using(server, lambda lm: lm.score([1, 2], [3, 4]))
    assert scores.logprobs == pytest.approx((-0.3, -0.4))
    assert server.requests[0].body["prompt"] == [1, 2, 3, 4]


def test_score_with_echo_where_prompt_logprobs_are_unknown():
    def old_style(handler, body):
        if "echo" not in body:
            return status(422, "prompt_logprobs?")(handler, body)
        logprobs = {"tokens": list("abcde"), "token_logprobs": [None, -1.0, -2.0, -3.0, -4.0]}
        choice = {"index": 0, "text": "abcde", "finish_reason": "length", "logprobs": logprobs}
        return reply({"model": "m", "choices": [choice]})(handler, body)

    with HostileServer([old_style]) as server:
        scores = using(server, lambda lm: lm.score([1, 2], [3, 4]))
    assert scores.logprobs == (-2.0, -3.0)


def test_score_on_a_plain_server_is_refused_in_one_clear_line():
    plain = {"model": "m", "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}
    with HostileServer([reply(plain)]) as server, pytest.raises(Unsupported) as caught:
        using(server, lambda lm: lm.score([1, 2], [3, 4]))
    assert isinstance(caught.value, ModelError)
    assert "prompt_logprobs are ignored; echo is ignored" in str(caught.value)


def test_one_model_serves_several_event_loops():
    with HostileServer([ok()]) as server:
        lm = OpenAILM(server.url, "m")

        async def once():
            texts = [c.text for c in await lm.sample(HELLO, Sampling())]
            await lm.aclose()
            return texts

        assert [anyio.run(once) for _ in range(3)] == [["fine"]] * 3


def test_without_n_a_failure_surfaces_as_itself():
    with HostileServer([status(400)]) as server, pytest.raises(ModelError, match="HTTP 400"):
        using(
            server, lambda lm: lm.sample(HELLO, Sampling(n=3)), capabilities=Capabilities(n=False)
        )
