"""BRPO on a table policy: a judge of pairs against a scalar score that padding inflates.

Answers are ten tokens of 24 and as good as the share of wanted tokens. The scalar score adds noise
and 0.15 for every padding token. The judge compares two answers by their quality with noise, and in
15 % of the pairs is fooled into the one with more padding. The judge is the better of the two by
construction, so two arms use the same judge as a scalar: its mean verdict over the whole group,
and, at BRPO's price, its verdict against one other answer that is drawn for each.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from burnish.policy import Aggregate, KeepAll, Raw, Recipe, Skew, SumThenNormalise
from burnish.policy.components import Advantage, Select
from lab.plan import Column
from lab.toy import Rollouts, Scored, Table, Toy, ToyArm, generator

QUERIES, LENGTH, WORDS = 48, 10, 24
SAMPLES = 16
PADDING = 0
LEAK = 0.15
NOISE = 0.1
FOOLED = 0.15

Verdict = Literal["scalar", "mean", "apart", "random", "best"]
"""A leaky score; the judge's mean over all others; its verdict on each answer against a random other
one; against one random answer of the group; against the one that wins most."""
COMPARISONS: dict[Verdict, int] = {
    "scalar": 0,
    "mean": SAMPLES * (SAMPLES - 1) // 2,
    "apart": SAMPLES,
    "random": SAMPLES - 1,
    "best": SAMPLES * (SAMPLES - 1) // 2,
}
"""What a request costs the judge in a step."""


class Writing(Table):
    """48 requests; token 0 is padding."""

    names: tuple[str, ...] = ("score",)

    def __init__(self, seed: int, verdict: Verdict = "random") -> None:
        draw = generator(seed, "brpo world")
        super().__init__(torch.randn(QUERIES, LENGTH, WORDS, generator=draw))
        self.wanted_QT = torch.randint(1, WORDS, (QUERIES, LENGTH), generator=draw)
        self.verdict = verdict

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        is_wanted_BT = rollouts.tokens_BT == self.wanted_QT[rollouts.groups_B]
        quality_QG = is_wanted_BT.double().mean(1).view(QUERIES, -1)
        padding_QG = (rollouts.tokens_BT == PADDING).double().sum(1).view(QUERIES, -1)
        if self.verdict == "scalar":
            noise_QG = NOISE * torch.randn(quality_QG.shape, generator=draw, dtype=torch.float64)
            return Scored((quality_QG + LEAK * padding_QG + noise_QG).view(-1, 1))
        wins_QGG = judge(quality_QG, padding_QG, draw)
        if self.verdict == "mean":
            return Scored((wins_QGG.sum(2) / (wins_QGG.shape[2] - 1)).view(-1, 1))
        size = wins_QGG.shape[1]
        if self.verdict == "apart":
            ahead_QG = torch.randint(1, size, (QUERIES, size), generator=draw)
            other_QG = (torch.arange(size) + ahead_QG) % size
            return Scored(wins_QGG.gather(2, other_QG[..., None]).view(-1, 1))
        reference_Q = torch.randint(size, (QUERIES,), generator=draw)
        if self.verdict == "best":
            reference_Q = wins_QGG.sum(2).argmax(1)
        outcomes_QG = wins_QGG[torch.arange(QUERIES), :, reference_Q]
        # The reference has no outcome: it was what the others were compared with.
        outcomes_QG = outcomes_QG.scatter(1, reference_Q[:, None], torch.nan)
        return Scored(outcomes_QG.reshape(-1, 1))

    def measure(self) -> dict[str, float]:
        probs_QTV = self.probs_QTV
        return {
            "quality": float(probs_QTV.gather(2, self.wanted_QT[..., None]).mean()),
            "padding": float(probs_QTV[..., PADDING].sum(1).mean()),
            "policy/entropy": self.entropy,
            "comparisons": COMPARISONS[self.verdict],
        }


def judge(quality_QG: Tensor, padding_QG: Tensor, draw: torch.Generator) -> Tensor:
    """+1 where the first of a pair wins, -1 where it loses, 0 against itself: (Q, G, G)."""

    def difference(values_QG: Tensor) -> Tensor:
        return values_QG[:, :, None] - values_QG[:, None, :]

    better_QGG = difference(quality_QG)
    noise_QGG = NOISE * torch.randn(better_QGG.shape, generator=draw, dtype=torch.float64)
    padded_QGG = difference(padding_QG)
    is_fooled_QGG = torch.rand(better_QGG.shape, generator=draw) < FOOLED
    seen_QGG = torch.where(is_fooled_QGG & (padded_QGG != 0), padded_QGG, better_QGG + noise_QGG)
    # Each pair is judged once: below the diagonal stands the other side of the same verdict.
    upper_QGG = seen_QGG.sign().triu(1)
    return upper_QGG - upper_QGG.transpose(1, 2)


def _arm(name: str, verdict: Verdict, advantage: Advantage, select: Select | None = None) -> ToyArm:
    recipe = Recipe(
        advantage=advantage,
        select=select or KeepAll(),
        aggregate=Aggregate(mode="token-mean"),
    )
    return ToyArm(name, recipe, {"verdict": verdict})


TOYS = (
    Toy(
        name="brpo_padding",
        about="48 requests, 10 tokens of 24, 16 samples, 120 steps. Quality is the share of wanted "
        "tokens, padding the number of padding tokens in an answer. `comparisons` is what a request "
        "costs the judge in a step.",
        world=Writing,
        arms=(
            _arm("leaky scalar, GRPO", "scalar", SumThenNormalise()),
            _arm("judge as scalar (all pairs), GRPO", "mean", SumThenNormalise()),
            _arm("judge as scalar (one each), GRPO", "apart", SumThenNormalise()),
            _arm("BRPO", "random", Raw(), Skew(0.6)),
            _arm("BRPO, no filter", "random", Raw()),
            _arm("BRPO, centred and scaled", "random", SumThenNormalise()),
            _arm("best of group as reference", "best", Raw(), Skew(0.6)),
        ),
        columns=(
            Column("quality", "final quality"),
            Column("padding", "padding tokens", 2),
            Column("kept_groups", "groups kept", 2),
            Column("comparisons", "comparisons", 0),
            Column("policy/entropy", "entropy"),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(
            Column("quality", "quality"),
            Column("padding", "padding tokens"),
            Column("kept_groups", "share of groups kept"),
        ),
        steps=120,
        learning_rate=0.1,
        samples=SAMPLES,
    ),
)
