"""The gallery of recipes, generated from the code: `docs/gallery.md`.

    python docs/make_gallery.py

Every block is read from the recipe itself, its card, and the code of `burnish try`: the same task,
the same rewards, a scripted model. A test compares the page with what this script makes.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio
import msgspec

from burnish.bench.scripted_answers import (
    Played,
    answer_fields,
    play_all,
    scripts_for,
    tokenizer_for,
)
from burnish.cli.drawing import parts_text
from burnish.cli.methods import BASELINE, differences, find_card, recipe_of
from burnish.config import Config
from burnish.config.recipes import RecipeCard, all_recipes, read_card, resolve
from burnish.config.schema import CodecTrain, PretrainTrain, SpeechTrain
from burnish.lm.base import Sampling
from burnish.policy.recipe import Recipe
from burnish.records import Reward, Task
from burnish.rewards.config import build_all
from burnish.tasks.config import build as build_tasks
from burnish.tasks.corpus import Corpus
from burnish.tasks.sounds import UtteranceCorpus

PAGE = Path(__file__).resolve().parent / "gallery.md"
WIDTH = 160
"""Characters of a prompt or an answer that are shown."""
HEAD = """# Gallery: every recipe that ships

Made by `python docs/make_gallery.py` from the recipes, their cards and the code of `burnish try`. Prompts and rewards are real: one task of each recipe, answered by a script and scored by the recipe's own rewards. "right" is the label alone: where an answer needs a special form, only the expert has it. What each component does: [recipes.md](recipes.md).
"""


def main() -> int:
    """Write the page."""
    PAGE.write_text(gallery(), encoding="utf-8")
    return 0


def gallery() -> str:
    """The whole page as Markdown."""
    cards = {name: read_card(path) for name, path in all_recipes().items()}
    base = recipe_of(cards[BASELINE].policy, BASELINE)
    index = " · ".join(f"[{name}](#{name})" for name in cards)
    return "\n".join([HEAD, index, "", *(block(card, base) for card in cards.values())])


def block(card: RecipeCard, base: Recipe) -> str:
    """One recipe: what it is, how it is run, its components, its effect, and what answers earn."""
    config = resolve([str(card.path)]).resolved.value
    method = find_card(card.name)
    changed = "; ".join(f"{slot} `{text}`" for slot, text in differences(card, base).items())
    rewards = ", ".join(f"`{name(reward)}`" for reward in config.rewards) or "none"
    lines = [
        f"## {card.name}\n",
        card.description + (f"\n\nPaper: {card.paper}" if card.paper else ""),
        f"\n```\n{card.command}\n```\n",
        f"- Model `{config.model.path}`, task `{task_name(config)}`, rewards {rewards}",
        f"- Components that differ from GRPO's: {changed or 'none'}",
    ]
    if method:
        lines.append(f"- Card: [methods/{method.path.name}](methods/{method.path.name})")
        lines.append(f"- Measured: {method.effect}" if method.effect else "- Not measured yet")
    return "\n".join([*lines, "", example(card, config), ""])


def example(card: RecipeCard, config: Config) -> str:
    """One task and what scripted answers to it earn, as `burnish try` has it."""
    root = card.path.resolve().parent
    if isinstance(config.train, PretrainTrain):
        train = config.train
        text = next(Corpus(train.sources, train.column, train.separator, root).documents())
        return f"> {shown(text)}\n\nTrained on text; nothing is asked and nothing is scored."
    if isinstance(config.train, CodecTrain):
        return "Trained on sounds; nothing is asked and nothing is scored."
    if isinstance(config.train, SpeechTrain):
        train = config.train
        corpus = UtteranceCorpus(train.sources, 16_000, train.column, root)
        text = next(corpus.clips()).text
        return f"> {shown(text)}\n\nTrained on recordings with their texts; nothing is asked and nothing is scored."
    tasks = build_tasks(config.task, config.run.seed, root)
    if not config.rewards:
        (task,) = tasks.sample(1)
        asked = "> " + shown(task.prompt).replace("<", "\\<")
        return f"{asked}\n\nTrained on given answers; nothing is scored."
    scorer = build_all(config.rewards, base=root)
    fields = answer_fields(scorer), config.experts.field
    (task,), (lines,) = scripts_for(tasks, 1, *fields)
    asked = "> " + shown(task.prompt).replace("<", "\\<")
    if any(kind_of(reward) == "judge" for reward in config.rewards):
        return f"{asked}\n\nWhat an answer earns is up to the judge that the recipe names."
    # One token a byte and room for all of them: the page must not depend on what is cached here.
    sampling, tokenizer = Sampling(max_tokens=4096), tokenizer_for("tiny")
    seconds = config.rollout.score_timeout_s
    rollout = config.rollout.build_evaluation(root)
    play = partial(play_all, [told(task)], [lines], scorer, tokenizer, sampling, seconds, rollout)
    (played,) = anyio.run(play)
    return f"{asked}\n\n{table(played)}"


def told(task: Task) -> Task:
    """The task with the marks of its images in their place: the tokenizer of this page reads text."""
    messages = tuple(msgspec.structs.replace(one, content=one.text) for one in task.messages)
    return msgspec.structs.replace(task, messages=messages)


def table(played: Played) -> str:
    """Answers and their rewards."""
    rows = ["| | answer | earns | parts |", "|---|---|---|---|"]
    for line, reward in zip(played.lines, played.rewards, strict=True):
        parts = parts_text(reward) if len(reward.parts) > 1 else ""
        text = f"`{shown(line.text)}`" if line.text else ""
        rows.append(f"| {line.label} | {text} | {value(reward)} | {parts} |")
    return "\n".join(rows)


def value(reward: Reward) -> str:
    """The reward's number, or why it has none."""
    return f"{reward.value:.3f}" if reward.value is not None else reward.status.value


def shown(text: str) -> str:
    """One line of Markdown that is read as it is written."""
    line = " ".join(text.split())
    cut = line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
    return cut.replace("|", "\\|").replace("`", "'")


def name(reward: object) -> str:
    """A reward by the name it has in a run."""
    return str(getattr(reward, "name", "") or kind_of(reward))


def task_name(config: Config) -> str:
    """The task's kind, and for a function which one."""
    path = str(getattr(config.task, "path", "") or "")
    return f"{kind_of(config.task)} {path}".strip()


def kind_of(part: object) -> str:
    """The `kind` of a task or reward in a recipe."""
    return str(type(part).__struct_config__.tag)  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
