import json
import random
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest
from training_cases import (
    assert_same,
    finish,
    finish_with_stops,
    outcome,
    resolved,
    reward,
    stop_after,
    trainer,
    write_rows,
)

from burnish.config import render
from burnish.errors import StoreError, UserError
from burnish.store import RunStore
from burnish.training import build
from burnish.training.events import StepDone
from warm import start

METHODS = {
    "grpo": {
        "policy": {"auxiliary": [{"kind": "kl", "coefficient": 0.04}]},
        "evaluation": {"every": 4},
    },
    "dapo": {
        "rewards": [reward("has_letter")],
        "policy": {
            "shaping": [{"kind": "overlong_penalty", "limit": 6, "buffer": 2, "scale": 0.0}],
            "select": {"kind": "informative_groups", "refill": True, "max_rounds": 3},
            "trust_region": {"kind": "static", "low": 0.2, "high": 0.28},
            "aggregate": {"mode": "token-mean"},
        },
        "optimiser": {"warmup_steps": 2, "schedule": "cosine"},
    },
    "gdpo": {
        "rewards": [
            reward("letters"),
            {"kind": "length", "unit": "characters", "max": 3, "edge": 6, "weight": 0.5},
        ],
        "policy": {
            "advantage": {"kind": "normalise_then_sum"},
            "post_scale": {"kind": "batch_whiten"},
            "aggregate": {"mode": "token-mean"},
        },
        "update": {"epochs": 2, "minibatches": 2},
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Each method's run without a stop, made once."""
    made = {}

    def get(method):
        if method not in made:
            folder = tmp_path_factory.mktemp(method)
            finish(trainer(folder, METHODS[method]))
            made[method] = outcome(folder / "run")
        return made[method]

    return get


@pytest.mark.parametrize(
    ("method", "every", "stop"), [("dapo", 1, 3), ("grpo", 2, 4), ("gdpo", 3, 5), ("dapo", 3, 2)]
)
def test_stopped_and_continued_equals_uninterrupted(tmp_path, whole, method, every, stop):
    more = {"checkpoint": {"every": every, "keep": 1}}
    # With a checkpoint at every step the stop comes right after it; else between two of them, so
    # that the steps since the last one are read back from the store.
    stop_after(trainer(tmp_path, METHODS[method], more), stop, saved=every == 1)
    events = finish(trainer(tmp_path, METHODS[method], more))
    steps = [event for event in events if isinstance(event, StepDone)]
    done = stop if every == 1 else (stop - 1) // every * every
    assert [event.step for event in steps] == list(range(done, 6))
    assert [event.reused for event in steps] == [step < stop for step in range(done, 6)]
    assert_same(outcome(tmp_path / "run"), whole(method))


@pytest.mark.parametrize(
    ("method", "every"), [("dapo", 1), ("dapo", 2), ("dapo", 3), ("grpo", 2), ("gdpo", 3)]
)
def test_stopped_after_every_step_equals_uninterrupted(tmp_path, whole, method, every):
    """One run lives six times; each life begins where the last one stopped."""
    more = {"checkpoint": {"every": every, "keep": 1}}
    stops = [f"{step} saved" if every == 1 else step for step in range(1, 6)]
    finish_with_stops(lambda: trainer(tmp_path, METHODS[method], more), *stops)
    assert_same(outcome(tmp_path / "run"), whole(method))


def test_the_runs_above_cross_an_epoch_border_and_refill(whole):
    tasks = [json.loads(sample)["task"]["id"] for sample in whole("grpo")["samples"]]
    assert {task.partition("@")[2] for task in tasks} == {"", "1"}
    assert b'"split":"dropped"' in b"".join(whole("dapo")["samples"])
    updates = [point.value for point in whole("gdpo")["metrics"]["optimiser/updates"]]
    assert updates == [4.0] * 6


def test_two_runs_of_one_seed_are_equal_and_another_seed_differs(tmp_path, whole):
    finish(trainer(tmp_path, METHODS["grpo"]))
    assert_same(outcome(tmp_path / "run"), whole("grpo"))
    finish(trainer(tmp_path, METHODS["grpo"], {"run": {"seed": 1}}, run="other"))
    assert outcome(tmp_path / "other")["weights"] != whole("grpo")["weights"]


def test_a_finished_run_started_again_changes_nothing(tmp_path, whole):
    finish(trainer(tmp_path, METHODS["dapo"]))
    events = finish(trainer(tmp_path, METHODS["dapo"]))
    assert not [event for event in events if isinstance(event, StepDone)]
    assert_same(outcome(tmp_path / "run"), whole("dapo"))


def test_a_stop_before_the_first_checkpoint_begins_again_from_the_stored_steps(tmp_path, whole):
    more = {"checkpoint": {"every": 0}}
    stop_after(trainer(tmp_path, METHODS["gdpo"], more), 4)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    finish(trainer(tmp_path, METHODS["gdpo"], more))
    assert_same(outcome(tmp_path / "run"), whole("gdpo"))


@pytest.mark.parametrize("every", [0, 1])
def test_the_thread_count_of_the_first_start_is_kept(tmp_path, monkeypatch, every):
    more = {"model": {"threads": 0}, "checkpoint": {"every": every}}
    room = sys.modules["burnish.training.builder"]  # the package exports a function of that name
    monkeypatch.setattr(room, "choose_threads", lambda *_: 1)
    stop_after(trainer(tmp_path, more), 1, saved=bool(every))
    monkeypatch.setattr(room, "choose_threads", lambda *_: 2)
    again = trainer(tmp_path, more)
    again.store.close()
    assert again.threads == 1


def test_changed_data_is_refused_with_both_fingerprints(tmp_path):
    first = trainer(tmp_path)
    stop_after(first, 1)
    settings = resolved(tmp_path)
    write_rows(tmp_path / "train.jsonl", 8)
    with pytest.raises(UserError) as caught:
        build(settings, tmp_path / "run", root=tmp_path)
    message = str(caught.value)
    assert message.startswith(
        f"run 'run' was started on other data (fingerprint {first.tasks.fingerprint}, now "
    )
    assert message.endswith(
        "restore the data, choose another run.name, or start a new run with --again"
    )
    assert "\n" not in message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"optimiser": {"learning_rate": 2e-3}}, "optimiser.learning_rate: 0.001 -> 0.002"),
        ({"rollout": {"samples": 5}}, "rollout.samples: 4 -> 5"),
        ({"steps": 9}, "steps: 6 -> 9"),
        ({"policy": {"dual_clip": 3.0}}, "policy.dual_clip: 0.0 -> 3.0"),
    ],
)
def test_a_changed_key_is_refused_by_name(tmp_path, change, named):
    stop_after(trainer(tmp_path), 1)
    with pytest.raises(UserError) as caught:
        trainer(tmp_path, change)
    assert str(caught.value) == (
        f"run 'run' was started with another config ({named}); change it back, choose another "
        "run.name, or start a new run with --again"
    )


