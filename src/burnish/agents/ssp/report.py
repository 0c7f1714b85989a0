"""What a step of search self-play says of itself, and whether training answers leak into a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, islice
from typing import Any, NamedTuple

from burnish.agents.ssp.rules import FILTERS, as_golds
from burnish.arguments import as_list, as_whole
from burnish.records import Trajectory
from burnish.rewards.checks.match import normalize_answer

REJECTED = (*FILTERS, "not_unique", "failed")
MOST_PAIRS = 20_000
"""Pairs of questions that are compared for the diversity of a step."""


def step_metrics(
    trajectories: Sequence[Trajectory], *, pool: int = 0, dropped: int = 0
) -> dict[str, float]:
    """Numbers of one step from its trajectories alone; a mean of nothing is left out."""
    facts = [(t, t.info.get("ssp", {})) for t in trajectories]
    proposers = [(t, f) for t, f in facts if t.role == "proposer"]
    solvers = [(t, f) for t, f in facts if t.role == "solver" and f]
    found = {"ssp/pool": float(pool), "ssp/pool_dropped": float(dropped)}
    if proposers:
        rejected = Counter(f.get("rejected", "failed") for _, f in proposers)
        found["ssp/valid"] = rejected[""] / len(proposers)
        found |= {f"ssp/rejected/{name}": rejected[name] / len(proposers) for name in REJECTED}
        readings = [r for _, f in proposers for r in f.get("readings", ())]
        found["ssp/reader_failed"] = float(sum(reading is None for reading in readings))
        found["ssp/reader_calls"] = float(sum(f.get("reader_calls", 0) for _, f in proposers))
        found |= _mean("ssp/proposer_reward", [f.get("reward") for _, f in proposers])
        found |= _mean("ssp/searches/proposer", [_calls(t) for t, _ in proposers])
        valid = [f["question"] for _, f in proposers if f.get("valid")]
        found |= diversity(valid)
    questions = {(t.group, f["id"]): f for t, f in solvers}
    if questions:
        origins = Counter(f["origin"] for f in questions.values())
        found["ssp/questions"] = float(len(questions))
        found["ssp/replayed"] = origins["replayed"] / len(questions)
        found["ssp/above_ceiling"] = float(sum(f["is_above"] for f in questions.values()))
    for name, origin in (("success", ("proposed", "given")), ("success_replayed", ("replayed",))):
        rates = [
            f["success"] for f in questions.values() if f["origin"] in origin and "success" in f
        ]
        found |= _mean(f"ssp/{name}", rates)
    found |= _mean("ssp/solver_reward", [f["score"] for _, f in solvers])
    found |= _mean("ssp/searches/solver", [_calls(t) for t, _ in solvers])
    found["ssp/judge_calls"] = float(sum(f.get("judge_calls", 0) for _, f in solvers))
    found["ssp/cost_usd"] = float(sum(f.get("cost_usd", 0.0) for _, f in facts))
    for name in ("errors", "defused"):
        key = f"ssp/search_{name}"
        found[key] = float(sum(t.info.get("search", {}).get(name, 0) for t, _ in facts))
    return found


def _calls(trajectory: Trajectory) -> float:
    return float(trajectory.info.get("search", {}).get("calls", 0))


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
    """Different training answers, after normalisation."""
    evaluation: int
    """Evaluation questions."""
    shared: int
    """Evaluation questions with an answer that is a training answer."""
    share: float | None
    """Of the evaluation questions; None where there are none."""
    examples: list[str]


def answer_overlap(training: Any, evaluation: Any, examples: int = 20) -> Overlap:
    """How many evaluation questions have an answer that training was given.

    Both are lists with an answer, or a list of aliases, for each item.

    >>> answer_overlap(["Paris", ["Rome", "Roma"]], ["the Roma", "Oslo"]).shared
    1
    """
    shown = as_whole("examples", examples, low=0)
    known = {
        normalize_answer(alias)
        for one in as_list("training", training)
        for alias in as_golds("training", one)
    }
    tested = [as_golds("evaluation", one) for one in as_list("evaluation", evaluation)]
    leaked = [golds for golds in tested if any(normalize_answer(gold) in known for gold in golds)]
    share = len(leaked) / len(tested) if tested else None
    return Overlap(len(known), len(tested), len(leaked), share, [g[0] for g in leaked[:shown]])
