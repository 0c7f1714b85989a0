"""Relative paths of a config, made absolute."""

from pathlib import Path

from burnish.config import Config, load, render, rooted
from burnish.rewards.judge_reward import JudgeRewardConfig

RECIPE = {
    "model": {"path": "weights"},
    "task": {"kind": "file", "path": "data.jsonl", "prompt": "q", "fields": {"path": "row.path"}},
    "rewards": [
        {"kind": "function", "path": "mine.py:good", "name": "own"},
        {"kind": "function", "path": "package.module:good", "name": "installed"},
        {
            "kind": "gate",
            "hard": {"kind": "function", "path": "mine.py:hard", "name": "hard"},
            "then": {"kind": "length", "max": 3},
        },
    ],
    "policy": {"advantage": {"kind": "function", "path": "mine.py:advantage"}},
}


def test_files_become_absolute_and_names_stay(tmp_path):
    (tmp_path / "weights").mkdir()
    config = rooted(load(Config, RECIPE).value, tmp_path)
    assert config.model.path == str(tmp_path / "weights")
    assert config.task.path == str(tmp_path / "data.jsonl")
    assert config.task.fields == {"path": "row.path"}
    own, installed, gate = config.rewards
    assert own.path == f"{tmp_path}/mine.py:good"
    assert installed.path == "package.module:good"
    assert gate.hard.path == f"{tmp_path}/mine.py:hard"
    assert config.policy.advantage.path == f"{tmp_path}/mine.py:advantage"


def test_shipped_models_and_absolute_paths_stay(tmp_path):
    absolute = RECIPE | {"model": {"path": "smollm2"}}
    once = rooted(load(Config, absolute).value, tmp_path)
    assert once.model.path == "smollm2"
    assert rooted(once, Path("/elsewhere")) == once


def test_a_rooted_config_reads_back_from_its_text(tmp_path):
    resolved = load(Config, RECIPE)
    file = tmp_path / "config.toml"
    config = rooted(resolved.value, tmp_path)
    file.write_text(render(type(resolved)(config, resolved.origins)), encoding="utf-8")
    assert load(Config, file).value == config


def test_the_files_and_the_model_of_a_judge(tmp_path):
    (tmp_path / "judge").mkdir()
    found = {}
    for model in ("judge", "replay:said.jsonl", "smollm2", "http://127.0.0.1:1/v1#m"):
        reward = {"kind": "judge", "with": "point", "model": model, "cache": "c.db", "record": ""}
        config = rooted(load(Config, RECIPE | {"rewards": [reward]}).value, tmp_path)
        (judge,) = config.rewards
        assert isinstance(judge, JudgeRewardConfig)
        assert (judge.cache, judge.record) == (str(tmp_path / "c.db"), "")
        found[model] = judge.model
    assert found == {
        "judge": str(tmp_path / "judge"), "replay:said.jsonl": f"replay:{tmp_path / 'said.jsonl'}",
        "smollm2": "smollm2", "http://127.0.0.1:1/v1#m": "http://127.0.0.1:1/v1#m",
    }  # fmt: skip


def test_a_critics_folder_becomes_absolute_and_a_shipped_model_stays(tmp_path):
    (tmp_path / "rewards").mkdir()
    table = RECIPE | {"policy": {"advantage": "gae", "critic": {"kind": "separate"}}}
    for given, wanted in (("rewards", str(tmp_path / "rewards")), ("tiny", "tiny"), ("", "")):
        table["policy"]["critic"]["path"] = given
        config = rooted(load(Config, table).value, tmp_path)
        assert config.policy.critic.path == wanted
    typed = load(Config, table, ["policy.critic=separate"]).value
    assert rooted(typed, tmp_path).policy.critic.path == ""


def test_an_attribute_of_a_term_is_a_file_of_the_config_or_a_name(tmp_path):
    terms = [
        {"kind": "dir", "name": "own", "attribute": "mine.py:polite"},
        {"kind": "dir", "name": "shipped", "attribute": "length"},
        {"kind": "dir", "name": "installed", "attribute": "package.module:polite"},
    ]
    table = RECIPE | {"train": {"kind": "reward_model", "terms": terms}, "rewards": []}
    found = [one.attribute for one in rooted(load(Config, table).value, tmp_path).train.terms]
    assert found == [f"{tmp_path}/mine.py:polite", "length", "package.module:polite"]
