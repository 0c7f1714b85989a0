"""Everybody meets everybody: net wins and the Bradley-Terry fit, by hand and where comparisons fail."""

import math

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from reward_cases import a_task, score, statuses, values

from burnish.errors import UserError
from burnish.rewards import RewardConfig, VersusReference, build, fingerprint
from burnish.rewards.versus import NOT_CONNECTED, Tournament, is_connected, versus_metrics


class Judge:
    """An honest judge of whole numbers; pairs in `silent` get no verdict."""

    name = "numbers"
    fingerprint = "numbers"

    def __init__(self, silent=()):
        self.silent = {frozenset(pair) for pair in silent}
        self.calls = []

    async def compare(self, pairs):
        self.calls += pairs
        return [
            None if frozenset((a, b)) in self.silent else (float(a), float(b)) for _, a, b in pairs
        ]


def test_net_wins_by_hand():
    judge = Judge()
    rewards = score(Tournament(judge, seed=1), a_task(), "3", "1", "5", "4")
    assert values(rewards) == [-1 / 3, -1.0, 1.0, 1 / 3]
    assert len(judge.calls) == 12  # six pairs, both orders
    assert len(set(judge.calls)) == 12
    assert "beat s1" in rewards[0].reason
    assert math.fsum(values(rewards)) == 0.0


def test_the_fit_by_hand():
    # Two responses, one win: the likelihood with its prior of 0.1 has slope 0 at the strengths.
    rewards = score(Tournament(Judge(), seed=1, scheme="bradley_terry"), a_task(), "2", "1")
    first, second = values(rewards)
    assert first == -second > 0
    chance = 1 / (1 + math.exp(-2 * first))
    assert 1 - chance + 0.1 * (1 - 2 / (1 + math.exp(-first))) == pytest.approx(0.0, abs=1e-9)
    assert rewards[0].reason == "won 1, lost 0, even in 0 of 1"


def test_the_fit_counts_whom_one_has_beaten():
    # Two wins and a loss each, but over others: net wins are even, strengths are not.
    cycle = {
        ("a", "b"): 1, ("a", "c"): 1, ("b", "c"): 1, ("d", "a"): 1, ("b", "d"): 1, ("c", "d"): 1,
    }  # fmt: skip

    class Table(Judge):
        async def compare(self, pairs):
            return [(1.0, 0.0) if (a, b) in cycle else (0.0, 1.0) for _, a, b in pairs]

    net = values(score(Tournament(Table(), seed=1), a_task(), "a", "b", "c", "d"))
    assert net == pytest.approx([1 / 3, 1 / 3, -1 / 3, -1 / 3])

    # One comparison lost: net wins rest on fewer, the fit still knows how strong the others are.
    class Missing(Table):
        async def compare(self, pairs):
            found = await super().compare(pairs)
            return [
                None if {a, b} == {"a", "d"} else scores
                for (_, a, b), scores in zip(pairs, found, strict=True)
            ]

    rewards = score(
        Tournament(Missing(), seed=1, scheme="bradley_terry"), a_task(), "a", "b", "c", "d"
    )
    strengths = values(rewards)
    assert strengths[0] > strengths[1] > strengths[2] > strengths[3]
    assert math.fsum(strengths) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.randoms())
@pytest.mark.parametrize("scheme", ["round_robin", "bradley_terry"])
def test_a_stronger_response_never_earns_less_and_order_does_not_matter(scheme, qualities, rng):
    texts = [str(quality) for quality in qualities]
    scorer = Tournament(Judge(), seed=3, scheme=scheme)
    found = values(score(scorer, a_task(), *texts))
    for i, one in enumerate(qualities):
        for j, other in enumerate(qualities):
            if one > other:
                assert found[i] > found[j]
            if one == other:
                assert found[i] == pytest.approx(found[j], abs=1e-9)
    shuffled = list(range(len(texts)))
    rng.shuffle(shuffled)
    again = values(score(scorer, a_task(), *(texts[i] for i in shuffled)))
    assert again == pytest.approx([found[i] for i in shuffled], abs=1e-9)


