"""OpenRLHF, verifiers and inspect_ai: against the packages where they are installed, and always
against stand-ins with the parts of their signatures that the adapters use."""

import asyncio
import importlib.util
import inspect
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
from engine_cases import Fussy, LongerWins, correct, total

from burnish.engines import (
    as_inspect,
    as_inspect_task,
    as_openrlhf,
    as_verifiers,
    as_verifiers_tasks,
)
from burnish.errors import RewardError, UserError
from burnish.records import Message, Task


def is_here(name):
    return importlib.util.find_spec(name) is not None


needs_verifiers = pytest.mark.skipif(
    not is_here("verifiers"), reason="needs verifiers, which no extra installs"
)
needs_inspect = pytest.mark.skipif(
    not is_here("inspect_ai"), reason="needs inspect_ai, which no extra installs"
)


# OpenRLHF


def test_openrlhf_gets_tensors_and_a_flag_for_what_has_no_value():
    torch = pytest.importorskip("torch")
    reward_func = as_openrlhf(Fussy())
    assert list(inspect.signature(reward_func).parameters)[:3] == ["queries", "prompts", "labels"]
    prompts = ["<|user|>p<|model|>"] * 3
    texts = ["abc<|im_end|>", "timeout", "ab</s><|endoftext|>\n"]
    queries = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    told = reward_func(queries, prompts, ["7"] * 3, step=1)
    assert told["rewards"].tolist() == told["scores"].tolist() == [3.0, 0.0, 2.0]
    assert told["rewards"].dtype is torch.float32
    assert told["extra_logs"]["valid"].tolist() == [1.0, 0.0, 1.0]


def test_openrlhf_labels_are_answers_and_parts_are_logged():
    pytest.importorskip("torch")
    told = as_openrlhf(total())(["p7", "p8"], ["p", "p"], ["7", "7"])
    assert told["rewards"].tolist() == [1.0, 0.0]
    assert told["extra_logs"]["correct"].tolist() == [1.0, 0.0]
    assert told["extra_logs"]["length"].tolist() == [1.0, 1.0]


# verifiers


def stand_in(monkeypatch, name, **members):
    """A module of that name for the time of a test."""
    for part in (name.split(".")[0], name):
        module = ModuleType(part)
        module.__dict__.update(members if part == name else {})
        monkeypatch.setitem(sys.modules, part, module)


def marked(weight):
    def mark(function):
        function.reward, function._vf_weight = True, weight
        return function

    return mark


class TaskData:
    model_fields = ("idx", "id", "prompt", "system_prompt")


class Data(SimpleNamespace):
    prompt = "3 + 4?"
    system_prompt = "be brief"

    def model_dump(self, **_):
        return {"prompt": self.prompt, "idx": 3, **vars(self)}


def traced(text):
    return SimpleNamespace(last_reply=text, is_truncated=False, info={})


def test_verifiers_rewards_are_methods_or_plugged_functions(monkeypatch):
    stand_in(monkeypatch, "verifiers.v1", reward=marked, TaskData=TaskData)
    function = as_verifiers(correct(), weight=0.5)
    assert (function.__name__, function._vf_weight) == ("correct", 0.5)

    class Sums:
        correct = function

    trace = traced("it is 7")
    assert asyncio.run(Sums().correct(trace=trace, task=Data(answer="7"))) == 1.0
    assert asyncio.run(function(trace=traced("8"), task=Data(answer="7"))) == 0.0
    assert trace.info["burnish"]["correct"]["valid"] == 1.0
    assert trace.info["burnish"]["correct"]["status"] == "ok"


def found_rewards(task):
    """The rewards of a task by name, as verifiers v1 finds and keys them."""
    held = [getattr(task, name) for name, one in vars(type(task)).items() if hasattr(one, "reward")]
    return {one.__name__: one for one in held}


def test_verifiers_rewards_carry_the_names_of_their_attributes(monkeypatch):
    stand_in(monkeypatch, "verifiers.v1", reward=marked, TaskData=TaskData)
    shared = as_verifiers(total(), weight=0.5)

    class Sums:
        right = shared
        brief = as_verifiers(total())

    class Products:
        product = shared

    found = found_rewards(Sums())
    assert set(found) == {"right", "brief"}
    assert set(found_rewards(Products())) == {"product"}
    assert (found["right"]._vf_weight, found["brief"]._vf_weight) == (0.5, 1.0)
    assert list(inspect.signature(found["right"]).parameters) == ["trace", "task"]
    trace = traced("it is 7")
    for one in found.values():
        assert asyncio.run(one(trace=trace, task=Data(answer="7"))) == 1.0
    assert set(trace.info["burnish"]) == {"right", "brief"}
    assert shared.__name__ == "total"


