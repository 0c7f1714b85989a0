"""Memory by part and seconds by step, before the first step.

Memory is counted from shapes. Time comes from three probes of this machine (a matrix product, a
large copy, a tiny operation) put through the arithmetic of a decoder: 2 operations a parameter and
token forward, 6 forward and backward, one pass over the weights for each sampled token, and the
price of starting each layer's operations, which is most of it for small models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from burnish.config.schema import Config
from burnish.training.forward import CHUNK

STARTS_A_LAYER = 30
"""Operations that one layer's forward pass starts; a backward pass starts twice as many."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that matter here."""

    parameters: int
    trained: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    vocabulary: int
    bytes_per_value: int


@dataclass(frozen=True)
class Forecast:
    """What a step will need."""

    memory: dict[str, int]
    """Bytes by part."""
    available: int
    rollout_s: float
    update_s: float

    @property
    def total(self) -> int:
        return sum(self.memory.values())

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.update_s


@dataclass(frozen=True)
class Speed:
    """What this machine does in this precision."""

    operations_per_s: float
    bytes_per_s: float
    start_s: float
    """Seconds to start one operation from Python."""


def forecast(
    config: Config, shape: Shape, speed: Speed, prompt_tokens: int, budget: int, available: int
) -> Forecast:
    """Memory and time of one step of this config."""
    rollouts = config.rollout.prompts * config.rollout.samples
    answer = config.rollout.max_tokens
    rows = config.rollout.prompts if config.update.share_prompts else rollouts
    trained_tokens = rows * prompt_tokens + rollouts * answer
    memory = _memory(config, shape, rollouts, prompt_tokens, min(budget, trained_tokens))
    prefill = 2 * shape.parameters * config.rollout.prompts * prompt_tokens
    weights = shape.parameters * shape.bytes_per_value / speed.bytes_per_s
    decode = max(2 * shape.parameters * rollouts / speed.operations_per_s, weights)
    passes = config.update.epochs + (config.update.epochs * config.update.minibatches > 1) / 3
    start = shape.layers * STARTS_A_LAYER * speed.start_s
    batches = max(config.update.minibatches, math.ceil(trained_tokens / budget))
    arithmetic = 6 * shape.parameters * trained_tokens / speed.operations_per_s
    return Forecast(
        memory=memory,
        available=available,
        rollout_s=prefill / speed.operations_per_s + (decode + start) * answer,
        update_s=passes * (arithmetic + 3 * start * batches),
    )


def _memory(
    config: Config, shape: Shape, rollouts: int, prompt_tokens: int, tokens: int
) -> dict[str, int]:
    size = shape.bytes_per_value
    own_master = size < 4
    per_token = 6 * shape.hidden + 2 * shape.kv_width + 4 * shape.intermediate
    logits = min(tokens, rollouts * config.rollout.max_tokens, CHUNK) * shape.vocabulary * 4 * 3
    length = prompt_tokens + config.rollout.max_tokens
    parts = {
        "weights": shape.parameters * size,
        "master weights": shape.trained * 4 if own_master else 0,
        "gradients": shape.trained * (size + 4),
        "optimiser": shape.trained * 8,
        "activations": tokens * shape.layers * per_token * size + logits,
        "cache": 2 * rollouts * length * shape.layers * shape.kv_width * size,
    }
    if config.policy.needs_reference and config.model.lora is None:
        parts["reference"] = shape.parameters * size
    return {name: value for name, value in parts.items() if value}


def measure_speed(device: torch.device, dtype: torch.dtype) -> Speed:
    """Probe a matrix product and a copy for a few hundredths of a second."""
    side = 4096 if device.type == "cuda" else 768
    a = torch.ones(side, side, device=device, dtype=dtype)
    block = torch.ones(16 * 2**20, device=device, dtype=torch.uint8)
    with torch.inference_mode():
        operations = 2 * side**3 / _seconds(lambda: a @ a, device)
        moved = 2 * block.numel() / _seconds(block.clone, device)
        start = _seconds(lambda: [a[0, 0] + 1 for _ in range(50)], device) / 100
    return Speed(operations, moved, start)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The best of a few runs, after one to warm up."""
    work()
    best = float("inf")
    for _ in range(3):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
