"""Edits of Markdown, worked by hand; the golden cases of the spec."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from burnish.agents.trace2skill import apply_edit, dedupe, section_bounds
from burnish.agents.trace2skill.edits import OPERATIONS, headings
from burnish.agents.trace2skill.patches import carry_out, join_sections

TEXT = "# Skill\n\n## Rules\n- be brief\n\n## Steps\n1. read\n2. write\n"


def lines(text):
    return text.split("\n")


def test_a_section_ends_before_the_next_heading_of_its_level():
    assert section_bounds(lines(TEXT), "## Rules") == (2, 5)
    assert section_bounds(lines(TEXT), "# Skill") == (0, 9)
    assert section_bounds(lines("## A\n### B\nx\n## C"), "## A") == (0, 3)
    assert section_bounds(lines(TEXT), "  ## Steps ") == (5, 9)
    assert section_bounds(lines(TEXT), "## None") is None


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_a_comment_in_code_is_no_heading(fence):
    text = f"## Code\n{fence}python\n# read the file\n{fence}\nafter\n## Next"
    assert section_bounds(lines(text), "## Code") == (0, 5)
    assert section_bounds(lines(text), "# read the file") is None


def test_a_comment_in_front_matter_is_no_heading():
    text = "---\n# a comment\nname: a\n---\n# A"
    assert list(headings(lines(text))) == [4]


def edit(op, **fields):
    return {"op": op, **fields}


def test_each_operation_by_hand():
    rules = "## Rules"
    assert apply_edit(TEXT, edit("append_to_section", target_section=rules, content="- b")) == (
        "# Skill\n\n## Rules\n- be brief\n\n- b\n\n## Steps\n1. read\n2. write\n"
    )
    assert apply_edit(
        TEXT,
        edit("insert_after", target_section="## Steps", target_text="1. read", content="1b. x"),
    ).endswith("1. read\n1b. x\n2. write\n")
    assert apply_edit(
        TEXT, edit("insert_before", target_text="2. write", content="1b. x")
    ).endswith("1. read\n1b. x\n2. write\n")
    assert "- be clear\n" in apply_edit(
        TEXT,
        edit("replace_in_section", target_section=rules, old_text="be brief", content="be clear"),
    )
    assert (
        apply_edit(
            TEXT, edit("add_section", target_section="## New", after_section=rules, content="n")
        )
        == "# Skill\n\n## Rules\n- be brief\n\n\n## New\n\nn\n## Steps\n1. read\n2. write\n"
    )
    assert apply_edit(TEXT, edit("add_section", target_section="## New", content="n")).endswith(
        "2. write\n\n\n## New\n\nn"
    )
    twice = apply_edit(TEXT, edit("add_section", target_section=rules, content="- be kind"))
    assert twice.count(rules) == 1
    assert "- be brief\n\n- be kind\n" in twice
    assert (
        apply_edit(TEXT, edit("delete_section", target_section=rules))
        == "# Skill\n## Steps\n1. read\n2. write\n"
    )


@pytest.mark.parametrize(
    "missing",
    [
        edit("append_to_section", target_section="## No", content="x"),
        edit("insert_after", target_section="## Rules", target_text="2. write", content="x"),
        edit("replace_in_section", old_text="not there", content="x"),
        edit("replace_in_section", old_text="", content="x"),
        edit("add_section", target_section="## New", after_section="## No", content="x"),
        edit("delete_section", target_section="## No"),
        edit("create", file="references/a.md", content="x"),
        edit("no_such_operation", content="x"),
    ],
)
def test_a_target_that_is_missing_changes_nothing(missing):
    assert apply_edit(TEXT, missing) == TEXT


@pytest.mark.parametrize(
    "one",
    [
        edit("append_to_section", target_section="## Rules", content="- b\n- c"),
        edit("append_to_section", target_section="## Rules", content="# More\n- b"),
        edit("insert_after", target_text="1. read", content="1b. x"),
        edit("insert_after", target_section="## Rules", target_text="- ", content="#\n- b"),
        edit("insert_before", target_text="1. read", content="0. x"),
        edit("replace_in_section", old_text="be brief", content="be brief and clear"),
        edit("add_section", target_section="## New", content="n"),
    ],
)
def test_the_same_edit_twice_is_made_once(one):
    once = apply_edit(TEXT, one)
    assert once != TEXT
    assert apply_edit(once, one) == once


def test_a_heading_is_not_broken_in_two():
    one = edit("insert_before", target_section="## Rules", target_text="Rules", content="more")
    assert apply_edit("## Rules\n- a\n", one) == "## Rules\n- a\n"
    whole = edit("insert_before", target_section="## Rules", target_text="## Rules", content="more")
    assert apply_edit("## Rules\n- a\n", whole) == "more\n## Rules\n- a\n"


@given(
    st.text(st.sampled_from("#`~ -a\n"), max_size=60), st.sampled_from(OPERATIONS[:6]),
    st.text(st.sampled_from("# ab"), max_size=5), st.text(st.sampled_from("#ab\n"), max_size=8),
)  # fmt: skip
def test_no_edit_is_made_twice_and_text_outside_its_section_stays(text, op, target, content):
    one = edit(op, target_section=target, target_text="a", old_text="a", content=content)
    once = apply_edit(text, one)
    if op in ("append_to_section", "insert_after", "insert_before") and content.strip():
        assert apply_edit(once, one) == once
    assert (
        section_bounds(text.split("\n"), target) is not None
        or op == "add_section"
        or (once == text or not target)
    )


def test_duplicates_keep_the_longest_text_and_all_sources():
    found = dedupe(
        [
            edit("append_to_section", file="SKILL.md", target_section="## R", content="a",
                 source_ids=["t2"]),
            edit("delete_section", file="SKILL.md", target_section="## X"),
            edit("append_to_section", file="SKILL.md", target_section="## R", content="aa",
                 source_ids=["t1"]),
            edit("append_to_section", file="SKILL.md", target_section="## R", content="bb"),
        ]
    )  # fmt: skip
    assert [(one["op"], one.get("content")) for one in found] == [
        ("append_to_section", "aa"),
        ("delete_section", None),
    ]
    assert found[0]["source_ids"] == ["t1", "t2"]
    assert "source_ids" not in found[1]


def test_two_rules_for_one_section_both_stay_when_content_counts():
    rows = [
        edit("append_to_section", content=text) for text in ("- Check it.", "- check it", "- b")
    ]
    assert [one["content"] for one in dedupe(rows, same="content")] == ["- Check it.", "- b"]


CODE = "# S\n\n## A\n- be brief\n\n```python\nx = 1\n```\n\n## B\n- b\n"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"old_text": "x = 1\n```", "content": "x = 2"}, "block of code open"),
        ({"old_text": "```python", "content": "python"}, "block of code open"),
        ({"old_text": "## A\n- be brief", "content": "- be long"}, "break the heading '## A'"),
        ({"op": "insert_after", "target_text": "x = 1", "content": "```\n## C\n```"}, "of code"),
    ],
)
def test_an_edit_that_breaks_code_or_headings_is_skipped(fields, why):
    one = {"op": "replace_in_section", "file": "SKILL.md", "target_section": "## A"} | fields
    done = carry_out([one], {"SKILL.md": CODE})
    assert done.files["SKILL.md"] == CODE
    assert why in done.skipped[0].reason


def test_files_are_joined_with_their_code_whole():
    joined = join_sections("# A\n\n```python\nx=1\n```\n", "# A\n\n```bash\nls\n```\n\nT\n")
    assert joined == "# A\n\n```python\nx=1\n```\n```bash\nls\n```\nT\n"
    assert join_sections(joined, "# A\n```bash\nls\n```\n") == joined