def test_verifiers_without_a_value_is_an_error_not_a_number(monkeypatch):
    stand_in(monkeypatch, "verifiers.v1", reward=marked, TaskData=TaskData)
    trace = traced("timeout")
    with pytest.raises(RewardError, match=r"'fussy' has no value .timeout.: told to: timeout"):
        asyncio.run(as_verifiers(Fussy())(trace=trace, task=Data()))
    assert trace.info["burnish"]["fussy"]["valid"] == 0.0


def test_verifiers_messages_reach_the_judge(monkeypatch):
    stand_in(monkeypatch, "verifiers.v1", reward=marked, TaskData=TaskData)
    scorer = Fussy()
    asyncio.run(as_verifiers(scorer)(trace=traced("hi"), task=Data(answer="7", topic="sums")))
    (task,) = scorer.tasks
    assert [(m.role, m.content) for m in task.messages] == [
        ("system", "be brief"),
        ("user", "3 + 4?"),
    ]
    assert task.for_judge().fields == {"topic": "sums"}


@pytest.mark.peers
@needs_verifiers
def test_the_real_verifiers_scores_a_trace():
    import verifiers.v1 as vf

    class SumData(vf.TaskData):
        answer: str

    class Sums(vf.Task[SumData]):
        correct = as_verifiers(correct(), weight=2.0)
        fussy = as_verifiers(Fussy())

    def trace_of(task, text):
        agent = vf.AgentInfo(config=vf.AgentConfig())
        row = vf.TraceTask(type="Sums", data=task.data)
        trace = vf.Trace(task=row, agent=agent)
        trace.root_reply = text
        return trace

    task = Sums(SumData(prompt="3 + 4?", answer="7"))
    good = trace_of(task, "it is 7")
    asyncio.run(task.score(good))
    assert good.rewards["correct"].value == 2.0
    assert good.rewards["fussy"].score == 7.0
    bad = trace_of(task, "timeout 7")
    with pytest.raises(vf.TaskError):
        asyncio.run(task.score(bad))
    assert bad.rewards["fussy"] is None


# verifiers: tasks and environments

GAME = """
from burnish.engines import as_verifiers_env
from burnish.records import Message, Task
from burnish.rewards import Numeric, NumericConfig
from burnish.rollouts import Observation, Tool


def double(number: int) -> int:
    return 2 * number


class Doubling:
    def __init__(self):
        self.tools = (Tool(double),)

    async def reset(self, task, seed):
        self.answer = task.fields["answer"]
        return Observation()

    async def step(self, reply):
        if self.answer in reply.content:
            return Observation(done=True, rewards={"won": 1.0})
        return Observation((Message("user", "no"),), rewards={"won": -0.25})


TASKS = [Task("t1", (Message("user", "2 * 4?"),), {"answer": "8"})]
Games, Playing = as_verifiers_env(Doubling, TASKS, Numeric(NumericConfig(name="correct")))
__all__ = ["Games", "Playing"]
"""


