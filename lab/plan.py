"""What an experiment is: arms that differ in a few settings, seeds, and what is looked at.

    Study("lambda", about="...", arms=(Arm("0", "afrl", {...}), Arm("0.3", "afrl", {...})))

The first arm is the baseline that the others are compared with, seed by seed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

METHODS = (
    "afrl",
    "atp",
    "brpo",
    "calculator",
    "clipo",
    "combinations",
    "etr",
    "gd2po",
    "genrm",
    "long_speech",
    "march",
    "medalign",
    "ppo",
    "quarkmedbench",
    "ssp",
)
"""Folders of `lab/`, each with a `study.py` whose `STUDIES` are run."""
WITH_DATA = ("policyalign", "proxy_grm", "real")
"""Further ones, which need files that are not part of the repository: halves of requests, a trained proxy, data."""


class Subject(NamedTuple):
    """A trained model that is to be measured."""

    model: Path
    """Folder of the final checkpoint."""
    start: Path
    """Folder of the weights that every arm began with."""
    device: str
    prompts: int
    """Held-out questions to ask, of each kind where there are several."""


Measure = Callable[[Subject], dict[str, float]]


class Column(NamedTuple):
    """A figure of the table: its name among a run's figures, and its heading."""

    key: str
    label: str
    digits: int = 3


@dataclass(frozen=True)
class Arm:
    """One way to train: a recipe and what is changed in it."""

    name: str
    recipe: str
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """One question, asked of several arms and seeds."""

    name: str
    about: str
    arms: tuple[Arm, ...]
    columns: tuple[Column, ...]
    """What the table shows first; `COMMON` follows."""
    seeds: tuple[int, ...] = (0, 1, 2)
    start: Mapping[str, Any] | None = field(default_factory=dict)
    """Settings of the one warm start that all arms share; None where arms need none."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings that all arms share."""
    measure: Measure | None = None
    panels: tuple[str, ...] = ("reward/total", "policy/entropy")
    """Curves of the picture; the held-out score is always one."""
    at_equal_tokens: bool = False
    """Also compare held-out scores at the same number of trained tokens."""
    at_equal_reward: bool = False
    """Also compare entropies at the same training reward."""
    headline: str = ""
    """The figure for the table over all methods; the first column's where empty."""
    run_s: float = 0.0
    """About how many seconds one run takes on an H200 with others beside it; 0: not known."""


COMMON = (
    Column("score_end", "held-out score"),
    Column("last10/policy/entropy", "entropy"),
    Column("last10/policy/clipped_share", "clipped share", 4),
    Column("last10/length/mean", "length", 1),
    Column("last10/useful_groups", "useful groups", 2),
    Column("last10/trained_share", "rollouts trained", 2),
    Column("trained_tokens", "trained tokens", 0),
    Column("train_s", "training s", 1),
)
"""What every table shows; entropy and clipped share are of the tokens that were trained on."""


@dataclass(frozen=True)
class Sizes:
    """How large the runs are."""

    overrides: Mapping[str, Any]
    """Beneath an arm's own settings."""
    caps: Mapping[str, Any]
    """Above them."""
    start_caps: Mapping[str, Any]
    seeds: int
    prompts: int
    device: str


QUIET = {
    "checkpoint.every": 0,
    "checkpoint.keep": 1,
    # A policy that has learned all there is has no useful group left; that is a result here.
    "guards.useless_steps": 100_000,
}
GPU = Sizes(
    overrides={**QUIET, "steps": 40, "evaluation.prompts": 200, "evaluation.every": 20},
    caps={},
    start_caps={},
    seeds=100,
    prompts=200,
    device="auto",
)
TRIAL = Sizes(
    overrides=QUIET,
    caps={
        "model.device": "cpu",
        # One more than a contrastive head takes to warm up.
        "steps": 6,
        "rollout.prompts": 2,
        "rollout.samples": 4,
        "rollout.max_tokens": 12,
        "evaluation.prompts": 8,
        "evaluation.every": 2,
    },
    start_caps={"model.path": "tiny", "stages.0.steps": 3, "stages.0.train.batch": 4},
    seeds=2,
    prompts=10,
    device="cpu",
)
"""A random tiny model on a CPU: proves that everything runs and says nothing about a method."""


def studies_of(method: str) -> tuple[Study, ...]:
    """The studies of one folder."""
    found: tuple[Study, ...] = importlib.import_module(f"lab.{method}.study").STUDIES
    return found
