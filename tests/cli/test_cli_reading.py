"""`runs`, `show` and `export` on a run made by hand."""

import json
import shutil

import pytest
from stored_run import STEPS

from burnish.store import RunStore


def test_runs_lists_status_steps_and_held_out(typed, runs):
    shown = typed("runs", "--runs", runs)
    assert shown.code == 0
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[0][:4] == ["run", "recipe", "status", "steps"]
    assert rows[1][:7] == ["grpo-abc", "grpo", "finished", "4/5", "0.250", "->", "0.750"]
    assert rows[2][:4] == ["grpo-xyz", "grpo", "crashed", "4/5"]


def test_runs_as_json_has_one_object_a_run(typed, runs):
    rows = [json.loads(line) for line in typed("runs", "--runs", runs, "--json").out.splitlines()]
    assert [row["name"] for row in rows] == ["grpo-abc", "grpo-xyz"]
    assert rows[0]["before"][0] == 0.25
    assert rows[0]["after"] == [0.75, 0.6, 0.9, 20]
    assert rows[0]["planned"] == 5


def test_a_damaged_run_is_listed_with_its_problem(typed, runs, tmp_path):
    shutil.copytree(runs / "grpo-abc", tmp_path / "broken")
    (tmp_path / "broken" / "run.db").write_bytes(b"not a database, and long enough to be seen")
    for extra in ("run.db-wal", "run.db-shm"):
        (tmp_path / "broken" / extra).unlink(missing_ok=True)
    shown = typed("runs", "--runs", tmp_path)
    assert shown.code == 0
    assert "unreadable" in shown.out
    assert "broken: " in shown.out


def test_no_runs_is_said_with_the_next_step(typed, tmp_path):
    assert typed("runs", "--runs", tmp_path).out == (
        f"no runs in {tmp_path}. Start one: burnish train\n"
    )


def test_summary_shows_settings_statuses_held_out_curves_and_groups(typed, runs):
    shown = typed("show", "grpo-a", "--runs", runs).out
    assert "finished, 4 of 5 steps" in shown
    assert "changed   run.seed=7" in shown
    assert "rewards   ok 15, timeout 4" in shown
    assert "held out  start: 0.250 [0.100, 0.400]" in shown
    assert "mean length (tokens)" in shown
    assert "last step: 4   useful groups 1/2" in shown
    assert any(0x2800 < ord(character) <= 0x28FF for character in shown)


def test_newest_run_when_none_is_named(typed, runs):
    assert "run 'grpo-xyz'" in typed("show", "--runs", runs).out


def test_summary_as_json_parses(typed, runs):
    record = json.loads(typed("show", "grpo-abc", "--runs", runs, "--json").out)
    assert record["statuses"] == {"ok": 15, "timeout": 4}
    assert record["metrics"]["length/mean"] == 5.0
    assert [e["step"] for e in record["held_out"]] == [0, STEPS]


def test_step_shows_each_answer_with_reward_parts_and_advantage(typed, runs):
    shown = typed("show", "grpo-abc", "--step", 3, "--runs", runs).out
    assert "useful groups 1/2" in shown
    right = next(line for line in shown.splitlines() if line.startswith("train-3-1-1"))
    assert right.split() == [
        "train-3-1-1", "1.000", "correct", "1.000,", "format", "1.000", "+0.707", "2",
    ]  # fmt: skip
    failed = next(line for line in shown.splitlines() if line.startswith("train-3-2-2"))
    assert failed.split() == ["train-3-2-2", "timeout", "0", "(empty)"]


def test_sample_shows_text_tokens_reward_tree_and_why(typed, runs):
    shown = typed("show", "grpo-abc", "--sample", "2/train/1", "--runs", runs).out
    assert "[user] What is 0 + 2?\n[assistant] 9" in shown
    assert "tokens    prompt 3, model 2; 2 trained" in shown
    assert "finish    length   weight version 2" in shown
    assert "correct 0.000  weight 0.9  compared" in shown
    assert "numeric: read '9', expected 2 (oracle)" in shown
    assert "rewards of its group of 2: 1.000 0.100" in shown
    assert "reward 0.100 is below its group's mean 0.550." in shown


def test_a_sample_without_a_reward_says_so(typed, runs):
    shown = typed("show", "grpo-abc", "--sample", "2/train/3", "--runs", runs).out
    assert "total timeout  no score within 60 s" in shown
    assert "no reward (timeout), so it is left out of the group." in shown


def test_text_of_a_model_cannot_steer_the_terminal(typed, runs):
    for flags in (["--step", "2"], ["--sample", "1/train/2"], ["--best", "9"], []):
        shown = typed("show", "grpo-abc", *flags, "--runs", runs).out
        assert "\x1b" not in shown
        assert "\\x1b[31mred" in shown


