"""One sample whole: its conversation, tokens, reward tree with evidence, and its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.records import Reward
from burnish.rewards.models.bias_attributes import KEY
from burnish.store import StoredSample
from burnish.store.database import OF_TASK
from burnish.store.reader import RunReader
from burnish.store.sample import flatten
from burnish.store.sample_name import sample_names
from burnish.view.index import Signal, signal_of
from burnish.view.pages.claims import claims_view
from burnish.view.pages.groups import TEXT, mean
from burnish.view.pages.latents import latents_view
from burnish.view.pages.pairs import pair_view
from burnish.view.pages.plans import plan_view
from burnish.view.pages.premises import premises_view
from burnish.view.pages.rubrics import rubric_view
from burnish.view.pages.runs import NotFound, Page, open_run
from burnish.view.pages.sounds import sounds_view
from burnish.view.pages.tokens import newest_tokenizer, token_page

PEERS = 256
"""Answers of its group that are named."""


PANES: dict[str, Callable[[StoredSample], Any]] = {
    "pair": pair_view,
    "rubric": rubric_view,
    "claims": claims_view,
    "premises": premises_view,
    "plan": plan_view,
    "latents": latents_view,
    "sounds": sounds_view,
}
"""What a sample may hold besides; None where it does not."""


def sample_page(folder: Path, reference: str, start: int) -> Page:
    """One sample by its name, such as `train-3-2-4`, the store's key or its trajectory's id."""
    with open_run(folder) as run:
        try:
            sample = run.sample(reference)
        except UserError as error:
            raise NotFound(str(error)) from error
        group = _group(run, sample)
        query = "SELECT idx FROM samples WHERE step = ? AND split = ? AND idx IN (?, ?)"
        step, split, at = sample.step, sample.split, sample.index
        there = [at, *(row[0] for row in run.query(query, (step, split, at - 1, at + 1)))]
        names = dict(zip(there, sample_names(run, ((step, split, i) for i in there)), strict=True))
        query = f"SELECT count(DISTINCT step) FROM samples WHERE {OF_TASK}"
        ((seen_at,),) = run.query(query, (sample.trajectory.task_id,))
        numbers = run.token_values(sample.id)
    trajectory = sample.trajectory
    panes = {name: view(sample) for name, view in PANES.items()}
    shown = ("latents",) if panes["sounds"] is None else ("latents", "messages")
    return {
        "id": sample.id,
        "name": names[at],
        "trajectory": trajectory.id,
        "step": step,
        "split": split,
        "index": at,
        "role": trajectory.role,
        "finish": trajectory.finish,
        "weight_version": trajectory.weight_version or 0,
        "task": sample.task,
        "response": trajectory.text[:TEXT],
        "is_cut": len(trajectory.text) > TEXT,
        "reward": sample.reward,
        "counted": _counted(sample.reward),
        "advantage": sample.advantage,
        "why": why(sample, group),
        "keep": sample.keep,
        "info": {k: v for k, v in trajectory.info.items() if k not in shown},
        **panes,
        "tokens": token_page(sample, numbers, newest_tokenizer(folder), start),
        "group": group,
        "previous": names.get(at - 1),
        "next": names.get(at + 1),
        "seen_at": seen_at,  # steps at which the same prompt was answered
    }


def why(sample: StoredSample, group: Page) -> str:
    """Why this advantage, as far as its group tells."""
    left_out = "" if sample.keep else "; the recipe left it out of the loss"
    value = sample.reward.value
    if sample.split.startswith("eval:"):
        return "an evaluation is not trained on"
    if sample.split == "dropped":
        return "sampled, then put aside by the recipe; not trained on"
    if KEY in sample.trajectory.info:
        return "a pair has no advantage: the loss moves its two scores apart"
    if value is None:
        return f"no reward ({sample.reward.status.value}), so it is left out of its group"
    if group["signal"] is Signal.NONE:
        return "the only answer of its group with a reward: nothing to compare with"
    if group["signal"] is Signal.EQUAL:
        return f"every answer of its group got the same reward{left_out}"
    own = group["mean"] or 0.0
    side = "above" if value > own else "below" if value < own else "at"
    return f"its reward {value:.4g} is {side} its group's mean {own:.4g}{left_out}"


def _group(run: RunReader, sample: StoredSample) -> Page:
    query = (
        "SELECT id, step, split, idx, reward, status, advantage FROM samples "
        "WHERE step = ? AND (split LIKE 'eval:%') = ? AND group_key = ? ORDER BY rowid LIMIT ?"
    )
    key, is_eval = sample.trajectory.group, sample.split.startswith("eval:")
    rows = list(run.query(query, (sample.step, is_eval, key, PEERS)))
    names = sample_names(run, (row[1:4] for row in rows))
    fields = ("id", "reward", "status", "advantage")
    peers = [
        {"name": name, **dict(zip(fields, (row[0], *row[4:]), strict=True))}
        for name, row in zip(names, rows, strict=True)
    ]
    rewards = [peer["reward"] for peer in peers]
    about = {"signal": signal_of(rewards), "mean": mean(rewards)}
    return {"key": key, "size": len(peers), **about, "members": peers}


def _counted(reward: Reward) -> Page:
    """How the reward tree came about; oracle evidence holds the label or the reference answer."""
    nodes = flatten(reward).values()
    evidence = [e for node in nodes for e in node.evidence]
    return {
        "statuses": Counter(node.status.value for node in nodes),
        "evidence": len(evidence),
        "oracle": sum(e.visibility == "oracle" for e in evidence),
        "cost_usd": sum(e.cost_usd for e in evidence),
    }
