"""Judges over a real model in this process, and their prompts over real pairs."""

from pathlib import Path

import anyio
import pytest
from judge_cases import answers, block, score, verdict

from burnish.lm.base import Sampling
from burnish.lm.named import open_lm
from burnish.lm.new_model import tiny_model
from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Status, Task
from burnish.rewards import checked
from burnish.rewards.judges import DirectPair, JudgeModel, PointRating, build_judge

DATA = Path(__file__).parents[3] / ".." / "shared" / "data"

SHORT = "{mark} {request}\n1: {first}\n2: {second}\nJSON:"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return open_lm(str(tiny_model(tmp_path_factory.mktemp("model"))), device="cpu")


def test_a_model_that_knows_nothing_gives_no_verdict_and_its_words_are_kept(tiny):
    judge = JudgeModel(tiny, sampling=Sampling(temperature=0.0, max_tokens=12))
    rewards = score(build_judge("direct", judge, {"template": SHORT}), "Paris", "Rome")
    assert [(r.value, r.status) for r in rewards] == [(None, Status.PARSE_ERROR)] * 2
    forward = rewards[0].parts[0]
    assert len(forward.evidence) == 2
    assert forward.evidence[0].observation
    assert judge.spent.calls == 4
    assert judge.spent.estimated == 0
    assert judge.spent.completion_tokens >= 4


def test_a_prompt_that_does_not_fit_has_a_status_and_does_not_end_the_run(tiny):
    judge = JudgeModel(tiny)
    rewards = score(PointRating(judge), "Paris", "x" * 5000)
    assert [(r.value, r.status) for r in rewards] == [(None, Status.INFRA_ERROR)] * 2
    assert "leaves no room to answer" in rewards[0].reason
    assert "Give the judge a model that reads more" in rewards[0].reason
    assert "point" not in rewards[0].reason  # a remedy that is the judge itself is none
    assert "Shorten the prompt" not in rewards[0].reason


def test_every_real_pair_is_shown_whole_and_without_its_label():
    parquet = pytest.importorskip("pyarrow.parquet")
    path = DATA / "llmbar" / "test.parquet"
    if not path.is_file():
        pytest.skip("shared data 'llmbar' is not here")
    rows = parquet.read_table(path).to_pylist()
    lm = ScriptedLM(lambda messages, index: verdict("A"))
    pair = DirectPair(JudgeModel(lm))
    shown = [tuple(str(row[key]) for key in ("input", "output_1", "output_2")) for row in rows]
    shown = [texts for texts in shown if texts[1] != texts[2]]

    async def judge_all():
        for number, (request, *texts) in enumerate(shown):
            task = Task(str(number), (Message("user", request),), {"answer": "LABEL-42"})
            rewards = await checked(pair, task, answers(*texts))
            assert [r.value for r in rewards] == [1.0, -1.0]

    anyio.run(judge_all)
    assert len(shown) >= 280
    for call, (request, first, second) in zip(lm.calls, shown, strict=True):
        prompt = call.prompt[0].content
        assert block(prompt, "request") == request
        assert block(prompt, "response A") == first
        assert block(prompt, "response B") == second
        assert "LABEL-42" not in prompt
