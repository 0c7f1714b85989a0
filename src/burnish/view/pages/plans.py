"""A plan of calls as one block: which are valid, which are right, what is missing (`ThreeRoles`).

    plan_view(sample)        # None where no reward of the sample rests on a plan

What was found when the answer was scored is read from the reward's evidence, never computed again.
"""

from __future__ import annotations

from msgspec import Struct

from burnish.rewards.judges.atp_bench.three_roles import Plan, plan_of
from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT

MOST = 64
"""Calls and missing places that are shown."""


class PlanPiece(Struct, frozen=True):
    """A stretch of the answer: text, or the call of that number (from 1)."""

    text: str
    call: int = 0


class PlanView(Struct, frozen=True, kw_only=True):
    """The answer cut at its calls, and what was found out about each."""

    pieces: list[PlanPiece]
    plan: Plan
    more: int
    """Calls that are not shown."""


def plan_view(sample: StoredSample) -> PlanView | None:
    """The first plan that the sample's reward rests on."""
    plan = plan_of(sample.reward)
    if plan is None:
        return None
    text = sample.trajectory.text[:TEXT]
    pieces, last = [], 0
    for number, item in enumerate(plan.items[:MOST], start=1):
        # Evidence is data: places that do not lie in this text, in order, cut nothing.
        if last <= item.start < item.end <= len(text):
            pieces.append(PlanPiece(text[last : item.start]))
            pieces.append(PlanPiece(text[item.start : item.end], number))
            last = item.end
    pieces.append(PlanPiece(text[last:]))
    shown = Plan(
        items=plan.items[:MOST],
        missed=None if plan.missed is None else plan.missed[:MOST],
        dropped=plan.dropped[:MOST],
        metrics=plan.metrics,
        unjudged=plan.unjudged,
        quality=plan.quality,
        final=plan.final,
        warnings=plan.warnings[:MOST],
        agreement=plan.agreement,
        more=plan.more,
    )
    more = plan.more + max(0, len(plan.items) - MOST)
    return PlanView(pieces=[p for p in pieces if p.text], plan=shown, more=more)
