"""Rates, hedges and retries of a judge, counted at the server; orders that disagree abstain."""

import json

import msgspec
import pytest
from hostile_server import HostileServer, ok, slow, status
from reward_cases import PairScripted, a_task, score

from burnish.errors import ArgumentError, UserError
from burnish.lm.replay import ScriptedLM
from burnish.records import Status
from burnish.rewards import BothOrders, RewardConfig, VersusReference, build
from burnish.rewards.judges import JudgeModel, build_judge
from burnish.rewards.pairs import vote

RATING = '{"reasons": "fine", "rating": 5}'


def point(server, **table):
    given = {"kind": "judge", "with": "point", "model": f"{server.url}#m", **table}
    return build(msgspec.convert(given, RewardConfig))


def counted(rewards):
    return [reward.status for reward in rewards]


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_are_the_further_requests_that_are_sent(retries):
    with HostileServer([status(500)]) as server:
        (reward,) = score(point(server, retries=retries, structured="off"), a_task(), "one")
    assert reward.status is Status.INFRA_ERROR
    assert len(server.requests) == 1 + retries


@pytest.mark.parametrize("hedge", [None, 0.1])
def test_a_slow_request_is_sent_a_second_time_where_hedging_is_on(hedge):
    with HostileServer([slow(1.5, ok(RATING)), ok(RATING)]) as server:
        table = {} if hedge is None else {"hedge_after_s": hedge}
        (reward,) = score(point(server, **table), a_task(), "one")
    assert reward.value is not None, reward
    assert len(server.requests) == (1 if hedge is None else 2), reward


def test_no_more_requests_a_minute_are_sent_than_allowed():
    with HostileServer([ok(RATING)]) as server:
        rewards = score(
            point(server, requests_per_minute=2, deadline_s=1.0), a_task(), "a", "b", "c", "d"
        )
    assert len(server.requests) == 2
    assert sorted(counted(rewards)) == ["ok", "ok", "timeout", "timeout"]


def test_no_more_tokens_a_minute_are_sent_than_allowed():
    with HostileServer([slow(4, ok(RATING))]) as server:
        # One request holds back its prompt and 1000 tokens until it is answered.
        rewards = score(
            point(server, tokens_per_minute=1500, max_tokens=1000, deadline_s=2.0), a_task(), "a",
            "b",
        )  # fmt: skip
    assert len(server.requests) == 1
    assert counted(rewards) == ["timeout", "timeout"]


@pytest.mark.parametrize("kind", ["judge", "lm"])
def test_the_judge_of_versus_has_all_four_limits(kind):
    own = {"with": "direct", "model": "http://127.0.0.1:9/v1#m"}
    own = own if kind == "judge" else {"url": "http://127.0.0.1:9/v1", "model": "m"}
    limits = {
        "requests_per_minute": 3.0, "tokens_per_minute": 4000.0, "retries": 1, "hedge_after_s": 2.0,
    }  # fmt: skip
    table = {"kind": "versus", "judge": {"kind": kind, **own, **limits}}
    judge = build(msgspec.convert(table, RewardConfig)).judge
    lm = judge.scorer.judge.lm if kind == "judge" else judge.model.lm
    assert {name: getattr(lm.pool.limits, name) for name in limits} == limits


# --- orders that disagree


def pairwise(forward, backward, rule):
    """A pair whose first response is worth `forward` when shown first, `backward` when second."""
    scorer = PairScripted(lambda a, b: forward if a == "one" else -backward)
    return score(BothOrders(scorer, rule=rule), a_task(), "one", "two")


@pytest.mark.parametrize(
    ("forward", "backward", "value"),
    [(1, 1, 1.0), (-1, -1, -1.0), (0, 0, 0.0), (1, -1, None), (-1, 1, None), (1, 0, None)],
)
def test_the_rule_abstain_has_a_value_only_where_both_orders_say_the_same(forward, backward, value):
    first, second = pairwise(forward, backward, "abstain")
    assert (first.value, second.value) == (value, None if value is None else 0.0 - value)
    assert first.status is (Status.ABSTAIN if value is None else Status.OK)
    if value is None:
        assert "the orders disagree" in first.reason


def test_other_rules_still_make_a_tie_of_it():
    assert [reward.value for reward in pairwise(1, -1, "votes")] == [0.0, 0.0]
    assert [reward.value for reward in pairwise(1, -1, "strict")] == [0.0, 0.0]


def test_votes_may_abstain_where_they_are_inconsistent():
    assert vote([1, -1], "unanimous", "abstain") is None
    assert vote([1, -1], "majority", "abstain") is None
    assert vote([1, 1, -1], "majority", "abstain") == 1.0
    assert vote([1, 1], "unanimous", "abstain") == 1.0
    with pytest.raises(ArgumentError, match="or "):
        vote([1, -1], "unanimous", "abstains")


class FirstPlace:
    """A judge that always likes what it is shown first."""

    name = "first place"

    async def compare(self, pairs):
        return [(1.0, 0.0) for _ in pairs]


def test_versus_leaves_out_pairs_whose_orders_disagree():
    even = score(VersusReference(FirstPlace(), seed=1), a_task(), "a", "b", "c")
    assert sorted(reward.value for reward in even if reward.value is not None) == [0.0, 0.0]
    silent = VersusReference(FirstPlace(), seed=1, inconsistent="abstain")
    rewards = score(silent, a_task(), "a", "b", "c")
    assert [reward.value for reward in rewards] == [None] * 3
    assert {reward.status for reward in rewards} == {Status.ABSTAIN}
    assert sum("different winners" in reward.reason for reward in rewards) == 2
    with pytest.raises(UserError, match="inconsistent: got 'never'"):
        VersusReference(FirstPlace(), seed=1, inconsistent="never")


def test_a_recipe_and_every_judge_by_name_can_abstain():
    table = {"kind": "versus", "inconsistent": "abstain", "judge": {"kind": "score"}}
    table["judge"]["reward"] = {"kind": "numeric"}
    assert build(msgspec.convert(table, RewardConfig)).settings.inconsistent == "abstain"
    verdicts = ScriptedLM([json.dumps({"reasons": "first", "winner": "A"})] * 2)
    scorer = build_judge("direct", JudgeModel(verdicts), rule="abstain")
    assert [r.status for r in score(scorer, a_task(), "x", "y")] == [Status.ABSTAIN] * 2
    told = "Principle 1 (100%): clear\nVerdict 1: 8, 2 | x\n<scores>8, 2</scores>"
    genrm = build_judge("genrm", JudgeModel(ScriptedLM([told] * 2)), rule="abstain")
    rewards = score(genrm, a_task(), "x", "y")
    assert [(r.value, r.status) for r in rewards] == [(None, Status.ABSTAIN)] * 2
    assert "different winners" in rewards[0].reason
