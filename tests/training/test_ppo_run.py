import pytest
import torch
from safetensors.torch import load_file
from training_cases import (
    assert_continues,
    assert_same_curves,
    finish,
    merged,
    one_and_two,
    outcome,
    reward,
    shipped,
    trainer,
)

from burnish.errors import GuardTripped, UserError
from burnish.training.checkpoint import replay
from burnish.training.events import StepDone

PPO = {
    "policy": {
        "advantage": {"kind": "gae", "kl": 0.05},
        "critic": {"kind": "shared", "coefficient": 0.5},
        "aggregate": {"mode": "token-mean"},
    },
    "rollout": {"prompts": 4, "samples": 1, "max_tokens": 6},
    "update": {"epochs": 2, "minibatches": 2},
    "evaluation": {"prompts": 0},
}
DIGITS = {
    "steps": 20,
    "model": {"path": "tiny"},
    "task": {"kind": "arithmetic", "level": 1},
    "rewards": [{"kind": "regex", "name": "digit", "pattern": "[0-9]"}],
    "rollout": {"prompts": 16, "max_tokens": 16},
    "optimiser": {"learning_rate": 1e-3},
    "evaluation": {"prompts": 0},
}


def steps_of(events):
    return [event.metrics for event in events if isinstance(event, StepDone)]


def last_files(folder):
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    names = ("model.safetensors", "trainer/optimiser.safetensors", "trainer/algorithm.safetensors")
    return [load_file(last / name) for name in names]


def test_the_shipped_recipe_learns_with_one_answer_a_prompt(tmp_path):
    table = merged(shipped("ppo"), DIGITS)
    assert table["rollout"]["samples"] == 1
    metrics = steps_of(finish(trainer(tmp_path, table)))
    rewards = [one["reward/total"] for one in metrics]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
    assert metrics[0]["critic/value"] == 0, "the head starts at 0"
    assert metrics[-1]["critic/value"] > 0.3, "and comes to expect the reward"
    assert metrics[-1]["loss/value"] < metrics[0]["loss/value"]
    assert all(-100 < one["critic/explained_variance"] <= 1 for one in metrics[:10])
    outcome(tmp_path / "run")  # every metric is in the catalogue


@pytest.mark.parametrize(("stop", "every"), [(1, 1), (3, 2)])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, stop, every):
    assert_continues(tmp_path, PPO, stop, every)
    _, optimiser, algorithm = last_files(tmp_path / "run")
    assert optimiser["master/critic.weight"].abs().max() > 0
    assert torch.equal(algorithm["critic.weight"], optimiser["master/critic.weight"])
    assert {"first/critic.weight", "second/critic.weight"} <= optimiser.keys()


def test_neither_micro_batches_nor_shared_prompts_change_a_step(tmp_path):
    found = []
    for name, tokens, share in (("a", 64, True), ("b", 4096, True), ("c", 4096, False)):
        update = {"micro_batch_tokens": tokens, "share_prompts": share}
        table = merged(PPO, {"steps": 3, "rollout": {"samples": 3}, "update": update})
        metrics = steps_of(finish(trainer(tmp_path, table, run=name)))
        found.append((metrics, last_files(tmp_path / name)[0]))
    for metrics, weights in found[1:]:
        for name in ("critic/value", "critic/return", "critic/kl", "loss/value", "reward/total"):
            given = [[one[name] for one in many] for many in (metrics, found[0][0])]
            assert given[0] == pytest.approx(given[1], rel=1e-4, abs=1e-6), name
        for key, value in weights.items():
            torch.testing.assert_close(value, found[0][1][key], rtol=0, atol=2e-5)


def test_two_processes_come_out_as_one(tmp_path):
    one_and_two(tmp_path, merged(PPO, {"steps": 2}))
    one, two = (last_files(tmp_path / name) for name in ("one", "two"))
    for mine, theirs in zip(one[:2], two[:2], strict=True):
        for key, value in mine.items():
            torch.testing.assert_close(theirs[key], value, rtol=0, atol=2e-5, msg=key)
    assert_same_curves(tmp_path, "critic/value", rel=1e-3, abs=1e-5)


def test_a_critic_that_breaks_is_named_and_replayed(tmp_path):
    run = trainer(tmp_path, PPO, {"steps": 3})

    def break_the_head():
        for event in run.run():
            if isinstance(event, StepDone):
                run.algorithm.value_head.weight.data.fill_(torch.nan)

    with pytest.raises(
        GuardTripped, match="value guard: the critic's value is nan at step 2"
    ) as hit:
        break_the_head()
    run.store.close()
    (place,) = (tmp_path / "run" / "crash").iterdir()
    assert (place / "critic.safetensors").is_file()
    assert replay(place) in str(hit.value)


def test_one_answer_a_prompt_is_refused_where_answers_are_compared(tmp_path):
    with pytest.raises(UserError, match="'sum_then_normalise' compares the answers to one prompt"):
        trainer(tmp_path, {"rollout": {"samples": 1}})
    finish(
        trainer(
            tmp_path,
            {"policy": {"advantage": {"kind": "batch_normalise"}}, "rewards": [reward("letters")]},
            {"rollout": {"samples": 1}, "steps": 1},
        )
    )
