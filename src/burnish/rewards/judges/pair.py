"""The direct pair judge: one question, which of two responses is better, with reasons.

    pair = BothOrders(DirectPair(JudgeModel(lm)), rule="votes")
    first, second = await pair.score(task, [a, b])      # values v and -v, positive for the better

In one order alone a judge's taste for the first or the second place goes straight into the value;
`burnish.rewards.judges.build` puts both orders around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from burnish.records import Response, Reward, Task, Verdict
from burnish.rewards.judges.asking import JudgeModel, Question
from burnish.rewards.judges.options import Options, read_options
from burnish.rewards.judges.prompting import (
    as_user,
    check_template,
    fill,
    mark_for,
    request_of,
    wording,
)
from burnish.rewards.judges.verdicts import one_of, only_keys, own_object, words
from burnish.rewards.scorer import Scope
from burnish.seeds import digest

VALUES = {"A": 1.0, "B": -1.0, "Tie": 0.0}


class Winner(NamedTuple):
    """What a judge says about two responses, A shown first."""

    letter: str
    reasons: str

    @property
    def value(self) -> float:
        """From A's side."""
        return VALUES[self.letter]


def read_winner(reply: str, shown: Sequence[str] = ()) -> Winner:
    """The verdict `{"reasons": ..., "winner": "A" | "B" | "Tie"}` in the judge's own words."""
    found = own_object(reply, shown)
    only_keys(found, ("reasons", "winner"))
    return Winner(one_of(found, "winner", tuple(VALUES)), words(found, "reasons"))


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
        """The same judge asked once more; with a temperature it draws anew."""
        return type(self)(self.judge, name=self.name, template=self.template, vote=vote)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        a, b = responses
        if a.text == b.text:
            return both(self.name, Winner("Tie", "the two texts are the same"))
        request = request_of(task)
        text = fill(
            self.template,
            {
                "mark": mark_for(request, a.text, b.text),
                "request": request,
                "first": a.text,
                "second": b.text,
            },
        )
        question = Question("pair", as_user(text), (task.id, a.id, b.id), self.vote)
        heard = await self.judge.ask(question, partial(read_winner, shown=(a.text, b.text)))
        if heard.verdict is None:
            return [
                Reward.failed(self.name, heard.status, heard.reason, evidence=heard.evidence)
            ] * 2
        return both(self.name, heard.verdict, evidence=heard.evidence)


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
    settings = read_options("direct", options, PairOptions)
    return DirectPair(judge, name=settings.name, template=settings.template)
