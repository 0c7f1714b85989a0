"""Training of every kind: `build` a run from a config, then `.run()` it."""

from burnish.training.builder import build as build
from burnish.training.checkpoint import replay as replay
from burnish.training.trainer import Trainer as Trainer
from burnish.training.validate import reset as reset
