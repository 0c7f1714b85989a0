"""Every kind of task set as it stands in a config file, and how to build it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from burnish.errors import UserError
from burnish.tasks.arithmetic import Arithmetic, ArithmeticTasks
from burnish.tasks.base import TaskSet
from burnish.tasks.files import File, load_file
from burnish.tasks.forms import GSM8K, Math, MultipleChoice, load_form
from burnish.tasks.function import Function, FunctionTasks
from burnish.tasks.gym import GymTasks, ReasoningGym

TaskConfig = Arithmetic | File | Function | GSM8K | Math | MultipleChoice | ReasoningGym
"""Told apart by `kind`: arithmetic, file, function, gsm8k, math, multiple_choice, reasoning_gym."""


def build(config: TaskConfig, seed: int, root: Path = Path()) -> TaskSet:
    """The task set that a config describes; relative paths start at `root`."""
    try:
        # Bounds are checked where configs are decoded; this covers one made in Python.
        msgspec.convert(msgspec.to_builtins(config), type(config))
    except msgspec.ValidationError as error:
        raise UserError(f"tasks: {error}.") from None
    if isinstance(config, Arithmetic):
        return ArithmeticTasks(config, seed)
    if isinstance(config, File):
        return load_file(config, seed, root)
    if isinstance(config, Function):
        return FunctionTasks(config, seed, root)
    if isinstance(config, ReasoningGym):
        return GymTasks(config, seed)
    return load_form(config, seed, root)
