"""Procedural arithmetic with a difficulty dial.

A question is held out by a hash of itself, the order of a pure sum or product ignored: where
`3 + 5` is held out, neither it nor `5 + 3` is ever trained on or shown as an example.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Name, Positive, Settings
from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.seeds import derive, digest
from burnish.tasks.base import EndlessTasks, TaskSettings, is_held_out

Operator = Literal["+", "-", "*", "//"]
Digits = Annotated[int, Meta(ge=1, le=6)]


class Part(Settings, frozen=True):
    """One kind of question in a mixture."""

    operators: Annotated[tuple[Operator, ...], Meta(min_length=1)] = ("+",)
    """Each gap between two terms draws one of these."""
    digits: Digits | tuple[Digits, ...] = 1
    """Digits of every operand, or one number per term. One digit means 0 to 9."""
    terms: Annotated[int, Meta(ge=2, le=6)] = 2
    """Operands of a question."""
    weight: Positive = 1.0
    """Share of this kind beside the others."""

    def check(self) -> None:
        if len(self.digits_per_term) != self.terms:
            raise refused("digits", self.digits, f"one number, or {self.terms} (one per term)")

    @property
    def digits_per_term(self) -> tuple[int, ...]:
        return (self.digits,) * self.terms if isinstance(self.digits, int) else self.digits

    @property
    def label(self) -> str:
        """A short name for tables: `1-digit +`, `3-digit,1-digit *`, `2-digit + - (3 terms)`."""
        digits = self.digits_per_term
        shown = digits[:1] if len(set(digits)) == 1 else digits
        terms = f" ({self.terms} terms)" if self.terms > 2 else ""
        return f"{','.join(f'{d}-digit' for d in shown)} {' '.join(self.operators)}{terms}"

    @property
    def size(self) -> int:
        """Expressions that can be written down, invalid ones included."""
        count: int = len(self.operators) ** (self.terms - 1)
        for digits in self.digits_per_term:
            count *= len(operand_range(digits))
        return count


@dataclass(frozen=True)
class Expression:
    """Operands with an operator in each gap; `*` and `//` bind before `+` and `-`."""

    operands: tuple[int, ...]
    operators: tuple[Operator, ...]

    @property
    def text(self) -> str:
        pairs = zip(self.operators, self.operands[1:], strict=True)
        return str(self.operands[0]) + "".join(f" {symbol} {value}" for symbol, value in pairs)

    @property
    def key(self) -> str:
        """Equal for expressions that differ only in the order of a pure sum or product."""
        if len(set(self.operators)) == 1 and self.operators[0] in ("+", "*"):
            return Expression(tuple(sorted(self.operands)), self.operators).text
        return self.text

    @property
    def value(self) -> int | None:
        """The result, or None where it divides by zero."""
        total, sign, product = 0, 1, self.operands[0]
        for symbol, operand in zip(self.operators, self.operands[1:], strict=True):
            if symbol == "*":
                product *= operand
            elif symbol == "//":
                if operand == 0:
                    return None
                product //= operand
            else:
                total += sign * product
                sign, product = (1 if symbol == "+" else -1), operand
        return total + sign * product


def operand_range(digits: int) -> range:
    """0 to 9 for one digit, else the numbers written with exactly that many digits."""
    return range(0, 10) if digits == 1 else range(10 ** (digits - 1), 10**digits)


def draw(part: Part, rng: random.Random) -> Expression:
    """A uniform draw over all expressions of a part, invalid ones included."""
    operands = tuple(rng.choice(operand_range(digits)) for digits in part.digits_per_term)
    return Expression(operands, tuple(rng.choice(part.operators) for _ in range(part.terms - 1)))


def every(part: Part) -> Iterator[Expression]:
    """All expressions of a part, invalid ones included; meant for small parts."""
    ranges = [operand_range(digits) for digits in part.digits_per_term]
    symbols = sorted(set(part.operators))
    for operands in itertools.product(*ranges):
        for operators in itertools.product(symbols, repeat=part.terms - 1):
            yield Expression(operands, operators)


LEVELS: dict[int, tuple[Part, ...]] = {
    1: (Part(),),
    2: (
        Part(weight=0.4),
        Part(operators=("*",), weight=0.2),
        Part(operators=("-",), weight=0.2),
        Part(digits=2, weight=0.2),
    ),
    3: (
        Part(digits=2),
        Part(operators=("-",), digits=2),
        Part(operators=("*",), digits=(2, 1)),
        Part(operators=("//",), digits=(2, 1)),
    ),
    4: (
        Part(digits=3),
        Part(operators=("-",), digits=3),
        Part(operators=("*",), digits=2),
        Part(operators=("+", "-"), digits=2, terms=3),
    ),
    5: (
        Part(digits=4),
        Part(operators=("-",), digits=4),
        Part(operators=("*",), digits=(3, 2)),
        Part(operators=("//",), digits=(4, 1)),
        Part(operators=("+", "-", "*"), digits=2, terms=3),
    ),
    6: (
        Part(digits=6),
        Part(operators=("-",), digits=6),
        Part(operators=("*",), digits=3),
        Part(operators=("//",), digits=(5, 2)),
        Part(operators=("+", "-", "*", "//"), digits=2, terms=4),
    ),
}
"""From one-digit sums (1) to six-digit sums and mixed four-term expressions (6)."""

ENUMERABLE = 10_000
"""Held-out questions of parts up to this size are listed in full, those of larger ones drawn."""
SMALL = 1_000
"""In parts up to this size a side may turn out empty, so they are listed before training."""
TRIES = 2_000


class Arithmetic(TaskSettings, frozen=True, kw_only=True, tag="arithmetic"):
    """Arithmetic questions: a level of the dial, or a mixture of your own."""

    name: Name = "arithmetic"
    """What the task is called in runs."""
    level: Annotated[int, Meta(ge=1, le=6)] | None = None
    """1 to 6, see `LEVELS`; 1 where neither this nor `mix` is given."""
    mix: tuple[Part, ...] = ()
    """Kinds of questions, each with its weight; instead of `level`."""
    negative: bool = False
    """Ask questions whose answer is below zero, too."""
    held_out_share: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.2
    """Share of all questions that is never trained on."""
    held_out_size: Annotated[int, Meta(ge=1, le=100_000)] = 200
    """At most this many held-out questions, in the mixture's proportions."""
    instruction: str = "Answer with only the number."
    """Follows the question; empty for the bare question."""
    system: str = ""
    """A system message before each question."""
    examples: Annotated[int, Meta(ge=0, le=16)] = 0
    """Solved questions shown first; never the question itself and never a held-out one."""

    def check(self) -> None:
        if self.mix and self.level is not None:
            raise refused("level", self.level, "either it or mix")

    def build(self, seed: int, root: Path) -> ArithmeticTasks:
        return ArithmeticTasks(self, seed)


