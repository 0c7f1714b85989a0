import pytest
from training_cases import finish, merged, outcome, shipped, stop_after, trainer

from burnish.config.recipes import resolve
from burnish.store import RunStore

SMALL = {
    "steps": 2,
    "model": {"path": "tiny"},
    "stages": [{"steps": 2, "train": {"kind": "sft", "batch": 4}}],
    "rollout": {"prompts": 2, "samples": 4, "max_tokens": 12},
    "evaluation": {"prompts": 3},
    "checkpoint": {"every": 1, "keep": 1},
}


@pytest.mark.parametrize(
    ("recipe", "watched"),
    [
        ("genrm", {"right", "picked_first"}),
        ("proxy_grm", {"verified", "right", "transfer", "leak"}),
        ("quarkmedbench", {"essentials", "extras", "pitfalls"}),
    ],
)
def test_a_recipe_runs_and_resumes(tmp_path, recipe, watched):
    table = merged(shipped(recipe), SMALL)
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()
    finish(trainer(tmp_path / "whole", table))
    stop_after(trainer(tmp_path / "halves", table), 1, saved=True)
    finish(trainer(tmp_path / "halves", table))
    whole, halves = (outcome(tmp_path / name / "run") for name in ("whole", "halves"))
    assert {key for key in whole if whole[key] != halves[key]} == set()
    with RunStore.open(tmp_path / "whole" / "run", read_only=True) as store:
        rewards = [sample.reward for sample in store.samples()]
    assert rewards
    assert all(watched <= reward.components.keys() for reward in rewards)


@pytest.mark.parametrize(
    ("recipe", "whole"), [("genrm", 100), ("proxy_grm", 200), ("quarkmedbench", 100)]
)
def test_the_warm_start_is_as_short_as_the_run(recipe, whole):
    for words, steps in (((), whole), (("steps=3",), 5)):
        config = resolve([recipe, *words]).resolved.value
        assert [config.stage_steps(stage) for stage in config.stages] == [steps]
