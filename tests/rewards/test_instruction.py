"""An instruction that improves itself: what is accepted, what is not, and a log of both."""

import anyio
import msgspec
import pytest

from burnish.errors import JudgeError, UserError
from burnish.rewards.judges import (
    Disagreement,
    Edit,
    Evolution,
    Labelled,
    accuracy_of,
    by_rule,
    evolve_instruction,
)

START = "Grade 0 or 1.\n"


def record(name, grade, *rules):
    return Labelled(name, grade, {"query": name}, rules)


def records(prefix):
    """Ten common records and four of each rare rule: brand is right at 1, size at 0."""
    return [
        *(record(f"{prefix}c{i}", i % 2, "common") for i in range(10)),
        *(record(f"{prefix}b{i}", 1, "brand") for i in range(4)),
        *(record(f"{prefix}s{i}", 0, "size") for i in range(4)),
    ]


POOL, HELD_OUT = records("p-"), records("h-")
BRAND, SIZE = "brand: same brand is 1", "size: other size is 0"


async def follow(instruction, one):
    """A grader that knows the common rule, others only where the instruction states them."""
    if one.rules == ("brand",):
        return 1 if BRAND in instruction else 0
    if one.rules == ("size",):
        return None if "be brief" in instruction else int(SIZE not in instruction)
    return one.grade


def evolve(propose, grade=follow, start=START, **more):
    async def run():
        return await evolve_instruction(start, POOL, HELD_OUT, grade=grade, propose=propose, **more)

    return anyio.run(run)


def proposing(*rounds):
    """A proposer that goes through a list, and remembers what it saw."""
    left, seen = list(rounds), []

    async def propose(instruction, disagreements):
        seen.append((instruction, disagreements))
        return left.pop(0) if left else []

    return propose, seen


def add(text, *cases):
    return Edit("add", text, cases=cases)


def test_accuracies_by_hand():
    found = accuracy_of(
        [record("a", 0, "x"), record("b", 0, "x", "y"), record("c", 0, "y"), record("d", "1")],
        [0, 1, "0", None],
    )
    assert found.by_grade == {"0": pytest.approx(2 / 3), "1": 0.0}
    assert found.macro == pytest.approx(1 / 3)
    assert found.overall == 0.5
    assert found.by_rule == {"x": 0.5, "y": 0.5}
    assert found.undecided == 1


def test_helpful_edits_are_kept_and_the_loop_ends_in_agreement():
    propose, seen = proposing([add(BRAND, "p-b0", "p-b1")], [add(SIZE, "p-s0", "p-c0")])
    found = evolve(propose)
    assert found.instruction == f"{START}{BRAND}\n{SIZE}\n"
    assert [change.accepted for change in found.log] == [True, True]
    assert found.log[0].fixed == ("p-b0", "p-b1")
    assert (found.rounds, found.stopped) == (2, "the pool is graded as its labels say")
    assert (found.before.by_rule["brand"], found.after.macro) == (0.0, 1.0)
    # Grade 1: five of nine before; grade 0: five of nine.
    assert found.before.macro == pytest.approx(5 / 9)
    assert list(seen[0][1]) == ["brand", "size"]
    assert [d.record.id for d in seen[1][1]["size"]] == ["p-s0", "p-s1", "p-s2", "p-s3"]


def test_an_edit_that_only_moves_mistakes_is_refused():
    # The brand rule is won and the size rule is lost: four records each.
    propose, _ = proposing([add(f"{BRAND}\nbe brief")])
    found = evolve(propose, start=f"{START}{SIZE}\n")
    (change,) = found.log
    assert not change.accepted
    assert change.reason == "macro accuracy changes by +0.0000; expected at least +0.0050"
    assert (change.after.by_rule["brand"], change.after.by_rule["size"]) == (1.0, 0.0)
    assert change.after.undecided == 4
    assert found.instruction == f"{START}{SIZE}\n"


def test_a_rule_may_fall_by_one_point_and_no_more():
    pool = [record("p", 1, "a")]
    held_out = [record(f"a{i}", 0, "a") for i in range(100)] + [
        record(f"b{i}", 1) for i in range(9)
    ]

    def losing(count):
        async def grade(instruction, one):
            if one.grade == 1:
                return int("new" in instruction)
            return int("new" in instruction and int(one.id[1:]) < count)

        return grade

    async def run(count):
        propose, _ = proposing([add("new")])
        return await evolve_instruction(
            "old", pool, held_out, grade=losing(count), propose=propose, patience=1
        )

    one, two = (anyio.run(run, count) for count in (1, 2))
    assert (one.log[0].accepted, two.log[0].accepted) == (True, False)
    assert two.log[0].reason == "accuracy of rule 'a' falls by 0.0200; expected at most 0.0100"
    assert one.after.by_rule == {"a": 0.99}


