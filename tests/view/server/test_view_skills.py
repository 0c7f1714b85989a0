"""Distilled skills in the viewer: edits with their trajectories, folders that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from viewed_runs import SCRIPT, open_client

from burnish.cli.entry import run
from burnish.view.pages.skills import SkillFolders, is_distilled

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "trace2skill"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with a distilled skill, one that is damaged, and one of hostile text."""
    folder = tmp_path_factory.mktemp("shelf")
    words = ["--skill", EXAMPLE / "skill" / "tables", "--roles", f"{EXAMPLE / 'roles.py'}:make"]
    given = ["skill", "distill", EXAMPLE / "traces.jsonl", *words, "--out", folder / "good"]
    assert run([str(word) for word in given]) == 0
    for name, text in (("broken", "{"), ("hostile", hostile())):
        (folder / name).mkdir()
        (folder / name / "report.json").write_text(text)
        (folder / name / "skill.diff").write_text("")
    (folder / "other").mkdir()
    return folder


def hostile() -> str:
    edit = {"op": SCRIPT, "file": SCRIPT, "content": SCRIPT, "source_ids": [SCRIPT], "support": 1}
    return json.dumps({"status": "changed", "skill": SCRIPT, "edits": [edit], "diff": SCRIPT})


def test_an_edit_has_the_trajectories_behind_it(shelf):
    with open_client(shelf) as client:
        lines = {one["key"]: one for one in client.get("/skills")["skills"]}
        assert set(lines) == {"good", "broken", "hostile"}
        assert (lines["good"]["name"], lines["good"]["edits"]) == ("tables", 5)
        assert "no report of burnish skill distill" in lines["broken"]["problem"]
        page = client.get("/skills/good")
        rule = next(one for one in page["edits"] if "last row" in one["content"])
        assert rule["source_ids"] == ["run-01", "run-04", "run-08"]
        assert rule["tasks"] == 3
        assert "stops one row early" in page["logs"]["run-01"]["log"]
        assert page["diff"].startswith("--- a/SKILL.md")
        assert client.get("/skills/hostile")["edits"][0]["content"] == SCRIPT
        for name, status in (("..%2fgood", 404), ("other", 404), ("broken", 500)):
            assert client.get(f"/skills/{name}", status)["error"]


def test_only_what_distill_wrote_is_a_distilled_skill(shelf):
    assert is_distilled(shelf / "good")
    assert not is_distilled(shelf / "other")
    assert [one["key"] for one in SkillFolders([shelf / "good"]).listing()["skills"]] == ["good"]
    assert SkillFolders(beside=shelf / "none").listing()["skills"] == []
