"""Is the response as long as it should be? 1 inside the range, down to 0 over soft edges."""

from __future__ import annotations

from typing import Literal

from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck, require
from burnish.rewards.checks.texts import words


class LengthConfig(CheckConfig, frozen=True, tag="length"):
    """A range of words, characters or tokens; values in [0, 1]."""

    unit: Literal["words", "characters", "tokens"] = "words"
    """What is counted."""
    min: int = 0
    """Least length of the range."""
    max: int | None = None
    """Greatest length of the range; none: no bound."""
    edge: int = 0
    """How many units outside the range the value takes to fall from 1 to 0; 0 is a hard edge."""


class Length(RuleCheck[LengthConfig]):
    """Counts and compares with a range."""

    def __init__(self, config: LengthConfig) -> None:
        super().__init__(config)
        require(config, config.min >= 0 and config.edge >= 0, "min and edge must be 0 or more.")
        ordered = config.max is None or config.min <= config.max
        require(config, ordered, f"min {config.min} is above max {config.max}.")
        bounded = config.min > 0 or config.max is not None
        require(config, bounded, "set min or max; without either every response passes.")

    def judge(self, task: Task, response: Response) -> Reward:
        config = self.config
        if config.unit == "tokens" and response.tokens == 0 and response.text:
            return self.abstained("the response does not say how many tokens it has")
        count = {
            "words": lambda: len(words(response.text)),
            "characters": lambda: len(response.text),
            "tokens": lambda: response.tokens,
        }[config.unit]()
        over = 0 if config.max is None else count - config.max
        outside = max(0, config.min - count, over)
        value = max(0.0, 1.0 - outside / config.edge) if config.edge else float(outside == 0)
        top = "any" if config.max is None else str(config.max)
        return self.decided(value, f"{count} {config.unit}; wanted {config.min} to {top}")
