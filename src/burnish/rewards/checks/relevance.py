"""Graded answers that begin with their grade: is it right, and do the sections behind it hold?

Strict, as AFRL (arXiv 2602.10006) wants them: an answer that does not begin with a label has no grade
and earns 0, and no explanation is worth anything behind a grade that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import INFINITE, Count, Name, Seconds, public
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck, RuleCheck
from burnish.rewards.checks.extract import short
from burnish.rewards.checks.rules import FIND, check_pattern
from burnish.rewards.checks.sections import check_headings, find_sections, is_closed, repeated
from burnish.rewards.checks.texts import goes_on

Kind = Literal["exact", "ordinal"]


@public
def relevance_reward(
    predicted: Annotated[float, INFINITE] | None,
    gold: Count,
    num_grades: Annotated[int, Meta(ge=2)],
    kind: Kind = "exact",
) -> float:
    """The reward of one grade: 1 or 0 (`exact`), or `1 - |g - g*| / (C - 1)` (`ordinal`).

    Grades count from 0. None, or a grade that does not exist, earns 0.
    """
    if gold >= num_grades:
        raise refused("gold", gold, f"a grade from 0 to {num_grades - 1}")
    if predicted is None or predicted not in range(num_grades):
        return 0.0
    if kind == "exact":
        return float(predicted == gold)
    return 1.0 - abs(predicted - gold) / (num_grades - 1)


@public
def leading_grade(text: str, labels: Sequence[Name]) -> int | None:
    """The position of the label that a text begins with; None where it begins with none.

    A label ends where its word or number does: neither `10` nor `1.5` nor `1/2` begins with `1`,
    but `1分` and `1. Because` do.
    """
    for label in sorted(labels, key=len, reverse=True):
        if text.startswith(label) and not goes_on(text, len(label)):
            return labels.index(label)
    return None


def gold_grade(value: Any, labels: Sequence[str]) -> int | None:
    """The grade that a field names: as a label, or else as a position among the labels."""
    if str(value) in labels:
        return list(labels).index(str(value))
    is_position = isinstance(value, int) and not isinstance(value, bool)
    return value if is_position and 0 <= value < len(labels) else None


class GradeConfig(CheckConfig, frozen=True, tag="grade"):
    """The answer begins with the right label: 1, else 0; `ordinal` also pays near misses."""

    labels: tuple[str, ...]
    """From the lowest grade to the highest."""
    field: str = "grade"
    """A label, or its position counted from 0."""
    scale: Kind = "exact"
    """`exact` pays the right label alone, `ordinal` also near ones."""

    def check(self) -> None:
        check_labels(self.labels)


class Grade(RuleCheck[GradeConfig]):
    uses_answer = True

    def judge(self, task: Task, response: Response) -> Reward:
        labels, name = self.config.labels, self.config.field
        gold = gold_grade(task.fields.get(name), labels)
        if gold is None:
            return self.abstained(_no_gold(task, name, labels))
        found = leading_grade.plain(response.text, labels)
        value = relevance_reward.plain(found, gold, len(labels), self.config.scale)
        saw = repr(labels[found]) if found is not None else f"no label in {short(response.text)!r}"
        return self.decided(value, f"begins with {saw}; reference {labels[gold]!r}")


class SectionConfig(CheckConfig, frozen=True, tag="section"):
    """One section stands in the answer and is well formed: 1, else 0."""

    heading: str
    """`rule:` at the start of a line, or a tag such as `<rule>`."""
    headings: tuple[str, ...] = ()
    """All headings of the answer: where one begins, the section before it ends."""
    pattern: str = ""
    """What the section's text must match from its first to its last letter; empty: anything."""
    timeout_s: Seconds = 1.0
    """Seconds of computing for one match."""
    must_equal_grade: bool = False
    """The section's text is the label that the answer begins with, and nothing else."""
    strict: bool = True
    """0 where the grade is wrong or missing, whatever the section says."""
    labels: tuple[str, ...] = ()
    """As of the reward `grade`; needed by `strict` and `must_equal_grade`."""
    field: str = "grade"
    """Task field with the right label, or its position counted from 0."""

    def check(self) -> None:
        check_headings(
            (*self.headings, self.heading) if self.heading not in self.headings else self.headings
        )
        if self.strict or self.must_equal_grade:
            check_labels(self.labels)
        check_pattern(self.pattern)


class SectionCheck(IsolatedCheck[SectionConfig]):
    """Looks at one section; its pattern is matched in a process that can be stopped."""

    child = FIND

    def __init__(self, config: SectionConfig) -> None:
        super().__init__(config)
        self.headings = tuple(dict.fromkeys((*config.headings, config.heading)))

    @property
    def uses_answer(self) -> bool:  # type: ignore[override]
        """Only the strict form reads the reference."""
        return self.config.strict

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        config = self.config
        gold = gold_grade(task.fields.get(config.field), config.labels)
        if config.strict and gold is None:
            reason = _no_gold(task, config.field, config.labels)
            return [self.abstained(reason)] * len(responses)
        looked = [self._look(response.text, gold) for response in responses]
        jobs = [
            {"pattern": config.pattern, "flags": int(re.DOTALL), "mode": "fullmatch", "text": text}
            for problem, text in looked
            if config.pattern and not problem
        ]
        outcomes = iter(await self.isolated(jobs))
        rewards = []
        for problem, text in looked:
            saw = problem or f"section {short(text)!r} under {config.heading!r}"
            if config.pattern and not problem:
                outcome = next(outcomes)
                if outcome.status != "ok":
                    rewards.append(self.undecided(outcome, saw))
                    continue
                if outcome.value is None:
                    problem = f"{saw} does not match {short(config.pattern)!r}"
            rewards.append(self.decided(float(not problem), problem or saw))
        return rewards

    def _look(self, text: str, gold: int | None) -> tuple[str, str]:
        """A problem (or "") of the section but for its pattern, and its text."""
        config, heading = self.config, self.config.heading
        grade = leading_grade.plain(text, config.labels)
        section = find_sections(text, self.headings)[self.headings.index(heading)]
        body = "" if section is None else text[section.body : section.body_end].strip()
        problem = ""
        if config.strict and grade != gold:
            problem = f"the grade is wrong or missing in {short(text)!r}"
        elif section is None:
            problem = f"no section {heading!r} in {short(text)!r}"
        elif heading in repeated(text, self.headings):
            problem = f"{heading!r} stands more than once"
        elif not is_closed(text, section, heading):
            problem = f"{heading!r} is not closed"
        elif not body:
            problem = f"nothing stands under {heading!r}"
        elif config.must_equal_grade and (grade is None or body != config.labels[grade].strip()):
            said = "no label" if grade is None else repr(config.labels[grade])
            problem = f"{heading!r} says {short(body)!r}, the answer begins with {said}"
        return problem, body


def check_labels(labels: Sequence[str]) -> None:
    is_plain = all(label and label == label.strip() for label in labels)
    if not (len(set(labels)) == len(labels) >= 2 and is_plain):
        raise refused("labels", labels, "at least two different words, lowest grade first")


def _no_gold(task: Task, field: str, labels: Sequence[str]) -> str:
    given = short(repr(task.fields.get(field)))
    return f"the field '{field}' is {given}, which is none of the labels {', '.join(labels)}"
