"""The figures of ATP-Bench over many responses, and how well judges agree on them.

found = plan_score(judged)
found.corpus.success_rate_macro, found.corpus.missed_mean, found.final
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from burnish.bench.items import Item, Judged
from burnish.bench.statistics import Estimate, mean_estimate
from burnish.records import Response, Reward
from burnish.rewards.judges.atp_bench import Corpus, Plan, aggregate, atp_scorer, plan_of
from burnish.rewards.judges.atp_bench.three_roles import Agreement, cohen
from burnish.rewards.scorer import checked


class PlanScore(NamedTuple):
    corpus: Corpus
    f1: Estimate | None
    validity: Estimate | None
    """Over responses with calls."""
    final: Estimate | None
    """0 to 100, with the quality judge; None without one."""
    items: int
    failed: int
    between: Agreement | None
    """The judge's own passes, all items together."""


def plan_score(judged: Sequence[Judged]) -> PlanScore:
    """Figures over the items that have a plan; missing is not 0."""
    plans = [plan for one in judged for reward in one.rewards[:1] if (plan := plan_of(reward))]
    return PlanScore(
        corpus=aggregate([_response(plan) for plan in plans]),
        f1=_mean([plan.metrics.get("f1") for plan in plans]),
        validity=_mean([plan.metrics.get("validity") for plan in plans]),
        final=_mean([plan.final for plan in plans]),
        items=len(judged),
        failed=len(judged) - len(plans),
        between=_between(plans),
    )


async def with_oracle(judged: Sequence[Judged], items: Sequence[Item]) -> Agreement | None:
    """The judge's marks of calls against those by the needs of the data; None where it has none."""
    by_id = {item.id: item for item in items}
    pairs: list[tuple[bool, bool]] = []
    for one in judged:
        item = by_id.get(one.id)
        plan = plan_of(one.rewards[0]) if one.rewards else None
        if item is None or plan is None or "needs" not in item.hidden or not one.responses:
            continue
        told = await oracle_reward(item, one.responses[0])
        right = plan_of(told)
        for ours, theirs in zip(plan.items, right.items if right else (), strict=False):
            if ours.valid and ours.correct is not None and theirs.correct is not None:
                pairs.append((ours.correct, theirs.correct))
    share, kappa = cohen(pairs)
    return Agreement(share, kappa, len(pairs), None) if pairs else None


async def oracle_reward(item: Item, text: str) -> Reward:
    """One response by the needs of the data."""
    (reward,) = await checked(atp_scorer(), item.task(oracle=True), [Response(item.id, text)])
    return reward


def plan_record(found: PlanScore) -> dict[str, Any]:
    """The figures for `--json`."""
    return {
        **found.corpus._asdict(),
        **{
            name: None if one is None else one._asdict()
            for name, one in (
                ("f1", found.f1),
                ("validity", found.validity),
                ("final", found.final),
            )
        },
        "items": found.items,
        "failed": found.failed,
        "passes_agree": agreement_record(found.between),
    }


def agreement_record(found: Agreement | None) -> dict[str, Any] | None:
    """An agreement as a table."""
    if found is None:
        return None
    return {"share": found.share, "kappa": found.kappa, "calls": found.items, "missed": found.gaps}


def _response(plan: Plan) -> Mapping[str, Any]:
    flags = [item.correct for item in plan.items] + [False] * plan.more
    return {
        "calls_correct": flags,
        "missed": None if plan.missed is None else len(plan.missed),
        "tools": sorted({item.kind for item in plan.items}),
    }


def _between(plans: Sequence[Plan]) -> Agreement | None:
    """Means over the items, weighted by their calls; kappa is left to single items."""
    known = [plan.agreement for plan in plans if plan.agreement is not None]
    calls = sum(one.items for one in known)
    same = sum(one.share * one.items for one in known if one.share is not None)
    gaps = [one.gaps for one in known if one.gaps is not None]
    if not known:
        return None
    share = same / calls if calls else None
    return Agreement(share, None, calls, sum(gaps) / len(gaps) if gaps else None)


def _mean(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return mean_estimate.plain(known) if known else None
