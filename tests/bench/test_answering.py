"""A model's answers are written once, marked by rule, and a failed call has no mark."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from burnish.bench.evaluation import Answering, blanks
from burnish.bench.items import Item, Judged, message
from burnish.bench.judging import ResultFile, judge_items
from burnish.lm.base import Completion, Sampling
from burnish.lm.budget import Budget
from burnish.records import Finish, Status
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.judges.judge_model import JudgeModel


class Model:
    """Answers by its script; None is a backend that fails."""

    name = "m"

    def __init__(self, *script: str | None) -> None:
        self.script = list(script)
        self.asked: list[Sampling] = []

    async def sample(self, prompt: object, sampling: Sampling) -> list[Completion]:
        self.asked.append(sampling)
        text = self.script.pop(0)
        return [Completion(text or "", finish=Finish.STOP if text else Finish.ERROR, model="m")]

    async def score(self, *_: object, **__: object) -> None:
        raise NotImplementedError


def prompts(count: int) -> list[Item]:
    shown = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    return [Item(str(k), message(f"{k}: no commas"), (), shown=shown) for k in range(count)]


def marked(model: Model, count: int, path: Path, budget: Budget | None = None) -> list[Judged]:
    scorer = Answering(JudgeModel(model, budget=budget), Instructions(InstructionsConfig()))

    async def work() -> list[Judged]:
        with ResultFile(path) as file:
            return await judge_items(scorer, blanks(prompts(count)), judge="m", file=file, limit=1)

    return anyio.run(work)


def test_answers_are_marked_and_kept(tmp_path):
    good, bad = marked(Model("no pause", "well, no"), 2, tmp_path / "o.jsonl")
    assert (good.values, bad.values) == ((1.0,), (0.0,))
    assert [e.observation for e in good.rewards[0].evidence if e.source == "m"] == ["no pause"]


def test_a_failed_call_has_no_mark_and_is_made_again_alone(tmp_path):
    path = tmp_path / "o.jsonl"
    first = marked(Model("fine", None), 2, path)
    assert [one.values for one in first] == [(1.0,), (None,)]
    assert first[1].status is Status.INFRA_ERROR
    again = Model("fine")
    assert [one.values for one in marked(again, 2, path)] == [(1.0,), (1.0,)]
    assert len(again.asked) == 1


def test_a_budget_ends_the_writing(tmp_path):
    model = Model("fine", "fine")
    found = marked(model, 3, tmp_path / "o.jsonl", Budget(calls=1))
    assert len(model.asked) == 1
    assert [one.values for one in found] == [(1.0,), (None,), (None,)]
    assert "budget of 1 calls is spent" in found[1].reason


@pytest.mark.parametrize("change", [{"temperature": 0.5}, {"max_tokens": 7}])
def test_other_sampling_is_another_judge(change):
    marks = Instructions(InstructionsConfig())
    plain = Answering(JudgeModel(Model(), sampling=Sampling(temperature=0.0)), marks)
    other = Answering(
        JudgeModel(Model(), sampling=Sampling(**{"temperature": 0.0, **change})), marks
    )
    assert plain.fingerprint != other.fingerprint
