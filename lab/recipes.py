"""Complete recipe files for single runs, so that anyone can repeat one with `burnish train FILE`."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnish.config import FREE, Config, load, render, rooted
from burnish.config.recipes import find_recipe
from burnish.texts import toml_value
from lab.plan import Arm, Sizes, Study

_ONE_AT_A_TIME = threading.Lock()
"""Slots are threads, and decoding a config for the first time in several at once can crash."""
START = "start"
WARM_START = f"{START}/stages/warm_start/final"
"""The shared start weights, seen from the recipe files beside the start's run."""
IDLE = {"steps": 6, "optimiser.learning_rate": 0.0, "evaluation.prompts": 0}
"""As few steps as a contrastive head that warms up for five allows; they move nothing."""


def write_recipe(file: Path, recipe: str, overrides: Mapping[str, Any]) -> str:
    """Write a recipe with every value settled; the digest of what the run depends on."""
    source = find_recipe(recipe)
    words = [f"{key}={toml_value(value)}" for key, value in overrides.items()]
    with _ONE_AT_A_TIME:
        config = load(Config, source).value
        stages = [] if "stages" in overrides else config.stages
        words = [
            *[f"stages.{i}.steps={config.stage_steps(stage)}" for i, stage in enumerate(stages)],
            *words,
        ]
        resolved = load(Config, source, words)
        portable = dataclasses.replace(resolved, value=rooted(resolved.value, source.parent))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"# burnish train {file.name}\n{render(portable)}", encoding="utf-8")
    return resolved.digest(FREE)


def start_settings(study: Study, sizes: Sizes) -> dict[str, Any]:
    """The run that only makes the start weights."""
    return {
        **sizes.overrides,
        **study.overrides,
        **(study.start or {}),
        **sizes.caps,
        **sizes.start_caps,
        **IDLE,
        "run.name": START,
    }


def arm_settings(study: Study, arm: Arm, seed: int, sizes: Sizes) -> dict[str, Any]:
    """Everything in which a run differs from its recipe."""
    settings = {**sizes.overrides, **study.overrides, **arm.overrides, **sizes.caps}
    if study.start is not None:
        settings |= {"stages": [], "model.path": WARM_START}
    elif "model.path" in sizes.start_caps:
        settings["model.path"] = sizes.start_caps["model.path"]
    return {**settings, "run.seed": seed, "run.name": run_name(arm.name, seed)}


def run_name(arm: str, seed: int) -> str:
    """The folder of one run."""
    plain = "".join(c if c.isalnum() or c in "._" else "-" for c in arm)
    return f"{plain}-seed{seed}"
