"""Questions of search self-play with their success rate over steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from viewed_runs import Client, open_client

from burnish.records import Author, Message, Reward, Span, Task, Trajectory
from burnish.store import RunStore, StoredSample
from pair_runs import rubric_run

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("played")
    with RunStore.create(runs / "game", {"steps": 3}, {}, recipe="ssp") as store:
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
    rubric_run(runs / "other")
    return runs


@pytest.fixture
def looking(folder: Path) -> Iterator[Client]:
    with open_client(folder) as opened:
        yield opened


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", "cab"),
        ("newest", "cab"),
        ("hardest", "bac"),
        ("easiest", "abc"),
        ("most_played", "acb"),
    ],
)
def test_questions_are_ordered(looking: Client, sort: str, order: str) -> None:
    page = looking.run("game", "/questions", sort=sort)
    assert "".join(line["answer"][0] for line in page["questions"]) == order
    assert (page["count"], page["replayed"], page["next"]) == (3, 1, None)
    first = looking.run("game", "/questions", sort=sort, limit=2)
    assert first["next"] == 2


def test_a_question_has_its_rate_in_every_step_it_was_played(looking: Client) -> None:
    (line,) = [
        line
        for line in looking.run("game", "/questions")["questions"]
        if line["answer"] == ["a", "x"]
    ]
    assert line["question"] == "Which <b>a</b>?"
    assert [(p["number"], p["success"], p["attempts"], p["origin"]) for p in line["plays"]] == [
        (1, 0.5, 2, "proposed"),
        (2, 1.0, 2, "replayed"),
    ]
    assert line["plays"][0]["group"] == "0.0.solver"
    assert line["success"] == 1.0


def test_only_runs_of_the_game_lead_to_questions(looking: Client) -> None:
    assert looking.run("game")["has_questions"] is True
    assert looking.run("other")["has_questions"] is False
    assert "no questions" in str(looking.run("other", "/questions", 404))
