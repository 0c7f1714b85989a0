import json

import pytest
from method_cases import BREVITY, METHODS
from training_cases import finish, outcome, reward, stop_after, trainer

from burnish.bench.weigh_rewards import read_run, weigh
from burnish.cli.entry import run as burnish
from burnish.store import RunStore

# A clip this small puts nearly every value at it: each step finds its unit stale.
STALE = {
    "rewards": [{**reward("letters"), "category": "content"}, {**BREVITY, "category": "form"}],
    "policy": {
        "shaping": [
            {
                "kind": "reference_frozen",
                "prompts": 3,
                "samples": 2,
                "clip": 0.01,
                "refreeze_above": 0.2,
            }
        ],
        "weights": {
            "kind": "tri_factor",
            "severity": {"letters": 2},
            "threshold": {"letters": 0.2},
        },
    },
    "steps": 3,
}


def test_a_new_unit_is_told_once_a_step_and_a_resumed_run_finds_the_same(tmp_path, capsys):
    finish(trainer(tmp_path, STALE, run="whole"))
    more = {"checkpoint": {"every": 2, "keep": 1}}
    # Steps 0 and 1 are repeated: the first checkpoint is not there yet.
    stop_after(trainer(tmp_path, STALE, more), 2, saved=False)
    finish(trainer(tmp_path, STALE, more))
    assert outcome(tmp_path / "run")["weights"] == outcome(tmp_path / "whole")["weights"]
    told = {}
    for name in ("run", "whole"):
        with RunStore.open(tmp_path / name, read_only=True) as store:
            curve = store.metrics("reference/refrozen")["reference/refrozen"]
            events = store.events("refreeze")
            assert [e.step for e in events] == [p.step for p in curve if p.value == 1.0]
            told[name] = [(e.step, e.message, e.data) for e in events]
    assert told["run"] == told["whole"]
    _, message, data = told["run"][0]
    assert "of the values of reward" in message
    assert "measured again" in message
    assert set(data) == {"saturated", "mean", "deviation", "count", "kept"}
    assert set(data["mean"]) == {"letters", "length"}

    capsys.readouterr()
    assert burnish(["reward", "weigh", "whole", "--runs", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["categories"] == {"letters": "content", "length": "form"}
    assert record["unit"] == "6 answers of its start"
    steps = ", ".join(str(step + 1) for step, _, _ in told["whole"])
    assert record["not_followed"] == [f"the unit measured again in step {steps}"]
    assert record["below_threshold"][0]["threshold"] == 0.2
    shares = record["category_shares"]
    assert shares["content"]["sum"] + shares["form"]["sum"] == pytest.approx(1.0)


def test_a_dry_run_on_a_run_finds_the_weights_and_advantages_that_it_had(tmp_path):
    finish(trainer(tmp_path, METHODS["medalign"], {"steps": 3}))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        weighed = weigh(read_run(store, None, None))
        stored = [sample.advantage for sample in store.samples(split="train")]
        curves = store.metrics()
    record = weighed.found.record()["rewards"]
    assert set(record) == {"letters", "length"}
    for name, row in record.items():
        for key in ("weight", "weakness", "risk", "redundancy"):
            assert row[key] == pytest.approx(curves[f"weights/{name}/{key}"][-1].value, abs=1e-12)
    tri_factor = weighed.found.methods[3].advantages_B.tolist()
    assert any(stored)
    assert tri_factor == pytest.approx(stored, abs=1e-9)
    assert weighed.not_followed == ()


@pytest.mark.parametrize("scale", ["none", "batch_std"])
def test_late_steps_of_a_run_have_its_own_weights_and_advantages_in_its_own_scale(tmp_path, scale):
    advantage = {"kind": "sum_then_normalise", "scale": scale, "ddof": 0, "eps": 1e-3}
    case = METHODS["medalign"]
    policy = {**case["policy"], "advantage": advantage}
    finish(trainer(tmp_path, {**case, "policy": policy}, {"steps": 3}))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        weighed = weigh(read_run(store, 1, 2))
        stored = [sample.advantage for sample in store.samples(split="train") if sample.step >= 1]
        curves = store.metrics()
    for name, row in weighed.found.record()["rewards"].items():
        assert row["weight"] == pytest.approx(curves[f"weights/{name}/weight"][-1].value, abs=1e-12)
    assert any(stored)
    assert weighed.found.methods[3].advantages_B.tolist() == pytest.approx(stored, abs=1e-9)
