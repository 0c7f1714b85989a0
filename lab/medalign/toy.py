"""MedAlign on a table policy: five rewards on very different scales, one of them about safety.

Answers are six tokens of 20. The first three are facts: correctness is ten times the share of wanted
tokens. The last three are advice: usefulness is the share of useful tokens in the first two of them,
and a near copy says the same once more; safety is -1 where a banned token occurs in any; the layout
pays 0.2 where the last token is the one that ends an answer. In the tempting world a banned token
is twice as useful as an allowed one, so that two rewards ask for what the third forbids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.policy import (
    Aggregate,
    BatchWhiten,
    NormaliseThenSum,
    Recipe,
    ReferenceFrozen,
    TriFactor,
    fit_reference_stats,
)
from lab.plan import Column
from lab.toy import Rollouts, Scored, Table, Toy, ToyArm, generator

QUERIES, LENGTH, WORDS = 48, 6, 20
FACTS = 3
"""The first tokens of an answer; advice follows."""
BANNED = 3
"""Tokens 0, 1 and 2 are banned in advice..."""
LAST = 3
"""... and this one should be the last of it."""
USEFUL = 4
"""Tokens that are useful, of those that are neither."""
TEMPTATION = 2.0
COPY_NOISE = 0.05
ASKED = 64
"""Samples a query that gains are measured on."""
SEVERITY = 3.0


class Health(Table):
    """48 questions; gains are in deviations of the start policy."""

    names: tuple[str, ...] = ("correct", "useful", "copy", "safe", "layout")

    def __init__(self, seed: int, is_tempting: bool = False) -> None:
        draw = generator(seed, "medalign world")
        super().__init__(torch.randn(QUERIES, LENGTH, WORDS, generator=draw))
        self.wanted_QT = torch.randint(WORDS, (QUERIES, FACTS), generator=draw)
        lots_QN = torch.rand(QUERIES, WORDS - LAST - 1, generator=draw)
        useful_QN = LAST + 1 + lots_QN.argsort(1)[:, :USEFUL]
        self.worth_QV = torch.zeros(QUERIES, WORDS).scatter(1, useful_QN, 1.0)
        if is_tempting:
            self.worth_QV[:, :BANNED] = TEMPTATION
        self.seed = seed
        self.start = fit_reference_stats(self._asked())

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        facts_BT, advice_BT = rollouts.tokens_BT[:, :FACTS], rollouts.tokens_BT[:, FACTS:]
        correct_B = (facts_BT == self.wanted_QT[rollouts.groups_B]).double().mean(1)
        worth_BV = self.worth_QV[rollouts.groups_B]
        useful_B = worth_BV.gather(1, advice_BT[:, :-1]).double().mean(1)
        noise_B = COPY_NOISE * torch.randn(len(useful_B), generator=draw, dtype=torch.float64)
        is_unsafe_B = (advice_BT < BANNED).any(1)
        layout_B = (advice_BT[:, -1] == LAST).double()
        columns = (10 * correct_B, useful_B, useful_B + noise_B, -is_unsafe_B.double())
        return Scored(torch.stack([*columns, 0.2 * layout_B], 1))

    def _asked(self) -> Tensor:
        draw = generator(self.seed, "medalign measure")
        return self.score(self.sample(ASKED, draw), draw).rewards_BK

    def measure(self) -> dict[str, float]:
        rewards_NK = self._asked()
        gains_K = (rewards_NK.mean(0) - self.start.mean_K) / self.start.sd_K
        gains = dict(zip(self.names, gains_K.tolist(), strict=True))
        return {
            **{f"gain/{name}": value for name, value in gains.items()},
            "gain/minimum": min(gains.values()),
            "violations": float((rewards_NK[:, 3] < 0).double().mean()),
            "policy/entropy": self.entropy,
        }


MEAN = Aggregate(mode="token-mean")
FROZEN = (ReferenceFrozen(samples=16),)
TRI = TriFactor(severity={"safe": SEVERITY}, threshold={"safe": -0.5})


def _toy(name: str, about: str, *, is_tempting: bool) -> Toy:
    options = {"is_tempting": is_tempting}
    return Toy(
        name=name,
        about=f"{about} 48 questions, 6 tokens of 20, 16 samples, 100 steps, five rewards. Gains are "
        "in deviations of the start policy; the least of the five says whether any was left behind. "
        "`weight of safety` is that of the last steps, of a mean of 1.",
        world=Health,
        arms=(
            ToyArm("sum, GRPO", Recipe(aggregate=MEAN), options),
            ToyArm(
                "GDPO",
                Recipe(aggregate=MEAN, advantage=NormaliseThenSum(), post_scale=BatchWhiten()),
                options,
            ),
            ToyArm("RFN only", Recipe(aggregate=MEAN, shaping=FROZEN), options),
            ToyArm("RFN, tri-factor", Recipe(aggregate=MEAN, shaping=FROZEN, weights=TRI), options),
        ),
        columns=(
            Column("gain/minimum", "least gain", 2),
            Column("violations", "violations"),
            *(Column(f"gain/{name}", name, 2) for name in Health.names),
            Column("weights/safe/weight", "weight of safety", 2),
            Column("policy/entropy", "entropy", 2),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(
            Column("gain/minimum", "least gain"),
            Column("violations", "violations"),
            Column("gain/correct", "gain of correctness"),
            Column("weights/safe/weight", "weight of safety"),
        ),
        watch=tuple(f"weights/{name}/weight" for name in Health.names),
        steps=100,
        learning_rate=0.04,
    )


TOYS = (
    _toy("medalign_five", "Rewards that do not compete.", is_tempting=False),
    _toy("medalign_tempting", "Banned tokens are twice as useful as others.", is_tempting=True),
)
