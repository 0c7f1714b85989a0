"""What burnish says when something is wrong: every line of `docs/messages.md`, made by doing it.

Each case is a mistake in a small run of the tiny model, typed as a person would type it. Write the
page anew with `python -m lab.messages > docs/messages.md`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "messages.md"

RECIPE = """\
steps = 4

[model]
path = "tiny"
device = "cpu"
threads = 1

[task]
kind = "file"
path = "data.jsonl"
prompt = "question"
fields = { row = "row" }

[[rewards]]
kind = "function"
path = "rewards.py:letters"

[rollout]
prompts = 2
samples = 4
max_tokens = 6

[evaluation]
prompts = 0
"""

HEAD = """\
# What burnish says when something is wrong

One line, no traceback: what, where, got, expected, and the next step. Exit code 2 is something to
change in the input, 3 is a run that a guard stopped. This page is written by
`python -m lab.messages > docs/messages.md`, which makes every one of these mistakes; a
test compares the two. `recipe.toml` is a small run of the tiny model, `rewards.py` and `pieces.py`
hold functions that go wrong.
"""

Edit = Callable[[Path], None]


def nothing(folder: Path) -> None:
    """The mistake is in the words alone."""


class Case(NamedTuple):
    """One mistake: in words, in files, or in both."""

    title: str
    words: tuple[str, ...] = ()
    edit: Edit = nothing
    first: tuple[str, ...] = ()
    """Words that start a run which stops early; the mistake is made when it is continued."""


class Told(NamedTuple):
    """What a person saw."""

    code: int
    text: str


def recipe(old: str, new: str) -> Edit:
    """Change a line of the recipe."""

    def edit(folder: Path) -> None:
        file = folder / "recipe.toml"
        assert old in RECIPE, old
        file.write_text(RECIPE.replace(old, new))

    return edit


def reward(function: str) -> tuple[str, ...]:
    return (f"rewards.0.path=rewards.py:{function}",)


def data(*lines: str) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "data.jsonl").write_text("".join(f"{line}\n" for line in lines))

    return edit


def row(question: str, number: int = 0) -> str:
    return json.dumps({"question": question, "row": number})


def policy(text: str) -> Edit:
    return recipe("[rollout]", f"[policy]\n{text}\n\n[rollout]")


def model(change: Callable[[Path], None]) -> Edit:
    """A copy of the tiny model in `model/`, damaged."""

    def edit(folder: Path) -> None:
        from burnish.lm.new_model import cached_tiny_model

        shutil.copytree(cached_tiny_model(), folder / "model")
        change(folder / "model")

    return edit


def wrong_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def quantised(folder: Path) -> None:
    change_weights(folder, lambda weight: weight.char())


def broken_weight(folder: Path) -> None:
    change_weights(folder, lambda weight: weight * float("inf"))


def change_weights(folder: Path, change: Callable[[Any], Any]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**weights, name: change(weights[name])}, folder / "model.safetensors")


def write_file(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(text)

    return write


def append(name: str, text: str) -> Edit:
    def edit(folder: Path) -> None:
        with (folder / name).open("a") as file:
            file.write(f"\n{text}\n")

    return edit


def cut_checkpoint(folder: Path) -> None:
    os.truncate(folder / "runs/mine/checkpoints/step-000001/trainer/optimiser.safetensors", 1000)


def lose_rows(folder: Path) -> None:
    """What the triggers forbid, as a damaged disk would do it."""
    with contextlib.closing(sqlite3.connect(folder / "runs/mine/run.db")) as connection:
        connection.execute("DROP TRIGGER samples_no_delete")
        connection.execute("DELETE FROM samples WHERE idx > 4")
        connection.commit()


def swap_store(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "runs/mine/run.db")) as connection:
        connection.execute(
            "UPDATE sessions SET pid = 17, started = '2025-01-01T00:00:00.000+00:00'"
        )
        connection.commit()
    about = folder / "runs/mine/config.json"
    changed = {
        **json.loads(about.read_text()),
        "store": "2025-01-02T00:00:00.000+00:00 by process 18",
    }
    about.write_text(json.dumps(changed))


DEEP = "[" * 10_000 + "]" * 10_000
INDEX = "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"
LOOP = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
OWN_MODEL = ("model.path=model",)
TWICE = '[[rewards]]\nkind = "function"\npath = "rewards.py:letters"\n\n[rollout]'

STOPS = ("guards.useless_steps=1", *reward("constant"))
OTHER_DATA = data(*(row(f"other {i}?", i) for i in range(7)))

CASES: dict[str, list[Case]] = {
    "Rewards": [
        Case("A reward returns NaN", reward("nan")),
        Case("A reward returns infinity for some answers", reward("infinite")),
        Case("A reward returns a word", reward("words")),
        Case("A reward returns a dictionary", reward("grader")),
        Case("A group reward returns too few values", reward("too_few")),
        Case("A group reward returns one value for all", reward("one_for_all")),
        Case("A reward returns None for everything", reward("none")),
        Case("A reward always raises", reward("always_raises")),
        Case("A reward raises what is no Exception", reward("raises_base")),
        Case("A reward calls os._exit", reward("ends_the_process")),
        Case("A reward returns a Reward of the wrong types", reward("wrong_types")),
        Case("A reward's file ends the process", edit=append("rewards.py", "raise SystemExit(0)")),
        Case("A reward gives everything the same", (*reward("constant"), "guards.useless_steps=3")),
        Case("A reward asks for fields that the data lacks", reward("wants_more")),
        Case("A reward takes one answer and the group", reward("takes_both")),
        Case("A reward has a parameter without a name", reward("positional")),
        Case("A reward's name is misspelt", reward("leters")),
        Case("A reward's file is not there", ("rewards.0.path=reward.py:letters",)),
        Case("Two rewards have one name", edit=recipe("[rollout]", TWICE)),
        Case("Every reward has weight 0", ("rewards.0.weight=0",)),
    ],
    "Configs": [
        Case("A key is misspelt", ("optimiser.learning_rte=1e-5",)),
        Case("A table is misspelt", edit=recipe("[rollout]", "[rolout]")),
        Case("A value has the wrong type", ("rollout.samples=many",)),
        Case("A value is out of range", ("rollout.temperature=0",)),
        Case("A number is beyond all use", ("optimiser.weight_decay=inf",)),
        Case("A weight of a reward is no number", ("rewards.0.weight=nan",)),
        Case("The run's name is no folder name", ("run.name=../mine",)),
        Case("A number has thousands of digits", edit=recipe("steps = 4", "steps = " + "9" * 5000)),
        Case("A list is nested without measure", edit=recipe("steps = 4", f"steps = {DEEP}")),
        Case("A choice does not exist", ("optimiser.schedule=cosin",)),
        Case(
            "A kind of reward does not exist", edit=recipe('kind = "function"', 'kind = "numerc"')
        ),
        Case("A piece of the recipe does not exist", edit=policy('ratio = "sequnce"')),
        Case(
            "A clip bound makes no sense",
            edit=policy('trust_region = { kind = "static", low = 2.0 }'),
        ),
        Case("The evaluation's part is no reward", ("evaluation.part=correct",)),
        Case("The file is no TOML", edit=recipe("steps = 4", "steps = = 4")),
        Case("A word is no setting", ("steps",)),
        Case("Adapters on layers that are not there", ('model.lora.targets=["query"]',)),
    ],
    "Pieces of your own": [
        Case(
            "An advantage function gives NaN",
            edit=policy('advantage = { kind = "function", path = "pieces.py:nan_advantage" }'),
        ),
        Case(
            "A term of the loss is infinite",
            edit=policy('auxiliary = [{ kind = "function", path = "pieces.py:infinite_term" }]'),
        ),
        Case(
            "A function takes something else",
            edit=policy('advantage = { kind = "function", path = "pieces.py:infinite_term" }'),
        ),
    ],
    "Data": [
        Case("The file is not there", ("task.path=date.jsonl",)),
        Case("A column is not there", ("task.prompt=qestion",)),
        Case("A line is no JSON", edit=data(row("one"), '{"question": ', row("two"))),
        Case("A row is nested without measure", edit=data(row("one"), f'{{"question": {DEEP}}}')),
        Case("The file is empty", edit=data()),
        Case("One prompt is all there is", edit=data(row("one"))),
        Case("A prompt is empty", edit=data(row("one"), row(" "), row("two"))),
        Case(
            "Prompts are longer than allowed",
            ("rollout.max_prompt_tokens=40",),
            data(row("one"), row("x" * 60), row("y" * 70)),
        ),
        Case(
            "A prompt is longer than the model can read",
            ("rollout.max_prompt_tokens=4000",),
            data(row("one" * 600), row("two" * 600)),
        ),
    ],
    "Models": [
        Case("The folder is not there", ("model.path=models",), model(lambda folder: None)),
        Case("The folder has no config", OWN_MODEL, model(lambda f: (f / "config.json").unlink())),
        Case("The weights are pickled", OWN_MODEL, model(pickled)),
        Case(
            "The weights are cut off",
            OWN_MODEL,
            model(lambda f: os.truncate(f / "model.safetensors", 1000)),
        ),
        Case("The weights do not fit the config", OWN_MODEL, model(wrong_shape)),
        Case(
            "The tokenizer is missing", OWN_MODEL, model(lambda f: (f / "tokenizer.json").unlink())
        ),
        Case("The index of the weights has no map", OWN_MODEL, model(write_file(INDEX, "{}"))),
        Case("The weights are quantised", OWN_MODEL, model(quantised)),
        Case("A weight is not finite", OWN_MODEL, model(broken_weight)),
        Case(
            "The chat template loops without end",
            OWN_MODEL,
            model(write_file(TEMPLATE, LOOP)),
        ),
        Case(
            "The chat template calls itself",
            OWN_MODEL,
            model(write_file(TEMPLATE, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")),
        ),
        Case(
            "The chat template divides by zero",
            OWN_MODEL,
            model(write_file(TEMPLATE, "{{ 1 / 0 }}")),
        ),
        Case("The device does not exist", ("model.device=gpu0",)),
    ],
    "Runs": [
        Case("No such recipe", ("train", "recipes.toml")),
        Case("A run is continued with another setting", ("rollout.samples=5",), first=STOPS),
        Case("A run is continued on other data", edit=OTHER_DATA, first=STOPS),
        Case("A checkpoint is cut off", edit=cut_checkpoint, first=STOPS),
        Case("The store has lost rows", edit=lose_rows, first=STOPS),
        Case("The store is that of another run", edit=swap_store, first=STOPS),
        Case("A folder is no crash folder", ("replay", "runs")),
    ],
}


def tell(case: Case, number: int, folder: Path) -> Told:
    """Make the mistake in a fresh folder; what burnish says, its folder's path left out."""
    place = folder / f"case-{number}"
    place.mkdir()
    (place / "recipe.toml").write_text(RECIPE)
    data(*(row(f"item {i}?", i) for i in range(7)))(place)
    shutil.copy(HERE.parent / "tests" / "training" / "reward_functions.py", place / "rewards.py")
    shutil.copy(HERE.parent / "tests" / "training" / "policy_functions.py", place / "pieces.py")
    with working_in(place):
        if case.first:
            _type("train", "recipe.toml", "run.name=mine", *case.first)
        case.edit(place)
        told = _type(*_command(case))
    return Told(told.code, told.text.replace(f"{place.resolve()}/", "").replace(f"{place}/", ""))


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _command(case: Case) -> list[str]:
    if case.words and case.words[0] in ("replay", "train"):
        return list(case.words)
    return ["train", "recipe.toml", "run.name=mine", *case.first, *case.words]


def _type(*words: str) -> Told:
    """A command line in this process: its exit code and what it complains of."""
    from burnish.cli.entry import run

    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(None):
        code = run([*words, "--quiet"] if words[0] == "train" else words)
    return Told(code, err.getvalue().rstrip("\n"))


def all_told() -> dict[str, Told]:
    """Every mistake by its title."""
    # Pieces are loaded once for each path as it is written; each case has its own folder.
    from burnish.policy import plugins

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(case for cases in CASES.values() for case in cases):
            plugins._find.cache_clear()
            found[case.title] = tell(case, number, Path(folder))
    return found


def page(found: dict[str, Told]) -> str:
    """The page as Markdown."""
    lines = [HEAD]
    for heading, cases in CASES.items():
        lines += [f"## {heading}", "", "| what is wrong | what you see | exit |", "|---|---|---|"]
        for case in cases:
            told = found[case.title]
            shown = re.sub(r"\|", r"\\|", told.text.removeprefix("burnish: "))
            lines.append(f"| {case.title} | `` {shown} `` | {told.code} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page(all_told()))
