"""Is the response made of the wanted tags, each once, in order, with nothing else? Value 0 or 1.

With `partial`, the share of tags that are right, so that a model that has none of the format yet
has something to climb; off by default, because partial credit is what gets gamed.
"""

from __future__ import annotations

from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck, require


class TagsConfig(CheckConfig, frozen=True, tag="tags"):
    """`<think>...</think><answer>...</answer>` and the like; values in [0, 1]."""

    tags: tuple[str, ...] = ("think", "answer")
    """Names of the tags, in their order."""
    outside: bool = False
    """True allows text between and around the tags."""
    empty: bool = False
    """True allows a pair of tags with nothing inside."""
    partial: bool = False
    """Pay the share of tags that are right instead of all or nothing."""


class Tags(RuleCheck[TagsConfig]):
    """Checks the shape of a response."""

    def __init__(self, config: TagsConfig) -> None:
        super().__init__(config)
        plain = all(tag.replace("_", "").replace("-", "").isalnum() for tag in config.tags)
        require(config, bool(config.tags) and plain, "tags must be a list of plain names.")
        unique = len(set(config.tags)) == len(config.tags)
        require(config, unique, "each tag may be listed once.")

    def judge(self, task: Task, response: Response) -> Reward:
        text, config = response.text, self.config
        problems: list[str] = []
        bad: set[str] = set()
        end, outside = 0, ""
        for tag in config.tags:
            problem, start, stop = self._one(text, tag, end)
            if problem:
                bad.add(tag)
                problems.append(problem)
                continue
            outside += text[end:start]
            end = stop
        outside += text[end:]
        if not bad and not config.outside and outside.strip():
            problems.append("there is text outside the tags")
        saw = "; ".join(problems) or f"found {', '.join(config.tags)} once, in order"
        if not config.partial:
            return self.decided(float(not problems), saw)
        right = len(config.tags) - len(bad) - (0.5 if problems and not bad else 0.0)
        return self.decided(right / len(config.tags), saw)

    def _one(self, text: str, tag: str, after: int) -> tuple[str, int, int]:
        """A problem with one tag (or ""), and where its pair starts and ends."""
        opening, closing = f"<{tag}>", f"</{tag}>"
        for mark in (opening, closing):
            count = text.count(mark)
            if count != 1:
                return f"{mark} stands {count} times", after, after
        start, stop = text.find(opening), text.find(closing)
        if stop < start:
            return f"{closing} comes before {opening}", after, after
        if start < after:
            return f"{opening} is out of order or inside another tag", after, after
        inside = text[start + len(opening) : stop]
        if not self.config.empty and not inside.strip():
            return f"{opening} is empty", after, after
        return "", start, stop + len(closing)
