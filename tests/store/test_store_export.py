"""A run for other tools: files, data frames, SQL."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from store_samples import make_step

from burnish.cli.entry import run as burnish
from burnish.errors import StoreError, UserError
from burnish.store import RunStore, export


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    with RunStore.create(folder, {}, {}) as store:
        for step in range(3):
            store.append_rollouts(step, make_step(step))
            store.append_metrics(step, {"loss": step / 3, "kl": None})
    return folder


def test_json_lines_hold_every_sample_as_objects(run, tmp_path):
    assert export(run, tmp_path / "out.jsonl") == 24
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    sample = make_step(0)[0]
    assert len(rows) == 24
    assert rows[0]["token_ids"] == list(sample.trajectory.token_ids)
    assert rows[0]["reward"] == sample.reward.value
    assert rows[0]["reward_tree"]["parts"][1]["status"] == "timeout"
    assert rows[0]["task"]["fields"] == {"answer": "5"}
    assert rows[0]["keep"] is True


def test_json_is_one_list_even_when_empty(run, tmp_path):
    export(run, tmp_path / "out.json", what="metrics")
    rows = json.loads((tmp_path / "out.json").read_text())
    assert rows[:2] == [
        {"step": 0, "name": "kl", "value": None},
        {"step": 0, "name": "loss", "value": 0.0},
    ]
    with RunStore.create(tmp_path / "empty", {}, {}) as store:
        assert export(store, tmp_path / "none.json") == 0
    assert json.loads((tmp_path / "none.json").read_text()) == []


def test_csv_reads_back_the_same_numbers(run, tmp_path):
    assert export(run, tmp_path / "out.csv") == 24
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    sample = make_step(2)[6]
    row = next(r for r in rows if r["id"] == sample.id)
    assert float(row["reward"]) == sample.reward.value
    assert json.loads(row["logprobs"])[10] == sample.trajectory.logprobs[0]


FORMULAS = [
    "=1+1", "+1", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\ttext", "\rtext", " =1", '"=1"',
    "'=1", "\ufeff=1", "\u200b=1", "\x00=1", "\n- a list", "＝1", "－1", "＠a", "-1.5",
]  # fmt: skip
TEXTS = ["", "plain", "1-1", "a=b", "me@example.org", "'quoted'", "\nline", '["a", -1]']


@pytest.fixture
def hostile(tmp_path):
    """A run whose answers a spreadsheet would run."""
    folder = tmp_path / "hostile"
    change = msgspec.structs.replace
    with RunStore.create(folder, {}, {}) as store:
        for step, text in enumerate([*FORMULAS, *TEXTS]):
            sample = make_step(0)[0]
            said = change(sample.trajectory, text=text)
            store.append_rollouts(step, [change(sample, step=step, trajectory=said)])
            store.append_metrics(step, {"=cmd": -1.5})
    return folder


def _column(path: Path, name: str) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file)]


def test_no_text_of_a_csv_is_a_formula(hostile, tmp_path):
    export(hostile, tmp_path / "out.csv")
    assert _column(tmp_path / "out.csv", "response") == [f"'{f}" for f in FORMULAS] + TEXTS
    export(hostile, tmp_path / "curves.csv", what="metrics")
    assert set(_column(tmp_path / "curves.csv", "name")) == {"'=cmd"}
    assert set(_column(tmp_path / "curves.csv", "value")) == {"-1.5"}


def test_texts_stay_as_they_are_where_asked_and_in_other_formats(hostile, tmp_path):
    export(hostile, tmp_path / "out.csv", raw=True)
    assert _column(tmp_path / "out.csv", "response") == [*FORMULAS, *TEXTS]
    export(hostile, tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["response"] for line in lines] == [*FORMULAS, *TEXTS]


def test_parquet_has_typed_columns(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    assert export(run, tmp_path / "out.parquet") == 24
    table = parquet.read_table(tmp_path / "out.parquet")
    assert str(table.schema.field("logprobs").type) == "list<element: double>"
    assert str(table.schema.field("advantage").type) == "double"
    row = table.to_pylist()[5]
    sample = make_step(0)[5]
    assert row["advantage"] == sample.advantage
    assert row["logprobs"][10:26] == list(sample.trajectory.logprobs)
    assert row["logprobs"][0] is None


def test_pandas_and_duckdb_read_a_run(run, tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs the query extra")
    duckdb = pytest.importorskip("duckdb", reason="needs the query extra")
    with sqlite3.connect(run / "run.db") as plain:
        frame = pandas.read_sql("SELECT step, reward FROM samples WHERE split = 'train'", plain)
    expected = [sum(s.reward.value or 0.0 for s in make_step(step)[:7]) / 7 for step in range(3)]
    assert frame.groupby("step").reward.mean().tolist() == pytest.approx(expected)
    export(run, tmp_path / "out.parquet")
    query = (
        f"SELECT step, avg(reward) FROM '{tmp_path / 'out.parquet'}' "
        "WHERE split = 'train' GROUP BY step ORDER BY step"
    )
    found = duckdb.sql(query).fetchall()
    assert found == [(step, pytest.approx(mean)) for step, mean in enumerate(expected)]


def test_the_command_keeps_raw_cells_where_asked(hostile, tmp_path):
    target = tmp_path / "out.csv"
    assert burnish(["export", str(hostile), str(target)]) == 0
    assert _column(target, "response")[0] == "'=1+1"
    assert burnish(["export", str(hostile), str(target), "--raw"]) == 0
    assert _column(target, "response")[0] == "=1+1"


def test_mistakes_are_one_line(run, tmp_path):
    with pytest.raises(UserError, match=r"unknown format '\.parqet'; .* mean '\.parquet'"):
        export(run, tmp_path / "out.parqet")
    with pytest.raises(StoreError, match=r"cannot write .*out\.csv: No such file"):
        export(run, tmp_path / "absent" / "out.csv")


def test_a_failed_export_leaves_what_was_there(run, tmp_path):
    target = tmp_path / "files" / "out.jsonl"
    target.parent.mkdir()
    target.write_text("before")
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom burnish.errors import StoreError\n"
        "from burnish.store import export\nresource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "try:\n    export(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except StoreError as error:\n    print(error)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(run), str(target)], capture_output=True, text=True,
        env=dict(os.environ), check=False,
    )  # fmt: skip
    assert "out.jsonl: File too large." in child.stdout, child.stderr
    assert target.read_text() == "before"
    assert os.listdir(target.parent) == ["out.jsonl"]


def test_the_store_needs_neither_torch_nor_data_frames():
    code = (
        "import sys\n"
        "for name in ('torch', 'pandas', 'pyarrow', 'duckdb', 'numpy'):\n"
        "    sys.modules[name] = None\n"
        "import burnish.store\n"
        "print('ready')\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "ready\n"
