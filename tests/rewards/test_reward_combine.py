"""Scorers made of scorers, with worked numbers and failures that stay failures."""

import anyio
import pytest
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace
from reward_cases import PairScripted, Scripted, a_task, answers, score, statuses, values

from burnish.errors import RewardError, StoreError, UserError
from burnish.records import Response, Reward, Status
from burnish.rewards import (
    Anchor,
    BothOrders,
    Cached,
    FirstDecisive,
    Gate,
    Scope,
    Weighted,
    checked,
    fingerprint,
)

LENGTH = Scripted("length", lambda r: float(len(r.text)))


def constant(name, value):
    return Scripted(name, lambda r: value)


def test_the_total_is_the_weighted_sum_and_keeps_its_parts():
    scorer = Weighted([constant("a", 2.0), constant("b", 3.0)], weights={"a": 1.0, "b": -0.5})
    (reward,) = score(scorer, a_task(), "x")
    assert reward.value == 0.5
    assert reward.components == {"a": 2.0, "b": 3.0}
    assert [part.weight for part in reward.parts] == [1.0, -0.5]


def test_a_silent_part_silences_the_total():
    scorer = Weighted([constant("a", 2.0), constant("b", None)])
    (reward,) = score(scorer, a_task(), "x")
    assert (reward.value, reward.status) == (None, "abstain")
    assert reward.reason == "part 'b' has no value: cannot say"
    assert reward.components == {"a": 2.0, "b": None}


def test_a_silent_part_of_weight_zero_does_not_count():
    scorer = Weighted([constant("a", 2.0), constant("b", None)], weights={"b": 0.0})
    assert values(score(scorer, a_task(), "x")) == [2.0]


@given(
    st.lists(st.none() | st.floats(-10, 10), min_size=1, max_size=5),
    st.lists(st.floats(-3, 3), min_size=5, max_size=5),
)
def test_a_total_has_a_value_exactly_where_every_counting_part_has_one(parts, weights):
    scorers = [constant(f"p{i}", value) for i, value in enumerate(parts)]
    table = {f"p{i}": weight for i, weight in zip(range(len(parts)), weights, strict=False)}
    assume(any(table.values()))
    (reward,) = score(Weighted(scorers, weights=table), a_task(), "x")
    counting = [v for v, w in zip(parts, weights, strict=False) if w != 0]
    assert (reward.value is None) == (None in counting)
    if reward.value is not None:
        products = [v * w for v, w in zip(parts, weights, strict=False) if w != 0]
        assert reward.value == pytest.approx(sum(products))


def test_totals_stay_finite():
    huge = Weighted([constant("a", 1e308), constant("b", 1e308)])
    with pytest.raises(RewardError, match="adds up to inf"):
        score(huge, a_task(), "x")


def test_parts_need_different_names():
    with pytest.raises(UserError, match="got parts a, a and"):
        Weighted([constant("a", 1.0), constant("a", 2.0)])


def test_a_gate_asks_only_about_what_passes():
    hard = Scripted("hard", lambda r: None if r.text == "?" else float(r.text != "bad"))
    then = Scripted("then", lambda r: 7.0)
    gate = Gate(hard, then, otherwise=-1.0)
    rewards = score(gate, a_task(), "good", "bad", "?")
    assert values(rewards) == [7.0, -1.0, None]
    assert then.asked == ["good"]
    assert [part.name for part in rewards[0].parts] == ["hard", "then"]
    assert "below 1" in rewards[1].reason
    assert rewards[2].status == "abstain"


def test_a_gate_shows_the_whole_group_to_a_scorer_that_compares():
    hard = Scripted("hard", lambda r: float(r.text != "bad"))
    group = Scripted("group", lambda r: float(len(r.text)), scope=Scope.GROUP)
    rewards = score(Gate(hard, group), a_task(), "good", "bad", "better")
    assert values(rewards) == [4.0, 0.0, 6.0]
    assert group.asked == ["good", "bad", "better"]
    nothing = Scripted("group", lambda r: 1.0, scope=Scope.GROUP)
    assert values(score(Gate(hard, nothing), a_task(), "bad")) == [0.0]
    assert nothing.asked == []


