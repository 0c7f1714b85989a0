"""A judge that fails in 20 % of the cases: failures masked against failures replaced by 0.5.

    python -m lab.skill_rm.masking

Answers are ten tokens; the reward is what the pointwise skill would give: the share of ten demands
that are met, capped at 0.65 for an answer with the wrong-language token. `at random` a fifth of the
judgements fails whatever the answer is. `provoked` the judge fails on every answer with the token
that confuses it, which the policy can learn to write.
"""

from __future__ import annotations

import sys
from typing import Literal

import torch
from torch import Tensor

from burnish.policy import Aggregate, Recipe, SumThenNormalise
from lab.plan import Column
from lab.skill_rm.report import RESULTS
from lab.toy import Rollouts, Scored, Table, Toy, ToyArm, generator
from lab.toy_report import write_toys

QUERIES, LENGTH, WORDS = 48, 10, 24
FAILS = 0.2
CAP = 0.65
CONFUSING, FOREIGN = 0, 1
MEASURED = 16
"""Answers to each request over which the true reward is averaged."""

Failure = Literal["never", "random", "provoked"]
Instead = Literal["masked", "half", "zero"]
VALUES: dict[Instead, float] = {"masked": torch.nan, "half": 0.5, "zero": 0.0}


class Judged(Table):
    """48 requests with ten demands each, judged by a skill that may fail."""

    names: tuple[str, ...] = ("skill",)

    def __init__(self, seed: int, failure: Failure, instead: Instead) -> None:
        draw = generator(seed, "masking world")
        super().__init__(torch.randn(QUERIES, LENGTH, WORDS, generator=draw))
        self.wanted_QT = torch.randint(2, WORDS, (QUERIES, LENGTH), generator=draw)
        self.seed, self.failure, self.instead = seed, failure, instead

    def rewards(self, rollouts: Rollouts) -> Tensor:
        """What a judge that never fails would give, (B,)."""
        met_BT = rollouts.tokens_BT == self.wanted_QT[rollouts.groups_B]
        score_B = met_BT.double().mean(1)
        is_foreign_B = (rollouts.tokens_BT == FOREIGN).any(1)
        return torch.where(is_foreign_B, score_B.clamp(max=CAP), score_B)

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        score_B = self.rewards(rollouts)
        # Drawn in every arm, so that arms differ in nothing else.
        luck_B = torch.rand(score_B.shape, generator=draw)
        fails_B = torch.zeros_like(luck_B, dtype=torch.bool)
        if self.failure == "random":
            fails_B = luck_B < FAILS
        elif self.failure == "provoked":
            fails_B = (rollouts.tokens_BT == CONFUSING).any(1)
        score_B = score_B.masked_fill(fails_B, VALUES[self.instead])
        return Scored(score_B[:, None])

    def measure(self) -> dict[str, float]:
        probs_QTV = self.probs_QTV
        confusing_QT = probs_QTV[..., CONFUSING]
        sampled = self.sample(MEASURED, generator(self.seed, "masking measure"))
        return {
            "reward": float(self.rewards(sampled).mean()),
            "accuracy": float(probs_QTV.gather(2, self.wanted_QT[..., None]).mean()),
            "failing": float((1 - (1 - confusing_QT).prod(1)).mean()),
            "policy/entropy": self.entropy,
        }


def _arm(name: str, failure: Failure, instead: Instead = "masked") -> ToyArm:
    recipe = Recipe(advantage=SumThenNormalise(), aggregate=Aggregate(mode="token-mean"))
    return ToyArm(name, recipe, {"failure": failure, "instead": instead})


def _toy(name: str, about: str, failure: Failure, steps: int) -> Toy:
    return Toy(
        name=name,
        about=about,
        world=Judged,
        arms=(
            _arm("no failures", "never"),
            _arm("failures masked", failure, "masked"),
            _arm("failures are 0.5", failure, "half"),
            _arm("failures are 0", failure, "zero"),
        ),
        columns=(
            Column("reward", "true reward"),
            Column("accuracy", "demands met"),
            Column("failing", "answers that confuse"),
            Column("policy/entropy", "entropy"),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(Column("accuracy", "demands met"), Column("failing", "answers that confuse")),
        steps=steps,
        learning_rate=0.1,
        samples=8,
    )


TOYS = (
    _toy(
        "skill_rm_failures_at_random",
        "48 requests, 10 tokens of 24, 8 samples, 120 steps; 20 % of the judgements fail at random.",
        "random",
        120,
    ),
    _toy(
        "skill_rm_failures_provoked",
        "The same, but the judge fails on every answer that holds the confusing token (a third of "
        "the answers at the start). `answers that confuse` is their share.",
        "provoked",
        120,
    ),
)


def main() -> int:
    from lab.run_toys import run_all

    torch.set_num_threads(1)
    print(write_toys("skill_rm", TOYS, run_all(TOYS, ()), RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
