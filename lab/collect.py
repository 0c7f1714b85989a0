"""From a run's store to one row of figures and one row of curves a step."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from burnish.store import RunStore

TAIL = 10
"""Steps at the end of a run whose mean stands in the table."""
CURVES = (
    "policy/entropy",
    "policy/clipped_share",
    "policy/ratio_max",
    "length/mean",
    "length/truncated_share",
    "useful_groups",
    "kept",
    "optimiser/updates",
    "optimiser/gradient_norm",
    "time/step_s",
    "time/rollout_s",
    "time/update_s",
)
PREFIXES = ("reward/", "loss/", "contrast", "weight")
"""Curves whose names depend on the recipe."""

Row = dict[str, Any]


def collect(folder: Path) -> tuple[Row, list[Row]]:
    """The figures of a finished run, and its curves by the number of steps done."""
    with RunStore.open(folder, read_only=True) as store:
        rows: dict[int, Row] = {}
        for name, points in store.metrics().items():
            if name in CURVES or name.startswith(PREFIXES):
                for step, value in points:
                    rows.setdefault(step + 1, {"done": step + 1})[name] = value
        for step, (tokens, share) in trained(store).items():
            row = rows[step + 1]
            has_moved = bool(row.get("optimiser/updates"))
            row["trained_tokens"] = tokens if has_moved else 0
            row["trained_share"] = share if has_moved else 0.0
        for evaluation in store.evaluations("held_out"):
            score = evaluation.summary["score"]
            row = rows.setdefault(evaluation.step, {"done": evaluation.step})
            row["score"] = score[0] if score else None
        curves = [rows[done] for done in sorted(rows)]
        steps = [row for row in curves if "time/step_s" in row]
        scores = [row["score"] for row in curves if row.get("score") is not None]
        figures: Row = {
            "score_start": scores[0] if scores else None,
            "score_end": scores[-1] if scores else None,
            "score_mean": _mean(scores),
            "reward_mean": _mean(row.get("reward/total") for row in steps),
            "trained_tokens": sum(row.get("trained_tokens", 0) for row in steps),
            "train_s": sum(row["time/step_s"] for row in steps),
            "step_s": statistics.median(row["time/step_s"] for row in steps),
            "steps": len(steps),
        }
        for name in sorted({name for row in steps for name in row} - {"done", "score"}):
            figures[f"last{TAIL}/{name}"] = _mean(row.get(name) for row in steps[-TAIL:])
        return {**figures, **_parts(store)}, curves


class Trained(NamedTuple):
    """What of a step's rollouts went through the backward pass."""

    tokens: int
    """Response tokens, once for every epoch."""
    share: float
    """Of the rollouts."""


def trained(store: RunStore) -> dict[int, Trained]:
    """What each step trained on.

    Rollouts that a recipe leaves out are not, nor are those with advantage 0 where no term of the
    loss looks at them. Demonstrations of an `sft` term are not counted.
    """
    config = store.about.config
    looks = any(
        key.startswith("policy.auxiliary.") and key.endswith(".kind") and kind != "sft"
        for key, kind in config.items()
    )
    columns = ("step", "split", "keep", "advantage", "response_tokens")
    found: dict[int, list[int]] = {}
    for step, split, keep, advantage, tokens in store.table("samples", columns):
        if split == "train":
            moves = keep and (looks or bool(advantage))
            found.setdefault(step, []).append(tokens if moves else 0)
    passes = int(config.get("update.epochs", 1))
    return {
        step: Trained(passes * sum(tokens), sum(t > 0 for t in tokens) / len(tokens))
        for step, tokens in found.items()
    }


def _parts(store: RunStore) -> Row:
    """Mean of every reward over the last held-out evaluation."""
    evaluations = store.evaluations("held_out")
    if not evaluations:
        return {}
    found: dict[str, list[float]] = {}
    for sample in store.samples(step=evaluations[-1].step, split="eval:held_out"):
        values: Mapping[str, float | None] = sample.reward.components
        for name, value in values.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {f"held_out/{name}": _mean(values) for name, values in found.items()}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
