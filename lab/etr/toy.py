"""ETR on a table policy: do elastic bounds learn faster than static ones, narrow or wide?

Answers are six tokens of 32, right where at least two, three or four of them (by query) are the
wanted ones. The wanted tokens begin more or less likely, so that pass rates at the start cover
almost everything from 0 to 1. Bounds matter only where a batch is used for several updates: four
epochs of two mini-batches, or, with large steps on stale batches, eight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from burnish.policy import Aggregate, Elastic, Recipe, StaticRegion
from burnish.policy.components import TrustRegion
from lab.collect import Row
from lab.plan import Column
from lab.toy import Rollouts, Scored, Table, Toy, ToyArm, generator

QUERIES, LENGTH, WORDS = 64, 6, 32
HEAD_START = (1.0, 3.5)
"""Least and greatest logit of the wanted tokens above the others."""
MIDDLE = 30


class Graded(Table):
    """64 queries, from nearly hopeless to nearly solved."""

    names: tuple[str, ...] = ("correct",)

    def __init__(self, seed: int) -> None:
        draw = generator(seed, "etr world")
        start_QTV = torch.randn(QUERIES, LENGTH, WORDS, generator=draw)
        self.wanted_QT = torch.randint(WORDS, (QUERIES, LENGTH), generator=draw)
        self.needed_Q = torch.randint(2, 5, (QUERIES,), generator=draw)
        low, high = HEAD_START
        ahead_Q = low + (high - low) * torch.rand(QUERIES, generator=draw)
        raised = ahead_Q[:, None, None].expand(QUERIES, LENGTH, 1)
        super().__init__(start_QTV.scatter_add(2, self.wanted_QT[..., None], raised))
        self.is_hard_Q = self.passes_Q < 0.2

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        hits_B = (rollouts.tokens_BT == self.wanted_QT[rollouts.groups_B]).sum(1)
        return Scored((hits_B >= self.needed_Q[rollouts.groups_B]).double()[:, None])

    @property
    def passes_Q(self) -> Tensor:
        """The exact chance of a right answer, from the chance of each number of hits."""
        hit_QT = self.probs_QTV.gather(2, self.wanted_QT[..., None])[..., 0].double()
        count_QN = torch.zeros(QUERIES, LENGTH + 1, dtype=torch.float64)
        count_QN[:, 0] = 1.0
        for hit_Q in hit_QT.T[..., None]:
            more_QN = count_QN.roll(1, 1)
            more_QN[:, 0] = 0.0
            count_QN = count_QN * (1 - hit_Q) + more_QN * hit_Q
        is_enough_QN = torch.arange(LENGTH + 1) >= self.needed_Q[:, None]
        return (count_QN * is_enough_QN).sum(1)

    def measure(self) -> dict[str, float]:
        passes_Q = self.passes_Q
        return {
            "pass": float(passes_Q.mean()),
            "hard_pass": float(passes_Q[self.is_hard_Q].mean()),
            "policy/entropy": self.entropy,
        }


def on_the_way(level: float) -> Callable[[Sequence[Row]], Row]:
    """Pass rate half-way and on average, clipped share, entropy where passes first reach the level."""

    def figures(curves: Sequence[Row]) -> Row:
        passes = [row["pass"] for row in curves]
        found: Row = {
            "pass_middle": passes[min(MIDDLE, len(passes) - 1)],
            "pass_mean": sum(passes) / len(passes),
            "entropy_at_level": None,
            "clipped_mean": sum(row["policy/clipped_share"] for row in curves[1:])
            / (len(curves) - 1),
        }
        for before, after in pairwise(curves):
            if before["pass"] < level <= after["pass"]:
                share = (level - before["pass"]) / (after["pass"] - before["pass"])
                ends = before["policy/entropy"], after["policy/entropy"]
                found["entropy_at_level"] = ends[0] + share * (ends[1] - ends[0])
                break
        return found

    return figures


def _arm(name: str, region: TrustRegion) -> ToyArm:
    return ToyArm(name, Recipe(trust_region=region, aggregate=Aggregate(mode="token-mean")))


STATIC = _arm("static 0.2", StaticRegion(0.2, 0.2))
WIDE = (
    _arm("static 0.4", StaticRegion(0.4, 0.4)),
    _arm("static 0.8", StaticRegion(0.8, 0.8)),
)
ELASTIC = (
    _arm("elastic 0.5", Elastic(strength=0.5)),
    _arm("elastic 1", Elastic(strength=1.0)),
)


def _toy(
    name: str, arms: tuple[ToyArm, ...], *, epochs: int, learning_rate: float, level: float
) -> Toy:
    return Toy(
        name=name,
        about=f"64 queries of varied difficulty, 6 tokens of 32, 16 samples, {epochs} epochs x 2 "
        f"mini-batches, Adam at {learning_rate}, 60 steps. Pass rates are exact. Hard queries are "
        "those with a pass rate below 0.2 at the start. Entropy falls as queries are solved: compare "
        f"it where the pass rate first reaches {level}, over the seeds that get there.",
        world=Graded,
        arms=arms,
        columns=(
            Column("pass_middle", f"pass at step {MIDDLE}"),
            Column("pass", "final pass"),
            Column("pass_mean", "mean over the run"),
            Column("hard_pass", "final pass, hard"),
            Column("entropy_at_level", f"entropy at pass {level}"),
            Column("policy/entropy", "final entropy"),
            Column("clipped_mean", "clipped share, whole run"),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(
            Column("pass", "pass rate"),
            Column("hard_pass", "pass rate, hard queries"),
            Column("policy/entropy", "entropy"),
            Column("policy/clipped_share", "clipped share"),
        ),
        steps=60,
        learning_rate=learning_rate,
        epochs=epochs,
        minibatches=2,
        seeds=(0, 1, 2),
        figures=on_the_way(level),
    )


MILD = (
    STATIC,
    _arm("static 0.2/0.28", StaticRegion(0.2, 0.28)),
    _arm("static 0.3", StaticRegion(0.3, 0.3)),
    *WIDE,
    *ELASTIC,
    _arm("elastic 0.5, macro 0.5", Elastic(strength=0.5, macro=0.5, range=(0.0, 1.0))),
)
TOYS = (
    _toy("etr_graded", MILD, epochs=4, learning_rate=0.05, level=0.85),
    _toy("etr_stale", (STATIC, *WIDE, *ELASTIC), epochs=8, learning_rate=0.2, level=0.75),
)
