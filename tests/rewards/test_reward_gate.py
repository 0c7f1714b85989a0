"""The gate that every score passes: a breach of contract stops, a failure has a status."""

import anyio
import msgspec
import numpy as np
import pytest
from reward_cases import (
    PairScripted,
    Returning,
    Scripted,
    a_task,
    answers,
    broken_generation,
    statuses,
    values,
)

from burnish.errors import RewardError, UserError
from burnish.records import Response, Reward
from burnish.rewards import Anchor, Scope, Weighted, bind_check, checked, score_groups


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned NoneType None for 2 responses"),
        ([Reward("odd", 1.0)], "for 2 responses (first sample s0); expected a list of as many"),
        ([1.0, 0.0], "returned list [1.0, 0.0] for 2 responses"),
        (np.ones(2), "returned ndarray"),
        ([Reward("odd", 1.0, weight=float("nan"))] * 2, "weight nan for sample s0"),
    ],
)
def test_a_broken_contract_names_the_reward_and_the_sample(result, message):
    with pytest.raises(RewardError, match="reward 'odd'") as caught:
        anyio.run(checked, Returning(result), a_task(), answers("a", "b"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_of_other_kinds_become_plain_floats_all_the_way_down():
    leaf = Reward("leaf", np.float64(0.5), weight=np.float32(2.0))
    rewards = [
        Reward("odd", 1),
        Reward("odd", np.float64(1.0), weight=True),
        Reward("odd", 1.0, parts=(Reward("middle", 3, parts=(leaf,)),), weight=np.bool_(True)),
    ]
    plain = anyio.run(checked, Returning(rewards), a_task(), answers("a", "b", "c"))
    assert [type(reward.value) for reward in plain] == [float] * 3
    assert values(plain) == [1.0, 1.0, 1.0]
    middle = plain[2].parts[0]
    assert (type(middle.value), type(middle.parts[0].weight)) == (float, float)
    for reward in plain:
        assert msgspec.json.decode(msgspec.json.encode(reward), type=Reward) == reward


def test_an_exception_is_reward_error_with_its_type_and_place():
    rewards = anyio.run(checked, Returning(KeyError("gone")), a_task(), answers("a", "b"))
    assert statuses(rewards) == ["reward_error"] * 2
    assert values(rewards) == [None, None]
    assert "KeyError: 'gone'" in rewards[0].reason
    assert "reward_cases.py" in rewards[0].reason


def test_user_errors_pass_the_gate():
    with pytest.raises(UserError, match="wrong field"):
        anyio.run(checked, Returning(UserError("wrong field")), a_task(), answers("a"))


def test_a_deadline_is_a_status():
    class Slow(Scripted):
        async def score(self, task, responses):
            await anyio.sleep(30)
            return []

    async def main():
        return await checked(Slow("slow", lambda r: 1.0), a_task(), answers("a"), deadline_s=0.05)

    (reward,) = anyio.run(main)
    assert (reward.status, reward.value, reward.reason) == (
        "timeout",
        None,
        "no score within 0.05 s (in a run: rollout.score_timeout_s)",
    )


def test_failed_generations_are_never_scored():
    scorer = Scripted("any", lambda r: 1.0)
    mixed = [broken_generation("x"), *answers("a"), broken_generation("y")]
    rewards = anyio.run(checked, scorer, a_task(), mixed)
    assert statuses(rewards) == ["infra_error", "ok", "infra_error"]
    assert scorer.asked == ["a"]


def test_a_pair_with_a_failed_generation_is_not_judged():
    pair = Scripted("pair", lambda r: 0.0, scope=Scope.PAIR)
    rewards = anyio.run(checked, pair, a_task(), [*answers("a"), broken_generation("x")])
    assert statuses(rewards) == ["infra_error", "infra_error"]
    assert pair.asked == []


def test_all_missing_fields_are_listed_at_once():
    scorer = Weighted(
        [
            Scripted("first", lambda r: 1.0, needs=["anser", "solution"]),
            Scripted("second", lambda r: 1.0, needs=["question", "rubric"]),
        ]
    )
    with pytest.raises(UserError) as caught:
        bind_check(scorer, ["answer", "question"])
    message = str(caught.value)
    assert "lacks 3 field(s)" in message
    assert "reward 'first' needs 'anser'" in message
    assert "'solution'" in message
    assert "reward 'second' needs 'rubric'" in message
    assert "\n" not in message
    bind_check(scorer, ["anser", "solution", "question", "rubric"])


def test_the_field_that_an_anchor_compares_with_is_asked_for_too():
    pair = PairScripted(lambda a, b: 0.0)
    with pytest.raises(UserError, match=r"lacks 1 field.*needs 'reference'"):
        bind_check(Weighted([Anchor(pair, "reference")]), ["answer"])
    bind_check(Anchor(pair, "reference"), ["reference"])


def test_groups_are_scored_concurrently_within_the_limit_and_in_order():
    running, most = 0, 0

    class Slow(Scripted):
        async def score(self, task, responses):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await anyio.sleep(0.01)
            running -= 1
            return await super().score(task, responses)

    items = [(a_task(), [Response(str(n), str(n))]) for n in range(9)]

    async def main():
        return await score_groups(Slow("n", lambda r: float(r.text)), items, limit=3)

    rewards = anyio.run(main)
    assert [values(group) for group in rewards] == [[float(n)] for n in range(9)]
    assert most == 3


def test_a_pair_scorer_wants_two():
    scorer = Scripted("pair", lambda r: 0.0, scope=Scope.PAIR)
    with pytest.raises(UserError, match="got 3 responses"):
        anyio.run(checked, scorer, a_task(), answers("a", "b", "c"))
