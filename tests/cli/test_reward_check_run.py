"""`burnish reward check RUN`: rewards on stored answers, in the groups they were sampled in."""

from __future__ import annotations

import json

import pytest
from cli_words import Type
from stored_run import CONFIG, ORIGINS, STEPS, make_sample

from burnish.api.run import load_run
from burnish.errors import UserError
from burnish.store import RunStore

REWARDS = {"rewards.0.kind": "numeric", "rewards.0.weight": 1.0}


@pytest.fixture
def kept(tmp_path):
    """A run of four steps whose one reward is `numeric`."""
    config = {**CONFIG, **REWARDS}
    origins = {**ORIGINS, **dict.fromkeys(REWARDS, "grpo.toml:9")}
    with RunStore.create(tmp_path / "runs" / "sums-1", config, origins, recipe="grpo") as store:
        for step in range(STEPS):
            store.append_rollouts(step, [make_sample(step, i) for i in range(4)])
        store.finish("finished", {})
    return tmp_path / "runs"


def found(typed: Type, *words: object) -> dict:
    done = typed("reward", "check", *words, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    report["findings"] = {one["name"]: one for one in report["findings"]}
    return report


def test_a_runs_rewards_are_checked_on_its_stored_answers(typed, kept):
    report = found(typed, "sums-1", "--runs", kept)
    assert (report["groups"], report["responses"]) == (8, 16)
    assert report["source"] == "stored answers of run 'sums-1'"
    # Group 0 of each step: 2 is right, 9 wrong. Group 1: an escape sequence hides the 3 behind 31.
    assert "0 to 1, mean 0.25, 2 different values" in report["findings"]["range"]["says"]
    assert report["findings"]["groups"]["says"].startswith("4 of 8 groups have no variance")
    # Stored: 1 and 0.1, then 1 and none: only the first answer of a step is as it was.
    assert (
        "12 of 16 values are not those that the run stored"
        in (report["findings"]["on record"]["says"])
    )
    assert {"latency", "cost", "padding", "empty"} <= report["findings"].keys()


def test_steps_and_limit_choose_groups_over_the_whole_run(typed, kept):
    assert found(typed, kept / "sums-1", "--step", "1..2")["groups"] == 4
    assert found(typed, "sums", "--runs", kept, "--limit", "4")["groups"] == 4
    done = typed("reward", "check", "sums-1", "--runs", kept, "--step", "9")
    assert (done.code, "has no stored answers of steps 9 to 9" in done.err) == (2, True)


def test_another_reward_is_checked_on_the_answers_of_a_run(typed, kept, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def same(text):\n    return 1.0\n\ndef needy(text, colour):\n    return 1.0\n")
    report = found(typed, f"{path}:same", "--data", kept / "sums-1")
    assert "on record" not in report["findings"]
    assert report["findings"]["groups"]["says"].startswith("8 of 8 groups have no variance")
    assert report["findings"]["groups"]["is_bad"]
    done = typed("reward", "check", f"{path}:needy", "--data", kept / "sums-1")
    assert done.code == 2
    assert "colour" in done.err
    assert len(done.err.splitlines()) == 1


def test_python_checks_a_reward_on_a_run_too(kept):
    run = load_run("sums-1", kept)
    own = run.check_reward()
    assert (own.groups, own.responses) == (8, 16)
    assert "on record" in [finding.name for finding in own.findings]
    flat = run.check_reward(lambda text: 1.0, limit=3)
    assert flat.groups == 3
    assert "look at" in flat.verdict
    with pytest.raises(UserError, match="limit"):
        run.check_reward(limit=0)
