"""Why a run stops by itself, in one line that says what to do; empty where it goes on."""

from __future__ import annotations

from collections.abc import Mapping

SHOWN = 200
"""Characters of a reward's reason that a line repeats."""


def failing(
    shares: Mapping[str, float], limit: float, run: str, step: int, reasons: Mapping[str, str]
) -> str:
    """More rewards of a step have no value than `guards.failed_share` allows.

    `reasons` has one reason of each status, so that the line can say why.
    """
    failed = 1.0 - shares["status/ok"]
    if failed <= limit:
        return ""
    worst = max((k for k in shares if k != "status/ok"), key=lambda k: shares[k])
    status = worst.removeprefix("status/")
    reason = " ".join(reasons.get(status, "").split())
    why = f"{status}, {reason[:SHOWN]}{'...' if len(reason) > SHOWN else ''}" if reason else status
    return (
        f"{failed:.0%} of the rewards of step {step} have no value (most: {why}); "
        f"guards.failed_share allows {limit:.0%}. "
        f"See why: burnish show {run} --step {step}"
    )


def useless(streak: int, limit: int, run: str) -> str:
    """No group of the last `guards.useless_steps` steps had anything to learn from."""
    if streak < limit:
        return ""
    return (
        f"no group had both better and worse answers for {limit} steps, so nothing was "
        "learned. Make the task easier or harder, raise rollout.samples or "
        f"rollout.temperature, or check the reward: burnish show {run}"
    )