def test_best_worst_and_failed(typed, runs):
    flags = ["--split", "train", "--runs", runs]
    worst = typed("show", "grpo-abc", "--worst", 4, *flags).out
    shown = [line.split()[0] for line in worst.splitlines() if "train-" in line]
    assert shown == [f"train-{i}-1-2" for i in range(1, 5)]
    best = typed("show", "grpo-abc", "--best", 1, "--json", *flags).out
    assert json.loads(best)["reward"]["value"] == pytest.approx(1.0)
    failed = typed("show", "grpo-abc", "--failed", 9, "--json", *flags).out
    assert [json.loads(line)["id"] for line in failed.splitlines()] == [
        f"{i}/train/3" for i in range(4)
    ]


def test_held_out_split_is_one_list_of_its_newest_step(typed, runs):
    shown = typed("show", "grpo-abc", "--split", "eval:held_out", "--runs", runs).out
    assert shown.startswith("eval:held_out after 4 steps")
    assert "held_out-4-1-1" in shown
    assert "held_out-start" not in shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "grpo-abd"], 2, "no run 'grpo-abd' in {runs}. Did you mean 'grpo-abc'?"),
        (["show", "grpo"], 2, "'grpo' means several runs in {runs}: grpo-abc, grpo-xyz."),
        (["show", "grpo-abc", "--step", "9"], 2, "has no samples of step 9; it has steps 1 to 4."),
        (["show", "grpo-abc", "--step", "0"], 2, "--step: got 0, expected a step from 1 on."),
        (["show", "grpo-abc", "--split", "trian"], 2, "has no split 'trian'"),
        (["export", "grpo-abc", "x.xlsx"], 2, "unknown format '.xlsx'"),
        (["export", "grpo-abc", "no/such/folder/x.csv"], 3, "cannot write"),
        (["show", "grpo-abc", "--failed", "9" * 20], 2, "Invalid value for '--failed'"),
        (["train", "n" * 300 + ".toml"], 2, "(3"),
        (["shwo"], 2, "No such command 'shwo'. Did you mean 'show'? See: burnish --help"),
        (["export", "grpo-abc"], 2, "Missing argument 'PATH'. See: burnish export --help"),
    ],
)
def test_mistakes_get_one_line_and_a_code(typed, runs, words, code, message):
    flags = ["--runs", str(runs)] if words[0] in ("show", "export") else []
    shown = typed(*words, *flags)
    assert shown.code == code
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("burnish: ")
    assert message.format(runs=runs) in shown.err


def test_export_writes_every_sample(typed, runs, tmp_path):
    file = tmp_path / "samples.jsonl"
    shown = typed("export", "grpo-abc", file, "--runs", runs)
    assert shown.out == f"19 samples of run 'grpo-abc' written to {file}\n"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 19
    assert rows[-1]["reward_tree"]["name"] == "total"
    curves = tmp_path / "curves.csv"
    assert typed("export", "grpo-abc", curves, "--what", "metrics", "--runs", runs).code == 0
    assert "3,length/mean,5.0" in curves.read_text()


def test_debug_shows_the_traceback_of_a_mistake(typed, runs, monkeypatch):
    monkeypatch.setenv("BURNISH_DEBUG", "1")
    shown = typed("show", "nothing", "--runs", runs)
    assert shown.err.startswith("Traceback (most recent call last):")
    assert shown.err.splitlines()[-1].startswith("burnish: no run 'nothing'")


def test_a_run_without_answers_is_shown(typed, tmp_path):
    """sft stores metrics and no answers."""
    config = {"train.kind": "sft", "steps": 2}
    with RunStore.create(tmp_path / "run", config, {}, recipe="sft") as store:
        store.append_metrics(0, {"loss/total": 5.5})
        store.append_metrics(1, {"loss/total": 5.4})
    done = typed("show", tmp_path / "run")
    assert done.code == 0
    assert "loss" in done.out
    refused = typed("show", tmp_path / "run", "--sample", "train-1-1-1")
    assert refused.code == 2
    assert "sft learns given answers, which have no reward" in refused.err


def test_agreement_of_rewards_is_that_of_one_step_in_any_order(typed, tmp_path):
    means = {f"reward/{name}/mean": 0.5 for name in ("digits", "brief", "third")}
    with RunStore.create(tmp_path / "runs" / "mine", {"steps": 2}, {}, recipe="grpo") as store:
        old = {"reward/corr/digits~third": 0.9, "reward/conflict/digits~third": 0.1}
        store.append_metrics(0, {**means, **old, "reward/corr/digits~brief": 0.7})
        new = {"reward/corr/digits~brief": -0.25, "reward/conflict/digits~brief": 0.5}
        store.append_metrics(1, {**means, **new})
    shown = typed("show", tmp_path / "runs" / "mine").out
    assert "opposite order, step 2" in shown
    assert "-0.25 / 50%" in shown
    assert "+0.90" not in shown  # the third reward had one value only in step 2
