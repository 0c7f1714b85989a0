"""The HTTP model against a server that fails in every way a server can."""

import gzip
import json
import time
import tracemalloc

import anyio
import msgspec
import pytest
from fake_clock import run_jobs
from hostile_server import (
    HostileServer,
    chat_reply,
    half_closed,
    no_answer,
    ok,
    raw,
    reply,
    slow,
    status,
    together,
    trickle,
)

from burnish.errors import ModelError, UserError
from burnish.lm import wire
from burnish.lm.base import Sampling
from burnish.lm.failures import (
    BadReply,
    ForeignReply,
    RateLimited,
    Refused,
    Rejected,
    ServerFailed,
    TimedOut,
    Unreachable,
    WrongModel,
)
from burnish.lm.http import OpenAILM
from burnish.lm.jobs import Answer, Job, Limits
from burnish.lm.request_pool import RequestPool
from burnish.records import Message, Status

pytestmark = pytest.mark.attacks

QUICK = Limits(
    backoff_base_s=0.01, backoff_cap_s=0.02, attempt_s=120.0, deadline_s=300.0, retries=2
)
"""Quick to try again; an answer may take its time, for a slow machine's sake."""
IMPATIENT = msgspec.structs.replace(QUICK, attempt_s=0.8)
HELLO = (Message("user", "hello"),)
STALL = slow(60.0, ok())


def ask(server, sampling=None, limits=QUICK, **more):
    """Sample once; the completions or the error, and the LM."""

    async def main():
        async with OpenAILM(server.url, "m", limits=limits, **more) as lm:
            try:
                return await lm.sample(HELLO, sampling or Sampling()), lm
            except ModelError as error:
                return error, lm

    return anyio.run(main)


@pytest.mark.parametrize(
    ("behaviours", "attempts"),
    [
        ([status(500), ok()], 2),
        ([status(503), status(502), ok()], 3),
        ([status(429, retry_after="0"), ok()], 2),
        ([status(408), ok()], 2),
        ([half_closed, ok()], 2),
        ([no_answer, ok()], 2),
        ([STALL, ok()], 2),
        ([trickle, ok()], 2),
    ],
    ids=["500", "503-502", "429", "408", "half-closed", "no-answer", "stall", "trickle"],
)
def test_passing_trouble_is_overcome(behaviours, attempts):
    with HostileServer(behaviours) as server:
        # Who waits for silence to end needs a limit; it must be long enough for the second answer.
        waits = behaviours[0] in (STALL, trickle)
        limits = msgspec.structs.replace(QUICK, attempt_s=2.0) if waits else QUICK
        completions, lm = ask(server, limits=limits)
    assert [c.text for c in completions] == ["fine"]
    assert len(server.requests) == lm.pool.totals.attempts == attempts


@pytest.mark.parametrize(
    ("behaviour", "kind", "requests", "message"),
    [
        (status(500, "boom"), ServerFailed, 3, r"HTTP 500, body 'boom'; gave up after 3 attempts"),
        (status(429), RateLimited, 3, r"HTTP 429.*gave up after 3 attempts \(retries=2\)"),
        (status(429, retry_after="900"), RateLimited, 1, r"the next would be due in 900\.\d s"),
        (half_closed, Unreachable, 3, r"the connection failed: .*body"),
        (no_answer, Unreachable, 3, r"the connection failed: .*without sending a response"),
        (STALL, TimedOut, 3, r"no answer within 0.8 s \(attempt_s\)"),
        (trickle, TimedOut, 3, r"no answer within 0.8 s \(attempt_s\)"),
        (status(400, "bad field"), Rejected, 1, r"HTTP 400, body 'bad field'$"),
        (status(401), Rejected, 1, r"HTTP 401.*check the API key"),
        (status(307, location="http://127.0.0.1:1/"), Rejected, 1, r"HTTP 307"),
        (raw(b"<html>busy</html>"), ForeignReply, 3, r"not JSON: it begins '<html>busy</html>'"),
        (raw(b'["other", and torn'), ForeignReply, 3, r"another shape"),
        (raw(b'{"usage": ' + b"[" * 100_000), ForeignReply, 3, r"not JSON"),
        (reply({"oops": 1}), ForeignReply, 3, r"missing required field `model`"),
        (reply({"error": {"message": "no\nGPU", "code": 7}}), ForeignReply, 3, r"error: 'no GPU';"),
        (
            reply({"model": None, "error": {"code": 7}}),
            ForeignReply,
            3,
            r"""error: '{"code":7}';""",
        ),
        (reply(chat_reply(text=7)), BadReply, 1, r"`\$\.choices\[0\]\.message\.content`"),
        (reply(chat_reply(text=None)), BadReply, 1, r"ended by itself but has no content"),
        (reply(chat_reply(n=0)), ForeignReply, 3, r"the reply has no choices"),
        (reply(chat_reply(n=3)), BadReply, 1, r"asked for n=1 choices, got 3"),
        (status(204, ""), ForeignReply, 3, r"HTTP 204, body empty"),
        (status(200, "cut", content_encoding="gzip"), ForeignReply, 3, r"encoding is broken"),
        (reply({"error": {"message": "x", "code": 429}}), RateLimited, 3, r"error: 'x'"),
        (reply({"error": {"message": "too long", "code": 400}}), Rejected, 1, r"'too long'$"),
        (status(200, "{}", content_encoding="br"), ForeignReply, 3, r"broken: 'br'"),
        (reply(chat_reply(model="cheap")), WrongModel, 1, r"asked for model 'm'.*by 'cheap'"),
    ],
)
def test_lasting_trouble_is_named(behaviour, kind, requests, message):
    with HostileServer([behaviour]) as server:
        error, _ = ask(server, limits=IMPATIENT if kind is TimedOut else QUICK)
    assert type(error) is kind
    assert error.attempts == len(server.requests) == requests
    assert server.url in str(error)
    with pytest.raises(kind, match=message):
        raise error


