"""A stored OpenRS judgement under other rules, without a call.

    reaggregate(reward, weights={"core": 3})            # the other rules stay those of the reward
    reaggregate(reward, order_rule="strict").value      # both orders joined in another way

Nothing changed gives the reward itself: the rules stand in its evidence, and how two orders were
joined follows from the values of both.
"""

from __future__ import annotations

from typing import Any, get_args

from msgspec.structs import replace

from burnish.errors import UserError, did_you_mean
from burnish.records import Reward, Status
from burnish.rewards.judges.openrs.judge import RULES, Rules, criteria_of, rules_of, valued
from burnish.rewards.pair_scorers import OrderRule, two_orders


def reaggregate(reward: Reward, *, order_rule: OrderRule | None = None, **rules: Any) -> Reward:
    """The same judgement under other rules (`weights`, `min_score`, `strict`, ...), without a call.

    Goes through both orders, an anchor and a gate in front. What holds no criteria stays as it is:
    a failed judgement, or a pair that a gate decided. `order_rule` joins both orders; by default the
    rule that made the stored value. Where several would have made it (both orders at 1, say), votes
    is taken: give the rule if you change others.
    """
    unknown = sorted(set(rules) - set(Rules.__struct_fields__))
    if unknown:
        known = Rules.__struct_fields__
        raise UserError(
            f"reaggregate got '{unknown[0]}'; expected {', '.join(known)}."
            f"{did_you_mean(unknown[0], known)}"
        )
    if order_rule is not None and order_rule not in get_args(OrderRule):
        known = get_args(OrderRule)
        raise UserError(
            f"reaggregate: order_rule is '{order_rule}'; expected {', '.join(known)}."
            f"{did_you_mean(order_rule, known)}"
        )
    return _again(reward, rules, order_rule)


def _again(reward: Reward, changed: dict[str, Any], order_rule: OrderRule | None) -> Reward:
    criteria = criteria_of(reward)
    if criteria is not None:
        rules = replace(rules_of(reward), **changed)
        kept = (e for e in reward.evidence if e.source != RULES)
        return valued(replace(reward, evidence=(*kept, rules.as_evidence())), criteria, rules)
    if not any(map(_holds_criteria, reward.parts)):
        return reward
    parts = tuple(_again(part, changed, order_rule) for part in reward.parts)
    if [part.name for part in parts] == ["forward", "backward"]:
        return _joined(reward, parts, order_rule or _order_rule(reward))
    if reward.value == reward.parts[-1].value and reward.status is reward.parts[-1].status:
        last = parts[-1]
        return replace(
            reward, value=last.value, status=last.status, parts=parts, reason=last.reason
        )
    raise _own_rule(reward)


def _holds_criteria(reward: Reward) -> bool:
    return criteria_of(reward) is not None or any(map(_holds_criteria, reward.parts))


def _order_rule(reward: Reward) -> OrderRule:
    """The rule that makes the reward's value of its two orders."""
    one, two = reward.parts
    if one.value is None or two.value is None:
        return "votes"  # an order without a value stays without one, whatever the rule
    if reward.value is None:
        return "mean"  # no other rule abstains
    known: tuple[OrderRule, ...] = ("votes", "mean", "strict")
    for rule in known:
        if two_orders(one.value, two.value, rule) == reward.value:
            return rule
    raise _own_rule(reward)


def _joined(reward: Reward, parts: tuple[Reward, ...], rule: OrderRule) -> Reward:
    """Both orders again, as `BothOrders` joins them."""
    one, two = parts
    if one.value is None or two.value is None:
        return replace(reward, parts=parts)
    is_split = one.value * two.value < 0
    reason = f"the orders disagree: {one.value:+g} and {two.value:+g}" if is_split else ""
    if is_split and rule == "mean":
        return replace(reward, value=None, status=Status.ABSTAIN, parts=parts, reason=reason)
    value = two_orders(one.value, two.value, rule)
    return replace(reward, value=value, status=Status.OK, parts=parts, reason=reason)


def _own_rule(reward: Reward) -> UserError:
    return UserError(
        f"reward '{reward.name}' combines {len(reward.parts)} parts by a rule of its own; "
        "reaggregate its parts one by one."
    )
