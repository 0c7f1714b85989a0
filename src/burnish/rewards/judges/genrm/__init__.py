"""A pairwise generative judge: its own principles, a critique under each, two scores, votes.

scorer = build(JudgeModel(lm, sampling=Sampling(temperature=0.6)), {"votes": 2})
first, second = await checked(scorer, task, [a, b])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.genrm.reading import (
    Judgement,
    Principle,
    read_judgement,
    read_principles,
)
from burnish.rewards.judges.genrm.scorer import GenRM
from burnish.rewards.judges.options import Options, read_options
from burnish.rewards.pairs import VoteRule

__all__ = ["GenRM", "Judgement", "Principle", "build", "read_judgement", "read_principles"]


class GenRMOptions(Options, frozen=True):
    """How often the judge is asked, and how votes become a value."""

    votes: int = 1
    """Each in both orders; more than one needs a temperature above 0."""
    both_orders: bool = True
    """False where the caller asks in both orders itself."""
    rule: VoteRule = "unanimous"
    value: Literal["outcome", "margin"] = "outcome"
    template: str | None = None
    """Another wording, with the blanks {mark}, {request}, {first} and {second}."""
    name: str = "genrm"


def build(judge: JudgeModel, options: Mapping[str, Any]) -> GenRM:
    """The scorer that the options describe."""
    chosen = read_options("genrm", options, GenRMOptions)
    return GenRM(
        judge,
        votes=chosen.votes,
        both_orders=chosen.both_orders,
        rule=chosen.rule,
        value=chosen.value,
        template=chosen.template,
        name=chosen.name,
    )
