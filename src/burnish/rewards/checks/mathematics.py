"""Is the response's answer mathematically equal to the reference? Value 0 or 1.

Cheap comparisons come first, in this process: equal text after normalisation, or two plain
numbers. Only what they leave open goes to math-verify, in a killable child process with a
clock, because computer algebra on hostile input (towers of exponents, factorials) need not end.
An answer that the clock or the memory limit stops is `timeout` or `infra_error`, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.boundary import Seconds
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck
from burnish.rewards.checks.extract import (
    LONGEST,
    Where,
    find_answer,
    references,
    short,
)
from burnish.rewards.checks.numeric import (
    Number,
    Question,
    answer_number,
    has_number,
    keep_apart,
    last_number,
    read_number,
)

_DRESS = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle|\\[,;!: ]|\\\(|\\\)|\\\[|\\\]|\$"
)
_BLANK = re.compile(r"(?<!\d) | (?!\d)")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_DELIMITER = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed")
SEARCHED = 10_000
"""Characters at the end of a response in which math-verify looks for an unmarked answer."""


class MathematicsConfig(CheckConfig, frozen=True, tag="mathematics"):
    """The answer equals the task's field as mathematics: 1, else 0."""

    field: str = "answer"
    """Task field with the right answer."""
    where: Where = "auto"
    """Where the answer stands. With `auto` and nothing that marks an answer: the last number where
    the reference is one and the text has no LaTeX, else what math-verify finds."""
    tag: str = "answer"
    """Name of the tag that holds the answer."""
    timeout_s: Seconds = 3.0
    """Seconds of computing for one comparison in the child."""


class _Open(NamedTuple):
    """A comparison that only computer algebra can decide."""

    answer: str
    explicit: bool
    saw: str


class Mathematics(IsolatedCheck[MathematicsConfig]):
    """Compares answers as mathematics."""

    uses_answer = True
    child = f"{Path(__file__).with_name('algebra.py')}:equal_to_any"

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        golds = [g for g in references(task.fields.get(self.config.field)) if len(g) <= LONGEST]
        if not golds:
            reason = f"the field '{self.config.field}' holds no answer to compare with"
            return [self.abstained(reason)] * len(responses)
        question = Question.of(task)
        first = [self._cheap(response.text, golds, question) for response in responses]
        asked = dict.fromkeys((one.answer, one.explicit) for one in first if isinstance(one, _Open))
        jobs = [{"answer": text, "golds": golds, "explicit": is_so} for text, is_so in asked]
        outcomes = dict(zip(asked, await self.isolated(jobs), strict=True))
        return [
            one if isinstance(one, Reward) else self._from_child(one, outcomes[one[:2]])
            for one in first
        ]

    def _cheap(self, text: str, golds: list[str], question: Question) -> Reward | _Open:
        """A reward where text or plain numbers decide, else the question for the child."""
        where = self.config.where
        found = find_answer(text, where, self.config.tag)
        numbers = [read_number(gold) for gold in golds]
        if where == "auto" and found and all(numbers) and not has_number(found):
            found = None
        reference = f"reference {short(' or '.join(golds))!r}"
        if found is None and where not in ("auto", "last"):
            return self.decided(0.0, f"no {where} answer in {short(text)!r}; {reference}")
        if found is None:
            number = last_number(text)
            if all(numbers) and number is not None and not _has_latex(text):
                saw = f"extracted the last number of {short(text)!r}; {reference}"
                is_equal = _any_equal(number, numbers)
                if is_equal and question.is_repeated_by(text):
                    is_equal, saw = False, f"{saw}; it only repeats the question"
                return self.decided(float(is_equal), saw)
            return _Open(_tail(text), False, f"searched {short(text)!r}; {reference}")
        saw = f"extracted {short(found.text)!r} ({found.place}); {reference}"
        if len(found.text) > LONGEST:
            return self.decided(0.0, f"{saw}: too long to be an answer")
        if normalise(found.text) in {normalise(gold) for gold in golds}:
            return self.decided(1.0, saw)
        if all(numbers):
            number = read_number(found.text)
            if number is None and found.place == "marker" and not _has_latex(found.text):
                number = answer_number(found.text)
            if number is not None:
                return self.decided(float(_any_equal(number, numbers)), saw)
        if not found.text.strip():
            return self.decided(0.0, saw)
        return _Open(found.text, not _DELIMITER.search(found.text), saw)

    def _from_child(self, case: _Open, outcome: Any) -> Reward:
        if outcome.status is not Status.OK:
            return self.undecided(outcome, case.saw)
        if outcome.value["unreadable_gold"]:
            return self.abstained(f"math-verify cannot read the reference; {case.saw}")
        read = outcome.value["read"]
        saw = f"{case.saw}; math-verify read {short(read)!r}" if read else f"{case.saw}; unreadable"
        return self.decided(float(outcome.value["equal"]), saw)


def _has_latex(text: str) -> bool:
    return "\\" in text or "$" in text


def _tail(text: str) -> str:
    """The end of a long text, cut where no expression is cut in two: at a line's end, else after
    the formula that the cut would fall into, else at a blank."""
    if len(text) <= SEARCHED:
        return text
    tail = text[-SEARCHED:]
    inside = text.count("$", 0, len(text) - SEARCHED) % 2
    for border in ("\n", "$" if inside else " ", " "):
        if border in tail:
            return tail[tail.find(border) + 1 :]
    return ""


def _any_equal(number: Number, golds: Sequence[Number | None]) -> bool:
    """Exact equality; a percentage equals its face value as well as its hundredth."""
    scaled = number.value / 100 if number.percent else number.value * 100
    return any(
        gold is not None
        and (
            gold.value == number.value or (number.percent != gold.percent and gold.value == scaled)
        )
        for gold in golds
    )


def normalise(answer: str) -> str:
    """LaTeX without what does not change its meaning: sizes, dollars, text wrappers, blanks.

    A blank between two digits stays: `1 2` is not `12`, and `1 1/2` is not `11/2`.
    """
    bare = _TEXT.sub(r"\1", answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    bare = _DRESS.sub("", keep_apart(bare.strip().rstrip(".")))
    return _BLANK.sub("", " ".join(bare.split())).rstrip(".")
