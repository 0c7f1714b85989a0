"""The reference of config keys: whole, with a sentence for each, and the same as the page."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

from burnish.cli.entry import run
from burnish.config import Config, reference, shapes

ROOT = Path(__file__).resolve().parents[2]
KEYS = [key for section in reference.sections() for key in section.keys]


def test_every_key_has_a_sentence():
    bare = [key.key for key in KEYS if not key.meaning.endswith((".", "?"))]
    assert bare == []


def test_every_key_of_the_schema_is_there():
    known = {key.key.replace(".N", "") for key in KEYS}
    places = {key.key.replace(".N", ""): key.elsewhere.replace(".N", "") for key in KEYS}
    for key, _ in shapes.annotated_keys(Config):
        home = ""
        for part in key.split("."):
            dotted = f"{home}.{part}" if home else part
            assert dotted in known, key
            home = places[dotted] or dotted


def test_every_default_is_accepted_where_it_stands():
    (key,) = reference.find("optimiser.learning_rate")
    assert (key.type, key.default) == ("a number from 0 to 10", "1e-05")
    (key,) = reference.find("policy.advantage.eps")
    assert key.kinds == ("sum_then_normalise", "normalise_then_sum", "stepwise")
    assert reference.find("rewards.3.weight") == reference.find("rewards.weight")
    (key,) = reference.find("task.level")
    assert key.type == "a whole number from 1 to 6 or none"


def test_the_page_is_fresh():
    spec = importlib.util.spec_from_file_location("make_config", ROOT / "docs" / "make_config.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = module.PAGE.read_text(encoding="utf-8")
    assert module.page() == written, "run: python docs/make_config.py"
    headings = {line[3:].strip("`") for line in written.splitlines() if line.startswith("## ")}
    anchors = {module.anchor(heading) for heading in headings}
    for key in KEYS:
        assert not key.elsewhere or module.anchor(key.elsewhere) in anchors


def test_the_same_words_have_one_order():
    """Python keeps one `Literal` for equal sets of words: the first that is imported.

    With two orders in the code, what the page says depends on what was imported before.
    """
    orders: dict[frozenset[str], dict[tuple[str, ...], str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                words = tuple(map(ast.unparse, parts))
                orders.setdefault(frozenset(words), {})[words] = f"{path.name}:{node.lineno}"
    assert len(orders) > 50
    assert [places for places in orders.values() if len(places) > 1] == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "trackers"),
        ("policy.", "trust_region"),
        ("policy", "Terms that are added to the policy loss."),
        ("policy.advantage", "leave_one_out, rloo"),
        ("optimiser.learning_rate", "Peak learning rate."),
        ("optimiser.learning_rate=1", "default  1e-05"),
        ("stages.0.optimiser", "Decoupled weight decay"),
    ],
)
def test_the_command_says_it(capsys, typed, said):
    assert run(["config", *filter(None, [typed])]) == 0
    assert said in " ".join(capsys.readouterr().out.split(" "))


def test_as_json(capsys):
    assert run(["config", "rollout.samples", "--json"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["key"] == "rollout.samples"
    assert row["default"] == "8"


def test_bounds_of_numbers_with_a_point_have_one():
    """Python keeps one `Annotated` for equal bounds, and 0 equals 0.0: the first that is imported."""
    bare = re.compile(r"Annotated\[float, Meta\([^)]*\b(gt|ge|lt|le)=-?[0-9_]+[,)]")
    found = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "src" / "burnish").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if bare.search(line)
    ]
    assert found == []
