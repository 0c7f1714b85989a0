"""Does an importance correction help when the sampler's weights are some steps old?

The tiny model (115 k weights) learns to count: of six tokens, a digit earns half a point and the
successor of the digit before it the other half. A copy of the model from k steps ago samples, and
its log-probs travel to the loss. All arms of a seed start from the same weights. The control
`ratio to the sampler` takes the sampler's log-probs as the old ones, so that PPO's clip acts on the
whole distance.

    python -m lab.correction.stale                  # minutes on one CPU core
    python -m lab.correction.stale --seeds 0 --steps 20 --lags 0 12
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import tiny_model
from burnish.policy import (
    Aggregate,
    LossBatch,
    MaskedImportance,
    NoCorrection,
    Recipe,
    RewardBatch,
    TruncatedImportance,
    advantages,
    loss,
)
from burnish.policy.components import Correction
from burnish.seeds import derive

PROMPTS, SAMPLES, LENGTH = 4, 16, 6
LAGS = (0, 4, 12)
STEPS = 100
RATE = 5e-3
DIGITS, LETTERS = 19, 68
"""Ids of '0' and 'a' in the tiny model's byte tokenizer."""
EVERY, TAIL = 4, 5
"""The reward of the policy is measured every so many steps; the last measurements are averaged."""
CONTROL = "ratio to the sampler"
ARMS: Mapping[str, Correction] = {
    "none": NoCorrection(),
    "truncated, token": TruncatedImportance(),
    "truncated, sequence": TruncatedImportance(level="sequence"),
    "masked, token": MaskedImportance(),
    "masked, sequence": MaskedImportance(level="sequence"),
    CONTROL: NoCorrection(),
}


class Outcome(NamedTuple):
    """One run."""

    reward: float
    """Of the current policy, mean over the last measurements."""
    curve: float
    """The same over all measurements: how fast it learnt."""
    kl: float
    """From the sampler to the policy, nats a token, mean over all steps."""
    cut: float | None
    """Tokens whose weight was truncated or masked, mean over all steps."""


def train(folder: Path, arm: str, lag: int, seed: int, steps: int) -> Outcome:
    """Train one arm; equal arguments give equal numbers."""
    model = load_model(str(folder), dtype="float32", device="cpu").module
    sampler = load_model(str(folder), dtype="float32", device="cpu").module
    adam = torch.optim.Adam(model.parameters(), RATE)
    history: deque[dict[str, Tensor]] = deque(maxlen=lag + 1)
    recipe = Recipe(correction=ARMS[arm], aggregate=Aggregate(mode="seq-mean-token-mean"))
    prompts_B = torch.arange(PROMPTS).repeat_interleave(SAMPLES)
    rewards: list[float] = []
    distances: list[float] = []
    cuts: list[float] = []
    for step in range(steps):
        history.append({k: v.detach().clone() for k, v in model.state_dict().items()})
        sampler.load_state_dict(history[0])
        draw = torch.Generator().manual_seed(derive(seed, "sample", step))
        ids_BS, sampler_logp_BT = sample(sampler, prompts_B, draw)
        if step % EVERY == 0:
            rewards.append(float(score(sample(model, prompts_B, draw)[0]).mean()))
        values = advantages(recipe, reward_batch(ids_BS, prompts_B))
        logp_BT = logprobs(model, ids_BS)
        old_logp_BT = sampler_logp_BT if arm == CONTROL else logp_BT.detach()
        found = loss(
            recipe,
            LossBatch(
                logp_BT=logp_BT,
                old_logp_BT=old_logp_BT,
                mask_BT=torch.ones_like(logp_BT),
                advantages_B=values.values_B.float(),
                low_B=values.low_B.float(),
                high_B=values.high_B.float(),
                keep_B=values.keep_B,
                sampler_logp_BT=sampler_logp_BT,
            ),
        )
        gap_BT = logp_BT.detach() - sampler_logp_BT
        distances.append(float((gap_BT.expm1() - gap_BT).mean()))
        cuts.append(float(found.correction.get("cut_share", torch.zeros(()))))
        adam.zero_grad()
        found.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
    mean = statistics.fmean
    cut = None if isinstance(ARMS[arm], NoCorrection) else mean(cuts)
    return Outcome(mean(rewards[-TAIL:]), mean(rewards), mean(distances), cut)


