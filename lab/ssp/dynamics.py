"""Does self-play make questions harder and the solver better? Tiny policies, the real rules.

    python -m lab.ssp.dynamics

The proposer is a softmax over depth (1 to 6 hops) and way (4 ways to build a chain, of which some break
more often); a chain of depth d built in way w is valid with a chance that falls with d. The solver is a
chance of getting each hop right, a logit for the first, second, ... hop; a question of depth d is solved
where all d hops are. Both learn by policy gradient. Rewards, batch completion, pool, success rates and
advantages are burnish's own functions: `proposer_reward`, `complete`, `QuestionPool`,
`grpo_advantage(singletons="raw")`. With `memory` a question that comes again is answered partly by
heart: a logit of its own is learned beside the hops', and is worth nothing on other questions.

Held-out accuracy is the chance of solving fresh questions of depth 1 to 6, the mean.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.agents.ssp import QuestionPool, proposer_reward, success_rate
from burnish.agents.ssp.pool import Filled, Strategy, complete
from burnish.policy import grpo_advantage
from burnish.seeds import derive

RESULTS = Path(__file__).parent / "results"
DEPTHS, WAYS = 6, 4
BATCH, ATTEMPTS = 32, 5
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Arm:
    """One way to play."""

    trains_proposer: bool = True
    checks: bool = True
    """False: every question counts as valid, whatever it is."""
    reward_type: str = "1-acc"
    invalid_reward: float = 0.0
    strategy: Strategy = "periodic"
    baseline: str = "raw"
    memory: float = 1.0
    """Learning rate of what is learned by heart, in units of the hops'."""


ARMS: dict[str, Arm] = {
    "co-evolution": Arm(),
    "fixed proposer": Arm(trains_proposer=False),
    "no check": Arm(checks=False),
    "penalty -0.1": Arm(invalid_reward=-0.1),
    "pool never reset": Arm(strategy="full"),
    "no replay (dummy)": Arm(strategy="dummy"),
    "intermediate difficulty": Arm(reward_type="intermediate_difficulty"),
    "format only": Arm(reward_type="format_only"),
    "baseline: batch mean": Arm(baseline="batch_mean"),
}


