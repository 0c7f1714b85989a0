"""A bare word in place of a table: `policy.advantage=raw` is `policy.advantage.kind=raw`."""

from __future__ import annotations

from typing import Any

import pytest

import burnish
from burnish.config import Config, load
from burnish.config.recipes import resolve
from burnish.errors import UserError
from burnish.policy import components

HEAD = "rewards = ['numeric']\ntask = 'arithmetic'\n"

WORDS = {
    "policy.aggregate=token-mean": "policy.aggregate.mode=token-mean",
    "policy.advantage=raw": "policy.advantage.kind=raw",
    "policy.advantage=grpo": "policy.advantage.kind=sum_then_normalise",
    "policy.advantage=rloo": "policy.advantage.kind=leave_one_out",
    "policy.advantage=gdpo": "policy.advantage.kind=normalise_then_sum",
    "policy.advantage=opo": "policy.advantage.kind=length_weighted_baseline",
    "policy.advantage=remax": "policy.advantage.kind=greedy_baseline",
    "policy.advantage=reinforce_plus_plus": "policy.advantage.kind=batch_normalise",
    "policy.surrogate=gmpo": "policy.surrogate.kind=geometric_mean",
    "policy.auxiliary=kl": 'policy.auxiliary=[{kind="kl",coefficient=0.04}]',
    'policy.auxiliary=["kl"]': 'policy.auxiliary=[{kind="kl",coefficient=0.04}]',
    "policy.select=informative_groups": "policy.select.kind=informative_groups",
    "task=gsm8k": "task.kind=gsm8k",
    "rewards=mathematics": 'rewards=[{kind="mathematics"}]',
    'rewards=["numeric",{kind="tags"}]': 'rewards=[{kind="numeric"},{kind="tags"}]',
    "rewards.0=mathematics": "rewards.0.kind=mathematics",
    "trackers=mlflow": 'trackers=["mlflow"]',
    "sampler=in_process": "sampler.kind=in_process",
    "rollout=recorded": "rollout.kind=recorded",
    "train=sft": "train.kind=sft",
    "stages=sft": 'stages=[{train={kind="sft"}}]',
    "model=smollm2": "model.path=smollm2",
    "model.lora.targets=q_proj": 'model.lora.targets=["q_proj"]',
}


def outcome(word: str) -> Any:
    try:
        return resolve(["grpo", word]).resolved.value
    except UserError as error:
        return str(error).partition(": ")[2].partition(" Give ")[0]


@pytest.mark.parametrize("word", WORDS)
def test_a_bare_word_is_the_long_spelling(word):
    assert outcome(word) == outcome(WORDS[word])


@pytest.mark.parametrize("word", [w for w in WORDS if "=[" not in w and w.count(".") < 2])
def test_a_recipe_file_takes_the_same_words(tmp_path, word):
    key, _, text = word.partition("=")
    if "0" in key:
        return
    table, _, name = key.rpartition(".")
    line = f"{name} = '{text}'\n"
    rest = [part for part in HEAD.splitlines(True) if not part.startswith(f"{key} ")]
    (tmp_path / "a.toml").write_text("".join(rest) + (f"[{table}]\n" if table else "") + line)
    (tmp_path / "b.toml").write_text("".join(rest))

    def loaded(file: str, *words: str) -> Any:
        try:
            return load(Config, tmp_path / file, words).value
        except UserError as error:
            return str(error).partition(": ")[2].partition(" Give ")[0]

    assert loaded("a.toml") == loaded("b.toml", word)


def test_python_takes_words():
    config = burnish.Config.load(
        "tiny", policy={"aggregate": "token-mean", "advantage": "raw", "auxiliary": "kl"},
        trackers="mlflow", task="arithmetic",
    )  # fmt: skip
    assert config.policy.aggregate.mode == "token-mean"
    assert isinstance(config.policy.advantage, components.Raw)
    assert config.policy.auxiliary == (components.KL(0.04),)
    assert config.trackers == ("mlflow",)
    assert config.replace(policy={"auxiliary": ["kl"]}).policy.auxiliary == (components.KL(),)


def test_a_word_changes_the_kind_and_keeps_what_both_kinds_know(tmp_path):
    (tmp_path / "a.toml").write_text(
        HEAD + "[policy.advantage]\nkind = 'sum_then_normalise'\nscale = 'none'\neps = 0.5\n"
    )
    value = load(Config, tmp_path / "a.toml", ["policy.advantage=gdpo"]).value
    assert value.policy.advantage == components.NormaliseThenSum(eps=0.5)


def test_keys_may_follow_a_word(tmp_path):
    (tmp_path / "a.toml").write_text(HEAD + "[policy]\nadvantage = 'gdpo'\n")
    words = ["policy.advantage.eps=0.5"]
    assert load(Config, tmp_path / "a.toml", words).value.policy.advantage.eps == 0.5
    words = ["policy.advantage=grpo", "policy.advantage.scale=none"]
    value = load(Config, tmp_path / "a.toml", words).value
    assert value.policy.advantage == components.SumThenNormalise(scale="none")
    words = ["model.lora=none", "model.lora.rank=4"]
    assert load(Config, tmp_path / "a.toml", words).value.model.lora.rank == 4


def test_a_function_is_named_by_its_path_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (reward,) = resolve(["grpo", "rewards=mine.py:brief"]).resolved.value.rewards
    assert (reward.kind if hasattr(reward, "kind") else "function", reward.path) == (
        "function",
        str(tmp_path / "mine.py:brief"),
    )
    value = resolve(["grpo", "policy.select=mine.py:half"]).resolved.value
    assert value.policy.select == components.Function(path=str(tmp_path / "mine.py:half"))
