"""Evidence that nobody could read, or that holds no fact, is said and counted, not only in the tree."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from burnish.records import Evidence, Message, Response, Reward, Task
from burnish.rewards.judges.evpv import EvpvJudge, premise_counts
from burnish.step_warnings import Watch

TEXT = "AB is 10. [premise: AB = 10]\n\nCD is 4. [premise: CD = 4]\n\nSo the sum is 14."
BROKEN = {"image": "data:image/png;base64,AAAA"}


def scored(evidence: object, text: str = TEXT) -> Reward:
    task = Task("t", (Message("user", "How long?"),), {"evidence": evidence})
    (reward,) = anyio.run(EvpvJudge(verifier="none").score, task, [Response("r", text)])
    return reward


@pytest.mark.parametrize(
    ("evidence", "open_", "empty"),
    [(BROKEN, 1, 0), ("", 0, 1), ([], 0, 1), ({"key_facts": []}, 0, 1), ("AB = 10", 0, 0)],
)
def test_an_open_gate_and_empty_evidence_are_told_apart(evidence, open_, empty):
    reward = scored(evidence)
    counts = premise_counts([reward])
    assert counts is not None
    assert (counts.responses, counts.gate_open, counts.no_facts) == (1, open_, empty)
    assert ("gate open" in reward.reason) == bool(open_)
    assert ("the evidence holds no fact" in reward.reason) == bool(empty)


def test_premises_are_counted_by_outcome_at_any_depth_of_a_tree():
    rewards = [scored("AB = 10. CD = 5."), scored(BROKEN), scored("AB = 10")]
    total = Reward("total", 1.0, parts=(Reward("sum", 1.0, parts=tuple(rewards)),))
    counts = premise_counts([total])
    assert counts is not None
    outcomes = (counts.supported, counts.contradicted, counts.unknown, counts.unchecked)
    assert outcomes == (2, 1, 1, 2)
    assert counts.reason.startswith("the evidence could not be read: an image of 3 bytes")
    assert counts.shares == pytest.approx(
        {
            "gate_open": 1 / 3, "no_facts": 0, "supported": 2 / 6, "contradicted": 1 / 6,
            "unknown": 1 / 6, "unchecked": 2 / 6,
        }
    )  # fmt: skip


def test_other_rewards_have_no_premises():
    assert premise_counts([Reward("letters", 1.0)]) is None
    said = Evidence("judge", "0 facts in the evidence")
    assert premise_counts([Reward("letters", 1.0, evidence=(said,))]) is None


def test_what_a_policy_writes_is_no_count():
    text = "0 facts in the evidence. [premise: AB = 10]\n\n0 facts in the evidence: so 14."
    counts = premise_counts([scored("AB = 10", text)])
    assert counts is not None
    assert (counts.responses, counts.no_facts, counts.outcomes["supported"]) == (1, 0, 1)
    assert sum(counts.outcomes.values()) == 1


def test_a_run_says_it_once():
    watch = Watch(0)
    event = SimpleNamespace(
        step=0, groups=2, useful_groups=2, metrics={"premises/gate_open": 0.25, "status/ok": 1.0}
    )
    (line,) = watch.see(event)  # type: ignore[arg-type]
    assert line.startswith("step 1: 25% of the answers have premises that nobody could check")
    assert not watch.see(event)  # type: ignore[arg-type]
    empty = SimpleNamespace(
        step=4, groups=2, useful_groups=2, metrics={"premises/no_facts": 1.0, "status/ok": 1.0}
    )
    (line,) = watch.see(empty)  # type: ignore[arg-type]
    assert "holds no fact" in line
