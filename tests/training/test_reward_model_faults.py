"""Bad pairs, odd shapes of data, terms that fail, and two processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from test_reward_model import pair_rows, run_of, term, write_pairs
from training_cases import SMALL, finish, merged

from burnish.config import Config, load, render
from burnish.errors import UserError
from burnish.training import build
from burnish.training.events import Finished, StepDone
from burnish.training.labelled import UnusableRow
from burnish.training.pairs import PairFields, conversation, read_pair

GOOD = pair_rows()
BAD = {
    "equal": ({"chosen": "same", "rejected": "same"}, "two equal answers"),
    "empty": ({"rejected": "  "}, "an empty 'rejected'"),
    "list": ({"chosen": [5]}, "a 'chosen' that is neither text nor chat messages"),
    "long": ({"chosen": "long " * 400}, "more than 1024 tokens"),
    "label": ({"strength": "much"}, "a 'strength' that is no finite number"),
    "tie": ({"is_tie": "maybe"}, "a 'is_tie' that is neither true nor false"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pairs_are_refused_in_one_line_or_dropped(tmp_path, name, caplog):
    change, why = BAD[name]
    rows = [*GOOD, {"question": "odd one?", "chosen": "YES", "rejected": "no", **change}]
    train = {"label": {"margin": "strength"}, "tie": {"tie": "is_tie", "ties": "half"}}.get(
        name, {}
    )
    tables = {"steps": 1, "task": {"held_out": {"by": "share", "share": 0.0}}}
    task = write_pairs(tmp_path, rows) | tables.pop("task")
    with pytest.raises(UserError) as refused:
        run_of(tmp_path, {**tables, "task": task}, rows=rows, **train)
    line = str(refused.value)
    assert f"1 of {len(rows)} pairs cannot be used: 1 with {why}" in line
    assert "(first: pairs/17)" in line
    assert "train.bad_pairs = 'drop'" in line
    assert "\n" not in line
    tables = {**tables, "task": task}
    run = run_of(tmp_path, tables, rows=rows, run="again", bad_pairs="drop", **train)
    assert run.algorithm.pairs.size == len(GOOD)
    assert isinstance(finish(run)[-1], Finished)
    assert why in caplog.text


def test_a_nan_label_of_a_parquet_file_is_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [row | {"strength": float("nan") if i == 3 else 0.5} for i, row in enumerate(GOOD)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    task = write_pairs(tmp_path) | {"path": str(tmp_path / "pairs.parquet")}
    with pytest.raises(UserError, match=r"1 with a 'strength' that is no finite number"):
        run_of(tmp_path, {"task": task}, margin="strength")
    finish(run_of(tmp_path, {"task": task, "steps": 1}, margin="strength", bad_pairs="drop"))


def test_no_usable_pair_at_all_is_refused(tmp_path):
    rows = [row | {"is_tie": True} for row in GOOD]
    with pytest.raises(UserError, match=r"none of the .* tasks looked at is a usable pair"):
        run_of(tmp_path, rows=rows, tie="is_tie")


def test_ties_are_dropped_or_kept(tmp_path):
    without = run_of(tmp_path, run="a", tie="is_tie")
    kept = run_of(tmp_path, run="b", tie="is_tie", ties="half")
    targets = [pair.target for pair in kept.algorithm.pairs.first(100)]
    assert without.algorithm.pairs.size == targets.count(1.0)
    assert kept.algorithm.pairs.size == len(targets) > targets.count(1.0)
    for trainer in (without, kept):
        trainer.store.close()


def test_one_pair_a_batch_and_one_pair_in_all(tmp_path):
    events = finish(run_of(tmp_path, {"steps": 2}, batch=1))
    assert all(e.metrics["loss/total"] > 0 for e in events if isinstance(e, StepDone))
    task = write_pairs(tmp_path, GOOD[:1]) | {"held_out": {"by": "share", "share": 0.0}}
    small = {key: value for key, value in SMALL.items() if key != "rewards"}
    table = merged(small, {"task": task, "train": {"kind": "reward_model", "batch": 3}, "steps": 1})
    events = finish(build(load(Config, table), tmp_path / "one", root=tmp_path))
    assert isinstance(events[-1], Finished)


def test_answers_may_be_messages(tmp_path):
    turns = [{"role": "assistant", "content": "YES"}]
    whole = [{"role": "user", "content": "ball 0?"}, *turns]
    run = run_of(tmp_path)
    task = run.algorithm.pairs.first(1)[0].task
    run.store.close()
    for given in (turns, whole):
        talk = conversation(task, given)
        assert talk[-1].text == "YES"
        assert len(talk) == 2
    rows = [row | {"chosen": [{"role": "assistant", "content": row["chosen"]}]} for row in GOOD]
    for name in ("text", "turns"):
        finish(run_of(tmp_path, {"steps": 2}, rows=GOOD if name == "text" else rows, run=name))
    same = [
        load_file(tmp_path / name / "checkpoints" / "step-000002" / "model.safetensors")
        for name in ("text", "turns")
    ]
    assert all(torch.equal(same[0][key], same[1][key]) for key in same[0])


def test_labels_are_read_strictly():
    from burnish.records import Message, Task

    def read(**fields):
        given = {"chosen": "a", "rejected": "b", **fields}
        named = {name: name for name in fields}
        return read_pair(Task("t", (Message("user", "q"),), given), PairFields(**named))

    assert read(margin=2).margin == 2.0
    ties = (True, 1, 1.0, "1", "true", "Yes", "y", "tie", " Tied", "draw", "both")
    assert {read(tie=x).target for x in ties} == {0.5}
    untied = (False, 0, 0.0, "0", "false", "No", "n", None, "")
    assert {read(tie=x).target for x in untied} == {1.0}
    for odd in (2, -1, 0.5, float("nan"), float("inf"), "a", "maybe", [], ["tie"]):
        with pytest.raises(UnusableRow, match="a 'tie' that is neither true nor false"):
            read(tie=odd)
    assert read(target=0.25).target == 0.25


def test_a_term_that_raises_is_one_line(tmp_path):
    settings = term(tmp_path)
    (tmp_path / "my_term.py").write_text(
        (tmp_path / "my_term.py").read_text() + "\n\nclass Bad(Drift):\n"
        "    def loss(self, states, total):\n        raise ZeroDivisionError('no such attribute')\n"
    )
    settings |= {"path": settings["path"].replace(":Drift", ":Bad")}
    with pytest.raises(UserError) as refused:
        finish(run_of(tmp_path, terms=[settings]))
    line = str(refused.value)
    assert "train.terms: 'drift' failed: ZeroDivisionError: no such attribute" in line
    assert "\n" not in line


def test_what_the_trainers_own_pass_raises_is_not_blamed_on_a_term(tmp_path, monkeypatch):
    run = run_of(tmp_path, terms=[{"kind": "dir", "head_width": 8}])

    def broken(answers):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(run.algorithm, "hidden_states", broken)
    with pytest.raises(RuntimeError, match=r"^CUDA error: an illegal memory access$") as hit:
        run.algorithm.updates(run.algorithm.batch(0))
    assert type(hit.value) is RuntimeError
    run.store.close()


SCRIPT = """
import sys
from burnish.cli.entry import run
sys.exit(run(["train", "config.toml", "--quiet"]))
"""


def test_two_processes_train_as_one_does(tmp_path):
    pytest.importorskip("accelerate", reason="several processes need accelerate")
    small = {key: value for key, value in SMALL.items() if key != "rewards"}
    train = {"kind": "reward_model", "batch": 5, "centring": 0.1, "terms": [term(tmp_path)]}
    # Plain gradient steps would do as well; Adam's first step hides every factor of the gradient.
    table = merged(small, {"task": write_pairs(tmp_path), "train": train, "steps": 2})
    named = merged(table, {"run": {"name": "two", "folder": "."}})
    (tmp_path / "config.toml").write_text(render(load(Config, named)))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "script.py"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    finish(build(load(Config, table), tmp_path / "one", root=tmp_path))
    last = "checkpoints/step-000002/trainer/optimiser.safetensors"
    one, two = (load_file(tmp_path / name / last) for name in ("one", "two"))
    for name in one:
        # The first moment is the gradient itself, times 1 - beta1.
        torch.testing.assert_close(one[name], two[name], rtol=2e-3, atol=1e-6, msg=name)
