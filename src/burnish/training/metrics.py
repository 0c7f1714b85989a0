"""What a step and an evaluation leave in the store."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from burnish.bench.evaluation import evaluate_slots, summarise
from burnish.bench.statistics import Estimate, mean_estimate, paired_difference
from burnish.lm.base import Sampling
from burnish.policy import Skew
from burnish.policy.batch import Advantages
from burnish.policy.components import Select
from burnish.records import Author, Finish, Reward, Status, Task, Trajectory
from burnish.rewards.scorer import Scope, Scorer, leaves
from burnish.rewards.versus import VersusReference, versus_metrics
from burnish.store import StoredSample
from burnish.training.algorithm import HELD_OUT, HeldOutScores, Setup, stored
from burnish.training.collect import GREEDY, Collected, Scored, is_trained
from burnish.training.guards import check_sampled


def samples(step: int, collected: Collected, values: Advantages) -> list[StoredSample]:
    """Every rollout of a step, trained on, dropped or a greedy baseline, with its advantage."""
    marks = values.per_rollout().tolist(), values.keep_B.tolist()
    return [
        *stored(step, "train", rows_of(collected.kept), *marks),
        *stored(step, "dropped", rows_of(collected.dropped)),
        *stored(step, GREEDY, rows_of(collected.greedy)),
    ]


def rows_of(scored: Iterable[Scored]) -> Iterator[tuple[Task, Trajectory, Reward]]:
    return ((s.task, s.trajectory, s.reward) for s in scored)


def greedy(collected: Collected) -> dict[str, float]:
    """Mean total reward of the greedy answers, and the share of prompts that have none."""
    values = [s.reward.value for s in collected.greedy]
    present = [value for value in values if value is not None]
    found = {"greedy/missing": 1 - len(present) / len(values)} if values else {}
    return found | ({"greedy/total": sum(present) / len(present)} if present else {})


def token_values(
    trajectories: Sequence[Trajectory], values: Advantages, entropies: Mapping[int, list[float]]
) -> dict[str, Mapping[int, list[float]]]:
    """What differs from token to token, by rollout: entropies, and advantages of a stepwise recipe."""
    found: dict[str, Mapping[int, list[float]]] = {"entropy": entropies} if entropies else {}
    if values.values_B.dim() == 2:
        rows = values.values_B.tolist()
        found["advantage"] = {
            i: rows[i][: trajectory.trained_tokens] for i, trajectory in enumerate(trajectories)
        }
    return found


def status_shares(collected: Collected) -> dict[str, float]:
    """How the step's rewards came about; every status is always a curve.

    Rollouts that are no part of the batch earn none; where there are no others, nothing has failed.
    """
    counts = Counter(s.reward.status for s in _paid(collected)) or Counter([Status.OK])
    return {f"status/{status.value}": counts[status] / counts.total() for status in Status}


def _paid(collected: Collected) -> list[Scored]:
    return [s for s in collected.kept + collected.dropped if is_trained(s.trajectory)]


def reasons(collected: Collected) -> dict[str, str]:
    found: dict[str, str] = {}
    for scored in _paid(collected):
        found.setdefault(scored.reward.status.value, scored.reward.reason)
    return found


def totals(collected: Collected) -> dict[str, float]:
    values = [s.reward.value for s in collected.kept if s.reward.value is not None]
    return {"reward/total": math.fsum(values) / len(values)} if values else {}


def outcomes(collected: Collected, scorers: Sequence[Scorer], select: Select) -> dict[str, float]:
    """How pairwise judges decided: win rate, skew, first-position rate; one judge is the rule."""
    judges = [scorer.name for scorer in scorers if isinstance(scorer, VersusReference)]
    if not judges:
        return {}
    groups: dict[str, list[Reward]] = {}
    for scored in collected.kept:
        groups.setdefault(scored.trajectory.group, []).append(scored.reward)
    threshold = select.threshold if isinstance(select, Skew) else 1.0
    found: dict[str, float] = {}
    for name in judges:
        start = "pairs" if len(judges) == 1 else f"pairs/{name}"
        metrics = versus_metrics(list(groups.values()), name=name, threshold=threshold)
        found |= {f"{start}/{key}": value for key, value in metrics.items()}
    return found


def premises(collected: Collected, scorers: Sequence[Scorer]) -> dict[str, float]:
    """What became of the premises of solutions, where a reward checks them (EVPV)."""
    if not any(leaf.scope is Scope.STEP for scorer in scorers for leaf in leaves(scorer)):
        return {}
    from burnish.rewards.judges.evpv.metrics import premise_counts

    found = premise_counts(scored.reward for scored in collected.kept)
    return {f"premises/{name}": value for name, value in (found.shares if found else {}).items()}


def lengths(collected: Collected) -> dict[str, float]:
    """Tokens sampled, the share that the budget cut, and those that tools and environments wrote."""
    every = [s.trajectory for s in collected.kept + collected.dropped]
    cut = sum(t.finish is Finish.LENGTH for t in every)
    counts = token_counts([t.trained_tokens for t in every])
    found = {**counts, "length/truncated_share": cut / len(every)}
    observed = []
    for t in every:
        own = 0
        behind = False  # the first reply
        for span in t.spans:
            if span.author is Author.MODEL:
                behind = True
            elif behind:
                own += len(span.token_ids)
        observed.append(own)
    if any(observed):
        found["length/observed"] = sum(observed) / len(observed)
        found["length/observed_max"] = float(max(observed))
    return found


def lags(collected: Collected, version: int) -> dict[str, float]:
    """By how many optimiser updates the weights that sampled lag behind the trainer's."""
    found = [version - (s.trajectory.weight_version or 0) for s in collected.kept]
    return {"sampler/lag": sum(found) / len(found), "sampler/lag_max": float(max(found))}


