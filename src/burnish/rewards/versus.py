"""Pairwise comparison as a reward: every response meets a reference drawn from its own group.

    scorer = VersusReference(CallablePairJudge(better_story), seed=7)
    scorer = Tournament(CallablePairJudge(better_story), seed=7, scheme="bradley_terry")

One response of the group, drawn uniformly from a stable seed, is the reference; the others are
worth +1 where they beat it, -1 where they lose and 0 where neither can be said (BRPO of
Writing-Zero, arXiv 2506.00103). Where we differ: both orders are asked, a tie is 0, a cut response is no
reference, and a comparison without verdict is no value instead of a loss.

In a tournament every response meets every other. Net wins are `(won - lost) / decided`. The fit gives
strengths whose differences are the log-odds of winning, with a mean of 0; they are comparable only where
a chain of comparisons connects them, so a group that falls apart has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, Literal, NamedTuple

from burnish.boundary import Call, PositiveInt, Seconds, Seed, Share, public, reader
from burnish.errors import UserError
from burnish.records import Evidence, Finish, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig
from burnish.rewards.pair_judges import (
    ExplainingJudge,
    PairJudge,
    PairVerdict,
    ask,
    judge_name,
)
from burnish.rewards.pairs import (
    DISAGREE,
    Inconsistent,
    Outcome,
    VoteRule,
    pair_outcome,
    settled,
    tally,
)
from burnish.rewards.scorer import Scope, fingerprint
from burnish.rewards.select import Match, bradley_terry
from burnish.seeds import Seeds, derive, digest

SHOWN_FIRST = "beats_reference_shown_first"
SHOWN_SECOND = "beats_reference_shown_second"
"""What the verdicts decide: one a question to the judge, 1, 0 or -1 before the rules on ties."""

IS_REFERENCE = "this response was the reference of its group"
"""Evidence and reason of the reference response, which has no comparison."""


Question = tuple[int, int, int]
"""Two positions in the group, in the order shown to the judge, and the vote."""
Vote = list[tuple[str, Question]]
"""The questions of one vote, and where each shows the response: one of the two criteria."""


class Comparison(NamedTuple):
    """How one response did against one reference."""

    reference: str
    outcome: float | None
    note: str = ""
    """What decided it where the judge was not asked."""
    asked: tuple[tuple[str, PairVerdict], ...] = ()
    """Where the response was shown and what the judge said, scores of the response first."""
    failure: PairVerdict | None = None
    """The first question without a verdict."""


class VersusSettings(CheckConfig, frozen=True, kw_only=True):
    """How the responses of a group are compared, whoever they meet."""

    name: str = "versus"
    """What the reward is called in curves and samples."""
    seed: Seed = 0
    """Seed of the draw of references."""
    references: PositiveInt = 1
    """How many responses of the group are references; the value is the mean over them."""
    votes: PositiveInt = 1
    """How often each pair is asked, in both orders each time."""
    both_orders: bool = True
    """Ask about each pair in both orders."""
    rule: VoteRule = "unanimous"
    """How several votes on a pair become one outcome."""
    inconsistent: Inconsistent = 0.0
    """The outcome where the votes do not agree; "abstain": none, and the pair is left out. A number
    other than 0 goes with the scheme "reference" only."""
    tie: Outcome = 0.0
    """The outcome of equal scores; -1 as published, 0 keeps the mean at 0. Other than 0 goes with
    the scheme "reference" only."""
    deadline_s: Seconds | None = 45.0
    """Wall clock of all questions about one group."""


class VersusReference:
    """A group scorer that compares every response with references of the same group.

    Without `both_orders` a pair is asked in an order drawn for it that alternates over the votes.
    Without asking: equal texts are even, an empty text loses. The draw depends on the seed, the task's id
    and the texts, so the same group always has the same reference. To save calls cache the judge, not
    this scorer: its evidence names the responses of one group.
    """

    scope = Scope.GROUP

    def __init__(self, judge: PairJudge, *, seed: int, **settings: Any) -> None:
        """Settings are those of `VersusSettings`."""
        own = VersusSettings(seed=seed, **settings)
        self.judge, self.settings, self.name, self.weight = judge, own, own.name, own.weight
        self.needs: frozenset[str] = getattr(judge, "needs", frozenset())
        if own.votes > 1 and getattr(judge, "repeats_itself", False):
            raise UserError(
                f"reward '{self.name}': votes is {own.votes}, but judge '{judge_name(judge)}' has no "
                "votes (`for_vote`) and would repeat its first one; expected 1."
            )

    @property
    def fingerprint(self) -> str:
        own = self.settings
        settings = (own.seed, own.references, own.votes, own.both_orders)
        return digest(
            fingerprint(self.judge), repr((*settings, own.tie, own.rule, own.inconsistent))
        )

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        if len(responses) < 2:
            reason = "its group has no other response to compare with"
            return [Reward.failed(self.name, Status.ABSTAIN, reason)] * len(responses)
        texts = [response.text for response in responses]
        key = digest(*(text.encode("utf-8", "surrogatepass") for text in texts))
        references = self._draw(task, responses, key)
        group = derive(self.settings.seed, "order", task.id, key)
        known = {
            (i, r): settled(texts[i], texts[r])
            for i in range(len(texts))
            for r in references
            if i != r
        }
        questions = {
            pair: self._questions(*pair, texts, group)
            for pair, outcome in known.items()
            if outcome is None
        }
        answers = await self._ask(task, responses, chain.from_iterable(questions.values()))
        rows: list[list[Comparison]] = [[] for _ in responses]
        for (i, r), outcome in known.items():
            reference = responses[r].id
            rows[i].append(
                self._comparison(reference, questions[i, r], answers)
                if outcome is None
                else Comparison(reference, *outcome)
            )
        return self._rewards(rows)

    def _rewards(self, rows: Sequence[Sequence[Comparison]]) -> list[Reward]:
        return [self._reward(row) for row in rows]

    def _draw(self, task: Task, responses: Sequence[Response], key: str) -> list[int]:
        """Positions of the references: uniform among complete responses, or all if none is."""
        complete = [i for i, r in enumerate(responses) if r.finish is not Finish.LENGTH]
        drawn_from = complete or list(range(len(responses)))
        rng = Seeds(self.settings.seed).rng("reference", task.id, key)
        return sorted(rng.sample(drawn_from, min(self.settings.references, len(drawn_from))))

    def _questions(
        self, response: int, reference: int, texts: Sequence[str], group: int
    ) -> list[Vote]:
        """The questions of each vote on a pair; equal texts share them, and so do mirrored pairs."""
        # A question is named by the first response that has its text.
        a, b = texts.index(texts[response]), texts.index(texts[reference])
        start = derive(group, min(a, b), max(a, b)) + (a > b)
        questions: list[Vote] = []
        for v in range(self.settings.votes):
            orders = [(SHOWN_FIRST, (a, b, v)), (SHOWN_SECOND, (b, a, v))]
            questions.append(orders if self.settings.both_orders else [orders[(start + v) % 2]])
        return questions

    async def _ask(
        self, task: Task, responses: Sequence[Response], questions: Iterable[Vote]
    ) -> dict[Question, PairVerdict]:
        """Every question once, all of a group in one call."""
        judge = self.judge
        if isinstance(judge, ExplainingJudge):
            judge = judge.about(task, responses)
        once = list(dict.fromkeys(question for orders in questions for _, question in orders))
        # What the texts were written for: the one message, or the conversation so far.
        turns = [message for message in task.messages if message.role != "system"]
        request = "\n\n".join(f"{message.role}: {message.text}" for message in turns)
        if len(turns) == 1:
            request = turns[0].text
        pairs = [(request, responses[a].text, responses[b].text) for a, b, _ in once]
        verdicts = await ask(judge, pairs, deadline_s=self.settings.deadline_s)
        return dict(zip(once, verdicts, strict=True))

    def _comparison(
        self, reference: str, questions: list[Vote], verdicts: Mapping[Question, PairVerdict]
    ) -> Comparison:
        votes: list[list[tuple[str, PairVerdict]]] = []
        for orders in questions:
            votes.append([])
            for shown, question in orders:
                verdict = verdicts[question]
                if shown == SHOWN_SECOND and verdict.scores is not None:
                    verdict = verdict._replace(scores=verdict.scores[::-1])
                votes[-1].append((shown, verdict))
        outcome = tally(
            [[verdict.scores for _, verdict in vote] for vote in votes],
            self.settings.rule,
            tie=self.settings.tie,
            inconsistent=self.settings.inconsistent,
        )
        asked = tuple(chain.from_iterable(votes))
        failure = next((verdict for _, verdict in asked if verdict.scores is None), None)
        return Comparison(reference, outcome, asked=asked, failure=failure)

    def _reward(self, comparisons: Sequence[Comparison]) -> Reward:
        """The mean over the references that gave a verdict, with everything it rests on."""
        if not comparisons:
            mark = (Evidence(self.name, IS_REFERENCE),)
            return Reward.failed(self.name, Status.ABSTAIN, IS_REFERENCE, evidence=mark)
        known = self._explained(comparisons)
        decided = [(m.reference, m.outcome) for m in comparisons if m.outcome is not None]
        if not decided:
            status, reason = why_undecided(comparisons)
            return Reward(self.name, None, status, 1.0, (), *known, reason=reason)
        value = math.fsum(outcome for _, outcome in decided) / len(decided)
        words = {1: "beat", -1: "lost to", 0: "even with"}
        told = [f"{words[(v > 0) - (v < 0)]} {reference}" for reference, v in decided]
        reason = ", ".join(told)
        return Reward(self.name, value, Status.OK, 1.0, (), *known, reason=reason)

    def _explained(
        self, comparisons: Sequence[Comparison]
    ) -> tuple[tuple[Evidence, ...], tuple[Verdict, ...]]:
        evidence: list[Evidence] = []
        verdicts: list[Verdict] = []
        for comparison in comparisons:
            said, words = [], []
            for shown, verdict in comparison.asked:
                scores = verdict.scores
                saw = "no verdict" if scores is None else f"{scores[0]:.6g} to {scores[1]:.6g}"
                outcome = None if scores is None else pair_outcome.plain(scores)
                reason = verdict.reason if scores is None else saw
                # The evidence on a comparison stands where its summary does.
                verdicts.append(Verdict(shown, outcome, evidence=(len(evidence),), reason=reason))
                said.append(f"{saw} shown {'first' if shown == SHOWN_FIRST else 'second'}")
                if verdict.said:
                    words.append(Evidence(judge_name(self.judge), verdict.said))
            saw = f"against {comparison.reference}: {comparison.note or ', '.join(said)}"
            is_oracle = any(v.visibility is Visibility.ORACLE for _, v in comparison.asked)
            sight = Visibility.ORACLE if is_oracle else Visibility.VISIBLE
            error = None if comparison.failure is None else comparison.failure.reason
            evidence += [Evidence(self.name, saw, sight, error=error), *words]
        return tuple(evidence), tuple(verdicts)


def why_undecided(comparisons: Sequence[Comparison]) -> tuple[Status, str]:
    """Status and reason of comparisons without an outcome: the first failure, or disagreement."""
    first = next((m.failure for m in comparisons if m.failure is not None), None)
    return (Status.ABSTAIN, DISAGREE) if first is None else (first.status, first.reason)


# --- everybody meets everybody


Scheme = Literal["round_robin", "bradley_terry"]
NOT_CONNECTED = "the comparisons with a verdict do not connect the group"


class Tournament(VersusReference):
    """A group scorer that compares every two responses; settings as those of `VersusReference`."""

    def __init__(
        self, judge: PairJudge, *, seed: int, scheme: Scheme = "round_robin", **settings: Any
    ) -> None:
        super().__init__(judge, seed=seed, **settings)
        self.scheme: Scheme = reader(Scheme)("scheme", scheme, Call())
        # A pair has one outcome here: what is not even would favour whoever stands first in the group.
        own = self.settings
        for key, value in (("tie", own.tie), ("inconsistent", own.inconsistent)):
            if value not in (0, "abstain"):
                raise UserError(
                    f"reward '{self.name}': {key} is {value}, but with the scheme '{scheme}' an "
                    'undecided pair is even for both; expected 0, or scheme = "reference".'
                )

    @property
    def fingerprint(self) -> str:
        return digest(super().fingerprint, self.scheme)

    def _draw(self, task: Task, responses: Sequence[Response], key: str) -> list[int]:
        """Everybody is met; a cut response is one that usually loses."""
        return list(range(len(responses)))

    def _rewards(self, rows: Sequence[Sequence[Comparison]]) -> list[Reward]:
        if self.scheme == "round_robin":
            return super()._rewards(rows)
        # A row holds the other responses in their order, without the response itself.
        pairs = combinations(range(len(rows)), 2)
        found = {(a, b): rows[a][b - 1].outcome for a, b in pairs}
        outcomes = {pair: value for pair, value in found.items() if value is not None}
        playing = sorted({place for pair in outcomes for place in pair})
        if not is_connected(playing, list(outcomes)):
            return [self._unknown(row) for row in rows]
        places = {place: number for number, place in enumerate(playing)}
        matches = [Match(places[a], places[b], value) for (a, b), value in outcomes.items()]
        strengths = bradley_terry.plain(len(playing), matches)
        return [
            self._strength(row, strengths[places[i]]) if i in places else self._unknown(row)
            for i, row in enumerate(rows)
        ]

    def _strength(self, row: Sequence[Comparison], strength: float) -> Reward:
        values = [m.outcome for m in row if m.outcome is not None]
        won, lost = sum(v > 0 for v in values), sum(v < 0 for v in values)
        reason = f"won {won}, lost {lost}, even in {len(values) - won - lost} of {len(row)}"
        known = self._explained(row)
        return Reward(self.name, strength, Status.OK, 1.0, (), *known, reason=reason)

    def _unknown(self, row: Sequence[Comparison]) -> Reward:
        """No strength: the first failure of this response, or that the group falls apart."""
        status, reason = why_undecided(row)
        if any(m.outcome is not None for m in row):
            reason = f"{NOT_CONNECTED}: {reason}"
        return Reward(self.name, None, status, 1.0, (), *self._explained(row), reason=reason)


def is_connected(places: Sequence[int], pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether a chain of pairs leads from each place to every other; not for fewer than two."""
    if len(places) < 2:
        return False
    reached, waiting = {places[0]}, [places[0]]
    while waiting:
        here = waiting.pop()
        others = {b if a == here else a for a, b in pairs if here in (a, b)} - reached
        reached |= others
        waiting += others
    return reached >= set(places)


