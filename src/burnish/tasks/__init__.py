"""Where work comes from: generators, functions, files, reasoning-gym; each with a held-out side."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.tasks.arithmetic import (
        LEVELS as LEVELS,
        Arithmetic as Arithmetic,
        ArithmeticTasks as ArithmeticTasks,
        Expression as Expression,
        Part as Part,
    )
    from burnish.tasks.base import (
        FiniteTasks as FiniteTasks,
        TaskSet as TaskSet,
        content_key as content_key,
        epoch_order as epoch_order,
    )
    from burnish.tasks.config import TaskConfig as TaskConfig, build as build
    from burnish.tasks.files import (
        GSM8K as GSM8K,
        File as File,
        HeldOutColumn as HeldOutColumn,
        HeldOutFile as HeldOutFile,
        HeldOutShare as HeldOutShare,
        Math as Math,
        MultipleChoice as MultipleChoice,
        boxed_answers as boxed_answers,
        gsm8k_answer as gsm8k_answer,
        load_file as load_file,
        load_form as load_form,
    )
    from burnish.tasks.function import Function as Function, FunctionTasks as FunctionTasks
    from burnish.tasks.gym import (
        GymTasks as GymTasks,
        ReasoningGym as ReasoningGym,
        gym_score as gym_score,
    )
    from burnish.tasks.pictures import (
        Asked as Asked,
        Picture as Picture,
        PictureTasks as PictureTasks,
    )
    from burnish.tasks.scenes import (
        Chart as Chart,
        Charts as Charts,
        Scene as Scene,
        Scenes as Scenes,
        Thing as Thing,
    )

__getattr__, __dir__ = lazy_exports(__name__)
