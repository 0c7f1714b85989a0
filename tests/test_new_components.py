"""Adding a component touches two files: its own, and the list of its kind.

A copy of the package gets a toy of every kind. One process then uses all of them as a user would:
in a recipe file, in `burnish methods`, in a training run, and by a misspelt name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import burnish

ADVANTAGE = '''
"""Advantage `above_median`: each rollout against the median of the batch."""

from __future__ import annotations

from burnish.policy.base import Component
from burnish.policy.batch import Estimate, RewardBatch
from burnish.policy.groups import weighted_sum


class AboveMedian(Component, frozen=True, tag="above_median"):
    """The weighted sum minus its median over the batch, times `scale`."""

    scale: float = 1.0

    def estimate(self, batch: RewardBatch) -> Estimate:
        """The sum minus the median."""
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        values_B = self.scale * (total_B - total_B.nanmedian()).nan_to_num(nan=0.0)
        return Estimate(values_B, batch.rewards_BK, ~total_B.isnan())
'''
REWARD = '''
"""How much of a response is vowels?"""

from __future__ import annotations

from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck


class VowelsConfig(CheckConfig, frozen=True, tag="vowels"):
    """The share of vowels in the response, times `scale`."""

    scale: float = 1.0


class Vowels(RuleCheck[VowelsConfig]):
    """Counts."""

    def judge(self, task: Task, response: Response) -> Reward:
        count = sum(letter in "aeiou" for letter in response.text)
        value = self.config.scale * count / max(1, len(response.text))
        return self.decided(value, f"{count} vowels")
'''
TASK = '''
"""Task `spelling`: spell a word."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from burnish.records import Message, Task
from burnish.tasks.base import FiniteTasks, TaskSettings


class Spelling(TaskSettings, frozen=True, kw_only=True, tag="spelling"):
    """Words to spell, `words` of them."""

    words: Annotated[int, Meta(ge=2)] = 8

    def build(self, seed: int, root: Path) -> FiniteTasks:
        tasks = [
            Task(f"word-{i}", (Message("user", f"Spell {word}."),), {"answer": word})
            for i, word in enumerate("abcdefghijklmnop"[k : k + 3] for k in range(self.words))
        ]
        fields, name = frozenset({"answer"}), f"spelling {self.words}"
        return FiniteTasks("spelling", fields, name, seed, tuple(tasks[1:]), tuple(tasks[:1]))