def test_a_run_older_than_a_setting_goes_on(tmp_path, whole):
    """A version with a new setting, left at its default, continues the runs of the one before."""
    stop_after(trainer(tmp_path, METHODS["dapo"]), 4)
    file = tmp_path / "run" / "config.json"
    about = json.loads(file.read_text())
    del about["config"]["policy.dual_clip"]
    about["config_hash"] = "of the version before"
    file.write_text(json.dumps(about))
    with pytest.raises(UserError, match=r"\(policy.dual_clip: absent -> 3.0\)"):
        trainer(tmp_path, METHODS["dapo"], {"policy": {"dual_clip": 3.0}})
    finish(trainer(tmp_path, METHODS["dapo"]))
    assert_same(outcome(tmp_path / "run"), whole("dapo"))


def test_free_keys_may_change(tmp_path, whole):
    stop_after(trainer(tmp_path, METHODS["gdpo"], {"checkpoint": {"every": 2}}), 3)
    more = {
        "checkpoint": {"every": 5, "keep": 1},
        "guards": {"useless_steps": 3, "failed_share": 0.1},
        "run": {"name": "renamed", "folder": "elsewhere"},
    }
    finish(trainer(tmp_path, METHODS["gdpo"], more))
    assert_same(outcome(tmp_path / "run"), whole("gdpo"))


def test_a_second_process_is_refused_and_does_no_harm(tmp_path):
    first = trainer(tmp_path)
    draft = tmp_path / "run" / "checkpoints" / ".writing-000001-1"
    draft.mkdir()
    with pytest.raises(StoreError):
        trainer(tmp_path)
    assert draft.exists(), "the draft of a living writer was swept away"
    first.store.close()
    trainer(tmp_path).store.close()
    assert not draft.exists(), "the draft of a dead writer stayed"


# --- kill -9

TRAIN = ["train", "config.toml", "--quiet"]
KILLS = 5


def stored(run: Path) -> dict[str, bytes]:
    """What a reader sees of a run that may just be coming into being."""
    if not (run / "config.json").exists():
        return {}
    with RunStore.open(run, read_only=True) as store:
        return {s.id: msgspec.json.encode(s) for s in store.samples()}


def test_random_kills_lose_no_sample_and_change_no_bit(tmp_path):
    settings = {
        **METHODS["dapo"],
        "steps": 6 * KILLS,
        "run": {"name": "killed", "folder": "."},
        "checkpoint": {"every": 4},
        "guards": {"useless_steps": 6 * KILLS},
    }
    finish(trainer(tmp_path, settings, run="whole"))
    config = resolved(tmp_path, settings)
    (tmp_path / "config.toml").write_text(render(config))
    run = tmp_path / "killed"
    rng = random.Random(7)
    kills = 0
    seen: dict[str, bytes] = {}
    while kills < KILLS:
        child = start("burnish", TRAIN, folder=tmp_path)
        known = len(seen)
        deadline = time.monotonic() + 300
        # The clock of the kill starts when the child has stored something new, so that every
        # life gets somewhere and the kill falls at a random point of its work.
        while child.is_alive() and len(stored(run)) == known:
            assert time.monotonic() < deadline, "the child stores nothing"
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 0.25))
        before = stored(run)
        child.kill()
        child.join()
        after = stored(run)
        assert before.items() <= after.items(), "a stored sample was lost or changed by the kill"
        assert seen.items() <= after.items(), "a sample of an earlier life was lost or changed"
        seen = after
        assert child.exitcode == -signal.SIGKILL, "the run finished before the last kill"
        kills += 1
    last = start("burnish", TRAIN, folder=tmp_path)
    last.join(600)
    assert last.exitcode == 0
    assert_same(outcome(run), outcome(tmp_path / "whole"))


def test_changed_reward_code_is_refused(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def own(text):\n    return float(len(text) % 2)\n")
    own = {"rewards": [{"kind": "function", "path": f"{file}:own"}]}
    stop_after(trainer(tmp_path, own), 2)
    file.write_text("def own(text):\n    return float(len(text) % 3)\n")
    with pytest.raises(UserError, match=r"other contents of own\.py; restore them"):
        trainer(tmp_path, own)
    file.write_text("def own(text):\n    return float(len(text) % 2)\n")
    assert finish(trainer(tmp_path, own))[-1].status == "finished"
