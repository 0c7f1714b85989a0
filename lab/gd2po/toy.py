"""GD2PO on a table policy: is a rollout that rewards disagree on worth training on?

Answers are eight tokens of 24 and as good as the share of wanted tokens. Every reward is that
quality with noise of its own; the first also pays for a token that is worth nothing. With spikes,
one value in twenty is 3 too high or too low. A filter that drops rollouts trains on fewer, so arms
are compared after as many steps and after as many trained rollouts, and beside two filters that keep
as many without looking at conflicts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from burnish.policy import (
    Aggregate,
    BatchWhiten,
    KeepAll,
    Magnitude,
    NormaliseThenSum,
    RandomDrop,
    Recipe,
    SignConflict,
    SnrConflict,
)
from burnish.policy.components import Select
from lab.plan import Column
from lab.toy import Rollouts, Scored, Table, Toy, ToyArm, World, generator

QUERIES, LENGTH, WORDS = 64, 8, 24
HACK = 0
"""The token that the first reward pays for without cause..."""
HACK_WORTH = 0.05
"""... and how much for each."""
NOISE = 0.15
SPIKE, SPIKED = 3.0, 0.05


class Noisy(Table):
    """64 queries, K rewards of one quality."""

    def __init__(self, seed: int, rewards: int, is_spiky: bool) -> None:
        draw = generator(seed, "gd2po world")
        super().__init__(torch.randn(QUERIES, LENGTH, WORDS, generator=draw))
        self.wanted_QT = torch.randint(1, WORDS, (QUERIES, LENGTH), generator=draw)
        self.names = tuple(f"reward_{k}" for k in range(rewards))
        self.is_spiky = is_spiky

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        is_wanted_BT = rollouts.tokens_BT == self.wanted_QT[rollouts.groups_B]
        shape = len(is_wanted_BT), len(self.names)
        rewards_BK = is_wanted_BT.double().mean(1, keepdim=True) + NOISE * torch.randn(
            shape, generator=draw, dtype=torch.float64
        )
        rewards_BK[:, 0] += HACK_WORTH * (rollouts.tokens_BT == HACK).sum(1)
        if self.is_spiky:
            is_spiked_BK = torch.rand(shape, generator=draw) < SPIKED
            sign_BK = torch.randint(2, shape, generator=draw) * 2.0 - 1.0
            rewards_BK += SPIKE * sign_BK * is_spiked_BK
        return Scored(rewards_BK)

    def measure(self) -> dict[str, float]:
        probs_QTV = self.probs_QTV
        return {
            "quality": float(probs_QTV.gather(2, self.wanted_QT[..., None]).mean()),
            "hacked": float(probs_QTV[..., HACK].sum(1).mean()),
            "policy/entropy": self.entropy,
        }


def two(seed: int) -> World:
    """Two noisy rewards."""
    return Noisy(seed, rewards=2, is_spiky=False)


def three(seed: int) -> World:
    """Three noisy rewards."""
    return Noisy(seed, rewards=3, is_spiky=False)


def spiky(seed: int) -> World:
    """Three noisy rewards with rare spikes."""
    return Noisy(seed, rewards=3, is_spiky=True)


def _arm(name: str, select: Select) -> ToyArm:
    recipe = Recipe(
        advantage=NormaliseThenSum(),
        select=select,
        post_scale=BatchWhiten(),
        aggregate=Aggregate(mode="token-mean"),
    )
    return ToyArm(name, recipe)


ARMS = (
    _arm("GDPO", KeepAll()),
    ToyArm("GRPO", Recipe(aggregate=Aggregate(mode="token-mean"))),
    _arm("hard", SignConflict()),
    _arm("hard, no query weights", SignConflict(query_weights=False)),
    _arm("SNR 0.8", SnrConflict()),
    _arm("SNR 0.8, no query weights", SnrConflict(query_weights=False)),
    _arm("SNR 0.2", SnrConflict(tau=0.2)),
    _arm("random, as many as hard", RandomDrop()),
    _arm("magnitude, as many as hard", Magnitude()),
)


def _toy(name: str, about: str, world: Callable[[int], World]) -> Toy:
    return Toy(
        name=name,
        about=f"{about} 64 queries, 8 tokens of 24, 8 samples. Figures are after 90 steps, save those "
        "at equal trained rollouts: there every arm went on until it had trained on as many as "
        "GDPO in 90 steps, for which it sampled more.",
        world=world,
        arms=ARMS,
        columns=(
            Column("quality", "quality at equal steps"),
            Column("at_equal_rollouts", "quality at equal trained rollouts"),
            Column("hacked", "hacked tokens", 2),
            Column("kept", "kept", 2),
            Column("policy/entropy", "entropy", 2),
            Column("done_at_equal_rollouts", "steps until then", 0),
            Column("sampled_at_equal_rollouts", "sampled until then", 0),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(
            Column("quality", "quality"),
            Column("kept", "share of rollouts kept"),
            Column("hacked", "hacked tokens"),
        ),
        steps=90,
        learning_rate=0.1,
        samples=8,
        seeds=(0, 1, 2),
        equal_rollouts="quality",
    )


TOYS = (
    _toy("gd2po_two", "Two noisy rewards, one of which a token can hack.", two),
    _toy("gd2po_three", "Three noisy rewards, one of which a token can hack.", three),
    _toy("gd2po_spiky", "Three such rewards with rare spikes of 3.", spiky),
)
