"""Pairwise comparison as a reward: every response meets a reference drawn from its own group.

    scorer = VersusReference(CallablePairJudge(better_story), seed=7)

One response of the group, drawn uniformly from a stable seed, is the reference; the others are
worth +1 where they beat it, -1 where they lose and 0 where neither can be said (BRPO of
Writing-Zero, arXiv 2506.00103). G - 1 comparisons instead of G(G - 1)/2, no outside reference that
goes stale, and an expected value of 0. With several references the value is the mean over them.

Where we differ: both orders are asked, a tie is 0, a cut response is no reference, and a comparison
without verdict is no value instead of a loss.

    scorer = Tournament(CallablePairJudge(better_story), seed=7, scheme="bradley_terry")

There every response meets every other: G (G - 1) / 2 comparisons a group, twice that with both orders.
Net wins are `(won - lost) / decided`, -1 to 1. The fit gives strengths whose differences are the log-odds
of winning, with a mean of 0: an opponent's strength counts, so a win over the best is worth more than
one over the worst. A comparison without a verdict leaves both. Strengths are comparable only where a
chain of comparisons connects them, so a group that falls apart has none.
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
    Pair,
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
from burnish.rewards.scorer import Scope
from burnish.rewards.select import Match, bradley_terry
from burnish.seeds import Seeds, derive, digest

SHOWN_FIRST = "beats_reference_shown_first"
SHOWN_SECOND = "beats_reference_shown_second"
"""What the verdicts decide: one a question to the judge, 1, 0 or -1 before the rules on ties."""

IS_REFERENCE = "this response was the reference of its group"
"""Evidence and reason of the reference response, which has no comparison."""


class Question(NamedTuple):
    """One question to the judge: two positions in the group, in the order shown, and the vote."""

    first: int
    second: int
    vote: int


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

    `votes` times over, in both orders (or, without `both_orders`, in an order drawn per pair that
    alternates over the votes); `rule` and `inconsistent` turn the votes into one outcome. A vote
    counts only where all of its orders were read; one that does not count is missing, so that under
    `unanimous` the comparison has no outcome unless the other votes disagree. Without asking: equal texts are even, an empty
    text loses. The draw depends on the seed, the task's id and the texts, so the same group always
    has the same reference and another group another. To save calls cache the judge, not this
    scorer: its evidence names the responses of one group.
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
        """Changes with the settings and with the judge."""
        judge, own = getattr(self.judge, "fingerprint", None), self.settings
        if not isinstance(judge, str):
            raise UserError(
                f"reward '{self.name}': judge '{judge_name(self.judge)}' has no fingerprint, so "
                "its scores cannot be cached; give it a `fingerprint` property: a text that "
                "changes with its settings and its code."
            )
        settings = (own.seed, own.references, own.votes, own.both_orders)
        return digest(judge, repr((*settings, own.tie, own.rule, own.inconsistent)))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        if len(responses) < 2:
            reason = "its group has no other response to compare with"
            return [Reward.failed(self.name, Status.ABSTAIN, reason) for _ in responses]
        texts = [response.text for response in responses]
        references = self._draw(task, responses)
        met = [(i, r) for i in range(len(texts)) for r in references if i != r]
        group = derive(self.settings.seed, "order", task.id, _digest(texts))
        questions = {
            (i, r): self._questions(i, r, texts, group)
            for i, r in met
            if settled(texts[i], texts[r]) is None
        }
        answers = await self._ask(task, responses, chain.from_iterable(questions.values()))
        rows: list[list[Comparison]] = [[] for _ in responses]
        for i, r in met:
            rows[i].append(
                self._comparison(responses[i], responses[r], questions.get((i, r)), answers)
            )
        return self._rewards(responses, rows)

    def _rewards(
        self, responses: Sequence[Response], rows: Sequence[Sequence[Comparison]]
    ) -> list[Reward]:
        """One reward a response, from its comparisons."""
        return [self._reward(row) for row in rows]

    def _draw(self, task: Task, responses: Sequence[Response]) -> list[int]:
        """Positions of the references: uniform among complete responses, or all if none is."""
        complete = [i for i, r in enumerate(responses) if r.finish is not Finish.LENGTH]
        drawn_from = complete or list(range(len(responses)))
        texts = _digest([response.text for response in responses])
        rng = Seeds(self.settings.seed).rng("reference", task.id, texts)
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
            orders = [(SHOWN_FIRST, Question(a, b, v)), (SHOWN_SECOND, Question(b, a, v))]
            questions.append(orders if self.settings.both_orders else [orders[(start + v) % 2]])
        return questions

    async def _ask(
        self,
        task: Task,
        responses: Sequence[Response],
        questions: Iterable[Vote],
    ) -> dict[Question, PairVerdict]:
        """Every question once, all of a group in one call."""
        judge = self.judge
        if isinstance(judge, ExplainingJudge):
            judge = judge.about(task, responses)
        once = list(dict.fromkeys(question for orders in questions for _, question in orders))
        request = _request(task)
        pairs: list[Pair] = [
            (request, responses[q.first].text, responses[q.second].text) for q in once
        ]
        return dict(
            zip(once, await ask(judge, pairs, deadline_s=self.settings.deadline_s), strict=True)
        )

    def _comparison(
        self,
        response: Response,
        reference: Response,
        questions: list[Vote] | None,
        verdicts: Mapping[Question, PairVerdict],
    ) -> Comparison:
        known = settled(response.text, reference.text)
        if known is not None:
            return Comparison(reference.id, *known)
        votes = [
            [(shown, _seen_from(shown, verdicts[question])) for shown, question in orders]
            for orders in questions or ()
        ]
        outcome = tally(
            [[verdict.scores for _, verdict in vote] for vote in votes],
            self.settings.rule,
            tie=self.settings.tie,
            inconsistent=self.settings.inconsistent,
        )
        asked = tuple(chain.from_iterable(votes))
        failure = next((verdict for _, verdict in asked if verdict.scores is None), None)
        return Comparison(reference.id, outcome, asked=asked, failure=failure)

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
        reason = ", ".join(f"{_word(outcome)} {reference}" for reference, outcome in decided)
        return Reward(self.name, value, Status.OK, 1.0, (), *known, reason=reason)

    def _explained(
        self, comparisons: Sequence[Comparison]
    ) -> tuple[tuple[Evidence, ...], tuple[Verdict, ...]]:
        """Evidence and verdicts of comparisons, in their order."""
        evidence: list[Evidence] = []
        verdicts: list[Verdict] = []
        for comparison in comparisons:
            verdicts += _verdicts(comparison, len(evidence))
            evidence += _evidence(comparison, self.name, judge_name(self.judge))
        return tuple(evidence), tuple(verdicts)


def why_undecided(comparisons: Sequence[Comparison]) -> tuple[Status, str]:
    """Status and reason of comparisons without an outcome: the first failure, or disagreement."""
    first = next((m.failure for m in comparisons if m.failure is not None), None)
    return (Status.ABSTAIN, DISAGREE) if first is None else (first.status, first.reason)


def _seen_from(shown: str, verdict: PairVerdict) -> PairVerdict:
    """The verdict with the response's score first."""
    if shown == SHOWN_FIRST or verdict.scores is None:
        return verdict
    return verdict._replace(scores=verdict.scores[::-1])


