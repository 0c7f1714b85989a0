"""What hostile or careless patches and pools may not do: break a file, count twice, take long."""

import time

import anyio
import pytest
from fake_author import SKILL, StubRoles, append, trace

from burnish.agents.trace2skill import Patch, distil, pool_of, sanitize
from burnish.agents.trace2skill.guards import (
    contradictions,
    instructions,
    leaks,
    secrets_of,
    well_formed,
)
from burnish.agents.trace2skill.patches import RARE, by_support, by_task, read_patch_loosely
from burnish.records import Message


def run(pool, roles):
    return anyio.run(distil, pool, SKILL, roles)


def rules(found):
    return found.files["SKILL.md"]


def test_copies_of_one_trajectory_are_evidence_once():
    one = trace(1, "Check the last row.")
    log = (Message("user", "Do task 1."), Message("assistant", "LESSON: check  the last row!"))
    copies = [
        one,
        trace(1, "Check the last row."),
        trace(1, "Check the last row.", id="other", task_id="other"),
        type(one)(id="x", task_id="y", instruction="Do task 1.", messages=log),
    ]
    pool = pool_of(copies)
    assert len(pool.all) == 1
    assert {reason for _, reason in pool.left_out} == {f"a copy of {pool.all[0].id}"}
    found = run(pool, StubRoles())
    assert "last row" not in rules(found)


def test_rollouts_of_one_task_are_evidence_once():
    same = [trace(i, "Sort it.", task_id="one task") for i in range(5)]
    assert "Sort it" not in rules(run(pool_of(same), StubRoles()))
    two = [*same, trace(9, "Sort it.", task_id="another")]
    assert "Sort it" in rules(run(pool_of(two), StubRoles()))


def test_the_threshold_counts_tasks():
    tasks = {f"r{i}": f"task {i % 2}" for i in range(10)}
    edits = [append("- a", ["r0", "r2", "r4"]), append("- b", ["r0", "r1"])]
    placed = by_support(edits, SKILL, count=2, support=by_task(tasks))
    assert [edit["file"] for edit in placed.kept] == ["SKILL.md", RARE, "SKILL.md"]
    assert placed.kept[0] == edits[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- a\n```\nx = 1", "never closes it"), ("~~~\n- a\n```", "never closes it"),
        ("- red \x1b[31m text", "control characters"), ("- half \ud800", "control characters"),
        ("- null \x00", "control characters"), ("- a\n# New skill", "end the section"),
        ("- a\n## Rules too", "end the section"),
    ],
)  # fmt: skip
def test_a_content_that_would_break_the_file_is_dropped(content, said):
    kept, dropped = well_formed([append(content, ["a"])])
    assert kept == []
    assert said in dropped[0].reason


def test_whole_code_deeper_headings_and_windows_lines_stay():
    for content in ("```py\n# a comment\n```", "### Deeper\n- a", "- a\r\n- b", "- a\tb"):
        assert well_formed([append(content, ["a"])]).kept == [append(content, ["a"])]
    again = well_formed([append("## Rules\n\n- a", ["a"])]).kept
    assert [edit["content"] for edit in again] == ["- a"]
    section = {"op": "add_section", "file": "SKILL.md", "content": "- a"}
    assert well_formed([section | {"target_section": "## More"}]).kept
    for bad in ("More", "## More\n# Skill"):
        assert not well_formed([section | {"target_section": bad}]).kept


def test_a_half_character_leaves_the_skill_writable(tmp_path):
    class Halves(StubRoles):
        async def propose(self, records, files):
            ids = [one.trace.id for one in records]
            edits = (append("- \ud800", ids), append("- fine", ids))
            return Patch(edits, reasoning="\udfff", source_ids=tuple(ids))

    found = run(pool_of([trace(i, "x") for i in range(3)]), Halves())
    assert "- fine" in rules(found)
    for text in found.files.values():
        text.encode()


@pytest.mark.parametrize(
    "name", ["./references/Old.md", "REFERENCES/OLD.MD", "references\\old.md", "/references/old.md"]
)
def test_a_file_is_protected_in_every_spelling(name):
    state = {"SKILL.md": "# A\nreferences/old.md\n", "references/old.md": "# Old\n"}
    edit = append("- x", ["a"], "# Old") | {"file": "references/old.md"}
    assert sanitize([edit], state) == [edit]
    assert sanitize([edit], state, protected=[name]) == []


def test_a_new_file_may_not_hide_behind_another_case():
    state = {"SKILL.md": "# A\nreferences/old.md\n", "references/old.md": "# Old\n"}
    made = {"op": "create", "file": "references/OLD.md", "content": "# Mine"}
    link = append("See references/OLD.md.", ["a"], "# A")
    assert sanitize([made, link], state) == []


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("1234567", "The sum is 1,234,567."), ("1234567", "Expect 1 234 567 there"),
        ("1234567", "Expect 1'234'567."), ("1234567", "Expect 1234567.00"),
        ("48213.77", "It is 48,213.77 in all"), ("48213.77", "It is 48.213,77 in all"),
        ("-512", "a loss of 512"), ("New York", "Write **new**-york."), ("Zürich", "It is Zurich."),
        ("Zürich", "It is Zu\u0308rich."), ("123", "Write １２３ there."),
        ("1234567", "The sum is 1.234567e6."), ("task-17", "As in task_17, sort."),
        ("Alpha Beta", "See alpha_beta."),
    ],
)  # fmt: skip
def test_gold_values_are_found_in_other_spellings(gold, text):
    secrets = secrets_of([gold])
    assert secrets == [gold]
    assert leaks([append(f"- {text}", ["a"])], secrets).kept == []
    assert secrets_of([gold], text) == []
    assert leaks([append("- Sort the rows first.", ["t"])], secrets).dropped == []


def test_hostile_replies_take_a_bounded_number_of_looks(monkeypatch):
    from burnish.rewards.judges import reading

    tries = []

    class Counting:
        def raw_decode(self, text, place):
            tries.append(len(text))
            raise ValueError

    monkeypatch.setattr(reading, "_LOOSE", Counting())
    assert read_patch_loosely("{" * 1_000_000).edits == ()
    assert len(tries) == reading.MOST_BROKEN
    assert max(tries) == 200_000


def test_contradictions_look_at_each_rule_once():
    many = "\n".join(f"- Sort column {i} now." for i in range(20_000))
    never = "\n".join(f"- Never sort column {i} now." for i in range(20_000))
    kept, dropped = contradictions([append(many, ["a", "b"]), append(never, ["c"])])
    assert [edit["content"] for edit in kept] == [many]
    assert "more support" in dropped[0].reason


def test_ordinary_rules_stay():
    edits = [
        append("- Read data: the first sheet, then the second.", ["t"]),
        append("- Use a//b for floors.", ["t"]),
    ]
    assert instructions(edits, {"SKILL.md": ""}).kept == edits


def test_many_secrets_are_looked_up_in_time():
    edits = [
        append(f"- Sort column {n} by its date, then write it back.", ["t"]) for n in range(40)
    ]
    began = time.process_time()
    assert len(leaks(edits, [f"secret value {n} of a task" for n in range(1600)]).kept) == 40
    assert time.process_time() - began < 3.0
