"""Runs made by hand: six scored pairs of a reward model, and rubrics that a proxy was shown."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import anyio

from burnish.records import Author, Evidence, Message, Response, Reward, Span, Task, Trajectory
from burnish.rewards.judges.proxy_rubric import ProxyVerifiedRubric
from burnish.rewards.models.bias_attributes import KEY, REJECTED, pair_record
from burnish.rewards.models.term import Pair
from burnish.store import RunStore, StoredSample

MARKUP = "<b id=injected>bold</b>"
LONG = f"It is a long answer.\n- {MARKUP}\n- **two**"


class Scores(NamedTuple):
    """A pair's answers, their scores and the label."""

    chosen: str
    rejected: str
    first: float
    second: float
    target: float = 1.0


PAIRS = (
    Scores("Blue.", LONG, 1.5, 0.5),
    Scores("Mars.", LONG, -1.0, 1.0),
    Scores(LONG, "Four.", 2.0, 0.5),
    Scores(LONG, "Tea.", 0.25, 0.25),
    Scores("Yes.", "Yes!", 1.0, 0.25, 0.5),
    Scores("No.", LONG, 0.75, 0.25, 0.0),
)
"""Right, wrong, right, equal scores, a tie by its label, and wrong: the second answer is preferred."""
TRAINED = 4


def paired_run(folder: Path) -> Path:
    """A finished reward model with evaluations before and after its four steps."""
    config = {"steps": TRAINED, "train.kind": "reward_model", "run.seed": 0}
    with RunStore.create(folder, config, {}, recipe="reward_model") as store:
        for step in (0, TRAINED):
            samples = [pair_sample(step, "eval:held_out", i, one) for i, one in enumerate(PAIRS)]
            summary = {"score": [0.5, 0.1, 0.9, 5], "marks": [], "measure": "accuracy"}
            store.append_evaluation(step, "held_out", samples, summary)
        for step in range(TRAINED):
            store.append_rollouts(step, [pair_sample(step, "train", 0, PAIRS[0])])
            store.append_metrics(step, {"rewards/margins": 0.1 * step, "loss/total": 0.7})
        store.finish("finished")
    return folder


def pair_sample(step: int, split: str, index: int, scores: Scores) -> StoredSample:
    """One pair as the algorithm stores it."""
    fields = {"chosen": scores.chosen, "rejected": scores.rejected}
    task = Task(f"pair-{index}", (Message("user", f"Question {index}?"),), fields)
    pair = Pair(task, scores.chosen, scores.rejected, target=scores.target)
    record = pair_record(pair, (2, 9), has_texts=split != "train")
    other = Reward(
        "rejected", scores.second, weight=-1.0, evidence=(Evidence(REJECTED, scores.rejected),)
    )
    margin = scores.first - scores.second
    return StoredSample(
        step=step,
        split=split,
        index=index,
        task=task,
        trajectory=Trajectory(
            id=f"{split}.{step}.{index}",
            task_id=task.id,
            group=f"pair/{index}",
            spans=(Span(Author.PROMPT, (1,)), Span(Author.MODEL, (5, 6), (0.0, 0.0), True)),
            text=scores.chosen,
            role="pair",
            info={KEY: record},
        ),
        reward=Reward("margin", margin, parts=(Reward("chosen", scores.first), other)),
        keep=split == "train",
    )


LEAK = "Response 1 is better."
REPLIES = (
    "<rubric>Facts 100%</rubric><eval>Both.</eval><answer>1</answer>",
    f"<rubric>Facts 60%. {LEAK} Style 40%.</rubric><eval>Both.</eval><answer>1</answer>",
    "<rubric>Down</rubric><eval>Both.</eval><answer>2</answer>",
    "no blocks at all",
)
"""A rubric that decides, one that names the winner, one at which the proxy fails, and none."""


def by_facts(question: str, first: str, second: str, rubric: str) -> str:
    """A proxy that needs the word facts; it sees the responses in the opposite order."""
    if "Down" in rubric:
        raise OSError("no route")
    return f"{MARKUP} <answer>2</answer>" if "Facts" in rubric else "I cannot say"


def rubric_run(folder: Path) -> Path:
    """One step of four judgements of one pair, really scored."""
    fields = {"question": "q", "response_1": "good", "response_2": "bad", "label": 1}
    task = Task("judged", (Message("user", "Which is better?"),), fields, labels=("label",))
    scorer = ProxyVerifiedRubric(proxy=by_facts, name="verified")
    responses = [Response(str(n), text) for n, text in enumerate(REPLIES)]
    rewards = anyio.run(scorer.score, task, responses)
    with RunStore.create(folder, {"steps": 1}, {}, recipe="proxy_grm") as store:
        samples = [
            StoredSample(
                step=0,
                split="train",
                index=index,
                task=task,
                trajectory=Trajectory(
                    id=f"0.0.{index}",
                    task_id=task.id,
                    group="0.0",
                    spans=(Span(Author.MODEL, (5,), (-0.1,), True),),
                    text=text,
                ),
                reward=reward,
                advantage=0.0,
            )
            for index, (text, reward) in enumerate(zip(REPLIES, rewards, strict=True))
        ]
        store.append_rollouts(0, samples)
        store.append_metrics(0, {"reward/total": 0.0})
        store.finish("finished")
    return folder
