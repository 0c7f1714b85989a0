"""Where work comes from: generators, functions, files, reasoning-gym; each with a held-out side."""

from burnish.tasks.arithmetic import LEVELS, Arithmetic, ArithmeticTasks, Expression, Part
from burnish.tasks.base import FiniteTasks, TaskSet, content_key, epoch_order
from burnish.tasks.charts import Chart, Charts
from burnish.tasks.config import TaskConfig, build
from burnish.tasks.files import File, HeldOutColumn, HeldOutFile, HeldOutShare, load_file
from burnish.tasks.forms import (
    GSM8K,
    Math,
    MultipleChoice,
    boxed_answers,
    gsm8k_answer,
    load_form,
)
from burnish.tasks.function import Function, FunctionTasks
from burnish.tasks.gym import GymTasks, ReasoningGym, gym_score
from burnish.tasks.pictures import Asked, Picture, PictureTasks
from burnish.tasks.scenes import Scene, Scenes, Thing

__all__ = [
    "GSM8K",
    "LEVELS",
    "Arithmetic",
    "ArithmeticTasks",
    "Asked",
    "Chart",
    "Charts",
    "Expression",
    "File",
    "FiniteTasks",
    "Function",
    "FunctionTasks",
    "GymTasks",
    "HeldOutColumn",
    "HeldOutFile",
    "HeldOutShare",
    "Math",
    "MultipleChoice",
    "Part",
    "Picture",
    "PictureTasks",
    "ReasoningGym",
    "Scene",
    "Scenes",
    "TaskConfig",
    "TaskSet",
    "Thing",
    "boxed_answers",
    "build",
    "content_key",
    "epoch_order",
    "gsm8k_answer",
    "gym_score",
    "load_file",
    "load_form",
]
