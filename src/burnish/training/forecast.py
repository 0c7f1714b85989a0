"""Memory counted from shapes: of a pass, of a step by part, and what would free how much of it.

With b bytes a value, r for the residual stream (at least float32), D hidden, A = heads x head size, K =
key heads x head size, I intermediate and H heads, a token keeps in one layer

    r (2 D) + b (2 D + 4 A + 3 I) + 4 (H + 2)        with the fused kernels of a GPU
    r (4 D) + b (2 D + 4 A + 4 I) + 4 (H + 2)        in plain torch

and more where attention is not one kernel, is masked, or norms its queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import torch

from burnish.config.schema import Config, Lora
from burnish.errors import UserError
from burnish.lm.decoder import SHORT, Decoder
from burnish.lm.folder import LoadedModel
from burnish.lm.hardware import available_bytes, can_run_kernels
from burnish.lm.head import CPU_CHUNK_BYTES, GPU_CHUNK_BYTES
from burnish.records import Trajectory
from burnish.training.packing import CHUNK, LONG_ANSWER, ROW_TOKENS

CPU_TOKENS = 4096
"""A CPU gains nothing from larger passes."""
GPU_TOKENS = 16384
"""On a GPU, for models whose shape is not known here."""
MOST_TOKENS = 2**18
SHARE = 0.6
"""Of the free device memory; gradients and what a forward pass throws away need the rest."""
COUNT = 4
"""Bytes of a number a row: a norm's scale, a head's log of the sum of exponentials."""


@dataclass(frozen=True)
class Sizes:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    bytes_per_value: int
    is_gpu: bool
    is_fused: bool = False
    """Norms, rotation and gate are one kernel each."""
    is_built_in: bool = True
    """The decoder of `burnish.lm`, which has plain attention for short rows on a CPU."""
    has_qk_norm: bool = False
    norms: int = 2
    """Of a layer; more where there are two residual streams."""
    trains_norms: bool = True
    """Not with adapters, which leave the model's own weights alone."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def residual_bytes(self) -> int:
        """Of a number in the residual stream, which half precision keeps in float32."""
        return max(self.bytes_per_value, 4)

    def keeps_scores(self, row_tokens: int) -> bool:
        """Whether attention is plain products."""
        return self.is_built_in and not self.is_gpu and row_tokens <= SHORT


def activation_bytes_per_token(sizes: Sizes, row_tokens: int, *, is_masked: bool) -> int:
    """What one token of a row of `row_tokens` keeps between forward and backward.

    `is_masked`: the batch has a mask of its own, because rows hold several rollouts.
    """
    b, r = sizes.bytes_per_value, sizes.residual_bytes
    # A fused norm keeps its input; torch's own also what its weight's gradient is made of.
    normed = 1 if sizes.is_fused or not sizes.trains_norms else 2
    layer = (sizes.norms * normed * r + 2 * b) * sizes.hidden + sizes.norms * COUNT
    layer += (3 if sizes.is_fused else 4) * b * sizes.intermediate
    layer += attention_bytes(sizes, row_tokens, is_masked=is_masked)
    if is_masked:
        layer += masked_attention_bytes(sizes, row_tokens)
    if sizes.has_qk_norm:
        kept = b if sizes.is_fused else normed * r
        layer += kept * (sizes.query_width + sizes.kv_width)
        layer += COUNT * (sizes.heads + sizes.kv_heads)
    # Once: the last norm, what the head reads of it, the rotation's angles, ids and places.
    once = (normed * r + b) * sizes.hidden + 2 * b * sizes.head_dim + 15 * COUNT
    if is_masked:
        once += row_tokens * (1 + b if sizes.is_gpu else 1)
    return sizes.layers * layer + once


def attention_bytes(sizes: Sizes, row_tokens: int, *, is_masked: bool) -> int:
    """What attention keeps of a token in one layer, the mask left out."""
    b = sizes.bytes_per_value
    # Flash attention, which is for half precision, reads the keys of several heads where they are.
    if sizes.is_gpu and sizes.is_built_in and b < 4 and not is_masked:
        return 2 * b * (sizes.query_width + sizes.kv_width) + COUNT * sizes.heads
    kept = 4 * b * sizes.query_width
    if not sizes.keeps_scores(row_tokens):
        return kept + COUNT * sizes.heads
    # The weights as softmax gives them, in at least float32, and rounded where values are half.
    rounded = b if b < 4 else 0
    return kept + (sizes.residual_bytes + rounded) * sizes.heads * row_tokens


