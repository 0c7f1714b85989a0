"""Configs: what is given, what is meant, and one line for every mistake."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from burnish.config.given import line_numbers
from burnish.config.loading import load, render
from burnish.errors import UserError


class Kind(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the tagged tables below."""


class Sums(Kind, frozen=True, tag="sums"):
    level: Annotated[int, Meta(ge=1, le=9)] = 1
    operators: tuple[str, ...] = ("+",)


class FromFile(Kind, frozen=True, tag="file"):
    path: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    name: str = "exact"
    weight: float = 1.0


class Optimiser(Struct, frozen=True, forbid_unknown_fields=True):
    learning_rate: Annotated[float, Meta(gt=0.0)] = 1e-5
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: int | None = 3
    note: str | None = None


class Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    task: Sums | FromFile
    steps: Annotated[int, Meta(ge=1)] = 10
    name: str = ""
    quiet: bool = False
    optimiser: Optimiser = Optimiser()
    fallback: Sums | FromFile = Sums(level=4, operators=("-",))
    parts: Annotated[tuple[Part, ...], Meta(min_length=1)] = (Part(), Part("format", 0.5))
    limit: float = math.inf


FILE = """\
# burnish train grpo.toml
steps = 4

[task]
kind = "sums"
operators = [
  "+",
  "-",
]

[optimiser]
learning_rate = 1
note = '''
two
lines = 3
'''

[[parts]]
name = "a"

[[parts]]
name = "b"
weight = 3
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("grpo.toml")
    path.write_text(FILE)
    return path


def mistake(path: Path | None, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        load(Settings, path, words)
    return str(caught.value)


def test_defaults_file_and_words_each_leave_their_mark(file):
    resolved = load(Settings, file, ["optimiser.schedule=cosine", "parts.1.weight=0.25"])
    assert resolved.value == Settings(
        task=Sums(operators=("+", "-")),
        steps=4,
        optimiser=Optimiser(1.0, "cosine", note="two\nlines = 3\n"),
        parts=(Part("a"), Part("b", 0.25)),
    )
    assert resolved.origins == {
        "task.kind": "grpo.toml:5", "task.level": "default", "task.operators": "grpo.toml:6",
        "steps": "grpo.toml:2", "name": "default", "quiet": "default",
        "optimiser.learning_rate": "grpo.toml:12", "optimiser.schedule": "command line",
        "optimiser.warmup": "default", "optimiser.note": "grpo.toml:13", "fallback.kind": "default",
        "fallback.level": "default", "fallback.operators": "default",
        "parts.0.name": "grpo.toml:19", "parts.0.weight": "default", "parts.1.name": "grpo.toml:22",
        "parts.1.weight": "command line", "limit": "default",
    }  # fmt: skip
    assert resolved.flat().keys() == resolved.origins.keys()


def test_a_table_given_in_part_keeps_the_rest_of_its_default():
    resolved = load(Settings, None, ["task.kind=sums", "fallback.level=5"])
    assert resolved.value.fallback == Sums(level=5, operators=("-",))
    assert resolved.origins["fallback.kind"] == "default"
    other = load(Settings, None, ["task.kind=sums", "fallback.kind=file", "fallback.path=x"])
    assert other.value.fallback == FromFile("x")


def test_words_reach_into_a_list_that_is_the_default():
    resolved = load(Settings, None, ["task.kind=sums", "parts.1.weight=2"])
    assert resolved.value.parts == (Part(), Part("format", 2.0))
    assert resolved.origins["parts.1.weight"] == "command line"
    assert resolved.origins["parts.1.name"] == "default"


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("steps=7", "steps", 7), ("optimiser.learning_rate=2e-5", "optimiser.learning_rate", 2e-5),
        ("optimiser = {schedule = 'cosine'}", "optimiser.schedule", "cosine"),
        ("name=two words", "name", "two words"), ("name=data/x.jsonl", "name", "data/x.jsonl"),
        ("name='12'", "name", "12"), ("name=a=b", "name", "a=b"), ("name=", "name", ""),
        ("name=\n", "name", "\n"), ("name=1\nsteps = 3", "name", "1\nsteps = 3"),
        ("quiet=true", "quiet", True), ('task.operators=["*", "/"]', "task.operators", ["*", "/"]),
        ("task.operators.0=*", "task.operators", ["*", "-"]), ("limit=-inf", "limit", "-inf"),
        ("optimiser.warmup=none", "optimiser.warmup", None),
        ('parts=[{name="z"}]', "parts.0.name", "z"),
    ],
)  # fmt: skip
def test_words_are_toml_or_else_text(file, word, key, value):
    resolved = load(Settings, file, [word])
    assert resolved.flat()[key] == value
    assert resolved.origins[key] == "command line"


def test_the_last_word_wins(file):
    assert load(Settings, file, ["steps=5", "steps=6"]).value.steps == 6


def test_keys_with_dots_are_quoted(file):
    words = ["task={kind='file', path='x'}", 'task.fields."a.b"=1', "task.fields.a.b=2"]
    resolved = load(Settings, file, words)
    assert resolved.value.task == FromFile("x", {"a.b": 1, "a": {"b": 2}})
    assert resolved.flat()['task.fields."a.b"'] == 1
    assert resolved.flat()["task.fields.a.b"] == 2


MISTAKES = [
    ("stepz = 3", "unknown key 'stepz'. Did you mean 'steps'?"),
    (
        "[optimiser]\nlearning_rat = 1.0",
        "unknown key 'optimiser.learning_rat'. Did you mean 'optimiser.learning_rate'?",
    ),
    ("schedule = 1", "unknown key 'schedule'. Did you mean 'optimiser.schedule'?"),
    (
        "[optimiser]\nzzz = 1",
        "unknown key 'optimiser.zzz'. Valid keys: learning_rate, schedule, warmup, note.",
    ),
    (
        "[[parts]]\nname = 'a'\n[[parts]]\nwieght = 2",
        "unknown key 'parts.1.wieght'. Did you mean 'parts.1.weight'?",
    ),
    (
        "[fallback]\nkind = 'file'\npath = 'x'\nlevel = 2",
        "unknown key 'fallback.level' for kind 'file'. Valid keys: path, fields.",
    ),
    ("steps = 'many'", 'steps is "many"; expected a whole number of at least 1.'),
    ("steps = 0", "steps is 0; expected a whole number of at least 1."),
    ("steps = 1.5", "steps is 1.5; expected a whole number of at least 1."),
    ("quiet = 1", "quiet is 1; expected True or False."),
    ("name = 3", "name is 3; expected a text."),
    (
        "[optimiser]\nlearning_rate = -1e-5",
        "optimiser.learning_rate is -1e-05; expected a number above 0.",
    ),
    (
        "[optimiser]\nschedule = 'cosin'",
        "optimiser.schedule is \"cosin\"; expected constant, cosine. Did you mean 'cosine'?",
    ),
    (
        "[optimiser]\nwarmup = 'x'",
        'optimiser.warmup is "x"; expected a finite whole number or none.',
    ),
    ("optimiser = 3", "optimiser is 3; expected a table."),
    ("parts = 3", "parts is 3; expected a list of at least 1 table."),
    ("parts = [1]", "parts.0 is 1; expected a table."),
    ("[fallback]\nlevel = 10", "fallback.level is 10; expected a whole number from 1 to 9."),
    ("[fallback]\noperators = [1]", "fallback.operators is [1]; expected a list, each a text."),
    (
        "[fallback]\nkind = 'sum'",
        "fallback.kind is \"sum\"; expected one of sums, file. Did you mean 'sums'?",
    ),
    ("[fallback]\nkind = ['sums']", 'fallback.kind is ["sums"]; expected one of sums, file.'),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES)
def test_every_mistake_is_one_line_with_its_place(tmp_path, text, line):
    path = tmp_path / "a.toml"
    path.write_text(f"task = {{ kind = 'sums' }}\n{text}\n")
    last = 1 + len(text.splitlines())
    assert mistake(path) == f"{path}:{last}: {line}"


def test_missing_keys_name_the_table_that_lacks_them(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("steps = 1\n")
    assert mistake(path) == f"{path}: missing key 'task'; expected a table."
    path.write_text("steps = 1\n[task]\nlevel = 1\n")
    assert mistake(path) == f"{path}:2: missing key 'task.kind'; expected one of sums, file."
    path.write_text("[task]\nkind = 'file'\n")
    assert mistake(path) == f"{path}:1: missing key 'task.path'; expected a text."


def test_all_mistakes_are_told_at_once(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("step = 3\n[task]\nkind = 'sums'\nlevl = 2\n[optimiser]\nlearning_rate = 'x'\n")
    assert mistake(path, "quiet=maybe").splitlines() == [
        f"{path}:1: unknown key 'step'. Did you mean 'steps'?",
        f"{path}:4: unknown key 'task.levl' for kind 'sums'. Did you mean 'task.level'?",
        "command line, 'quiet=maybe': quiet is \"maybe\"; expected True or False.",
        f'{path}:6: optimiser.learning_rate is "x"; expected a number above 0.',
    ]


def test_constraints_on_a_whole_list_are_told(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("parts = []\n[task]\nkind = 'sums'\n")
    expected = f"{path}:1: parts is []; expected a list of at least 1 table."
    assert mistake(path) == expected


def test_files_that_are_not_there_or_not_toml(file, tmp_path):
    assert mistake(Path("x/a.toml")).startswith("x/a.toml: cannot be read: ")
    assert mistake(Path(".")).startswith(".: cannot be read: ")
    file.write_text("steps = 3\nname 4\n")
    assert mistake(file) == (
        "grpo.toml:2: not valid TOML: Expected '=' after a key in a key/value pair."
    )
    file.write_text("steps = [3,\n")
    assert mistake(file).startswith("grpo.toml:2: not valid TOML: ")
    file.write_bytes(b"name = '\xff'")
    assert mistake(file).startswith("grpo.toml: cannot be read: ")


def test_a_rule_across_values_is_told_at_its_table(tmp_path):
    class Range(Struct, frozen=True):
        low: int = 0
        high: int = 1

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError(f"low {self.low} is above high {self.high}")

    # Hints of a class inside a function are looked up where it was made.
    whole = msgspec.defstruct("Whole", [("ranges", tuple[Range, ...], ())], frozen=True)
    path = tmp_path / "a.toml"
    path.write_text("[[ranges]]\nlow = 7\n\n[[ranges]]\nlow = 5\n")
    with pytest.raises(UserError) as caught:
        load(whole, path)
    assert str(caught.value).splitlines() == [
        f"{path}:1: ranges.0: low 7 is above high 1.",
        f"{path}:4: ranges.1: low 5 is above high 1.",
    ]


def test_line_numbers_follow_tables_lists_and_long_values():
    text = FILE + '\n[[parts]]\n\n[parts.deep]\nx.y = 1\nz = { w = """\n\n""" }\n[[parts.deep.q]]\n'
    lines = line_numbers(text)
    assert lines["parts",] == 18
    assert lines["parts", 2] == 25
    assert lines["parts", 2, "deep"] == 27
    assert lines["parts", 2, "deep", "x", "y"] == 28
    assert lines["parts", 2, "deep", "z", "w"] == 29
    assert lines["parts", 2, "deep", "q", 0] == 32


def test_the_hash_follows_values_and_not_their_origin(file):
    one = load(Settings, file)
    two = load(Settings, file, ["steps=4", "limit=inf"])
    three = load(Settings, file, ["steps=5", "optimiser.note=none"])
    assert one.hash == two.hash
    assert one.hash != three.hash
    assert one.digest(["steps", "optimiser."]) == three.digest(["steps", "optimiser."])
    assert len(one.hash) == 64
    assert three.changes(one.flat()) == [
        "steps: 4 -> 5",
        'optimiser.note: "two\\nlines = 3\\n" -> "none"',
    ]
    assert three.changes(one.flat(), ["optimiser."]) == ["steps: 4 -> 5"]


def test_changes_survive_json(file):
    resolved = load(Settings, file)
    stored = msgspec.json.decode(msgspec.json.encode(resolved.flat()))
    assert resolved.changes(stored) == []
    del stored["steps"]
    assert resolved.changes(stored | {"old": 1}) == ["old: 1 -> absent", "steps: absent -> 4"]


def test_a_setting_younger_than_the_stored_config_is_no_change(file):
    resolved = load(Settings, file)
    young = next(key for key, origin in resolved.origins.items() if origin == "default")
    stored = {key: value for key, value in resolved.flat().items() if key != young}
    assert resolved.changes(stored) == []


def test_a_mapping_is_a_source_too():
    resolved = load(Settings, {"task": {"kind": "file", "path": "x"}, "parts": [{"weight": 2}]})
    assert resolved.value.parts == (Part(weight=2.0),)
    assert resolved.origins["parts.0.weight"] == "mapping"


def test_the_rendered_config_is_toml_with_origins(file):
    resolved = load(Settings, file, ["optimiser.warmup=none"])
    text = render(resolved)
    assert text.startswith("steps = 4  # grpo.toml:2\n")
    assert "[optimiser]\nlearning_rate = 1.0  # grpo.toml:12\n" in text
    assert 'warmup = "none"  # command line\n' in text
    assert '[[parts]]\nname = "b"  # grpo.toml:22\nweight = 3.0  # grpo.toml:23\n' in text
    again = file.with_name("again.toml")
    again.write_text(text)
    assert load(Settings, again).value == resolved.value
    assert load(Settings, again).hash == resolved.hash
