from pathlib import Path

import pytest
from training_cases import finish, outcome, stop_after, trainer

from burnish.errors import GuardTripped
from burnish.records import Author, Status
from burnish.store import RunStore
from burnish.training.events import Finished, StepDone

GAMES = Path(__file__).parents[1] / "rollouts" / "games.py"
ENV_REWARD = {"kind": "env", "name": "letters", "otherwise": 0.0}
ECHO = {
    "rewards": [ENV_REWARD],
    "rollout": {"kind": "env", "path": f"{GAMES}:Echo", "prompts": 2, "samples": 4,
                "max_tokens": 12, "turn_tokens": 6},
    "steps": 4,
}  # fmt: skip


def function(name, **more):
    rollout = {"kind": "function", "path": f"{GAMES}:{name}", "prompts": 2, "samples": 4,
               "max_tokens": 6, **more}  # fmt: skip
    return {"rollout": rollout}


def samples(folder, split=None):
    with RunStore.open(folder / "run", read_only=True) as store:
        return [s for s in store.samples() if split is None or s.split == split]


def test_a_multi_turn_run_trains_on_replies_alone_and_is_evaluated_the_same_way(tmp_path):
    events = finish(trainer(tmp_path, ECHO))
    assert isinstance(events[-1], Finished)
    trained = samples(tmp_path, "train")
    assert len(trained) == 4 * 8
    for sample in trained:
        spans = sample.trajectory.spans
        assert [s.trainable for s in spans] == [s.author is Author.MODEL for s in spans]
        assert sum(s.author is Author.MODEL for s in spans) == 2
        assert any(s.author is Author.TOOL for s in spans)
        assert sample.trajectory.info["turns"] == 2
    held_out = samples(tmp_path, "eval:held_out")
    assert {s.trajectory.info["turns"] for s in held_out} == {2}
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert sum(metrics["optimiser/updates"] for metrics in steps) >= 1


@pytest.mark.parametrize("saved", [False, True])
def test_a_stopped_multi_turn_run_goes_on_bit_by_bit(tmp_path, saved):
    more = {"checkpoint": {"every": 1}} if saved else {}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    finish(trainer(whole, ECHO, more))
    stop_after(trainer(cut, ECHO, more), 2, saved=saved)
    finish(trainer(cut, ECHO, more))
    first, second = outcome(whole / "run"), outcome(cut / "run")
    for key in first:
        if key != "samples":  # these name the data files
            assert first[key] == second[key], key
    # The tasks name their files' folder; everything sampled is the same.
    kinds = [[(s.split, s.index, s.trajectory) for s in samples(f)] for f in (whole, cut)]
    assert kinds[0] == kinds[1]


def test_one_failed_rollout_leaves_its_group_and_the_run_goes_on(tmp_path):
    events = finish(trainer(tmp_path, function("fails_sometimes"), {"steps": 2}))
    assert (events[-1].status, events[-1].reason) == ("finished", "")
    train, dropped = samples(tmp_path, "train"), samples(tmp_path, "dropped")
    assert (len(train), len(dropped)) == (2 * 6, 2 * 2)
    assert {(s.reward.status, s.reward.reason) for s in dropped} == {
        (Status.INFRA_ERROR, "this one was lost")
    }
    steps = [e.metrics for e in events if isinstance(e, StepDone)]
    assert [m["status/infra_error"] for m in steps] == [0.25, 0.25]


def test_above_the_failed_share_the_run_stops_and_says_why(tmp_path):
    guards = {"steps": 3, "guards": {"failed_share": 0.2}}
    events = finish(trainer(tmp_path, function("fails_sometimes"), guards))
    assert events[-1].status == "stopped"
    assert "25% of the rewards of step 1 have no value" in events[-1].reason
    assert "this one was lost" in events[-1].reason


def test_a_step_without_any_rollout_stops_in_one_line(tmp_path):
    run = trainer(tmp_path, function("always_fails"), {"evaluation": {"prompts": 0}})
    with pytest.raises(GuardTripped, match=r"step 1: all 8 rollouts failed; .*KeyError") as error:
        finish(run)
    assert "\n" not in str(error.value)
    assert "unscored-start-" in str(error.value)  # the name under which `burnish show` has it
    kept = samples(tmp_path, "eval:unscored")
    assert len(kept) == 8
    assert {sample.reward.status.value for sample in kept} == {"infra_error"}
    assert all("KeyError" in sample.reward.reason for sample in kept)


