"""`burnish prompt optimise`: files, JSON, and one line for mistakes."""

import json

SMALL = ("--rounds", 1, "--candidates", 1, "--shown", 2, "--trial", 2, "--confirm", 2)


def test_a_search_writes_a_prompt_and_its_report(typed, tmp_path):
    out = tmp_path / "prompt.txt"
    words = ("prompt", "optimise", "tiny", "--model", "tiny", "--proposer", "tiny", *SMALL)
    more = ("--max-tokens", 2, "--out", out)
    shown = typed(*words, *more)
    assert shown.code == 0, shown.err
    assert "the prompt stays" in shown.out
    assert "present prompt: 0.000 on 2 tasks" in " ".join(shown.err.split())
    assert out.read_text() == "\n"
    report = (tmp_path / "prompt.report.md").read_text()
    assert "| 1 | tiny, from 2 failures |" in report
    journal = (tmp_path / "prompt.journal.jsonl").read_bytes()
    again = json.loads(typed(*words, *more, "--json").out)
    assert (again["prompt"], again["is_confirmed"]) == ("", False)
    assert again["spending"]["answers"] == 2 + 2 + 2
    assert (tmp_path / "prompt.journal.jsonl").read_bytes() == journal
