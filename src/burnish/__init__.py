"""burnish: say why a response is good, improve the model from that, show what happened.

    import burnish

    run = burnish.train("grpo", model="smollm2", data=rows, rewards=[my_reward], steps=50)
    run.samples(), run.metrics(), run.plot(), run.why("train-1-1-4")

Names are imported when they are first used: the nouns at once, everything that needs torch late.
"""

from typing import TYPE_CHECKING, Any

from burnish.lazy import lazy_exports
from burnish.records import (
    Author,
    Criterion,
    Evidence,
    Finish,
    Message,
    Response,
    Reward,
    Span,
    Status,
    Task,
    Trajectory,
    Verdict,
    Visibility,
)

if TYPE_CHECKING:
    from burnish.api.align import align
    from burnish.api.align_steps import Aligned
    from burnish.api.ask import Judgement, judge, score
    from burnish.api.config import Config
    from burnish.api.explained import Explained
    from burnish.api.measure import Compared, Evaluated, Generated, compare, evaluate, generate
    from burnish.api.prompt import optimise_prompt
    from burnish.api.run import Run, load_run, load_runs
    from burnish.api.sweep import SweepResult, sweep
    from burnish.api.train_run import train, train_async

__version__ = "0.1.0"

__all__ = [
    "Aligned",
    "Author",
    "Compared",
    "Config",
    "Criterion",
    "Evaluated",
    "Evidence",
    "Explained",
    "Finish",
    "Generated",
    "Judgement",
    "Message",
    "Response",
    "Reward",
    "Run",
    "Span",
    "Status",
    "SweepResult",
    "Task",
    "Trajectory",
    "Verdict",
    "Visibility",
    "align",
    "compare",
    "evaluate",
    "generate",
    "judge",
    "load_run",
    "load_runs",
    "optimise_prompt",
    "score",
    "sweep",
    "train",
    "train_async",
]

ROOMS = (
    "agents",
    "bench",
    "config",
    "engines",
    "lm",
    "models",
    "policy",
    "records",
    "rewards",
    "rollouts",
    "store",
    "tasks",
    "tools",
    "training",
    "view",
)
"""Packages with the parts of all this; `burnish.policy` needs no import of its own."""

_find, _listed = lazy_exports(__name__)


def __getattr__(name: str) -> Any:
    if name in ROOMS:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    found = _find(name)
    if name in ("align", "train", "train_async"):
        from burnish.api import launch

        launch.progress = launch.progress or _Progress()
    return found


class _Progress:
    """Progress in the terminal or the notebook; loaded when the first run is shown."""

    def view(self, trainer: Any) -> Any:
        from burnish.cli.progress import view_for

        return view_for(trainer, quiet=False, as_json=False)

    def say(self, line: str) -> None:
        from burnish.cli.console import say

        say(line)


def __dir__() -> list[str]:
    return sorted({*_listed(), *ROOMS})
