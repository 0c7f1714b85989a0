"""The groups of a step, one group side by side, and the same prompt across steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from burnish.numbers import grouped
from burnish.records import Task
from burnish.store import StoredSample
from burnish.store.database import OF_TASK
from burnish.store.sample_name import EVAL, shown_step
from burnish.view.index import Signal, signal_of
from burnish.view.pages.runs import NotFound, Page, open_run, paged
from burnish.view.pages.search import select

MEMBERS = 128
"""Answers of one group that are shown whole."""
TEXT = 200_000
"""Characters of one answer; a longer one is cut."""


def groups_page(folder: Path, step: int, split: str, signal: str, after: int, limit: int) -> Page:
    """The groups of a step in the order they were stored; `after` is how many were shown before."""
    is_eval = split.startswith(EVAL)
    number = step if is_eval else step + 1
    with open_run(folder) as run:
        if split:
            rows = select(run, "WHERE step = ? AND split = ? ORDER BY rowid", [step, split])
        else:
            where = "WHERE step = ? AND split NOT LIKE 'eval:%' ORDER BY rowid"
            rows = select(run, where, [step])
        if not rows:
            ((first, last),) = run.query("SELECT min(step), max(step) FROM rollouts")
            has = "no steps yet" if first is None else f"steps {first + 1} to {last + 1}"
            which = f" in split '{split}'" if split else ""
            shown = shown_step(step, split)
            raise NotFound(f"run '{run.name}' has no samples of step {shown}{which}; it has {has}.")
        query = "SELECT name, value FROM metrics WHERE step = ?"
        metrics: dict[str, float] = dict(run.query(query, (step,)))
        # The steps before and after this one; of an evaluation, those of its name.
        table, name = "rollouts", []
        if is_eval:
            table, name = "(SELECT step FROM evaluations WHERE name = ?)", [split[len(EVAL) :]]
        around = (
            f"SELECT (SELECT max(step) FROM {table} WHERE step < ?), "
            f"(SELECT min(step) FROM {table} WHERE step > ?)"
        )
        ((previous, following),) = run.query(around, (*name, step, *name, step))
        # What was sampled in a step, and the evaluations that followed it.
        splits = (
            "SELECT DISTINCT split, step FROM samples WHERE (step = ? AND split NOT LIKE 'eval:%') "
            "OR (step = ? AND split LIKE 'eval:%') ORDER BY step, split"
        )
        stored = list(run.query(splits, (number - 1, number)))
    # A group whose answers were partly dropped is one group still.
    groups = grouped(
        ((row["split"] if row["split"].startswith(EVAL) else "", row["group"]), row) for row in rows
    )
    lines = [_group_line(members) for members in groups.values()]
    found = [line["signal"] for line in lines]
    fitting = [line for line in lines if signal in ("", line["signal"])]
    page, behind = paged(fitting, after, limit)
    return {
        "step": step,
        "number": number,  # as people count; 0 for an evaluation before training
        "groups": page,
        "total": len(fitting),
        "signals": {one: found.count(one) for one in Signal},  # of all groups
        "splits": [{"split": own, "step": at} for own, at in stored],
        "next": behind,
        "metrics": metrics,
        "previous_step": previous,
        "next_step": following,
    }


def _group_line(members: list[Page]) -> Page:
    rewards = [row["reward"] for row in members]
    signal = signal_of(rewards)
    return {
        "key": members[0]["group"],
        **{name: members[0][name] for name in ("split", "role", "task", "prompt")},
        "size": len(members),
        "signal": signal,
        "mean": mean(rewards),
        "samples": [row | {"signal": signal} for row in members],
    }


def group_page(folder: Path, step: int, key: str, split: str) -> Page:
    """One group whole: the answers in the order of their rewards, best first.

    Without a split a group that was partly put aside (`dropped`) is shown with all its answers.
    """
    with open_run(folder) as run:
        samples = list(run.samples(step=step, split=split or None, group=key, limit=MEMBERS))
        if not samples:
            which = f", split '{split}'" if split else ""
            shown = shown_step(step, split)
            raise NotFound(f"run '{run.name}' has no group '{key}' in step {shown}{which}.")
        first = samples[0]
        place_of = (step, first.split.startswith(EVAL))
        where = "step = ? AND (split LIKE 'eval:%') = ?"
        keys = f"SELECT DISTINCT group_key FROM samples WHERE {where} ORDER BY rowid"
        known = [row[0] for row in run.query(keys, place_of)]
        query = f"SELECT count(*) FROM samples WHERE {where} AND group_key = ?"
        ((size,),) = run.query(query, (*place_of, key))
        members = list(map(_member, samples, run.names(samples)))
    place = known.index(key)
    rewards = [sample.reward.value for sample in samples]

    def best_first(member: Page) -> tuple[bool, float, int]:
        value = member["reward"].value
        return value is None, -(value or 0.0), member["index"]

    return {
        "step": step,
        "key": key,
        "number": place + 1,  # its place in the step
        "split": first.split,
        "role": first.trajectory.role,
        "task": first.task,
        "signal": signal_of(rewards),
        "mean": mean(rewards),
        "members": sorted(members, key=best_first),
        "size": size,
        "previous": known[place - 1] if place else None,
        "next": known[place + 1] if place + 1 < len(known) else None,
    }


def _member(sample: StoredSample, name: str) -> Page:
    text = sample.trajectory.text
    return {
        "id": sample.id,
        "name": name,
        "index": sample.index,
        "response": text[:TEXT],
        "is_cut": len(text) > TEXT,
        "reward": sample.reward,
        "advantage": sample.advantage,
        "keep": sample.keep,
        "finish": sample.trajectory.finish,
        "length": sum(len(s.token_ids) for s in sample.trajectory.spans if s.author == "model"),
    }


def prompt_page(folder: Path, task: str, split: str, before: int | None, limit: int) -> Page:
    """The answers to one prompt, step by step, newest first; `next` goes into `before`."""
    where, values = OF_TASK, [task]
    if split:
        where, values = f"{where} AND split = ?", [task, split]
    with open_run(folder) as run:
        ((total,),) = run.query(f"SELECT count(*) FROM samples WHERE {where}", values)
        if not total:
            raise NotFound(f"run '{run.name}' has no sample of the task '{task}'.")
        asked: list[Any] = values
        if before is not None:
            where, asked = f"{where} AND step < ?", [*values, before]
        query = f"SELECT DISTINCT step FROM samples WHERE {where} ORDER BY step DESC LIMIT ?"
        steps = [row[0] for row in run.query(query, [*asked, limit + 1])]
        shown = steps[:limit]
        rows: list[Page] = []
        if shown:
            rest = f"WHERE {where} AND step >= ? ORDER BY step DESC, rowid"
            rows = select(run, rest, [*asked, shown[-1]])
        query = f"SELECT task FROM samples WHERE {OF_TASK} ORDER BY step DESC LIMIT 1"
        ((encoded,),) = run.query(query, (task,))
    whole = msgspec.json.decode(encoded, type=Task)
    by_step = grouped(((row["step"], row["split"]), row) for row in rows)
    return {
        "task": task,
        "messages": whole.messages,
        "fields": whole.fields,
        "steps": [
            {
                "step": step,
                "split": own,
                "mean": mean([row["reward"] for row in members]),
                "signal": signal_of([row["reward"] for row in members]),
                "samples": members,
            }
            for (step, own), members in by_step.items()
        ],
        "total": total,  # over all pages
        "next": shown[-1] if len(steps) > limit else None,
    }


def mean(rewards: Sequence[float | None]) -> float | None:
    """Of the rewards that have a value."""
    values = [value for value in rewards if value is not None]
    return sum(value / len(values) for value in values) if values else None
