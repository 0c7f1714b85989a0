"""The notebooks of `examples/notebooks` run from nothing, and their stored outputs are clean."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def run_notebook(
    name: str, values: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Any]:
    """The notebook after a run in an empty folder, and what the expression `values` gives then."""
    # The kernel is this very Python, with the same packages in sight.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    last = nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({values}))")
    notebook.cells.append(last)
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources=resources
    )
    client.execute()  # an error in a cell is raised here
    return notebook, json.loads(last.outputs[-1].text)


def outputs_of(notebook: Any) -> list[Any]:
    return [out for cell in notebook.cells for out in cell.get("outputs", ())]


def test_first_run(tmp_path, monkeypatch):
    values = (
        "{'status': run.status, 'rows': len(answers), 'why': run.why(answers.iloc[-1]).parts,"
        " 'paid': answers.reward.iloc[-1], 'curve': list(run.metrics()['reward/total']),"
        " 'difference': found.difference, 'settings': list(found.settings)}"
    )
    notebook, found = run_notebook("first_run", values, tmp_path, monkeypatch)
    assert found["status"] == "finished"
    assert found["rows"] == 20 * 4 * 8
    assert found["why"] == {"digits": found["paid"]}
    assert sum(found["curve"][-4:]) > sum(found["curve"][:4]) + 1  # it learned
    assert found["difference"] > 0
    assert found["settings"] == ["optimiser.learning_rate"]
    pictures = [out for out in outputs_of(notebook) if "image/png" in out.get("data", {})]
    assert len(pictures) == 1  # the curves are a picture and not the name of an object
    assert str(tmp_path) not in json.dumps(outputs_of(notebook))


def test_judges(tmp_path, monkeypatch):
    values = (
        "{'biased': verdict.values, 'failed': [failed.value, failed.status], 'paid': paid.values,"
        " 'cost': cost(paid), 'again': replayed.values, 'report': report.verdict,"
        " 'bad': [f.name for f in report.findings if f.is_bad],"
        " 'gold': audit.gold.gold_shift, 'findings': [f.monitor for f in audit.findings]}"
    )
    _, found = run_notebook("judges", values, tmp_path, monkeypatch)
    assert found["biased"] == [0, 0]  # the two orders disagree
    assert found["failed"] == [None, "parse_error"]
    assert found["paid"] == found["again"] == [-1, 1]
    assert found["cost"] == pytest.approx(2 * 0.0002)
    assert found["bad"] == ["repetition"]
    assert found["gold"] > 0
    assert "entropy" in found["findings"]


def test_new_method(tmp_path, monkeypatch):
    values = (
        "{'by_rank': by_rank.tolist(), 'kinds': [run.config.policy.advantage.__struct_config__.tag"
        " for run in runs.values()], 'rise': list(curves.tail(4).mean() - curves.head(4).mean()),"
        " 'differ': [list(one.settings) for one in compared],"
        " 'difference': [one.difference for one in compared]}"
    )
    _, found = run_notebook("new_method", values, tmp_path, monkeypatch)
    assert found["by_rank"] == [0.75, 0.25, -0.25, -0.75]
    assert found["kinds"] == ["sum_then_normalise"] * 2 + ["function"] * 2
    assert min(found["rise"]) > 0.2  # each of the four runs learned
    assert all("policy.advantage.kind" in keys for keys in found["differ"])
    assert None not in found["difference"]


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_clean(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = outputs_of(notebook)
    assert outputs
    assert not [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    text = json.dumps(outputs)
    assert not [word for word in ("/tmp/", "/home/", "/Users/", "Warning") if word in text]
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 200_000


def test_the_notebooks_are_known():
    assert NAMES == ["first_run", "judges", "new_method"]
