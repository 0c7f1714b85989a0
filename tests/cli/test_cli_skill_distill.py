"""`burnish skill distill`: files written, exit codes, a kill and the same command again."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli.entry import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "trace2skill"
GIVEN = [str(EXAMPLE / "traces.jsonl"), "--skill", str(EXAMPLE / "skill" / "tables")]
ROLES = ["--roles", f"{EXAMPLE / 'roles.py'}:make"]


def distill(*words):
    return run(["skill", "distill", *map(str, words)])


def test_the_example_writes_skill_diff_and_reports(tmp_path, capsys):
    assert distill(*GIVEN, *ROLES, "--out", tmp_path) == 0
    text = (tmp_path / "tables" / "SKILL.md").read_text()
    assert "- Include the last row of the table." in text
    assert "screen flickers" not in text
    assert "screen flickers" in (tmp_path / "tables" / "references" / "rare-cases.md").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    supports = {edit["content"]: edit["source_ids"] for edit in report["edits"]}
    assert supports["- Include the last row of the table."] == ["run-01", "run-04", "run-08"]
    assert report["left_out"] == [{"id": "run-12", "reason": "the endpoint was down"}]
    assert "run-04" in (tmp_path / "report.md").read_text()
    page = (tmp_path / "report.html").read_text()
    assert "run-04" in page
    assert "<script" not in page
    assert (tmp_path / "skill.diff").read_text() == report["diff"]
    assert "5 edits" in capsys.readouterr().out


def test_nothing_to_learn_is_said_and_the_skill_is_the_same(tmp_path, capsys):
    traces = tmp_path / "traces.jsonl"
    traces.write_text('{"id": "a", "instruction": "x", "passed": false, "messages": []}\n')
    assert distill(traces, *GIVEN[1:], *ROLES, "--out", tmp_path / "new") == 0
    assert "unchanged: nothing to learn" in capsys.readouterr().out
    before = (EXAMPLE / "skill" / "tables" / "SKILL.md").read_bytes()
    assert (tmp_path / "new" / "tables" / "SKILL.md").read_bytes() == before
    assert (tmp_path / "new" / "skill.diff").read_text() == ""


def test_a_file_without_a_trajectory_to_learn_from_is_refused(tmp_path, capsys):
    traces = tmp_path / "traces.jsonl"
    traces.write_text("\n")
    assert distill(traces, *GIVEN[1:], *ROLES, "--out", tmp_path / "new") == 2
    assert "no rows; expected at least one" in capsys.readouterr().err
    rows = [{"id": f"a{i}", "instruction": "x", "messages": []} for i in range(3)]
    traces.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert distill(traces, *GIVEN[1:], *ROLES, "--out", tmp_path / "new") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no verdict: neither passed nor a score (3)" in said
    assert not (tmp_path / "new").exists()


def test_json_is_one_object(tmp_path, capsys):
    assert distill(*GIVEN, *ROLES, "--out", tmp_path, "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["status"] == "changed"


@pytest.fixture
def tables(tmp_path):
    """The example's skill as people keep theirs: with a script, a picture and a hidden file."""
    folder = tmp_path / "skills" / "tables"
    shutil.copytree(EXAMPLE / "skill" / "tables", folder)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "scripts" / "run.py").write_text("print(1)\n")
    for name in ("run.sh", "run.py"):
        (folder / "scripts" / name).chmod(0o755)
    (folder / "logo.png").write_bytes(b"\x89PNG\0")
    (folder / ".hidden").write_bytes(b"x")
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("is_zip", [False, True])
def test_other_files_of_a_skill_are_carried_along_untouched(tables, is_zip, tmp_path):
    place = shutil.make_archive(str(tmp_path / "tables"), "zip", tables) if is_zip else tables
    out = tmp_path / "new"
    for _ in range(2):  # what it wrote itself it writes again
        assert distill(GIVEN[0], "--skill", place, *ROLES, "--out", out) == 0
    for name in ("scripts/run.sh", "scripts/run.py", "logo.png", ".hidden"):
        made = out / "tables" / name
        assert made.read_bytes() == (tables / name).read_bytes()
        assert made.stat().st_mode == (tables / name).stat().st_mode
    assert "- Include the last row" in (out / "tables" / "SKILL.md").read_text()


