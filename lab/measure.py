"""Measure a trained model: the process that a study starts, and what its measures share.

python -m lab.measure lab.afrl.study:by_rule CHECKPOINT --start START --out FILE
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from burnish.bench.evaluation import Evaluated, evaluate
from burnish.lm.base import Sampling
from burnish.records import Task
from burnish.rewards.config import RewardConfig, build_all
from burnish.rollouts import Rollout, single_turn
from burnish.tasks.config import TaskConfig, build as build_tasks
from lab.plan import Measure, Subject

if TYPE_CHECKING:
    from burnish.lm.local import LocalLM


def held_out(config: Mapping[str, Any], count: int) -> list[Task]:
    """Held-out questions of a task table, as a recipe would write it."""
    return build_tasks(msgspec.convert(config, TaskConfig), seed=0).held_out(count)


def answer(
    model: Path,
    device: str,
    tasks: Sequence[Task],
    rewards: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    samples: int = 1,
    rollout: Rollout = single_turn,
) -> list[Evaluated]:
    """Answers to every task with their rewards, `samples` times over all tasks."""
    lm = model_of(model, device)
    scorer = build_all([msgspec.convert(reward, RewardConfig) for reward in rewards])
    found: list[Evaluated] = []
    for seed in range(samples):
        again = msgspec.structs.replace(sampling, seed=seed)
        found += anyio.run(partial(evaluate, lm, tasks, scorer, again, rollout=rollout)).items
    return found


def part(items: Sequence[Evaluated], name: str) -> list[float]:
    """One reward of all answers; an answer that could not be scored stops the measure."""
    values = [item.reward.components.get(name) for item in items]
    if any(value is None for value in values):
        silent = [item for item, value in zip(items, values, strict=True) if value is None]
        reasons = {item.reward.reason for item in silent}
        raise RuntimeError(f"reward '{name}' has no value for some answers: {sorted(reasons)[:3]}")
    return [value for value in values if value is not None]


@lru_cache(maxsize=2)
def model_of(folder: Path, device: str) -> LocalLM:
    """The trained model, loaded once."""
    from burnish.lm.folder import load_model
    from burnish.lm.local import LocalLM

    return LocalLM(load_model(folder, device=device))


def main() -> None:
    """Measure one model and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measure", help="module:function")
    parser.add_argument("model", type=Path)
    parser.add_argument("--start", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    module, _, name = asked.measure.partition(":")
    measure: Measure = getattr(importlib.import_module(module), name)
    found = measure(Subject(asked.model, asked.start, asked.device, asked.prompts))
    asked.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
