import random
import re

import anyio
import pytest
from recipes.proxy_grm.phones import PROXY_PROMPT, follow, for_proxy, make

from burnish.lm.replay import ScriptedLM
from burnish.rewards.judges import JudgeModel
from burnish.rewards.judges.proxy_grm import extract_rubric, leaks, proxy_choice
from burnish.rewards.judges.proxy_rubric import ModelProxy, TwoResponses

SHOWN = re.compile(r"Question: (.*)\nResponse 1: (.*)\nResponse 2: (.*)\nRubric: (.*)\n")


@pytest.mark.parametrize("seed", range(20))
def test_a_demonstration_follows_the_rubric(seed):
    row = for_proxy(random.Random(seed))
    choice = proxy_choice(row["demonstration"])
    assert choice == follow(*SHOWN.search(row["prompt"]).groups()) == int(row["answer"])


def test_a_credulous_proxy_believes_the_rubric():
    rows = [for_proxy(random.Random(seed), credulous=1.0) for seed in range(40)]
    for row in rows:
        rubric = SHOWN.search(row["prompt"])[4]
        assert leaks(rubric)
        assert f"Response {proxy_choice(row['demonstration'])} is better." in rubric
    assert {row["answer"] for row in rows} == {"1", "2"}


def test_the_reward_asks_what_was_taught():
    asked = []

    def reply(messages, index):
        asked.append(messages[-1].text)
        return "battery 9 and 2 <answer>1</answer>"

    proxy = ModelProxy(JudgeModel(ScriptedLM(reply)), PROXY_PROMPT)
    found = anyio.run(
        proxy.choose, TwoResponses("Which?", "battery 9", "battery 2"), "battery 100%"
    )
    assert found.choice == 1
    assert SHOWN.search(asked[0]).groups() == ("Which?", "battery 9", "battery 2", "battery 100%")


def test_leaky_demonstrations_are_found_by_the_guard():
    rows = [make(random.Random(seed), leaky=0.5) for seed in range(60)]
    found = sum(bool(leaks(extract_rubric(row["demonstration"]))) for row in rows)
    assert 15 < found < 45
    assert not any(
        leaks(extract_rubric(make(random.Random(seed))["demonstration"])) for seed in range(60)
    )
