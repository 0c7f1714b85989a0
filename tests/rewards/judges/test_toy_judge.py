"""A judge is added with two files: its own module, and one line in the list of judges."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import msgspec
import pytest
from judge_cases import a_task, answers

from burnish.errors import UserError
from burnish.lm.replay import ScriptedLM
from burnish.records import Status
from burnish.rewards import RewardConfig, build, checked
from burnish.rewards.judges import JUDGES, JudgeModel, build_judge

TOY = '''
"""A judge that says how polite a response is, from 0 to `most`."""

from functools import partial
from typing import NamedTuple

from burnish.records import Reward
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.prompting import Question, as_user, request_of
from burnish.rewards.judges.reading import Table, read_reply, text, whole
from burnish.rewards.scorer import Scope


class Politeness(NamedTuple):
    reasons: str
    politeness: int


class ToyOptions(Options, frozen=True):
    most: int = 3


class Toy:
    scope, needs, name = Scope.POINT, frozenset(), "toy"

    def __init__(self, judge, most):
        self.judge, self.most = judge, most
        self.fingerprint = f"toy {most} {judge.fingerprint}"

    async def score(self, task, responses):
        table = Table(Politeness, reasons=text, politeness=whole(0, self.most))
        rewards = []
        for response in responses:
            asked = as_user(f"{request_of(task)}: {response.text}")
            read = partial(read_reply, table=table, shown=(response.text,))
            said = await self.judge.ask(Question("toy", asked, (task.id, response.id)), read)
            if said.verdict is None:
                rewards.append(Reward.failed("toy", said.status, said.reason))
            else:
                rewards.append(Reward("toy", said.verdict.politeness / self.most))
        return rewards


def build(judge, options):
    return Toy(judge, read_options("toy", options, ToyOptions).most)
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "toy_judge.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(JUDGES, "toy", "toy_judge:build")
    yield "toy"
    sys.modules.pop("toy_judge", None)


def test_it_judges_by_name_with_its_own_options(toy: str) -> None:
    replies = [
        {"reasons": "kind", "politeness": 2},
        {"reasons": "out of range", "politeness": 9},
        {"reasons": "again", "politeness": 9},
    ]
    judge = JudgeModel(ScriptedLM([json.dumps(reply) for reply in replies]))
    scorer = build_judge(toy, judge, {"most": 4})
    good, bad = anyio.run(checked, scorer, a_task(), answers("please", "now"))
    assert (good.value, bad.value, bad.status) == (0.5, None, Status.PARSE_ERROR)
    assert 'expected "politeness" to be a whole number from 0 to 4, got 9' in bad.reason
    with pytest.raises(UserError, match=r"judge 'toy': option: got 'mots'.*Did you mean 'most'"):
        build_judge(toy, judge, {"mots": 4})


def test_a_recipe_and_the_list_of_judges_know_it(toy: str) -> None:
    table = {"kind": "judge", "with": toy, "model": "tiny", "options": {"most": 5}}
    assert build(msgspec.convert(table, RewardConfig)).most == 5
    with pytest.raises(UserError, match=r"no judge 'toyy'; expected direct, .*, toy"):
        build_judge("toyy", JudgeModel(ScriptedLM([])))


def test_the_command_line_knows_it(toy: str) -> None:
    from burnish.cli.judge_session import open_judge
    from burnish.cli.shared_options import JudgeFlags

    flags = JudgeFlags(with_=toy, model="http://127.0.0.1:9/v1#m", option=["most=7"])
    judge = open_judge(flags)
    assert (judge.name, judge.scorer.most) == ("toy@m", 7)
