"""burnish from Python: train, score, judge, evaluate, generate and compare in one call each."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.api.config import Config
    from burnish.api.explained import Explained
    from burnish.api.run import Run, load_run, load_runs
    from burnish.api.train_run import train, train_async

__all__ = ["Config", "Explained", "Run", "load_run", "load_runs", "train", "train_async"]

__getattr__, __dir__ = lazy_exports(__name__)