def token_counts(counts: Sequence[int]) -> dict[str, float]:
    """Trained tokens of a step: all, a sequence's mean, the most."""
    return {
        "length/tokens": float(sum(counts)),
        "length/mean": sum(counts) / len(counts),
        "length/max": float(max(counts)),
    }


def held_out_rewards(setup: Setup, step: int) -> HeldOutScores:
    """Greedy answers to the held-out prompts, scored with the rewards of the run.

    Every process answers and scores its share of the prompts; all get the whole, in the order of
    the prompts.
    """
    config = setup.config
    assert setup.scorer is not None, "asked for rewards, and the config has none"
    setup.judging(f"held out {step}")
    tokens = config.evaluation.max_tokens or config.rollout.max_tokens
    slots = list(enumerate(setup.data.tasks.held_out(config.evaluation.prompts)))
    work = functools.partial(
        evaluate_slots,
        setup.current_lm(),
        setup.world.share(slots),
        setup.scorer,
        Sampling(temperature=0.0, max_tokens=tokens, stop=config.rollout.stop),
        deadline_s=config.rollout.score_timeout_s,
        rollout=config.rollout.build_evaluation(),
    )
    groups = setup.world.gather(setup.loop.run(work), len(slots))
    result = summarise([item for group in groups for item in group], config.evaluation.part)
    rows, version = [], setup.weight_version
    for i, item in enumerate(result.items):
        name = f"eval.{step}.{i}"
        played = replace(item.trajectory, id=name, group=name, weight_version=version)
        rows.append((item.task, played, item.reward))
    check_sampled([played for _, played, _ in rows], step)
    return HeldOutScores(result.marks, samples=stored(step, HELD_OUT, rows))


def summary(found: HeldOutScores) -> dict[str, Any]:
    """An evaluation as plain values: the estimate, and each mark for paired tests."""
    values = [mark for mark in found.marks if mark is not None]
    return {
        "score": list(mean_estimate(values)) if values else None,
        "valid": len(values),
        "count": len(found.marks),
        "marks": list(found.marks),
        **({} if found.measure == "reward" else {"measure": found.measure}),
        **({"beside": found.beside} if found.beside else {}),
        **({"figures": dict(found.figures)} if found.figures else {}),
    }


def estimate(stored: Mapping[str, Any] | None) -> Estimate | None:
    return Estimate(*stored["score"]) if stored and stored["score"] else None


def change(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Estimate | None:
    """Mean change over prompts that both evaluations could score."""
    if not before or not after:
        return None
    pairs = [
        (b, a)
        for b, a in zip(before["marks"], after["marks"], strict=True)
        if b is not None and a is not None
    ]
    return paired_difference(*zip(*pairs, strict=True)) if pairs else None
