"""Samples to store, made from numbers."""

from __future__ import annotations

import random

from burnish.records import Author, Evidence, Message, Reward, Span, Status, Task, Trajectory
from burnish.store import StoredSample


def make_sample(step: int, index: int, *, split: str = "train", tokens: int = 16) -> StoredSample:
    """A sample that follows from its step and index alone."""
    rng = random.Random(f"{step}/{split}/{index}")
    task = Task(f"sum-{index // 4}", (Message("user", "2 + 3 = ?"),), {"answer": "5"})
    spans = (
        Span(Author.TEMPLATE, (1, 2)),
        Span(Author.PROMPT, tuple(rng.randrange(49_152) for _ in range(8))),
        Span(
            Author.MODEL, tuple(rng.randrange(49_152) for _ in range(tokens)),
            tuple(-rng.random() for _ in range(tokens)), trainable=True,
        ),
        Span(Author.TOOL, (7,)),
    )  # fmt: skip
    trajectory = Trajectory(
        id=f"{step}.{index // 4}.{index % 4}", task_id=task.id, group=f"{step}.{index // 4}",
        spans=spans, text=f"the answer is {rng.randrange(9)}", weight_version=step,
        info={"turns": 1},
    )  # fmt: skip
    return StoredSample(
        step=step, split=split, index=index, task=task, trajectory=trajectory,
        reward=make_reward(rng.random()), advantage=rng.gauss(0.0, 1.0),
    )  # fmt: skip


def make_reward(value: float) -> Reward:
    """A tree of two levels with one part that failed."""
    seen = Evidence("math_verify", f"answer {value} compared")
    return Reward(
        "total",
        value,
        parts=(
            Reward("correct", value, weight=0.8, evidence=(seen,), reason="equal"),
            Reward.failed("judge", Status.TIMEOUT, "no reply in 60 s", weight=0.2),
        ),
    )


def make_step(step: int, count: int = 8, tokens: int = 16) -> list[StoredSample]:
    """The rollouts of one step; the last is dropped."""
    kept = [make_sample(step, index, tokens=tokens) for index in range(count - 1)]
    return [*kept, make_sample(step, 0, split="dropped", tokens=tokens)]
