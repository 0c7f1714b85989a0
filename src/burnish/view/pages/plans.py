"""A plan of calls as one block: which are valid, which are right, what is missing (`ThreeRoles`).

    plan_view(sample)        # None where no reward of the sample rests on a plan

What was found when the answer was scored is read from the reward's evidence, never computed again.
"""

from __future__ import annotations

from msgspec.structs import replace

from burnish.rewards.judges.atp_bench.three_roles import plan_of
from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT
from burnish.view.pages.runs import Page

MOST = 64
"""Calls and missing places that are shown."""


def plan_view(sample: StoredSample) -> Page | None:
    """The answer cut at its calls (numbered from 1), and what was found out about each."""
    plan = plan_of(sample.reward)
    if plan is None:
        return None
    text = sample.trajectory.text[:TEXT]
    pieces, last = [], 0
    for number, item in enumerate(plan.items[:MOST], start=1):
        # Evidence is data: places that do not lie in this text, in order, cut nothing.
        if last <= item.start < item.end <= len(text):
            pieces.append({"text": text[last : item.start], "call": 0})
            pieces.append({"text": text[item.start : item.end], "call": number})
            last = item.end
    pieces.append({"text": text[last:], "call": 0})
    shown = replace(
        plan,
        items=plan.items[:MOST],
        missed=None if plan.missed is None else plan.missed[:MOST],
        dropped=plan.dropped[:MOST],
        warnings=plan.warnings[:MOST],
    )
    more = plan.more + max(0, len(plan.items) - MOST)
    return {"pieces": [piece for piece in pieces if piece["text"]], "plan": shown, "more": more}
