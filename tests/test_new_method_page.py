"""`docs/new_method.md` does what it says: its files are written, its commands typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from burnish.cli.entry import run
from burnish.policy import plugins
from burnish.policy.plugins import SLOTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "new_method.md").read_text(encoding="utf-8")
SECONDS = 600


class Block(NamedTuple):
    """A code block of the page."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that its first line names; empty for commands."""
        named = re.match(r"# (\S+\.(?:py|toml))\n", self.text)
        return named[1] if named else ""

    @property
    def body(self) -> str:
        return self.text.partition("\n")[2]


BLOCKS = [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)]
FILES = [block for block in BLOCKS if block.file and not block.file.startswith("src/")]
QUOTED = [block for block in BLOCKS if block.file.startswith("src/")]
COMMANDS = [line for block in BLOCKS if not block.language for line in block.text.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the page says to write."""
    place = tmp_path_factory.mktemp("reader")
    for block in FILES:
        (place / block.file).write_text(block.text)
    return place


def test_every_block_is_a_file_a_quotation_or_commands() -> None:
    assert [block.file for block in FILES] == ["mine.py", "region.py", "mine.toml", "test_mine.py"]
    assert len(QUOTED) == 3
    assert COMMANDS
    assert len(FILES) + len(QUOTED) + sum(not block.language for block in BLOCKS) == len(BLOCKS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_run(
    folder: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, *words = command.split()
    if program == "burnish":
        monkeypatch.chdir(folder)
        plugins._find.cache_clear()  # a function is loaded once for its path as written
        code, said = run(words), capsys.readouterr().out
    else:
        code, said = in_a_process([sys.executable, *words], folder)
    assert code == 0, said
    if words[0] == "try":
        assert "arithmetic/0 right   1.000     +0.000" in said
    if words[0] == "train":
        assert "finished" in said
    if "pytest" in words:
        assert "4 passed" in said


def in_a_process(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output; pytest without the plugins that happen to be installed."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout


def test_each_function_has_at_most_15_lines() -> None:
    for file in ("mine.py", "region.py"):
        source = next(block.text for block in FILES if block.file == file)
        (function,) = re.findall(r"^def .*", source, re.M | re.S)
        assert len(function.splitlines()) <= 15


@pytest.mark.parametrize("block", QUOTED, ids=lambda block: block.file)
def test_what_the_page_quotes_stands_in_the_package(block: Block) -> None:
    assert block.body in (ROOT / block.file).read_text(encoding="utf-8")


def test_the_page_says_which_functions_a_slot_takes() -> None:
    assert set(SLOTS) == {"shaping", "advantage", "select", "trust_region", "auxiliary"}
    assert "Slots 1, 2, 3, 6 and 9 take a function" in PAGE