def masked_attention_bytes(sizes: Sizes, row_tokens: int) -> int:
    """What a mask adds to a token's attention in one layer."""
    if sizes.is_gpu:
        # All layers add the same tensor to their scores.
        return 0
    # Plain attention keeps the mask's opposite; torch's kernel what it adds to the scores.
    return row_tokens * (1 if sizes.keeps_scores(row_tokens) else sizes.bytes_per_value)


def logits_bytes(
    trained: int,
    vocabulary: int,
    bytes_per_value: int,
    *,
    is_gpu: bool,
    has_plain_head: bool = True,
) -> int:
    """What the logits of trained tokens take at one time: those of one chunk.

    A head that is more than one matrix product keeps the logits, their tempered copy and the
    probabilities, in float32.
    """
    if not has_plain_head:
        return min(trained, CHUNK) * vocabulary * 4 * 3
    if is_gpu:
        return min(trained * vocabulary * bytes_per_value, GPU_CHUNK_BYTES)
    return min(trained * vocabulary * max(bytes_per_value, 4), CPU_CHUNK_BYTES)


def pass_tokens(model: object, device: torch.device) -> int:
    """The token budget of one pass: by free memory on a GPU, a constant elsewhere."""
    if device.type != "cuda":
        return CPU_TOKENS
    if not isinstance(model, Decoder):
        return GPU_TOKENS
    vocabulary = model.head_weight.shape[0]
    return tokens_within(available_bytes(device), decoder_sizes(model), vocabulary)


def tokens_within(free: int, sizes: Sizes, vocabulary: int) -> int:
    """How many tokens of packed rows fit into the free bytes beside their logits.

    Logits and their gradient are there for a chunk of tokens at one time: for all of a small pass.
    """
    kept = activation_bytes_per_token(sizes, ROW_TOKENS, is_masked=True)
    logits = vocabulary * sizes.bytes_per_value
    fitting = int(SHARE * free / (kept + 2 * logits))
    if fitting * logits > GPU_CHUNK_BYTES:
        fitting = int((SHARE * free - 2 * GPU_CHUNK_BYTES) / kept)
    return min(max(fitting, ROW_TOKENS), MOST_TOKENS)


def decoder_sizes(decoder: Decoder) -> Sizes:
    a, weight = decoder.architecture, decoder.head_weight
    return Sizes(
        layers=a.layers,
        hidden=a.hidden_size,
        intermediate=a.intermediate_size,
        heads=a.heads,
        kv_heads=a.kv_heads,
        head_dim=a.head_dim,
        bytes_per_value=weight.element_size(),
        is_gpu=weight.is_cuda,
        is_fused=can_run_kernels(weight),
        has_qk_norm=a.qk_norm,
        norms=sum(len(a.topology.norms_of(2 + place)) for place in (0, 1)),
        trains_norms=decoder.model.trains_norms,
    )


