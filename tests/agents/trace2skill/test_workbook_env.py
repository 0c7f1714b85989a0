"""An agent works on a workbook with tools, has a skill in its prompt, and is paid for the cells."""

import io
import json

import anyio
import pytest

from burnish.agents.trace2skill.workbook_env import WorkbookEnv
from burnish.lm import Sampling, ScriptedLM
from burnish.records import Message, Status, Task
from burnish.rollouts import EnvRollout, env_rollout, roll_out
from burnish.tools.spreadsheet import Spreadsheet

pytest.importorskip("openpyxl", reason="the extra 'spreadsheet' is not installed")


def saved(path, cells):
    book = Spreadsheet()
    book.write(cells)
    book.save(path)
    return str(path)


@pytest.fixture
def task(tmp_path):
    fields = {
        "workbook": saved(tmp_path / "in.xlsx", {"A1": 3, "A2": 4}),
        "gold": saved(tmp_path / "gold.xlsx", {"A1": 3, "A2": 4, "B1": 7}),
        "answer_position": "B1",
        "answer_sheet": "Sheet1",
    }
    return Task("sum", (Message("user", "Put the sum of A into B1."),), fields)


def played(task, replies, **options):
    async def work():
        lm = ScriptedLM(replies)
        rollout = env_rollout(lambda: WorkbookEnv(**options))
        ((found,),) = await roll_out([(0, task)], lm, Sampling(n=1, max_tokens=64), rollout, 0)
        return found, lm

    return anyio.run(work)


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_reading_writing_and_being_paid(task):
    read, wrote = call("read_cells", cells="A1:A2"), call("write_cell", cell="B1", value=7)
    found, _ = played(task, [read, wrote, "Done."])
    assert found.status is Status.OK, found.reason
    assert found.info["rewards"] == {"passed": 1.0}
    observed = [message.text for message in found.messages if message.role == "tool"]
    assert json.loads(observed[0]) == {"A1": 3, "A2": 4}
    nothing, _ = played(task, ["Done."])
    assert nothing.info["rewards"] == {"passed": 0.0}


def test_a_formula_counts_once_it_is_computed(task):
    pytest.importorskip("formulas", reason="the extra 'spreadsheet' is not installed")
    found, _ = played(
        task, [call("write_cell", cell="B1", value="=SUM(A1:A2)"), "Done."], timeout_s=600
    )
    assert found.info["rewards"] == {"passed": 1.0}
    raw, _ = played(task, [call("write_cell", cell="B1", value="=A1+A2"), "x"], recalculation=False)
    assert raw.info["rewards"] == {"passed": 0.0}


def test_the_skill_is_the_system_message(task, tmp_path):
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: sums\ndescription: d\n---\n# Sums\n- Add all rows.\n"
    )
    _, lm = played(task, ["Done."], skill=str(folder))
    first = lm.calls[0].prompt[0]
    assert first.role == "system"
    assert "- Add all rows." in first.text
    assert "name: sums" not in first.text


def test_mistakes_of_the_agent_are_observations_and_a_bomb_fails_the_rollout(task, tmp_path):
    found, _ = played(task, [call("read_cells", cells="A1:XFD9999"), call("read_cells", cells="no", sheet="x"),
                             "Done."])  # fmt: skip
    observed = [message.text for message in found.messages if message.role == "tool"]
    assert all(text.startswith("Error: ") for text in observed)
    bomb = tmp_path / "bomb.xlsx"
    bomb.write_bytes(io.BytesIO(b"PK\x03\x04").getvalue())
    bad = Task("bad", task.messages, task.fields | {"workbook": str(bomb)})
    failed, _ = played(bad, ["Done."])
    assert failed.status is Status.INFRA_ERROR
    assert "the workbook: damaged, or no archive" in failed.reason
    lost = Task("lost", task.messages, task.fields | {"answer_position": "!!"})
    assert "cannot be scored" in played(lost, ["Done."])[0].reason


def test_a_skill_stands_before_any_task_and_its_own_system_message(tmp_path):
    folder = tmp_path / "sums"
    (folder / "references").mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: sums\ndescription: d\n---\n# Sums\nreferences/a.md\n"
    )
    (folder / "references" / "a.md").write_text("# A\n")
    messages = (Message("system", "Be brief."), Message("user", "3 + 4?"))

    async def work():
        lm = ScriptedLM(["7"])
        settings = EnvRollout(
            path="burnish.agents.trace2skill.skill_env:SkillEnv",
            options={"skill": str(folder), "references": True},
        )
        sampling = Sampling(n=1, max_tokens=8)
        await roll_out([(0, Task("t", messages))], lm, sampling, settings.build(), 0)
        return lm.calls[0].prompt[:2]

    first, second = anyio.run(work)
    assert first.text == "# Sums\nreferences/a.md\n\n=== references/a.md ===\n# A\n\nBe brief."
    assert second == messages[1]


def test_one_far_cell_neither_hangs_the_score_nor_can_be_written(task, tmp_path):
    far = call("write_cell", cell="XFD1048576", value=1)
    look = call("read_cells", cells="XFD1048576")
    found, _ = played(task, [far, look, call("list_sheets"), "Done."])
    refused, _, sheets = (message.text for message in found.messages if message.role == "tool")
    assert "expected one near the used cells" in refused
    assert json.loads(sheets) == {"Sheet1": "A1:A2"}  # a look makes no cell
    book = Spreadsheet(task.fields["workbook"])
    book.book.worksheets[0]["XFD1048576"].value = 1
    book.save(tmp_path / "far.xlsx")
    given = Task("far", task.messages, task.fields | {"workbook": str(tmp_path / "far.xlsx")})
    scored, _ = played(given, [call("write_cell", cell="B1", value=7), "Done."])
    assert scored.info["rewards"] == {"passed": 1.0}


def test_formulas_that_cannot_be_computed_are_no_reward(task, monkeypatch):
    import threading

    from burnish.agents.trace2skill import workbook_env
    from burnish.tools.spreadsheet import SpreadsheetError

    threads = []

    def fails(path, timeout_s):
        threads.append(threading.current_thread())
        raise SpreadsheetError("not recalculated within 60 s")

    monkeypatch.setattr(workbook_env, "recalculate", fails)
    replies = [call("write_cell", cell="B1", value="=A1+A2"), "Done."]
    found, _ = played(task, replies)
    assert found.status is Status.INFRA_ERROR
    assert "not recalculated within 60 s" in found.reason
    assert threads[0] is not threading.main_thread()
    published, _ = played(task, replies, rule="reference")
    assert published.info["rewards"] == {"passed": 0.0}


def test_a_formula_that_reaches_outside_is_an_observation(task):
    replies = [call("write_cell", cell="B1", value='=WEBSERVICE("http://host/")'), "Done."]
    found, _ = played(task, replies)
    (observed,) = (message.text for message in found.messages if message.role == "tool")
    assert "without files, servers" in observed
