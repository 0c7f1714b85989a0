"""Toys: small policies that burnish's own two doors train in seconds on one core.

A toy is a world (what is sampled, how it is rewarded, what is true of it) and arms that differ in
their recipe. All that a method does here goes through `advantages(recipe, batch, state)` and
`loss(recipe, batch)`, so that what a toy shows is shown of the pieces and not of a copy of them.

    python -m lab.run_toys clipo etr
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from burnish.policy import (
    LossBatch,
    PolicyState,
    Recipe,
    RewardBatch,
    advantages,
    fit_reference_stats,
    loss,
)
from burnish.policy.batch import Advantages
from burnish.seeds import derive
from lab.collect import Row
from lab.plan import Column

TAIL = 10
"""Last steps over which entropy, clipped share and the like are averaged."""
TOTALS = ("trained", "sampled")
"""Rollouts so far."""
MOST_STEPS = 8
"""A run with a budget of trained rollouts ends after this many times its steps."""


class Rollouts(NamedTuple):
    """Answers that were sampled, and by which probabilities."""

    groups_B: Tensor
    """The query of each; int64."""
    tokens_BT: Tensor
    logp_BT: Tensor
    shown_BF: Tensor | None = None
    """What the policy saw, where that is more than the number of a query."""

    def rows(self, index_N: Tensor) -> Rollouts:
        """Some of them."""
        shown = None if self.shown_BF is None else self.shown_BF[index_N]
        return Rollouts(
            self.groups_B[index_N], self.tokens_BT[index_N], self.logp_BT[index_N], shown
        )


class Scored(NamedTuple):
    """What the world says to rollouts."""

    rewards_BK: Tensor
    hidden_BD: Tensor | None = None


class World(Protocol):
    """A policy and the queries that it answers."""

    names: tuple[str, ...]
    """Of the rewards."""

    def parameters(self) -> list[Tensor]: ...

    def sample(self, samples: int, draw: torch.Generator) -> Rollouts: ...

    def logp(self, rollouts: Rollouts) -> Tensor:
        """Log-probabilities of their tokens now, (B, T)."""
        ...

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored: ...

    def measure(self) -> dict[str, float]:
        """What is true of the policy, whatever it is rewarded for."""
        ...

    def experts(self, draw: torch.Generator) -> Tensor | None:
        """Log-probabilities of demonstrations, (N, T); None where the world has none."""
        ...


@dataclass(frozen=True)
class ToyArm:
    """One way to train: a recipe, and what its world does differently."""

    name: str
    recipe: Recipe
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Toy:
    """One question, asked of several arms and seeds; the first arm is the baseline."""

    name: str
    about: str
    world: Callable[..., World]
    """`world(seed, **options)`: the same start for all arms of a seed."""
    arms: tuple[ToyArm, ...]
    columns: tuple[Column, ...]
    panels: tuple[Column, ...]
    """Curves of the picture."""
    steps: int
    """Steps in which the policy moves; those in which only a head learns come on top."""
    learning_rate: float
    samples: int = 16
    epochs: int = 1
    minibatches: int = 1
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    watch: tuple[str, ...] = ()
    """Figures of the advantage door that the curves keep."""
    equal_rollouts: str = ""
    """The measure that is also compared at an equal number of trained rollouts: every arm then goes
    on until it has trained on as many as `steps` full batches hold."""
    figures: Callable[[Sequence[Row]], Row] | None = None
    """More figures of a run, from its curves."""


@dataclass(frozen=True)
class ToyRun:
    """Figures of one run, and its curves: the start and a row for each step."""

    row: Row
    curves: list[Row]


class Table:
    """A softmax of its own for every query and position: logits (Q, T, V)."""

    def __init__(self, start_QTV: Tensor) -> None:
        self.logits_QTV = start_QTV.clone().requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [self.logits_QTV]

    @property
    def probs_QTV(self) -> Tensor:
        return self.logits_QTV.detach().softmax(-1)

    @property
    def entropy(self) -> float:
        """In nats, mean over queries and positions."""
        probs_QTV = self.probs_QTV
        return float(torch.special.entr(probs_QTV).sum(-1).mean())

    def sample(self, samples: int, draw: torch.Generator) -> Rollouts:
        queries, length, words = self.logits_QTV.shape
        flat = self.probs_QTV.reshape(-1, words).multinomial(samples, True, generator=draw)
        tokens_BT = flat.view(queries, length, samples).transpose(1, 2).reshape(-1, length)
        groups_B = torch.arange(queries).repeat_interleave(samples)
        drawn = Rollouts(groups_B, tokens_BT, torch.empty(0))
        with torch.no_grad():
            return drawn._replace(logp_BT=self.logp(drawn))

    def logp(self, rollouts: Rollouts) -> Tensor:
        _, length, words = self.logits_QTV.shape
        place_BT = rollouts.groups_B[:, None] * length + torch.arange(length)
        flat_N = (place_BT * words + rollouts.tokens_BT).reshape(-1)
        return self.logits_QTV.log_softmax(-1).reshape(-1).gather(0, flat_N).view_as(place_BT)

    def experts(self, draw: torch.Generator) -> Tensor | None:
        return None


def generator(*parts: str | int) -> torch.Generator:
    """A generator for one purpose, so that no draw depends on how many came before it."""
    return torch.Generator().manual_seed(derive(*parts))


def run_toy(toy: Toy, arm: ToyArm, seed: int, steps: int = 0) -> ToyRun:
    """Train one arm from one seed; equal arguments give equal figures. `steps` 0: the toy's own."""
    began = time.process_time()
    steps = steps or toy.steps
    world = toy.world(seed, **arm.options)
    adam = torch.optim.Adam(world.parameters(), toy.learning_rate)
    state = _calibrated(arm.recipe, world, seed)
    curves: list[Row] = [{"done": 0, **world.measure(), "trained": 0, "sampled": 0}]
    step, budget = 0, 0
    while len(curves) <= steps or (curves[-1]["trained"] < budget and step < MOST_STEPS * steps):
        draw = generator(seed, toy.name, "step", step)
        rollouts = world.sample(toy.samples, draw)
        batch = _rewarded(world, rollouts, draw, seed=derive(seed, toy.name, "pieces", step))
        weighed = advantages(arm.recipe, batch, state)
        state, step = weighed.state, step + 1
        if not weighed.moves:
            continue
        clipped = _update(toy, arm.recipe, world, adam, rollouts, weighed, draw)
        values = weighed.values_B
        moves_B = (values != 0).any(1) if values.ndim == 2 else values != 0
        row = (
            {
                "kept": float(weighed.keep_B.double().mean()),
                "kept_groups": len(torch.unique(rollouts.groups_B[weighed.keep_B]))
                / len(torch.unique(rollouts.groups_B)),
                "useful_groups": float(weighed.signal_B.double().mean()),
                "trained": int((weighed.keep_B & moves_B).sum()),
                "sampled": len(moves_B),
                **{key: weighed.diagnostics.get(key) for key in toy.watch},
            }
        ) | {"policy/clipped_share": clipped}
        for key in TOTALS:
            row[key] += curves[-1][key]
        curves.append({"done": len(curves), **world.measure(), **row})
        if toy.equal_rollouts:
            budget = steps * len(rollouts.groups_B)
    seconds = time.process_time() - began
    at_steps = next((row for row in curves if row["done"] == steps), curves[-1])
    found: Row = {key: value for key, value in at_steps.items() if key != "done"}
    tail = [row for row in curves[1:] if row["done"] <= steps][-TAIL:]
    for key in ("policy/clipped_share", "kept", "kept_groups", "useful_groups", *toy.watch):
        known = [row[key] for row in tail if row.get(key) is not None]
        found[key] = sum(known) / len(known) if known else None
    start = {key: value for key, value in curves[0].items() if key not in TOTALS}
    found |= {f"start/{key}": value for key, value in start.items() if key != "done"}
    if toy.equal_rollouts:
        last = curves[-1]
        found["at_equal_rollouts"] = last[toy.equal_rollouts]
        found |= {f"{key}_at_equal_rollouts": last[key] for key in ("done", *TOTALS)}
    if toy.figures is not None:
        found |= toy.figures([row for row in curves if row["done"] <= steps])
    return ToyRun({**found, "cpu_s": seconds}, curves)


