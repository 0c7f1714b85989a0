"""One game of MARCH: a Solver answers, a Proposer lists its claims, Checkers answer them blind.

One model plays all three (arXiv 2603.24579). The Solver and the Checkers are trained, the Proposer is
not. The Checkers' prompt is made of the documents and the questions alone, so nothing of the answer
can be in it. The Solver's group is the task, the Checkers' group is (task, answer).

Where we differ: trajectories keep their groups, so that every advantage works, not GAE alone; an
answer without claims asks no Checker and trains none; `checker_reward = "consensus"` pays each
Checker for agreeing with the majority, since K equal rewards teach a group nothing; `ablation` asks
the questions without documents and counts the claims that the model states by heart.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from burnish.boundary import Count, Number, PositiveInt, Settings, Share
from burnish.errors import ArgumentError, RolloutError, UserError, did_you_mean
from burnish.lm.base import TooLong
from burnish.records import Task
from burnish.rewards.judges.march.claims import (
    Claim,
    FactReward,
    Invented,
    Leaks,
    Matcher,
    Mode,
    answers_match,
    checker_rewards,
    fact_reward,
    parse_checks,
    parse_claims,
    split_thinking,
)
from burnish.rewards.judges.march.roles import (
    Kept,
    Wording,
    checker_messages,
    documents_of,
    kept_claims,
    proposer_messages,
    query_of,
    sighted_messages,
    without_tellers,
    wording_of,
)
from burnish.rollouts.base import Players
from burnish.rollouts.env import prepared_by
from burnish.rollouts.session import Session
from burnish.seeds import derive

SOLVER, PROPOSER, CHECKER = "solver", "proposer", "checker"
KEY = "march"
"""The trace's place in a sample's `info`, and the reward's name."""

CheckerReward = Literal["shared", "consensus"]
Proposer = Callable[[str, Task], Sequence[Any]]
"""A function of the answer and the task that lists claims, in the place of the model."""


class Claimed(Struct, frozen=True):
    question: str
    answer: str
    checks: list[str | None]
    """What each Checker sample found; null where it gave no answer."""
    vote: int
    holds: bool
    by_heart: bool | None = None
    """Found without documents too; null where nobody looked."""


class Trace(Struct, frozen=True, kw_only=True):
    """What happened in one game, for people: kept in the sample's `info`."""

    role: str
    sample: int
    """Of a Checker: which of the K samples this is; -1 for the Solver."""
    query: str
    answer: str
    claims: list[Claimed]
    refusals: int
    leaks: int
    invented: int = 0
    repeated: int = 0
    reward: float
    documents: str


class Rules(Settings, frozen=True, kw_only=True):
    """How a game is played: the options of `play`."""

    checkers: Annotated[int, Meta(ge=0, le=1000)] = 3
    """K, an odd number: of an even one a tie is a claim that fails. 0 is the Solver alone, for
    evaluation."""
    mode: Mode = "ztr"
    """ztr: -1 where any claim fails, else 0; err: minus the share; count: minus a tenth of each."""
    matcher: Matcher | Callable[[str, str], bool] = "strict"
    right: Number = 0.0
    wrong: Number = -1.0
    min_claims: Count = 3
    most_claims: PositiveInt = 10
    short_penalty: Annotated[float, Meta(le=0.0)] = 0.0
    """Added to the reward of an answer with fewer than `min_claims`."""
    checker_reward: CheckerReward = "shared"
    """shared: the Solver's reward; consensus: each Checker's agreement with the majority."""
    train: Literal["one", "all"] | None = None
    """Which Checkers are trained: one, drawn by the seed, or all. One where the reward is shared."""
    use_checker: bool = True
    """False trains the Solver alone, on the same rewards."""
    sighted: bool = False
    """Show Checkers the answer: the control that the method rests on not doing."""
    ablation: Share = 0.0
    """Share of games in which the questions are also asked without documents."""
    proposer: Proposer | None = None
    claims: str = "numbers"
    """numbers, or facts."""
    leaks: Leaks = "normalised"
    """When a question states an answer and is left out. plain: its own, in the same words; normalised:
    also in another spelling, and that of another claim."""
    invented: Invented = "keep"
    """Claims that the answer does not make: keep, as in the paper, or drop."""
    documents: str = "documents"
    query: str = "query"
    """Task fields; the prompt is the question where there is no such field."""

    def check(self) -> None:
        wording_of(self.claims)

    @property
    def words(self) -> Wording:
        return wording_of(self.claims)


def rules_of(options: Mapping[str, Any]) -> Rules:
    """The rules with these options; an unknown one is refused by name."""
    known = Rules.__struct_fields__
    if unknown := next((name for name in options if name not in known), ""):
        hint = f"expected {', '.join(known)}.{did_you_mean(unknown, known)}"
        raise UserError(f"rollout.options: march has no option '{unknown}'; {hint}")
    try:
        return Rules(**options)
    except ArgumentError as error:
        raise UserError(f"rollout.options of march: {error}.") from None


def game_of(options: Mapping[str, Any]) -> Callable[..., Awaitable[None]]:
    """The game with these options, which are checked here, before anything is sampled."""
    return partial(_play, rules_of(options))


@prepared_by(game_of)
async def play(task: Task, players: Players, seed: int, **options: Any) -> None:
    """Play one game; what it gave stands in the `info` of each session that is trained.

    `options` are those of `Rules`.
    """
    await _play(rules_of(options), task, players, seed)


