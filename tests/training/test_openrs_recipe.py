import anyio
import pytest
from openrs_judge import openrs_reply
from training_cases import ROOT, finish, merged, shipped, trainer

import burnish.lm.named as named
from burnish.config import Config, load
from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Response, Status, Task
from burnish.rewards.config import build_all
from burnish.rewards.scorer import checked
from burnish.training.events import StepDone

RECIPE = ROOT / "recipes" / "openrs.toml"


@pytest.fixture
def scripted(monkeypatch):
    judge = ScriptedLM(lambda messages, index: openrs_reply(messages[0].content), name="judge")
    monkeypatch.setattr(named, "open_lm", lambda name, **options: judge)
    return judge


def test_the_reward_is_the_pair_against_the_anchor_plus_the_check(scripted):
    config = load(Config, RECIPE).value
    scorer = build_all(config.rewards, base=RECIPE.parent)
    prompt = "Write a story of two or three sentences about a fox. The mood is sad."
    anchor = "The old fox walked home through the rain and the dark."
    task = Task("t", (Message("user", prompt),), {"demonstration": anchor})
    texts = [
        "The old fox walked slowly home through the long rain and never once looked behind.",
        "The fox went home and the fox slept.",
        anchor,
        "The fox was silent, and the night was long and cold and full of stars.",
    ]
    responses = [Response(f"r{i}", text) for i, text in enumerate(texts)]
    rewards = anyio.run(lambda: checked(scorer, task, responses))
    assert [r.value for r in rewards[:3]] == [pytest.approx(v, abs=1e-4) for v in (3, -1, 1)]
    assert rewards[3].value is None  # masked, not 0
    assert rewards[3].status is Status.PARSE_ERROR
    pair = rewards[0].parts[0]
    assert [part.name for part in pair.parts[0].parts] == ["forward", "backward"]


def test_the_recipe_trains_on_the_tiny_model(tmp_path, scripted):
    small = {
        "steps": 2,
        "model": {"path": "tiny", "device": "cpu", "threads": 1},
        "rollout": {"prompts": 2, "samples": 4, "max_tokens": 12},
        "evaluation": {"prompts": 2},
        "stages": [{"steps": 2, "train": {"kind": "sft", "batch": 2}}],
    }
    table = merged(shipped("openrs"), small)
    # The noise of an untrained model is in no language, so the check stays out of this total.
    table["rewards"][1]["weight"] = 0.0
    events = finish(trainer(tmp_path, table))
    steps = [event for event in events if isinstance(event, StepDone) and not event.stage]
    assert len(steps) == 2
    assert any("openrs" in key for key in steps[0].metrics)
    assert scripted.calls
