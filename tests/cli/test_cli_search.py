"""`burnish search`: results as text and JSON, an index that is kept, one line for mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_words import Type
from rich.cells import cell_len

from burnish.cli.console import out
from burnish.cli.search import excerpt


@pytest.fixture
def manuals(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "manuals"
    folder.mkdir()
    (folder / "lamp.md").write_text("# The lamp\n\nIt has two batteries.\x1b[31m")
    (folder / "kettle.txt").write_text("Descale the kettle often.")
    return folder


def test_passages_as_text(typed: Type, manuals: Path) -> None:
    shown = typed("search", manuals, "how many batteries")
    assert shown.code == 0
    assert "1. The lamp  lamp.md" in shown.out
    assert "\x1b[31m" not in shown.out
    assert "bm25 over 2 passages" in shown.out
    assert "nothing found" in typed("search", manuals, "violin").out


def test_an_excerpt_is_one_line_of_whole_words_around_the_match(
    typed: Type, manuals: Path, monkeypatch
) -> None:
    text = "The kettle holds one litre of water. " * 12 + "Descale it with VINEGAR once a month."
    (manuals / "kettle.txt").write_text(text + "\n\n" + "Rinse it three times. " * 12)
    monkeypatch.setattr(out, "width", 80)
    lines = typed("search", manuals, "vinegar month").out.splitlines()
    assert len(lines) == 3
    shown = lines[1].strip()
    assert len(lines[1]) <= 80
    assert "VINEGAR once a month." in shown
    assert shown.startswith("... ")
    assert shown.endswith(" ...")
    assert set(shown.strip(". ").split()) <= set((text + " Rinse it three times.").split())
    chinese = excerpt("水" * 50 + "壶" + "水" * 50, ["壶"], 40)
    assert chinese.count("壶") == 1
    assert cell_len(chinese) <= 40
    assert len(excerpt("a" * 500, ["b"], 40)) <= 40


def test_passages_as_json(typed: Type, manuals: Path, tmp_path: Path) -> None:
    place = tmp_path / "index"
    shown = typed("search", manuals, "the kettle", "-k", 1, "--json", "--index", place)
    (row,) = [json.loads(line) for line in shown.out.splitlines()]
    assert (row["rank"], row["id"], row["text"]) == (1, "kettle.txt", "Descale the kettle often.")
    assert row["score"] > 0
    assert len(list(place.glob("g-*"))) == 1
    assert typed("search", manuals, "violin", "--json").out == ""
