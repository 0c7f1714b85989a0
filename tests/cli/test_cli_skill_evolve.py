"""`burnish skill evolve`: a skill that helps is accepted, one that does not is left, nothing is played twice."""

import json
import shutil
from pathlib import Path

import pytest

from burnish.agents.trace2skill import evolution
from burnish.cli.console import Reporter
from burnish.cli.entry import run
from burnish.lm import ScriptedLM
from burnish.rewards.judges.judge_model import JudgeModel

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "trace2skill"
LESSON = "Include the last row of the table."

REWARD = f"""
def passes(messages, text):
    knows = any({LESSON!r} in message.text for message in messages)
    return float(knows is HELPS)
"""
ROLES = f"""
from burnish.agents.trace2skill import Patch, Record, united

class Roles:
    async def analyse(self, trace, files):
        return Record(trace, ({{"content": "- {LESSON}"}},))

    async def propose(self, records, files):
        ids = [one.trace.id for one in records]
        edit = {{"op": "append_to_section", "file": "SKILL.md", "target_section": "## Rules",
                "content": "- {LESSON}", "source_ids": ids}}
        return Patch((edit,), source_ids=tuple(ids))

    async def merge(self, patches, files, level):
        return [united(patches, level)]

    async def anchor(self, edit, text):
        return None

    async def fix(self, files, problems):
        return None

def make():
    return Roles()
"""


@pytest.fixture
def recipe(tmp_path):
    rows = "".join(json.dumps({"q": f"Add up table {i}.", "a": str(i)}) + "\n" for i in range(30))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "roles.py").write_text(ROLES)
    shutil.copytree(EXAMPLE / "skill" / "tables", tmp_path / "tables")
    path = tmp_path / "mine.toml"
    path.write_text(
        '[model]\npath = "tiny"\n'
        '[task]\nkind = "file"\npath = "rows.jsonl"\nprompt = "{q}"\nfields = { answer = "a" }\n'
        '[[rewards]]\nkind = "function"\npath = "reward.py:passes"\n'
        "[rollout]\nmax_tokens = 4\n"
    )
    return path


def evolve(recipe, *more, helps=True):
    (recipe.parent / "reward.py").write_text(REWARD.replace("HELPS", str(helps)))
    roles = f"{recipe.parent / 'roles.py'}:make"
    words = [recipe, "--skill", recipe.parent / "tables", "--roles", roles, "--tasks", 10]
    return run(["skill", "evolve", *map(str, (*words, "--seeds", 1, *more))])


def test_a_skill_that_helps_is_accepted_and_written(recipe, tmp_path, capsys, monkeypatch):
    out = tmp_path / "new"
    assert evolve(recipe, "--out", out, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accepted"] is True
    assert (report["before"], report["rates"]) == (0.0, [1.0])
    assert report["held_out"]["better"] == 2
    assert report["held_out"]["is_noise"] is True  # two tasks show nothing
    assert report["changes"][0]["difference"]["value"] == 1.0
    assert report["changes"][0]["is_noise"] is False
    assert LESSON in (out / "tables" / "SKILL.md").read_text()
    assert f"+- {LESSON}" in (out / "skill.diff").read_text()
    assert json.loads((out / "evolve.json").read_text())["diff"] == report["diff"]
    # 8 tasks to learn from and 2 held out, each with both skills.
    assert len((out / "plays.jsonl").read_text().splitlines()) == 20
    monkeypatch.setattr(
        evolution, "evaluate_slots", lambda *a, **k: pytest.fail("a game was played twice")
    )
    assert evolve(recipe, "--out", out) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "tasks it learnt from: passes 0.000 -> 1.000, +1.000 [" in shown
    assert "held out passes 0.000 -> 1.000" in shown
    assert "p 0.500: no difference beyond noise" in shown
    assert "skill accepted: not worse" in shown


def test_the_games_are_counted_while_they_are_played(recipe, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(Reporter, "__call__", lambda self, *given: told.append(given))
    assert evolve(recipe, "--out", tmp_path / "new") == 0
    assert told[0] == ("playing and distilling, 20 games", 1, 20)
    assert told[-1][1:] == (20, 20)


def test_a_skill_that_harms_is_left_as_it_was(recipe, tmp_path, capsys):
    out = tmp_path / "new"
    assert evolve(recipe, "--out", out, helps=False) == 0
    assert "not accepted: the old one stays" in capsys.readouterr().out
    before = (recipe.parent / "tables" / "SKILL.md").read_bytes()
    assert (out / "tables" / "SKILL.md").read_bytes() == before
    assert (out / "skill.diff").read_text() == ""


def test_games_are_scored_again_where_the_reference_has_changed(recipe, tmp_path):
    out = tmp_path / "new"
    assert evolve(recipe, "--out", out) == 0
    rows = recipe.parent / "rows.jsonl"
    rows.write_text(rows.read_text().replace('"a": "', '"a": "1'))
    assert evolve(recipe, "--out", out) == 0
    assert len((out / "plays.jsonl").read_text().splitlines()) == 40


def test_all_seeds_spend_from_one_budget(monkeypatch, recipe, tmp_path):
    budgets = []

    def author(flags, journal, budget, seed=0):
        budgets.append(budget)
        return JudgeModel(ScriptedLM(lambda messages, index: "nothing"))

    monkeypatch.setattr("burnish.cli.skill_distill.AuthorFlags.author", author)
    (recipe.parent / "reward.py").write_text(REWARD.replace("HELPS", "True"))
    skill, out = str(recipe.parent / "tables"), str(tmp_path / "new")
    words = [str(recipe), "--skill", skill, "--out", out, "--with", "tiny", "--budget-usd", "1"]
    run(["skill", "evolve", *words, "--tasks", "5", "--seeds", "2"])
    assert len(budgets) == 2
    assert budgets[0] is budgets[1]
    assert budgets[0].usd == 1.0


def test_games_that_could_not_be_scored_are_counted(recipe, tmp_path, capsys):
    assert evolve(recipe, "--out", tmp_path / "new", helps="undefined_name") == 3
    found = capsys.readouterr()
    assert "16 games could not be played or scored" in found.err
    assert "undefined_name" in found.err
    assert "unchanged" in found.out
