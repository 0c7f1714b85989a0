"""Every kind of task set as it stands in a config file, and how to build it."""

from __future__ import annotations

from pathlib import Path

from burnish.tasks.arithmetic import Arithmetic
from burnish.tasks.base import NoTasks, TaskSet
from burnish.tasks.files import GSM8K, File, Math, MultipleChoice
from burnish.tasks.function import Function
from burnish.tasks.gym import ReasoningGym
from burnish.tasks.scenes import Charts, Scenes

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


def build(config: TaskConfig, seed: int, root: Path = Path()) -> TaskSet:
    return config.build(seed, root)