def test_a_server_that_is_not_there():
    with HostileServer([ok()]) as server:
        pass
    error, _ = ask(server)
    assert isinstance(error, Unreachable)
    assert error.attempts == 3


def test_an_endless_body_is_cut_off(monkeypatch):
    monkeypatch.setattr("burnish.lm.http.MAX_REPLY_BYTES", 1000)
    with HostileServer([raw(b" " * 100_000)]) as server:
        error, _ = ask(server)
    assert isinstance(error, BadReply)
    assert "longer than 1000 bytes" in str(error)


def test_retry_after_is_waited_for():
    with HostileServer([status(429, retry_after="1"), ok()]) as server:
        completions, _ = ask(server)
    assert completions[0].text == "fine"
    first, second = server.requests
    assert 1.0 <= second.at - first.at < 60


def test_concurrency_holds_at_the_server_and_still_overlaps():
    with HostileServer([together(5, ok())]) as server:
        limits = Limits(concurrency=5, attempt_s=200.0)

        async def main():
            async with OpenAILM(server.url, "m", limits=limits) as lm:
                async with anyio.create_task_group() as group:
                    for _ in range(20):
                        group.start_soon(lm.sample, HELLO, Sampling())
                return lm.pool.totals

        totals = anyio.run(main)
    assert server.peak == 5
    assert totals.ok == len(server.requests) == 20


def test_a_hedged_request_beats_a_stall_and_hangs_up_on_it():
    with HostileServer([slow(240.0, ok("late")), ok("quick")]) as server:
        limits = Limits(hedge_after_s=0.1, attempt_s=280.0)
        began = time.monotonic()
        completions, lm = ask(server, limits=limits)
        seconds = time.monotonic() - began
        deadline = time.monotonic() + 60
        while not server.requests[0].hung_up and time.monotonic() < deadline:
            time.sleep(0.01)
    assert completions[0].text == "quick"
    assert seconds < 120
    assert lm.pool.totals.hedges == 1
    assert [request.hung_up for request in server.requests] == [True, False]


def test_retries_do_not_multiply_through_an_outer_pool():
    with HostileServer([status(500)]) as server:

        async def main():
            async with OpenAILM(server.url, "m", limits=QUICK) as lm:

                async def worker(job):
                    return Answer(await lm.sample(HELLO, Sampling()))

                return await run_jobs(RequestPool(QUICK), [Job("judge")], worker)

        outcome = anyio.run(main)[0]
    assert (outcome.status, outcome.attempts) == (Status.INFRA_ERROR, 3)
    assert len(server.requests) == 3


