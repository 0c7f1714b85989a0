"""One game of MARCH: a Solver answers, a Proposer lists its claims, Checkers answer them blind.

    [rollout]
    kind = "function"
    path = "burnish.agents.march.game:play"
    options = { checker_reward = "consensus", short_penalty = -0.5 }

    [[rewards]]
    kind = "env"
    name = "march"

One model plays all three (arXiv 2603.24579). The Solver and the Checkers are trained, the Proposer is
not. The Checkers' prompt is made of the documents and the questions alone, so nothing of the answer
can be in it; questions that state their own answer are left out. The Solver's group is the task, the
Checkers' group is (task, answer): the K samples of one prompt.

Where we differ: trajectories keep their groups, so that every advantage works, not GAE alone; an
answer without claims asks no Checker and trains none; `checker_reward = "consensus"` pays each
Checker for agreeing with the majority, since K equal rewards teach a group nothing; `ablation` asks
the questions without documents and counts the claims that the model states by heart.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct, to_builtins

from burnish.arguments import as_flag, as_number, as_whole, as_word
from burnish.errors import RolloutError
from burnish.lm.base import TooLong
from burnish.records import Message, Task
from burnish.rewards.judges.march.claims import (
    FactReward,
    Matcher,
    Mode,
    answers_match,
    checker_rewards,
    fact_reward,
)
from burnish.rewards.judges.march.parsing import Claim, parse_checks, parse_claims, split_thinking
from burnish.rewards.judges.march.roles import (
    Kept,
    Wording,
    checker_messages,
    documents_of,
    kept_claims,
    proposer_messages,
    query_of,
    sighted_messages,
    wording_of,
)
from burnish.rollouts.base import Players
from burnish.rollouts.session import Session
from burnish.seeds import derive

SOLVER, PROPOSER, CHECKER = "solver", "proposer", "checker"
KEY = "march"
"""The trace's place in a sample's `info`, and the reward's name."""

CheckerReward = Literal["shared", "consensus"]
Proposer = Callable[[str, Task], Sequence[Any]]
"""A function of the answer and the task that lists claims, in the place of the model."""


class Claimed(Struct, frozen=True):
    """One claim and what came of it."""

    question: str
    answer: str
    """What the Solver's answer states."""
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
    reward: float
    documents: str
    """The task field that holds them."""


async def play(
    task: Task,
    players: Players,
    seed: int,
    *,
    checkers: int = 3,
    mode: Mode = "ztr",
    matcher: Matcher | Callable[[str, str], bool] = "strict",
    right: float = 0.0,
    wrong: float = -1.0,
    min_claims: int = 3,
    most_claims: int = 10,
    short_penalty: float = 0.0,
    checker_reward: CheckerReward = "shared",
    train: Literal["one", "all"] | None = None,
    use_checker: bool = True,
    sighted: bool = False,
    ablation: float = 0.0,
    proposer: Proposer | None = None,
    claims: str = "numbers",
    documents: str = "documents",
    query: str = "query",
) -> None:
    """Play one game; what it gave stands in the `info` of each session that is trained.

    `checkers` is K; 0 is the Solver alone, for evaluation. `use_checker=False` trains the Solver
    alone on the same rewards. `train`: one of the K Checkers, drawn by the seed, or all; one where
    they share the Solver's reward, all where they are paid by consensus. `sighted` shows Checkers the
    answer: the control that the method rests on not doing. `ablation` is the share of games in which
    the questions are also asked without documents.
    """
    count = as_whole("checkers", checkers, low=0, high=1000)
    as_word("checker_reward", checker_reward, ("shared", "consensus"))
    trained = train or ("one" if checker_reward == "shared" else "all")
    as_word("train", trained, ("one", "all"))
    as_flag("use_checker", use_checker), as_flag("sighted", sighted)
    share = as_number("ablation", ablation, low=0, high=1)
    words = wording_of(claims)
    texts, asked = documents_of(task, documents), query_of(task, query)

    solver = players.session(task.messages, role=SOLVER)
    answer = split_thinking((await players.generate(solver)).text).answer
    if not count:
        return
    found = await _claims(task, players, proposer, words, asked, answer, min_claims, most_claims)
    questions = [claim.question for claim in found.claims]
    told: tuple[Message, ...] = ()
    samples: list[Session] = []
    by_heart: list[bool | None] = [None] * len(questions)
    if questions:
        told = (
            sighted_messages(texts, questions, answer, words)
            if sighted
            else checker_messages(texts, questions, words)
        )
        samples = await _checked(players, told, count)
        if random.Random(derive(seed, "ablation")).random() < share:
            by_heart = await _ablated(players, found.claims, matcher, words)
    checks = [parse_checks(split_thinking(one.text).answer, len(questions)) for one in samples]
    counted = fact_reward(
        found.claims,
        checks,
        mode=mode,
        matcher=matcher,
        right=right,
        wrong=wrong,
        min_claims=min_claims,
        short_penalty=short_penalty,
    )
    trace = _trace(asked, answer, found, checks, counted, by_heart, documents)
    solver.info |= {"rewards": _figures(found, counted, by_heart), KEY: trace(SOLVER, -1)}
    if not samples or not use_checker:
        return
    paid = checker_rewards(counted.agreement) if checker_reward == "consensus" else None
    places = list(range(count))
    if trained == "one":
        places = [random.Random(derive(seed, CHECKER)).choice(places)]
    for place in places:
        value = counted.reward if paid is None else paid[place]
        samples[place].info |= {"rewards": {KEY: value}, KEY: trace(CHECKER, place)}
        players.sessions.append(samples[place])


