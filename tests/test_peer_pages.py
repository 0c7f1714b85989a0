"""`docs/from_trl.md` and `docs/from_verl.md`: settings that are there, with their defaults."""

from __future__ import annotations

import ast
import dataclasses
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from burnish.config import Config, load

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BASE = {"task": {"kind": "arithmetic"}, "rewards": [{"kind": "numeric"}]}


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert lines, heading
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def code(cell: str) -> str:
    (found,) = re.findall(r"`([^`]+)`", cell)
    return found


TABLES = {
    "GRPOConfig": ("from_trl.md", 2),
    "RLOOConfig": ("from_trl.md", 2),
    "Advantages": ("from_verl.md", 1),
    "Losses": ("from_verl.md", 1),
    "Settings": ("from_verl.md", 2),
}


@pytest.mark.parametrize("table", TABLES)
def test_our_words_are_accepted(table):
    page, column = TABLES[table]
    for row in rows(page, table):
        if row[column] == "none":
            continue
        words = code(row[column]).split(" ")
        assert all("=" in word for word in words), row
        load(Config, BASE, words)


@pytest.mark.parametrize("name", ["GRPOConfig", "RLOOConfig"])
def test_settings_and_defaults_of_trl(name):
    if find_spec("trl") is None:
        pytest.skip("needs trl (a dev dependency)")
    import trl

    known = {field.name: field.default for field in dataclasses.fields(getattr(trl, name))}
    for setting, default, *_ in rows("from_trl.md", name):
        key = code(setting)
        assert key in known, key
        assert known[key] == ast.literal_eval(code(default)), key


@pytest.fixture(scope="module")
def verl_config():
    if find_spec("verl") is None:
        pytest.skip("needs verl (make test installs it)")
    from omegaconf import OmegaConf

    folder = Path(find_spec("verl").submodule_search_locations[0])
    return OmegaConf.load(folder / "trainer" / "config" / "_generated_ppo_trainer.yaml")


def test_settings_and_defaults_of_verl(verl_config):
    from omegaconf import OmegaConf

    missing = object()
    for setting, default, *_ in rows("from_verl.md", "Settings"):
        key = code(setting)
        found = OmegaConf.select(verl_config, key, default=missing)
        if found is None:  # a null is not told from a key that is not there
            parent, _, last = key.rpartition(".")
            assert last in OmegaConf.select(verl_config, parent), key
        assert found == ast.literal_eval(code(default)), key


def test_estimators_and_losses_of_verl_are_all_named():
    if find_spec("verl") is None or find_spec("ray") is None:
        pytest.skip("needs verl and ray (make test installs them)")
    from verl.trainer.ppo import core_algos

    estimators = {code(row[0]) for row in rows("from_verl.md", "Advantages")}
    known = {estimator.value for estimator in core_algos.AdvantageEstimator}
    assert estimators <= known
    assert known - estimators <= {"grpo_vectorized"}
    losses = {code(row[0]) for row in rows("from_verl.md", "Losses")}
    assert losses == set(core_algos.POLICY_LOSS_REGISTRY)
