"""What can happen to a run's folder, its model and its rewards' data, told in one line each."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_cases import finish, stop_after, trainer

from burnish.errors import GuardTripped, StoreError, UserError
from burnish.lm.new_model import cached_tiny_model
from burnish.store import RunStore

SETTINGS = {"steps": 4, "checkpoint": {"every": 2, "keep": 3}, "evaluation": {"prompts": 0}}


def own(folder, body):
    """A reward of one's own, by the lines of its body."""
    (folder / "own.py").write_text(
        f"from burnish.records import *\ndef own(text, task, row):\n    {body}\n"
    )
    return {"rewards": [{"kind": "function", "path": f"{folder / 'own.py'}:own"}]}


def assert_one_line(caught, said):
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_store_of_another_run_is_refused(tmp_path):
    stop_after(trainer(tmp_path, SETTINGS), 2, saved=True)
    stop_after(trainer(tmp_path, SETTINGS, {"run": {"seed": 5}}, run="other"), 2, saved=True)
    shutil.copy(tmp_path / "other" / "run.db", tmp_path / "run" / "run.db")
    with pytest.raises(StoreError) as caught:
        trainer(tmp_path, SETTINGS)
    assert_one_line(caught, "run.db is that of another run (begun 20")
    with pytest.raises(StoreError, match="that of another run"):
        RunStore.open(tmp_path / "run", read_only=True)


def test_the_checkpoint_of_another_run_is_refused(tmp_path):
    stop_after(trainer(tmp_path, SETTINGS), 2, saved=True)
    stop_after(trainer(tmp_path, SETTINGS, {"run": {"seed": 5}}, run="other"), 2, saved=True)
    place = tmp_path / "run" / "checkpoints" / "step-000002"
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "other" / "checkpoints" / "step-000002", place)
    with pytest.raises(StoreError) as caught:
        trainer(tmp_path, SETTINGS)
    assert_one_line(caught, f"checkpoint {place} is that of another run. ")


@pytest.mark.parametrize("what", ["removed", "moved"])
def test_a_run_whose_folder_goes_away_stops_at_once(tmp_path, what):
    trained = trainer(tmp_path, SETTINGS)
    events = trained.run()
    while trained.state.step < 1:
        next(events)
    folder = tmp_path / "run"
    shutil.rmtree(folder) if what == "removed" else folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError) as caught:
        list(events)
    trained.store.close()
    assert_one_line(caught, "run.db is gone; was the folder moved or removed")
    assert trained.state.step == 1


def test_a_start_model_with_a_broken_weight_is_named(tmp_path):
    model = shutil.copytree(cached_tiny_model(), tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    weights[name].view(-1)[7] = torch.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError) as caught:
        trainer(tmp_path, SETTINGS, {"model": {"path": str(model)}})
    assert_one_line(caught, f"weight {name} holds nan in 1 of ")


@pytest.mark.parametrize(
    "body",
    [
        "task.fields['row'] = 99; return len(text) % 3 / 2",
        "row.append(99); return len(text) % 3 / 2",
    ],
)
def test_a_reward_cannot_change_the_data_of_the_run(tmp_path, body):
    rows = [{"question": f"item {i}?", "row": [i]} for i in range(7)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "kind": "file",
        "path": str(tmp_path / "d.jsonl"),
        "prompt": "question",
        "fields": {"row": "row"},
    }
    trained = trainer(tmp_path, SETTINGS, {"task": task}, own(tmp_path, body))
    assert finish(trained)[-1].status == "finished"
    with RunStore.open(trained.folder, read_only=True) as store:
        for sample in store.samples():
            assert sample.task.fields["row"] == [int(sample.task.prompt[5])]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("Reward('x', 1.0, evidence=('seen',))", "got `str` - at `$.evidence[0]`"),
        ("Reward('x', 1.0, reason=object())", "object where a text or a number belongs"),
        ("Reward('x', 1.0, parts=5)", "got `int` - at `$.parts`"),
        ("Reward('x', 1.0, verdicts=(1.0,))", "got `float` - at `$.verdicts[0]`"),
    ],
)
def test_a_reward_of_the_wrong_types_is_named(tmp_path, made, said):
    with pytest.raises(GuardTripped) as caught:
        finish(trainer(tmp_path, SETTINGS, own(tmp_path, f"return {made}")))
    assert_one_line(caught, said)
    assert "reward 'own' returned a Reward for sample train-1-1-1 that is not whole" in str(
        caught.value
    )
