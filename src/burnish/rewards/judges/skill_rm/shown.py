"""Verifiers of this method's own: reference match, counts, and sample-specific texts to read.

    ReferenceMatch.from_options({"field": "reference"})

Those that only show something abstain: what they say stands in their evidence.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from burnish.errors import UserError, did_you_mean
from burnish.records import Evidence, Response, Reward, Status, Task, Visibility
from burnish.rewards.checks.extract import references, short
from burnish.rewards.checks.match import token_f1
from burnish.rewards.checks.texts import constraint_tools
from burnish.rewards.judges.readouts import reference_match
from burnish.rewards.judges.sanitise import sanitize_metadata
from burnish.rewards.scorer import Scope
from burnish.seeds import digest

TAIL = 400
"""Characters at the end of a response in which a final answer is looked for."""


class FieldVerifier(ABC):
    """Base: a point scorer that may read one field of the task."""

    scope = Scope.POINT
    known: tuple[str, ...] = ("field",)
    default_field = "reference"

    def __init__(self, options: dict[str, Any]) -> None:
        for key in options:
            if key not in self.known:
                raise UserError(f"unknown option '{key}'.{did_you_mean(key, self.known)}")
        self.name = type(self).__name__
        self.options = options
        self.field = str(options.get("field", self.default_field)) if self.known else ""
        self.needs = frozenset({self.field}) if self.field else frozenset()

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> FieldVerifier:
        return cls(options)

    @property
    def fingerprint(self) -> str:
        return digest(self.name, repr(sorted(self.options.items())))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return [self.judge(task, response) for response in responses]

    @abstractmethod
    def judge(self, task: Task, response: Response) -> Reward:
        """One response."""

    def show(self, text: str, visibility: Visibility) -> Reward:
        """No value, and something to read."""
        evidence = (Evidence(self.name, text, visibility),)
        return Reward.failed(self.name, Status.ABSTAIN, "shown to the judge", evidence=evidence)


class ReferenceMatch(FieldVerifier):
    """1 where the reference stands in the response as whole tokens, else 0.

    `where = "end"` looks at the last lines only, where a final answer stands; `repeat = 5` looks for
    the reference written five times in a row, as some benchmarks ask for.
    """

    known = ("field", "where", "repeat")

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.where, self.repeat = options.get("where", "whole"), options.get("repeat", 1)
        if self.where not in ("whole", "end"):
            raise UserError(f"where is {self.where!r}; expected 'whole' or 'end'")
        if isinstance(self.repeat, bool) or not isinstance(self.repeat, int) or self.repeat < 1:
            raise UserError(f"repeat is {self.repeat!r}; expected a whole number of 1 or more")

    def judge(self, task: Task, response: Response) -> Reward:
        wanted = [gold * self.repeat for gold in references(task.fields.get(self.field))]
        text = response.text.rstrip()[-TAIL:] if self.where == "end" else response.text
        # Against an empty text, so that this response alone decides.
        hit = any(
            reference_match({"reference": gold, "responses": {"A": text, "B": ""}}) == "A"
            for gold in wanted
        )
        place = "the end of the response" if self.where == "end" else "the response"
        saw = f"reference {short(' or '.join(wanted))!r} {'stands' if hit else 'is not'} in {place}"
        return Reward(
            self.name, float(hit), evidence=(Evidence(self.name, saw, Visibility.ORACLE),)
        )


class GroundTruthScore(FieldVerifier):
    """How much of the ground truth a response holds: word F1 with it, over the response's end."""

    def judge(self, task: Task, response: Response) -> Reward:
        golds = references(task.fields.get(self.field))
        value = token_f1(response.text[-4 * TAIL :], golds)
        saw = f"word F1 {value:.3f} with the ground truth"
        return Reward(self.name, value, evidence=(Evidence(self.name, saw, Visibility.ORACLE),))


class TextCounts(FieldVerifier):
    """Words, sentences, paragraphs and the like of a response, for the judge to read."""

    known = ()

    def judge(self, task: Task, response: Response) -> Reward:
        counts = constraint_tools(response.text)
        return self.show(", ".join(f"{k} {v}" for k, v in counts.items()), Visibility.VISIBLE)


class ShowField(FieldVerifier):
    """A field of the sample, such as its reference or its checklist, for the judge to read."""

    def judge(self, task: Task, response: Response) -> Reward:
        value = task.fields[self.field]
        text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        )
        return self.show(text, Visibility.ORACLE)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """The same for all responses; it is said once."""
        first = self.judge(task, responses[0])
        rest = Reward.failed(self.name, Status.ABSTAIN, "the same")
        return [first, *(rest for _ in responses[1:])]


class ShowMetadata(ShowField):
    """The sample's metadata without anything that bears a label, a score, a model or an order."""

    default_field = "metadata"

    def judge(self, task: Task, response: Response) -> Reward:
        clean = sanitize_metadata({self.field: task.fields[self.field]}).get(self.field, {})
        return self.show(json.dumps(clean, ensure_ascii=False, default=str), Visibility.BENCHMARK)
