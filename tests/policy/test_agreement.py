import math
import struct

import anyio
import pytest
import torch
from hypothesis import given, settings, strategies as st

from burnish.metrics import agreeing, known
from burnish.policy import Recipe, RewardBatch, advantages
from burnish.policy.compute import agreement_metrics, reward_agreement
from burnish.policy.groups import weighted_sum
from burnish.records import Author, Message, Response, Reward, Span, Task, Trajectory
from burnish.rewards import Scope, Weighted, checked
from burnish.training.collect import Scored, reward_batch
from burnish.training.metrics import totals

NAN = float("nan")
SPAN = Span(Author.MODEL, (1,), (0.0,), trainable=True)


def test_by_hand():
    # Group 0: the first reward orders 1 < 2 < 3, the second 1 < 3 < 2: one of three pairs differs.
    # Group 1: the two are mirror images: one of one.
    rewards = torch.tensor([[1.0, 1.0], [2.0, 3.0], [3.0, 2.0], [0.0, 5.0], [1.0, 4.0]]).double()
    found = reward_agreement(rewards, [0, 0, 0, 1, 1])
    assert found.conflict[0, 1].item() == pytest.approx(2 / 4)
    # Deviations: (-1, 0, 1, -.5, .5) and (-1, 1, 0, .5, -.5): 1 - .5 over sqrt(2.5 * 2.5).
    assert found.correlation[0, 1].item() == pytest.approx(0.5 / 2.5)
    assert found.correlation[1, 0].item() == found.correlation[0, 1].item()
    metrics = agreement_metrics(rewards, torch.tensor([0, 0, 0, 1, 1]), ["right", "short"])
    assert metrics == {
        "reward/corr/right~short": pytest.approx(0.2),
        "reward/conflict/right~short": pytest.approx(0.5),
    }
    assert all(known(name) is not None for name in metrics)


def test_ties_and_missing_values_tell_nothing_and_differences_between_groups_do_not_count():
    # Between the groups the two rewards rise together; inside them the second never differs.
    rewards = [[0.0, 0.0], [1.0, 0.0], [10.0, 9.0], [11.0, 9.0]]
    found = reward_agreement(rewards, [0, 0, 1, 1])
    assert math.isnan(found.correlation[0, 1])
    assert math.isnan(found.conflict[0, 1])
    assert agreement_metrics(torch.tensor(rewards), torch.tensor([0, 0, 1, 1]), ["a", "b"]) == {}
    # A missing value leaves its pairs; rounding is no difference.
    rewards = [[0.0, NAN], [1.0, 2.0], [2.0, 1.0], [3.0, 1.0 + 1e-16]]
    found = reward_agreement(rewards, [0, 0, 0, 0])
    assert found.conflict[0, 1].item() == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), min_size=2, max_size=20))
def test_a_reward_agrees_with_itself_and_opposes_its_negative(rows):
    values = [float(value) for value, _ in rows]
    groups = [group for _, group in rows]
    table = [[v, 2 * v + 1, -v] for v in values]
    found = reward_agreement(table, groups)
    if not math.isnan(found.correlation[0, 1]):
        assert found.correlation[0, 1].item() == pytest.approx(1.0)
        assert found.correlation[0, 2].item() == pytest.approx(-1.0)
        assert found.conflict[0, 1].item() == 0.0
        assert found.conflict[0, 2].item() == 1.0
    else:
        assert math.isnan(found.conflict[0, 1])


def test_huge_rewards_have_a_correlation_too():
    found = reward_agreement([[1e99, 1.0], [2e99, 2.0], [3e99, 3.0]], [0, 0, 0])
    assert found.correlation[0, 1].item() == pytest.approx(1.0)


def test_every_step_with_two_rewards_has_them_and_one_reward_has_none():
    two = RewardBatch(
        rewards_BK=torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).double(),
        weights_K=torch.ones(2),
        groups_B=torch.tensor([0, 0, 1, 1]),
        lengths_B=torch.ones(4).long(),
        truncated_B=torch.zeros(4).bool(),
        names=("right", "short"),
    )
    found = advantages(Recipe(), two).diagnostics
    assert found["reward/corr/right~short"] == pytest.approx(0.0)
    assert found["reward/conflict/right~short"] == 0.5
    one = RewardBatch(
        rewards_BK=two.rewards_BK[:, :1],
        weights_K=torch.ones(1),
        groups_B=two.groups_B,
        lengths_B=two.lengths_B,
        truncated_B=two.truncated_B,
        names=("right",),
    )
    assert not [name for name in advantages(Recipe(), one).diagnostics if "corr" in name]
    assert agreeing(found) == ["right", "short"]


class Fixed:
    """A reward that gives each answer the number that stands in it."""

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()

    def __init__(self, name, values):
        self.name, self.values = name, values

    async def score(self, task, responses):
        return [Reward(self.name, self.values[int(r.text)]) for r in responses]


def bits(value):
    return struct.pack("<d", value)


numbers = st.floats(-1e6, 1e6, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9).flatmap(
    lambda k: st.tuples(
        st.lists(st.floats(-10, 10).filter(bool), min_size=k, max_size=k),
        st.lists(st.lists(numbers, min_size=k, max_size=k), min_size=2, max_size=5),
    )
))  # fmt: skip
def test_the_total_that_is_stored_is_the_one_the_advantages_see(drawn):
    weights, rows = drawn
    names = [f"r{k}" for k in range(len(weights))]
    scorers = [Fixed(name, [row[k] for row in rows]) for k, name in enumerate(names)]
    total = Weighted(scorers, weights=dict(zip(names, weights, strict=True)))
    task = Task("t", (Message("user", "?"),))
    responses = [Response(str(i), str(i)) for i in range(len(rows))]
    rewards = anyio.run(checked, total, task, responses)
    scored = [
        Scored(task, Trajectory(str(i), "t", "g", (SPAN,), str(i)), reward)
        for i, reward in enumerate(rewards)
    ]
    batch = reward_batch(scored)
    used = weighted_sum(batch.rewards_BK, batch.weights_K).tolist()
    assert [bits(one.value) for one in rewards] == [bits(value) for value in used]

    class Collected:
        kept = scored

    logged = totals(Collected())["reward/total"]
    assert bits(logged) == bits(math.fsum(used) / len(used))
