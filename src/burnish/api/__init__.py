"""burnish from Python: train, score, judge, evaluate, generate and compare in one call each."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.api.ask import Judgement, judge, score
    from burnish.api.config import Config
    from burnish.api.explained import Explained
    from burnish.api.measure import (
        Compared,
        Evaluated,
        Generated,
        compare,
        evaluate,
        generate,
    )
    from burnish.api.run import Run, load_run, load_runs
    from burnish.api.sweep import SweepResult, sweep
    from burnish.api.train_run import train, train_async

__all__ = [
    "Compared",
    "Config",
    "Evaluated",
    "Explained",
    "Generated",
    "Judgement",
    "Run",
    "SweepResult",
    "compare",
    "evaluate",
    "generate",
    "judge",
    "load_run",
    "load_runs",
    "score",
    "sweep",
    "train",
    "train_async",
]

__getattr__, __dir__ = lazy_exports(__name__)
