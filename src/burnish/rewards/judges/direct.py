"""The direct judge: which of two responses is better, with reasons, in one question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from msgspec.structs import asdict

from burnish.records import Response, Reward, Task, Verdict
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    check_template,
    question_about,
    wording,
)
from burnish.rewards.judges.reading import Table, one_of, read_reply, text
from burnish.rewards.scorer import Scope
from burnish.seeds import digest

VALUES = {"A": 1.0, "B": -1.0, "Tie": 0.0}


class Winner(NamedTuple):
    """What a judge says about two responses, A shown first."""

    reasons: str
    winner: str

    @property
    def value(self) -> float:
        """From A's side."""
        return VALUES[self.winner]


WINNER = Table(Winner, reasons=text, winner=one_of(*VALUES))


class DirectPair:
    """A pair scorer: 1 and -1 for the better and the worse response, 0 for a tie."""

    scope = Scope.PAIR
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        judge: JudgeModel,
        *,
        name: str = "direct",
        template: str | None = None,
        vote: int = 0,
    ) -> None:
        self.judge, self.name, self.vote = judge, name, vote
        self.template = wording("pair") if template is None else template
        check_template(self.template, ("mark", "request", "first", "second"), f"judge '{name}'")

    @property
    def fingerprint(self) -> str:
        return digest("DirectPair", self.judge.fingerprint, self.template, str(self.vote))

    def for_vote(self, vote: int) -> Self:
        """The same judge asked once more; with a temperature it samples again."""
        return type(self)(self.judge, name=self.name, template=self.template, vote=vote)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        a, b = responses
        if a.text == b.text:
            return both(self.name, Winner("the two texts are the same", "Tie"))
        shown = {"first": a, "second": b}
        question = question_about(
            "pair", self.template, task, shown, self.vote, schema=WINNER.schema
        )
        judge_reply = await self.judge.ask(
            question, partial(read_reply, table=WINNER, shown=(a.text, b.text))
        )
        if judge_reply.verdict is None:
            return [judge_reply.failed(self.name)] * 2
        return both(self.name, judge_reply.verdict, evidence=judge_reply.evidence)


def both(name: str, winner: Winner, **more: Any) -> list[Reward]:
    """The two rewards of a verdict, v and -v, each with the reasons."""
    place = len(more.get("evidence", ())) - 1
    return [
        Reward(
            name,
            value,
            verdicts=(
                Verdict(
                    "overall",
                    value,
                    evidence=(place,) if place >= 0 else (),
                    reason=winner.reasons,
                ),
            ),
            reason=winner.reasons,
            **more,
        )
        for value in (winner.value, 0.0 - winner.value)
    ]


class PairOptions(Options, frozen=True):
    """Options of `direct`."""

    name: str = "direct"
    template: str | None = None
    """Your own wording, with the blanks {mark}, {request}, {first} and {second}."""


def build(judge: JudgeModel, options: Mapping[str, Any]) -> DirectPair:
    """The judge by the name `direct`, in one order."""
    return DirectPair(judge, **asdict(read_options("direct", options, PairOptions)))
