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

from burnish.policy.state import PolicyState
from burnish.store import RunStore
from burnish.training.events import StepDone

RECIPES = [
    "rloo",
    "opo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "cispo",
    "sapo",
    "gmpo",
    "clip_cov",
    "kl_cov",
    "high_entropy",
    "adaptive_entropy",
]
CLIP_COV = {"kind": "clip_cov", "share": 0.3, "low": -5.0, "high": 5.0}
ADAPTIVE = {"kind": "adaptive_entropy", "target": 5.4, "coefficient": 0.1, "step": 0.02}
EVERYTHING = {
    "policy": {
        "advantage": {"kind": "greedy_baseline"},
        "surrogate": CLIP_COV,
        "tokens": {"kind": "high_entropy", "share": 0.5},
        "auxiliary": [ADAPTIVE],
    },
    "update": {"minibatches": 2},
}


def last_weights(folder):
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return load_file(last / "model.safetensors")


def steps_of(events):
    return [event.metrics for event in events if isinstance(event, StepDone)]


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_move_the_tiny_model(tmp_path, name):
    """Every table of the file as it ships but its task, on two steps that have a signal."""
    small = {
        "steps": 2,
        "model": {"path": "tiny", "device": "cpu", "threads": 1, "dtype": "float32"},
        "task": {"kind": "arithmetic", "level": 1},
        "rewards": [reward("letters")],
        "rollout": {"prompts": 4, "samples": 4, "max_tokens": 8},
        "evaluation": {"prompts": 0},
    }
    table = merged(shipped(name), small)
    trained = trainer(tmp_path, table)
    before = {key: value.clone() for key, value in trained.trainable.module.state_dict().items()}
    metrics = steps_of(finish(trained))
    assert len(metrics) == 2
    moved = [
        (value - before[key]).abs().max().item()
        for key, value in trained.trainable.module.state_dict().items()
    ]
    assert 0 < max(moved) < 1
    outcome(tmp_path / "run")  # every metric is in the catalogue
    told = {
        "remax": "greedy/total",
        "clip_cov": "policy/marked_share",
        "kl_cov": "policy/marked_share",
        "high_entropy": "policy/selected_share",
        "adaptive_entropy": "loss/entropy/coefficient",
    }
    assert name not in told or told[name] in metrics[-1]


@pytest.mark.parametrize(("stop", "every"), [(1, 1), (3, 2)])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, stop, every):
    assert_continues(tmp_path, EVERYTHING, stop, every)
    last = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    state = PolicyState.from_tensors(load_file(last / "trainer" / "algorithm.safetensors"))
    assert state.entropy is not None
    assert state.entropy.entropy > 0


def test_marks_do_not_depend_on_micro_batches(tmp_path):
    found = []
    for tokens in (64, 4096):
        table = merged(EVERYTHING, {"steps": 3, "update": {"micro_batch_tokens": tokens}})
        metrics = steps_of(finish(trainer(tmp_path, table, run=f"run-{tokens}")))
        found.append((metrics, last_weights(tmp_path / f"run-{tokens}")))
    (few, small), (many, large) = found
    for name in ("policy/marked_share", "policy/selected_share", "greedy/total"):
        assert [m[name] for m in few] == pytest.approx([m[name] for m in many], rel=1e-12), name
    assert 0 < few[0]["policy/marked_share"] < 0.5
    assert few[0]["policy/selected_share"] == pytest.approx(0.5, abs=0.15)
    for name, tensor in small.items():
        torch.testing.assert_close(tensor, large[name], rtol=0, atol=1e-5)


def test_a_share_of_all_tokens_is_the_plain_recipe_bit_for_bit(tmp_path):
    few = {"steps": 3, "evaluation": {"prompts": 0}}
    every = {"policy": {"tokens": {"kind": "high_entropy", "share": 1.0}}}
    finish(trainer(tmp_path, every, few, run="every"))
    finish(trainer(tmp_path, few, run="plain"))
    assert outcome(tmp_path / "every")["weights"] == outcome(tmp_path / "plain")["weights"]


# --- greedy baselines

REMAX = {"policy": {"advantage": {"kind": "greedy_baseline"}}, "steps": 2}


