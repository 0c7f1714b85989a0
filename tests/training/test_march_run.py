import signal
from pathlib import Path

import pytest
from training_cases import assert_same, finish, outcome, resolved, shipped, stop_after, trainer

from burnish.config import render
from burnish.store import RunStore
from burnish.training.events import Finished, StepDone
from warm import start

PLAYERS = Path(__file__).parents[1] / "agents" / "march_players.py"


def march(name="play", **options):
    return {
        "task": {"kind": "function", "path": f"{PLAYERS}:make"},
        "rewards": [
            {"kind": "env", "name": "march"},
            {"kind": "env", "name": "claims", "weight": 0.0},
        ],
        "rollout": {
            "kind": "function",
            "path": f"{PLAYERS}:{name}",
            "options": {"checker_reward": "consensus", "matcher": "exact", **options},
            "evaluation_options": {"checkers": 0},
            "prompts": 2,
            "samples": 4,
            "max_tokens": 12,
        },
        "evaluation": {"prompts": 2, "part": "claims"},
        "steps": 3,
    }


def samples(folder, split="train"):
    with RunStore.open(folder, read_only=True) as store:
        return [s for s in store.samples() if s.split == split]


def test_both_roles_are_trained_in_their_own_groups(tmp_path):
    events = finish(trainer(tmp_path, march()))
    assert isinstance(events[-1], Finished)
    groups = {}
    for sample in samples(tmp_path / "run"):
        groups.setdefault(sample.trajectory.group, []).append(sample)
    solvers = [name for name in groups if name.endswith(".solver")]
    checkers = [name for name in groups if ".checker." in name]
    assert len(solvers) == 3 * 2
    assert len(checkers) == 3 * 2 * 4
    assert {len(groups[name]) for name in solvers} == {4}
    assert {len(groups[name]) for name in checkers} == {3}
    trace = groups[solvers[0]][0].trajectory.info["march"]
    assert len(trace["claims"]) == 3
    assert trace["documents"] == "documents"
    steps = [e.metrics for e in events if isinstance(e, StepDone)]
    assert sum(metrics["optimiser/updates"] for metrics in steps) >= 2
    assert steps[0]["reward/claims/mean"] == 3.0  # of the Solvers: Checkers have none
    held_out = samples(tmp_path / "run", "eval:held_out")
    assert {s.trajectory.role for s in held_out} == {"solver"}


def test_solver_only_trains_the_solver_alone(tmp_path):
    finish(trainer(tmp_path, march(use_checker=False), {"steps": 1}))
    assert {s.trajectory.role for s in samples(tmp_path / "run")} == {"solver"}


def test_solver_only_is_plain_training_bit_by_bit(tmp_path):
    """The same rollouts, rewards and weights as a rollout that knows nothing of checkers."""
    plain = march("plain")
    plain["rollout"] |= {"options": {}, "evaluation_options": {}}
    finish(trainer(tmp_path, march(use_checker=False), run="game"))
    finish(trainer(tmp_path, plain, run="plain"))
    game, other = outcome(tmp_path / "game"), outcome(tmp_path / "plain")
    assert game["weights"] == other["weights"]
    assert game["optimiser"] == other["optimiser"]
    spans = [[s.trajectory.spans for s in samples(tmp_path / run)] for run in ("game", "plain")]
    assert spans[0] == spans[1]


@pytest.mark.parametrize("saved", [False, True])
def test_a_stopped_game_goes_on_bit_by_bit(tmp_path, saved):
    more = {"checkpoint": {"every": 1}} if saved else {}
    finish(trainer(tmp_path, march(), more, run="whole"))
    stop_after(trainer(tmp_path, march(), more), 2, saved=saved)
    finish(trainer(tmp_path, march(), more))
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


def test_a_kill_in_the_middle_of_an_episode_changes_no_bit(tmp_path):
    file = tmp_path / "countdown"
    settings = march("dies", countdown=str(file)) | {"run": {"name": "killed", "folder": "."}}
    finish(trainer(tmp_path, settings, run="whole"))
    (tmp_path / "config.toml").write_text(render(resolved(tmp_path, settings)))
    file.write_text("12")  # 8 games a step: in the second one
    words = ["train", "config.toml"]
    log = tmp_path / "log"
    child = start("burnish", words, folder=tmp_path, log=log)
    child.join(600)
    assert child.exitcode == -signal.SIGKILL, log.read_text()[-2000:]
    assert len({s.step for s in samples(tmp_path / "killed")}) == 1
    child = start("burnish", words, folder=tmp_path, log=log)
    child.join(600)
    assert child.exitcode == 0, log.read_text()[-2000:]
    assert_same(outcome(tmp_path / "killed"), outcome(tmp_path / "whole"))


def test_the_recipe_begins_with_a_tiny_model(tmp_path):
    small = {
        "model": {"path": "tiny"},
        "steps": 1,
        "stages": [],
        "evaluation": {"prompts": 2},
        "rollout": {**shipped("march")["rollout"], "prompts": 2, "samples": 2, "max_tokens": 16},
    }
    events = finish(trainer(tmp_path, shipped("march"), small))
    assert isinstance(events[-1], Finished)
    (step,) = [e.metrics for e in events if isinstance(e, StepDone)]
    assert step["reward/no_claims/mean"] == 1.0  # a random model claims nothing
    assert step["reward/march/mean"] == -0.5  # and pays for that