def _verdicts(comparison: Comparison, place: int) -> list[Verdict]:
    """One verdict a question; `place` is where the evidence on this comparison stands."""
    return [
        Verdict(
            shown,
            None if verdict.scores is None else pair_outcome.plain(verdict.scores),
            evidence=(place,),
            reason=verdict.reason if verdict.scores is None else _numbers(verdict.scores),
        )
        for shown, verdict in comparison.asked
    ]


def _evidence(comparison: Comparison, name: str, judge: str) -> list[Evidence]:
    """Who the reference was and how it went, then the judge's own words."""
    verdicts = [
        f"{'no verdict' if verdict.scores is None else _numbers(verdict.scores)} "
        f"shown {'first' if shown == SHOWN_FIRST else 'second'}"
        for shown, verdict in comparison.asked
    ]
    saw = f"against {comparison.reference}: {comparison.note or ', '.join(verdicts)}"
    sights = {verdict.visibility for _, verdict in comparison.asked}
    sight = Visibility.ORACLE if Visibility.ORACLE in sights else Visibility.VISIBLE
    error = None if comparison.failure is None else comparison.failure.reason
    words = [Evidence(judge, verdict.said) for _, verdict in comparison.asked if verdict.said]
    return [Evidence(name, saw, sight, error=error), *words]


