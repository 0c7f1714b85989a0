"""Ceilings of rooms: a figure over one fails and is named; lowering never raises."""

import tomllib

import pytest
from lab.house import main

ONE_NODE = "\n"  # an empty module is one node
THREE_NODES = "import os\n"  # module, import, alias

CEILINGS = """[tool.other]
policy = { lines = 1, nodes = 1 }
[tool.house]
"(top)" = { lines = 1, nodes = 1 }
gone = { lines = 9, nodes = 9 }
policy = { lines = 3, nodes = 2 }
tests = { lines = 5, nodes = 5 }
lab = { lines = 0, nodes = 1 }
"""


@pytest.fixture
def house(tmp_path):
    files = {
        "src/burnish/__init__.py": ONE_NODE, "src/burnish/policy/__init__.py": ONE_NODE,
        "src/burnish/policy/deep/etr.py": THREE_NODES, "tests/test_etr.py": THREE_NODES,
        "lab/toy.py": "", "pyproject.toml": CEILINGS,
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_room_over_its_ceiling_fails_with_its_figure(house, capsys):
    assert main([], house) == 1
    assert capsys.readouterr().out == "policy: 4 nodes, ceiling 2\n"
    (house / "src/burnish/policy/deep/etr.py").write_text("")
    assert main([], house) == 0
    (house / "src/burnish/speech").mkdir()
    (house / "src/burnish/speech/voice.py").write_text("\n")
    assert main([], house) == 1
    assert "speech: 1 lines, ceiling 0\n" in capsys.readouterr().out


def test_lowering_takes_the_lower_of_figure_and_ceiling(house):
    assert main(["--lower"], house) == 1
    tables = tomllib.loads((house / "pyproject.toml").read_text())["tool"]
    assert tables == {
        "other": {"policy": {"lines": 1, "nodes": 1}},
        "house": {
            "(top)": {"lines": 1, "nodes": 1}, "policy": {"lines": 2, "nodes": 2},
            "tests": {"lines": 1, "nodes": 3}, "lab": {"lines": 0, "nodes": 1},
        },
    }  # fmt: skip
