"""OpenRLHF, verifiers and inspect_ai: against the packages where they are installed, and always
against stand-ins with the parts of their signatures that the adapters use."""

import asyncio
import importlib.util
import inspect
import sys
from types import ModuleType, SimpleNamespace

import pytest
from engine_cases import Fussy, LongerWins, correct, total

from burnish.engines import (
    VerifiersEnv,
    as_inspect,
    as_openrlhf,
    as_verifiers,
    as_verifiers_env,
    legacy_functions,
)
from burnish.errors import RewardError, UserError
from burnish.lm.base import Sampling
from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Task
from burnish.rollouts import Observation, Tool, env_rollout, roll_out


def is_here(name):
    return importlib.util.find_spec(name) is not None


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


def test_openrlhf_function_can_be_sent_to_another_process():
    pytest.importorskip("torch")
    cloudpickle = pytest.importorskip("cloudpickle")
    here = as_openrlhf(correct)
    assert here(["p7"], ["p"], ["7"])["rewards"].tolist() == [1.0]
    there = cloudpickle.loads(cloudpickle.dumps(here))
    assert there(["p7", "p8"], ["p", "p"], ["7", "7"])["rewards"].tolist() == [1.0, 0.0]
    with pytest.raises(UserError, match="scope pair"):
        as_openrlhf(LongerWins())


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


class Data(SimpleNamespace):
    prompt = "3 + 4?"
    system_prompt = "be brief"

    def model_dump(self, **_):
        return {"prompt": self.prompt, "idx": 3, **vars(self)}


def traced(text):
    return SimpleNamespace(last_reply=text, is_truncated=False, info={})


def test_verifiers_rewards_are_methods_or_plugged_functions(monkeypatch):
    stand_in(monkeypatch, "verifiers.v1", reward=lambda weight: marked(weight))
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
    stand_in(monkeypatch, "verifiers.v1", reward=lambda weight: marked(weight))
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
    stand_in(monkeypatch, "verifiers.v1", reward=lambda weight: marked(weight))
    trace = traced("timeout")
    with pytest.raises(RewardError, match=r"'fussy' has no value .timeout.: told to: timeout"):
        asyncio.run(as_verifiers(Fussy())(trace=trace, task=Data()))
    assert trace.info["burnish"]["fussy"]["valid"] == 0.0


def test_verifiers_messages_reach_the_judge(monkeypatch):
    stand_in(monkeypatch, "verifiers.v1", reward=lambda weight: marked(weight))
    scorer = Fussy()
    asyncio.run(as_verifiers(scorer)(trace=traced("hi"), task=Data(answer="7", topic="sums")))
    (task,) = scorer.tasks
    assert [(m.role, m.content) for m in task.messages] == [
        ("system", "be brief"),
        ("user", "3 + 4?"),
    ]
    assert task.for_judge().fields == {"topic": "sums"}


def test_a_legacy_rubric_gets_the_reward_and_its_flag():
    reward, valid = legacy_functions(Fussy())
    names = set(inspect.signature(reward).parameters)
    assert {"prompt", "completion", "answer", "state"} <= names
    assert (reward.__name__, valid.__name__) == ("fussy", "fussy_valid")

    async def both(text):
        state = {}
        chat = [{"role": "user", "content": "p"}]
        said = [{"role": "assistant", "content": text}]
        waiting = asyncio.create_task(valid(state=state))  # a rubric may call them in any order
        await asyncio.sleep(0)
        value = await reward(prompt=chat, completion=said, answer="", state=state, info={})
        return value, await waiting

    assert asyncio.run(both("abc")) == (3.0, 1.0)
    assert asyncio.run(both("timeout")) == (0.0, 0.0)


def test_without_v1_there_is_a_legacy_rubric(monkeypatch):
    made = {}

    def rubric(funcs, weights):
        made.update(funcs=funcs, weights=weights)
        return made

    legacy = ModuleType("verifiers")
    legacy.Rubric = rubric
    monkeypatch.setitem(sys.modules, "verifiers", legacy)
    monkeypatch.delitem(sys.modules, "verifiers.v1", raising=False)
    assert as_verifiers(correct(), weight=2.0) is made
    assert made["weights"] == [2.0, 0.0]
    assert [function.__name__ for function in made["funcs"]] == ["correct", "correct_valid"]


@pytest.mark.peers
@pytest.mark.skipif(not is_here("verifiers"), reason="needs verifiers, which no extra installs")
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


# verifiers: environments


class Rubric:
    def __init__(self, funcs=(), weights=()):
        self.funcs, self.weights = list(funcs), list(weights)

    async def score_rollout(self, prompt, completion, answer, state, **_):
        values = {f.__name__: await f(state=state, answer=answer) for f in self.funcs}
        reward = sum(w * v for w, v in zip(self.weights, values.values(), strict=True))
        return SimpleNamespace(reward=reward, metrics=values)


class MultiTurnEnv:
    """The parts of verifiers 0.1 that the adapters use, with its order of calls."""

    def __init__(self, dataset=None, rubric=None, max_turns=-1, oai_tools=None):
        self.dataset, self.rubric, self.max_turns = dataset, rubric, max_turns
        self.oai_tools = oai_tools

    async def setup_state(self, state, **kwargs):
        return state

    async def is_completed(self, messages, state, **kwargs):
        return 0 < self.max_turns <= state["turn"]

    async def play(self, replies):
        row = dict(self.dataset[0])
        state = {**row, "completion": [], "responses": [], "turn": 0}
        state = await self.setup_state(state)
        for reply in replies:
            state["completion"].append(reply)
            state["turn"] += 1
            messages = state["prompt"] + state["completion"]
            if await self.is_completed(messages, state):
                break
            told, state = await self.env_response(messages, state)
            state["completion"] += told
        return state, await self.rubric.score_rollout(**state, state=state)