def test_a_rise_below_the_margin_is_refused():
    propose, _ = proposing([add(BRAND)])
    found = evolve(propose, margin=0.5)
    assert not found.log[0].accepted
    assert found.log[0].reason.startswith(
        "macro accuracy changes by +0.2222; expected at least +0.5"
    )
    propose, _ = proposing([add(BRAND)])
    assert evolve(propose, margin=4 / 18).log[0].accepted


def test_three_rounds_without_acceptance_end_it():
    propose, seen = proposing([add("a")], [], [add(BRAND)], [add("b")], [add("c")], [add("d")])
    found = evolve(propose)
    assert (found.rounds, found.stopped) == (6, "3 rounds without an accepted edit")
    assert len(seen) == 6
    assert [change.accepted for change in found.log] == [False, True, False, False, False]
    assert [change.round for change in found.log] == [1, 3, 4, 5, 6]
    propose, _ = proposing()
    assert evolve(propose, max_rounds=2).stopped == "2 rounds were done"


def test_edits_of_a_round_build_on_each_other():
    sharpen = Edit("sharpen", f"{BRAND}\n{SIZE}", (BRAND,))
    stale = Edit("delete", old=("never written",))
    propose, _ = proposing([add(BRAND), stale, sharpen])
    found = evolve(propose)
    assert [change.accepted for change in found.log] == [True, False, True]
    assert "'never written' stands 0 times" in found.log[1].reason
    assert found.log[1].after is None
    assert found.after.macro == 1.0


def test_nothing_is_graded_twice():
    asked = []

    async def grade(instruction, one):
        asked.append((instruction, one.id))
        return await follow(instruction, one)

    again = [add("a", "p-b0")]
    propose, _ = proposing(again, again, again)
    evolve(propose, grade=grade)
    assert len(asked) == len(set(asked)) == 2 * len(HELD_OUT) + len(POOL) + 1


def test_the_log_is_plain_data():
    propose, _ = proposing([add(BRAND, "p-b0"), Edit("delete", old=("x",))])
    found = evolve(propose)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Evolution) == found


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        (Edit("add", "c"), "a\nb\nc\n"), (Edit("sharpen", "B", ("b",)), "a\nB\n"),
        (Edit("merge", "ab", ("a\n", "b\n")), "ab"), (Edit("delete", old=("a\n",)), "b\n"),
    ],
)  # fmt: skip
def test_edits_by_hand(edit, wanted):
    assert edit.applied_to("a\nb\n") == wanted


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit("add", " "), "a 'add' with 0 old"), (Edit("add", "c", ("a",)), "1 old pieces"),
        (Edit("sharpen", "c"), "0 old pieces"), (Edit("merge", "c", ("a",)), "1 old pieces"),
        (Edit("delete", "c", ("a",)), "new text 'c'"),
        (Edit("delete", old=("z",)), "'z' stands 0 times"),
        (Edit("delete", old=("",)), "'' stands 0 times"),
        (Edit("delete", old=("\n",)), "stands 2 times"),
    ],
)  # fmt: skip
def test_edits_that_cannot_be_applied_say_why(edit, message):
    with pytest.raises(ValueError, match=message):
        edit.applied_to("a\nb\n")


def test_disagreements_are_clustered_the_largest_first():
    ones = [record("a", 0, "x"), record("b", 0, "y", "x"), record("c", 0)]
    clusters = by_rule([Disagreement(one, None) for one in ones])
    assert {name: [d.record.id for d in found] for name, found in clusters.items()} == {
        "x": ["a", "b"],
        "": ["c"],
        "y": ["b"],
    }
    assert next(iter(clusters)) == "x"


def test_a_grader_that_fails_stops_the_loop_under_its_own_name():
    async def grade(instruction, one):
        raise JudgeError("the judge is away")

    propose, _ = proposing()
    with pytest.raises(JudgeError, match="the judge is away"):
        evolve(propose, grade=grade)


@pytest.mark.parametrize(
    ("pool", "held_out", "message"),
    [
        ([], HELD_OUT, "got 0 records to be searched on"),
        (POOL, [record("a", 0), record("a", 1)], "2 to be decided on, .* twice: a"),
        (POOL, [*HELD_OUT, POOL[0]], "twice: p-c0"),
    ],
)
def test_mistakes_are_named(pool, held_out, message):
    async def run():
        propose, _ = proposing()
        await evolve_instruction(START, pool, held_out, grade=follow, propose=propose)

    with pytest.raises(UserError, match=message):
        anyio.run(run)
