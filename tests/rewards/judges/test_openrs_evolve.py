"""Rubrics that improve: what is believed, what is found, and what a person decides."""

import json
import random
from typing import NamedTuple

import anyio
import msgspec
import pytest
from hypothesis import given, strategies as st
from openrs_cases import answer, compare, judge, mark_in, reply, shown, task

from burnish.errors import JudgeError, UserError
from burnish.rewards.judges.openrs import (
    Change,
    Item,
    MetaRubric,
    Preference,
    RubricEvolution,
    Search,
    apply_review,
    asymmetric_advantages,
    evolve_rubric,
    judge_of,
    random_edits,
    read_review,
    refiner,
    write_review,
)
from burnish.rewards.judges.openrs.evolve import (
    Failure,
    mark_of_score,
    marked_in_both,
    paired_gain,
    read_edits,
    sign_test,
)
from burnish.rewards.judges.prompting import Unreadable
from burnish.seeds import derive

START = MetaRubric((Item("core", "fit", "Fits the request."),))
USEFUL = Item("core", "proof", "Shows a proof.")
POOL = [USEFUL, *(Item("important", f"noise {i}", "Nothing.") for i in range(12))]


class Case(NamedTuple):
    id: str
    label: int


def cases(prefix, count, seed=0):
    rng = random.Random(derive(seed, prefix))
    return [Case(f"{prefix}{i}", rng.choice((-1, 1))) for i in range(count)]


def right(key, share, *parts):
    """True in a fixed share of the cases that a key names."""
    return random.Random(derive(*parts, key)).random() < share


def deaf(share=0.7):
    """A judge that does not look at the rubric at all."""

    async def score(rubric, pairs):
        return [pair.label * (1 if right(pair.id, share) else -1) for pair in pairs]

    return score


def noisy(seed, share=0.7):
    """A judge for whom the rubric's wording is only a source of chance."""

    async def score(rubric, pairs):
        return [
            pair.label * (1 if right(pair.id, share, seed, rubric.hash) else -1) for pair in pairs
        ]

    return score


async def heedful(rubric, pairs):
    """Right more often under a rubric that holds the useful item."""
    share = 0.85 if USEFUL.title in [item.title for item in rubric.items] else 0.65
    return [pair.label * (1 if right(pair.id, share) else -1) for pair in pairs]


def evolve(judge, seed=0, dev=120, choice=120, start=START, propose=None, **search):
    async def run():
        return await evolve_rubric(
            start, cases("d", dev, seed), cases("c", choice, seed), judge=judge,
            propose=propose or random_edits(POOL, 6), search=Search(**search), seed=seed,
        )  # fmt: skip

    return anyio.run(run)


def test_marks_gains_and_the_sign_test_by_hand():
    assert [mark_of_score(s, 1) for s in (2.0, -0.1, 0.0)] == [1, 0, 0.5]
    assert [mark_of_score(s, 1) for s in (None, float("nan"))] == [None, None]
    assert marked_in_both([1, None, 0, 0.5], [0, 1, None, 1]) == ([1, 0.5], [0, 1])
    gain, error = paired_gain([0, 0, 1, 1], [1, 1, 1, 0])
    assert gain == 0.25
    assert error == pytest.approx((2.75 / 3 / 4) ** 0.5)
    assert sign_test([0, 0, 0, 1, 1], [1, 1, 1, 0, 1]) == 5 / 16
    assert sign_test([1, 0], [1, 0]) == 1


def test_the_asymmetric_advantage_learns_nothing_from_the_least_bad():
    assert asymmetric_advantages([0.5, 0.6], 0.7) == [0, 0]
    found = asymmetric_advantages([0.8, 0.6, 0.4], 0.5)
    assert found == pytest.approx([0.2, 0.0, -0.02])
    assert asymmetric_advantages([], 1.0) == []


@given(st.lists(st.floats(0, 1), min_size=1), st.floats(0, 1))
def test_no_advantage_where_every_edit_is_worse(rewards, parent):
    found = asymmetric_advantages(rewards, parent)
    if max(rewards) <= parent:
        assert found == [0] * len(rewards)
    assert all(a <= 0 for a, r in zip(found, rewards, strict=True) if r <= parent)


def test_a_deaf_judge_accepts_nothing_in_200_runs():
    for seed in range(200):
        result = evolve(deaf(), seed, dev=30, choice=30, generations=2, beam=2, proposals=4)
        assert not result.is_changed
        assert not any(step.accepted for step in result.log)


def test_a_judge_of_pure_chance_changes_the_rubric_no_more_often_than_the_level():
    changed = 0
    for seed in range(80):
        result = evolve(noisy(seed), seed, dev=40, choice=60, generations=2, beam=2, proposals=4)
        changed += result.is_changed
    # 80 runs at the level 0.05: more than 8 would happen in 1 of 50.
    assert changed <= 8


