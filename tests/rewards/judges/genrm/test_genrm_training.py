"""A judge in training: what it earns, the weight of a place, and where its pairs come from."""

from __future__ import annotations

import json
import random
from pathlib import Path

import anyio
import pytest
import torch
from hypothesis import given, strategies as st
from recipes.genrm.preferences import draw_pair, make, task_of

from burnish.errors import UserError
from burnish.policy.batch import RewardBatch
from burnish.policy.brpo import position_weight
from burnish.records import Message, Response, Status, Task, Visibility
from burnish.rewards import build, checked, genrm_reward
from burnish.rewards.pairs import GenRMConfig
from burnish.tasks import build as build_tasks
from burnish.tasks.files import File, HeldOutColumn
from burnish.tasks.function import Function
from burnish.tasks.rows import both_orders, write_jsonl


def earn(text: str, label: object = "a", **settings: object):
    task = Task("t", (Message("user", "?"),), {"label": label})
    scorer = build(GenRMConfig(**settings))
    return anyio.run(checked, scorer, task, [Response("r", text)])[0]


def test_the_reward_by_hand():
    assert earn("<scores>9, 2</scores>").value == 1.0
    assert earn("<scores>5, 4</scores>").value == pytest.approx(0.5)
    assert earn("<scores>2, 9</scores>").value == -1.0
    assert earn("<scores>2, 9</scores>", "b").value == 1.0
    assert earn("<scores>2, 9</scores>", -1).value == 1.0
    assert earn("<scores>5, 5</scores>").value == pytest.approx(-0.2)
    assert earn("I like the first").value == -1.0
    assert earn("<scores>9, 2</scores>", first_pick_rate=0.8).value == pytest.approx(0.625)
    assert earn("<scores>9, 2</scores>").evidence[0].visibility is Visibility.ORACLE
    assert earn("<scores>9, 2</scores>", "tie").status is Status.ABSTAIN


def test_accuracy_and_picks_are_rewards_to_look_at():
    right = {"value": "right"}
    texts = ("<scores>9, 2</scores>", "<scores>2, 9</scores>", "<scores>4, 4</scores>", "none")
    assert [earn(t, **right).value for t in texts] == [1.0, 0.0, 0.5, 0.0]
    picks = {"value": "picked_first"}
    assert [earn(t, **picks).value for t in texts] == [1.0, 0.0, None, None]


def batch(rewards: torch.Tensor, names: tuple[str, ...]) -> RewardBatch:
    size = len(rewards)
    return RewardBatch(
        rewards_BK=rewards, weights_K=torch.ones(len(names)),
        groups_B=torch.zeros(size, dtype=torch.int64), lengths_B=torch.ones(size),
        truncated_B=torch.zeros(size).bool(), names=names,
    )  # fmt: skip


SCORES = st.lists(
    st.tuples(
        st.sampled_from([(9, 2), (2, 9), (5, 4), (4, 5), (5, 5), None]), st.sampled_from("ab")
    ),
    min_size=1,
    max_size=12,
)


