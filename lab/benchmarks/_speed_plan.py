"""What speed.py measures on which device."""

from __future__ import annotations

import msgspec
from _speed_records import Plan, StepSize, Tail

PARTS = ("generation", "tail", "step", "learn", "memory")

EXPLAIN = "Explain every step, then give the number."


GPU = Plan(
    dtypes=("bfloat16",),
    train_dtype="bfloat16",
    batches=(64, 512, 2048),
    new_tokens=(32, 128, 512),
    samples=8,
    tails=(Tail(512, 512), Tail(2048, 512)),
    steps=(
        StepSize(prompts=64, samples=8, max_tokens=32, steps=18, peer_steps=10, peer_warm=3),
        StepSize(
            prompts=16, samples=16, max_tokens=512, steps=8, peer_steps=4, instruction=EXPLAIN
        ),
    ),
    learn=StepSize(prompts=64, samples=8, max_tokens=32, steps=60, questions=200),
    memory=(
        StepSize(prompts=64, samples=8, max_tokens=32, steps=2),
        StepSize(prompts=16, samples=16, max_tokens=512, steps=2),
    ),
)

CPU = Plan(
    dtypes=("float32", "bfloat16"),
    train_dtype="float32",
    batches=(16, 32),
    new_tokens=(32,),
    samples=8,
    tails=(Tail(32, 128),),
    steps=(StepSize(prompts=8, samples=8, max_tokens=12, steps=6, warm=1, peer_steps=4),),
    learn=StepSize(
        prompts=8,
        samples=8,
        max_tokens=12,
        steps=30,
        learning_rate=2e-5,
        warmup_steps=2,
        questions=200,
    ),
    memory=(StepSize(prompts=8, samples=8, max_tokens=12, steps=1),),
)

_SMALL = StepSize(prompts=2, samples=4, max_tokens=8, steps=4, warm=1, peer_steps=3)

QUICK = Plan(
    dtypes=("float32",),
    train_dtype="float32",
    batches=(8,),
    new_tokens=(8,),
    samples=4,
    tails=(Tail(16, 64),),
    steps=(_SMALL,),
    learn=msgspec.structs.replace(_SMALL, questions=10),
    memory=(msgspec.structs.replace(_SMALL, steps=1),),
)
"""A rehearsal of every path in seconds; its figures say nothing."""


def plan_for(device: str, *, quick: bool) -> Plan:
    """The sizes for `cuda` or `cpu`."""
    if quick:
        return QUICK
    return GPU if device == "cuda" else CPU