def test_greedy_answers_are_stored_and_never_trained_on(tmp_path):
    metrics = steps_of(finish(trainer(tmp_path, REMAX)))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        greedy = {s.trajectory.group: s for s in store.samples(split="greedy")}
        trained = list(store.samples(split="train"))
    assert len(greedy) == 2 * 2
    assert len(trained) == 2 * 2 * 4
    assert all(s.advantage is None and not s.keep for s in greedy.values())
    for sample in trained:
        baseline = greedy[f"{sample.trajectory.group}.greedy"]
        assert baseline.task.id == sample.task.id
        gap = sample.reward.value - baseline.reward.value
        assert sample.advantage == pytest.approx(gap, abs=1e-6)
    for step, found in enumerate(metrics):
        own = [s.reward.value for s in greedy.values() if s.step == step]
        assert found["greedy/total"] == pytest.approx(sum(own) / len(own))
        assert found["greedy/missing"] == 0
        totals = [s.reward.value for s in trained if s.step == step]
        assert found["reward/total"] == pytest.approx(sum(totals) / len(totals))
        assert found["groups/total"] == 2


def test_a_prompt_whose_greedy_answer_has_no_reward_is_left_out(tmp_path):
    own = tmp_path / "rewards.py"
    own.write_text(
        "def no_greedy(text, response):\n"
        "    if response.id.startswith('0.0.greedy'):\n"
        "        return None\n"
        "    return sum(c.isalpha() for c in text) / max(len(text), 1)\n"
    )
    table = {"rewards": [{"kind": "function", "path": f"{own}:no_greedy", "name": "letters"}]}
    metrics = steps_of(finish(trainer(tmp_path, REMAX, table)))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        trained = list(store.samples(split="train", step=0))
    kept = {s.trajectory.group for s in trained if s.keep}
    assert kept == {"0.1"}
    assert all(s.advantage == 0 for s in trained if s.trajectory.group == "0.0")
    assert metrics[0]["greedy/missing"] == 0.5
    assert metrics[1]["greedy/missing"] == 0


def test_groups_that_equal_their_greedy_answer_are_refilled(tmp_path):
    select = {"kind": "informative_groups", "refill": True, "max_rounds": 3}
    table = {"policy": {"advantage": {"kind": "greedy_baseline"}, "select": select}, "steps": 1}
    finish(trainer(tmp_path, table, {"rewards": [reward("has_letter")]}))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        trained = [s.trajectory.group for s in store.samples(split="train")]
        dropped = [s.trajectory.group for s in store.samples(split="dropped")]
        greedy = {s.trajectory.group for s in store.samples(split="greedy")}
    assert {f"{group}.greedy" for group in (*trained, *dropped)} == greedy


def test_the_coefficient_follows_the_entropy_of_the_step_before(tmp_path):
    bonus = {"kind": "adaptive_entropy", "coefficient": 0.1, "step": 0.02, "high": 0.14}
    low = {"policy": {"auxiliary": [{**bonus, "target": 0.0}]}, "steps": 4}
    high = {"policy": {"auxiliary": [{**bonus, "target": 9.0}]}, "steps": 4}
    found = {}
    for name, table in (("low", low), ("high", high)):
        metrics = steps_of(finish(trainer(tmp_path, table, run=name)))
        found[name] = [m["loss/entropy/coefficient"] for m in metrics]
        assert metrics[1]["loss/entropy"] == pytest.approx(
            -found[name][1] * metrics[1]["policy/entropy"], rel=0.2
        )
    assert found["low"] == [0.0, 0.0, 0.0, 0.0]
    assert found["high"] == pytest.approx([0.0, 0.12, 0.14, 0.14])


def test_two_processes_mark_the_same_tokens(tmp_path):
    update = {"minibatches": 2, "micro_batch_tokens": 64}
    more = {"steps": 2, "rollout": {"prompts": 3}, "update": update}
    one_and_two(tmp_path, merged(EVERYTHING, more))
    for name, tensor in last_weights(tmp_path / "one").items():
        other = last_weights(tmp_path / "two")[name]
        torch.testing.assert_close(tensor, other, rtol=0, atol=1e-5)
    names = ("policy/marked_share", "policy/selected_share", "greedy/total")
    assert_same_curves(tmp_path, *names, rel=1e-9)
