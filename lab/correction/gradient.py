"""How far is the gradient of stale samples from that of fresh ones, with and without a correction?

The tiny model learns to count (`lab.correction.stale`) for some steps with fresh samples. Then
nothing moves any more: the model of the last step is the policy, the models of k steps before are
samplers. Each draws the same number of batches. The mean gradient over all batches of the policy's
own samples is the target. `bias` is the distance of an arm's mean gradient from it, `one batch` the
root mean square distance of single batches; both divided by the target's norm.

    python -m lab.correction.gradient                   # minutes on one CPU core
    python -m lab.correction.gradient --batches 10 --seeds 0
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.lm.folder import load_model
from burnish.lm.new_model import tiny_model
from burnish.policy import Aggregate, LossBatch, Recipe, advantages, loss
from burnish.seeds import derive
from lab.correction.stale import (
    ARMS,
    CONTROL,
    PROMPTS,
    RATE,
    SAMPLES,
    logprobs,
    reward_batch,
    sample,
)

STEPS, BATCHES = 40, 15
LAGS = (4, 8)
FRESH = "fresh samples"
ESTIMATORS = tuple(arm for arm in ARMS if arm != CONTROL)


class Error(NamedTuple):
    """Distance of an estimator's gradient from the target, as a share of the target's norm."""

    bias: float
    one_batch: float
    cosine: float
    """Of the mean gradient with the target."""


class Drawn(NamedTuple):
    """Gradients of single batches, float64 (N, parameters), and how far the sampler was away."""

    gradients_NP: Mapping[str, Tensor]
    kl: float
    """From sampler to policy, nats a token."""


def batch_gradient(model: Any, ids_BS: Tensor, sampler_logp_BT: Tensor, arm: str) -> Tensor:
    """The flat gradient of one batch under GRPO with this correction."""
    recipe = Recipe(correction=ARMS[arm], aggregate=Aggregate(mode="seq-mean-token-mean"))
    prompts_B = torch.arange(PROMPTS).repeat_interleave(SAMPLES)
    values = advantages(recipe, reward_batch(ids_BS, prompts_B))
    logp_BT = logprobs(model, ids_BS)
    found = loss(
        recipe,
        LossBatch(
            logp_BT=logp_BT,
            old_logp_BT=logp_BT.detach(),
            mask_BT=torch.ones_like(logp_BT),
            advantages_B=values.values_B.float(),
            low_B=values.low_B.float(),
            high_B=values.high_B.float(),
            keep_B=values.keep_B,
            sampler_logp_BT=sampler_logp_BT,
        ),
    )
    gradients = torch.autograd.grad(found.total, list(model.parameters()))
    return torch.cat([g.reshape(-1) for g in gradients])


def learn(folder: Path, seed: int) -> list[dict[str, Tensor]]:
    """The weights before each step of a run on fresh samples, and after the last."""
    model = load_model(str(folder), dtype="float32", device="cpu").module
    adam = torch.optim.Adam(model.parameters(), RATE)
    prompts_B = torch.arange(PROMPTS).repeat_interleave(SAMPLES)
    history = []
    for step in range(STEPS + 1):
        history.append({k: v.detach().clone() for k, v in model.state_dict().items()})
        draw = torch.Generator().manual_seed(derive(seed, "sample", step))
        ids_BS, own_logp_BT = sample(model, prompts_B, draw)
        flat = batch_gradient(model, ids_BS, own_logp_BT, "none")
        parts = torch.split(flat, [p.numel() for p in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad = part.reshape(parameter.shape).clone()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
    return history


def draw_gradients(model: Any, sampler: Any, arms: Sequence[str], seed: int, batches: int) -> Drawn:
    """Gradients of `batches` batches that the sampler draws; all arms read the same samples."""
    prompts_B = torch.arange(PROMPTS).repeat_interleave(SAMPLES)
    found: dict[str, list[Tensor]] = {arm: [] for arm in arms}
    distances = []
    for number in range(batches):
        draw = torch.Generator().manual_seed(derive(seed, "batch", number))
        ids_BS, sampler_logp_BT = sample(sampler, prompts_B, draw)
        with torch.no_grad():
            gap_BT = logprobs(model, ids_BS) - sampler_logp_BT
        distances.append(float((gap_BT.expm1() - gap_BT).mean()))
        for arm in arms:
            found[arm].append(batch_gradient(model, ids_BS, sampler_logp_BT, arm))
    stacked = {arm: torch.stack(rows).double() for arm, rows in found.items()}
    return Drawn(stacked, statistics.fmean(distances))


def error_of(gradients_NP: Tensor, target_P: Tensor) -> Error:
    """Bias, error of one batch and direction of an estimator."""
    mean_P, size = gradients_NP.mean(0), target_P.norm()
    one = (gradients_NP - target_P).square().sum(1).mean().sqrt() / size
    cosine = torch.dot(mean_P, target_P) / (mean_P.norm() * size)
    return Error(float((mean_P - target_P).norm() / size), float(one), float(cosine))


def measure(
    folder: Path, seed: int, lags: Sequence[int], batches: int
) -> tuple[dict[tuple[str, int], Error], dict[int, float]]:
    """Errors by arm and lag, and the distance of each sampler."""
    history = learn(folder, seed)
    model, sampler = (
        load_model(str(folder), dtype="float32", device="cpu").module for _ in range(2)
    )
    model.load_state_dict(history[-1])
    fresh = draw_gradients(model, model, ["none"], derive(seed, "target"), batches)
    target_P = fresh.gradients_NP["none"].mean(0)
    # Another draw of the policy's own: what is left of an error when there is nothing to correct.
    again = draw_gradients(model, model, ["none"], derive(seed, "floor"), batches)
    found = {(FRESH, 0): error_of(again.gradients_NP["none"], target_P)}
    distances = {0: 0.0}
    for lag in lags:
        sampler.load_state_dict(history[-1 - lag])
        drawn = draw_gradients(model, sampler, ESTIMATORS, derive(seed, "stale", lag), batches)
        distances[lag] = drawn.kl
        for arm in ESTIMATORS:
            found[arm, lag] = error_of(drawn.gradients_NP[arm], target_P)
    return found, distances


def table(
    found: Mapping[tuple[str, int], Sequence[Error]],
    distances: Mapping[int, Sequence[float]],
    lags: Sequence[int],
) -> str:
    """Bias, error of one batch and cosine by arm and lag, means over seeds."""
    mean = statistics.fmean
    heads = [f"{lag} steps old ({mean(distances[lag]):.2f} nats)" for lag in lags]
    lines = ["| correction | " + " | ".join(heads) + " |", "|---" * (len(lags) + 1) + "|"]

    def cell(errors: Sequence[Error]) -> str:
        bias, one, cosine = (mean(column) for column in zip(*errors, strict=True))
        return f"{bias:.2f}, {one:.2f}, {cosine:.2f}"

    lines.append(f"| {FRESH} | " + " | ".join([cell(found[FRESH, 0])] * len(lags)) + " |")
    for arm in ESTIMATORS:
        lines.append(f"| {arm} | " + " | ".join(cell(found[arm, lag]) for lag in lags) + " |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print the table: bias, error of one batch, cosine."""
    parser = argparse.ArgumentParser(prog="python -m lab.correction.gradient")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--lags", nargs="+", type=int, default=list(LAGS))
    parser.add_argument("--batches", type=int, default=BATCHES)
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    began = time.process_time()
    found: dict[tuple[str, int], list[Error]] = {}
    distances: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in asked.seeds:
            path = tiny_model(Path(folder) / str(seed), seed=seed)
            errors, away = measure(path, seed, asked.lags, asked.batches)
            for key, error in errors.items():
                found.setdefault(key, []).append(error)
            for lag, distance in away.items():
                distances.setdefault(lag, []).append(distance)
    print(table(found, distances, asked.lags))
    seconds = time.process_time() - began
    print(f"\n{asked.batches} batches, seeds {asked.seeds}, {seconds:.0f} CPU s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