'''
JUDGE = '''
"""Judge `length_fan`: counts the letters and asks nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.records import Response, Reward, Task
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.scorer import Scope, Scorer


class Settings(Options, frozen=True, kw_only=True):
    """The letter that is counted."""

    letter: str = "e"


class LengthFan:
    scope, name, needs, fingerprint = Scope.POINT, "length_fan", frozenset(), "length_fan-1"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return [Reward(self.name, float(one.text.count(self.settings.letter))) for one in responses]


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    return LengthFan(read_options("length_fan", options, Settings))
'''
COMMAND = '''
"""`burnish greet`: says hello."""

from __future__ import annotations

from burnish.cli.console import say


def greet(name: str = "you") -> int:
    """Say hello to somebody."""
    say(f"hello {name}")
    return 0
'''
ALGORITHM = '''
"""Training `one_word`: raise the likelihood of a word after every prompt."""

from __future__ import annotations

from burnish.records import Author, Span, Trajectory
from burnish.training.algorithm import Algorithm, Loss
from burnish.training.packing import token_scores


class OneWord(Algorithm):
    def __init__(self, setup, settings):
        self.setup, self.settings = setup, settings

    def batch(self, step):
        tokenizer = self.setup.trainable.loaded.tokenizer
        answer = tuple(tokenizer.encode(self.settings.word))
        prompts = [tokenizer.render(task.messages) for task in self.setup.cursor(self.setup.data.tasks).take(2)]
        return [
            Trajectory(f"{step}.{i}", "word", str(i), (
                Span(Author.PROMPT, tuple(prompt)),
                Span(Author.MODEL, answer, (0.0,) * len(answer), trainable=True),
            ), self.settings.word)
            for i, prompt in enumerate(prompts)
        ]

    def micro_batches(self, batch, tokens):
        for packed in self.setup.batches.split(batch, tokens=tokens):
            yield packed, [batch[i].id for i in packed.members], len(batch)

    def loss(self, model, micro):
        packed, ids, count = micro
        total = -token_scores(model, packed, 1.0).logp_BT.sum() / count
        return Loss(total, ids, {"word": total.detach()})


ALGORITHM = OneWord
'''
TOOL = '''
def shout(text: str) -> str:
    """Say it loud.

    Args:
        text: what is said
    """
    return text.upper()
'''


class Toy(NamedTuple):
    """One kind of component: its module, and what a person types into the list of its kind."""

    module: str
    source: str
    listed_in: str
    edits: tuple[tuple[str, str], ...]
    """Text of the list, and the same with the toy in it."""


TOYS = {
    "advantage": Toy(
        "policy/above_median.py",
        ADVANTAGE,
        "policy/components.py",
        (
            (
                "\nAdvantage = ",
                "\nfrom burnish.policy.above_median import AboveMedian\nAdvantage = AboveMedian | ",
            ),
        ),
    ),
    "reward": Toy(
        "rewards/checks/vowels.py",
        REWARD,
        "rewards/config.py",
        (
            (
                "from burnish.rewards.combine",
                "from burnish.rewards.checks.vowels import VowelsConfig\nfrom burnish.rewards.combine",
            ),
            ("\nRewardConfig = (\n", "\nRewardConfig = (\n    VowelsConfig |\n"),
        ),
    ),
    "task": Toy(
        "tasks/spelling.py",
        TASK,
        "tasks/config.py",
        (
            (
                "\nTaskConfig = ",
                "\nfrom burnish.tasks.spelling import Spelling\nTaskConfig = Spelling | ",
            ),
        ),
    ),
    "judge": Toy(
        "rewards/judges/length_fan.py",
        JUDGE,
        "rewards/judges/build.py",
        (
            (
                "\nJUDGES = {\n",
                '\nJUDGES = {\n    "length_fan": "burnish.rewards.judges.length_fan:build",\n',
            ),
        ),
    ),
    "command": Toy(
        "cli/greet.py",
        COMMAND,
        "cli/app.py",
        (
            (
                "\nCOMMANDS = (\n",
                '\nCOMMANDS = (\n    LazyCommand("greet", "greet:greet", "Say hello to somebody."),\n',
            ),
        ),
    ),
    "algorithm": Toy(
        "training/algorithms/one_word.py",
        ALGORITHM,
        "config/train_kinds.py",
        (
            (
                "\nTrain = ",
                '\nclass OneWordTrain(TrainSection, frozen=True, tag="one_word"):\n'
                '    """Raise the likelihood of a word."""\n\n    word: str = "yes"\n\n\n'
                "Train = OneWordTrain | ",
            ),
        ),
    ),
}

RECIPE = """# burnish train toy
# A toy of every kind.
steps = 1

[model]
path = "tiny"
device = "cpu"
dtype = "float32"
threads = 1

[task]
kind = "spelling"
words = 6

[[rewards]]
kind = "vowels"
scale = 2.0

[[rewards]]
kind = "judge"
with = "length_fan"
model = "tiny"
options = { letter = "x" }

[policy]
advantage = { kind = "above_median", scale = 2.0 }

[rollout]
kind = "env"
tools = [{ path = "loud.py:shout" }]
prompts = 2
samples = 2
max_tokens = 4

[evaluation]
prompts = 1
"""

USE = """
import contextlib, io, json, sys
from pathlib import Path
from burnish.cli.entry import run

def typed(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(word) for word in words])
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}

found = {" ".join(words): typed(*words) for words in json.loads(sys.argv[1])}

import anyio, torch
from burnish.config.recipes import find_recipe
from burnish.config import Config, load
from burnish.lm import load_model
from burnish.policy import RewardBatch, advantages
from burnish.rewards.config import build_all
from burnish.records import Message, Response, Task
from burnish.store import RunStore

config = load(Config, find_recipe("toy")).value
rewards_BK = torch.tensor([[1.0], [5.0], [2.0]], dtype=torch.float64)
one = torch.ones(3)
batch = RewardBatch(rewards_BK, torch.ones(1), torch.zeros(3).long(), one, one == 0)
scorer = build_all(config.rewards)
task = Task("t", (Message("user", "?"),))
(reward,) = anyio.run(scorer.score, task, [Response("r", "xaxe")])

def metrics(name):
    with RunStore.open(Path("runs") / name, read_only=True) as store:
        return sorted(store.metrics()), [s.task.prompt for s in store.samples()], store.status()

found["advantages"] = advantages(config.policy, batch).values_B.tolist()
found["rewards"] = {part.name: part.value for part in reward.parts}
found["policy run"], found["word run"] = metrics("toy"), metrics("word")
with RunStore.open(Path("runs") / "toy", read_only=True) as store:
    item = next(iter(store.samples(split="train"))).trajectory