def test_the_length_of_prompts_counts_the_tools_that_they_offer(tmp_path):
    tool = {"path": f"{GAMES}:double"}
    rollout = {"kind": "env", "tools": [tool], "prompts": 2, "samples": 4}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with_tool = trainer(tmp_path / "a", {"rollout": rollout}).stage.setup.prompts.longest
    plain = trainer(
        tmp_path / "b", {"rollout": {"kind": "single_turn"}}
    ).stage.setup.prompts.longest
    assert with_tool > plain + 50


def test_roles_are_trained_in_groups_of_their_own(tmp_path):
    reward = {"rewards": [{"kind": "env", "name": "shared"}]}
    events = finish(trainer(tmp_path, function("two_roles"), reward, {"steps": 2}))
    train = samples(tmp_path, "train")
    groups = {}
    for sample in train:
        groups.setdefault((sample.step, sample.trajectory.group), []).append(sample)
    assert sorted({group for _, group in groups}) == sorted(
        f"{step}.{slot}.{role}"
        for step in range(2) for slot in range(2) for role in ("reader", "writer")
    )  # fmt: skip
    for members in groups.values():
        assert len(members) == 4
        assert sum(s.advantage for s in members) == pytest.approx(0, abs=1e-6)
    metrics = [e.metrics for e in events if isinstance(e, StepDone)]
    assert metrics[0]["groups/total"] == 4


def test_recorded_replies_are_scored_and_trained_on(tmp_path):
    import json

    rows = [{"question": f"{i}?", "completions": ["abc", "123", "a1"]} for i in range(6)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"kind": "file", "path": str(data), "prompt": "question",
            "fields": {"completions": "completions"}}  # fmt: skip
    rollout = {"kind": "recorded", "prompts": 2, "samples": 4, "max_tokens": 6}
    finish(trainer(tmp_path, {"task": task, "rollout": rollout, "steps": 2}))
    train = samples(tmp_path, "train")
    assert [s.trajectory.text for s in train[:3]] == ["abc", "123", "a1"]
    by_text = {s.trajectory.text: s.advantage for s in train}
    assert by_text["abc"] > by_text["a1"] > by_text["123"]
    assert all(s.trajectory.trained_tokens == len(s.trajectory.text) + 1 for s in train)


def test_a_round_of_failures_does_not_end_the_refill(tmp_path):
    """Groups of failed rollouts are refilled with other prompts, as groups without signal are."""
    select = {"select": {"kind": "informative_groups", "refill": True, "max_rounds": 3}}
    rollout = function("fails_first", prompts=1)
    finish(trainer(tmp_path, rollout, {"policy": select, "steps": 1, "evaluation": {"prompts": 0}}))
    assert len(samples(tmp_path, "train")) == 4
    assert sum(s.reward.status is Status.INFRA_ERROR for s in samples(tmp_path, "dropped")) == 4


def test_the_forecast_counts_what_the_environment_writes(tmp_path):
    """As much as is set before the first step, and then as much as was seen."""
    cache = []
    for tokens in (0, 100):
        more = {**ECHO["rollout"], "observation_tokens": tokens}
        opened = trainer(tmp_path, ECHO, {"rollout": more}, run=f"run-{tokens}")
        opened.store.close()
        cache.append(opened.forecast.memory["cache"])
        assert opened.forecast.memory["activations"] > 0
    assert cache[1] - cache[0] == 8 * 100 * opened.trainable.module.cache_bytes_per_token
    finish(trainer(tmp_path, ECHO))
    again = trainer(tmp_path, ECHO)
    behind = again.algorithm.workload().observed_tokens
    again.store.close()
    written = [
        sum(len(span.token_ids) for span in sample.trajectory.spans[1:] if not span.trainable)
        for sample in samples(tmp_path, "train")
    ]
    assert 0 < behind <= max(written)
    assert again.forecast.memory["cache"] == cache[0] + (cache[1] - cache[0]) * behind // 100
