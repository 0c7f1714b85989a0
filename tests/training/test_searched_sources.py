from pathlib import Path

import pytest

from burnish.config import Config, load
from burnish.config.paths import rooted
from burnish.training.validate import _by_name, _searched, file_digests

RECIPE = """
[model]
path = "tiny"

[task]
kind = "arithmetic"

[rollout]
kind = "env"
path = "search"
options = { source = "manuals", index = "kept" }

[[rollout.tools]]
path = "search"
options = { source = "manuals" }

[[rewards]]
kind = "support"
source = "manuals"
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "manuals").mkdir()
    (tmp_path / "manuals" / "lamp.txt").write_text("two batteries")
    (tmp_path / "my.toml").write_text(RECIPE)
    return load(Config, tmp_path / "my.toml").value


def test_paths_start_at_the_recipe(config, tmp_path):
    placed = rooted(config, tmp_path)
    manuals = str(tmp_path / "manuals")
    assert placed.rollout.path == "search"
    assert placed.rollout.options == {"source": manuals, "index": str(tmp_path / "kept")}
    assert placed.rollout.tools[0].path == "search"
    assert list(_searched(placed)) == [manuals, manuals, manuals]
    assert rooted(placed, Path("/elsewhere")) == placed


def test_a_change_of_the_source_is_seen(config, tmp_path):
    placed = rooted(config, tmp_path)
    before = file_digests(placed)
    assert "files.manuals" in before
    assert file_digests(placed) == before
    (tmp_path / "manuals" / "lamp.txt").write_text("six batteries")
    after = file_digests(placed)
    assert [name for name in after if after[name] != before[name]] == ["files.manuals"]


GAME = """
[model]
path = "tiny"

[task]
kind = "arithmetic"

[rollout]
kind = "function"
path = "burnish.agents.ssp.game:SearchSelfPlay"

[rollout.options]
corpus = "mine.py:corpus"
reader = "code"
reader_path = "mine.py:read"
corpus_options = { source = "manuals" }

[[rewards]]
kind = "env"
name = "game"
"""


def test_the_corpus_of_a_game_belongs_to_its_run(config, tmp_path):
    (tmp_path / "mine.py").write_text("def corpus(source): ...")
    (tmp_path / "my.toml").write_text(GAME)
    placed = rooted(load(Config, tmp_path / "my.toml").value, tmp_path)
    assert placed.rollout.options["corpus"] == f"{tmp_path}/mine.py:corpus"
    assert placed.rollout.options["reader_path"] == f"{tmp_path}/mine.py:read"
    assert list(_searched(placed)) == [str(tmp_path / "manuals")]
    assert rooted(placed, Path("/elsewhere")) == placed
    before = file_digests(placed)
    (tmp_path / "mine.py").write_text("def corpus(source): return 1")
    (tmp_path / "manuals" / "lamp.txt").write_text("six batteries")
    after = file_digests(placed)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"files.mine.py", "files.manuals"}


def test_files_of_one_name_are_told_apart():
    paths = [Path("/r/a/policy.md"), Path("/r/b/policy.md"), Path("/r/b/other.md")]
    assert _by_name(paths) == dict(
        zip(("a/policy.md", "b/policy.md", "other.md"), paths, strict=True)
    )


def test_the_tables_of_a_game_belong_to_its_run(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "notes.bin").write_bytes(b"1")
    (tmp_path / "my.toml").write_text(
        GAME.replace("source =", "path =").replace("manuals", "tables")
    )
    placed = rooted(load(Config, tmp_path / "my.toml").value, tmp_path)
    assert placed.rollout.options["corpus_options"] == {"path": str(tmp_path / "tables")}
    (tmp_path / "mine.py").write_text("")
    before = file_digests(placed)
    (tmp_path / "tables" / "notes.bin").write_bytes(b"2")
    after = file_digests(placed)
    assert {name for name in after if after[name] != before[name]} == {"files.tables"}


OWN = """
from burnish.rollouts import FileOptions, StepGame

class Mine(StepGame):
    file_options = FileOptions(sources=("book",), functions=("rule",), written=("notes.log",))
"""


def test_a_game_of_your_own_says_which_options_are_files(config, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    options = 'book = "manuals"\nrule = "own.py:f"\nword = "manuals"\nnotes = { log = "out.txt" }\n'
    text = GAME.partition("corpus =")[0].replace(
        "burnish.agents.ssp.game:SearchSelfPlay", "own.py:Mine"
    )
    (tmp_path / "my.toml").write_text(text + options + GAME[GAME.index("[[rewards]]") :])
    placed = rooted(load(Config, tmp_path / "my.toml").value, tmp_path)
    assert placed.rollout.options == {
        "book": str(tmp_path / "manuals"),
        "rule": f"{tmp_path}/own.py:f",
        "word": "manuals",
        "notes": {"log": str(tmp_path / "out.txt")},
    }
    assert list(_searched(placed)) == [str(tmp_path / "manuals")]
    assert "files.own.py" in file_digests(placed)
