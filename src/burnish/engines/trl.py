"""A scorer as a reward function of TRL's GRPO, RLOO and online DPO trainers.

    trainer = GRPOTrainer(model, reward_funcs=as_trl(scorer, columns={"solution": "answer"}), ...)

TRL takes None for "not scored": such a row leaves the group's mean and gets advantage 0. Parts
are logged as metrics, statuses and the keys of the traces as columns of the completions table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.engines.bridge import Bridge, means, status_shares
from burnish.rewards.scorer import Scorer

_NOT_COLUMNS = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})


def as_trl(scorer: Scorer, **options: Any) -> Callable[..., list[float | None]]:
    """`f(prompts, completions, completion_ids, **columns) -> list[float | None]`.

    `options` are those of `Bridge`: columns, labels, anchor, trace, deadline_s, limit.
    """
    bridge = Bridge(scorer, **options)

    def reward(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **given: Any,
    ) -> list[float | None]:
        columns = {k: v for k, v in given.items() if k not in _NOT_COLUMNS}
        ids = completion_ids or [()] * len(prompts)
        items = [
            bridge.item(p, c, {k: v[i] for k, v in columns.items()}, tokens=len(ids[i]))
            for i, (p, c) in enumerate(zip(prompts, completions, strict=True))
        ]
        scored = bridge.score_now(items)
        _log(bridge, scored, given)
        return [one.reward.value for one in scored]

    reward.__name__ = bridge.name
    return reward


def _log(bridge: Bridge, scored: Sequence[Any], given: Mapping[str, Any]) -> None:
    rewards = [one.reward for one in scored]
    rows = [bridge.numbers(reward) for reward in rewards]
    if rows and (log_metric := given.get("log_metric")):
        log_metric(f"{bridge.name}/valid", sum(row["valid"] for row in rows) / len(rows))
        shares, parts = status_shares(rewards), means(rows, bridge.parts)
        for name, value in (parts | shares).items():
            log_metric(f"{bridge.name}/{name}", value)
    if rows and (log_extra := given.get("log_extra")):
        log_extra(f"{bridge.name}/status", [reward.status.value for reward in rewards])
        log_extra(f"{bridge.name}/trace", [one.key for one in scored])
        for name in bridge.parts:
            values = [row[name] if row[f"{name}_valid"] else None for row in rows]
            log_extra(f"{bridge.name}/{name}", values)