def test_missing_comparisons_leave_and_do_not_count_as_lost():
    judge = Judge(silent=[("5", "1")])
    rewards = score(Tournament(judge, seed=1), a_task(), "5", "3", "1")
    assert values(rewards) == [1.0, 0.0, -1.0]
    rewards = score(Tournament(judge, seed=1, scheme="bradley_terry"), a_task(), "5", "3", "1")
    strengths = values(rewards)
    assert strengths[0] > strengths[1] > strengths[2]


def test_a_response_that_met_nobody_has_no_value_and_the_others_have():
    judge = Judge(silent=[("9", other) for other in "531"])
    for scheme in ("round_robin", "bradley_terry"):
        rewards = score(Tournament(judge, seed=1, scheme=scheme), a_task(), "9", "5", "3", "1")
        assert values(rewards)[0] is None
        assert statuses(rewards)[0] == "abstain"
        assert all(value is not None for value in values(rewards)[1:])


def test_a_group_that_falls_apart_has_no_strengths():
    judge = Judge(silent=[(a, b) for a in "98" for b in "21"])
    rewards = score(Tournament(judge, seed=1, scheme="bradley_terry"), a_task(), "9", "8", "2", "1")
    assert values(rewards) == [None] * 4
    assert statuses(rewards) == ["abstain"] * 4
    assert all(reward.reason.startswith(NOT_CONNECTED) for reward in rewards)
    net = score(Tournament(judge, seed=1), a_task(), "9", "8", "2", "1")
    assert values(net) == [1.0, -1.0, 1.0, -1.0]


@pytest.mark.parametrize("scheme", ["round_robin", "bradley_terry"])
def test_small_groups_and_silent_judges_have_no_number(scheme):
    scorer = Tournament(Judge(silent=[("1", "2")]), seed=1, scheme=scheme)
    assert values(score(scorer, a_task(), "1")) == [None]
    rewards = score(scorer, a_task(), "1", "2")
    assert (values(rewards), statuses(rewards)) == ([None] * 2, ["abstain"] * 2)
    assert values(score(scorer, a_task(), "7", "7")) == [0.0, 0.0]  # the same text, unasked


def test_chains_connect():
    assert is_connected([0, 1, 2], [(0, 1), (1, 2)])
    assert not is_connected([0, 1, 2, 3], [(0, 1), (2, 3)])
    assert not is_connected([0], [])


def test_a_recipe_chooses_the_scheme():
    def made(**table):
        judge = {"kind": "score", "reward": {"kind": "numeric"}}
        return build(msgspec.convert({"kind": "versus", "judge": judge, **table}, RewardConfig))

    assert type(made()) is VersusReference
    net, fit = made(scheme="round_robin", votes=1), made(scheme="bradley_terry")
    assert (net.scheme, fit.scheme) == ("round_robin", "bradley_terry")
    assert fingerprint(net) != fingerprint(fit)
    with pytest.raises(msgspec.ValidationError, match="every response meets all others"):
        made(scheme="round_robin", references=2)


def test_the_figures_of_a_step_hold_for_tournaments_too():
    rewards = score(Tournament(Judge(), seed=1), a_task(), "3", "1", "5")
    found = versus_metrics([rewards])
    assert found["first_position_rate"] == 0.5
    assert found["disagreement_rate"] == 0.0
    assert found["undecided_rate"] == 0.0


@pytest.mark.parametrize("scheme", ["round_robin", "bradley_terry"])
def test_undecided_pairs_are_even_whoever_stands_first(scheme):
    class Even(Judge):
        async def compare(self, pairs):
            return [(1.0, 1.0) for _ in pairs]

    rewards = score(Tournament(Even(), seed=1, scheme=scheme), a_task(), "3", "1", "5", "4")
    assert values(rewards) == pytest.approx([0.0] * 4, abs=1e-9)
    for setting in ({"tie": 0.1}, {"tie": -1.0}, {"inconsistent": -1.0}, {"inconsistent": 0.5}):
        ((key, value),) = setting.items()
        with pytest.raises(UserError, match=f"{key} is {value}.*'{scheme}'.*expected 0") as found:
            Tournament(Even(), seed=1, scheme=scheme, **setting)
        assert "\n" not in str(found.value)
        VersusReference(Even(), seed=1, **setting)  # one response is the reference: sides differ
    Tournament(Even(), seed=1, scheme=scheme, inconsistent="abstain")
