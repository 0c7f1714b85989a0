import sqlite3

import pytest
import torch
from method_cases import METHODS
from training_cases import finish, reward, trainer

from burnish.lm.folder import load_model
from burnish.store import RunStore
from burnish.training.packing import make_rows, pack, token_scores


def stored(folder):
    """Samples of the run, each with the numbers of its tokens."""
    with RunStore.open(folder, read_only=True) as store:
        samples = list(store.samples(split="train"))
        metrics = {p.step: p.value for p in store.metrics("policy/entropy")["policy/entropy"]}
        return [(sample, store.token_values(sample.id)) for sample in samples], metrics


def test_the_entropies_of_a_step_are_those_of_its_metric(tmp_path):
    trained = trainer(tmp_path, {"rewards": [reward("letters")]})
    finish(trained)
    found, metric = stored(trained.folder)
    for step, mean in metric.items():
        own = [values["entropy"] for sample, values in found if sample.step == step and values]
        numbers = [number for row in own for number in row]
        assert sum(numbers) / len(numbers) == pytest.approx(mean, abs=1e-4)
    assert {
        len(values["entropy"]) - s.trajectory.trained_tokens for s, values in found if values
    } == {0}
    assert all((s.advantage != 0) == bool(values) for s, values in found), "what moved has numbers"


def test_several_epochs_keep_the_entropy_before_the_first(tmp_path):
    more = {"update": {"epochs": 3}, "rewards": [reward("letters")], "steps": 1}
    trained = trainer(tmp_path, more)
    module = load_model("tiny", device="cpu").module
    finish(trained)
    found, _ = stored(trained.folder)
    first = [(s.trajectory, values["entropy"]) for s, values in found if values]
    items = [trajectory for trajectory, _ in first]
    packed = pack(make_rows(items, True), items, torch.device("cpu"))
    with torch.no_grad():
        entropy = token_scores(module, packed, 1.0).entropy_BT
    for row, i in enumerate(packed.members):
        said = torch.tensor(first[i][1])
        assert float((entropy[row, : len(said)] - said).abs().max()) < 2e-4


def test_a_stepwise_recipe_stores_an_advantage_for_each_token(tmp_path):
    trained = trainer(tmp_path, METHODS["afrl"])
    finish(trained)
    found, _ = stored(trained.folder)
    rows = [values["advantage"] for _, values in found]
    assert {
        len(row) - s.trajectory.trained_tokens for (s, _), row in zip(found, rows, strict=True)
    } == {0}
    assert any(len(set(row)) > 1 for row in rows), "some answer has parts of different worth"


def test_a_run_of_an_older_version_has_none(tmp_path):
    trained = trainer(tmp_path, {"rewards": [reward("letters")], "steps": 1})
    finish(trained)
    plain = sqlite3.connect(trained.folder / "run.db")
    plain.execute("DROP TABLE token_values")
    plain.commit()
    plain.close()
    found, _ = stored(trained.folder)
    assert found
    assert all(values == {} for _, values in found)
