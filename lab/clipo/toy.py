"""CLIPO on a bandit: do right answers that are alike win over right answers that are lucky?

Each query has 64 arms. Six right ones are valid and have features near each other, twelve are right
by luck and have features of their own, the rest is wrong. The verifier pays both kinds of right arm
the same, so that only the contrastive reward can tell them apart.
"""

from __future__ import annotations

import torch

from burnish.policy import Contrastive, Recipe
from burnish.policy.contrast.losses import LossName
from lab.plan import Column
from lab.toy import Rollouts, Scored, Table, Toy, ToyArm, generator

QUERIES, ARMS, VALID, LUCKY = 32, 64, 6, 12
FEATURES = 32
CLUSTER = 0.5
"""Spread of the valid arms' features around their query's centre, which has spread 1."""
WARMUP = 15


class Bandit(Table):
    """32 queries of one token each; a token is an arm."""

    names: tuple[str, ...] = ("correct",)

    def __init__(self, seed: int) -> None:
        draw = generator(seed, "clipo world")
        super().__init__(torch.randn(QUERIES, 1, ARMS, generator=draw))
        self.features_QVD = torch.randn(QUERIES, ARMS, FEATURES, generator=draw)
        centre_Q1D = torch.randn(QUERIES, 1, FEATURES, generator=draw)
        self.features_QVD[:, :VALID] = centre_Q1D + CLUSTER * self.features_QVD[:, :VALID]

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        arms_B = rollouts.tokens_BT[:, 0]
        is_right_B = arms_B < VALID + LUCKY
        return Scored(is_right_B.double()[:, None], self.features_QVD[rollouts.groups_B, arms_B])

    def measure(self) -> dict[str, float]:
        probs_QV = self.probs_QTV[:, 0]
        valid_Q = probs_QV[:, :VALID].sum(1)
        right_Q = probs_QV[:, : VALID + LUCKY].sum(1)
        return {
            "valid_share": float((valid_Q / right_Q).mean()),
            "right": float(right_Q.mean()),
            "policy/entropy": self.entropy,
        }


def _arm(name: str, piece: Contrastive) -> ToyArm:
    return ToyArm(name, Recipe(shaping=(piece,)))


def _piece(loss: LossName, temperature: float, lam: float, dedup: bool = False) -> Contrastive:
    return Contrastive(
        loss=loss,
        temperature=temperature,
        lam=lam,
        dedup=dedup,
        size=FEATURES,
        warmup=WARMUP,
    )


TOYS = (
    Toy(
        name="clipo_bandit",
        about="32 queries x 64 arms, 6 valid and 12 lucky right arms, 16 samples, 70 steps after "
        "15 of the head alone. `valid among right` is the share of the right arms' "
        "probability that is on valid ones; a method that cannot tell them apart leaves it near a "
        "third.",
        world=Bandit,
        arms=(
            ToyArm("GRPO", Recipe()),
            _arm("infonce, default", _piece("infonce", 0.05, 0.2)),
            _arm("supcon_out", _piece("supcon_out", 0.2, 0.15)),
            _arm("soft_nn", _piece("soft_nn", 0.2, 0.5)),
            _arm("soft_nn, dedup", _piece("soft_nn", 0.2, 0.5, dedup=True)),
        ),
        columns=(
            Column("valid_share", "valid among right"),
            Column("right", "probability of right"),
            Column("policy/entropy", "entropy"),
            Column("contrast/floor_share", "anchors at the floor", 2),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(
            Column("valid_share", "valid among right"),
            Column("right", "probability of right"),
            Column("policy/entropy", "entropy"),
        ),
        watch=("contrast/floor_share",),
        steps=70,
        learning_rate=0.1,
    ),
)
