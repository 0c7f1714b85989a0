"""What the environment of a rollout gave, by name; without a value where it gave nothing."""

from __future__ import annotations

from collections.abc import Mapping

from burnish.records import Response, Reward, Status, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck


class EnvConfig(CheckConfig, frozen=True, tag="env"):
    """A reward that `[rollout] kind = "env"`, `"function"` or `"agent"` brought with it; any finite
    value."""

    key: str = ""
    """Its name among the environment's rewards; the reward's own name where empty."""
    otherwise: float | None = None
    """The value where the environment gave none, such as 0.0 for a game that was never won."""


class EnvReward(RuleCheck[EnvConfig]):
    """Reads the environment's rewards from the response's `info`."""

    def judge(self, task: Task, response: Response) -> Reward:
        key = self.config.key or self.name
        given = response.info.get("rewards", {})
        value = given.get(key, self.config.otherwise)
        if value is None:
            known = ", ".join(given) or "none"
            reason = f"the environment gave no reward '{key}'; it gave {known}"
            return Reward.failed(self.name, Status.ABSTAIN, reason)
        told = response.info.get("reasons")
        why = told.get(key) if isinstance(told, Mapping) else None
        reason = why if isinstance(why, str) else ""
        return self.decided(float(value), f"{key} = {value}", reason=reason)
