"""A finished run made by hand, for everything that reads runs."""

from __future__ import annotations

from pathlib import Path

from burnish.records import (
    Author,
    Evidence,
    Finish,
    Message,
    Reward,
    Span,
    Status,
    Task,
    Trajectory,
    Visibility,
)
from burnish.store import RunStore, StoredSample

STEPS = 4
CONFIG = {
    "steps": 5, "model.path": "tiny", "task.kind": "arithmetic", "rollout.prompts": 2,
    "rollout.samples": 2, "run.seed": 7,
}  # fmt: skip
ORIGINS = {**dict.fromkeys(CONFIG, "grpo.toml:3"), "run.seed": "command line"}


def make_run(folder: Path, *, status: str | None = "finished") -> Path:
    """Four steps of two groups of two; the first group teaches, the second does not."""
    with RunStore.create(folder, CONFIG, ORIGINS, recipe="grpo") as store:
        store.append_evaluation(0, "held_out", [_eval(0, 0), _eval(0, 1)], _score(0.25))
        for step in range(STEPS):
            store.append_rollouts(step, [make_sample(step, i) for i in range(4)])
            store.append_metrics(step, metrics_of(step))
        store.append_evaluation(STEPS, "held_out", [_eval(STEPS, 0)], _score(0.75))
        store.append_event("guard", "gradient guard: something", {}, 3)
        if status == "finished":
            store.finish("finished", {"reason": "", "before": [0.25, 0.1, 0.4, 20], "after": None})
    return folder


def metrics_of(step: int) -> dict[str, float | None]:
    """The numbers of one step, under the names that training gives them."""
    return {
        "groups/useful": 1.0, "groups/total": 2.0, "reward/total": 0.2 + 0.1 * step,
        "reward/correct/mean": 0.1 * step, "reward/format/mean": 1.0, "length/mean": 8.0 - step,
        "length/truncated_share": 0.0, "loss/surrogate": -0.01, "loss/total": -0.01,
        "policy/entropy": 1.5 - 0.1 * step, "policy/clipped_share": 0.0,
        "optimiser/gradient_norm": 0.7, "status/ok": 0.75, "status/timeout": 0.25,
    }  # fmt: skip


def make_sample(step: int, index: int) -> StoredSample:
    """Index 0 is right, 1 wrong; 2 is right with an escape sequence, 3 could not be scored."""
    slot = index // 2
    task = Task(
        f"sum-{slot}", (Message("user", f"What is {slot} + 2?"),), {"answer": f"{slot + 2}"}
    )
    texts = (f"{slot + 2}", "9", "3 \x1b[31mred", "")
    right = index in (0, 2)
    seen = Evidence("numeric", f"read {texts[index]!r}, expected {slot + 2}", Visibility.ORACLE)
    if index == 3:
        reward = Reward.failed("total", Status.TIMEOUT, "no score within 60 s")
    else:
        parts = (
            Reward("correct", float(right), weight=0.9, evidence=(seen,), reason="compared"),
            Reward("format", 1.0, weight=0.1),
        )
        reward = Reward("total", 0.9 * right + 0.1, parts=parts)
    return StoredSample(
        step=step, split="train", index=index, task=task,
        trajectory=Trajectory(
            id=f"{step}.{slot}.{index % 2}", task_id=task.id, group=f"{step}.{slot}",
            spans=(
                Span(Author.PROMPT, (5, 6, 7)),
                Span(Author.MODEL, (8, 2), (-0.5, -0.25), trainable=True),
            ),
            text=texts[index], finish=Finish.LENGTH if index == 1 else Finish.STOP,
            weight_version=step,
        ),
        reward=reward, advantage=(0.7071, -0.7071, 0.0, 0.0)[index], keep=index != 3,
    )  # fmt: skip


def _eval(step: int, index: int) -> StoredSample:
    source = make_sample(step, index)
    return StoredSample(
        step=step, split="eval:held_out", index=index, task=source.task,
        trajectory=source.trajectory, reward=source.reward, keep=False,
    )  # fmt: skip


def _score(value: float) -> dict[str, object]:
    low, high = value - 0.15, value + 0.15
    return {"score": [value, low, high, 20], "valid": 20, "count": 20, "marks": []}