found["opening"] = load_model("tiny").tokenizer.decode(list(item.token_ids[: item.prompt_length]))
print(json.dumps(found, default=str))
"""

SETTINGS = {
    "advantage": "policy.advantage.kind=above_meadian",
    "reward": 'rewards.0={ kind = "vowls" }',
    "task": "task.kind=speling",
    "judge": 'rewards.1={ kind = "judge", with = "lenght_fan", model = "tiny" }',
    "algorithm": "train.kind=one_wrd",
    "tool": 'rollout.tools=[{ path = "burnish/_recipes/loud.py:shuot" }]',
}
"""Misspelt names."""
COMMANDS = [
    ["methods", "toy", "--json"],
    ["train", "toy", "--print-config"],
    ["--help"],
    ["greet", "--name", "Ada"],
    ["gret"],
    ["train", "toy", "run.name=toy", "--json"],
    ["train", "toy", "run.name=word", "train.kind=one_word", "train.word=no", "--json"],
    *(["train", "toy", setting] for setting in SETTINGS.values()),
]


def add(package: Path, toy: Toy) -> set[str]:
    """Write the module and its lines into the list; the files that were touched."""
    (package / toy.module).write_text(toy.source.lstrip())
    listing = package / toy.listed_in
    text = listing.read_text()
    for old, new in toy.edits:
        assert text.count(old) == 1, f"{toy.listed_in} has no single place {old!r}"
        text = text.replace(old, new)
    listing.write_text(text)
    return {toy.module, toy.listed_in}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process with the toys in its package saw."""
    folder = tmp_path_factory.mktemp("toys")
    package = folder / "burnish"
    # With the compiled files, which stay valid because times are kept.
    shutil.copytree(Path(burnish.__file__).parent, package)
    touched = [add(package, toy) for toy in TOYS.values()]
    assert [len(files) for files in touched] == [2] * len(TOYS)
    recipes = package / "_recipes"
    shutil.rmtree(recipes, ignore_errors=True)
    recipes.mkdir()
    (recipes / "toy.toml").write_text(RECIPE)
    (recipes / "loud.py").write_text(TOOL)
    done = subprocess.run(
        [sys.executable, "-c", USE, json.dumps(COMMANDS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_advantage_rule_computes_and_is_named_by_methods(used: dict[str, Any]) -> None:
    assert used["advantages"] == [-2.0, 6.0, 0.0]
    card = json.loads(used["methods toy --json"]["out"])
    assert card["differs"]["advantage"] == "above_median scale=2.0"


def test_reward_and_judge_score(used: dict[str, Any]) -> None:
    assert used["rewards"] == {"vowels": 1.0, "length_fan": 2.0}


def test_the_settings_of_each_are_in_the_printed_config(used: dict[str, Any]) -> None:
    shown = used["train toy --print-config"]["out"]
    for word in ("spelling", "vowels", "length_fan", "above_median", "loud.py:shout"):
        assert word in shown


def test_the_command_runs_and_is_in_the_help(used: dict[str, Any]) -> None:
    assert used["greet --name Ada"] == {"code": 0, "out": "hello Ada\n", "err": ""}
    assert "Say hello to somebody." in used["--help"]["out"]


def test_a_run_uses_all_of_them(used: dict[str, Any]) -> None:
    assert used["train toy run.name=toy --json"]["code"] == 0
    names, prompts, status = used["policy run"]
    assert status == "finished"
    assert {"reward/vowels/mean", "reward/length_fan/mean"} <= set(names)
    assert "shout" in used["opening"], "the tool is shown to the model"
    assert all(prompt.startswith("Spell ") for prompt in prompts)


def test_the_algorithm_trains(used: dict[str, Any]) -> None:
    run = used["train toy run.name=word train.kind=one_word train.word=no --json"]
    assert run["code"] == 0, run
    names, _, status = used["word run"]
    assert status == "finished"
    assert "loss/word" in names


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("advantage", "above_median"),
        ("reward", "vowels"),
        ("task", "spelling"),
        ("judge", "length_fan"),
        ("algorithm", "one_word"),
        ("tool", "shout"),
    ],
)
def test_a_misspelt_name_is_told_the_right_one(used: dict[str, Any], kind: str, meant: str) -> None:
    shown = used[f"train toy {SETTINGS[kind]}"]
    assert shown["code"] == 2
    assert f"Did you mean '{meant}'?" in shown["err"]


def test_a_misspelt_command_is_told_the_right_one(used: dict[str, Any]) -> None:
    assert used["gret"]["code"] == 2
    assert "greet" in used["gret"]["err"]