class Game:
    """Both policies and their pool."""

    def __init__(self, arm: Arm, seed: int, rate: float) -> None:
        self.arm, self.seed, self.rate = arm, seed, rate
        rng = np.random.default_rng(derive("ssp dynamics", seed))
        ways = rng.uniform(0.75, 0.97, WAYS)
        depth = np.arange(1, DEPTHS + 1)
        self.validity = ways[None, :] ** depth[:, None]
        """Chance that a chain holds, depth by way."""
        # A model that was shown short chains proposes short chains.
        self.proposer = np.repeat(-1.0 * (depth[:, None] - 1.0), WAYS, axis=1)
        self.hops = np.linspace(1.2, -0.6, DEPTHS)
        """Logit of each hop: later ones are harder."""
        self.heart: dict[str, float] = {}
        self.pool = QuestionPool(10 if arm.strategy == "periodic" else 0)
        self.asked = 0

    def chances(self) -> Array:
        flat = np.exp(self.proposer - self.proposer.max()).ravel()
        return flat / flat.sum()

    def accuracy(self) -> float:
        return float(np.cumprod(1 / (1 + np.exp(-self.hops))).mean())

    def step(self, step: int) -> dict[str, float]:
        arm, rng = self.arm, np.random.default_rng(derive(self.seed, "step", step))
        chances = self.chances()
        actions = rng.choice(DEPTHS * WAYS, BATCH, p=chances)
        holds = rng.random(BATCH) < self.validity.ravel()[actions]
        proposed: list[Filled | None] = []
        for action, is_real in zip(actions, holds, strict=True):
            self.asked += 1
            depth = int(action) // WAYS + 1
            word = f"{depth} {self.asked} {'real' if is_real else 'broken'}"
            counts = is_real or not arm.checks
            proposed.append(Filled(word, (word,), "proposed") if counts else None)
        filled = complete(
            proposed, range(BATCH), self.pool, arm.strategy, 1.0, derive(self.seed, "fill", step)
        )
        scores, groups, tries = self._solve(filled, rng)
        rewards = [
            proposer_reward(
                scores[place] if proposed[place] is not None else [None],
                arm.reward_type,  # type: ignore[arg-type]
                valid=proposed[place] is not None,
                invalid_reward=arm.invalid_reward,
            )
            for place in range(BATCH)
        ]
        self._learn(actions, chances, rewards, scores, groups, tries)
        rates: dict[str, tuple[Filled, float | None]] = {}
        for place, question in enumerate(filled):
            if question is not None:
                rates[question.question] = (question, success_rate(scores[place]))
        if arm.strategy in ("full", "periodic"):
            for question, rate in rates.values():
                self.pool.add(question.question, list(question.answer), success=rate, step=step)
        self.pool.end_step(step)
        known = [own for place, own in scores.items() if proposed[place] is not None]
        return {
            "valid": float(np.mean([p is not None for p in proposed])),
            "real": float(holds.mean()),
            "depth": float(np.mean(actions // WAYS + 1)),
            "success": float(np.mean([success_rate(r) for r in known])) if known else float("nan"),
            "entropy": float(-(chances * np.log(chances + 1e-12)).sum()),
            "accuracy": self.accuracy(),
            "proposer": float(np.mean(rewards)),
        }

    def _solve(
        self, filled: list[Filled | None], rng: np.random.Generator
    ) -> tuple[dict[int, list[float]], list[int], list[tuple[str, Array, Array]]]:
        """Scores by place, the place of every attempt, and what each attempt did."""
        scores: dict[int, list[float]] = {}
        groups: list[int] = []
        tries: list[tuple[str, Array, Array]] = []
        for place, question in enumerate(filled):
            if question is None:
                continue
            depth, _, kind = question.question.split()
            logits = self.hops[: int(depth)] + self.heart.get(question.question, 0.0)
            chance = 1 / (1 + np.exp(-logits))
            for _ in range(ATTEMPTS):
                right = rng.random(int(depth)) < chance
                # A chain that does not hold has no answer that anybody could find.
                score = float(right.all() and kind == "real")
                scores.setdefault(place, []).append(score)
                groups.append(place)
                tries.append((question.question, right, chance))
        return scores, groups, tries

    def _learn(
        self,
        actions: Array,
        chances: Array,
        rewards: list[float],
        scores: dict[int, list[float]],
        groups: list[int],
        tries: list[tuple[str, Array, Array]],
    ) -> None:
        """Advantages of both roles from one batch, then one step of both."""
        attempts = [score for own in scores.values() for score in own]
        labels = [f"p{place}" for place in range(BATCH)] + [f"s{place}" for place in groups]
        values = grpo_advantage(
            torch.tensor([*rewards, *attempts], dtype=torch.float64),
            labels,
            singletons=self.arm.baseline,  # type: ignore[arg-type]
        ).tolist()
        if self.arm.trains_proposer:
            gradient = np.zeros(DEPTHS * WAYS)
            for action, value in zip(actions, values[:BATCH], strict=True):
                gradient -= value * chances
                gradient[action] += value
            self.proposer += self.rate * gradient.reshape(DEPTHS, WAYS) / BATCH * 4
        total = max(1, len(tries))
        for (question, right, chance), value in zip(tries, values[BATCH:], strict=True):
            push = value * (right - chance)
            self.hops[: len(right)] += self.rate * push / total * 4
            if self.arm.memory:
                own = self.rate * self.arm.memory * push.mean() / ATTEMPTS
                self.heart[question] = self.heart.get(question, 0.0) + own


def played(name: str, seed: int, steps: int, rate: float) -> list[dict[str, float]]:
    """The figures of every step."""
    game = Game(ARMS[name], seed, rate)
    return [game.step(step) for step in range(steps)]


COLUMNS = {
    "accuracy": "held-out accuracy",
    "depth": "mean depth proposed",
    "valid": "valid rate in the game",
    "real": "valid by the oracle",
    "success": "success rate of new questions",
    "entropy": "entropy of the proposer",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Search self-play with tiny policies.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    head = ["arm", *COLUMNS.values(), "accuracy against co-evolution, paired"]
    rows: list[list[object]] = []
    curves: list[list[object]] = [["arm", "seed", "step", *COLUMNS]]
    first: list[float] = []
    for name in ARMS:
        runs = [played(name, seed, given.steps, given.rate) for seed in range(given.seeds)]
        for seed, run in enumerate(runs):
            for step, found in enumerate(run):
                if step % 10 == 9:
                    values = [round(found[key], 4) for key in COLUMNS]
                    curves.append([name, seed, step + 1, *values])
        ends = {k: [statistics.fmean(s[k] for s in run[-10:]) for run in runs] for k in COLUMNS}
        first = first or ends["accuracy"]
        apart = [own - base for own, base in zip(ends["accuracy"], first, strict=True)]
        cells = [f"{statistics.fmean(v):.3f} ± {statistics.stdev(v):.3f}" for v in ends.values()]
        above = f"{statistics.fmean(apart):+.3f} ± {statistics.stdev(apart):.3f}"
        rows.append([name, *cells, above])
    start = Game(ARMS["co-evolution"], 0, 0.0).accuracy()
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    note = (
        f"`python -m lab.ssp.dynamics`: {given.steps} steps of {BATCH} answers and {ATTEMPTS} "
        f"attempts, {given.seeds} seeds, means over the last 10 steps ± standard deviation over "
        f"seeds. Held-out accuracy at the start: {start:.3f}.\n\n"
    )
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "dynamics.md").write_text(note + text + "\n")
    for name, table in (("dynamics", [head, *rows]), ("dynamics_curves", curves)):
        with (given.out / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    print(text)


if __name__ == "__main__":
    main()
