"""Who builds a rubric, how much is asked, and what comes of it.

    Roles(writers=[a, b, c], aggregators=[a, b], checkers=[c], author=a)
    Plan(samples=3, models=2, sources=1)

A role is a `JudgeModel` or a function from a prompt to a reply. Writers should sample: give them
judge models with a temperature, or every answer in one style is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from burnish.lm.scripted import ScriptedLM
from burnish.records import Evidence
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.rubric.audit import Audit
from burnish.rewards.judges.rubric.consensus import Candidate
from burnish.rewards.judges.rubric.items import Point, Rubric, Rules

Role = JudgeModel | Callable[[str], str]
Outcome = Literal["built", "rescued", "needs_human"]


@dataclass(frozen=True)
class Roles:
    """Who does what; the same model may have several roles, but counts as one voice."""

    writers: Sequence[Role]
    aggregators: Sequence[Role]
    author: Role
    checkers: Sequence[Role] = ()
    auditor: Role | None = None


@dataclass(frozen=True)
class Plan:
    """How much is asked, and when a statement or a rubric is good enough."""

    samples: int = 3
    """Answers of each writer, the styles in turn."""
    models: int = 2
    """Independent models that must support a statement, or"""
    sources: int = 1
    """as many retrieved passages."""
    same: float = 0.6
    """Share of common words from which two statements are one."""
    passages: int = 5
    quality: float = 0.8
    """Share of the audit's decided points under which a rubric is built again."""
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True)
class Built:
    """What came of a question."""

    rubric: Rubric | None
    outcome: Outcome
    audit: Audit | None = None
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()
    considered: tuple[Point, ...] = ()
    """Every statement that somebody found; the rubric's `points` are those in consensus."""
    references: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    """Raw replies of all roles, in the order of the stages."""


def as_judge(role: Role, name: str) -> JudgeModel:
    """A role as a judge model; a plain function is one with a script."""
    if isinstance(role, JudgeModel):
        return role
    reply = role
    own = str(getattr(role, "__name__", name))
    # Two nameless functions must not pass for one voice.
    title = name if own == "<lambda>" else own
    return JudgeModel(
        ScriptedLM(lambda said, _: reply("\n\n".join(m.content for m in said)), name=title)
    )
