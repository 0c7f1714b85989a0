"""Every kind of task set as it stands in a config file, and how to build it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from burnish.errors import UserError
from burnish.tasks.arithmetic import Arithmetic
from burnish.tasks.base import NoTasks, TaskSet
from burnish.tasks.charts import Charts
from burnish.tasks.files import File
from burnish.tasks.forms import GSM8K, Math, MultipleChoice
from burnish.tasks.function import Function
from burnish.tasks.gym import ReasoningGym
from burnish.tasks.scenes import Scenes

TaskConfig = (
    Arithmetic
    | Charts
    | File
    | Function
    | GSM8K
    | Math
    | MultipleChoice
    | NoTasks
    | ReasoningGym
    | Scenes
)
"""Chosen by `kind`: arithmetic, charts, file, function, gsm8k, math, multiple_choice, none,
reasoning_gym, scenes."""


def build(config: TaskConfig, seed: int, root: Path = Path()) -> TaskSet:
    """The task set that a config describes; relative paths start at `root`."""
    try:
        # Bounds are checked where configs are decoded; this covers one made in Python.
        msgspec.convert(msgspec.to_builtins(config), type(config))
    except msgspec.ValidationError as error:
        raise UserError(f"tasks: {error}.") from None
    return config.build(seed, root)
