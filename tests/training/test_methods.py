import json

import pytest
from method_cases import BREVITY, CONFLICT, CONTRASTIVE, METHODS, SFT, SHOWN, TWO_REWARDS
from safetensors.torch import load_file
from training_cases import (
    assert_same,
    finish,
    finish_with_stops,
    merged,
    outcome,
    reward,
    shipped,
    stop_after,
    trainer,
)

from burnish.errors import UserError
from burnish.policy.state import PolicyState
from burnish.training.events import Calibrated, StageBegun, StepDone

RECIPES = ("etr", "gd2po", "gd2po_elastic", "clipo", "clipo_balanced", "brpo", "afrl", "medalign")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Each method's run without a stop, made once."""
    made = {}

    def get(method):
        if method not in made:
            folder = tmp_path_factory.mktemp(method)
            events = finish(trainer(folder, METHODS[method]))
            made[method] = outcome(folder / "run"), events, folder / "run"
        return made[method]

    return get


@pytest.mark.parametrize("method", METHODS)
def test_stopped_and_continued_equals_uninterrupted(tmp_path, whole, method):
    """Before the first checkpoint, right behind it, and between two of them."""
    more = {"checkpoint": {"every": 3, "keep": 1}}
    finish_with_stops(lambda: trainer(tmp_path, METHODS[method], more), 1, "3 saved", 5)
    assert_same(outcome(tmp_path / "run"), whole(method)[0])


@pytest.mark.parametrize("method", METHODS)
def test_the_memory_of_a_recipe_is_in_its_checkpoint(whole, method):
    _, events, folder = whole(method)
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    state = PolicyState.from_tensors(load_file(last / "trainer" / "algorithm.safetensors"))
    assert state.steps == 6
    assert (state.head is not None) == method.startswith("clipo")
    assert (state.reference is not None, state.weights is not None) == (method == "medalign",) * 2
    assert len([e for e in events if isinstance(e, StepDone) and not e.stage]) == 6


def updates(events):
    return [
        e.metrics["optimiser/updates"] for e in events if isinstance(e, StepDone) and not e.stage
    ]


def test_only_the_head_learns_during_its_warm_up(whole):
    result, events, _ = whole("clipo")
    assert updates(events)[0] == 0.0
    assert max(updates(events)[1:]) == 1.0
    assert "contrast/anchors" in result["metrics"]


def test_a_warm_start_is_kept_and_is_where_the_run_begins(whole):
    _, events, folder = whole("afrl")
    steps = [e for e in events if isinstance(e, StepDone) and e.stage == "warm_start"]
    assert [e.step for e in steps] == [0, 1]
    assert steps[1].metrics["loss/total"] < steps[0].metrics["loss/total"]
    final = folder / "stages" / "warm_start" / "final"
    assert (final / "model.safetensors").is_file()
    assert not list(final.parent.glob("step-*"))


def test_a_run_that_moves_nothing_keeps_the_warm_start(tmp_path):
    still = {"steps": 1, "optimiser": {"learning_rate": 0.0}, "policy": {"auxiliary": []}}
    finish(trainer(tmp_path, METHODS["afrl"], still))
    warm = (tmp_path / "run" / "stages" / "warm_start" / "final" / "model.safetensors").read_bytes()
    last = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    assert (last / "model.safetensors").read_bytes() == warm


def test_other_demonstrations_are_other_data(tmp_path):
    shown = tmp_path / "shown.jsonl"
    task = {
        "kind": "file",
        "path": str(shown),
        "prompt": "question",
        "fields": {"demonstration": "answer"},
    }
    table = {"experts": {"task": task}, "policy": {"auxiliary": [SFT]}, "checkpoint": {"every": 1}}
    rows = [{"question": f"{i}?", "answer": "yes"} for i in range(6)]
    shown.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stop_after(trainer(tmp_path, table), 1, saved=True)
    shown.write_text(shown.read_text().replace("yes", "no"))
    with pytest.raises(UserError, match="was started on other data"):
        trainer(tmp_path, table)