def outage(judge, share, when):
    """The judge with no verdict on a share of the pairs while `when(rubric)` holds."""

    async def score(rubric, pairs):
        scores = await judge(rubric, pairs)
        if not when(rubric):
            return scores
        return [
            None if right(pair.id, share, "outage") else s
            for pair, s in zip(pairs, scores, strict=True)
        ]

    return score


def is_start(rubric):
    return rubric.hash == START.hash


def test_an_outage_under_one_rubric_is_no_gain_for_another():
    """The judge ignores the rubric; only its failures differ, and they are no marks."""
    for seed in range(20):
        for when in (is_start, lambda rubric: not is_start(rubric)):
            result = evolve(outage(deaf(), 0.15, when), seed, generations=2)
            assert not result.is_changed
            assert not any(step.accepted for step in result.log)
            assert all(step.gain == 0 for step in result.log)
            assert max(step.left_out for step in result.log) > 5
    assert "pairs without a verdict left out" in result.report()
    assert f"{result.missing} verdicts missing" in result.report()


def test_a_planted_item_is_found_in_spite_of_some_failures():
    propose = random_edits(POOL, 16)
    judge = outage(heedful, 0.1, lambda rubric: True)
    result = evolve(judge, 0, dev=250, choice=250, propose=propose, proposals=16)
    assert USEFUL in result.rubric.items
    assert result.finals[0].left_out > 10
    assert msgspec.json.decode(msgspec.json.encode(result), type=RubricEvolution) == result


def test_too_many_failures_stop_the_search_in_one_line():
    with pytest.raises(JudgeError, match=r"no verdict on \d+ of 120 pairs .*at most 20%") as caught:
        evolve(outage(deaf(), 0.4, is_start), generations=1)
    assert "\n" not in str(caught.value)


def test_pairs_on_which_the_judge_failed_are_not_shown_as_mistakes():
    async def propose(rubric, failures, rng):
        assert failures
        assert all(failure.score is not None for failure in failures)
        return []

    evolve(outage(deaf(), 0.15, is_start), propose=propose, generations=1)


def planted(seed):
    propose = random_edits(POOL, 16)
    return evolve(heedful, seed, dev=250, choice=250, propose=propose, proposals=16)


def test_a_planted_item_is_found():
    found = [planted(seed) for seed in range(5)]
    assert all(USEFUL in result.rubric.items for result in found)
    result = found[0]
    assert START.diff(result.rubric)[0].kind == "add"
    assert "+ [core] proof: Shows a proof." in result.report()
    decoded = msgspec.json.decode(msgspec.json.encode(result), type=RubricEvolution)
    assert decoded == result
    assert planted(0) == result


def test_an_edit_that_does_not_fit_is_in_the_log():
    async def propose(rubric, failures, rng):
        assert all(isinstance(failure, Failure) for failure in failures)
        return [Change("delete", USEFUL)]

    result = evolve(deaf(), propose=propose, generations=1)
    assert "no item 'proof'" in result.log[0].reason


async def _run(dev, choice, search):
    return await evolve_rubric(
        START, dev, choice, judge=deaf(), propose=random_edits(POOL), search=Search(**search)
    )


def preference(number, label=1):
    return Preference(
        f"p{number}", task(f"Request {number}"), answer(f"with proof {number}"),
        answer(f"without {number}"), label, "logic",
    )  # fmt: skip


def test_a_refiner_reads_failures_and_its_edits_are_read():
    prompts = []

    def say(prompt):
        prompts.append(prompt)
        edits = [
            {"kind": "add", "type": "核心", "title": "proof", "text": "Shows\na proof."},
            {"kind": "delete", "old": "fit"},
        ]
        return json.dumps({"mark": mark_in(prompt), "edits": edits})

    failures = [Failure(preference(i), -1.0) for i in range(3)]
    propose = refiner(judge(say), cases=2)
    changes = anyio.run(lambda: propose(START, failures, random.Random(0)))
    assert changes[0].after == Item("core", "proof", "Shows a proof.")
    assert changes[1] == Change("delete", START.items[0])
    assert "People prefer: 1. The judge said: 2." in prompts[0]
    assert prompts[0].count("Case ") == 2
    assert anyio.run(lambda: propose(START, [], random.Random(0))) == []
    silent = refiner(judge(lambda p: "no idea"))
    assert anyio.run(lambda: silent(START, failures, random.Random(0))) == []
    for broken in ('{"edits": 1}', '{"edits": [{"kind": "burn"}]}', '{"edits": [{"kind": "add"}]}'):
        with pytest.raises(Unreadable, match="expected"):
            read_edits(broken, START)
    with pytest.raises(Unreadable, match="title of an item"):
        read_edits('{"edits": [{"kind": "delete", "old": "?"}]}', START)


