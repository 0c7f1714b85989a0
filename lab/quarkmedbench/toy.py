"""Rubric scores as the reward of a table policy that may cover essentials, pile up extras or boast.

An answer has six slots. Each holds one of three essentials, one of five extras, a risky claim or
nothing. An essential is fully met only where it takes two slots, an extra where it takes one; the
risky claim meets two highlights at once and is a pitfall, the worse the more often it stands there.
`use` is what the reader wants and no arm is told: a missing essential costs most, an error more than
any extra can bring, and extras count less the more there are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from burnish.policy import Aggregate, Recipe, SumThenNormalise
from burnish.rewards.judges.rubric import MarkedItem, score
from lab.plan import Column
from lab.toy import Rollouts, Scored, Table, Toy, ToyArm, generator

QUERIES, SLOTS = 16, 6
ESSENTIALS, EXTRAS = 3, 5
WORDS = 1 + ESSENTIALS + EXTRAS + 1
RISKY = WORDS - 1
TAGS = ("quality", "quality", "care", "care", "care")
SAMPLES = 16

Marks = tuple[int, ...]
"""How often each essential, each extra and the risky claim stand in an answer."""


def items(marks: Marks) -> list[MarkedItem]:
    """The marks that a perfect judge gives."""
    essentials = [MarkedItem("essential", min(n, 2)) for n in marks[:ESSENTIALS]]
    boasts = marks[-1]
    extras = [
        MarkedItem("important" if k < 2 else "highlight", 2 * min(n, 1), tag=tag)
        for k, (n, tag) in enumerate(zip(marks[ESSENTIALS:-1], TAGS, strict=True))
    ]
    shiny = [MarkedItem("highlight", 2 * min(boasts, 1), tag="shine") for _ in range(2)]
    return [*essentials, *extras, *shiny, MarkedItem("pitfall", min(boasts, 2))]


@cache
def worth(marks: Marks, settings: tuple[tuple[str, Any], ...]) -> float:
    """The rubric's score by some settings."""
    named = {key: dict(value) if key == "tier_weights" else value for key, value in settings}
    return score(items(marks), **named) or 0.0


@cache
def use(marks: Marks) -> float:
    """What the answer is worth to a reader, at most about 1."""
    met = sum(min(n, 2) / 2 for n in marks[:ESSENTIALS]) / ESSENTIALS
    extras = sum(min(n, 1) for n in marks[ESSENTIALS:-1])
    return met + 0.1 * (1 - 0.5**extras) - 0.6 * min(marks[-1], 2) / 2


class Answering(Table):
    """16 questions; the start policy finds extras and the claim easier than essentials."""

    names: tuple[str, ...] = ("rubric",)

    def __init__(self, seed: int, settings: tuple[tuple[str, Any], ...] = ()) -> None:
        draw = generator(seed, "quarkmedbench world")
        start_QTV = 0.5 * torch.randn(QUERIES, SLOTS, WORDS, generator=draw)
        start_QTV[..., 1 : 1 + ESSENTIALS] -= 0.5
        super().__init__(start_QTV)
        self.settings = settings

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        values = [worth(marks, self.settings) for marks in _marks(rollouts.tokens_BT)]
        return Scored(torch.tensor(values, dtype=torch.float64)[:, None])

    def measure(self) -> dict[str, float]:
        drawn = self.sample(64, generator("quarkmedbench measure"))
        marks = _marks(drawn.tokens_BT)
        essential = [sum(min(n, 2) / 2 for n in m[:ESSENTIALS]) / ESSENTIALS for m in marks]
        return {
            "use": sum(map(use, marks)) / len(marks),
            "essential": sum(essential) / len(marks),
            "extras": sum(sum(min(n, 1) for n in m[ESSENTIALS:-1]) for m in marks) / len(marks),
            "risky": sum(m[-1] > 0 for m in marks) / len(marks),
            "policy/entropy": self.entropy,
        }


def _marks(tokens_BT: Tensor) -> list[Marks]:
    counts_BV = torch.nn.functional.one_hot(tokens_BT, WORDS).sum(1)[:, 1:]
    return [tuple(row) for row in counts_BV.tolist()]


EQUAL = (
    "tier_weights",
    (("essential", 1.0), ("important", 1.0), ("highlight", 1.0), ("pitfall", 1.0)),
)


def _arm(name: str, *settings: tuple[str, Any]) -> ToyArm:
    recipe = Recipe(advantage=SumThenNormalise(), aggregate=Aggregate(mode="token-mean"))
    return ToyArm(name, recipe, {"settings": settings})


TOYS = (
    Toy(
        name="quarkmedbench_padding",
        about="16 questions, 16 answers of 6 slots, 80 steps, GRPO. `use` is the reader's own "
        "value, `essential` the share of essentials met, `extras` how many of five, `risky` the "
        "share of answers with the risky claim.",
        world=Answering,
        arms=(
            _arm("equal weights", EQUAL),
            _arm("2:1:1:2"),
            _arm("2:1:1:2, truncation", ("truncation", True)),
            _arm("2:1:1:2, saturation", ("saturation", True)),
            _arm("both", ("truncation", True), ("saturation", True)),
        ),
        columns=(
            Column("use", "use"),
            Column("essential", "essential"),
            Column("extras", "extras", 2),
            Column("risky", "risky"),
            Column("policy/entropy", "entropy"),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(
            Column("use", "use"),
            Column("essential", "share of essentials met"),
            Column("risky", "answers with the risky claim"),
        ),
        steps=80,
        learning_rate=0.1,
        samples=SAMPLES,
    ),
)
