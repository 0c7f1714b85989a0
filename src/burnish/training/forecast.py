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
from functools import cache, partial
from typing import NamedTuple

import msgspec
import torch

from burnish.config.schema import Config
from burnish.training.budget import Sizes, activation_bytes_per_token, logits_bytes
from burnish.training.packing import LONG_ANSWER, ROW_TOKENS

STARTS_A_LAYER = 30
"""Operations that one layer's forward pass starts; a backward pass starts twice as many."""
GRAPH_LAYER_S = 29e-6
"""One layer of a decode step in a captured graph, however few the rows; seen on an H200."""
CPU_SIDES = (96, 192, 384, 768)
"""Of the square matrices whose product is timed."""
TIMEABLE_S = 2e-3
"""What a product takes at least for its time to say something."""


class Workload(NamedTuple):
    """The largest step that is expected, for the forecast of memory and time."""

    prompts: int
    samples: int
    """Sequences behind each prompt."""
    prompt_tokens: int
    answer_tokens: int
    is_sampled: bool = True
    """The model writes the answers itself."""
    has_reference: bool = False
    """A frozen copy of the model is kept."""
    observed_tokens: int = 0
    """Tokens between the turns of one sequence: read and kept, neither sampled nor trained."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that matter here."""

    parameters: int
    trained: int
    vocabulary: int
    sizes: Sizes
    has_plain_head: bool = True
    """Logits are one matrix product: not with an adapter, nor for models from transformers."""
    packs: bool = True
    """Several responses may share one row."""


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
    is_gpu: bool


def forecast(
    config: Config, work: Workload, shape: Shape, speed: Speed, budget: int, available: int
) -> Forecast:
    """Memory and time of one step of this size.

    Every answer is taken to be as long as it may be, and to be trained.
    """
    sizes, prompt_tokens = shape.sizes, work.prompt_tokens
    rollout = msgspec.structs.replace(
        config.rollout,
        prompts=work.prompts,
        samples=work.samples,
        max_tokens=work.answer_tokens,
    )
    config = msgspec.structs.replace(config, rollout=rollout)
    rollouts = config.rollout.prompts * config.rollout.samples
    answer = config.rollout.max_tokens
    rows = packed_rows(config, prompt_tokens, shares=shape.packs, observed=work.observed_tokens)
    tokens = rows.tokens
    memory = _memory(config, work, shape, speed, rows, budget)
    read = config.rollout.prompts * prompt_tokens + rollouts * work.observed_tokens
    prefill = 2 * shape.parameters * read
    weights = shape.parameters * sizes.bytes_per_value / speed.bytes_per_s
    decode = max(2 * shape.parameters * rollouts / speed.operations_per_s, weights)
    start = sizes.layers * STARTS_A_LAYER * speed.start_s
    decode += sizes.layers * GRAPH_LAYER_S if speed.is_gpu else start
    passes = config.update.epochs + (config.update.epochs * config.update.minibatches > 1) / 3
    batches = max(config.update.minibatches, math.ceil(tokens / budget))
    arithmetic = 6 * shape.parameters * tokens / speed.operations_per_s
    return Forecast(
        memory=memory,
        available=available,
        rollout_s=work.is_sampled * (prefill / speed.operations_per_s + start + decode * answer),
        update_s=passes * (arithmetic + 3 * start * batches),
    )


@dataclass(frozen=True)
class PackedRows:
    """The training rows of a step."""

    count: int
    width: int
    """Tokens of the longest row."""
    tokens: int
    """Of all rows together."""
    together: int
    """Answers in a full row."""


