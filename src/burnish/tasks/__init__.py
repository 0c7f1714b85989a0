"""Where work comes from: generators, functions, files, reasoning-gym; each with a held-out side."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.tasks.arithmetic import LEVELS as LEVELS
    from burnish.tasks.arithmetic import Arithmetic as Arithmetic
    from burnish.tasks.arithmetic import ArithmeticTasks as ArithmeticTasks
    from burnish.tasks.arithmetic import Expression as Expression
    from burnish.tasks.arithmetic import Part as Part
    from burnish.tasks.base import FiniteTasks as FiniteTasks
    from burnish.tasks.base import TaskSet as TaskSet
    from burnish.tasks.base import content_key as content_key
    from burnish.tasks.base import epoch_order as epoch_order
    from burnish.tasks.config import TaskConfig as TaskConfig
    from burnish.tasks.config import build as build
    from burnish.tasks.files import GSM8K as GSM8K
    from burnish.tasks.files import File as File
    from burnish.tasks.files import HeldOutColumn as HeldOutColumn
    from burnish.tasks.files import HeldOutFile as HeldOutFile
    from burnish.tasks.files import HeldOutShare as HeldOutShare
    from burnish.tasks.files import Math as Math
    from burnish.tasks.files import MultipleChoice as MultipleChoice
    from burnish.tasks.files import boxed_answers as boxed_answers
    from burnish.tasks.files import gsm8k_answer as gsm8k_answer
    from burnish.tasks.files import load_file as load_file
    from burnish.tasks.files import load_form as load_form
    from burnish.tasks.function import Function as Function
    from burnish.tasks.function import FunctionTasks as FunctionTasks
    from burnish.tasks.gym import GymTasks as GymTasks
    from burnish.tasks.gym import ReasoningGym as ReasoningGym
    from burnish.tasks.gym import gym_score as gym_score
    from burnish.tasks.pictures import Asked as Asked
    from burnish.tasks.pictures import Picture as Picture
    from burnish.tasks.pictures import PictureTasks as PictureTasks
    from burnish.tasks.scenes import Chart as Chart
    from burnish.tasks.scenes import Charts as Charts
    from burnish.tasks.scenes import Scene as Scene
    from burnish.tasks.scenes import Scenes as Scenes
    from burnish.tasks.scenes import Thing as Thing

__getattr__, __dir__ = lazy_exports(__name__)
