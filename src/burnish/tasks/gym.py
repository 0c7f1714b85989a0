"""reasoning-gym generators as tasks, and their scorers as a reward.

A task carries the recipe of its item, not the item itself: many scorers read tuples, arrays or integer
keys that JSON does not keep (after a round trip arc_agi scores its own right answers 0.05).

Some scorers evaluate the response as Python. Text from a model is data here: such a scorer sees a
response only where a strict grammar (`GRAMMARS`) shows it to be harmless; else `gym_score` refuses.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from burnish.arguments import refused
from burnish.boundary import Name, PositiveInt
from burnish.errors import RewardError, UserError, did_you_mean
from burnish.records import Message, Task
from burnish.seeds import digest
from burnish.tasks.base import TaskSettings, epoch_order, in_epoch

REFUSED = {
    "composite": "it mixes datasets; use one task set for each",
    "codeio": "it runs code that a model wrote inside this process",
}

_SUM = r"[\d+\-/*() ]{1,200}"
_LISTS = r"(?!(?s:.*)\bfor\b)[\w\s,'\"\[\]-]{1,5000}"
_FACTOR = r"(?:\d{1,12}|[a-z])(?:\*\*\d{1,2}(?!\d))?"
_TERM = rf"{_FACTOR}(?: ?\* ?{_FACTOR}){{0,8}}"
GRAMMARS = {
    "countdown": re.compile(rf"(?!.*\*\s*\*){_SUM}"),
    "puzzle24": re.compile(rf"(?!.*\*\s*\*){_SUM}"),
    "polynomial_multiplication": re.compile(rf"-?{_TERM}(?: ?[+-] ?{_TERM}){{0,60}}"),
    "coin_flip": re.compile(r"\d{1,20}(?:\.\d{1,20})?(?: ?/ ?\d{1,20})?"),
    "string_insertion": re.compile(_LISTS),
    "spiral_matrix": re.compile(_LISTS),
    "binary_matrix": re.compile(_LISTS),
    "n_queens": re.compile(_LISTS),
}
"""What a response may look like before a scorer that evaluates it, or (coin_flip) spends memory
on an exponent of its choice, gets to see it."""

OWN_TEXT = {"basic_arithmetic", "bitwise_arithmetic", "propositional_logic"}
"""Datasets whose module evaluates what it generated itself, and never a response."""


def _is_plan(text: str) -> bool:
    """A JSON list of objects that give each agent, named by two coordinates, its move as text."""
    steps = msgspec.json.decode(text, type=list[dict[str, str]])
    return all(len(re.findall(r"\d+", agent)) >= 2 for step in steps for agent in step)


READABLE: dict[str, Callable[[str], object]] = {
    "prime_factorization": re.compile(r"\s*\d{1,99}\s*(?:×\s*\d{1,99}\s*)*").fullmatch,
    "game_of_life": lambda text: isinstance(msgspec.json.decode(text), list),
    "boxnet": _is_plan,
}
"""What the question asks a response to look like, for scorers that break on anything else instead
of giving it 0. Where a scorer breaks on a response that looks right, there is no score."""

_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify|parse_latex)\(\s*(?!entry\[)")


class ReasoningGym(TaskSettings, frozen=True, kw_only=True, tag="reasoning_gym"):
    """Items of one reasoning-gym dataset."""

    dataset: Name
    """Name of the dataset in reasoning-gym."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Settings of the dataset's own config."""
    name: str = ""
    """What the task is called in runs; the dataset's name where empty."""
    data_seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    """Seed of the items; the run's seed only orders them."""
    train_size: PositiveInt = 10_000
    """Items to train on."""
    held_out_size: Annotated[int, Meta(ge=0, le=100_000)] = 100
    """Items that are never trained on."""
    system: str = ""
    """A system message before each question."""
    instruction: str = ""
    """Follows each question, for example to ask for <answer> tags."""

    def build(self, seed: int, root: Path) -> GymTasks:
        return GymTasks(self, seed)


class Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    """All that is needed to generate one item again; the `entry` field of a task."""

    dataset: str
    options: dict[str, Any]
    seed: int
    size: int
    index: int
    question: str
    """Digest of the question, to notice a generator that has changed."""


class GymTasks:
    """Held-out items are the first indices, training items the rest, less repeated questions."""

    fields = frozenset({"question", "answer", "metadata", "entry"})

    def __init__(self, config: ReasoningGym, seed: int) -> None:
        self.config = config
        self.name = config.name or config.dataset
        self._seed = seed
        self._size = config.held_out_size + config.train_size
        self._options = msgspec.json.encode(config.options, order="deterministic")
        dataset_class, _ = _registered(config.dataset)
        self._check_repeatable()
        self.notes: tuple[str, ...] = ()
        if _refusal(config.dataset, dataset_class):
            self.notes = (
                f"{self.name}: gym_score will refuse, because the dataset's scorer evaluates the "
                "response as code; use another reward.",
            )

    @property
    def train_size(self) -> int:
        return self.config.train_size

    @property
    def fingerprint(self) -> str:
        settings = msgspec.json.encode(self.config, order="deterministic")
        return digest("reasoning_gym", settings, self._item(0)["question"])

    def train(self, index: int) -> Task:
        epoch, position = divmod(index, self.train_size)
        start = epoch_order(self._seed, epoch, self.train_size)[position]
        for step in range(self.train_size):
            item_index = self.config.held_out_size + (start + step) % self.train_size
            if self._item(item_index)["question"] not in self._held_out_questions:
                task_id = f"{self.name}/{item_index}"
                # A skipped item makes its successor appear twice: the position keeps ids unique.
                task = self._task(task_id if step == 0 else f"{task_id}+{position}", item_index)
                return in_epoch(task, epoch)
        raise UserError(f"tasks '{self.name}': all items are held out; lower held_out_size.")

    def held_out(self, limit: int | None = None) -> list[Task]:
        indices = list(self._held_out_questions.values())[:limit]
        return [self._task(f"{self.name}/{index}", index) for index in indices]

    def sample(self, k: int) -> list[Task]:
        return [self.train(index) for index in range(min(k, self.train_size))]

    @cached_property
    def _held_out_questions(self) -> dict[str, int]:
        questions: dict[str, int] = {}
        for index in range(self.config.held_out_size):
            questions.setdefault(self._item(index)["question"], index)
        return questions

    def _item(self, index: int) -> dict[str, Any]:
        return _item(self.config.dataset, self._options, self.config.data_seed, self._size, index)

    def _task(self, task_id: str, index: int) -> Task:
        item, config = self._item(index), self.config
        question = item["question"]
        text = f"{question.rstrip()}\n{config.instruction}" if config.instruction else question
        recipe = Recipe(
            dataset=config.dataset,
            options=config.options,
            seed=config.data_seed,
            size=self._size,
            index=index,
            question=digest(question),
        )
        turns = (Message("system", config.system),) if config.system else ()
        return Task(
            id=task_id,
            messages=(*turns, Message("user", text)),
            fields={
                "question": question,
                "answer": item["answer"],
                "metadata": msgspec.to_builtins(item["metadata"], str_keys=True, enc_hook=str),
                "entry": msgspec.to_builtins(recipe),
            },
            labels=("answer", "metadata", "entry"),
            source=self.name,
        )

    def _check_repeatable(self) -> None:
        """Exact resume needs items that follow from their index alone."""
        args = (self.config.dataset, self._options, self.config.data_seed, self._size)
        if any(_dataset(*args)[k]["question"] != self._item(k)["question"] for k in range(4)):
            raise UserError(f"tasks '{self.name}': other items for the same seed; choose another.")


