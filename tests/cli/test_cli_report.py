"""`burnish report` and `burnish audit` as they are typed."""

import json

import pytest
from lab.audit.hacks import train
from stored_run import make_run


@pytest.fixture
def runs(tmp_path):
    make_run(tmp_path / "plain")
    return tmp_path


def test_a_report_as_files(runs, typed):
    for name in ("r.html", "r.md"):
        done = typed("report", "plain", "--runs", str(runs), "-o", str(runs / name))
        assert done.code == 0
        assert "nothing else is needed" in done.out
    assert (runs / "r.html").read_text().startswith("<!doctype html>")
    assert (runs / "r.md").read_text().startswith("# plain")


def test_an_audit_names_the_hack(tmp_path, typed):
    train(tmp_path / "hacked", "format", seed=0).close()
    said = typed("audit", "hacked", "--runs", str(tmp_path)).out
    assert said.index("format") < said.index("entropy")
    assert "burnish show hacked --sample" in said
    record = typed("audit", "hacked", "--runs", str(tmp_path), "--json").out
    assert json.loads(record)["findings"][0]["monitor"] == "format"


def test_a_gold_scorer_of_ones_own(tmp_path, typed, monkeypatch):
    train(tmp_path / "hacked", "format", seed=0).close()
    (tmp_path / "mine.py").write_text("def short(text):\n    return -float(len(text))\n")
    monkeypatch.chdir(tmp_path)
    words = ("audit", "hacked", "--runs", str(tmp_path), "--gold")
    assert "the reward rose and the gold score did not" in typed(*words, "mine.py:short").out
    wrong = typed(*words, "gild")
    assert wrong.code == 2
    assert "expected gold, judge" in wrong.err
