"""`burnish skill`: every problem on a line of its own, and what a mode shows."""

import json
import shutil
from pathlib import Path

import pytest

from burnish.rewards.judges.skill_rm import load_skill, shipped_skills


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(shipped_skills()["mathematics"], tmp_path / "mine"))


def test_a_valid_skill(typed, folder):
    shown = typed("skill", "validate", folder)
    assert shown.code == 0
    assert "mathematics: valid, 3 resources (2 in fair mode)" in shown.out
    assert load_skill("mathematics").hash in shown.out


def test_what_is_no_skill_of_a_judge_is_told_in_one_line(typed, tmp_path):
    rows, empty, guide = tmp_path / "rows.jsonl", tmp_path / "empty", tmp_path / "guide"
    rows.write_text("{}\n")
    empty.mkdir()
    guide.mkdir()
    (guide / "SKILL.md").write_text("---\nname: guide\ndescription: How.\n---\nAdd up.\n")
    for place, says in (
        (rows, "not a skill: expected a folder or a .zip, got a file"),
        (empty, "expected SKILL.md and resources.yaml, as in a shipped skill (burnish skill show"),
        (guide, "resources.yaml: missing; expected SKILL.md and resources.yaml, as in a shipped"),
    ):
        shown = typed("skill", "validate", place)
        assert shown.code == 2
        assert says in " ".join(shown.err.split())
        assert shown.err.count("burnish: ") == 1


def test_the_list_and_one_skill(typed):
    listed = typed("skill", "show").out
    assert all(name in listed for name in shipped_skills())
    rows = [json.loads(line) for line in typed("skill", "show", "--json").out.splitlines()]
    assert {row["name"] for row in rows} == set(shipped_skills())
    whole = typed("skill", "show", "grounded_answers").out
    assert "reference_match" in whole
    fair = typed("skill", "show", "grounded_answers", "--mode", "fair").out
    assert "reference_text" not in fair
    assert "2 resource(s) are not visible in fair mode" in fair
    told = json.loads(typed("skill", "show", "code", "--mode", "fair", "--json").out)
    assert [row["id"] for row in told["resources"]] == [
        "edge_cases",
        "review_rubric",
        "extract_code",
    ]
