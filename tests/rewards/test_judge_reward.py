"""`kind = "judge"` in a recipe, and any pair scorer as the judge of `versus`."""

import json

import anyio
import msgspec
import pytest
from reward_cases import PairScripted, a_task, answers, score

from burnish.errors import UserError
from burnish.lm.base import Sampling
from burnish.lm.named import LazyLM
from burnish.lm.replay import ScriptedLM
from burnish.records import Evidence, Message, Reward, Status, Task, Visibility
from burnish.rewards import (
    Anchor,
    BothOrders,
    FirstDecisive,
    RewardConfig,
    Scope,
    ScorerJudge,
    VersusReference,
    Weighted,
    build,
    build_all,
    checked,
)
from burnish.rewards.judges import DirectPair, JudgeModel, ListRanking, PointRating, build_judge


def config(**table):
    return msgspec.convert({"kind": "judge", "model": "tiny", **table}, RewardConfig)


def test_a_pair_judge_meets_its_anchor_in_both_orders():
    scorer = build(config(**{"with": "direct", "anchor": "reference"}))
    assert isinstance(scorer, Anchor)
    both = scorer.children[0]
    assert isinstance(both, BothOrders)
    assert both.rule == "votes"
    assert isinstance(both.children[0], DirectPair)
    assert scorer.needs == {"reference"}
    one = build(config(**{"with": "direct", "anchor": "reference", "both_orders": False}))
    assert isinstance(one.children[0], DirectPair)
    strict = build(config(**{"with": "direct", "anchor": "x", "rule": "strict"}))
    assert strict.children[0].rule == "strict"


def test_point_and_list_judges_stand_as_they_are():
    point = build(config(**{"with": "point", "options": {"hi": 5}}))
    assert isinstance(point, PointRating)
    assert point.hi == 5
    assert isinstance(build(config(**{"with": "list"})), ListRanking)


def test_settings_reach_the_judge(tmp_path):
    table = {
        "with": "point", "model": "http://127.0.0.1:9/v1#judge", "temperature": 0.7,
        "max_tokens": 77, "seed": 3, "repairs": 0, "deadline_s": 9.0, "cache": "replies.sqlite",
        "record": "judge.jsonl", "budget": {"calls": 10, "usd": 2.0}, "concurrency": 5,
        "requests_per_minute": 60, "tokens_per_minute": 9000, "prompt_usd": 1.0,
    }  # fmt: skip
    judge = build(config(**table), base=tmp_path).judge
    assert (judge.name, judge.sampling.temperature, judge.sampling.max_tokens) == ("judge", 0.7, 77)
    assert (judge.seed, judge.repairs, judge.deadline_s) == (3, 0, 9.0)
    assert (judge.budget.calls, judge.budget.tokens, judge.budget.usd) == (10, None, 2.0)
    assert judge.cache.path == tmp_path / "replies.sqlite"
    assert judge.record.path == tmp_path / "judge.jsonl"
    limits = judge.lm.pool.limits
    assert (limits.concurrency, limits.requests_per_minute, limits.tokens_per_minute) == (
        5,
        60,
        9000,
    )
    assert judge.lm.prices.prompt_usd == 1.0


def test_a_model_in_this_process_is_not_loaded_before_it_is_asked():
    judge = build(config(**{"with": "point"})).judge
    assert isinstance(judge.lm, LazyLM)
    assert judge.name == "tiny"
    assert judge.lm._lm is None


def test_a_reward_has_the_name_that_the_recipe_gives_it(tmp_path):
    path = tmp_path / "judge.jsonl"
    reply = '{"reasons": "fine", "rating": 10}'
    live = PointRating(JudgeModel(ScriptedLM([reply], name="j"), record=path))
    assert score(live, a_task(), "x")[0].value == 1.0
    table = {"with": "point", "name": "taste", "weight": 2.0, "model": "replay:judge.jsonl"}
    total = build_all([config(**table)], base=tmp_path)
    assert isinstance(total, Weighted)
    reward = score(total, a_task(), "x")[0]
    assert reward.value == 2.0
    assert reward.parts[0].name == "taste"
    assert total.children[0].scope is Scope.POINT


def test_versus_takes_a_judge_by_name():
    table = {"kind": "versus", "judge": {"kind": "judge", "with": "direct", "model": "tiny"}}
    scorer = build(msgspec.convert(table, RewardConfig))
    assert isinstance(scorer, VersusReference)
    assert isinstance(scorer.judge, ScorerJudge)
    assert isinstance(scorer.judge.scorer, DirectPair)
    table["judge"]["anchor"] = "reference"
    with pytest.raises(UserError, match="got anchor 'reference', expected none"):
        build(msgspec.convert(table, RewardConfig))


