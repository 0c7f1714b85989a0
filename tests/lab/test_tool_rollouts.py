"""The benchmark of rollouts with a slow tool runs, and compares three ways."""

import sys

import tool_rollouts


def test_a_small_run(monkeypatch, capsys):
    words = ["--episodes", "2", "--turns", "2", "--tokens", "3", "--tool-ms", "1", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["tool_rollouts.py", *words])
    tool_rollouts.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert "2 episodes of 2 turns" in head
    assert [row[:10].strip() for row in rows] == ["burnish", "at once", "one by one"]
    assert all("model busy" in row for row in rows)
