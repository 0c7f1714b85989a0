"""Planted biases are found at their size; where there is none, the interval holds 0."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from bench_cases import Planted, pairs
from hypothesis import given, strategies as st

from burnish.bench import statistics
from burnish.bench.edits import CUTS, EDITS, format_marks, padding, word_count
from burnish.bench.probe import (
    Finding,
    Twice,
    ask_edits,
    ask_twice,
    edit_findings,
    logistic,
    pair_findings,
    probe_verdict,
)
from burnish.bench.statistics import signed_estimate
from burnish.records import Reward
from burnish.rewards import from_function
from burnish.seeds import Seeds

PLANTED = {"place slope": 0.9, "length slope": 0.6, "format slope": 0.5}


def probed(judge: Planted, count: int, seed: int) -> dict[str, Finding]:
    asked = anyio.run(ask_twice, judge, pairs(count, seed))
    return {finding.name: finding for finding in pair_findings(asked)}


def covers(finding: Finding, value: float) -> bool:
    assert finding.estimate is not None
    return finding.estimate.low <= value <= finding.estimate.high


@pytest.fixture
def few_draws(monkeypatch):
    """For tests that repeat a probe over many seeds and look at no bootstrapped interval."""
    monkeypatch.setattr(signed_estimate, "plain", partial(signed_estimate.plain, rounds=50))
    monkeypatch.setattr(statistics, "FLIP_ROUNDS", 2000)


@pytest.mark.usefixtures("few_draws")
def test_planted_biases_are_recovered_within_their_intervals():
    """Coverage over seeds: 95 % intervals hold the planted size about as often as they say."""
    seeds = 40
    hits = dict.fromkeys(PLANTED, 0)
    for seed in range(seeds):
        judge = Planted(place=0.9, length=0.6, format=0.5, seed=seed)
        found = probed(judge, 100, seed)
        for name, size in PLANTED.items():
            hits[name] += covers(found[name], size)
        assert found["length slope"].is_bias
    assert all(count >= 34 for count in hits.values()), hits


@pytest.mark.usefixtures("few_draws")
def test_an_unbiased_judge_is_told_so():
    seeds = 40
    names = ("first place", "place slope", "length slope", "format slope")
    hits = dict.fromkeys(names, 0)
    for seed in range(seeds):
        found = probed(Planted(seed=seed), 100, 1000 + seed)
        for name in names:
            hits[name] += not found[name].is_bias
    assert all(count >= 34 for count in hits.values()), hits


def test_a_judge_that_always_takes_the_first_place():
    found = probed(Planted(place=50.0, quality=0.0), 60, 3)
    assert found["flip rate"].estimate is not None
    assert found["flip rate"].estimate.value == 1
    assert found["first place"].estimate is not None
    assert found["first place"].estimate.value == 1
    assert found["first place"].is_bias
    assert found["first place"].reading == "the first place wins +100% more often than it loses"


def test_a_perfect_judge_flips_nothing():
    found = probed(Planted(quality=100.0), 60, 4)
    assert found["flip rate"].estimate is not None
    assert found["flip rate"].estimate.value == 0
    for name in ("first place", "length slope", "format slope"):
        assert covers(found[name], 0.0)


def test_edits_find_a_judge_that_likes_length_and_marks():
    items = pairs(80, 5)

    async def ask(judge: Planted) -> dict[str, Finding]:
        changed = {
            name: await ask_edits(judge, items, EDITS[name]) for name in ("padding", "markdown")
        }
        return {finding.name: finding for finding in edit_findings(changed)}

    biased = anyio.run(ask, Planted(length=6.0, format=3.0))
    assert biased["edit: padding"].is_bias
    assert biased["edit: markdown"].is_bias
    fair = anyio.run(ask, Planted())
    assert covers(fair["edit: padding"], 0.0)


def test_self_preference_is_what_goes_beyond_the_labels():
    """Own answers are right half of the time; the judge names them always: excess 1."""
    asked = []
    for number in range(40):
        label = 1 if number % 2 else -1
        mine = number % 4 < 2
        authors = ("me", "you") if mine else ("you", "me")
        lead = 1.0 if mine else -1.0
        asked.append(Twice(str(number), lead, lead, ("x", "y"), label, authors))
    found = {f.name: f for f in pair_findings(asked, own="me")}["self-preference"]
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(1.0)
    assert found.is_bias
    none = {f.name: f for f in pair_findings(asked, own="nobody")}["self-preference"]
    assert none.estimate is None
    assert "no pair has exactly one response by 'nobody'" in none.reading


def twice(number: int, forward: float, backward: float) -> Twice:
    return Twice(str(number), forward, backward, ("x", "y"))


def first_place(asked: list[Twice]) -> Finding:
    return next(found for found in pair_findings(asked) if found.name == "first place")


def test_one_win_among_ties_is_no_bias():
    ties = [twice(number, 0.0, 0.0) for number in range(1, 20)]
    place = first_place([twice(0, 1.0, -1.0), *ties])
    (edit,) = edit_findings({"padding": [twice(0, -1.0, -1.0), *ties]})
    authors = ("me", "you")
    mine = [Twice(str(n), float(n == 0), float(n == 0), ("x", "y"), 0, authors) for n in range(20)]
    own = pair_findings(mine, own="me")[-1]
    assert own.name == "self-preference"
    for found in (place, edit, own):
        assert found.estimate is not None
        assert found.estimate.value == pytest.approx(0.05)
        assert covers(found, 0.0)
        assert found.is_bias is False
    # Six wins and no loss: 2 of the 64 sign patterns are as far out, p = 1/32.
    assert first_place([*(twice(n, 1.0, -1.0) for n in range(6)), *ties]).is_bias
    assert not first_place([*(twice(n, 1.0, -1.0) for n in range(5)), *ties]).is_bias


def test_findings_of_too_few_pairs_do_not_enter_the_verdict():
    """Nine wins and no loss would have p = 1/256; nine pairs are too few all the same."""
    nine, ten = ([twice(n, -1.0, -1.0) for n in range(count)] for count in (9, 10))
    few = edit_findings({"padding": nine, "praise": nine})
    assert [one.is_bias for one in few] == [None, None]
    assert probe_verdict(few) == "too few to say: fewer than 10 pairs with verdicts"
    mixed = edit_findings({"padding": nine, "praise": ten})
    assert probe_verdict(mixed) == "biased by: edit: praise; too few to say of: edit: padding"
    fair = edit_findings({"praise": [twice(n, 1.0, -1.0) for n in range(10)]})
    assert probe_verdict(fair) == "no bias found"
    assert probe_verdict(edit_findings({"praise": []})) == "nothing could be measured"
    slopes = [one for one in pair_findings(nine) if "slope" in one.name and one.estimate]
    assert slopes
    assert all(one.is_bias is None for one in slopes)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("ties", [0.9, 0.5])
def test_a_fair_judge_with_many_ties_is_flagged_no_more_often_than_5_percent(ties):
    rng = Seeds(0).rng("ties", ties)
    flagged, runs = 0, 100
    for _ in range(runs):
        signs = [0.0 if rng.random() < ties else rng.choice((1.0, -1.0)) for _ in range(20)]
        flagged += bool(
            edit_findings({"x": [twice(n, sign, sign) for n, sign in enumerate(signs)]})[0].is_bias
        )
    assert flagged <= 10, flagged


def test_failures_are_left_out_and_never_counted_as_ties():
    asked = [Twice("1", None, 1.0, ("x", "y")), Twice("2", None, None, ("x", "y"))]
    found = {f.name: f for f in pair_findings(asked)}
    assert found["flip rate"].estimate is None
    assert found["first place"].estimate is None
    assert found["first place"].is_bias is None


def test_a_point_scorer_has_no_place():
    scorer = from_function(lambda text: float(len(text)), "length")
    asked = anyio.run(ask_twice, scorer, pairs(40, 6))
    found = {f.name: f for f in pair_findings(asked)}
    assert found["flip rate"].estimate is not None
    assert found["flip rate"].estimate.value == 0
    assert found["length slope"].is_bias


def test_logistic_against_closed_forms():
    # One column of ones: the log-odds of the share; standard error sqrt(1 / (n p (1 - p))).
    rows, targets = [[1.0]] * 100, [1.0] * 75 + [0.0] * 25
    (found,) = logistic(rows, targets, list(range(100)))
    assert found.value == pytest.approx(1.0986, abs=2e-3)
    assert (found.high - found.low) / (2 * 1.95996) == pytest.approx(0.2309, abs=3e-3)
    # A 2 x 2 table: the slope is the log of the odds ratio (30/10) / (15/45) = 9.
    rows = [[1.0, 1.0]] * 40 + [[1.0, 0.0]] * 60
    targets = [1.0] * 30 + [0.0] * 10 + [1.0] * 15 + [0.0] * 45
    found = logistic(rows, targets, list(range(100)))[1]
    assert found.value == pytest.approx(2.1972, abs=0.02)
    assert logistic([], [], []) == []


def test_logistic_stays_finite_and_unsure_where_data_are_separated():
    (found,) = logistic([[1.0]] * 20, [1.0] * 20, list(range(20)))
    assert 2 < found.value < 20
    assert found.high - found.low > 2


@given(st.text())
def test_edits_are_functions_that_keep_the_words(text):
    for edit in (*EDITS.values(), CUTS["first word"]):
        changed = edit.apply(text)
        assert changed == edit.apply(text)
        if not text.strip():
            assert changed == text


def test_edits_by_hand():
    text = "One is here. Two is there."
    assert word_count(padding(text)) > word_count(text)
    assert EDITS["repetition"].apply(text) == "One is here. Two is there.\n\nTwo is there."
    assert EDITS["bullets"].apply(text) == "- One is here.\n- Two is there."
    assert EDITS["markdown"].apply(text) == "## Answer\n\n**One is here.** Two is there."
    assert CUTS["first word"].apply(text) == "One"
    assert CUTS["empty"].apply(text) == ""
    code = "Use this:\n\n```\nfor x in y. z\n```"
    assert "for x in y. z" in EDITS["bullets"].apply(code)
    assert format_marks("# a\n- b\n1. c\n**d** and **e**\n| f |") == 6
    assert format_marks("plain - text") == 0


def test_rewards_of_both_orders_are_kept():
    (one,) = anyio.run(ask_twice, Planted(), pairs(1))
    assert len(one.rewards) == 2
    assert all(isinstance(reward, Reward) for reward in one.rewards)
