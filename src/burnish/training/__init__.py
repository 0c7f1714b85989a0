"""Training of every kind: `build` a run from a config, then `.run()` it."""

from burnish.training.builder import build
from burnish.training.checkpoint import replay
from burnish.training.trainer import Trainer
from burnish.training.validate import reset

__all__ = ["Trainer", "build", "replay", "reset"]
