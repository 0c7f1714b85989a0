import sys

import pytest
import torch
from training_cases import finish, trainer

from burnish.policy.batch import Loss as PolicyLoss
from burnish.training.algorithm import Loss
from burnish.training.algorithms.policy_update import _monitors, monitored
from burnish.training.devices import World
from burnish.training.events import StepDone
from burnish.training.update import Totals

START = "policy/clipped_share/pass_"
MANY = {
    "steps": 3,
    "rollout": {"prompts": 6, "samples": 4},
    "update": {"epochs": 3},
    "optimiser": {"learning_rate": 5e-3},
}


def steps(folder, *tables):
    return [e.metrics for e in finish(trainer(folder, *tables)) if isinstance(e, StepDone)]


def shares(metrics):
    return {name: value for name, value in metrics.items() if name.startswith(START)}


@pytest.fixture
def coin(tmp_path):
    """A reward of 0 or 1 that answers of the tiny model meet about half of the time."""
    path = tmp_path / "coin.py"
    path.write_text("def coin(text) -> float:\n    return float(sum(map(ord, text)) % 2)\n")
    return {"rewards": [{"kind": "function", "path": f"{path}:coin"}]}


@pytest.mark.parametrize("kind", ["static", "elastic"])
def test_a_run_stores_the_share_of_each_bucket_that_has_tokens(tmp_path, coin, kind):
    policy = {"policy": {"trust_region": {"kind": kind}}}
    found = steps(tmp_path, MANY, coin, policy)
    seen = [shares(metrics) for metrics in found]
    assert any(len(one) > 1 for one in seen), "one bucket alone: a weak test"
    for metrics, one in zip(found, seen, strict=True):
        # The share of all lies between those of its parts: every group is in a bucket.
        assert min(one.values()) <= metrics["policy/clipped_share"] <= max(one.values())
        assert any("bounds/high_mean/pass_" in name for name in metrics) == (kind == "elastic")


def test_with_one_update_a_step_nothing_is_told_apart(tmp_path, coin):
    found = steps(tmp_path, MANY, coin, {"update": {"epochs": 1}})
    assert all("policy/clipped_share" in metrics and not shares(metrics) for metrics in found)


def test_a_graded_reward_has_no_buckets(tmp_path):
    found = steps(tmp_path, MANY)
    assert all("policy/clipped_share" in metrics and not shares(metrics) for metrics in found)


class Pair(World):
    """Two processes of which the other one's numbers are given."""

    def __init__(self, theirs):
        super().__init__()
        self.theirs = theirs

    def gather(self, own, total):
        return [*own, *self.theirs]


def noted(sums):
    """Totals that took in a micro-batch of four tokens."""
    totals = Totals()
    packed = type("Packed", (), {})()
    packed.trained = 4
    packed.sampled_N = torch.zeros(4)
    packed.trained_BT = torch.ones(2, 2, dtype=torch.bool)
    packed.rollout_N = torch.tensor([0, 0, 1, 1])
    packed.column_N = torch.tensor([0, 1, 0, 1])
    zero = torch.zeros(())
    by_bucket = None if sums is None else torch.tensor(sums, dtype=torch.float64)
    out = PolicyLoss(zero, {}, zero, zero, by_bucket)
    sums, largest = _monitors(out, torch.zeros(2, 2), torch.zeros(2, 2), packed)
    totals.note(Loss(zero, sums=sums, largest=largest))
    return totals


def read(totals, world):
    return monitored(totals.read([1.0], torch.ones(()), world))


FIRST = [[1, 0, 0, 0, 0], [2, 2, 0, 0, 0]]
SECOND = [[2, 0, 0, 0, 1], [4, 0, 0, 0, 2]]


def test_micro_batches_and_processes_add_up_by_hand():
    mine = noted(FIRST)
    mine.add(noted(SECOND))
    mine.add(noted(None))
    alone = shares(read(mine, World()))
    assert alone == {START + "0_0.2": 0.5, START + "0.2_0.4": 0.0, START + "0.8_1": 0.5}
    # Another process with 3 of 3 in the first bucket, and one that had no pass at all.
    third = torch.tensor([[3.0, 0, 0, 0, 0], [3, 0, 0, 0, 0]], dtype=torch.float64)
    theirs = [({}, {"buckets": third}, {}), ({}, {}, {})]
    both = shares(read(mine, Pair(theirs)))
    assert both == {START + "0_0.2": 6 / 9, START + "0.2_0.4": 0.0, START + "0.8_1": 0.5}


def test_without_buckets_there_are_no_shares():
    assert shares(read(noted(None), World())) == {}


def test_counting_leaves_the_rest_of_a_run_alone(tmp_path, coin, monkeypatch):
    (tmp_path / "plain").mkdir()
    (tmp_path / "counted").mkdir()
    counted = steps(tmp_path / "counted", MANY, coin)
    monkeypatch.setattr(sys.modules["burnish.policy.compute"], "group_buckets", lambda *_: None)
    plain = steps(tmp_path / "plain", MANY, coin)
    for with_buckets, without in zip(counted, plain, strict=True):
        assert shares(with_buckets)
        assert not shares(without)
        rest = {k: v for k, v in with_buckets.items() if not k.startswith((START, "time/"))}
        assert rest == {k: v for k, v in without.items() if not k.startswith("time/")}
