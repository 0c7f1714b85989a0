"""Config files to task sets."""

import tomllib

import msgspec

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
        held_out_share=0.25, mix=(Part(weight=2), Part(operators=("*",), digits=(2, 1)))
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
