import json

import pytest
from training_cases import SMALL, finish, resolved, reward, trainer

from burnish.api.launch import _changes
from burnish.cli.entry import run as typed
from burnish.config import load
from burnish.config.recipes import Asked, resolve
from burnish.config.schema import Config
from burnish.errors import RunChanged
from burnish.store import RunStore, manifest
from burnish.training import build
from burnish.training.data import Data, answer_budget

OPEN = {"rollout": {"max_tokens": 0}, "steps": 2, "evaluation": {"prompts": 0}}


def tasks_with(folder, demonstrations):
    rows = [{"question": f"q{i}", "shown": text} for i, text in enumerate(demonstrations)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = {"path": str(folder / "rows.jsonl"), "prompt": "question", "fields": {"shown": "shown"}}
    config = resolved(folder, {"task": {"kind": "file", **table}}).value.task
    return Data(config, 0).tasks


@pytest.mark.parametrize(
    ("longest", "room", "tokens"),
    [(50, 1000, 112), (3, 1000, 32), (900, 1000, 1000), (50, 5, 5), (0, 1000, 256), (0, 40, 40)],
)
def test_it_follows_the_demonstrations_and_the_models_context(tmp_path, longest, room, tokens):
    tasks = tasks_with(tmp_path, ["word " * longest, *("a" for _ in range(9) if longest)] * 2)
    found = answer_budget(tasks, "shown", lambda text: len(text.split()), room)
    assert found.tokens == tokens
    assert found.reason
    assert answer_budget(tasks, "nothing", len, 1000).tokens == 256


def test_a_run_stores_what_it_chose_and_goes_on_with_it(tmp_path, monkeypatch):
    trained = trainer(tmp_path, OPEN)
    assert trained.answers.tokens == trained.config.rollout.max_tokens == 256
    trained.store.close()
    about = manifest.read(tmp_path / "run")
    assert about.config["rollout.max_tokens"] == 256
    assert about.origins["rollout.max_tokens"].startswith("chosen: ")
    monkeypatch.setattr("burnish.training.data.ANSWER_TOKENS", 99)
    again = trainer(tmp_path, OPEN)
    assert again.answers.tokens == 256, "as the run began"
    again.store.close()
    assert trainer(tmp_path, OPEN, run="another").answers.tokens == 99


def test_the_same_settings_are_the_same_run_and_another_number_is_not(tmp_path):
    trainer(tmp_path, OPEN).store.close()
    about = manifest.read(tmp_path / "run")
    left_open = Asked(tmp_path, resolved(tmp_path, OPEN))
    assert _changes(left_open, about) == []
    given = {"rollout": {"max_tokens": 64}}
    assert _changes(Asked(tmp_path, resolved(tmp_path, OPEN, given)), about) == [
        "rollout.max_tokens: 256 -> 64"
    ]
    with pytest.raises(RunChanged, match=r"rollout\.max_tokens: 256 -> 64"):
        trainer(tmp_path, OPEN, given)


def test_answers_are_sampled_to_the_limit_that_was_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.training.data.ANSWER_TOKENS", 9)
    finish(trainer(tmp_path, OPEN))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        lengths = [s.trajectory.trained_tokens for s in store.samples(split="train")]
    assert max(lengths) == 9


@pytest.mark.parametrize("kind", ["reward_model", "sft", "dpo"])
def test_no_limit_is_chosen_where_no_answer_is_sampled(tmp_path, kind, capsys):
    def built(run, **more):
        rows = [
            {"question": f"q{i}?", "chosen": "YES", "rejected": "no", "expert": "YES"}
            for i in range(12)
        ]
        path = tmp_path / "pairs.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        names = {name: name for name in ("chosen", "rejected", "expert")}
        task = {"kind": "file", "path": str(path), "prompt": "question", "fields": names}
        table = {**SMALL, **OPEN, "train": {"kind": kind, "batch": 2}, "task": task, **more}
        if kind == "sft":
            table["experts"] = {"field": "expert"}
        return build(load(Config, table), tmp_path / run, root=tmp_path)

    trained = built("run")
    assert (trained.answers.tokens, trained.answers.reason) == (0, "")
    finish(trained)
    about = manifest.read(tmp_path / "run")
    assert about.config["rollout.max_tokens"] == 0
    assert not about.origins["rollout.max_tokens"].startswith("chosen")
    assert typed(["show", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "train.batch=2" in shown
    assert "rollout." not in shown
    # Rewards evaluate answers of the model's own; a reward model writes none even then.
    rewarded = built("rewarded", rewards=[reward("letters")], evaluation={"prompts": 2})
    assert bool(rewarded.answers.tokens) == (kind != "reward_model")
    rewarded.store.close()


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("", 12),
        ("task.level=3", 12),
        ("task.kind=arithmetic", 12),
        ("task.kind=file task.path=rows.jsonl", 0),
        ("task.kind=file task.path=rows.jsonl rollout.max_tokens=12", 12),
    ],
)
def test_a_shipped_recipes_number_is_for_its_own_task(words, tokens):
    asked = resolve(["grpo", *words.split()])
    assert asked.resolved.value.rollout.max_tokens == tokens
    origin = asked.resolved.origins["rollout.max_tokens"]
    assert origin.startswith("left open: grpo.toml has 12 for its own task") == (tokens == 0)