@torch.no_grad()
def sample(model: Any, prompts_B: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Prompt and response ids, (B, 1 + T), and the log-probs of the response, (B, T)."""
    # One letter as a prompt: group g begins with the g-th.
    ids_BS = (LETTERS + prompts_B)[:, None]
    for _ in range(LENGTH):
        probs_BV = all_logits(model, ids_BS)[:, -1].softmax(-1)
        ids_BS = torch.cat([ids_BS, probs_BV.multinomial(1, generator=draw)], 1)
    return ids_BS, logprobs(model, ids_BS)


def logprobs(model: Any, ids_BS: Tensor) -> Tensor:
    """Log-probs of the tokens after the first, (B, T)."""
    logp_BTV = all_logits(model, ids_BS[:, :-1]).log_softmax(-1)
    return logp_BTV.gather(-1, ids_BS[:, 1:, None])[:, :, 0]


def all_logits(model: Any, ids_BS: Tensor) -> Tensor:
    """Logits of every position, (B, S, V)."""
    positions_BS = torch.arange(ids_BS.shape[1]).expand_as(ids_BS)
    logits_BSV: Tensor = model.logits(model(ModelInput(ids_BS, positions_BS)))
    return logits_BSV


def score(ids_BS: Tensor) -> Tensor:
    """Half a point for a digit, half for the successor of the digit before it; mean, (B,)."""
    digit_BT = ids_BS[:, 1:] - DIGITS
    is_digit_BT = (digit_BT >= 0) & (digit_BT < 10)
    before_BT = ids_BS[:, :-1] - DIGITS
    follows_BT = is_digit_BT & (digit_BT == (before_BT + 1) % 10)
    # The first token has no digit before it: any digit counts in full.
    follows_BT[:, 0] = is_digit_BT[:, 0]
    return (is_digit_BT.double() + follows_BT.double()).mean(1) / 2


def reward_batch(ids_BS: Tensor, prompts_B: Tensor) -> RewardBatch:
    """The rewards of a step."""
    count = len(ids_BS)
    return RewardBatch(
        rewards_BK=score(ids_BS)[:, None],
        weights_K=torch.ones(1),
        groups_B=prompts_B,
        lengths_B=torch.full((count,), LENGTH),
        truncated_B=torch.zeros(count, dtype=torch.bool),
        names=("counts",),
    )


def table(found: Mapping[tuple[str, int], Sequence[Outcome]], lags: Sequence[int]) -> str:
    """Reward at the end by arm and lag, mean and range over seeds; then the curve and the cut."""
    head = "| correction | " + " | ".join(f"{lag} steps old" for lag in lags) + " |"
    lines = [head, "|---" * (len(lags) + 1) + "|"]
    for arm in ARMS:
        cells = []
        for lag in lags:
            runs = found[arm, lag]
            ends = [run.reward for run in runs]
            curve = statistics.fmean(run.curve for run in runs)
            cell = f"{statistics.fmean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f}), {curve:.3f}"
            cuts = [run.cut for run in runs if run.cut is not None]
            cells.append(cell + (f", cut {statistics.fmean(cuts):.1%}" if cuts else ""))
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    drift = (statistics.fmean(run.kl for run in found["none", lag]) for lag in lags)
    lines.append(
        "| KL from sampler to policy (none) | " + " | ".join(f"{x:.4f}" for x in drift) + " |"
    )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Run every arm and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.correction.stale")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--lags", nargs="+", type=int, default=list(LAGS))
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    began = time.process_time()
    found: dict[tuple[str, int], list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in asked.seeds:
            path = tiny_model(Path(folder) / str(seed), seed=seed)
            for lag in asked.lags:
                for arm in ARMS:
                    outcome = train(path, arm, lag, seed, asked.steps)
                    found.setdefault((arm, lag), []).append(outcome)
    print(table(found, asked.lags))
    print(f"\n{asked.steps} steps, seeds {asked.seeds}, {time.process_time() - began:.0f} CPU s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