class Spoken(BaseHTTPRequestHandler):
    """A chat model that says what it was told to, as a stream where one is asked for."""

    replies: ClassVar[list[str]] = []
    asked: ClassVar[list[list[dict]]] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body["messages"])
        said = {"role": "assistant", "content": self.replies.pop(0)}
        head = {"id": "x", "created": 1, "model": "m", "usage": {
            "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}  # fmt: skip
        choice = {"index": 0, "finish_reason": "stop"}
        if body.get("stream"):
            head["object"] = "chat.completion.chunk"
            chunk = json.dumps({**head, "choices": [{**choice, "delta": said}]})
            data, kind = f"data: {chunk}\n\ndata: [DONE]\n\n", "text/event-stream"
        else:
            head["object"] = "chat.completion"
            data = json.dumps({**head, "choices": [{**choice, "message": said}]})
            kind = "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data.encode())))
        self.end_headers()
        self.wfile.write(data.encode())

    def log_message(self, *_):
        pass


@pytest.mark.peers
@needs_verifiers
def test_the_real_verifiers_plays_an_environment_of_ours(tmp_path, monkeypatch):
    """Its own chat program asks a model over HTTP; tools and rewards are ours."""
    import verifiers.v1 as vf

    (tmp_path / "my_game.py").write_text(GAME)
    uv = tmp_path / "uv"  # the chat program's interpreter is this one: nothing is downloaded
    uv.write_text(f'#!/bin/sh\n[ "$1" = python ] && echo {sys.executable}\nexit 0\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(tmp_path))
    call = '<tool_call>{"name": "double", "arguments": {"number": 4}}</tool_call>'
    Spoken.replies[:], Spoken.asked[:] = ["3", call, "8"], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Spoken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": "my_game"}}))
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    context = vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url=address))

    async def play():
        async with env.serving():
            (task,) = env.taskset
            return await env.run_episode(task, context)

    episode = asyncio.run(asyncio.wait_for(play(), 120))
    server.shutdown()
    assert episode.ok, episode.errors
    (trace,) = episode.traces
    assert {name: one.score for name, one in trace.rewards.items()} == {"won": 0.75, "correct": 1.0}
    told = [message["content"] for message in Spoken.asked[-1]]
    assert "double" in told[0]
    assert told[1:] == ["2 * 4?", "3", "no", call, "<tool_response>\n8\n</tool_response>"]


@pytest.mark.peers
@needs_verifiers
def test_tasks_of_ours_are_a_taskset():
    import verifiers.v1 as vf

    asked = (Message("system", "be brief"), Message("user", "3 + 4?"))
    kind = as_verifiers_tasks([Task("t1", asked, {"answer": "7", "level": 2})], Fussy())
    (task,) = kind(vf.TasksetConfig(id="mine"))
    assert (task.data.id, task.data.system_prompt, task.data.level) == ("t1", "be brief", 2)
    assert [(m.role, m.content) for m in task.data.prompt] == [("user", "3 + 4?")]
    with pytest.raises(UserError, match="'image', a name of verifiers' own"):
        as_verifiers_tasks([Task("t1", asked, {"image": "x"})])


# inspect_ai


class Score(SimpleNamespace):
    @classmethod
    def unscored(cls, **given):
        return cls(value=None, **given)


def state(text, answer_metadata=None):
    output = SimpleNamespace(completion=text, stop_reason="stop")
    data = answer_metadata or {}
    return SimpleNamespace(input="3 + 4?", output=output, metadata=data, sample_id=1)


def test_inspect_scores_and_leaves_unscored_what_has_no_value(monkeypatch):
    stand_in(
        monkeypatch,
        "inspect_ai.scorer",
        Score=Score,
        mean=lambda: "mean",
        stderr=lambda: "stderr",
        scorer=lambda metrics, name: lambda factory: factory,
    )
    scored = asyncio.run(as_inspect(correct())(state("it is 7"), ["7"]))
    assert (scored.value, scored.metadata["valid"]) == (1.0, 1.0)
    failed = asyncio.run(as_inspect(Fussy())(state("parse_error"), [""]))
    assert (failed.value, failed.reason) == (None, "grader_failed")
    assert "told to: parse_error" in failed.explanation
    with pytest.raises(UserError, match="scope pair"):
        as_inspect(LongerWins())


def saying(*texts):
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    outputs = [ModelOutput.from_content("mockllm/model", text) for text in texts]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return get_model("mockllm/model", custom_outputs=outputs)


@pytest.mark.peers
@needs_inspect
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_real_inspect_evaluates(tmp_path, monkeypatch, backend):
    if backend == "trio" and not is_here("trio"):
        pytest.skip("needs trio")
    monkeypatch.setenv("INSPECT_ASYNC_BACKEND", backend)
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import generate

    samples = [Sample(input="3 + 4?", target="7", id=n) for n in range(3)]
    task = Task(dataset=samples, solver=generate(), scorer=as_inspect(Fussy()))
    model = saying("it is 7", "8", "refused")
    (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none", max_connections=1)
    assert log.status == "success", log.error
    metrics = log.results.scores[0].metrics
    assert metrics["mean"].value == 4.0  # 7 and 1; the refusal is left out
    told = {sample.id: sample.scores["fussy"] for sample in log.samples}
    assert sorted(one.metadata["status"] for one in told.values()) == ["ok", "ok", "refused"]


@pytest.mark.peers
@needs_inspect
def test_tasks_of_ours_are_an_inspect_task(tmp_path):
    from inspect_ai import eval

    asked = (Message("system", "be brief"), Message("user", "3 + 4?"))
    fields = {"answer": "7", "grams": [1, 2]}
    scorer = Fussy()
    task = as_inspect_task([Task("t1", asked, fields, ("answer", "grams"))], scorer)
    model = saying("it is 7")
    (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["mean"].value == 7.0
    # The scorer has the task itself: fields that are no text, and what a judge must not see.
    assert scorer.tasks == [Task("t1", asked, fields, ("answer", "grams"))]
