"""No number of a config may be NaN or infinite, wherever it stands."""

from __future__ import annotations

import math
import re
import typing

import pytest

from burnish.boundary import Call, reader
from burnish.config import Config, load, shapes
from burnish.config.given import Origin, from_mapping
from burnish.config.resolve import Resolver
from burnish.errors import UserError


def tables(struct, seen):
    """Every table that a config may hold."""
    if struct in seen:
        return
    seen.add(struct)
    for field in shapes.fields(struct):
        shape = shapes.shape(field.annotation)
        inner = shapes.shape(shape.item).structs if shape.item is not None else ()
        for table in (*shape.structs, *inner):
            tables(table, seen)


def number_kinds(annotation):
    """Which of int and float may stand in a field, alone, in a list or in a table of one's own."""
    found = set()
    for option in shapes.options(annotation):
        if option in (int, float):
            found.add(option)
        for argument in typing.get_args(option):
            found |= number_kinds(argument)
    return found


def wrapped(annotation, value):
    """The value as the field holds it: alone, in a list, or under a key."""
    for option in shapes.options(annotation):
        origin = typing.get_origin(option)
        if origin in (list, tuple):
            return [value] * max(1, len([a for a in typing.get_args(option) if a is not ...]))
        if origin is dict:
            return {"key": value}
    return value


def numbers():
    found = set()
    tables(Config, found)
    for struct in sorted(found, key=lambda s: s.__qualname__):
        for field in shapes.fields(struct):
            for kind in sorted(number_kinds(field.annotation), key=str):
                yield pytest.param(
                    struct, field, kind, id=f"{struct.__name__}.{field.key}-{kind.__name__}"
                )


BAD = {
    float: (math.nan, math.inf, -math.inf, "no such word"),
    int: (0.5, math.nan, "no such word"),
}


def test_the_walk_finds_the_numbers():
    names = {(p.values[0].__name__, p.values[1].key) for p in numbers()}
    assert ("Optimiser", "weight_decay") in names
    assert ("TriFactor", "severity") in names
    assert ("Curriculum", "thresholds") in names
    assert len(names) > 120


@pytest.mark.parametrize(("struct", "field", "kind"), list(numbers()))
def test_a_spoilt_number_is_refused_by_name_from_a_file_and_in_python(struct, field, kind):
    others = {*number_kinds(field.annotation), *shapes.options(field.annotation)}
    for bad in BAD[kind]:
        if (isinstance(bad, str) and str in others) or (
            isinstance(bad, float) and float in others and kind is int
        ):
            continue
        spoilt = wrapped(field.annotation, bad)
        resolver = Resolver(struct)
        resolver.resolve(from_mapping({field.key: spoilt}, Origin("here")))
        told = [line for line in resolver.problems if line.startswith(f"here: {field.key}")]
        assert told, f"{struct.__name__}.{field.key} takes {str(bad)[:20]}"
        with pytest.raises(UserError, match=re.escape(field.key)):
            reader(field.annotation)(field.key, spoilt, Call())


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("optimiser.weight_decay=inf", "expected a number from 0 to 100."),
        ("optimiser.weight_decay=nan", "expected a number from 0 to 100."),
        ("optimiser.eps=inf", "expected a number above 0 and of at most 1."),
        ("optimiser.clip_norm=inf", "expected a number of at least 0."),
        ("steps=1000000000000", "expected a whole number of at least 1."),
        ("rewards.0.weight=nan", "expected a finite number."),
        ("rollout.score_timeout_s=inf", "expected a number above 0 and of at most 1e+06."),
    ],
)
def test_the_line_names_the_value_and_the_bounds(word, expected):
    table = {"task": {"kind": "arithmetic"}, "rewards": [{"kind": "numeric"}]}
    with pytest.raises(UserError) as caught:
        load(Config, table, [word])
    key = word.partition("=")[0]
    assert str(caught.value).startswith(f"command line, '{word}': {key} is ")
    assert str(caught.value).endswith(expected)


def test_numbers_in_an_option_of_ones_own_are_ones_own():
    table = {
        "task": {"kind": "arithmetic"},
        "rewards": [{"kind": "function", "path": "a.py:b", "options": {"limit": math.inf}}],
    }
    assert load(Config, table).value.rewards[0].options == {"limit": math.inf}


@pytest.mark.parametrize(
    "name", ["x" * 300, "..", ".", "../up", "/tmp/x", "a\\b", "a\nb", " a", "a\n"]
)
def test_a_name_that_is_no_folder_name_is_refused(name):
    table = {"task": {"kind": "arithmetic"}, "rewards": [{"kind": "numeric"}]}
    with pytest.raises(UserError, match=r"run.name is .*expected the name of one folder") as caught:
        load(Config, {**table, "run": {"name": name}})
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


TABLE = 'steps = 4\n[task]\nkind = "arithmetic"\n[[rewards]]\nkind = "numeric"\n'


def test_a_file_with_a_byte_order_mark_loads(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf" + TABLE.encode())
    resolved = load(Config, tmp_path / "a.toml")
    assert resolved.value.steps == 4
    assert resolved.origins["steps"].endswith("a.toml:1")


def test_a_long_list_of_many_lines_loads_in_time(tmp_path):
    lines = "".join(f'  "word {i}",\n' for i in range(4000))
    (tmp_path / "a.toml").write_text(f"{TABLE}[rollout]\nstop = [\n{lines}]\n")
    assert len(load(Config, tmp_path / "a.toml").value.rollout.stop) == 4000