async def _play(rules: Rules, task: Task, players: Players, seed: int) -> None:
    texts, asked = documents_of(task, rules.documents), query_of(task, rules.query)
    solver = players.session(task.messages, role=SOLVER)
    answer = split_thinking((await players.generate(solver)).text).answer
    if not rules.checkers:
        return
    found = await _claims(task, players, rules, asked, answer)
    questions = [claim.question for claim in found.claims]
    samples: list[Session] = []
    by_heart: list[bool | None] = [None] * len(questions)
    if questions:
        told = checker_messages(texts, questions, rules.words, task.media)
        if rules.sighted:
            told = sighted_messages(texts, questions, answer, rules.words, task.media)
        own = str(players.place[1])
        session = players.session(told, role=CHECKER, group=own, lm=players.lm)
        try:  # K samples of one prompt in one call; trained once they are remembered
            samples = await players.branch(session, rules.checkers)
        except TooLong as error:
            raise RolloutError(f"the checkers' prompt is too long: {error.what}") from error
        if random.Random(derive(seed, "ablation")).random() < rules.ablation:
            by_heart = await _by_heart(players, rules, found)
    checks = [parse_checks(split_thinking(one.text).answer, len(questions)) for one in samples]
    counted = fact_reward(
        found.claims,
        checks,
        mode=rules.mode,
        matcher=rules.matcher,
        right=rules.right,
        wrong=rules.wrong,
        min_claims=rules.min_claims,
        short_penalty=rules.short_penalty,
    )
    trace = Trace(
        role=SOLVER,
        sample=-1,
        query=asked,
        answer=answer,
        claims=[
            Claimed(
                claim.question,
                claim.answer,
                [one.get(place + 1) for one in checks],
                counted.votes[place],
                place not in counted.faulty,
                by_heart[place],
            )
            for place, claim in enumerate(found.claims)
        ],
        refusals=found.refusals,
        leaks=found.leaks,
        invented=found.invented,
        repeated=found.repeated,
        reward=counted.reward,
        documents=rules.documents,
    )
    figures, reason = _told(found, counted, by_heart)
    solver.info |= {"rewards": figures, "reasons": {KEY: reason}, KEY: to_builtins(trace)}
    if not samples or not rules.use_checker:
        return
    is_shared = rules.checker_reward == "shared"
    paid = [counted.reward] * len(samples) if is_shared else checker_rewards(counted.agreement)
    places = list(range(len(samples)))
    if (rules.train or ("one" if is_shared else "all")) == "one":
        places = [random.Random(derive(seed, CHECKER)).choice(places)]
    for place in places:
        if not is_shared:
            agreed = round(counted.claims * (1 + paid[place]) / 2)
            reason = f"with the majority on {agreed} of {counted.claims} claims"
        samples[place].info |= {
            "rewards": {KEY: paid[place]},
            "reasons": {KEY: reason},
            KEY: to_builtins(replace(trace, role=CHECKER, sample=place)),
        }
        players.sessions.append(samples[place])


async def _by_heart(players: Players, rules: Rules, found: Kept) -> list[bool | None]:
    """Which claims the model states without the documents too."""
    questions = [claim.question for claim in found.claims]
    asked = checker_messages((), questions, rules.words)
    session = players.session(asked, role="ablation", lm=players.lm)
    reply = split_thinking((await players.generate(session)).text).answer
    said = parse_checks(reply, len(questions))
    return [
        number in said and answers_match(claim.answer, said[number], rules.matcher)
        for number, claim in enumerate(found.claims, start=1)
    ]


def _told(
    found: Kept, counted: FactReward, by_heart: Sequence[bool | None]
) -> tuple[dict[str, float], str]:
    """The Solver's rewards and figures, and their reason."""
    figures = {
        KEY: counted.reward,
        "claims": float(counted.claims),
        "no_claims": float(counted.claims == 0),
        "left_out": float(found.left_out),
    }
    if not counted.claims:
        return figures, "no claim that can be checked"
    figures["faulty"] = counted.faults / counted.claims
    known = [one for one in by_heart if one is not None]
    if known:
        figures["by_heart"] = sum(known) / len(known)
    short = ", too few" if counted.is_short else ""
    if not counted.faulty:
        return figures, f"all {counted.claims} claims hold{short}"
    first = found.claims[counted.faulty[0]]
    lost = f"{counted.faults} of {counted.claims} claims fail{short}"
    return figures, f"{lost}; the first: {first.question} {first.answer}"


async def _claims(task: Task, players: Players, rules: Rules, query: str, answer: str) -> Kept:
    """The claims that can be checked: by a function, or by the model in a role that is not trained."""
    if not answer.strip():
        return Kept([], 0, 0)
    most = rules.most_claims

    def kept(claims: Sequence[Claim]) -> Kept:
        own_to = answer if rules.invented == "drop" else None
        found = kept_claims(claims, most, rules.leaks, own_to)
        if rules.leaks == "plain":
            return found
        blind = without_tellers(found.claims)
        return found._replace(claims=blind, leaks=found.leaks + len(found.claims) - len(blind))

    if rules.proposer is not None:
        return kept([Claim(*one) for one in rules.proposer(answer, task)])
    least = max(1, min(rules.min_claims, most))
    messages = proposer_messages(query, answer, rules.words, least=least, most=most)
    session = players.session(messages, role=PROPOSER, lm=players.lm)
    try:
        said = (await players.generate(session)).text
    except TooLong as error:
        raise RolloutError(f"the proposer's prompt is too long: {error.what}") from error
    return kept(parse_claims(split_thinking(said).answer))