async def found(state, answer):
    return float(
        any(answer in m["content"] for m in state["completion"] if m["role"] == "assistant")
    )


class Hints(MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        state["hints"] = state.get("hints", 0) + 1
        return [{"role": "user", "content": f"hint {state['hints']}"}], state

    async def is_completed(self, messages, state, **kwargs):
        return await super().is_completed(messages, state) or await found(state, state["answer"])


def theirs_played(make, replies, **fields):
    lm = ScriptedLM(replies)
    task = Task("t1", (Message("user", "q"),), {"answer": "7", **fields})
    rolled = asyncio.run(
        roll_out([(0, task)], lm, Sampling(max_tokens=50), env_rollout(make), seed=1)
    )
    return rolled[0][0]


def test_an_environment_of_verifiers_is_played_in_our_rollouts():
    rubric = Rubric([found], [2.0])
    played = theirs_played(lambda: VerifiersEnv(Hints(rubric=rubric, max_turns=4)), ["5", "6", "7"])
    assert [m.content for m in played.messages] == ["5", "hint 1", "6", "hint 2", "7"]
    assert played.info["rewards"] == {"found": 1.0, "reward": 2.0}
    given_up = theirs_played(
        lambda: VerifiersEnv(Hints(rubric=rubric, max_turns=2)), ["5", "6", "7"]
    )
    assert given_up.info["rewards"] == {"found": 0.0, "reward": 0.0}


def test_a_limit_of_ours_leaves_their_rubric_its_word():
    env = lambda: VerifiersEnv(Hints(rubric=Rubric([found], [1.0])))  # noqa: E731
    played = theirs_played(env, ["5", "6", "7"], limits={"turns": 2})
    assert (played.info["ended_by"], played.info["rewards"]["reward"]) == ("turns", 0.0)


class Lookup(MultiTurnEnv):
    """Executes its tools itself, as verifiers' ToolEnv does; newer versions return messages."""

    async def env_response(self, messages, state):
        (call,) = messages[-1]["tool_calls"]
        import json

        word = json.loads(call["function"]["arguments"])["word"]
        return [{"role": "tool", "content": word.upper(), "tool_call_id": call["id"]}]

    async def is_completed(self, state):
        return bool(state["completion"]) and not state["completion"][-1].get("tool_calls")


class Newer(Rubric):
    async def score_rollout(self, state):
        state["reward"], state["metrics"] = 0.5, {"turns": state["turn"]}


def test_tools_of_verifiers_are_offered_and_executed_there():
    schema = {
        "type": "function",
        "function": {"name": "shout", "description": "", "parameters": {}},
    }
    make = lambda: VerifiersEnv(Lookup(rubric=Newer(), oai_tools=[schema]))  # noqa: E731
    call = '<tool_call>{"name": "shout", "arguments": {"word": "abc"}}</tool_call>'
    played = theirs_played(make, [call, "done"])
    assert [m.content for m in played.messages] == [call, "ABC", "done"]
    assert played.info["rewards"] == {"turns": 2.0, "reward": 0.5}


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


def double(number: int) -> int:
    return 2 * number


def test_an_environment_of_ours_is_a_multi_turn_env_of_verifiers(monkeypatch):
    stand_in(monkeypatch, "verifiers", MultiTurnEnv=MultiTurnEnv, Rubric=Rubric)
    task = Task("t1", (Message("user", "2 * 4?"),), {"answer": "8"})
    env = as_verifiers_env(Doubling, [task], max_turns=9)
    assert env.oai_tools[0]["function"]["name"] == "double"
    function = {"name": "double", "arguments": '{"number": 4}'}
    call = {"id": "c1", "type": "function", "function": function}
    replies = [
        {"role": "assistant", "content": "3"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "assistant", "content": "8"},
        {"role": "assistant", "content": "never said"},
    ]
    state, scored = asyncio.run(env.play(replies))
    said = [m["content"] for m in state["completion"]]
    assert said == ["3", "no", "", "8", "8"]
    assert scored.reward == 0.75


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


@pytest.mark.peers
@pytest.mark.skipif(not is_here("inspect_ai"), reason="needs inspect_ai, which no extra installs")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_real_inspect_evaluates(tmp_path, monkeypatch, backend):
    if backend == "trio" and not is_here("trio"):
        pytest.skip("needs trio")
    monkeypatch.setenv("INSPECT_ASYNC_BACKEND", backend)
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.solver import generate

    texts = ["it is 7", "8", "refused"]
    outputs = [ModelOutput.from_content("mockllm/model", text) for text in texts]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    samples = [Sample(input="3 + 4?", target="7", id=n) for n in range(3)]
    task = Task(dataset=samples, solver=generate(), scorer=as_inspect(Fussy()))
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none", max_connections=1)
    assert log.status == "success", log.error
    metrics = log.results.scores[0].metrics
    assert metrics["mean"].value == 4.0  # 7 and 1; the refusal is left out
    told = {sample.id: sample.scores["fussy"] for sample in log.samples}
    assert sorted(one.metadata["status"] for one in told.values()) == ["ok", "ok", "refused"]
