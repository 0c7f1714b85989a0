"""A pairwise judge that writes its own principles first (GenRM of Writing-Zero, arXiv 2506.00103).

    scorer = GenRM(JudgeModel(lm, sampling=Sampling(temperature=0.6)), votes=2)
    first, second = await scorer.score(task, [a, b])      # +1 and -1 where a wins
    first.verdicts       # who won in each order and vote, and under which principle

Every vote is asked in both orders and counts only where both could be read, so that a liking for a
place cancels out. Where we differ: votes that do not agree are 0 and not a loss, which keeps the
value antisymmetric in the two texts; a reply without scores is no vote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple, Self, get_args

from burnish.errors import UserError, did_you_mean
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.genrm.reading import Judgement, read_judgement
from burnish.rewards.judges.prompting import (
    as_user,
    check_template,
    fill,
    mark_for,
    request_of,
    wording,
)
from burnish.rewards.judges.questions import Heard, Question
from burnish.rewards.pairs import HIGHEST, VoteRule, pair_outcome, vote
from burnish.rewards.scorer import Scope, gather
from burnish.rewards.versus import settled
from burnish.seeds import digest

BLANKS = ("mark", "request", "first", "second")
SHOWN_FIRST, SHOWN_SECOND = "wins_shown_first", "wins_shown_second"
"""Criteria of the verdicts on whole texts: 1, 0 or -1, by where the response was shown."""


class Ballot(NamedTuple):
    """One question of one vote."""

    number: int
    is_swapped: bool
    """True where the second response is shown first."""
    heard: Heard[Judgement]

    @property
    def scores(self) -> tuple[float, float] | None:
        """Of the first and of the second response, however they were shown."""
        said = self.heard.verdict
        if said is None:
            return None
        return (said.scores[1], said.scores[0]) if self.is_swapped else said.scores


class GenRM:
    """A pair scorer: `votes` times in both orders, one outcome by `rule`.

    `value`: "outcome" is +1, 0 or -1 (with the rule "mean" anything between); "margin" the mean
    difference of the two scores, in tenths. Equal texts are even and an empty one loses, unasked.
    """

    scope = Scope.PAIR
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        judge: JudgeModel,
        *,
        votes: int = 1,
        both_orders: bool = True,
        rule: VoteRule = "unanimous",
        value: Literal["outcome", "margin"] = "outcome",
        template: str | None = None,
        name: str = "genrm",
    ) -> None:
        self.judge, self.votes, self.both_orders, self.name = judge, votes, both_orders, name
        self.rule, self.value = rule, value
        self.template = wording("genrm") if template is None else template
        self.asks_both_orders = both_orders
        self.first_vote = 0
        check_template(self.template, BLANKS, f"judge '{name}'")
        self._check()

    def _check(self) -> None:
        known = get_args(VoteRule)
        if self.rule not in known:
            raise UserError(
                f"judge '{self.name}': rule is '{self.rule}'; expected {', '.join(known)}."
                f"{did_you_mean(self.rule, known)}"
            )
        if self.value not in ("outcome", "margin"):
            raise UserError(
                f"judge '{self.name}': value is '{self.value}'; expected outcome or margin."
            )
        if self.votes < 1:
            raise UserError(f"judge '{self.name}': votes is {self.votes}; expected at least 1.")
        if self.votes > 1 and self.judge.sampling.temperature == 0:
            raise UserError(
                f"judge '{self.name}': votes is {self.votes} at temperature 0, where every vote is "
                "the same; expected a temperature such as 0.6, or one vote."
            )

    @property
    def fingerprint(self) -> str:
        """Changes with the model, the wording and how votes are counted."""
        settings = (self.votes, self.both_orders, self.rule, self.value, self.first_vote)
        return digest("GenRM", self.judge.fingerprint, self.template, repr(settings))

    def for_vote(self, vote: int) -> Self:
        """The same judge asked once more: its votes are those after the earlier ones."""
        other = copy(self)
        other.first_vote = vote * self.votes
        return other

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        a, b = responses
        known = settled(a.text, b.text)
        if known is not None:
            told = (Evidence(self.name, known[1]),)
            return [Reward(self.name, v, evidence=told) for v in (known[0], -known[0])]
        orders = (False, True) if self.both_orders else (False,)
        ballots = await gather(
            [
                partial(self._ask, task, a, b, number, swapped)
                for number in range(self.first_vote, self.first_vote + self.votes)
                for swapped in orders
            ]
        )
        return [self._reward(ballots, side) for side in (1.0, -1.0)]

    async def _ask(
        self, task: Task, a: Response, b: Response, number: int, is_swapped: bool
    ) -> Ballot:
        first, second = (b, a) if is_swapped else (a, b)
        request = request_of(task)
        values = {
            "mark": mark_for(request, first.text, second.text),
            "request": request,
            "first": first.text,
            "second": second.text,
        }
        about = (task.id, first.id, second.id)
        question = Question("genrm", as_user(fill(self.template, values)), about, number)
        rivals = first.text, second.text
        read = partial(read_judgement, shown=(request,), rivals=rivals)
        return Ballot(number, is_swapped, await self.judge.ask(question, read))

    def _reward(self, ballots: Sequence[Ballot], side: float) -> Reward:
        """One response's reward; `side` is 1 for the first response and -1 for the second."""
        evidence = tuple(chain.from_iterable(ballot.heard.evidence for ballot in ballots))
        verdicts = tuple(_verdicts(ballots, side))
        counted = [b.scores for b in ballots if self._counts(b, ballots) and b.scores is not None]
        if not counted:
            silent = next(ballot.heard for ballot in ballots if ballot.heard.verdict is None)
            return Reward.failed(
                self.name, silent.status, silent.reason, evidence=evidence, verdicts=verdicts
            )
        if self.value == "margin":
            value = math.fsum(a - b for a, b in counted) / len(counted) / HIGHEST
        else:
            value = vote([pair_outcome(scores) for scores in counted], self.rule) or 0.0
        told = ", ".join(
            f"{s[0]:g} to {s[1]:g}" for s in (c if side > 0 else c[::-1] for c in counted)
        )
        lost = self.votes * (1 + self.both_orders) - len(counted)
        reason = f"{told}; {lost} questions did not count" if lost else told
        # Never -0.0: the two values of a tie are one and the same.
        return Reward(
            self.name, side * value + 0.0, Status.OK, 1.0, (), evidence, verdicts, reason=reason
        )

    @staticmethod
    def _counts(ballot: Ballot, ballots: Sequence[Ballot]) -> bool:
        """Whether every order of this vote was read."""
        return all(b.scores is not None for b in ballots if b.number == ballot.number)


def _verdicts(ballots: Sequence[Ballot], side: float) -> list[Verdict]:
    """Who won each question, and under which principle, seen from one response."""
    found: list[Verdict] = []
    place = -1
    for ballot in ballots:
        place += len(ballot.heard.evidence)
        seen = (place,) if ballot.heard.evidence else ()
        is_first = ballot.is_swapped == (side < 0)
        criterion = SHOWN_FIRST if is_first else SHOWN_SECOND
        said, scores = ballot.heard.verdict, ballot.scores
        if said is None or scores is None:
            found.append(Verdict(criterion, None, evidence=seen, reason=ballot.heard.reason))
            continue
        outcome = side * pair_outcome(scores) + 0.0
        found.append(Verdict(criterion, outcome, evidence=seen, reason=f"vote {ballot.number + 1}"))
        for principle in said.principles:
            value = None
            if principle.scores is not None:
                ahead = (principle.scores[0] - principle.scores[1]) / HIGHEST
                value = (ahead if is_first else -ahead) + 0.0
            why = f"weight {principle.weight:g}: {principle.critique}".rstrip(": ")
            found.append(Verdict(principle.text, value, evidence=seen, reason=why))
    return found
