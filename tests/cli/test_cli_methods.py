"""`burnish methods` and the recipes it reads."""

import json

import pytest

import burnish.cli.methods as methods
import burnish.config.recipes as recipes
from burnish.cli.methods import card_folder, find_card
from burnish.config.recipes import all_recipes, find_recipe, read_card
from burnish.errors import UserError

GRPO = "# burnish train grpo\n# The baseline.\n# paper: Shao et al. 2024\nsteps = 1\n"
WIDE = (
    "# burnish train wide\n# Clips higher.\n\n[policy.trust_region]\nkind = 'static'\nhigh = 0.28\n"
)
CARD = """# Wide

Effect: a line outside of the figures says nothing.

<!-- figures -->
Three seeds.
Effect: 0.71 instead of 0.64
Effect: a second one is not read
<!-- /figures -->
"""
METHODS = (
    "afrl", "brpo", "clipo", "dapo", "dr_grpo", "etr", "gd2po", "gdpo", "genrm", "grpo", "gspo",
    "medalign", "openrs", "quarkmedbench", "skill_rm",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "recipe_folder", lambda: tmp_path)
    (tmp_path / "grpo.toml").write_text(GRPO)
    (tmp_path / "wide.toml").write_text(WIDE)
    return tmp_path


def test_the_list_has_one_line_a_method(typed, folder):
    (folder / "dr_wide.toml").write_text("# burnish train dr_wide\n# Dr.Wide: clips twice.\n")
    lines = [line.rstrip() for line in typed("methods").out.splitlines()]
    assert lines[:3] == ["grpo     The baseline", "dr_wide  clips twice", "wide     Clips higher"]
    assert "What one is and when to use it: burnish methods NAME" in lines


@pytest.mark.parametrize("name", all_recipes())
def test_a_page_teaches_every_shipped_method(typed, name):
    shown = " ".join(typed("methods", name).out.split())
    assert "Run it now" in shown
    trial = read_card(all_recipes()[name]).trial
    assert trial in shown
    assert ("a trial on a random model" in shown) == bool(trial)
    assert "Measured effect" in shown
    assert "…" not in shown  # a wide cell of a table is folded, never cut


def test_methods_as_json(typed, folder):
    rows = [json.loads(line) for line in typed("methods", "--json").out.splitlines()]
    assert rows[0]["differs"] == {}
    assert rows[0]["paper"] == "Shao et al. 2024"
    assert list(rows[1]["differs"]) == ["trust_region"]


def test_one_method_alone(typed, folder):
    shown = typed("methods", "wide").out
    assert "wide: Clips higher." in shown
    assert "trust_region: static high=0.28" in shown
    assert "burnish try wide" in shown
    assert "The baseline." not in shown
    (row,) = map(json.loads, typed("methods", "wide", "--json").out.splitlines())
    assert list(row["differs"]) == ["trust_region"]


@pytest.fixture
def cards(tmp_path, folder, monkeypatch):
    place = tmp_path / "cards"
    place.mkdir()
    (place / "wide.md").write_text(CARD)
    monkeypatch.setattr(methods, "card_folder", lambda: place)
    return place


def test_a_method_with_a_card_shows_where_it_is_and_its_effect(typed, cards, monkeypatch):
    monkeypatch.chdir(cards.parent)
    shown = " ".join(typed("methods", "wide").out.split())
    assert "Effect: 0.71 instead of 0.64" in shown
    assert "card: cards/wide.md" in shown
    assert "card:" not in typed("methods", "grpo").out
    rows = {r["name"]: r for r in map(json.loads, typed("methods", "--json").out.splitlines())}
    assert rows["wide"]["card"] == str(cards / "wide.md")
    assert rows["wide"]["effect"] == "0.71 instead of 0.64"
    assert rows["grpo"]["card"] is None
    assert rows["grpo"]["effect"] == ""


@pytest.mark.parametrize(
    "figures",
    ["", "<!-- figures -->\n<!-- /figures -->\n", "<!-- figures -->\nEffect: never closed\n"],
)
def test_a_card_without_a_measured_effect_has_none(typed, cards, figures):
    (cards / "wide.md").write_text(f"# Wide\n{figures}")
    rows = {r["name"]: r for r in map(json.loads, typed("methods", "--json").out.splitlines())}
    assert rows["wide"]["effect"] == ""
    assert rows["wide"]["card"] == str(cards / "wide.md")


def test_cards_of_an_installed_package_come_before_those_of_a_checkout(tmp_path, monkeypatch):
    package = tmp_path / "checkout" / "src" / "burnish"
    in_checkout = tmp_path / "checkout" / "docs" / "methods"
    monkeypatch.setattr(methods, "PACKAGE", package)
    assert card_folder() is None
    assert find_card("wide") is None
    in_checkout.mkdir(parents=True)
    assert card_folder() == in_checkout
    (package / "_methods").mkdir(parents=True)
    assert card_folder() == package / "_methods"


def test_a_card_that_cannot_be_read_is_named(typed, cards):
    (cards / "wide.md").write_bytes(b"\xff\xfe")
    shown = typed("methods", "wide")
    assert shown.code == 2
    assert f"{cards / 'wide.md'}: cannot be read" in " ".join(shown.err.split())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_card_of_at_most_120_lines(name):
    card = find_card(name)
    assert card is not None
    text = card.path.read_text()
    assert len(text.splitlines()) <= 120
    assert text.count("<!-- figures -->") == text.count("<!-- /figures -->") == 1
    assert name in all_recipes()


def test_a_broken_recipe_is_named(typed, folder):
    (folder / "bad.toml").write_text("[policy]\nratio = 'tokne'\n")
    shown = typed("methods", "bad")
    assert shown.code == 2
    assert shown.err.startswith("burnish: recipe 'bad': policy: ")


def test_a_name_a_path_and_a_misspelt_name(folder):
    assert find_recipe("grpo") == folder / "grpo.toml"
    assert find_recipe(str(folder / "wide.toml")) == folder / "wide.toml"
    with pytest.raises(UserError, match=r"no recipe 'grop'.*Did you mean 'grpo'\?"):
        find_recipe("grop")
    with pytest.raises(
        UserError, match=r"There is a shipped recipe of that name: burnish train wide"
    ):
        find_recipe("elsewhere/wide.toml")


@pytest.mark.parametrize("path", all_recipes().values(), ids=lambda path: path.stem)
def test_every_shipped_recipe_has_a_header_and_loads(typed, path):
    card = read_card(path)
    assert card.command.startswith("burnish train")
    assert card.description
    shown = typed("train", card.name, "--print-config")
    assert shown.err == ""
    assert f"# {path}" in shown.out


def test_a_method_without_a_recipe_is_listed_and_has_a_page(typed):
    listed = typed("methods").out
    assert "trace2skill" in listed.partition("Without a recipe")[2]
    assert "burnish skill distill" in typed("methods", "trace2skill").out
    told = json.loads(typed("methods", "trace2skill", "--json").out)
    assert told["name"] == "trace2skill"
    assert told["effect"]
