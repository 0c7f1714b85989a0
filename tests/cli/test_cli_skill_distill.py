"""`burnish skill distill`: files written, exit codes, a kill and the same command again."""

import json
import os
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


def test_json_is_one_object(tmp_path, capsys):
    assert distill(*GIVEN, *ROLES, "--out", tmp_path, "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["status"] == "changed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*GIVEN], "either --with MODEL or --roles"),
        ([GIVEN[0], *ROLES], "either --skill FOLDER"),
        ([*GIVEN, *ROLES, "--option", "taau=1"], "taau"),
        ([*GIVEN, *ROLES, "--option", "tau=nan"], "tau"),
        ([*GIVEN, *ROLES, "--option", "tau"], "KEY=VALUE"),
        (["none.jsonl", *GIVEN[1:], *ROLES], "no such file or run"),
        ([GIVEN[0], "--new", "x", *ROLES], "roles that can draft"),
        ([GIVEN[0], "--new", "My Skill", *ROLES], "small letters, digits and hyphens"),
    ],
)
def test_mistakes_get_one_line(words, said, tmp_path, capsys):
    assert distill(*words, "--out", tmp_path) == 2
    assert said in capsys.readouterr().err


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
        {"id": f"r{i:02d}", "instruction": "Do it.", "passed": False,
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
    assert command(tmp_path / "whole", 0).returncode == 0
    for name in ("skill.diff", "tables/SKILL.md"):
        first, second = ((tmp_path / out / name).read_bytes() for out in ("new", "whole"))
        assert first == second
    cost = json.loads((tmp_path / "new" / "report.json").read_text())["cost"]
    assert cost["calls"] == 10 + 10 + 3
    assert cost["calls_now"] == cost["calls"] - (at - 1)
