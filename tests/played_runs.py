"""A run of search self-play made by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec

from burnish.records import Author, Message, Reward, Span, Task, Trajectory
from burnish.store import RunStore, StoredSample

PLAYS = ((0, "a", 0.5), (0, "b", 0.0), (1, "a", 1.0), (2, "c", None))
"""Step, question and success rate; two attempts each."""


def attempt(step: int, index: int, slot: int, name: str, rate: float | None) -> StoredSample:
    facts = {"id": name, "question": f"Which <b>{name}</b>?", "answer": [name, "x"],
             "origin": "replayed" if step else "proposed", "success": rate}  # fmt: skip
    task = Task(f"t{slot}", (Message("user", "Write a question."),))
    return StoredSample(
        step=step,
        split="train",
        index=index,
        task=task,
        trajectory=Trajectory(
            id=f"{step}.{slot}.{index}",
            task_id=task.id,
            group=f"{step}.{slot}.solver",
            spans=(Span(Author.MODEL, (5,), (-0.1,), True),),
            text="<answer>a</answer>",
            role="solver",
            info={"ssp": facts},
        ),
        reward=Reward("game", 1.0),
        advantage=0.0,
    )


def played_run(folder: Path) -> Path:
    """Three steps of search self-play with three questions, one of them played twice."""
    with RunStore.create(folder, {"steps": 3}, {}, recipe="ssp") as store:
        for step in range(3):
            own = [(name, rate) for at, name, rate in PLAYS if at == step]
            rows = [
                attempt(step, 2 * slot + one, slot, name, rate)
                for slot, (name, rate) in enumerate(own)
                for one in range(2)
            ]
            store.append_rollouts(step, rows)
            store.append_metrics(step, {"reward/total": 0.0})
        store.finish("finished")
    return folder


def refused_run(folder: Path) -> Path:
    """One step in which no question of the proposer was accepted, so no solver played."""
    replace = msgspec.structs.replace
    sample = attempt(0, 0, 0, "a", None)
    facts = {"valid": False, "problem": "no question tag"}
    proposer = replace(
        sample.trajectory, group="0.0.proposer", role="proposer", info={"ssp": facts}
    )
    with RunStore.create(folder, {"steps": 1}, {}, recipe="ssp") as store:
        store.append_rollouts(0, [replace(sample, trajectory=proposer)])
        store.append_metrics(0, {"reward/total": 0.0})
        store.finish("finished")
    return folder