def weighing(weight):
    scorer = constant("heavy", 1.0)
    scorer.weight = weight
    return scorer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gate(weighing(0.5), LENGTH), "'heavy' has scope point and weight 0.5"),
        (lambda: Weighted([LENGTH], weights={"length": 0.0}), "not all 0"),
        (lambda: Weighted([LENGTH], weights={"lenght": 1.0}), "weights for lenght"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)


def test_the_first_decisive_scorer_wins_and_later_ones_see_the_rest():
    first = Scripted("check", lambda r: 1.0 if r.text == "easy" else None)
    second = Scripted("judge", lambda r: 0.5 if r.text == "hard" else None)
    rewards = score(FirstDecisive(first, second), a_task(), "easy", "hard", "odd")
    assert values(rewards) == [1.0, 0.5, None]
    assert second.asked == ["hard", "odd"]
    assert [len(reward.parts) for reward in rewards] == [1, 2, 2]


def test_a_group_scorer_behind_a_check_still_sees_the_group():
    first = Scripted("check", lambda r: 1.0 if r.text == "easy" else None)
    group = Scripted("group", lambda r: 0.5, scope=Scope.GROUP)
    rewards = score(FirstDecisive(first, group), a_task(), "easy", "hard")
    assert values(rewards) == [1.0, 0.5]
    assert group.asked == ["easy", "hard"]


def test_agreeing_orders_give_the_mean():
    judge = PairScripted(lambda a, b: len(a) - len(b) + (0.5 if a > b else 0.0))
    rewards = score(BothOrders(judge), a_task(), "longer", "long")
    assert values(rewards) == [2.25, -2.25]
    assert [part.value for part in rewards[0].parts] == [2.5, 2.0]


def test_disagreeing_orders_abstain():
    rewards = score(BothOrders(PairScripted(lambda a, b: 1.0)), a_task(), "x", "y")
    assert statuses(rewards) == ["abstain", "abstain"]
    assert "disagree: +1 and -1" in rewards[0].reason


@given(st.text(max_size=5), st.text(max_size=5), st.floats(-1, 1))
def test_both_orders_are_antisymmetric_whatever_the_bias(a, b, bias):
    scorer = BothOrders(PairScripted(lambda x, y: (len(x) - len(y)) / 5 + bias))
    one, two = score(scorer, a_task(), a, b)
    swapped = score(scorer, a_task(), b, a)
    if one.value is None:
        assert [two.value, *values(swapped)] == [None, None, None]
    else:
        assert one.value == pytest.approx(-two.value)
        assert one.value == pytest.approx(swapped[1].value)


def test_a_lopsided_pair_scorer_breaks_its_contract():
    class Lopsided(PairScripted):
        async def score(self, task, responses):
            return [Reward("pair", 1.0), Reward("pair", 0.0)]

    with pytest.raises(RewardError, match=r"gave 1\.0 and 0\.0 to samples s0 and s1"):
        score(BothOrders(Lopsided(lambda a, b: 0.0)), a_task(), "x", "y")


def test_an_anchor_makes_pairs_pointwise():
    judge = PairScripted(lambda a, b: float(len(a) - len(b)))
    by_field = Anchor(BothOrders(judge), "reference")
    assert by_field.needs == {"reference"}
    assert by_field.scope is Scope.POINT
    rewards = score(by_field, a_task(reference="four"), "four!", "", "four")
    assert values(rewards) == [1.0, -4.0, 0.0]
    assert rewards[0].evidence[0].visibility == "benchmark"
    (oracle,) = score(Anchor(judge, "answer"), a_task(answer="four"), "five!")
    assert oracle.evidence[0].visibility == "oracle"
    fixed = Anchor(judge, Response("r", "ab"))
    assert values(score(fixed, a_task(), "abc")) == [1.0]
    assert statuses(score(by_field, a_task(), "x")) == ["abstain"]