def test_calibration_measures_the_start_model_and_is_stored(whole):
    _, events, _ = whole("medalign")
    (found,) = [e for e in events if isinstance(e, Calibrated)]
    assert found.count == 6
    assert (whole("medalign")[2] / "calibration.json").is_file()
    assert set(found.mean) == {"letters", "length"}


def test_a_curriculum_goes_on_when_the_score_stops_rising(whole):
    _, events, folder = whole("curriculum")
    stages = [(e.stage, e.tasks) for e in events if isinstance(e, StageBegun)]
    assert [stage for stage, _ in stages] == [0, 1]
    assert stages[0][1] < stages[1][1] == 6
    assert (folder / "curriculum.json").is_file()


LIMITS = {
    "elastic with strength 0 is static": (
        {"policy": {"trust_region": {"kind": "elastic", "strength": 0.0}}, "update": {"epochs": 2}},
        {"policy": {"trust_region": {"kind": "static"}}, "update": {"epochs": 2}},
    ),
    "snr with tau 0 and no query weights is GDPO": (
        {
            "rewards": TWO_REWARDS,
            "policy": {
                **CONFLICT,
                "select": {"kind": "snr_conflict", "tau": 0.0, "query_weights": False},
            },
        },
        {"rewards": TWO_REWARDS, "policy": {**CONFLICT, "select": {"kind": "all"}}},
    ),
    "one reward has no conflict": (
        {"policy": CONFLICT},
        {"policy": {**CONFLICT, "select": {"kind": "all"}}},
    ),
    "contrast with lambda 0 is the base": (
        {"policy": {"shaping": [{**CONTRASTIVE, "lam": 0.0, "warmup": 0}]}},
        {"policy": {}},
    ),
    "imitation with lambda 0 is the base": (
        {"task": SHOWN, "policy": {"auxiliary": [{**SFT, "coefficient": 0.0}]}},
        {"task": SHOWN, "policy": {}},
    ),
    "tri-factor without factors is the frozen reference alone": (
        {
            "rewards": [reward("letters"), {**BREVITY, "weight": 1.0}],
            "policy": {
                "shaping": [{"kind": "reference_frozen", "prompts": 3, "samples": 2}],
                "weights": {"kind": "tri_factor", "eta_weak": 0.0, "eta_red": 0.0},
            },
        },
        {
            "rewards": [reward("letters"), {**BREVITY, "weight": 1.0}],
            "policy": {"shaping": [{"kind": "reference_frozen", "prompts": 3, "samples": 2}]},
        },
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_reduce_to_the_base_recipe_bit_for_bit(tmp_path, limit):
    method, base = LIMITS[limit]
    few = {"steps": 3}
    finish(trainer(tmp_path, method, few, run="method"))
    finish(trainer(tmp_path, base, few, run="base"))
    assert outcome(tmp_path / "method")["weights"] == outcome(tmp_path / "base")["weights"]


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_run_on_the_tiny_model(tmp_path, name):
    """Every table of the file as it ships, on two short steps of the tiny model."""
    small = {
        "steps": 2,
        "model": {"path": "tiny", "device": "cpu", "threads": 1},
        "rollout": {"prompts": 2, "samples": 4, "max_tokens": 8},
        "evaluation": {"prompts": 2},
    }
    table = merged(shipped(name), small)
    for stage in table["stages"]:
        stage |= {"steps": 2, "train": {"kind": "sft", "batch": 2}}
    for piece in table["policy"]["shaping"]:
        if piece["kind"] == "reference_frozen":
            piece |= {"prompts": 2, "samples": 2}
        if piece["kind"] == "contrastive":
            piece["warmup"] = 1
    events = finish(trainer(tmp_path, table))
    assert len([e for e in events if isinstance(e, StepDone) and not e.stage]) == 2
