"""What a person waits for: help and reading commands are quick and need no torch."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

BLOCK_TORCH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "numpy", "matplotlib", "pandas"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name.partition(".")[0])

sys.meta_path.insert(0, Block())
from burnish.cli.entry import run
"""
ONE = BLOCK_TORCH + "sys.exit(run(sys.argv[1:]))"
MANY = (
    BLOCK_TORCH
    + """
import contextlib, io, json

for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
)

A_SIXTH_OF_A_SECOND = (
    "import asyncio, decimal, email.message, http.client, logging.config, sqlite3, unittest.mock, "
    "xml.dom.minidom"
)
"""What a quick machine imports in 0.17 s of CPU time: a slow one needs longer for everything."""


def cpu_in_sixths(*arguments: str) -> float:
    """CPU time of a Python process, in units of the imports above.

    The best of three, in turn with the unit: other work on the machine only adds.
    """

    def once(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    pairs = [(once(*arguments), once("-c", A_SIXTH_OF_A_SECOND)) for _ in range(3)]
    return min(taken for taken, _ in pairs) / min(unit for _, unit in pairs)


def without_torch(*words: object) -> subprocess.CompletedProcess[str]:
    """A command line in a process that cannot import torch and other heavy packages."""
    command = [sys.executable, "-c", ONE, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_takes_about_a_third_of_a_second_of_a_quick_machine():
    assert cpu_in_sixths("-m", "burnish", "--help") <= 3


def test_import_takes_less_than_a_sixth_of_a_second_of_a_quick_machine():
    assert cpu_in_sixths("-c", "import burnish") <= 1


LIGHT = [
    ["--help"], ["--version"], ["train", "--help"], ["methods"], ["runs", "--runs", "{runs}"],
    ["show", "grpo-abc", "--runs", "{runs}"],
    ["show", "grpo-abc", "--step", "1", "--runs", "{runs}"],
    ["show", "grpo-abc", "--sample", "1/train/0", "--runs", "{runs}"],
    ["export", "grpo-abc", "{file}", "--runs", "{runs}"], ["train", "tiny", "--print-config"],
]  # fmt: skip


@pytest.fixture(scope="module")
def light_commands(runs, tmp_path_factory):
    """Code, output and complaints of each light command, all in one process without torch."""
    file = tmp_path_factory.mktemp("light") / "x.jsonl"
    filled = [[word.format(runs=runs, file=file) for word in words] for words in LIGHT]
    command = [sys.executable, "-c", MANY, json.dumps(filled)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("place", range(len(LIGHT)), ids=lambda place: " ".join(LIGHT[place][:3]))
def test_no_torch_is_needed(place, light_commands):
    code, out, err = light_commands[place]
    assert err == ""
    assert code == 0
    assert out


def test_try_without_torch_shows_all_but_the_loss():
    pytest.importorskip("tokenizers", reason="the tiny model's tokens")
    done = without_torch("try", "tiny")
    assert done.returncode == 0
    assert "prompt 3" in done.stdout
    assert "pip install 'burnish[torch]'" in done.stdout


def test_no_colour_codes_in_a_pipe(runs):
    command = [sys.executable, "-m", "burnish", "show", str(runs / "grpo-abc"), "--step", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("show {run} --best 99 --json", 0), ("show {run} --best 99", 0), ("", 0),
        ("judge --help", 0),
        ("judge {rows} --model tiny --limit 1", 3),  # its work was not done
    ],
)  # fmt: skip
def test_a_reader_that_leaves_early_is_no_error(runs, tmp_path, words, code):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "p", "response": "r"}\n')
    if "--model tiny" in words:
        pytest.importorskip("torch", reason="the tiny model")
    typed = words.format(run=runs / "grpo-abc", rows=rows)
    # The reader is gone before the first line.
    command = f"{sys.executable} -m burnish {typed} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{code}\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "train tiny --runs {folder}",
            "training needs the package 'torch', which is not installed",
        ),
        ("sweep tiny steps=1,2 --runs {folder}", "training needs the package 'torch'"),
        ("judge {rows} --model tiny", "model 'tiny' needs 'torch', which is not installed"),
        ("search {rows} lamp", "searches need the package 'numpy', which is not installed"),
    ],
)
def test_a_command_names_what_it_needs_and_starts_nothing(tmp_path, words, said):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "p", "response": "r"}\n')
    typed = words.format(folder=tmp_path / "runs", rows=rows)
    done = without_torch(*typed.split())
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [rows]
