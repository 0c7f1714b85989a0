"""`burnish init`: what it writes trains at once, and nothing is overwritten."""

import json

import pytest

from burnish.api.config import Config
from burnish.cli.init import starters
from burnish.intervals import FEW
from burnish.store import RunStatus, RunStore
from burnish.tasks.config import build

KINDS = ("distil", "dpo", "policy", "pretrain", "reward_model", "sft", "tools")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_trains_at_once(kind, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed("init", kind).code == 0
    done = typed("train", "my.toml", "model.path=tiny", "steps=3", "--json", "run.name=first")
    assert (done.code, [x for x in done.err.splitlines() if not x.startswith("warning:")]) == (
        0,
        [],
    )
    events = [json.loads(line) for line in done.out.splitlines()]
    last = events[-1]
    assert (last["event"], last["status"]) == ("finished", "finished")
    assert last["before"] is not None
    assert last["after"] is not None
    with RunStore.open(tmp_path / "runs" / "first", read_only=True) as store:
        assert store.status() is RunStatus.FINISHED
        assert store.steps() or len(store.metrics()["loss/total"]) == 3


@pytest.mark.parametrize("kind", ["dpo", "reward_model", "sft"])
def test_enough_rows_are_held_out_to_say_something(kind):
    asked = Config.load(starters()[kind] / "my.toml").asked
    config = asked.resolved.value
    held_out = build(config.task, config.run.seed, asked.root).held_out(1000)
    assert len(held_out) == config.evaluation.prompts >= FEW


@pytest.mark.parametrize("kind", ["policy", "tools"])
def test_what_is_written_can_be_tried_without_a_model(kind, typed, tmp_path):
    assert typed("init", kind, "--to", tmp_path / "new").code == 0
    done = typed("try", tmp_path / "new" / "my.toml", "model.path=tiny")
    assert done.code == 0
    assert "correct" in done.out


def test_text_of_a_starter_can_be_tried_and_a_new_model_learns_it(typed, tmp_path, monkeypatch):
    assert typed("init", "pretrain", "--to", tmp_path).code == 0
    monkeypatch.chdir(tmp_path)
    assert "document 1" in typed("try", "my.toml").out
    done = typed("train", "my.toml", "steps=8", "evaluation.every=0", "--json")
    last = json.loads(done.out.splitlines()[-1])
    assert last["after"]["value"] < last["before"]["value"] - 1


def test_every_kind_is_listed_with_its_files(typed):
    listed = [json.loads(line) for line in typed("init", "--list", "--json").out.splitlines()]
    assert tuple(row["kind"] for row in listed) == KINDS == tuple(starters())
    for row in listed:
        assert "my.toml" in row["files"]
        assert row["about"].endswith((".", "jsonl"))
        assert "burnish train" not in row["about"]


def test_nothing_is_overwritten_and_nothing_half_written(typed, tmp_path):
    (tmp_path / "my_task.py").write_text("mine")
    done = typed("init", "policy", "--to", tmp_path)
    assert done.code == 2
    assert "my_task.py exists already and nothing was written" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["my_task.py"]
    assert (tmp_path / "my_task.py").read_text() == "mine"
