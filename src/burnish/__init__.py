"""burnish: say why a response is good, improve the model from that, show what happened."""

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
]
