"""Judges by name: what `burnish judge --with NAME` and `[[rewards]] kind = "judge"` build.

judge = JudgeModel(open_lm("smollm2"), budget=Budget(calls=500))
scorer = build_judge("direct", judge)                       # a pair, in both orders
scorer = build_judge("openrs", judge, anchor="reference")   # pointwise, against a task field
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from burnish.arguments import as_word
from burnish.boundary import Settings
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.records import Response
from burnish.rewards.combine import Anchor, BothOrders, OrderRule
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.scorer import Scope, Scorer

JUDGES = {
    "direct": "burnish.rewards.judges.simple:build_pair",
    "point": "burnish.rewards.judges.simple:build_point",
    "list": "burnish.rewards.judges.simple:build_list",
    "openrs": "burnish.rewards.judges.openrs:build",
    "skill_rm": "burnish.rewards.judges.skill_rm:build",
    "genrm": "burnish.rewards.judges.genrm:build",
    "rubric": "burnish.rewards.judges.rubric:build",
    "march": "burnish.rewards.judges.march:build",
    "evpv": "burnish.rewards.judges.evpv:build",
    "atp": "burnish.rewards.judges.atp_bench:build",
    "citations": "burnish.rewards.judges.citations:build",
}

ALONE = frozenset({"atp", "citations"})
"""Judges that also decide by the data and by words, where no model is named."""

Builder = Callable[[JudgeModel | None, Mapping[str, Any]], Scorer]


def build_judge(
    name: str,
    judge: JudgeModel | None,
    options: Mapping[str, Any] | None = None,
    *,
    both_orders: bool = True,
    rule: OrderRule | None = None,
    anchor: Response | str | None = None,
) -> Scorer:
    """The scorer of that name; without a model for those that decide `ALONE`.

    A pair judge is asked in both orders (`rule`: the method's own `order_rule`, else votes). One
    that sees to that itself (`asks_both_orders`) is told by its option `both_orders` and joins the
    orders by its own rule. With an anchor, a response or the name of a task field, a pair judge
    becomes pointwise.
    """
    build = find_builder(name)
    if judge is None and name not in ALONE:
        raise UserError(f"judge '{name}' asks a model; give one.")
    scorer = build(judge, options or {})
    sees_to_orders = getattr(scorer, "asks_both_orders", False)
    is_own = sees_to_orders and rule == "abstain" and hasattr(scorer, "inconsistent")
    told: dict[str, Any] = {"inconsistent": "abstain"} if is_own else {}
    told |= {"both_orders": False} if sees_to_orders and not both_orders else {}
    if told:
        scorer = build(judge, {**(options or {}), **told})
    is_pair = scorer.scope is Scope.PAIR
    has_rule = is_pair and both_orders and (is_own or not sees_to_orders)
    wrong = [f"rule '{rule}' for two orders"] if rule is not None and not has_rule else []
    wrong += ["anchor"] if anchor is not None and not is_pair else []
    if wrong:
        raise UserError(
            f"judge '{name}' takes no {wrong[0]} here; leave it out, or see the method's own options"
        )
    if is_pair and both_orders and not sees_to_orders:
        own: OrderRule = getattr(scorer, "order_rule", "votes")
        scorer = BothOrders(scorer, rule=rule or own)
    return scorer if anchor is None else Anchor(scorer, anchor)


def find_builder(name: str) -> Builder:
    """The method's `build`; its package is imported now."""
    if name not in JUDGES:
        raise UserError(
            f"there is no judge '{name}'; expected {', '.join(JUDGES)}.{did_you_mean(name, JUDGES)}"
        )
    module, _, function = JUDGES[name].partition(":")
    return cast(Builder, getattr(importlib.import_module(module), function))


class Options(Settings, frozen=True, kw_only=True):
    """Base of a method's settings."""


S = TypeVar("S", bound=Options)


def read_options(judge: str, options: Mapping[str, Any], kind: type[S]) -> S:
    """The settings, or a `UserError` that names the option and what was expected."""
    for name in options:
        as_word(f"judge '{judge}': option", name, kind.__struct_encode_fields__)
    try:
        return kind(**options)
    except ArgumentError as error:
        raise UserError(f"judge '{judge}': {error}") from None


def check_votes(judge: JudgeModel, name: str, what: str, count: int) -> None:
    """Refuse votes that would all be the same."""
    if count > 1 and judge.sampling.temperature == 0:
        raise UserError(
            f"judge '{name}': {what} is {count} at temperature 0, where all say the same; expected a "
            f"temperature such as 0.6, or {what} of 1."
        )
