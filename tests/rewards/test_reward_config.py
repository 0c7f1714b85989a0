"""Rewards from recipe files: closed, named, weighted; and the room imports without torch."""

import os
import subprocess
import sys
import textwrap

import anyio
import msgspec
import pytest
from reward_cases import a_task, score, values

from burnish.errors import UserError
from burnish.records import Message, Response, Task
from burnish.rewards import NumericConfig, RewardConfig, bind_check, build, build_all
from burnish.rewards.checks.base import CheckConfig, RuleCheck


class Recipe(msgspec.Struct, forbid_unknown_fields=True):
    rewards: list[RewardConfig]


def read(text):
    pytest.importorskip("tomllib")
    import tomllib

    return msgspec.convert(tomllib.loads(textwrap.dedent(text)), Recipe).rewards


FULL = """
    [[rewards]]
    kind = "numeric"
    weight = 2.0

    [[rewards]]
    kind = "tags"
    name = "format"
    weight = 0.5
    tags = ["answer"]

    [[rewards]]
    kind = "function"
    path = "mine.py:short"
    options = { limit = 100 }
    weight = 0.0

    [[rewards]]
    kind = "gate"
    hard = { kind = "regex", pattern = "answer" }
    then = { kind = "length", max = 9 }
"""


def test_a_recipe_becomes_one_scorer(tmp_path):
    (tmp_path / "mine.py").write_text("def short(text, limit):\n    return len(text) < limit\n")
    scorer = build_all(read(FULL), base=tmp_path)
    assert scorer.needs == {"answer"}
    bind_check(scorer, ["answer"])
    right, wrong = score(scorer, a_task(answer=4), "<answer>4</answer>", "5")
    assert right.components == {"numeric": 1.0, "format": 1.0, "short": 1.0, "gate": 1.0}
    assert right.value == 2.0 + 0.5 + 1.0
    assert wrong.components == {"numeric": 0.0, "format": 0.0, "short": 1.0, "gate": 0.0}


def test_names_are_unique_and_weights_make_sense():
    twin = NumericConfig()
    with pytest.raises(UserError, match="parts numeric, numeric"):
        build_all([twin, twin])
    with pytest.raises(UserError, match="no rewards"):
        build_all([])
    with pytest.raises(UserError, match="not all 0"):
        build_all([NumericConfig(weight=0.0)])


def test_the_first_decisive_reward_of_a_recipe():
    text = """
        [[rewards]]
        kind = "first_decisive"
        rewards = [{ kind = "numeric" }, { kind = "match" }]
    """
    scorer = build_all(read(text))
    assert values(score(scorer, a_task(answer="blue"), "Blue", "4")) == [1.0, 0.0]
    assert values(score(scorer, a_task(answer="4"), "4", "5")) == [1.0, 0.0]


def test_a_new_check_is_found_by_its_settings():
    class PoliteConfig(CheckConfig, frozen=True, tag="polite"):
        word: str = "please"

    class Polite(RuleCheck[PoliteConfig]):
        def judge(self, task, response):
            return self.decided(float(self.config.word in response.text), "looked for it")

    scorer = build(PoliteConfig(word="thanks"))
    assert isinstance(scorer, Polite)
    assert values(score(scorer, a_task(), "thanks!", "please")) == [1.0, 0.0]


def test_the_room_needs_no_torch_and_nothing_heavy():
    script = """
        import sys
        sys.modules["torch"] = None
        import burnish.rewards
        heavy = {"math_verify", "sympy", "jsonschema", "langdetect", "numpy", "transformers"}
        sys.exit(" ".join(sorted(heavy & set(sys.modules))) or None)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True,
        check=False, env=environment, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_a_reward_may_score_some_roles_alone():
    """A reward model of the answer has nothing to say of a checker: it adds 0 there."""
    tables = [
        {"kind": "length", "max": 3, "name": "brief", "roles": ["solver"]},
        {"kind": "length", "max": 3, "name": "all"},
    ]
    total = build_all(msgspec.convert(tables, list[RewardConfig]))
    task = Task("t", (Message("user", "?"),))
    said = [
        Response("a", "one", role="solver"),
        Response("b", "one", role="checker"),
        Response("c", "one"),
    ]
    rewards = anyio.run(total.score, task, said)
    assert [reward.components["brief"] for reward in rewards] == [1.0, 0.0, 1.0]
    assert [reward.components["all"] for reward in rewards] == [1.0, 1.0, 1.0]
    assert "not for the role 'checker'" in rewards[1].parts[0].reason