def gym_score(text: str, entry: Mapping[str, Any]) -> float | None:
    """The dataset's own score of a response, as a reward function.

    Takes what stands in the last `<answer>` tags, or the whole response without them. None where
    the scorer gives no finite number. A response scores 0 where it is outside the grammar of a
    scorer that evaluates text, or where the scorer breaks on it and `READABLE` says that it has
    another form than was asked for. Any other exception of the scorer is passed on: no score.
    """
    recipe = msgspec.convert(entry, Recipe)
    options = msgspec.json.encode(recipe.options, order="deterministic")
    args = (recipe.dataset, options, recipe.seed, recipe.size)
    refusal = _refusal(recipe.dataset, _registered(recipe.dataset)[0])
    if refusal:
        raise RewardError(f"gym_score: dataset '{recipe.dataset}': {refusal}")
    item = _item(*args, recipe.index)
    if digest(item["question"]) != recipe.question:
        raise RewardError(f"gym_score: '{recipe.dataset}' asks another question now.")
    answer = _answer_in(text)
    grammar = GRAMMARS.get(recipe.dataset)
    if grammar is not None and not grammar.fullmatch(answer):
        return 0.0
    return _scored(recipe.dataset, _dataset(*args), answer, item)


def _answer_in(text: str) -> str:
    """What stands in the last pair of <answer> tags, or the whole text without such a pair."""
    start = text.rfind("<answer>", 0, max(0, text.rfind("</answer>")))
    if start < 0:
        return text.strip()
    start += len("<answer>")
    return text[start : text.find("</answer>", start)].strip()


def _scored(name: str, dataset: Any, answer: str, item: dict[str, Any]) -> float | None:
    try:
        score = float(dataset.score_answer(answer, deepcopy(item)))
    except Exception:  # boundary: scorers of reasoning-gym raise on what they cannot read
        if name in READABLE and not _is_readable(name, answer):
            return 0.0
        raise
    return score if math.isfinite(score) else None


def _is_readable(name: str, answer: str) -> bool:
    try:
        return bool(READABLE[name](answer))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


@lru_cache(maxsize=32)
def _dataset(name: str, options: bytes, seed: int, size: int) -> Any:
    dataset_class, config_class = _registered(name)
    given = msgspec.json.decode(options)
    known = {field.name for field in fields(config_class)} - {"seed", "size"}
    if unknown := next((key for key in given if key not in known), ""):
        raise refused("options", unknown, f"some of {', '.join(sorted(known))}")
    try:
        config = config_class(seed=seed, size=size, **given)
        if hasattr(config, "validate"):
            config.validate()
        return dataset_class(config=config)
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"dataset '{name}' refuses options {given}: {error}.") from error


@lru_cache(maxsize=4096)
def _item(name: str, options: bytes, seed: int, size: int, index: int) -> dict[str, Any]:
    """One item; cached because some generators take a second and a whole group asks for it."""
    item: dict[str, Any] = _dataset(name, options, seed, size)[index]
    return item


def _registered(name: str) -> tuple[Any, Any]:
    try:
        import reasoning_gym  # noqa: F401  (registers the datasets)
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise UserError("reasoning-gym is missing. Run: pip install 'burnish[gym]'") from None
    if name in REFUSED:
        raise UserError(f"reasoning-gym dataset '{name}' cannot be used: {REFUSED[name]}.")
    if name not in DATASETS:
        raise UserError(f"reasoning-gym has no dataset '{name}'.{did_you_mean(name, DATASETS)}")
    found: tuple[Any, Any] = DATASETS[name]
    return found


@lru_cache(maxsize=256)
def _refusal(name: str, dataset_class: Any) -> str:
    """Why a dataset's scorer must not see responses; empty where it may.

    A scorer may hand the response to a helper, so the whole of its module is searched.
    """
    homes = {inspect.getmodule(dataset_class), inspect.getmodule(dataset_class.score_answer)}
    evaluates = any(home and _EVALUATES.search(inspect.getsource(home)) for home in homes)
    if name in GRAMMARS or name in OWN_TEXT or not evaluates:
        return ""
    return (
        "its scorer evaluates the response as code, and no grammar here shows which responses "
        "are harmless; use another reward"
    )