async def _claims(
    task: Task,
    players: Players,
    proposer: Proposer | None,
    words: Wording,
    query: str,
    answer: str,
    least: int,
    most: int,
) -> Kept:
    """The claims that can be checked: by a function, or by the model in a role that is not trained."""
    if not answer.strip():
        return Kept([], 0, 0)
    if proposer is not None:
        return kept_claims([Claim(*one) for one in proposer(answer, task)], most)
    least = max(1, min(least, most))
    messages = proposer_messages(query, answer, words, least=least, most=most)
    session = players.session(messages, role=PROPOSER, lm=players.lm)
    try:
        said = (await players.generate(session)).text
    except TooLong as error:
        raise RolloutError(f"the proposer's prompt is too long: {error.what}") from error
    return kept_claims(parse_claims(split_thinking(said).answer), most)


async def _checked(players: Players, messages: Sequence[Message], count: int) -> list[Session]:
    """K samples of one Checker prompt in one call; they are trained once they are remembered."""
    own = str(players.place[1])
    session = players.session(messages, role=CHECKER, group=own, lm=players.lm)
    try:
        return await players.branch(session, count)
    except TooLong as error:
        raise RolloutError(f"the checkers' prompt is too long: {error.what}") from error


async def _ablated(
    players: Players,
    claims: Sequence[Claim],
    matcher: Matcher | Callable[[str, str], bool],
    words: Wording,
) -> list[bool | None]:
    """Which claims the model also states without the documents: they may come from its prior."""
    messages = checker_messages((), [claim.question for claim in claims], words)
    session = players.session(messages, role="ablation", lm=players.lm)
    said = parse_checks(split_thinking((await players.generate(session)).text).answer, len(claims))
    return [
        number in said and answers_match(claim.answer, said[number], matcher)
        for number, claim in enumerate(claims, start=1)
    ]


def _figures(found: Kept, counted: FactReward, by_heart: Sequence[bool | None]) -> dict[str, float]:
    """The Solver's reward, and what a curve should show of the game."""
    figures = {
        KEY: counted.reward,
        "claims": float(counted.claims),
        "no_claims": float(counted.claims == 0),
        "left_out": float(found.refusals + found.leaks),
    }
    if counted.claims:
        figures["faulty"] = counted.faults / counted.claims
        known = [one for one in by_heart if one is not None]
        if known:
            figures["by_heart"] = sum(known) / len(known)
    return figures


def _trace(
    query: str,
    answer: str,
    found: Kept,
    checks: Sequence[dict[int, str]],
    counted: FactReward,
    by_heart: Sequence[bool | None],
    documents: str,
) -> Callable[[str, int], Any]:
    """The trace of the game as each role keeps it."""
    listed = [
        Claimed(
            claim.question,
            claim.answer,
            [one.get(place + 1) for one in checks],
            counted.votes[place],
            place not in counted.faulty,
            by_heart[place],
        )
        for place, claim in enumerate(found.claims)
    ]

    def of(role: str, sample: int) -> Any:
        return to_builtins(
            Trace(
                role=role,
                sample=sample,
                query=query,
                answer=answer,
                claims=listed,
                refusals=found.refusals,
                leaks=found.leaks,
                reward=counted.reward,
                documents=documents,
            )
        )

    return of