def model_sizes(loaded: LoadedModel) -> Sizes:
    """The sizes of any loaded model: an estimate for those from transformers.

    Their configs name sizes in their own ways, and their layers may be built otherwise.
    """
    if isinstance(loaded.module, Decoder):
        return decoder_sizes(loaded.module)
    config, weight = loaded.config, loaded.module.head_weight
    hidden, size = weight.shape[1], weight.element_size()
    layers = int(config.get("num_hidden_layers") or config.get("n_layer") or 1)
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    head_dim = int(config.get("head_dim") or max(1, hidden // heads))
    kv_width = loaded.module.cache_bytes_per_token // (2 * layers * size) or hidden
    return Sizes(
        layers=layers,
        hidden=hidden,
        intermediate=int(config.get("intermediate_size") or 4 * hidden),
        heads=heads,
        kv_heads=max(1, kv_width // head_dim),
        head_dim=head_dim,
        bytes_per_value=size,
        is_gpu=weight.is_cuda,
        is_built_in=False,
    )


LORA_RANK = 16
LEAST_BUDGET = 256
"""Tokens of a pass below which halving it is no way out."""


class Keys(NamedTuple):
    prompts: str = "rollout.prompts"
    samples: str = "rollout.samples"
    answer: str = "rollout.max_tokens"
    reference: str = "policy.auxiliary without kl"
    """What does without the frozen copy, as it is written in an advice."""


class Workload(NamedTuple):
    prompts: int
    samples: int
    prompt_tokens: int
    answer_tokens: int
    is_sampled: bool = True
    has_reference: bool = False
    observed_tokens: int = 0
    """Tokens between the turns of one sequence: read and kept, neither sampled nor trained."""
    keys: Keys = Keys()
    critic: int = 0


MEASURED = 64


def given_rows(
    batch: int,
    tokens: int,
    *,
    prompt: int = 0,
    samples: int = 1,
    key: str = "train.batch",
    length: str = "",
) -> Workload:
    """The step of a training on rows that are given; `key` and `length` are what shortens it."""
    keys = Keys(key, "", length, "")
    return Workload(batch, samples, prompt, tokens, is_sampled=False, keys=keys)


def measured(batch: int, shown: Sequence[Trajectory], samples: int = 1) -> Workload:
    """The same for demonstrations; `shown` are some of them."""
    prompt = max(one.prompt_length for one in shown)
    return given_rows(
        batch, max(one.trained_tokens for one in shown), prompt=prompt, samples=samples
    )


@dataclass(frozen=True)
class Shape:
    parameters: int
    trained: int
    vocabulary: int
    sizes: Sizes
    has_plain_head: bool = True
    """Logits are one matrix product: not with an adapter on the head, nor for models from transformers."""
    packs: bool = True
    """Several responses may share one row."""
    processes: int = 1
    """That hold a slice of what is trained each, and the weights while they sample."""


class Saving(NamedTuple):
    change: str
    bytes: int


@dataclass(frozen=True)
class Forecast:
    memory: dict[str, int]
    available: int
    savings: tuple[Saving, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.available

    @property
    def advice(self) -> str:
        return advice(self.savings)


def forecast(config: Config, work: Workload, shape: Shape, budget: int, available: int) -> Forecast:
    """Memory of one step of this size, every answer as long as it may be; `budget`: tokens of a pass."""
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

    for key, name, least in (
        (keys.prompts, "prompts", 2),
        (keys.samples, "samples", 4),
        (keys.answer, "answer_tokens", 2),
    ):
        if key and (whole := getattr(work, name)) >= least:
            try_out(f"{key}={whole // 2}", work._replace(**{name: whole // 2}))
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
        # Low-rank adapters on all projections.
        s = shape.sizes
        ends = 2 * (s.hidden + s.query_width) + 2 * (s.hidden + s.kv_width)
        ends += 3 * (s.hidden + s.intermediate)
        sizes = replace(s, trains_norms=False)
        slim = replace(shape, trained=s.layers * LORA_RANK * ends, sizes=sizes)
        try_out(f"model.lora.rank={LORA_RANK}", shape=slim, config=adapted)
    if shape.sizes.bytes_per_value >= 4:
        halved = replace(shape, sizes=replace(shape.sizes, bytes_per_value=2))
        try_out("model.dtype=bfloat16", shape=halved)
    found = [Saving(change, now - then) for change, then in changed if then < now]
    return sorted(found, key=lambda saving: -saving.bytes)


def advice(savings: Sequence[Saving], most: int = 5) -> str:
    """`rollout.max_tokens=64 frees 1.2 GiB, rollout.prompts=4 0.8 GiB`; empty without any."""
    if not savings:
        return ""
    told = [f"{one.change} {_size(one.bytes)}" for one in savings[:most]]
    return ", ".join([f"{savings[0].change} frees {_size(savings[0].bytes)}", *told[1:]])


def _size(count: int) -> str:
    gib = count / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{count / 2**20:.1f} MiB"


@dataclass(frozen=True)
class PackedRows:
    count: int
    width: int
    tokens: int
    together: int


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
    trained, is_cut = shape.trained / shape.processes, shape.processes > 1
    parts = {
        "weights": shape.parameters * size,
        "master weights": int(trained * 4) if size < 4 or is_cut else 0,
        "gradients": int(trained * (4 if is_cut else gradient)),
        "optimiser": int(trained * 8),
        "activations": update_bytes(config, shape, rows, budget),
        "cache": work.is_sampled * 2 * cached * shape.sizes.layers * shape.sizes.kv_width * size,
    }
    if work.has_reference and config.model.lora is None:
        parts["reference"] = shape.parameters * size
    # Its passes are its own, so its activations take the place of the policy's.
    parts["critic"] = work.critic * (size + 4 * (size < 4) + gradient + 8)
    return {name: value for name, value in parts.items() if value}
