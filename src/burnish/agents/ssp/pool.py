"""Earlier questions that fill the places of invalid ones, and what a step says of its questions.

Four strategies (table 4 of arXiv 2510.18821): `dummy` fills nothing; `resample` draws another answer up
to `retries` times, then copies a valid question; `full` takes a question of any earlier step;
`periodic` the same, from a pool that is emptied every `reset_every` steps.

Where we differ: a question that comes again is updated in place by its id, so that duplicates do not
pile up; what is drawn above the ceiling is marked; all of it goes into the checkpoint.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.agents.ssp.rules import FILTERS, Golds, Strategy, as_golds
from burnish.boundary import Count, public
from burnish.records import Trajectory
from burnish.rewards.checks.match import normalize_answer
from burnish.seeds import derive, digest


class Entry(Struct, frozen=True, kw_only=True):
    id: str
    question: str
    answer: tuple[str, ...]
    success: float | None = None
    """Share of attempts that solved it, the last time it was played; None: not known."""
    step: int = 0


@public
def question_id(question: str, answer: Golds) -> str:
    """The same for the same question to the same answer.

    >>> question_id("Which?", "Tol") == question_id("Which?", ["Tol"])
    True
    """
    return digest(question, *answer)


class Drawn(NamedTuple):
    entry: Entry
    is_above: bool
    """Its success rate is above the ceiling: there was no other."""


class QuestionPool:
    """Valid questions by id, oldest first.

    >>> pool = QuestionPool(reset_every=10)
    >>> pool.add("Which river is it that the old town of Vel lies on?", "Tol", success=0.4, step=0)
    >>> pool.draw(seed=1, ceiling=0.5).entry.answer
    ('Tol',)
    """

    def __init__(self, reset_every: int = 10, keep_ratio: float = 0.0) -> None:
        """`reset_every` 0 never resets; a reset keeps the newest `keep_ratio` of the questions."""
        self.reset_every, self.keep_ratio = reset_every, keep_ratio
        self.entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, question: str, answer: Any, *, success: float | None, step: int) -> None:
        """Note a question that was played; one that is known gets its new success rate."""
        golds = as_golds("answer", answer)
        key = question_id.plain(question, golds)
        known = self.entries.get(key)
        if known is None:
            self.entries[key] = Entry(
                id=key, question=question, answer=tuple(golds), success=success, step=step
            )
        elif success is not None:
            self.entries[key] = msgspec.structs.replace(known, success=success)

    def draw(self, seed: int, ceiling: float = 1.0) -> Drawn | None:
        """One question, uniform among those with a success rate of at most `ceiling`.

        Where there is none, uniform among all, marked `is_above`; None where the pool is empty. A
        question whose rate is not known counts as 1.
        """
        every = list(self.entries.values())
        fitting = [e for e in every if (1.0 if e.success is None else e.success) <= ceiling]
        chosen = fitting or every
        if not chosen:
            return None
        return Drawn(random.Random(seed).choice(chosen), not fitting)

    def end_step(self, step: int) -> int:
        """Where its period ends with this step (from 0), keep the newest share; how many left it."""
        if not self.reset_every or (step + 1) % self.reset_every:
            return 0
        before = len(self.entries)
        kept = math.floor(before * self.keep_ratio + 1e-9)  # 100 x 0.29 is below 29
        by_age = sorted(self.entries.values(), key=lambda entry: entry.step)
        newest = {entry.id for entry in by_age[before - kept :]}
        self.entries = {key: entry for key, entry in self.entries.items() if key in newest}
        return before - len(self.entries)

    def state(self) -> dict[str, Any]:
        return {"entries": msgspec.to_builtins(list(self.entries.values()))}

    def restore(self, state: Mapping[str, Any]) -> None:
        entries = msgspec.convert(state.get("entries", []), list[Entry])
        self.entries = {entry.id: entry for entry in entries}


class Filled(NamedTuple):
    question: str
    answer: tuple[str, ...]
    origin: str
    """proposed, replayed or copied."""
    is_above: bool = False


def complete(
    proposed: Sequence[Filled | None],
    places: Sequence[int],
    pool: QuestionPool,
    strategy: Strategy,
    ceiling: float,
    seed: int,
) -> list[Filled | None]:
    """A question for each place of a step: the proposed one, or what the strategy fills in.

    `places` tell the places apart in the seed, so that the draw of one depends on no other. None
    stays where there is nothing to fill in.

    >>> complete([None], [0], QuestionPool(), "periodic", 1.0, seed=0)
    [None]
    """
    valid = [filled for filled in proposed if filled is not None]
    found: list[Filled | None] = []
    for place, filled in zip(places, proposed, strict=True):
        own = derive(seed, "fill", place)
        if filled is None and strategy == "resample" and valid:
            copied = random.Random(own).choice(valid)
            filled = copied._replace(origin="copied")
        elif filled is None and strategy in ("full", "periodic"):
            drawn = pool.draw(own, ceiling)
            if drawn is not None:
                entry = drawn.entry
                filled = Filled(entry.question, entry.answer, "replayed", drawn.is_above)
        found.append(filled)
    return found


REJECTED = (*FILTERS, "not_unique", "failed")
MOST_PAIRS = 20_000
"""Pairs of questions that are compared for the diversity of a step."""


def step_metrics(
    trajectories: Sequence[Trajectory], *, pool: int = 0, dropped: int = 0
) -> dict[str, float]:
    """Numbers of one step from its trajectories alone; a mean of nothing is left out."""
    searches = [t.info.get("search", {}) for t in trajectories]
    facts = [
        {**t.info.get("ssp", {}), "role": t.role, "group": t.group, "calls": s.get("calls", 0)}
        for t, s in zip(trajectories, searches, strict=True)
    ]
    proposers = [f for f in facts if f["role"] == "proposer"]
    solvers = [f for f in facts if f["role"] == "solver" and "id" in f]
    found = {"ssp/pool": float(pool), "ssp/pool_dropped": float(dropped)}
    if proposers:
        rejected = Counter(f.get("rejected", "failed") for f in proposers)
        found["ssp/valid"] = rejected[""] / len(proposers)
        found |= {f"ssp/rejected/{name}": rejected[name] / len(proposers) for name in REJECTED}
        readings = [r for f in proposers for r in f.get("readings", ())]
        found["ssp/reader_failed"] = float(sum(reading is None for reading in readings))
        found["ssp/reader_calls"] = _sum(proposers, "reader_calls")
        found |= _mean("ssp/proposer_reward", [f.get("reward") for f in proposers])
        found |= _mean("ssp/searches/proposer", [float(f["calls"]) for f in proposers])
        found |= diversity([f["question"] for f in proposers if f.get("valid")])
    questions = {(f["group"], f["id"]): f for f in solvers}.values()
    if questions:
        origins = Counter(f["origin"] for f in questions)
        found["ssp/questions"] = float(len(questions))
        found["ssp/replayed"] = origins["replayed"] / len(questions)
        found["ssp/above_ceiling"] = _sum(questions, "is_above")
    for name, origin in (("success", ("proposed", "given")), ("success_replayed", ("replayed",))):
        rates = [f.get("success") for f in questions if f["origin"] in origin]
        found |= _mean(f"ssp/{name}", rates)
    found |= _mean("ssp/solver_reward", [f["score"] for f in solvers])
    found |= _mean("ssp/searches/solver", [float(f["calls"]) for f in solvers])
    found["ssp/judge_calls"] = _sum(solvers, "judge_calls")
    found["ssp/cost_usd"] = _sum(facts, "cost_usd")
    return found | {f"ssp/search_{name}": _sum(searches, name) for name in ("errors", "defused")}


def _sum(facts: Iterable[Mapping[str, Any]], name: str) -> float:
    return float(sum(one.get(name, 0) for one in facts))


def _mean(name: str, values: Iterable[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {name: sum(known) / len(known)} if known else {}


def diversity(questions: Sequence[str]) -> dict[str, float]:
    """Share of different questions, and how many words two of them share (Jaccard, mean).

    >>> diversity(["who is it", "who is it", "where was he"])["ssp/distinct"]
    0.6666666666666666
    """
    texts = [normalize_answer(question) for question in questions]
    if not texts:
        return {}
    words = [frozenset(text.split()) for text in texts]
    pairs = list(islice(combinations(words, 2), MOST_PAIRS))
    shared = [len(a & b) / len(a | b) for a, b in pairs if a | b]
    found = {"ssp/distinct": len(set(texts)) / len(texts)}
    return found | _mean("ssp/word_overlap", shared)


class Overlap(NamedTuple):
    """Training answers that are answers of an evaluation too."""

    training: int
    evaluation: int
    shared: int
    """Evaluation questions with an answer that is a training answer."""
    share: float | None
    examples: list[str]


@public
def answer_overlap(
    training: Sequence[Golds], evaluation: Sequence[Golds], examples: Count = 20
) -> Overlap:
    """How many evaluation questions have an answer that training was given.

    Both are lists with an answer, or a list of aliases, for each item.

    >>> answer_overlap(["Paris", ["Rome", "Roma"]], ["the Roma", "Oslo"]).shared
    1
    """
    known = {normalize_answer(alias) for golds in training for alias in golds}
    leaked = [golds for golds in evaluation if known & set(map(normalize_answer, golds))]
    share = len(leaked) / len(evaluation) if evaluation else None
    first = [golds[0] for golds in leaked[:examples]]
    return Overlap(len(known), len(evaluation), len(leaked), share, first)