def packed_rows(
    config: Config, prompt_tokens: int, *, shares: bool = True, observed: int = 0
) -> PackedRows:
    """How a step's rollouts are laid out when every answer is as long as it may be.

    `shares`: whether the model can have several answers in one row; `observed`: tokens of each
    rollout that the environment wrote.
    """
    samples, answer = config.rollout.samples, config.rollout.max_tokens + observed
    is_shared = shares and config.update.share_prompts and answer <= LONG_ANSWER * prompt_tokens
    fitting = max(1, (ROW_TOKENS - prompt_tokens) // answer) if is_shared else 1
    together = min(fitting, samples)
    rows = math.ceil(samples / together)
    return PackedRows(
        count=config.rollout.prompts * rows,
        width=prompt_tokens + together * answer,
        tokens=config.rollout.prompts * (rows * prompt_tokens + samples * answer),
        together=together,
    )


def update_bytes(config: Config, shape: Shape, rows: PackedRows, budget: int) -> int:
    """What the largest pass of an update holds for its backward pass, logits included."""
    groups = config.rollout.prompts
    dealt = math.ceil(groups / min(config.update.minibatches, groups))
    count = min(max(1, budget // rows.width), rows.count * dealt // groups)
    # Rows are padded to the longest one, and a prompt's last row may be a short one.
    tokens = count * rows.width
    trained = min(count * rows.together, dealt * config.rollout.samples) * config.rollout.max_tokens
    sizes = shape.sizes
    kept = activation_bytes_per_token(sizes, rows.width, is_masked=rows.together > 1)
    return tokens * kept + logits_bytes(
        trained,
        shape.vocabulary,
        sizes.bytes_per_value,
        is_gpu=sizes.is_gpu,
        has_plain_head=shape.has_plain_head,
    )


def _memory(
    config: Config, work: Workload, shape: Shape, speed: Speed, rows: PackedRows, budget: int
) -> dict[str, int]:
    size, prompt_tokens = shape.sizes.bytes_per_value, work.prompt_tokens
    rollouts = config.rollout.prompts * config.rollout.samples
    answer = config.rollout.max_tokens + work.observed_tokens
    # Half-precision gradients live beside the float32 sums they are added to.
    gradient = 4 if size >= 4 else size + 4
    cached = rollouts * (prompt_tokens + answer) + config.rollout.prompts * prompt_tokens
    if speed.is_gpu:
        # Rows share their prompt's pages, and the engine keeps a reserve.
        cached = (rollouts * answer + config.rollout.prompts * prompt_tokens) * 5 // 4
    parts = {
        "weights": shape.parameters * size,
        "master weights": shape.trained * 4 if size < 4 else 0,
        "gradients": shape.trained * gradient,
        "optimiser": shape.trained * 8,
        "activations": update_bytes(config, shape, rows, budget),
        "cache": work.is_sampled * 2 * cached * shape.sizes.layers * shape.sizes.kv_width * size,
    }
    if work.has_reference and config.model.lora is None:
        parts["reference"] = shape.parameters * size
    return {name: value for name, value in parts.items() if value}


def measure_speed(device: torch.device, dtype: torch.dtype) -> Speed:
    """Probe a matrix product and a copy for a few hundredths of a second, once in a process."""
    return _probe(device, dtype, torch.get_num_threads())


@cache
def _probe(device: torch.device, dtype: torch.dtype, threads: int) -> Speed:
    a = torch.ones(1, 1, device=device, dtype=dtype)
    block = torch.ones(16 * 2**20, device=device, dtype=torch.uint8)
    with torch.inference_mode():
        operations = _operations_per_s(device, dtype)
        moved = 2 * block.numel() / _seconds(block.clone, device)
        start = _seconds(lambda: [a[0, 0] + 1 for _ in range(50)], device) / 100
    return Speed(operations, moved, start, is_gpu=device.type == "cuda")


def _operations_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Of a matrix product; on a CPU of the smallest one that can be timed.

    Half precision that a CPU only emulates is a hundred times slower: the largest product would
    take a minute there.
    """
    rate = 0.0
    for side in (4096,) if device.type == "cuda" else CPU_SIDES:
        square = torch.ones(side, side, device=device, dtype=dtype)
        seconds = _seconds(partial(torch.matmul, square, square), device)
        rate = 2 * side**3 / seconds
        if seconds > TIMEABLE_S:
            break
    return rate


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
