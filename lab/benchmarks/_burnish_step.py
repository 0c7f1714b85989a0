"""Child of speed.py: whole GRPO steps through burnish's trainer.

python lab/benchmarks/_burnish_step.py JOB OUT
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from _speed_floor import Group, Weights, clock, generation_floor, update_floor
from _speed_memory import UpdateMemory
from _speed_records import Accuracy, Result, Step, StepJob, read_job, say

from burnish.config import Config, load
from burnish.store import StoredSample
from burnish.training import Trainer, build
from burnish.training.events import HeldOut, StepDone


def main() -> None:
    job, out = read_job(StepJob)
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(load(Config, recipe(job)), Path(folder) / "run", root=Path(__file__).parent)
        try:
            result = _run(trainer, job)
        finally:
            trainer.store.close()
    out.write_bytes(msgspec.json.encode(result))


def recipe(job: StepJob) -> dict[str, Any]:
    """GRPO without a reference model, as TRL's `loss_type="grpo", beta=0`."""
    size = job.size
    reward: dict[str, Any] = {"kind": "numeric", "name": "correct"}
    if job.watch_memory:
        reward = {"kind": "function", "path": "_speed_reward.py:distinct_characters"}
    return {
        "steps": size.steps,
        "model": {
            "path": job.model,
            "dtype": job.dtype,
            "device": job.device,
            "threads": job.threads,
        },
        "task": {"kind": "arithmetic", "level": 2, "instruction": size.instruction},
        "rewards": [reward],
        "policy": {
            "advantage": {"kind": "sum_then_normalise", "scale": "group_std"},
            "trust_region": {"kind": "static", "low": 0.2, "high": 0.2},
            "aggregate": {"mode": "seq-mean-token-mean"},
        },
        "rollout": {
            "prompts": size.prompts,
            "samples": size.samples,
            "max_tokens": size.max_tokens,
        },
        "optimiser": {
            "learning_rate": size.learning_rate,
            "warmup_steps": size.warmup_steps,
        },
        "evaluation": {"prompts": size.questions},
        "checkpoint": {"every": 0},
        "guards": {"useless_steps": 1000},
    }


def _run(trainer: Trainer, job: StepJob) -> Result:
    """Take every step and evaluation, but not the checkpoint at the end."""
    loaded, device = trainer.trainable.loaded, trainer.trainable.device
    memory = UpdateMemory(device, trainer.trainable.module.parameters())
    update = trainer.stage.updater.run
    if job.watch_memory:
        loaded.tokenizer.eos_ids = ()
        update = memory.watch(update)
    weights = Weights.of(loaded)
    steps: list[Step] = []
    accuracy: list[Accuracy] = []
    with mock.patch.object(trainer.stage.updater, "run", _settled(update, device)):
        began = clock(device)
        for event in trainer.run():
            seconds = clock(device) - began
            if isinstance(event, StepDone):
                samples = trainer.store.rollouts(event.step) or []
                steps.append(_step(event, seconds, samples, weights, job))
                say(f"burnish {job.size.label} step {event.step + 1}: {seconds:.3f} s")
            if isinstance(event, HeldOut):
                value = None if event.score is None else event.score.value
                accuracy.append(Accuracy(event.step, value, event.count))
            if len(steps) == job.size.steps and (not job.size.questions or len(accuracy) > 1):
                break
            began = clock(device)
    if job.watch_memory:
        full = job.size.prompts * job.size.samples * job.size.max_tokens
        for number, step in enumerate(steps):
            if step.trained_tokens != full:
                raise RuntimeError(
                    f"step {number} trained {step.trained_tokens} tokens; expected {full}"
                )
    peak, kind = peak_memory(str(device), memory.read_peak())
    return Result(
        steps=steps,
        accuracy=accuracy,
        peak_bytes=peak,
        peak_kind=kind,
        forecast_bytes=dict(trainer.forecast.memory),
        update_bytes=memory.added,
    )


def _settled(update: Any, device: Any) -> Any:
    """The update until the device is done with it, so that its time is not the next rollout's."""

    def settled(*args: Any, **kwargs: Any) -> Any:
        result = update(*args, **kwargs)
        clock(device)
        return result

    return settled


def _step(
    event: StepDone, seconds: float, samples: Sequence[StoredSample], weights: Weights, job: StepJob
) -> Step:
    groups: dict[str, Group] = {}
    moved: dict[str, int] = {}
    trained = 0
    for sample in samples:
        spans = sample.trajectory.spans
        new = sum(len(span.token_ids) for span in spans if span.trainable)
        prompt = sum(len(span.token_ids) for span in spans if not span.trainable)
        groups.setdefault(sample.trajectory.group, Group(prompt, [])).rows.append(new)
        if sample.keep and sample.advantage:
            moved[sample.trajectory.group] = prompt
            trained += new
    computed = sum(moved.values()) + trained
    floor_s = generation_floor(weights, job.rates, list(groups.values()))
    metrics = event.metrics
    return Step(
        seconds=seconds,
        rollout_s=metrics["time/rollout_s"],
        score_s=metrics["time/score_s"],
        update_s=metrics["time/update_s"],
        tokens=sum(sum(group.rows) for group in groups.values()),
        rollouts=len(samples),
        computed_tokens=computed,
        trained_tokens=trained,
        floor_s=floor_s + update_floor(weights, job.rates, computed, trained),
        mismatch=metrics.get("mismatch/mean_abs"),
    )


def peak_memory(device: str, seen: int = 0) -> tuple[int, str]:
    """Peak of this process: what torch allocated on a GPU, else the resident size."""
    if device.startswith("cuda"):
        import torch

        return max(seen, torch.cuda.max_memory_allocated(device)), "allocated on the GPU"
    # Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "resident"


if __name__ == "__main__":
    main()
