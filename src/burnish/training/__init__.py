"""The loop that turns a recipe, a scorer and tasks into new weights."""

from burnish.training.anew import begin_anew
from burnish.training.build import build
from burnish.training.loop import Trainer
from burnish.training.replay import replay

__all__ = ["Trainer", "begin_anew", "build", "replay"]
