"""`burnish methods` and the recipes it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_words import Type

import burnish.cli.recipes as recipes
from burnish.cli.recipes import all_recipes, find_recipe, read_card
from burnish.errors import UserError

GRPO = "# burnish train grpo\n# The baseline.\n# paper: Shao et al. 2024\nsteps = 1\n"
WIDE = (
    "# burnish train wide\n# Clips higher.\n\n[policy.trust_region]\nkind = 'static'\nhigh = 0.28\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recipes, "recipe_folder", lambda: tmp_path)
    (tmp_path / "grpo.toml").write_text(GRPO)
    (tmp_path / "wide.toml").write_text(WIDE)
    return tmp_path


def test_methods_tells_what_differs_from_grpo(typed: Type, folder: Path) -> None:
    shown = typed("methods").out
    assert "grpo         The baseline." in shown
    assert "Shao et al. 2024" in shown
    assert "wide         Clips higher." in shown
    assert (
        "trust_region: static high=0.28\n" in "\n".join(map(str.rstrip, shown.splitlines())) + "\n"
    )
    assert "burnish train wide" in shown


def test_the_quick_start_and_grpo_come_first(typed: Type, folder: Path) -> None:
    for name in ("apo", "quickstart"):
        (folder / f"{name}.toml").write_text(f"# burnish train {name}\n# Some method.\n")
    rows = [json.loads(line) for line in typed("methods", "--json").out.splitlines()]
    assert [row["name"] for row in rows] == ["quickstart", "grpo", "apo", "wide"]


def test_pieces_show_only_what_is_not_default(typed: Type, folder: Path) -> None:
    policy = (
        "[policy.advantage]\nkind = 'normalise_then_sum'\n[policy.aggregate]\nmode = 'token-mean'\n"
        "[[policy.auxiliary]]\nkind = 'kl'\ncoefficient = 0.04\n"
    )
    (folder / "plain.toml").write_text(policy)
    rows = {r["name"]: r for r in map(json.loads, typed("methods", "--json").out.splitlines())}
    assert rows["plain"]["differs"] == {
        "advantage": "normalise_then_sum",
        "aggregate": "token-mean",
        "auxiliary": "kl coefficient=0.04",
    }
    assert rows["plain"]["policy"]["advantage"]["ddof"] == 1


def test_methods_as_json(typed: Type, folder: Path) -> None:
    rows = [json.loads(line) for line in typed("methods", "--json").out.splitlines()]
    assert rows[0]["differs"] == {}
    assert rows[0]["paper"] == "Shao et al. 2024"
    assert list(rows[1]["differs"]) == ["trust_region"]


def test_a_broken_recipe_is_named(typed: Type, folder: Path) -> None:
    (folder / "bad.toml").write_text("[policy]\nratio = 'tokne'\n")
    shown = typed("methods")
    assert shown.code == 2
    assert shown.err.startswith("burnish: recipe 'bad': policy: ")


def test_a_name_a_path_and_a_misspelt_name(folder: Path) -> None:
    assert find_recipe("grpo") == folder / "grpo.toml"
    assert find_recipe(str(folder / "wide.toml")) == folder / "wide.toml"
    with pytest.raises(UserError, match=r"no recipe 'grop'.*Did you mean 'grpo'\?"):
        find_recipe("grop")
    with pytest.raises(
        UserError, match=r"There is a shipped recipe of that name: burnish train wide"
    ):
        find_recipe("elsewhere/wide.toml")


@pytest.mark.parametrize("path", all_recipes().values(), ids=lambda path: path.stem)
def test_every_shipped_recipe_has_a_header_and_loads(typed: Type, path: Path) -> None:
    card = read_card(path)
    assert card.command.startswith("burnish train")
    assert card.description
    shown = typed("train", card.name, "--print-config")
    assert shown.err == ""
    assert f"# {path}" in shown.out
