"""The CPU studies of OpenRS: their inputs are what they say, and their effects are there."""

import numpy as np
import pytest
from lab.openrs import orders, pandalm, simulated
from lab.openrs.common import DATA
from lab.openrs.features import FEATURES

from burnish.rewards.judges.openrs import Item, MetaRubric


def need(*names):
    missing = [name for name in names if not (DATA / f"{name}.parquet").is_file()]
    if missing:
        pytest.skip(f"shared data {', '.join(missing)} is not here")


def test_thirty_criteria_of_a_text_by_hand():
    assert len(FEATURES) == 30
    text = "Boil it. Boil it.\n\n- 7 minutes"
    found = {name: f("How do I boil an egg?", text) for name, f in FEATURES.items()}
    assert (found["words"], found["sentences"], found["paragraphs"]) == (5, 2, 2)
    assert found["repeated words"] == pytest.approx(2 / 5)
    assert found["covers the request"] == pytest.approx(1 / 3)
    assert (found["bullets"], found["numbers"], found["ends well"]) == (1, 1, 0)


def test_the_fast_scores_are_those_of_the_function():
    need("pandalm/test", "recorded_judges/pandalm")
    found = pandalm.load(DATA)
    assert len(found.pairs) == 646
    rows = [pair.row for pair in found.pairs[::20]]
    for seed in range(8):
        rubric = pandalm.random_rubric(found.names, 5, seed)
        fast, slow = pandalm.scores(rubric, found, rows), pandalm.slow_scores(rubric, found, rows)
        assert np.allclose(fast, slow)
    labels = [pair.label for pair in found.pairs]
    single = MetaRubric((Item("core", "gpt-3.5-turbo", pandalm.UP),))
    value = pandalm.scores(single, found, range(len(labels)))
    right = sum((v > 0) == (label > 0) for v, label in zip(value, labels, strict=True) if v)
    assert right / len(labels) == pytest.approx(508 / 646)


def test_evolution_beats_the_vote_on_a_split_of_pandalm():
    need("pandalm/test", "recorded_judges/pandalm")
    arms, best = pandalm.one_split(pandalm.load(DATA), seed=0)
    assert best.is_changed
    assert arms["evolved"][0] > arms["vote of the two"][0] > arms["longer wins"][0]
    assert "gpt-3.5-turbo" in [item.title for item in best.rubric.items]


def test_two_orders_of_recorded_judges():
    need("llmbar/test", "recorded_judges/llmbar")
    recorded = orders.load(DATA)
    pairs = recorded["GPT-4", "Vanilla"]
    assert len(pairs) == 290
    labels = [one.label for one in pairs.values()]
    both = [one.orders for one in pairs.values()]
    found = {name: [rule(o, 0.0) for o in both] for name, rule in orders.RULES.items()}
    assert found["reference"] == found["votes"] == found["strict"]  # verdicts know no tie
    two = orders.shares(found["votes"], labels)
    one = orders.shares([orders.one_order(o, 0) for o in both], labels)
    assert two.all < one.all < two.decided
    assert two.ties == round(orders.flipped(both) * 290)


def test_shares_by_hand():
    found = orders.shares([1, -1, 0, None], [1, 1, 1, 1])
    assert found == orders.Shares(0.25, 0.5, pytest.approx(1 / 3), 1, 1)


def test_a_veto_helps_where_a_flaw_is_fatal():
    found = simulated.measured(3000, seed=5)
    number, criteria, veto = found.values()
    assert number[0] < criteria[0] < veto[0]
    assert veto[1] > criteria[1] + 0.1