@pytest.mark.parametrize("out", ["skills", "skills/tables", "skills/tables/new"])
def test_the_skill_that_is_read_is_never_rewritten(tables, out, tmp_path, capsys):
    before = contents(tmp_path)
    assert distill(GIVEN[0], "--skill", tables, *ROLES, "--out", tmp_path / out) == 2
    assert "the skill that is read lies there" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_a_folder_that_it_did_not_write_is_not_replaced(tmp_path, capsys):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "mine.txt").write_text("mine")
    assert distill(*GIVEN, *ROLES, "--out", tmp_path) == 2
    assert "was not written by skill distill" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["tables", "mine.txt"]
    new = tmp_path / "new"
    assert distill(*GIVEN, *ROLES, "--out", new) == 0
    (new / "tables" / "mine.txt").write_text("mine")
    assert distill(*GIVEN, *ROLES, "--out", new) == 2
    assert (new / "tables" / "mine.txt").read_text() == "mine"


HOSTILE = "<img src=x onerror=alert(1)>|`x`"


def test_text_of_a_trajectory_is_escaped_in_the_reports(tmp_path):
    row = {"task_id": "t", "instruction": HOSTILE, "passed": False,
           "messages": [{"role": "assistant", "content": "stops one row early"}]}  # fmt: skip
    traces = tmp_path / "traces.jsonl"
    traces.write_text("".join(json.dumps(row | {"id": f"{HOSTILE} {i}"}) + "\n" for i in range(2)))
    assert distill(traces, *GIVEN[1:], *ROLES, "--out", tmp_path / "new") == 0
    assert "<img" not in (tmp_path / "new" / "report.html").read_text()
    assert "\n| <img" not in (tmp_path / "new" / "report.md").read_text()


PROGRAM = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import burnish.lm.named as named
from burnish.lm import ScriptedLM
from fake_author import answer
count = 0
def script(messages, index):
    global count
    count += 1
    if count == int(os.environ["KILL_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(messages, index)
named.open_lm = lambda name, **options: ScriptedLM(script)
from burnish.cli.entry import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("at", [5, 21, 23])
def test_killed_in_the_fleet_or_the_merge_the_same_command_continues(tmp_path, at):
    tests = str(ROOT / "tests" / "agents" / "trace2skill")
    traces = tmp_path / "traces.jsonl"
    lessons = ["Check the last row.", "Cast text numbers.", "Sort the output."] * 4
    rows = [
        {"id": f"r{i:02d}", "instruction": f"Do task {i}.", "passed": False,
         "messages": [{"role": "assistant", "content": f"LESSON: {text}"}]}
        for i, text in enumerate(lessons)
    ]  # fmt: skip
    traces.write_text("".join(json.dumps(row) + "\n" for row in rows[:10]))

    def command(out, kill_at):
        words = ["skill", "distill", str(traces), *GIVEN[1:], "--with", "x", "--out", str(out)]
        env = os.environ | {"KILL_AT": str(kill_at), "OMP_NUM_THREADS": "1"}
        program = [sys.executable, "-c", PROGRAM.format(tests=tests), *words]
        return subprocess.run(program, env=env, capture_output=True, text=True, check=False)

    killed = command(tmp_path / "new", at)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "new" / "tables").exists()
    assert (again := command(tmp_path / "new", 0)).returncode == 0, again.stderr
    assert "lessons rest on logs alone; --check" in again.stdout
    assert command(tmp_path / "whole", 0).returncode == 0
    for name in ("skill.diff", "tables/SKILL.md"):
        first, second = ((tmp_path / out / name).read_bytes() for out in ("new", "whole"))
        assert first == second
    cost = json.loads((tmp_path / "new" / "report.json").read_text())["cost"]
    assert cost["calls"] == 10 + 10 + 3
    assert cost["calls_now"] == cost["calls"] - (at - 1)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert distill(*GIVEN, *ROLES, "--out", tmp_path / "file" / "new") == 3
    assert "cannot make the folder" in capsys.readouterr().err
