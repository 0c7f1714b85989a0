"""Markup in samples, judge replies and names comes out as JSON text; foreign folders as a line."""

import shutil
import sqlite3
from functools import partial

import pytest
from viewed_runs import HOSTILE, SCRIPT, hostile_run, open_client

from burnish.view.pages.runs import open_run


def test_markup_stays_text_everywhere(client):
    client.indexed(HOSTILE)
    line = next(one for one in client.get("/runs")["runs"] if one["name"] == HOSTILE)
    assert line["status"] == "finished"
    page = client.run(HOSTILE)
    assert {"key": SCRIPT, "value": SCRIPT, "origin": SCRIPT} in page["config"]
    assert page["events"][0]["message"] == SCRIPT
    assert SCRIPT in client.run(HOSTILE, "/metrics")["curves"]
    sample = client.run(HOSTILE, "/sample", id="1/train/1")
    judge = sample["reward"]["parts"][0]
    assert judge["evidence"][0]["observation"] == f"I say {SCRIPT}"
    assert judge["evidence"][1]["error"] == SCRIPT
    assert judge["verdicts"][0]["reason"] == SCRIPT
    assert sample["info"][SCRIPT] == SCRIPT
    found = client.run(HOSTILE, "/samples", q=SCRIPT)
    assert found["count"] == 8
    row = found["samples"][0]["response"]
    assert row["text"][slice(*row["match"])] == SCRIPT
    assert client.run(HOSTILE, "/prompt", task=f"{SCRIPT}0")["total"] == 4


def test_no_answer_is_html_but_the_page_itself(client):
    for path in ("/api/v1/runs", f"/api/v1/{SCRIPT}", "/api/v1/runs/x%3Cscript%3E"):
        answer = client.http.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert SCRIPT not in client.http.get(f"/{SCRIPT}").text


def test_evidence_and_failures_are_counted(client):
    sample = client.run(HOSTILE, "/sample", id="0/train/1")
    assert sample["counted"] == {
        "statuses": {"ok": 2}, "evidence": 2, "oracle": 1, "cost_usd": 0.25,
    }  # fmt: skip
    late = client.run(HOSTILE, "/sample", id="0/train/2")
    assert late["reward"]["value"] is None
    assert late["reward"]["status"] == "timeout"
    assert late["why"] == "no reward (timeout), so it is left out of its group"
    failed = client.run(HOSTILE, "/samples", status="timeout")
    assert failed["count"] == 4
    assert {row["reward"] for row in failed["samples"]} == {None}


def test_numbers_by_token_are_shown_where_they_were_stored(client):
    tokens = client.run(HOSTILE, "/sample", id="0/train/0")["tokens"]
    assert tokens["entropies"] == [None, None, 0.5, 0.25, 0.125, None]
    assert tokens["texts"] is None
    assert "ids only" in tokens["tokenizer"]
    assert [span["author"] for span in tokens["spans"]] == ["prompt", "model", "tool"]
    assert tokens["mask"] == [0, 0, 1, 1, 1, 0]


@pytest.fixture
def odd(tmp_path):
    """A folder with a good run, half a run, a foreign folder, a damaged run and a file."""
    hostile_run(tmp_path / "good")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "empty").mkdir()
    shutil.copytree(tmp_path / "good", tmp_path / "half")
    (tmp_path / "half" / "config.json").unlink()
    shutil.copytree(tmp_path / "good", tmp_path / "damaged")
    (tmp_path / "damaged" / "run.db").write_bytes(b"no database, but long enough to be looked at")
    for extra in ("run.db-wal", "run.db-shm"):
        (tmp_path / "damaged" / extra).unlink(missing_ok=True)
    shutil.copytree(tmp_path / "good", tmp_path / "gone")
    (tmp_path / "gone" / "run.db").unlink()
    (tmp_path / "notes.txt").write_text("not a run")
    return tmp_path


def test_half_made_foreign_and_damaged_folders_are_named(odd):
    with open_client(odd) as client:
        found = client.get("/runs")
        assert {line["name"]: line["status"] for line in found["runs"]} == {
            "good": "finished",
            "damaged": "unreadable",
            "gone": "unreadable",
        }
        lines = {one["name"]: one["line"] for one in found["skipped"]}
        assert set(lines) == {"foreign", "empty", "half"}
        assert "not written by burnish" in lines["foreign"]
        assert "half made" in lines["half"]
        problem = {line["name"]: line["problem"] for line in found["runs"]}
        assert "samples are gone" in problem["gone"]
        for page in ("", "/pulse", "/samples", "/metrics", "/steps"):
            assert client.run("damaged", page, 500)["error"]
        assert client.run("good", "/samples", status="ok")["count"] == 4
        assert "error" in client.run("damaged", "/samples", 500, status="ok")


def test_a_store_of_a_newer_burnish_is_one_line(odd):
    connection = sqlite3.connect(odd / "good" / "run.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with open_client(odd) as client:
        assert "Update burnish" in client.run("good", "", 500)["error"]


def test_a_question_that_takes_too_long_is_given_up(odd, monkeypatch):
    monkeypatch.setattr("burnish.view.pages.runs.INSTRUCTIONS", 1)
    monkeypatch.setattr("burnish.view.pages.run_page.open_run", partial(open_run, seconds=-1.0))
    with open_client(odd) as client:
        assert "given up after" in client.run("good", "/steps", 503)["error"]
