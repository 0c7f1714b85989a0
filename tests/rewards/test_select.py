"""Best of N and Bradley-Terry fits, with ties and silent judges."""

import math
import random

import anyio
import pytest
from hypothesis import given, strategies as st
from reward_cases import PairScripted, Scripted, a_task, answers

from burnish.errors import UserError
from burnish.records import Reward, Status
from burnish.rewards import Scope, best_of_n, bradley_terry, sequential_knockout
from burnish.rewards.select import Match

ORACLE = PairScripted(lambda a, b: float(len(a) > len(b)) - float(len(a) < len(b)))


def select(scorer, *texts, **options):
    async def run():
        return await best_of_n(scorer, a_task(), answers(*texts), **options)

    return anyio.run(run)


class Silent:
    """A pair scorer that never has a verdict about a text with a question mark."""

    name, fingerprint, needs, scope = "silent", "silent", frozenset(), Scope.PAIR

    async def score(self, task, responses):
        if any("?" in r.text for r in responses):
            return [Reward.failed("silent", Status.PARSE_ERROR, "unreadable")] * 2
        value = float(len(responses[0].text) - len(responses[1].text))
        return [Reward("silent", value), Reward("silent", -value)]


@given(st.permutations(range(1, 7)), st.integers(0, 5))
def test_an_oracle_finds_the_best_in_any_order(sizes, seed):
    texts = ["x" * n for n in sizes]
    found = select(ORACLE, *texts, seed=seed)
    assert sizes[found.index] == 6
    assert found.best == (found.index,)
    assert found.calls == len(found.matches) == 5
    assert found.flags == ()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.randoms())
def test_a_knockout_over_known_qualities_ends_at_a_maximum(quality, rng):
    order = list(range(len(quality)))
    rng.shuffle(order)
    found = sequential_knockout(order, quality)
    assert quality[found.winner] == max(quality)
    assert found.calls == len(quality) - 1
    best = [i for i in order if quality[i] == max(quality)]
    assert found.winner == best[0]
    assert sequential_knockout(order, quality, "challenger").winner == best[-1]


def test_a_knockout_skips_what_has_no_quality_and_refuses_nonsense():
    assert sequential_knockout([0, 1, 2], [0.2, None, 0.1]).winner == 0
    assert sequential_knockout([3], {3: 1.0}) == (3, 0)
    with pytest.raises(UserError, match="order: got"):
        sequential_knockout([], [])


def test_one_response_and_equal_ones_make_no_call():
    scorer = PairScripted(lambda a, b: 1 / 0)
    assert select(scorer, "x").calls == 0
    same = select(scorer, "x", "x", "x")
    assert (same.index, same.best, same.calls) == (0, (0, 1, 2), 0)
    assert same.flags == ("all 3 responses are the same text",)


def test_the_incumbent_stays_on_ties_and_silence_and_it_is_flagged():
    tie = PairScripted(lambda a, b: 0.0)
    found = select(tie, "a", "b", "c", seed=4)
    assert all(found.index in (m.first, m.second) for m in found.matches)
    assert found.flags == ("2 of 2 matches are ties",)
    silent = select(Silent(), "a?", "b?", "c?")
    assert all(silent.index in (m.first, m.second) for m in silent.matches)
    assert "2 of 2 matches have no verdict, the incumbent stayed: unreadable" in silent.flags


def test_a_knockout_does_not_always_show_the_incumbent_first():
    places = set()
    for seed in range(20):
        found = select(ORACLE, "aaa", "b", "cc", seed=seed)
        second = found.matches[1]
        before = {found.matches[0].first, found.matches[0].second}
        places.add(second.first in before)
    assert places == {True, False}


def test_point_and_list_scorers_score_all_at_once():
    scorer = Scripted("length", lambda r: float(len(r.text)))
    found = select(scorer, "a", "ccc", "bbb")
    assert (found.index, found.best, found.calls) == (1, (1, 2), 3)
    assert found.flags == ("2 responses share the best score",)
    part = Scripted("part", lambda r: None if "?" in r.text else 1.0)
    found = select(part, "a?", "b")
    assert (found.index, found.scores) == (1, (None, 1.0))
    assert "1 of 2 have no score: cannot say" in found.flags
    nobody = select(Scripted("none", lambda r: None), "a", "b")
    assert nobody.best == ()


def test_two_players_by_hand():
    # 3 wins of 4 and a prior of p: sigma(s_0 - s_1) solves
    # 3 - 4 sigma(2s) + p - 2 p sigma(s) = 0 with s_1 = -s_0.
    matches = [Match(0, 1, 1.0)] * 3 + [Match(1, 0, 1.0)]
    strong, weak = bradley_terry(2, matches, prior=1e-9)
    assert strong - weak == pytest.approx(math.log(3), abs=1e-6)
    s = bradley_terry(2, matches, prior=0.5)[0]

    def sigma(x):
        return 1 / (1 + math.exp(-x))

    assert 3 - 4 * sigma(2 * s) + 0.5 - 2 * 0.5 * sigma(s) == pytest.approx(0, abs=1e-9)


def test_planted_strengths_are_found():
    rng = random.Random(0)
    true = [-1.5, -0.5, 0.0, 0.5, 1.5]
    matches = []
    for _ in range(4000):
        a, b = rng.sample(range(5), 2)
        won = rng.random() < 1 / (1 + math.exp(true[b] - true[a]))
        matches.append(Match(a, b, 1.0 if won else -1.0))
    assert bradley_terry(5, matches) == pytest.approx(true, abs=0.15)


pairs = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([-1.0, 0.0, 1.0, None])),
    max_size=40,
).map(lambda rows: [Match(a, b, v) for a, b, v in rows if a != b])


@given(pairs)
def test_fits_are_finite_centred_and_turn_with_the_matches(matches):
    fit = bradley_terry(5, matches)
    assert all(map(math.isfinite, fit))
    assert sum(fit) == pytest.approx(0, abs=1e-9)
    turned = [m._replace(value=None if m.value is None else -m.value) for m in matches]
    assert bradley_terry(5, turned) == pytest.approx([-s for s in fit], abs=1e-6)
    shown_otherwise = [
        Match(m.second, m.first, None if m.value is None else -m.value) for m in matches
    ]
    assert bradley_terry(5, shown_otherwise) == pytest.approx(fit, abs=1e-9)


def test_an_unbeaten_candidate_stays_finite_and_a_prior_of_nothing_is_refused():
    fit = bradley_terry(2, [Match(0, 1, 1.0)] * 1000)
    assert fit[0] > fit[1]
    assert fit[0] < 20
    with pytest.raises(UserError, match="prior"):
        bradley_terry(2, [], prior=0.0)
