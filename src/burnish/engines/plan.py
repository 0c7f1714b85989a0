"""What a run on several GPUs would take: a prediction, from compute, memory and network.

Sampling is bound by what a decode step reads, training by its products or by what FSDP gathers,
whichever is slower. Efficiencies, the product's and memory's rates and the length of the kernel chain
are measured (docs/speed.md, one H200); links are data sheets. Sampling and training do not overlap.
"""

from __future__ import annotations

import math

from msgspec import Struct

from burnish.boundary import Count, Positive, PositiveInt, Settings, public

CHAIN_S = 0.87e-3 / 30
"""A layer's kernels in a decode step of few rows: 0.87 ms for the 30 layers of SmolLM2."""
DECODE_SHARE = 0.47
"""Floor of a decode step over what it takes beyond the chain: 0.56, 0.49 and 0.45 at 64, 512 and 2,048
rows of 512 tokens."""
UPDATE_SHARE = 0.225
"""Floor of an update over its time: 16 x 16 x 512, 49 k tokens of 135 M weights in 0.231 s."""
USABLE = 0.92
"""Of a GPU's memory: what the driver, fragments and collectives leave; assumed."""
CHUNK = 1024
"""Tokens whose logits are held at a time, in float32 with their gradient."""


class Sizes(Settings, frozen=True):
    """What counts of a dense model; its weights are sampled in bfloat16."""

    name: str
    weights: Positive
    layers: PositiveInt
    hidden: PositiveInt
    kv_bytes: PositiveInt
    """Keys and values of one token in bfloat16: 4 x layers x heads x their width."""
    vocabulary: PositiveInt


class Gpu(Settings, frozen=True):
    """One GPU, in bytes and operations a second, and its links: NVLink 4, ConnectX-7 (400 Gb/s)."""

    name: str
    memory: Positive
    read: Positive
    product: Positive = 760e12
    inside: Positive = 450e9
    outside: Positive = 50e9
    a_machine: PositiveInt = 8


class Job(Settings, frozen=True, kw_only=True):
    """One step of policy optimisation; it waits for the longest answer."""

    prompts: PositiveInt = 64
    samples: PositiveInt = 8
    prompt_tokens: PositiveInt = 256
    mean_tokens: PositiveInt = 1024
    most_tokens: PositiveInt = 2048
    pass_tokens: PositiveInt = 16_384
    """Of one forward and backward pass on a GPU."""
    recompute: bool = False
    """Activation checkpointing: a third more products, a layer's inputs alone are kept."""
    scored: Count = 1
    """Passes without a gradient: log-probs before the update, a reference."""


# Qwen2.5's configurations.
SIZES = {
    "1.5b": Sizes("1.5b", 1.54e9, 28, 1536, 28_672, 151_936),
    "7b": Sizes("7b", 7.62e9, 28, 3584, 57_344, 152_064),
    "32b": Sizes("32b", 32.8e9, 64, 5120, 262_144, 152_064),
}
# The H100 is the same chip: the measured share of 4.8 TB/s, the H200's data sheet, of its 3.35.
GPUS = {"h200": Gpu("h200", 141e9, 4.17e12), "h100": Gpu("h100", 80e9, 4.17e12 * 3.35 / 4.8)}


class Part(Struct, frozen=True):
    """One term: seconds a step, or bytes a GPU."""

    name: str
    value: float
    how: str


class Plan(Struct, frozen=True):
    """A prediction with its parts: nothing of it was measured. A sampler sleeps during training."""

    where: str
    seconds: tuple[Part, ...]
    memory: tuple[Part, ...]
    step_s: float
    tokens_a_gpu: float
    """Of prompts and answers, a second."""
    peak: float
    fits: bool


@public
def predict(sizes: Sizes, gpu: Gpu, gpus: PositiveInt, job: Job) -> Plan:
    """Seconds a step and bytes a GPU, part by part; trainer and samplers share all GPUs."""
    room, most = USABLE * gpu.memory, min(gpus, gpu.a_machine)
    share, how = sizes.weights / gpus, "float32, sharded"
    names = (("weights", 4), ("gradients", 4), ("moments", 8))
    kept, held = tuple(Part(name, size * share, how) for name, size in names), 16 * share
    # The fewest GPUs whose share of the weights leaves half of the room for keys and values.
    fitting = (n for n in (1, 2, 4, 8) if 2 * sizes.weights / n <= (room - held) / 2)
    together = min(next(fitting, most), most)
    copy = Part("sampler's weights", 2 * sizes.weights / together, f"bfloat16, over {together}")
    rows = math.ceil(job.prompts * job.samples * together / gpus)
    row = sizes.kv_bytes / together * (job.prompt_tokens + job.mean_tokens)
    at_once = max(min(rows, int((room - held - copy.value) / row)), 1)
    cache = Part("keys and values", at_once * row, f"{at_once} rows at a time")
    active = _activations(sizes, job)
    seconds = _sampling(sizes, gpu, job, together, at_once, rows)
    seconds += _training(sizes, gpu, gpus, job)
    step_s = sum(part.value for part in seconds)
    tokens = job.prompts * job.samples * (job.prompt_tokens + job.mean_tokens)
    peak = held + max(sum(part.value for part in active), copy.value + cache.value)
    where, rate = f"{sizes.name} on {gpus} x {gpu.name}", tokens / step_s / gpus
    return Plan(where, seconds, (*kept, copy, cache, *active), step_s, rate, peak, peak <= room)