# --- measures


@public
def versus_metrics(
    rewards: Sequence[Sequence[Reward]], *, name: str = "versus", threshold: Share = 0.6
) -> dict[str, float]:
    """Shares over groups of rewards, each a total that has the part `name`, or that part itself.

    `win_rate` and `tie_rate`: of the responses with a value. `undecided_rate`: responses without
    one, of those that were compared. `skew` and `drop_rate`: the mean of `|sum| / G`, and how many
    groups exceed the threshold. `first_position_rate`: questions that the text shown first won, of
    those that somebody won; far from 0.5 the judge goes by position. `disagreement_rate`: comparisons
    in which questions named different winners. A share of nothing is left out.
    """
    groups = [[part for reward in group for part in _named(reward, name)] for group in rewards]
    groups = [group for group in groups if group]
    compared = [reward for group in groups for reward in group if not is_reference(reward)]
    values = [reward.value for reward in compared if reward.value is not None]
    skews = [abs(sum(r.value or 0.0 for r in group)) / len(group) for group in groups]
    firsts = [
        (verdict.value > 0) == (verdict.criterion == SHOWN_FIRST)
        for reward in compared
        for verdict in reward.verdicts
        if verdict.value
    ]
    splits = [split for reward in compared for split in _splits(reward)]
    shares: dict[str, list[float] | list[bool]] = {
        "win_rate": [value > 0 for value in values],
        "tie_rate": [value == 0 for value in values],
        "undecided_rate": [reward.value is None for reward in compared],
        "skew": skews,
        "drop_rate": [skew > threshold + 1e-9 for skew in skews],
        "first_position_rate": firsts,
        "disagreement_rate": splits,
    }
    return {key: sum(found) / len(found) for key, found in shares.items() if found}


def is_reference(reward: Reward) -> bool:
    return any(evidence.observation == IS_REFERENCE for evidence in reward.evidence)


def _named(reward: Reward, name: str) -> Iterator[Reward]:
    """The reward, or its parts at any depth, of that name."""
    if reward.name == name:
        yield reward
        return
    for part in reward.parts:
        yield from _named(part, name)


def _splits(reward: Reward) -> Iterator[bool]:
    """For each comparison with at least two verdicts, whether they named different winners."""
    comparisons: dict[tuple[int, ...], list[float]] = {}
    for verdict in reward.verdicts:
        if verdict.criterion in (SHOWN_FIRST, SHOWN_SECOND) and verdict.value is not None:
            comparisons.setdefault(verdict.evidence, []).append(verdict.value)
    for values in comparisons.values():
        if len(values) > 1:
            yield min(values) < 0 < max(values)
