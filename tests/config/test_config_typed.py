"""Words on the command line: where their paths start, kinds that they swap, rules that they break."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.config import Config, load
from burnish.config.recipes import resolve
from burnish.errors import UserError

RECIPE = """\
task = { kind = "function", path = "tasks.py:make", options = { level = 1 } }

[[rewards]]
kind = "numeric"
name = "right"

[[rewards]]
kind = "tags"
tags = ["think"]
weight = 0.5

[policy]
advantage = { kind = "normalise_then_sum" }
select = { kind = "snr_conflict", tau = 0.8 }
trust_region = { kind = "static", low = 0.1, high = 0.2 }
shaping = [{ kind = "overlong_penalty", limit = 16, buffer = 4 }]
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe in one folder, and a person in another."""
    for name in ("shipped", "mine"):
        (tmp_path / name).mkdir()
    path = tmp_path / "shipped" / "own.toml"
    path.write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "mine")
    return path


def mistake(recipe: Path, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        load(Config, recipe, words)
    return str(caught.value).replace(str(recipe), "own.toml")


@pytest.mark.parametrize(
    ("words", "key", "path"),
    [
        (
            ["policy.trust_region={kind='function',path='a.py:f'}"],
            "policy.trust_region.path",
            "a.py:f",
        ),
        (["policy={select={kind='function',path='a.py:f'}}"], "policy.select.path", "a.py:f"),
        (["rewards=[{kind='function',path='a.py:f'}]"], "rewards.0.path", "a.py:f"),
        (["rewards.1={kind='function',path='a.py:f'}"], "rewards.1.path", "a.py:f"),
        (["task={kind='file',path='d.jsonl',prompt='q'}"], "task.path", "d.jsonl"),
        (["task.path=a.py:f"], "task.path", "a.py:f"),
        (["experts.task={kind='file',path='d.jsonl',prompt='q'}"], "experts.task.path", "d.jsonl"),
        (
            ["rewards=[{kind='judge',with='point',model='replay:s',cache='c'}]"],
            "rewards.0.cache",
            "c",
        ),
    ],
)
def test_a_typed_path_starts_at_your_folder(recipe, words, key, path):
    resolved = resolve([str(recipe), *words]).resolved
    assert resolved.flat()[key] == str(Path.cwd() / path)
    assert resolved.origins[key] == "command line"


def test_a_path_of_the_file_an_installed_name_and_free_keys_stay(recipe):
    words = ["policy.select={kind='function',path='package.module:f'}", "task.options.path=a/b"]
    flat = resolve([str(recipe), *words]).resolved.flat()
    assert flat["task.path"] == "tasks.py:make"
    assert flat["policy.select.path"] == "package.module:f"
    assert flat["task.options.path"] == "a/b"


def test_a_typed_model_is_a_folder_of_yours_or_a_name(recipe):
    for name in ("weights", "smollm2"):
        Path(name).mkdir()
    for word in ("model.path={}", "model={{path='{}'}}"):
        found = [resolve([str(recipe), word.format(n)]).resolved for n in ("weights", "smollm2")]
        assert [f.value.model.path for f in found] == [str(Path.cwd() / "weights"), "smollm2"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_typed_kind_drops_what_only_the_old_kind_knew(recipe, turned):
    words = ["policy.trust_region.kind=function", "policy.trust_region.path=a.py:f"]
    resolved = load(Config, recipe, words[::-1] if turned else words)
    region = {k: v for k, v in resolved.flat().items() if k.startswith("policy.trust_region.")}
    assert region == {
        "policy.trust_region.kind": "function",
        "policy.trust_region.path": "a.py:f",
        "policy.trust_region.options": {},
    }


def test_keys_that_both_kinds_know_stay(recipe):
    flat = load(Config, recipe, ["policy.trust_region.kind=elastic"]).flat()
    assert (flat["policy.trust_region.low"], flat["policy.trust_region.high"]) == (0.1, 0.2)


def test_the_kind_of_a_list_entry_is_swapped_too(recipe):
    flat = load(Config, recipe, ["rewards.1.kind=function", "rewards.1.path=a.py:f"]).flat()
    assert (flat["rewards.1.kind"], flat["rewards.1.weight"]) == ("function", 0.5)
    assert "rewards.1.tags" not in flat
    assert flat["rewards.0.name"] == "right"


def test_a_swap_of_the_default_kind_drops_its_keys(recipe):
    text = RECIPE.replace('kind = "static", ', "").replace('kind = "snr_conflict", tau', "taau")
    recipe.write_text(text)
    words = ["policy.trust_region.kind=function", "policy.trust_region.path=a.py:f"]
    assert mistake(recipe, *words) == (
        "own.toml:14: unknown key 'policy.select.taau' for kind 'all'. It takes no keys."
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        # What was typed is checked against the kind that was typed.
        (
            ["policy.select.kind=all", "policy.select.tau=0.5"],
            "command line, 'policy.select.tau=0.5': unknown key 'policy.select.tau' for kind 'all'. "
            "It takes no keys.",
        ),
        (
            ["policy.trust_region.kind=function"],
            "command line, 'policy.trust_region.kind=function': missing key "
            "'policy.trust_region.path'; expected a text.",
        ),
        # A rule of one key.
        (
            ["policy.select.tau=1.5"],
            "command line, 'policy.select.tau=1.5': policy.select.tau is 1.5; expected a "
            "number from 0 to 1.",
        ),
        (
            ["policy.select={kind='skew', threshold=2}"],
            "command line, \"policy.select={kind='skew', threshold=2}\": policy.select.threshold is 2; "
            "expected a number from 0 to 1.",
        ),
        # A rule of two: the key that it names was typed, or the other one.
        (
            ["policy.shaping.0.buffer=20"],
            "command line, 'policy.shaping.0.buffer=20': policy.shaping.0: buffer: got 20, expected "
            "at most the limit, 16.",
        ),
        (
            ["policy.shaping.0.limit=3"],
            "command line, 'policy.shaping.0.limit=3': policy.shaping.0: buffer: "
            "got 4, expected at most the limit, 3.",
        ),
        (
            ["policy.select.kind=skew"],
            "command line, 'policy.select.kind=skew': policy: select: 'skew' counts wins and losses "
            "against a reference, and the advantage 'normalise_then_sum' centres them away; "
            "use advantage 'raw'.",
        ),
    ],
)
def test_a_mistake_of_the_words_is_told_at_the_words(recipe, words, line):
    assert mistake(recipe, *words) == line


@pytest.mark.parametrize(
    ("good", "bad", "words", "line"),
    [
        # The same kind again is no swap, and a misspelt key belongs to no kind.
        (
            "low = 0.1",
            "lo = 0.1",
            ["policy.trust_region.kind=static"],
            "own.toml:15: unknown key 'policy.trust_region.lo' for kind 'static'. Did you mean "
            "'policy.trust_region.low'?",
        ),
        (
            "tau = 0.8", "taau = 0.8", ["policy.select.kind=all"],
            "own.toml:14: unknown key 'policy.select.taau' for kind 'all'. It takes no keys.",
        ),
        # Words for other tables have no part in it.
        (
            "tau = 0.8", "tau = 8.0", ["policy.trust_region.low=0.3", "steps=3"],
            "own.toml:14: policy.select.tau is 8.0; expected a number from 0 to 1.",
        ),
        (
            'kind = "snr_conflict"', 'kind = ["snr_conflict"]', ["policy.select.kind=all"],
            "own.toml:14: unknown key 'policy.select.tau' for kind 'all'. It takes no keys.",
        ),
    ],
)  # fmt: skip
def test_a_mistake_of_the_file_is_told_at_its_line(recipe, good, bad, words, line):
    recipe.write_text(RECIPE.replace(good, bad))
    assert mistake(recipe, *words) == line
