"""One sample whole: its conversation, tokens, reward tree with evidence, and its group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from burnish.errors import UserError
from burnish.records import Reward, Task
from burnish.rewards.models.bias_attributes import KEY
from burnish.store import StoredSample
from burnish.store.database import OF_TASK
from burnish.store.reader import RunReader
from burnish.store.sample import flatten
from burnish.store.sample_name import sample_names
from burnish.view.index.columns import Signal, signal_of
from burnish.view.pages.claims import ClaimsView, claims_view
from burnish.view.pages.groups import TEXT
from burnish.view.pages.latents import LatentsView, latents_view
from burnish.view.pages.pairs import PairView, pair_view
from burnish.view.pages.plans import PlanView, plan_view
from burnish.view.pages.premises import PremisesView, premises_view
from burnish.view.pages.rubrics import RubricView, rubric_view
from burnish.view.pages.runs import NotFound, open_run
from burnish.view.pages.sounds import SoundView, sounds_view
from burnish.view.pages.tokens import TokenPage, token_page, tokenizer_of

PEERS = 256
"""Answers of its group that are named."""


class Peer(Struct, frozen=True):
    id: str
    name: str
    reward: float | None
    status: str
    advantage: float | None


class SampleGroup(Struct, frozen=True):
    key: str
    size: int
    signal: Signal
    mean: float | None
    members: list[Peer]


class Counted(Struct, frozen=True):
    """How the reward tree came about."""

    statuses: dict[str, int]
    """Nodes of the tree by status."""
    evidence: int
    oracle: int
    """Pieces of evidence that hold the label or the reference answer."""
    cost_usd: float


class SamplePage(Struct, frozen=True, kw_only=True):
    id: str
    """The store's key."""
    name: str
    """What people call it, such as `train-3-2-4`."""
    trajectory: str
    step: int
    split: str
    index: int
    role: str
    finish: str
    weight_version: int
    task: Task
    response: str
    is_cut: bool
    reward: Reward
    counted: Counted
    advantage: float | None
    why: str
    """Why this advantage, in one sentence."""
    keep: bool
    info: dict[str, Any]
    pair: PairView | None
    """Both answers, where a reward model scored a pair."""
    rubric: RubricView | None
    """A judge's rubric and what a proxy made of it."""
    claims: ClaimsView | None
    """The claims of an answer with the votes of blind checkers."""
    premises: PremisesView | None
    """The steps of a solution with the premises that were checked against the evidence."""
    plan: PlanView | None
    """The calls of an answer: valid, right, and what is missing."""
    latents: LatentsView | None
    """What an answer imagined between its words."""
    sounds: list[SoundView] | None
    """A held-out sound and what an audio tokenizer made of it."""
    tokens: TokenPage
    group: SampleGroup
    previous: str | None
    """The name of the answer before it."""
    next: str | None
    seen_at: int
    """Steps at which the same prompt was answered."""


def sample_page(folder: Path, reference: str, start: int) -> SamplePage:
    """One sample by its name, such as `train-3-2-4`, the store's key or its trajectory's id."""
    with open_run(folder) as run:
        sample = _find(run, reference)
        group = _group(run, sample)
        previous, following = _beside(run, sample)
        query = f"SELECT count(DISTINCT step) FROM samples WHERE {OF_TASK}"
        ((seen_at,),) = run.query(query, (sample.trajectory.task_id,))
        numbers = run.token_values(sample.id)
        (name,) = run.names([sample])
    trajectory = sample.trajectory
    sounds = sounds_view(sample)
    shown = ("latents",) if sounds is None else ("latents", "messages")
    return SamplePage(
        id=sample.id,
        name=name,
        trajectory=trajectory.id,
        step=sample.step,
        split=sample.split,
        index=sample.index,
        role=trajectory.role,
        finish=trajectory.finish.value,
        weight_version=trajectory.weight_version or 0,
        task=sample.task,
        response=trajectory.text[:TEXT],
        is_cut=len(trajectory.text) > TEXT,
        reward=sample.reward,
        counted=_counted(sample.reward),
        advantage=sample.advantage,
        why=why(sample, group),
        keep=sample.keep,
        info={k: v for k, v in trajectory.info.items() if k not in shown},
        pair=pair_view(sample),
        rubric=rubric_view(sample),
        claims=claims_view(sample),
        premises=premises_view(sample),
        plan=plan_view(sample),
        latents=latents_view(sample),
        sounds=sounds,
        tokens=token_page(sample, numbers, tokenizer_of(folder), start),
        group=group,
        previous=previous,
        next=following,
        seen_at=seen_at,
    )


def why(sample: StoredSample, group: SampleGroup) -> str:
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
    if group.signal is Signal.NONE:
        return "the only answer of its group with a reward: nothing to compare with"
    if group.signal is Signal.EQUAL:
        return f"every answer of its group got the same reward{left_out}"
    mean = group.mean or 0.0
    side = "above" if value > mean else "below" if value < mean else "at"
    return f"its reward {value:.4g} is {side} its group's mean {mean:.4g}{left_out}"


def _find(run: RunReader, reference: str) -> StoredSample:
    try:
        return run.sample(reference)
    except UserError as error:
        raise NotFound(str(error)) from error


def _group(run: RunReader, sample: StoredSample) -> SampleGroup:
    query = (
        "SELECT id, step, split, idx, reward, status, advantage FROM samples "
        "WHERE step = ? AND (split LIKE 'eval:%') = ? AND group_key = ? ORDER BY rowid LIMIT ?"
    )
    key, is_eval = sample.trajectory.group, sample.split.startswith("eval:")
    rows = list(run.query(query, (sample.step, is_eval, key, PEERS)))
    names = sample_names(run, (row[1:4] for row in rows))
    peers = [Peer(row[0], name, *row[4:]) for name, row in zip(names, rows, strict=True)]
    rewards = [peer.reward for peer in peers]
    values = [value for value in rewards if value is not None]
    mean = sum(value / len(values) for value in values) if values else None
    return SampleGroup(key, len(peers), signal_of(rewards), mean, peers)


def _beside(run: RunReader, sample: StoredSample) -> tuple[str | None, str | None]:
    query = "SELECT idx FROM samples WHERE step = ? AND split = ? AND idx IN (?, ?)"
    at = sample.index
    there = [row[0] for row in run.query(query, (sample.step, sample.split, at - 1, at + 1))]
    names = sample_names(run, ((sample.step, sample.split, index) for index in there))
    found = dict(zip(there, names, strict=True))
    return found.get(at - 1), found.get(at + 1)


def _counted(reward: Reward) -> Counted:
    nodes = flatten(reward).values()
    statuses: dict[str, int] = {}
    for node in nodes:
        statuses[node.status.value] = statuses.get(node.status.value, 0) + 1
    evidence = [e for node in nodes for e in node.evidence]
    oracle = sum(e.visibility == "oracle" for e in evidence)
    return Counted(statuses, len(evidence), oracle, sum(e.cost_usd for e in evidence))
