"""Read-outs of Skill-RM: caps, counts and tiers, by worked numbers and properties."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, strategies as st

from burnish.records import Verdict
from burnish.rewards.judges.skill_rm import CAPS, Finding, Item, Tier, capped_score, decide_pair
from burnish.rewards.judges.skill_rm.readout import Count, decide_point, pair_items, tier_of
from burnish.rewards.judges.skill_rm.verifiers import Impact, Resource

items = st.builds(
    Item, st.sampled_from(Tier), st.sampled_from(["a", "b"]), st.sampled_from([-1, 0, 1])
)


def a_resource(**more: object) -> Resource:
    fields = {
        "id": "v", "type": "verifier", "implementation_kind": "reference_match",
        "leakage_level": "oracle_only", "allowed_setting": "skill_operational",
        "decision_impact": "strong", "hard_or_soft": "hard",
    }  # fmt: skip
    return Resource(**(fields | more))  # type: ignore[arg-type]


def a_finding(
    value: float | None, *, verdicts: tuple[Verdict, ...] = (), **more: object
) -> Finding:
    return Finding(
        entry=a_resource(**more), decision="satisfied", observation="seen", values=(value,),
        verdicts=(verdicts,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("satisfied", "total", "flags", "value"),
    [
        (3, 4, (), 0.75), (4, 4, (), 1.0), (0, 0, (), 1.0), (4, 4, ("wrong_task",), 0.25),
        (4, 4, ("unjustified_refusal",), 0.25), (4, 4, ("missing_deliverable",), 0.50),
        (4, 4, ("invalid_structure",), 0.55), (4, 4, ("polluted_answer",), 0.60),
        (4, 4, ("several_major_failures",), 0.60), (4, 4, ("wrong_language",), 0.65),
        (4, 4, ("wrong_language", "missing_deliverable"), 0.50), (1, 4, ("wrong_language",), 0.25),
        (None, 4, (), None), (-1, 4, (), None),
    ],
)  # fmt: skip
def test_counts_and_caps(satisfied, total, flags, value):
    assert capped_score(satisfied, total, flags) == value


@given(st.integers(0, 9), st.integers(0, 9), st.lists(st.sampled_from(sorted(CAPS)), max_size=4))
def test_a_flag_never_raises_a_score(satisfied, total, flags):
    bare = capped_score(satisfied, total)
    capped = capped_score(satisfied, total, flags)
    assert bare is not None
    assert capped is not None
    assert 0 <= capped <= bare <= 1
    assert capped_score(satisfied, total, flags, vetoed=True) == 0


def test_a_hard_finding_outranks_opinion_and_the_conflict_is_told():
    found = decide_pair([Item(Tier.HARD, "v", 1), Item(Tier.OPINION, "verdict", -1)])
    assert (found.side, found.tier) == (1, Tier.HARD)
    assert found.conflicts == ("opinion evidence says otherwise",)


def test_a_tier_that_contradicts_itself_leaves_the_word_to_the_next():
    torn = [Item(Tier.HARD, "v", 1), Item(Tier.HARD, "w", -1)]
    assert decide_pair([*torn, Item(Tier.PIPELINE, "p", -1)])[:2] == (-1, Tier.PIPELINE)
    assert decide_pair([*torn, Item(Tier.OPINION, "verdict", 0)]).side == 0
    assert decide_pair([]).side == 0


@given(st.lists(items, max_size=8))
def test_exchanging_the_responses_exchanges_the_decision(evidence):
    other = [item._replace(side=-item.side) for item in evidence]
    here, there = decide_pair(evidence), decide_pair(other)
    assert there.side == -here.side
    assert there.tier == here.tier


@given(st.lists(items, max_size=8), st.permutations(range(8)))
def test_the_order_of_the_evidence_does_not_matter(evidence, order):
    shuffled = [evidence[i] for i in order if i < len(evidence)]
    assert decide_pair(shuffled) == decide_pair(evidence)


def test_tiers_of_resources():
    assert tier_of(a_resource()) is Tier.HARD
    assert tier_of(a_resource(subtype="pipeline")) is Tier.PIPELINE
    assert tier_of(a_resource(hard_or_soft="soft")) is Tier.RUBRIC


def test_a_verifier_replaces_what_the_judge_says_about_it():
    counts = [Count("says 4", True, "looks fine", "v"), Count("polite", False)]
    found = decide_point([a_finding(0.0)], counts, ())
    assert (found.satisfied, found.total, found.value) == (0, 2, 0.0)
    assert [verdict.criterion for verdict in found.verdicts] == ["v", "polite"]


def test_single_criteria_of_a_verifier_count_one_by_one():
    verdicts = (Verdict("a", 1.0), Verdict("b", 0.0), Verdict("c", 1.0))
    found = decide_point([a_finding(2 / 3, verdicts=verdicts)], [Count("d", True)], ())
    assert (found.satisfied, found.total, found.value) == (3, 4, 0.75)


def test_a_violated_verifier_raises_its_flag_and_may_veto():
    flagged = a_finding(0.0, options={"flag": "wrong_language"})
    met = [Count(str(i), True) for i in range(9)]
    assert decide_point([flagged], met, ()).value == 0.65
    assert decide_point([a_finding(1.0, options={"flag": "wrong_language"})], met, ()).value == 1
    vetoed = decide_point([a_finding(0.0, decision_impact="veto")], met, ())
    assert (vetoed.value, vetoed.vetoed) == (0.0, "v")


def test_a_verifier_without_a_value_says_nothing():
    found = decide_point([a_finding(None)], [Count("a", True, resource="v")], ())
    assert (found.value, found.total) == (1.0, 1)


def a_comparison(*values: float | None, decision: str = "inconclusive", **more: object) -> Finding:
    return Finding(entry=a_resource(**more), decision=decision, observation="seen", values=values)


def a_veto(*values: float | None, decision: str = "inconclusive", **more: object) -> Finding:
    return a_comparison(*values, decision=decision, decision_impact="veto", **more)


@pytest.mark.parametrize("hardness", ["hard", "soft"])
def test_a_response_that_fails_a_veto_cannot_beat_one_that_does_not(hardness):
    veto = a_veto(0.5, 1.0, decision="B", hard_or_soft=hardness)
    better = a_comparison(1.0, 0.0, decision="A", id="w")
    found = decide_pair([*pair_items([better, veto]), Item(Tier.OPINION, "verdict", 1)])
    assert (found.side, found.tier) == (-1, Tier.VETO)
    assert found.conflicts == ("hard evidence says otherwise", "opinion evidence says otherwise")


def test_where_both_fail_a_veto_or_none_does_neither_wins_by_it():
    opinion = Item(Tier.OPINION, "verdict", 1)
    for veto in (
        [a_veto(0.2, 0.8, decision="B")],
        [a_veto(0.0, 0.0)],
        [a_veto(1.0, 1.0)],
        [a_veto(1.0, 0.0, decision="A"), a_veto(0.0, 1.0, decision="B", id="w")],
    ):
        assert decide_pair([*pair_items(veto), opinion])[:2] == (1, Tier.OPINION)
        assert decide_pair(pair_items(veto)).side == 0
    # What cannot be told of A is no failure of A.
    assert decide_pair(pair_items([a_veto(None, 0.0)]))[:2] == (1, Tier.VETO)


values = st.sampled_from([None, 0.0, 0.5, 1.0])


@given(st.lists(st.tuples(values, values, st.sampled_from(get_args(Impact))), max_size=5))
def test_vetoes_are_antisymmetric(rows):
    def side(swap: bool) -> int:
        findings = []
        for first, second, impact in rows:
            pair = (second, first) if swap else (first, second)
            lead = 0.0 if None in pair else (pair[0] or 0.0) - (pair[1] or 0.0)
            decision = "A" if lead > 0 else "B" if lead < 0 else "inconclusive"
            findings.append(a_comparison(*pair, decision=decision, decision_impact=impact))
        return decide_pair(pair_items(findings)).side

    assert side(True) == -side(False)
    vetoes = [row[:2] for row in rows if row[2] == "veto"]
    failed = [any(v is not None and v < 1 for v in column) for column in zip(*vetoes, strict=True)]
    if vetoes and failed[0] != failed[1]:
        assert side(False) == (-1 if failed[0] else 1)


def test_unavailable_is_no_item():
    finding = Finding(entry=a_resource(), decision="unavailable", observation="", error="down")
    assert pair_items([finding]) == []