def _numbers(scores: tuple[float, float]) -> str:
    return f"{scores[0]:.6g} to {scores[1]:.6g}"


def _word(outcome: float) -> str:
    return "beat" if outcome > 0 else "lost to" if outcome < 0 else "even with"


def _request(task: Task) -> str:
    """What the texts were written for: the one message, or the conversation so far."""
    turns = [message for message in task.messages if message.role != "system"]
    if len(turns) == 1:
        return turns[0].text
    return "\n\n".join(f"{message.role}: {message.text}" for message in turns)


def _digest(texts: Sequence[str]) -> str:
    return digest(*(text.encode("utf-8", "surrogatepass") for text in texts))


# --- everybody meets everybody


Scheme = Literal["round_robin", "bradley_terry"]
SCHEME = reader(Scheme)
NOT_CONNECTED = "the comparisons with a verdict do not connect the group"


class Tournament(VersusReference):
    """A group scorer that compares every two responses; settings as those of `VersusReference`."""

    def __init__(
        self, judge: PairJudge, *, seed: int, scheme: Scheme = "round_robin", **settings: Any
    ) -> None:
        super().__init__(judge, seed=seed, **settings)
        self.scheme: Scheme = SCHEME(f"reward '{self.name}': scheme", scheme, Call())
        # A pair has one outcome here: what is not even would favour whoever stands first in the group.
        own = self.settings
        for key, value in (("tie", own.tie), ("inconsistent", own.inconsistent)):
            if value not in (0, "abstain"):
                either = ' or "abstain"' if key == "inconsistent" else ""
                raise UserError(
                    f"reward '{self.name}': {key} is {value}, but with the scheme '{scheme}' an "
                    f'undecided pair is even for both; expected 0{either}, or scheme = "reference".'
                )

    @property
    def fingerprint(self) -> str:
        """Changes with the settings and with the judge."""
        return digest(super().fingerprint, self.scheme)

    def _draw(self, task: Task, responses: Sequence[Response]) -> list[int]:
        """Everybody is met; a cut response is one that usually loses."""
        return list(range(len(responses)))

    def _rewards(
        self, responses: Sequence[Response], rows: Sequence[Sequence[Comparison]]
    ) -> list[Reward]:
        if self.scheme == "round_robin":
            return [self._reward(row) for row in rows]
        outcomes = _outcomes(responses, rows)
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


def _outcomes(
    responses: Sequence[Response], rows: Sequence[Sequence[Comparison]]
) -> dict[tuple[int, int], float]:
    """The outcome of each decided pair, from the side of the first."""
    found: dict[tuple[int, int], float] = {}
    for first, second in combinations(range(len(responses)), 2):
        # A row holds the other responses in their order, without the response itself.
        outcome = rows[first][second - 1].outcome
        if outcome is not None:
            found[first, second] = outcome
    return found


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
    firsts = [first for reward in compared for first in _first_wins(reward)]
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
    """Whether this response is the reference of its group."""
    return any(evidence.observation == IS_REFERENCE for evidence in reward.evidence)


def _named(reward: Reward, name: str) -> Iterator[Reward]:
    """The reward, or its parts at any depth, of that name."""
    if reward.name == name:
        yield reward
        return
    for part in reward.parts:
        yield from _named(part, name)


def _first_wins(reward: Reward) -> Iterator[bool]:
    """For each question that somebody won, whether it was the text shown first."""
    for verdict in reward.verdicts:
        if verdict.value:
            yield (verdict.value > 0) == (verdict.criterion == SHOWN_FIRST)


def _splits(reward: Reward) -> Iterator[bool]:
    """For each comparison with at least two verdicts, whether they named different winners."""
    comparisons: dict[tuple[int, ...], list[float]] = {}
    for verdict in reward.verdicts:
        if verdict.criterion in (SHOWN_FIRST, SHOWN_SECOND) and verdict.value is not None:
            comparisons.setdefault(verdict.evidence, []).append(verdict.value)
    for values in comparisons.values():
        if len(values) > 1:
            yield min(values) < 0 < max(values)
