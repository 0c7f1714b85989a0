"""Config files to task sets."""

import tomllib

import msgspec
import pytest

from burnish.errors import UserError
from burnish.tasks import Arithmetic, Part, TaskConfig, TaskSet, build
from burnish.tasks.base import TaskSettings


def decode(text: str):
    return msgspec.convert(tomllib.loads(text), TaskConfig)


def test_arithmetic_from_toml():
    config = decode("""
        kind = "arithmetic"
        held_out_share = 0.25
        [[mix]]
        operators = ["+"]
        weight = 2
        [[mix]]
        operators = ["*"]
        digits = [2, 1]
    """)
    assert config == Arithmetic(
        held_out_share=0.25,
        mix=(Part(weight=2), Part(operators=("*",), digits=(2, 1))),
    )
    assert isinstance(build(config, seed=1), TaskSet)


def test_a_new_kind_of_task_builds_itself(tmp_path):
    class Echo(TaskSettings, frozen=True, kw_only=True, tag="echo"):
        word: str

        def build(self, seed, root):
            return (self.word, seed, root)

    config = msgspec.convert({"kind": "echo", "word": "hello"}, TaskConfig | Echo)
    assert build(config, 3, tmp_path) == ("hello", 3, tmp_path)


def test_file_from_toml_starts_at_root(tmp_path):
    (tmp_path / "d.csv").write_text("q,a,part\n1+1,2,train\n1+2,3,test\n")
    config = decode("""
        kind = "file"
        path = "d.csv"
        prompt = "q"
        fields = { answer = "a" }
        held_out = { by = "column", column = "part", values = ["test"] }
    """)
    tasks = build(config, seed=0, root=tmp_path)
    assert tasks.train(0).fields == {"answer": "2"}
    assert [task.prompt for task in tasks.held_out()] == ["1+2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "arithmetics"', "Invalid value 'arithmetics'"),
        ('kind = "arithmetic"\nlevle = 2', "unknown field `levle`"),
        ('kind = "arithmetic"\nlevel = 7', "<= 6"),
        ('kind = "arithmetic"\nheld_out_share = 1.0', "<= 0.9"),
        ('kind = "arithmetic"\nmix = [{ operators = ["/"] }]', "Invalid enum value '/'"),
        ('kind = "gsm8k"\npath = ""', "length >= 1"),
        ('kind = "math"\npath = "x"\nprompt = "y"', "unknown field `prompt`"),
        ('kind = "file"\npath = "x"\nheld_out = { by = "magic" }', "Invalid value 'magic'"),
        ('kind = "reasoning_gym"', "missing required field `dataset`"),
    ],
)
def test_the_schema_is_closed(text, message):
    with pytest.raises(msgspec.ValidationError) as caught:
        decode(text)
    assert message in str(caught.value)


def test_configs_made_in_python_are_checked_too():
    with pytest.raises(UserError, match=r"Expected `int` <= 6 - at `\$.level`"):
        build(Arithmetic(level=9), seed=0)