@given(SCORES)
def test_the_weight_of_a_place_is_genrm_reward_at_the_step_s_own_rate(rows):
    names = ("genrm", "picked_first")
    picks = [float("nan") if not s or s[0] == s[1] else float(s[0] > s[1]) for s, _ in rows]
    plain = torch.tensor(
        [[genrm_reward(s, label, 0.5), p] for (s, label), p in zip(rows, picks, strict=True)],
        dtype=torch.float64,
    )
    shaped = position_weight(plain, batch(plain, names))
    known = [p for p in picks if p == p]
    rate = sum(known) / len(known) if known else 0.5
    expected = [genrm_reward(s, label, rate) for s, label in rows]
    torch.testing.assert_close(shaped[:, 0], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(shaped[:, 1], plain[:, 1], equal_nan=True)


def test_pairs_of_the_game_have_a_better_text_and_both_orders():
    pair = draw_pair(random.Random(3))
    assert pair.topic in pair.better
    assert pair.word in pair.better
    spoilt = pair.topic not in pair.worse or pair.word not in pair.worse
    assert spoilt or "!" in pair.worse or "beautiful" in pair.worse
    first, second = task_of(pair, False), task_of(pair, True)
    assert (first["label"], second["label"]) == ("a", "b")
    assert first["split_by"] == second["split_by"]
    rng = random.Random(0)
    made = [make(rng) for _ in range(400)]
    right = [
        ("a" if float(m["demonstration"].split("<scores>")[1].split(",")[0]) > 6 else "b")
        == m["label"]
        for m in made
    ]
    swapped = [ok for ok, m in zip(right, made, strict=True) if m["swapped"]]
    assert all(ok for ok, m in zip(right, made, strict=True) if not m["swapped"])
    assert 0.35 < sum(swapped) / len(swapped) < 0.65


def test_the_game_is_a_task_set_whose_orders_share_a_side():
    tasks = build_tasks(Function(path="recipes.genrm.preferences:make"), seed=0)
    assert {t.fields["label"] for t in tasks.sample(20)} == {"a", "b"}
    assert "label" in tasks.train(0).labels
    assert len(tasks.held_out(10)) == 10


def test_a_file_of_preferences_becomes_both_orders_on_one_side(tmp_path):
    rows = [
        {
            "prompt": f"q{n} {{first}}", "response_a": f"good {n}", "response_b": f"bad {n}",
            "label": "a",
        }
        for n in range(30)
    ] + [{"prompt": "q", "response_a": "x", "response_b": "y", "label": "tie"}]  # fmt: skip
    made = list(both_orders(rows, held_out=0.3))
    assert len(made) == 60
    assert [m["label"] for m in made[:2]] == ["a", "b"]
    assert made[0]["prompt"].index("good 0") < made[0]["prompt"].index("bad 0")
    assert made[1]["prompt"].index("bad 0") < made[1]["prompt"].index("good 0")
    assert "q0 {first}" in made[0]["prompt"]
    assert write_jsonl(made, tmp_path / "pairs.jsonl") == 60
    config = File(
        path="pairs.jsonl", prompt="prompt", fields={"label": "label", "pair": "pair"},
        held_out=HeldOutColumn("split", ("held_out",)),
    )  # fmt: skip
    tasks = build_tasks(config, 0, tmp_path)
    sides = [{t.fields["pair"] for t in side} for side in (tasks.train_tasks, tasks.held_out(None))]
    assert all(sides)
    assert not sides[0] & sides[1]
    assert json.loads((tmp_path / "pairs.jsonl").read_text().splitlines()[0])["label"] == "a"
    with pytest.raises(UserError, match=r"rows\[0\].*response_b"):
        list(both_orders([{"prompt": "q", "response_a": "x", "label": "a"}]))


def test_real_preferences_become_a_task_file(tmp_path):
    file = Path(__file__).parents[4] / ".." / "shared" / "data" / "alpaca_pairs" / "dev.parquet"
    if not file.is_file():
        pytest.skip("shared data 'alpaca_pairs' is not here")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            "prompt": row["instruction"], "response_a": row["output_1"],
            "response_b": row["output_2"], "label": {1: "a", 2: "b"}.get(row["preference"]),
        }
        for row in parquet.read_table(file).to_pylist()[:100]
        if row["output_1"].strip() and row["output_2"].strip()
    ]  # fmt: skip
    decided = sum(row["label"] is not None for row in rows)
    assert write_jsonl(both_orders(rows), tmp_path / "pairs.jsonl") == 2 * decided > 100
    tasks = build_tasks(
        File(
            path="pairs.jsonl", prompt="prompt", fields={"label": "label", "pair": "pair"},
            held_out=HeldOutColumn("split", ("held_out",)),
        ),
        0,
        tmp_path,
    )  # fmt: skip
    labels = [task.fields["label"] for task in tasks.train_tasks]
    assert labels.count("a") == labels.count("b")
