"""Does a pattern occur in the response? Value 0 or 1.

A pattern can take exponential time on a hostile text, and Python's matcher cannot be interrupted,
so matching happens in a killable process with a clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck, require
from burnish.rewards.checks.extract import short


class RegexConfig(CheckConfig, frozen=True, tag="regex"):
    """The pattern occurs (or, with `forbid`, does not): 1, else 0."""

    pattern: str
    """Regular expression of Python."""
    mode: Literal["search", "fullmatch"] = "search"
    """`search`: anywhere; `fullmatch`: the whole text."""
    ignore_case: bool = False
    """Letters match in either case."""
    multiline: bool = False
    """^ and $ match at line borders."""
    dotall: bool = False
    """. matches line ends."""
    forbid: bool = False
    """Pay where the pattern does not occur."""
    timeout_s: float = 1.0
    """Seconds of computing for one response."""


class Regex(IsolatedCheck[RegexConfig]):
    """Searches a pattern in a child process."""

    child = "burnish.rewards.checks.regex:find"

    def __init__(self, config: RegexConfig) -> None:
        super().__init__(config)
        try:
            re.compile(config.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            require(config, False, f"pattern {config.pattern!r} is not valid: {error}.")
        self.flags = (
            re.IGNORECASE * config.ignore_case
            | re.MULTILINE * config.multiline
            | re.DOTALL * config.dotall
        )

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        config = self.config
        jobs = [
            {
                "pattern": config.pattern,
                "flags": int(self.flags),
                "mode": config.mode,
                "text": response.text,
            }
            for response in responses
        ]
        rewards = []
        for outcome in await self.isolated(jobs):
            if outcome.status != "ok":
                rewards.append(self.undecided(outcome, f"pattern {short(config.pattern)!r}"))
                continue
            found: str | None = outcome.value
            saw = "no match" if found is None else f"matched {short(found)!r}"
            value = float((found is None) == config.forbid)
            rewards.append(self.decided(value, f"{saw} of pattern {short(config.pattern)!r}"))
        return rewards


def find(pattern: str, flags: int, mode: str, text: str) -> str | None:
    """The first match (its start, at most 400 characters), or None. Runs in the child."""
    compiled = re.compile(pattern, flags)
    match = compiled.fullmatch(text) if mode == "fullmatch" else compiled.search(text)
    return match.group()[:400] if match else None
