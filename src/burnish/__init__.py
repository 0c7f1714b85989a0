"""burnish: say why a response is good, improve the model from that, show what happened."""

from typing import TYPE_CHECKING, Any

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
    from burnish.store.frames import load_run, load_runs

__version__ = "0.1.0"

__all__ = [
    "Author",
    "Criterion",
    "Evidence",
    "Finish",
    "Message",
    "Response",
    "Reward",
    "Span",
    "Status",
    "Task",
    "Trajectory",
    "Verdict",
    "Visibility",
    "load_run",
    "load_runs",
]


def __getattr__(name: str) -> Any:
    # The store is loaded by whoever looks at a run, not by everybody who imports the nouns.
    if name not in ("load_run", "load_runs"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from burnish.store import frames

    return getattr(frames, name)
