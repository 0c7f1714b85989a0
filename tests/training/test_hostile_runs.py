import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_cases import finish, stop_after, trainer

from burnish.errors import StoreError, UserError
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


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_something_in_the_place_of_a_checkpoint_is_not_taken_for_one(tmp_path, kind):
    trained = trainer(tmp_path, SETTINGS)
    events = trained.run()
    while trained.state.step < 3:
        next(events)
    place = trained.folder / "checkpoints" / "step-000004"
    make = {"file": place.touch, "folder": place.mkdir, "link": lambda: place.symlink_to("nowhere")}
    make[kind]()
    with pytest.raises(StoreError) as caught:
        list(events)
    trained.store.close()
    assert_one_line(caught, f"cannot write {place}: something is in its place")


def test_a_model_that_loses_its_tokenizer_is_not_saved_without_it(tmp_path):
    model = shutil.copytree(cached_tiny_model(), tmp_path / "model")
    trained = trainer(tmp_path, SETTINGS, {"model": {"path": str(model)}})
    events = trained.run()
    next(events)
    shutil.rmtree(model)
    with pytest.raises(UserError) as caught:
        list(events)
    trained.store.close()
    assert_one_line(caught, "has lost its tokenizer.json since the model was loaded")
    assert os.listdir(trained.folder / "checkpoints") == []


@pytest.mark.parametrize("change", [{"mean": []}, {"deviation": [-1.0]}, {"counts": [-5]}])
def test_a_damaged_calibration_is_one_line(tmp_path, change):
    frozen = {"policy": {"shaping": [{"kind": "reference_frozen", "prompts": 2, "samples": 2}]}}
    stop_after(trainer(tmp_path, SETTINGS, frozen), 1)
    path = tmp_path / "run" / "calibration.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(StoreError) as caught:
        finish(trainer(tmp_path, SETTINGS, frozen))
    assert_one_line(caught, "calibration.json: damaged: ")


@pytest.mark.parametrize("text", ["[]", "[0.1]", "[9e9, 9e9, 9e9, 9e9]", "[-1, 0, 0, 0]", "{}"])
def test_a_damaged_curriculum_is_one_line(tmp_path, text):
    stages = {
        "curriculum": {"pool": 4, "samples": 2, "thresholds": [0.5, 1.0]},
        "evaluation": {"prompts": 2, "every": 1},
    }
    stop_after(trainer(tmp_path, SETTINGS, stages), 1)
    (tmp_path / "run" / "curriculum.json").write_text(text)
    with pytest.raises(StoreError) as caught:
        finish(trainer(tmp_path, SETTINGS, stages))
    assert_one_line(caught, "curriculum.json cannot be read (")
