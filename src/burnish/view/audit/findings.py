"""What an audit says: findings in the order of their strength, each with the answers behind it."""

from __future__ import annotations

from msgspec import Struct

SAMPLES = 10
"""Answers that a finding names."""


class Finding(Struct, frozen=True, omit_defaults=True):
    """Something that changed in a run in a way that a reader should look at."""

    monitor: str
    """length, format, phrase, ..."""
    title: str
    text: str
    """One sentence with its numbers."""
    strength: float
    """0 to 1, for the order of the list; no probability."""
    early: float | None = None
    """The figure in the first quarter of the run."""
    late: float | None = None
    """And in the last."""
    curve: tuple[tuple[int, float], ...] = ()
    """By step."""
    samples: tuple[str, ...] = ()
    """Ids of the answers that moved it most."""


class Gold(Struct, frozen=True):
    """The reward that was trained on beside a score that was not."""

    reward: tuple[tuple[int, float], ...]
    gold: tuple[tuple[int, float], ...]
    reward_shift: float
    """From the first quarter to the last, in deviations."""
    gold_shift: float
    text: str
    samples: tuple[str, ...]
    """Late answers that are paid most and are worth least."""


class Audit(Struct, frozen=True):
    """All findings of a run, the strongest first."""

    run: str
    steps: int
    answers: int
    """Read, of the run's rollouts."""
    findings: tuple[Finding, ...]
    conflicts: dict[str, dict[str, float | None]]
    """Correlation of each two rewards within groups; None where one never varies."""
    gold: Gold | None
    note: str = ""
    """Why there is less to say than usual."""