def test_the_api_key_appears_in_the_header_and_nowhere_else(caplog, monkeypatch):
    key = "sk-very-secret"
    monkeypatch.setenv("A_KEY", key)
    caplog.set_level("DEBUG", logger="burnish")
    behaviours = [status(500, f"key {key}"), status(401, f"wrong key {key}")]
    with HostileServer(behaviours) as server:
        error, lm = ask(server, api_key_env="A_KEY")
    assert [r.headers["authorization"] for r in server.requests] == [f"Bearer {key}"] * 2
    assert "wrong key [api key]" in str(error)
    assert "next try in" in caplog.text
    for text in (str(error), repr(error), repr(lm), caplog.text):
        assert key not in text


@pytest.mark.parametrize("padding", [0, 100, 150, 155, 160])
def test_no_part_of_the_key_survives_the_cut_of_a_long_body(padding):
    key = "sk-very-secret"
    text = "x" * padding + key
    refusal = {"content": None, "refusal": text}
    for behaviour in (
        status(400, text),
        raw(text.encode()),
        reply({"error": {"message": text}}),
        reply(chat_reply(message=refusal)),
        reply(chat_reply(model=text)),
    ):
        with HostileServer([behaviour]) as server:
            error, _ = ask(server, api_key=key)
        assert isinstance(error, (Rejected, BadReply, Refused, WrongModel))
        assert "sk-" not in str(error)


def test_a_password_in_the_address_is_not_shown():
    with HostileServer([status(400)]) as server:
        secret = server.url.replace("http://", "http://user:hunter2@")

        async def main():
            async with OpenAILM(secret, "m", limits=QUICK) as lm:
                with pytest.raises(Rejected) as caught:
                    await lm.sample(HELLO, Sampling())
                return f"{caught.value} {lm!r}"

        shown = anyio.run(main)
    assert "hunter2" not in shown
    assert server.url in shown


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000/v1",
        "ftp://x",
        "http://h/v1?key=1",
        "http://h/v1\n",
        "http://two words/v1",
    ],
)
def test_a_wrong_address_is_refused_at_once(url):
    with pytest.raises(UserError, match="expected http://host:port/v1"):
        OpenAILM(url, "m")


def test_a_missing_or_broken_key_is_the_users_error(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UserError, match="the environment has no NO_SUCH_KEY"):
        OpenAILM("http://h/v1", "m", api_key_env="NO_SUCH_KEY")
    with pytest.raises(UserError, match="expected ASCII without spaces"):
        OpenAILM("http://h/v1", "m", api_key="two words")
    with pytest.raises(UserError, match="expected ASCII without spaces") as caught:
        OpenAILM("http://h/v1", "m", api_key="sk-\x00")
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_small_reply_that_unpacks_to_gigabytes_is_not_unpacked(layers, monkeypatch):
    """Each layer of gzip shrinks zeros by a thousand; packings in a row multiply."""
    bomb = b" " * 30_000_000
    for _ in range(layers):
        bomb = gzip.compress(bomb)
    monkeypatch.setattr("burnish.lm.http.MAX_REPLY_BYTES", 1_000_000)
    headers = {"content-encoding": ", ".join(["gzip"] * layers)}
    tracemalloc.start()
    try:
        with HostileServer([lambda handler, body: handler.send(200, bomb, headers)]) as server:
            error, _ = ask(server)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, BadReply)
    assert peak < 15_000_000


def test_a_packed_reply_is_read_and_a_cut_one_is_not():
    packed = gzip.compress(json.dumps(chat_reply()).encode())
    headers = {"content-encoding": "gzip"}
    for data, kind in ((packed, list), (packed[:-12], ForeignReply)):
        with HostileServer([lambda handler, body, d=data: handler.send(200, d, headers)]) as server:
            found, _ = ask(server)
        assert type(found) is kind


def test_a_log_prob_above_zero_is_no_log_prob():
    token = {"token": "A", "logprob": 0.5}
    content = chat_reply(logprobs={"content": [token]})
    with HostileServer([reply(content)]) as server:
        error, _ = ask(server, Sampling(top_logprobs=1))
    assert type(error) is BadReply
    assert "a log-prob is 0.5; expected at most 0" in str(error)


@pytest.mark.parametrize(
    "error", [r'{"message": "\ud800", "code": 429}', r'{"\ud800": 1, "code": 429}']
)
def test_half_a_character_in_an_error_does_not_hide_it(error):
    with pytest.raises(RateLimited, match="the server answered with an error"):
        wire.decode(f'{{"choices": 5, "error": {error}}}'.encode(), wire.Reply, "server")
