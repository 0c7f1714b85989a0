"""A run as data frames: what is in them, what is missing, and the examples of docs/notebook.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import burnish
from burnish.cli.entry import run as command
from burnish.errors import UserError
from burnish.records import (
    Author,
    Evidence,
    Message,
    Reward,
    Span,
    Status,
    Task,
    Trajectory,
    Visibility,
)
from burnish.store import RunStore, StoredSample

PAGE = Path(__file__).resolve().parents[2] / "docs" / "notebook.md"


@pytest.fixture
def folder(tmp_path):
    """Two steps; the last answer of each could not be scored."""
    return stored_run(tmp_path / "runs" / "one")


def test_a_split_that_is_not_there_is_refused_with_those_that_are(folder):
    run = burnish.load_run(folder)
    assert len(run.samples(split="train", form="arrow")) > 0
    for usual in ("dropped", "eval:held_out"):  # what the run may yet come to
        assert len(run.samples(split=usual, form="arrow")) == 0
    with pytest.raises(UserError) as caught:
        run.samples(split="trian")
    assert str(caught.value) == (
        "run 'one' has no split 'trian'; it has train. Did you mean 'train'?"
    )


def test_samples_have_their_parts_and_a_failure_is_missing(folder):
    pandas = pytest.importorskip("pandas")
    frame = burnish.load_run(folder).samples()
    assert len(frame) == 6
    assert list(frame.step) == [0, 0, 0, 1, 1, 1]
    assert list(frame["part/correct"].fillna(-1)) == [1.0, 0.0, -1, 1.0, 0.0, -1]
    assert frame.reward.dtype == float
    assert frame.reward.isna().sum() == 2
    assert frame[frame.reward.isna()].status.unique().tolist() == ["timeout"]
    assert frame.keep.dtype == bool
    assert isinstance(frame, pandas.DataFrame)
    assert "token_ids" not in frame


def test_filters_and_tokens(folder):
    pytest.importorskip("pandas")
    run = burnish.load_run("one", runs=folder.parent)
    frame = run.samples(step=1, status="ok", tokens=True)
    assert list(frame.id) == ["1/train/0", "1/train/1"]
    assert frame.token_ids[0] == [5, 6, 7, 8]
    assert frame.loss_mask[0] == [0, 0, 1, 1]
    assert frame.logprobs[0] == [None, None, -0.5, -0.25]
    assert len(run.samples(split="eval:held_out")) == 0
    assert repr(run) == "<burnish run one: finished, 2 steps>"


def test_metrics_are_one_row_a_step(folder):
    pytest.importorskip("pandas")
    frame = burnish.load_run(folder).metrics()
    assert list(frame.index) == [0, 1]
    assert list(frame["reward/total"]) == [0.5, 0.75]
    assert frame["never"].isna().all()
    assert frame["never"].dtype == float


def test_parts_evidence_and_evaluations(folder):
    pytest.importorskip("pandas")
    run = burnish.load_run(folder)
    assert set(run.parts().name) >= {"total", "total/correct"}
    assert set(run.evidence().visibility) == {"oracle"}
    scores = run.evaluations()
    assert scores[["step", "name", "score", "low"]].values.tolist() == [[0, "held_out", 0.5, 0.25]]


def test_the_same_as_arrow(folder):
    pyarrow = pytest.importorskip("pyarrow")
    run = burnish.load_run(folder)
    table = run.samples(tokens=True, form="arrow")
    assert table.num_rows == 6
    assert table.schema.field("reward").type == pyarrow.float64()
    assert table.schema.field("token_ids").type == pyarrow.list_(pyarrow.int64())
    assert table.column("reward").null_count == 2
    assert run.metrics(form="arrow").column_names[0] == "step"
    assert run.samples(step=99, form="arrow").num_rows == 0
    assert burnish.load_runs(folder.parent, form="arrow").column("name").to_pylist() == ["one"]


def test_runs_of_a_folder(folder):
    pytest.importorskip("pandas")
    (line,) = burnish.load_runs(folder.parent).to_dict("records")
    assert (line["name"], line["status"], line["steps"]) == ("one", "finished", 2)
    assert (line["held_out"], line["prompts"]) == (0.5, 4)


def test_importing_burnish_loads_neither_the_store_nor_pandas():
    code = "import burnish, sys; print([m for m in ('pandas', 'pyarrow', 'burnish.store') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert command(["train", "tiny", "run.name=first", "steps=2", "--quiet"]) == 0
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    first, second, third = ({}, {}, {})
    for block, names in zip(blocks, (first, second, third), strict=True):
        exec(block, names)
    assert list(first["by_step"].index) == [0, 1]
    assert set(second["seen"].part) == {"total/digit"}
    assert set(third["entropy"]) == {"first"}


def stored_run(folder: Path) -> Path:
    """Made by hand, with numbers that can be read off."""
    config = {"steps": 2}
    with RunStore.create(folder, config, dict.fromkeys(config, "here"), recipe="hand") as store:
        for step in range(2):
            store.append_rollouts(step, [_answer(step, index) for index in range(3)])
            store.append_metrics(step, {"reward/total": 0.5 + 0.25 * step, "never": None})
        store.append_evaluation(0, "held_out", [], {"score": [0.5, 0.25, 0.75, 4], "marks": []})
        store.finish("finished")
    return folder


def _answer(step: int, index: int) -> StoredSample:
    task = Task("sum", (Message("user", "1 + 1 = ?"),), {"answer": "2"})
    seen = Evidence("numeric", "read '2', expected 2", Visibility.ORACLE)
    reward = Reward("total", 1.0 - index, parts=(Reward("correct", 1.0 - index, evidence=(seen,)),))
    if index == 2:
        reward = Reward.failed("total", Status.TIMEOUT, "no score within 60 s")
    spans = (Span(Author.PROMPT, (5, 6)), Span(Author.MODEL, (7, 8), (-0.5, -0.25), trainable=True))
    return StoredSample(
        step=step, split="train", index=index, task=task,
        trajectory=Trajectory(f"{step}.{index}", "sum", f"{step}", spans, "2"), reward=reward,
        advantage=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("blocked", "form", "extra"), [("pandas", "pandas", "query"), ("pyarrow", "arrow", "data")]
)
def test_a_missing_package_names_its_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, blocked: str, form: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, blocked, None)
    with pytest.raises(UserError, match=rf"pip install 'burnish\[{extra}\]'"):
        burnish.load_run(folder).samples(form=form)  # type: ignore[arg-type]
