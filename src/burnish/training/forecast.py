"""Memory by part before the first step, counted from shapes, and what would free how much of it.

Time is not forecast but measured: `training/pace.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from burnish.config.schema import Config, Lora
from burnish.errors import UserError
from burnish.records import Trajectory
from burnish.training.budget import Sizes, activation_bytes_per_token, logits_bytes
from burnish.training.packing import LONG_ANSWER, ROW_TOKENS

LORA_RANK = 16
"""Of the adapters that an advice reckons with."""
LEAST_BUDGET = 256
"""Tokens of a pass below which halving it is no way out."""


class Keys(NamedTuple):
    """The settings that decide the size of a step; empty where nothing does."""

    prompts: str = "rollout.prompts"
    samples: str = "rollout.samples"
    answer: str = "rollout.max_tokens"
    reference: str = "policy.auxiliary without kl"
    """What does without the frozen copy, as it is written in an advice."""


class Workload(NamedTuple):
    """The largest step that is expected, for the forecast."""

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
    keys: Keys = Keys()
    critic: int = 0
    """Trained parameters of a separate critic."""


MEASURED = 64
"""Rows whose lengths are measured for the forecast."""


def measured(
    batch: int,
    shown: Sequence[Trajectory],
    *,
    samples: int = 1,
    has_reference: bool = False,
    reference_key: str = "",
) -> Workload:
    """The largest step of a training on given answers, `batch` prompts; `shown` are some of them."""
    return Workload(
        batch,
        samples,
        max(one.prompt_length for one in shown),
        max(one.trained_tokens for one in shown),
        is_sampled=False,
        has_reference=has_reference,
        keys=Keys("train.batch", "", "", reference_key),
    )


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that matter here."""

    parameters: int
    trained: int
    vocabulary: int
    sizes: Sizes
    has_plain_head: bool = True
    """Logits are one matrix product: not with an adapter on the head, nor for models from transformers."""
    packs: bool = True
    """Several responses may share one row."""


class Saving(NamedTuple):
    """A change of settings, and how many bytes it frees."""

    change: str
    bytes: int


@dataclass(frozen=True)
class Forecast:
    """What a step will need."""

    memory: dict[str, int]
    """Bytes by part."""
    available: int
    savings: tuple[Saving, ...] = ()
    """What would make it less, most first."""

    @property
    def total(self) -> int:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.available

    @property
    def advice(self) -> str:
        """The largest savings in words; empty without any."""
        return advice(self.savings)


def forecast(config: Config, work: Workload, shape: Shape, budget: int, available: int) -> Forecast:
    """Memory of one step of this size, and what would make it less.

    Every answer is taken to be as long as it may be, and to be trained. `budget`: tokens of a pass.
    """
    memory = memory_by_part(config, work, shape, budget)
    return Forecast(memory, available, tuple(savings(config, work, shape, budget)))


def check_memory(found: Forecast, times: float) -> None:
    """Refuse a run that has no hope: a step needs more than `times` the free memory (0: never)."""
    if times and found.total > times * found.available:
        least = f". {found.advice}" if found.savings else ""
        raise UserError(
            f"a step would need {_size(found.total)} of memory, and {_size(found.available)} are "
            f"free{least}. guards.memory_times={times:g} allows {times:g} times what is free; 0 "
            "starts anyway"
        )


def savings(config: Config, work: Workload, shape: Shape, budget: int) -> list[Saving]:
    """Changes of settings that would free memory, ranked by the bytes.

    Each is the difference of two forecasts: as it is, and with this one thing changed.
    """
    keys, now = work.keys, sum(memory_by_part(config, work, shape, budget).values())
    changed: list[tuple[str, int]] = []

    def try_out(
        change: str,
        work: Workload = work,
        shape: Shape = shape,
        budget: int = budget,
        config: Config = config,
    ) -> None:
        changed.append((change, sum(memory_by_part(config, work, shape, budget).values())))

    if keys.prompts and work.prompts > 1:
        half = work.prompts // 2
        try_out(f"{keys.prompts}={half}", work._replace(prompts=half))
    if keys.samples and work.samples > 3:
        half = work.samples // 2
        try_out(f"{keys.samples}={half}", work._replace(samples=half))
    if keys.answer and work.answer_tokens > 1:
        half = work.answer_tokens // 2
        try_out(f"{keys.answer}={half}", work._replace(answer_tokens=half))
    if budget // 2 >= LEAST_BUDGET:
        try_out(f"update.micro_batch_tokens={budget // 2}", budget=budget // 2)
    if work.has_reference and keys.reference:
        try_out(keys.reference, work._replace(has_reference=False))
    if work.critic:
        try_out("policy.critic=shared", work._replace(critic=0))
    if config.model.lora is None:
        adapted = msgspec.structs.replace(
            config, model=msgspec.structs.replace(config.model, lora=Lora(rank=LORA_RANK))
        )
        try_out(f"model.lora.rank={LORA_RANK}", shape=_with_adapters(shape), config=adapted)
    if shape.sizes.bytes_per_value >= 4:
        halved = replace(shape, sizes=replace(shape.sizes, bytes_per_value=2))
        try_out("model.dtype=bfloat16", shape=halved)
    found = [Saving(change, now - then) for change, then in changed if then < now]
    return sorted(found, key=lambda saving: -saving.bytes)


def _with_adapters(shape: Shape) -> Shape:
    """The model with low-rank adapters on all its projections."""
    s = shape.sizes
    query, key, inner = s.hidden + s.query_width, s.hidden + s.kv_width, s.hidden + s.intermediate
    trained = s.layers * LORA_RANK * (2 * query + 2 * key + 3 * inner)
    sizes = replace(s, trains_norms=False)
    return replace(shape, trained=trained, sizes=sizes)


def advice(savings: Sequence[Saving], most: int = 5) -> str:
    """`rollout.max_tokens=64 frees 1.2 GiB, rollout.prompts=4 0.8 GiB`; empty without any."""
    if not savings:
        return ""
    first, *rest = savings[:most]
    return ", ".join(
        [
            f"{first.change} frees {_size(first.bytes)}",
            *(f"{one.change} {_size(one.bytes)}" for one in rest),
        ]
    )


def _size(count: int) -> str:
    gib = count / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{count / 2**20:.1f} MiB"


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


def memory_by_part(config: Config, work: Workload, shape: Shape, budget: int) -> dict[str, int]:
    """Bytes of one step by what holds them; parts without any are left out."""
    rollout = msgspec.structs.replace(
        config.rollout, prompts=work.prompts, samples=work.samples, max_tokens=work.answer_tokens
    )
    config = msgspec.structs.replace(config, rollout=rollout)
    size, prompt_tokens = shape.sizes.bytes_per_value, work.prompt_tokens
    rows = packed_rows(config, prompt_tokens, shares=shape.packs, observed=work.observed_tokens)
    rollouts = work.prompts * work.samples
    answer = work.answer_tokens + work.observed_tokens
    # Half-precision gradients live beside the float32 sums they are added to.
    gradient = 4 if size >= 4 else size + 4
    cached = rollouts * (prompt_tokens + answer) + work.prompts * prompt_tokens
    if shape.sizes.is_gpu:
        # Rows share their prompt's pages, and the engine keeps a reserve.
        cached = (rollouts * answer + work.prompts * prompt_tokens) * 5 // 4
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
    # Its passes are its own, so its activations take the place of the policy's.
    parts["critic"] = work.critic * (size + 4 * (size < 4) + gradient + 8)
    return {name: value for name, value in parts.items() if value}