def test_pairs_do_not_mix_with_points():
    pair = PairScripted(lambda a, b: 0.0)
    with pytest.raises(UserError, match="Anchor"):
        Weighted([pair, LENGTH])
    with pytest.raises(UserError, match="expected a pair scorer"):
        BothOrders(LENGTH)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_cache_asks_once_for_each_text(tmp_path, on_disk):
    scorer = Scripted("length", lambda r: float(len(r.text)))
    cached = Cached(scorer, tmp_path / "cache.db" if on_disk else ":memory:")
    first = score(cached, a_task(q=1), "aa", "b", "aa")
    second = score(cached, a_task(q=1), "b", "aa")
    assert values(first) == [2.0, 1.0, 2.0]
    assert values(second) == [1.0, 2.0]
    assert scorer.asked == ["aa", "b"]
    score(cached, a_task(q=2), "b")
    assert scorer.asked == ["aa", "b", "b"]


def test_a_cache_file_outlives_its_scorer_and_keeps_the_evidence(tmp_path):
    path = tmp_path / "cache.db"
    before = score(Cached(constant("c", 0.25), path), a_task(), "x")
    later = constant("c", 99.0)
    assert score(Cached(later, path), a_task(), "x") == before
    assert later.asked == []
    renamed = constant("other", 99.0)
    assert values(score(Cached(renamed, path), a_task(), "x")) == [99.0]


def test_failures_of_the_moment_are_not_kept():
    moment = [Status.TIMEOUT, Status.INFRA_ERROR, Status.PARSE_ERROR, Status.REFUSED]
    told = iter([*moment, Status.ABSTAIN, Status.OK])

    class Moody(Scripted):
        async def score(self, task, responses):
            status = next(told)
            value = 1.0 if status is Status.OK else None
            return [Reward("moody", value, status) for _ in responses]

    cached = Cached(Moody("moody", lambda r: 1.0))
    seen = [statuses(score(cached, a_task(), "x"))[0] for _ in range(6)]
    assert seen == [*moment, "abstain", "abstain"]


def test_tasks_with_equal_content_are_kept_apart():
    scorer = constant("c", 1.0)
    cached = Cached(scorer)
    score(cached, a_task(), "x")
    score(cached, replace(a_task(), id="task-2"), "x")
    assert scorer.asked == ["x", "x"]


def test_a_cache_that_cannot_be_written_costs_no_score(tmp_path, caplog):
    cached = Cached(constant("c", 0.5), tmp_path / "cache.db")
    cached._table._db.execute("PRAGMA query_only = ON")
    assert values(score(cached, a_task(), "x", "y")) == [0.5, 0.5]
    assert values(score(cached, a_task(), "z")) == [0.5]
    assert [record.getMessage().count("cannot be written") for record in caplog.records] == [1]


def test_a_cached_group_is_kept_whole():
    group = Scripted("g", lambda r: float(len(r.text)), scope=Scope.GROUP)
    cached = Cached(group)
    score(cached, a_task(), "a", "bb")
    assert values(score(cached, a_task(), "a", "bb")) == [1.0, 2.0]
    score(cached, a_task(), "bb", "a")
    assert group.asked == ["a", "bb", "bb", "a"]


def test_a_cache_needs_an_identity_and_a_readable_file(tmp_path):
    nameless = constant("n", 1.0)
    del nameless.fingerprint
    with pytest.raises(UserError, match="no fingerprint"):
        Cached(nameless)
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is not a database, not at all" * 100)
    with pytest.raises(StoreError, match=r"broken\.db"):
        Cached(constant("n", 1.0), broken)


def test_fingerprints_follow_parts_and_settings():
    a, b = constant("a", 1.0), constant("b", 1.0)
    prints = [
        fingerprint(scorer)
        for scorer in (
            Gate(a, b), Gate(b, a), Gate(a, b, threshold=0.5), Weighted([a, b]),
        )
    ]  # fmt: skip
    assert len(set(prints)) == len(prints)
    assert fingerprint(Gate(a, b)) == prints[0]


def test_nested_combinations_explain_themselves():
    tree = Weighted([Gate(constant("format", 1.0), LENGTH), constant("style", 0.5)])
    (reward,) = anyio.run(checked, tree, a_task(), answers("abc"))
    assert reward.value == 3.5
    assert [part.name for part in reward.parts[0].parts] == ["format", "length"]