def _sampling(
    sizes: Sizes, gpu: Gpu, job: Job, together: int, at_once: int, rows: int
) -> tuple[Part, ...]:
    tokens, share = rows * job.mean_tokens, gpu.read * together * DECODE_SHARE
    steps = max(job.most_tokens, math.ceil(tokens / at_once))
    context = job.prompt_tokens + job.mean_tokens / 2
    # Two sums a layer; each moves (n - 1) / n of the states twice, in bfloat16.
    moved = 2 * sizes.layers * 2 * (together - 1) / together * tokens * sizes.hidden * 2
    groups, rate = math.ceil(rows / job.samples), gpu.product * together * UPDATE_SHARE
    seconds = {
        "chain": (steps * sizes.layers * CHAIN_S, f"{steps} steps of {sizes.layers} layers"),
        "weights": (steps * 2 * sizes.weights / share, "read once a decode step"),
        "caches": (tokens * context * sizes.kv_bytes / share, f"of {rows} rows"),
        "network": (moved / gpu.inside, f"sums over {together}"),
        "prompts": (2 * sizes.weights * job.prompt_tokens * groups / rate, "once a group"),
    }
    return tuple(Part(f"sampling: {name}", *found) for name, found in seconds.items())


def _training(sizes: Sizes, gpu: Gpu, gpus: int, job: Job) -> tuple[Part, ...]:
    tokens = job.prompts * job.samples * (job.prompt_tokens + job.mean_tokens) / gpus
    rate, link = gpu.product * UPDATE_SHARE, gpu.inside if gpus <= gpu.a_machine else gpu.outside
    products = (8 if job.recompute else 6) * sizes.weights * tokens / rate
    passes = math.ceil(tokens / job.pass_tokens)
    # Gathered in bfloat16 for both directions, gradients reduced in float32.
    gathered = passes * (2 + 2 + 4) * sizes.weights * (gpus - 1) / gpus / link
    how = f"{passes} passes: products {products:.1f} s, gathering {gathered:.1f} s"
    moved = 2 * sizes.weights * (gpus - 1) / gpus / link
    return (
        Part(
            "log-probs",
            job.scored * 2 * sizes.weights * tokens / rate,
            f"{job.scored} passes without a gradient",
        ),
        Part("training", max(products, gathered), how),
        Part("new weights", moved, "bfloat16, to the samplers"),
    )


def _activations(sizes: Sizes, job: Job) -> tuple[Part, ...]:
    """34 bytes a token and state of a layer, 2 where it is recomputed (arXiv 2205.05198)."""
    layers, state = sizes.layers, job.pass_tokens * sizes.hidden
    whole = (2 * layers + 34 if job.recompute else 34 * layers) * state
    return (
        Part("activations", whole, f"{job.pass_tokens} tokens"),
        Part("gathered layers", 4 * sizes.weights / layers, "two, in bfloat16"),
        Part("logits", 8 * CHUNK * sizes.vocabulary, f"{CHUNK} tokens at a time"),
    )


def render(plan: Plan) -> str:
    """The prediction and its parts, as text."""
    rates = f"{plan.step_s:.1f} s a step, {plan.tokens_a_gpu:.0f} tokens/s a GPU"
    lines = [f"PREDICTION, not measured: {plan.where}: {rates}"]
    lines += [f"  {part.name:<20}{part.value:>9.2f} s    {part.how}" for part in plan.seconds]
    fits = "fits" if plan.fits else "does not fit"
    lines.append(f"memory a GPU: {plan.peak / 1e9:.1f} GB at its peak, {fits}")
    lines += [f"  {part.name:<20}{part.value / 1e9:>9.2f} GB   {part.how}" for part in plan.memory]
    return "\n".join(lines)
