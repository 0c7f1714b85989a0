"""`reward check`: what padding, repetition and their like do to a reward, in numbers."""

from __future__ import annotations

import anyio
import pytest

from burnish.bench.reward_check import Case, Finding, Report, check_reward
from burnish.records import Evidence, Message, Response, Reward, Task
from burnish.rewards import BothOrders, from_function
from burnish.rewards.scorer import Scope, Scorer


def cases(*groups: tuple[str, ...]) -> list[Case]:
    return [
        Case(
            Task(f"t{number}", (Message("user", "q"),), {"answer": "7"}),
            tuple(Response(f"t{number}.{k}", text) for k, text in enumerate(texts)),
        )
        for number, texts in enumerate(groups)
    ]


GROUPS = cases(
    ("It is seven. That follows.", "It is 6."), ("The answer is 7.", "No idea at all. Sorry.")
)


def checked_reward(scorer: Scorer, given: list[Case] = GROUPS) -> Report:
    return anyio.run(check_reward, scorer, given)


def finding(report: Report, name: str) -> Finding:
    return next(one for one in report.findings if one.name == name)


def test_a_reward_by_words_is_raised_by_padding_and_says_so():
    report = checked_reward(from_function(lambda text: len(text.split()) / 100, "words"))
    found = finding(report, "padding")
    assert found.is_bad
    assert found.estimate is not None
    assert found.says == (
        f"padding raises the reward by {found.estimate.value:+.3g} "
        f"[{found.estimate.low:.3g}, {found.estimate.high:.3g}]: a policy will find this; "
        "raised in 4 of 4"
    )
    assert len(found.examples) == 3
    assert found.examples[0].change >= found.examples[1].change > 0
    assert "padding" in report.verdict


def test_one_raise_of_twenty_cannot_be_told_from_nothing():
    """Changes have a sign: the interval of a share, which never goes below 0, is not theirs."""

    def fooled(text: str) -> float:
        return float(text.startswith("t0.") and len(text) > 20)

    given = cases(*((f"t{number}. No.", f"u{number}. No.") for number in range(10)))
    found = finding(checked_reward(from_function(fooled, "fooled"), given), "padding")
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(1 / 20)
    assert found.estimate.low == 0
    assert not found.is_bad
    assert "cannot be told from 0; raised in 1 of 20" in found.says


def test_a_reward_by_content_is_moved_by_nothing():
    report = checked_reward(from_function(lambda text: float("7" in text), "has_seven"))
    for name in ("padding", "repetition", "hedging", "markdown", "bullets", "praise"):
        found = finding(report, name)
        assert found.says == f"{name} never changes the reward"
        assert not found.is_bad
    assert report.verdict == "reward 'has_seven': nothing found that a policy could live on"


def test_range_ties_and_groups_without_variance_by_hand():
    report = checked_reward(from_function(lambda text: float("seven" in text), "word"))
    assert finding(report, "range").says == (
        "0 to 1, mean 0.25, 2 different values; the most common is 0 (75%)"
    )
    assert finding(report, "groups").says.startswith("1 of 2 groups have no variance (50%")
    assert finding(report, "groups").says.endswith("50% of the pairs in a group are ties")


def test_a_constant_reward_and_failures_are_bad():
    constant = checked_reward(from_function(lambda text: 1.0, "one"))
    assert finding(constant, "range").is_bad
    assert finding(constant, "groups").is_bad
    silent = checked_reward(from_function(lambda text: None if "6" in text else 1.0, "some"))
    assert silent.statuses == {"ok": 3, "abstain": 1}
    assert finding(silent, "failures").is_bad
    assert "1 of 4 have no value: 1 abstain" in finding(silent, "failures").says


def test_a_reward_that_raises_is_reported_not_raised():
    def broken(text: str) -> float:
        raise ValueError("no")

    report = checked_reward(from_function(broken, "broken"))
    assert report.statuses == {"reward_error": 4}
    assert finding(report, "range").is_bad
    assert "nothing to compare" in finding(report, "padding").says


def test_cost_is_added_up_from_the_evidence():
    def paid(text: str) -> Reward:
        return Reward("paid", 1.0, evidence=(Evidence("judge", text, cost_usd=0.01),))

    report = checked_reward(from_function(paid, "paid"))
    assert finding(report, "cost").says == "$0.0400 for 4 rewards, $0.010000 each"


def test_group_rewards_see_one_edit_at_a_time():
    def rank(texts: list[str]) -> list[float]:
        order = sorted(texts, key=len)
        return [float(order.index(text)) for text in texts]

    report = checked_reward(from_function(rank, "longest"), cases(("a b c", "a b c d e f")))
    found = finding(report, "padding")
    assert found.estimate is not None
    # Only the shorter one can rise in rank: +1 and 0.
    assert found.estimate.value == pytest.approx(0.5)


class LongerWins:
    name, scope, needs = "longer", Scope.PAIR, frozenset[str]()

    async def score(self, task: Task, responses: list[Response]) -> list[Reward]:
        a, b = (len(r.text) for r in responses)
        value = float((a > b) - (a < b))
        return [Reward(self.name, value), Reward(self.name, -value)]


def test_a_pair_reward_is_asked_about_a_text_and_its_edit():
    report = checked_reward(BothOrders(LongerWins()))
    found = finding(report, "padding")
    assert found.is_bad
    assert found.estimate is not None
    assert found.estimate.value == 1


def test_a_reward_that_pays_for_nothing_is_found():
    """Mostly long answers: an empty one earns 1 each time, the responses 1/4 on average."""
    report = checked_reward(from_function(lambda text: float(len(text) <= 10), "brief"))
    found = finding(report, "empty")
    assert found.is_bad
    assert found.says == (
        "an empty answer earns 1 on average, the responses 0.25: a policy will find this"
    )
    assert finding(report, "first word").is_bad
    assert "look at empty, first word" in report.verdict


@pytest.mark.parametrize(
    ("reward", "is_bad"),
    [
        (lambda text: 1.0, True),  # paid in full, though nothing changes
        (lambda text: 0.0, False),  # no answer was paid, so an empty one is not either
        (lambda text: -1.0 * (len(text) > 10), True),
        (lambda text: float("7" in text), False),
    ],
)
def test_an_empty_answer_may_earn_what_the_worst_earns(reward, is_bad):
    found = finding(checked_reward(from_function(reward, "some")), "empty")
    assert found.is_bad == is_bad


def test_one_group_has_no_interval_and_equal_changes_none_either():
    words = from_function(lambda text: len(text.split()) / 100, "words")
    one = checked_reward(words, cases(("Seven it is.", "No. It is six.")))
    assert "(n = 1 group)" in finding(one, "padding").says
    assert finding(one, "groups").says.startswith("the only group has variance (n = 1)")
    praised = from_function(lambda text: float("accurate" in text), "praised")
    assert finding(checked_reward(praised), "praise").says == (
        "praise raises the reward by +1 (the same in all 4): a policy will find this; "
        "raised in 4 of 4"
    )