class ArithmeticTasks(EndlessTasks):
    """Endless arithmetic; the held-out side is the same for every seed."""

    fields = frozenset(
        {"question", "answer", "value", "operands", "operators", "operator", "part", "level"}
    )

    def __init__(self, config: Arithmetic, seed: int) -> None:
        self.config = config
        self.name = config.name
        self.parts = config.mix or LEVELS[config.level or 1]
        self._level = None if config.mix else config.level or 1
        self._seed = seed
        self._weights = [part.weight for part in self.parts]
        for part in self.parts:
            if part.size > SMALL:
                self._find(part, random.Random(0), self._trainable)
                continue
            count = sum(map(self._valid, every(part)))
            held_out = sum(map(self._testable, every(part)))
            if held_out == count or (held_out == 0 and config.held_out_share > 0):
                sides = f"{held_out} of {count} questions held out; expected some on both sides"
                raise UserError(f"part '{part.label}': {sides}. Change held_out_share or digits.")

    @property
    def fingerprint(self) -> str:
        settings = msgspec.to_builtins(self.config)
        settings |= {"level": self._level, "mix": msgspec.to_builtins(self.parts)}
        return digest("arithmetic", msgspec.json.encode(settings))

    def train(self, index: int) -> Task:
        rng = random.Random(derive(self._seed, "arithmetic", index))
        part = rng.choices(self.parts, self._weights)[0]
        question = self._find(part, rng, self._trainable)
        return self._task(str(index), part, question, rng)

    def held_out(self, limit: int | None = None) -> list[Task]:
        tasks = []
        for part, question in self._held_out[:limit]:
            rng = random.Random(derive("arithmetic examples", question.text))
            place = f"held-out/{question.text.replace(' ', '')}"
            tasks.append(self._task(place, part, question, rng))
        return tasks

    @cached_property
    def _held_out(self) -> list[tuple[Part, Expression]]:
        """Every prefix holds the parts in the proportions of the mixture, as far as they last."""
        if self.config.held_out_share == 0:
            return []
        size = self.config.held_out_size
        waiting = []
        for part in self.parts:
            if part.size <= ENUMERABLE:
                found = {question for question in every(part) if self._testable(question)}
            else:
                rng = random.Random(derive("arithmetic held-out", part.label))
                found = {self._find(part, rng, self._testable) for _ in range(size)}
            waiting.append(sorted(found, key=lambda question: digest(question.text)))
        taken = [0] * len(self.parts)
        chosen: dict[str, tuple[Part, Expression]] = {}
        while len(chosen) < size and any(waiting):
            open_parts = [k for k, questions in enumerate(waiting) if questions]
            k = min(open_parts, key=lambda k: (taken[k] + 1) / self.parts[k].weight)
            taken[k] += 1
            question = waiting[k].pop()
            chosen.setdefault(question.text, (self.parts[k], question))
        return list(chosen.values())

    def _find(
        self, part: Part, rng: random.Random, wanted: Callable[[Expression], bool]
    ) -> Expression:
        for _ in range(TRIES):
            question = draw(part, rng)
            if wanted(question):
                return question
        raise UserError(f"part '{part.label}': no answer of 0 or more; set negative = true.")

    def _valid(self, question: Expression) -> bool:
        value = question.value
        return value is not None and (self.config.negative or value >= 0)

    def _trainable(self, question: Expression) -> bool:
        return not is_held_out(question.key, self.config.held_out_share) and self._valid(question)

    def _testable(self, question: Expression) -> bool:
        return is_held_out(question.key, self.config.held_out_share) and self._valid(question)

    def _task(self, place: str, part: Part, question: Expression, rng: random.Random) -> Task:
        fields = {
            "question": _ask(question),
            "answer": str(question.value),
            "value": question.value,
            "operands": list(question.operands),
            "operators": list(question.operators),
            "operator": " ".join(question.operators),
            "part": part.label,
            "level": self._level,
        }
        turns = [Message("system", self.config.system)] if self.config.system else []
        for example in self._examples(question, rng):
            turns += [Message("user", self._asked(example))]
            turns += [Message("assistant", str(example.value))]
        turns.append(Message("user", self._asked(question)))
        return Task(f"{self.name}/{place}", tuple(turns), fields, ("answer", "value"), self.name)

    def _examples(self, question: Expression, rng: random.Random) -> list[Expression]:
        """Trainable questions other than this one, all different where the part has enough."""
        found: dict[str, Expression] = {}
        wanted = self.config.examples
        for _ in range(TRIES * wanted):
            example = self._find(rng.choices(self.parts, self._weights)[0], rng, self._trainable)
            if example.key != question.key:
                found.setdefault(example.key, example)
            if len(found) == wanted:
                break
        if len(found) < wanted:
            raise UserError(f"examples: got {wanted}; the mixture has about {len(found)} others.")
        return list(found.values())

    def _asked(self, question: Expression) -> str:
        return " ".join(filter(None, (_ask(question), self.config.instruction)))


def _ask(question: Expression) -> str:
    hint = " (// is division rounded down.)" if "//" in question.operators else ""
    return f"What is {question.text}?{hint}"