def test_any_pair_scorer_is_a_judge_of_versus():
    judge = ScorerJudge(PairScripted(lambda a, b: float(len(a) - len(b))))
    scorer = VersusReference(judge, seed=1)
    texts = ["a", "bb", "ccc", "dddd"]
    rewards = score(scorer, a_task(), *texts)
    reference = next(i for i, r in enumerate(rewards) if r.value is None)
    assert [r.value for i, r in enumerate(rewards) if i != reference] == [
        1.0 if i > reference else -1.0 for i in range(4) if i != reference
    ]
    assert isinstance(scorer.fingerprint, str)


def test_the_judge_sees_the_conversation_and_votes_anew():
    lm = ScriptedLM(lambda messages, index: json.dumps({"reasons": "x", "winner": "A"}))
    judge = ScorerJudge(DirectPair(JudgeModel(lm)))
    task = Task("t", (Message("system", "Be brief."), Message("user", "Why?")), {"answer": "LABEL"})
    scorer = VersusReference(judge, seed=0, votes=2)
    anyio.run(checked, scorer, task, answers("one", "two"))
    prompts = [call.prompt[0].content for call in lm.calls]
    assert len(prompts) == 4
    assert len({call.sampling.seed for call in lm.calls}) == 4
    assert all("Be brief." in p and "LABEL" not in p for p in prompts)


def test_failures_oracles_and_words_pass_through():
    class Oracle(PairScripted):
        async def score(self, task, responses):
            seen = (Evidence("key", "looked at the answer", Visibility.ORACLE),)
            return [Reward("o", 1.0, evidence=seen), Reward("o", -1.0, evidence=seen)]

    class Failed(PairScripted):
        async def score(self, task, responses):
            return [Reward.failed("f", Status.TIMEOUT, "too slow")] * 2

    pair = ("Why?", "a", "b")
    oracle = anyio.run(ScorerJudge(Oracle(None)).pair_verdicts, [pair])[0]
    assert (oracle.scores, oracle.visibility) == ((1.0, -1.0), Visibility.ORACLE)
    assert oracle.said == "looked at the answer"
    failed = anyio.run(ScorerJudge(Failed(None)).pair_verdicts, [pair])[0]
    assert (failed.scores, failed.status, failed.reason) == (None, Status.TIMEOUT, "too slow")


@pytest.mark.parametrize("method", ["genrm", "openrs", "direct"])
def test_four_votes_of_versus_are_four_questions_in_each_order(method):
    lm = ScriptedLM(lambda messages, index: "unreadable")
    warm = JudgeModel(lm, sampling=Sampling(temperature=0.6), repairs=0)
    scorer = build_judge(method, warm, both_orders=False)
    versus = VersusReference(ScorerJudge(scorer), seed=0, votes=4)
    score(versus, a_task(), "one", "two")
    asked = [(call.prompt[0].content, call.sampling.seed) for call in lm.calls]
    assert (len(asked), len(set(asked)), len({words for words, _ in asked})) == (8, 8, 2)


class Undecided(PairScripted):
    """A check that cannot tell any two apart, and has no votes."""

    def __init__(self):
        super().__init__(lambda a, b: 0.0)

    async def score(self, task, responses):
        return [Reward.failed("check", Status.ABSTAIN, "equal") for _ in responses]


def test_votes_reach_the_parts_of_a_combination():
    lm = ScriptedLM(lambda messages, index: json.dumps({"reasons": "r", "winner": "A"}))
    pair = DirectPair(JudgeModel(lm, sampling=Sampling(temperature=0.6)))
    for scorer in (FirstDecisive(Undecided(), pair), BothOrders(pair, rule="votes")):
        lm.calls.clear()
        for vote in range(3):
            score(scorer.for_vote(vote), a_task(), "one", "two")
        seeds = {call.sampling.seed for call in lm.calls}
        assert len(seeds) == len(lm.calls) >= 3
        assert scorer.for_vote(1).fingerprint != scorer.fingerprint


def test_votes_of_a_judge_that_repeats_itself_are_refused():
    fixed = PairScripted(lambda a, b: 1.0)
    for scorer in (fixed, BothOrders(fixed), FirstDecisive(fixed)):
        assert VersusReference(ScorerJudge(scorer), seed=0).settings.votes == 1
        with pytest.raises(UserError, match=r"votes is 4, but judge '.*' has no votes"):
            VersusReference(ScorerJudge(scorer), seed=0, votes=4)


def test_the_judge_of_versus_has_rate_limits_too():
    judge = {"kind": "lm", "url": "http://127.0.0.1:9/v1", "model": "m", "requests_per_minute": 7}
    scorer = build(msgspec.convert({"kind": "versus", "judge": judge}, RewardConfig))
    assert scorer.judge.model.lm.pool.limits.requests_per_minute == 7
