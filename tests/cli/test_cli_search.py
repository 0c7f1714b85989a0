"""`burnish search`: results as text and JSON, an index that is kept, one line for mistakes."""

import json

import pytest


@pytest.fixture
def manuals(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "manuals"
    folder.mkdir()
    (folder / "lamp.md").write_text("# The lamp\n\nIt has two batteries.\x1b[31m")
    (folder / "kettle.txt").write_text("Descale the kettle often.")
    return folder


def test_passages_as_text(typed, manuals):
    shown = typed("search", manuals, "how many batteries")
    assert shown.code == 0
    assert "1. The lamp  lamp.md" in shown.out
    assert "\x1b[31m" not in shown.out
    assert "bm25 over 2 passages" in shown.out
    assert "nothing found" in typed("search", manuals, "violin").out


def test_passages_as_json(typed, manuals, tmp_path):
    place = tmp_path / "index"
    shown = typed("search", manuals, "the kettle", "-k", 1, "--json", "--index", place)
    (row,) = [json.loads(line) for line in shown.out.splitlines()]
    assert (row["rank"], row["id"], row["text"]) == (1, "kettle.txt", "Descale the kettle often.")
    assert row["score"] > 0
    assert len(list(place.glob("g-*"))) == 1
    assert typed("search", manuals, "violin", "--json").out == ""