def heedful_prompt(prompt):
    """Follows the rubric: looks at proofs only where the principles name them."""
    texts = shown(prompt)
    if USEFUL.title not in prompt.split("=== principles ")[1]:
        return reply(prompt, compare(winner="S", score=0))
    first = "with proof" in texts["A"]
    return reply(prompt, compare(winner="A" if first else "B", score=1 if first else -1))


def test_openrs_itself_is_a_judge_that_follows_the_rubric():
    score = judge_of(judge(heedful_prompt))
    pairs = [preference(i) for i in range(4)]
    assert anyio.run(lambda: score(START, pairs)) == [0, 0, 0, 0]
    better = START.applied(Change("add", None, USEFUL))
    assert [s > 0 for s in anyio.run(lambda: score(better, pairs))] == [True] * 4
    biased = judge_of(judge(lambda p: reply(p, compare(winner="A", score=1))))
    assert anyio.run(lambda: biased(START, pairs[:1])) == [0]
    broken = judge_of(judge(lambda p: "prose"))
    assert anyio.run(lambda: broken(START, pairs[:1])) == [None]


def reviewed(tmp_path, *answers):
    """A review file as a person leaves it."""
    file = tmp_path / "logic.review.toml"
    failures = [Failure(preference(2), -1.5), Failure(preference(1), None)]
    proposals = [
        Change("add", None, USEFUL),
        Change("modify", START.items[0], Item("important", "fit", "Fits well.")),
        Change("delete", START.items[0]),
    ]
    write_review(file, START, failures, proposals)
    text = file.read_text(encoding="utf-8")
    assert text.count("[[disagreement]]") == 2
    assert "# 2 disagreements in logic" in text
    for word in answers:
        text = text.replace('accept = ""', f'accept = "{word}"', 1)
    file.write_text(text, encoding="utf-8")
    return file


def test_a_review_goes_through_a_file_and_the_labels_decide(tmp_path):
    review = read_review(reviewed(tmp_path, "yes", "Edited", "no"), START)
    assert [change.kind for change in review.accepted] == ["add", "modify"]
    assert review.refused[0].old == "fit"
    pairs = [preference(i) for i in range(6)]
    score = judge_of(judge(heedful_prompt))
    outcome = anyio.run(lambda: apply_review(review, START, pairs, judge=score))
    assert [one.accepted for one in outcome.log] == [True, False]
    assert outcome.rubric.items == (*START.items, USEFUL)
    assert outcome.log[0].gain == 0.5
    assert "accepted, accuracy 0.5000 -> 1.0000 on 6 pairs" in outcome.report()
    with pytest.raises(UserError, match="got none"):
        anyio.run(lambda: apply_review(review, START, [], judge=score))


def test_an_outage_keeps_no_item_of_a_review(tmp_path):
    review = read_review(reviewed(tmp_path, "yes", "no", "no"), START)
    pairs = cases("r", 60)
    judge = outage(deaf(), 0.15, is_start)
    outcome = anyio.run(lambda: apply_review(review, START, pairs, judge=judge))
    (one,) = outcome.log
    assert not one.accepted
    assert one.gain == 0
    assert one.left_out > 2
    assert f"on {60 - one.left_out} pairs, {one.left_out} pairs without a verdict" in one.reason
    dead = outage(deaf(), 0.5, is_start)
    with pytest.raises(JudgeError, match="no verdict on"):
        anyio.run(lambda: apply_review(review, START, pairs, judge=dead))


def test_mistakes_in_a_review_are_told_in_one_line(tmp_path):
    file = reviewed(tmp_path, "yes", "maybe", "no")
    with pytest.raises(UserError, match="proposal 2: accept: got 'maybe', expected yes, no"):
        read_review(file, START)
    good = file.read_text(encoding="utf-8").replace('"maybe"', '"no"')
    for spoil, line in (
        (lambda s: s.replace('"core"', '"corre"'), "Did you mean 'core'"),
        (
            lambda s: s.replace('old = "fit"', 'old = "fitt"').replace('"no"', '"yes"'),
            "Did you mean 'fit'",
        ),
        (lambda s: s.replace("kind =", "knd ="), "knd"),
        (lambda s: s.replace(START.hash, "0" * 16), "write a new review"),
        (lambda s: s + "\n= 1", "cannot read the review"),
    ):
        file.write_text(spoil(good), encoding="utf-8")
        with pytest.raises(UserError, match=line) as caught:
            read_review(file, START)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="there already"):
        write_review(file, START, [], [])


@given(st.text(), st.text())
def test_any_text_survives_the_review_file(tmp_path_factory, request, text):
    file = tmp_path_factory.mktemp("review") / "r.toml"
    pair = Preference("p", task(request), answer(text, "a"), answer("b"), 1, text)
    write_review(file, START, [Failure(pair, 0.0)], [])
    assert read_review(file, START).accepted == ()
