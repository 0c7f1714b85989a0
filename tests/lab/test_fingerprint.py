"""The fingerprint repeats itself, and names the first cause of what differs."""

import pytest
from lab.fingerprint.__main__ import figures_of, names_of
from lab.fingerprint.comparing import differences
from lab.fingerprint.flow import entry
from lab.fingerprint.take import take

from burnish.config.train_kinds import Train
from burnish.policy import grpo
from burnish.rewards.config import RewardConfig
from burnish.rewards.judges.build import JUDGES

PARTS = {"recipes": ["tiny"], "functions": ["grpo_advantage"], "scorers": ["numeric"]}


@pytest.fixture
def taken(monkeypatch, tmp_path):
    def taken(folder):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        return {part: take(part, names) for part, names in PARTS.items()}

    return taken


def test_one_sign_of_one_advantage_is_named_where_it_begins(taken, monkeypatch):
    before = taken("before")
    assert differences(before, taken("again")) == []
    standardise = grpo.standardise

    def with_one_sign_changed(*arguments, **more):
        values = standardise(*arguments, **more)
        values[0] *= -1
        return values

    monkeypatch.setattr(grpo, "standardise", with_one_sign_changed)
    after = taken("after")
    for bits in (True, False):
        found = differences(figures_of(before), figures_of(after), bits=bits)
        assert [(one.part, one.name) for one in found] == [
            ("functions", "grpo_advantage"),
            ("recipes", "tiny"),
        ]
        assert found[1].at == "step 0, train: advantages"
        was, now = (float(word) for word in found[1].what.removeprefix("[0] was ").split(", is "))
        assert was == -now != 0


def test_the_earliest_stage_of_all_names_comes_first():
    def flow(tokens, loss):
        return [entry("step 0: tokens", exact=tokens), entry("step 0, losses", near={"loss": loss})]

    before = {"recipes": {"a": flow("x", 1.0), "b": flow("x", 1.0), "c": flow("x", 1.0)}}
    after = {"recipes": {"a": flow("x", 1.1), "b": flow("y", 1.1), "d": flow("x", 1.0)}}
    found = differences(before, after)
    assert [(one.name, one.at) for one in found] == [
        ("b", "step 0: tokens"), ("a", "step 0, losses"), ("c", "runs"), ("d", "runs"),
    ]  # fmt: skip
    nearly = {"recipes": {"a": flow("x", 1.0 + 1e-7)}}
    assert [
        one.what for one in differences({"recipes": {"a": before["recipes"]["a"]}}, nearly)
    ] == ["the same to 1e-4, but not to the bit"]
    assert differences({"recipes": {"a": before["recipes"]["a"]}}, nearly, bits=False) == []


def test_every_judge_scorer_and_kind_of_training_is_there():
    tags = {kind.__struct_config__.tag for kind in RewardConfig.__args__}
    assert tags - set(names_of("scorers")) == {"env"}  # of games, which recipes play
    assert set(names_of("judges")) == set(JUDGES)
    kinds = {kind.__struct_config__.tag for kind in Train.__args__}
    from burnish.config.recipes import all_recipes, read_card

    played = {read_card(path).kind for path in all_recipes().values()}
    assert kinds - played == {"function"}