def _calibrated(recipe: Recipe, world: World, seed: int) -> PolicyState:
    """What a recipe must know of the start policy before the first step."""
    piece = recipe.calibration
    if piece is None:
        return PolicyState()
    draw = generator(seed, "calibration")
    rewards_NK = world.score(world.sample(piece.samples, draw), draw).rewards_BK
    stats = fit_reference_stats(rewards_NK, piece.sd_floor, robust=piece.robust)
    return replace(PolicyState(), reference=stats)


def _rewarded(world: World, rollouts: Rollouts, draw: torch.Generator, seed: int) -> RewardBatch:
    scored = world.score(rollouts, draw)
    size, length = rollouts.tokens_BT.shape
    # Two answers are the same where a query got the same tokens twice.
    whole = torch.cat([rollouts.groups_B[:, None], rollouts.tokens_BT], 1)
    return RewardBatch(
        rewards_BK=scored.rewards_BK,
        weights_K=torch.ones(scored.rewards_BK.shape[1]),
        groups_B=rollouts.groups_B,
        lengths_B=torch.full((size,), length),
        truncated_B=torch.zeros(size, dtype=torch.bool),
        names=world.names,
        seed=seed,
        hidden_BD=scored.hidden_BD,
        duplicate_id_B=None
        if scored.hidden_BD is None
        else torch.unique(whole, dim=0, return_inverse=True)[1],
        segments_BT=torch.zeros_like(rollouts.tokens_BT),
    )


def _update(
    toy: Toy,
    recipe: Recipe,
    world: World,
    adam: torch.optim.Optimizer,
    rollouts: Rollouts,
    weighed: Advantages,
    draw: torch.Generator,
) -> float:
    """All updates of a step on the rollouts that are kept; the mean clipped share."""
    kept_N = weighed.keep_B.nonzero()[:, 0]
    shares: list[float] = []
    for _ in range(toy.epochs if len(kept_N) else 0):
        order_N = kept_N[torch.randperm(len(kept_N), generator=draw)]
        for index in order_N.chunk(toy.minibatches):
            part = rollouts.rows(index)
            experts_NT = world.experts(draw) if recipe.imitation else None
            found = loss(
                recipe,
                LossBatch(
                    logp_BT=world.logp(part),
                    old_logp_BT=part.logp_BT,
                    mask_BT=torch.ones_like(part.tokens_BT),
                    advantages_B=weighed.values_B[index].float(),
                    low_B=weighed.low_B[index].float(),
                    high_B=weighed.high_B[index].float(),
                    keep_B=weighed.keep_B[index],
                    expert_logp_BT=experts_NT,
                    expert_mask_BT=None if experts_NT is None else torch.ones_like(experts_NT),
                ),
            )
            adam.zero_grad()
            found.total.backward()  # type: ignore[no-untyped-call]
            adam.step()
            shares.append(float(found.clipped_share))
    return sum(shares) / len(shares) if shares else 0.0
