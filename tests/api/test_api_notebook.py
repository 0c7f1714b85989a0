"""`burnish.train` in a real Jupyter kernel: live output, the same cell twice, an interrupt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from burnish.bench.statistics import Estimate
from burnish.cli.progress import NotebookView, Watch, in_notebook
from burnish.training.data import AnswerBudget, PromptReport
from burnish.training.events import Finished, HeldOut, Started, StepDone
from burnish.training.forecast import Forecast

SETUP = """
import burnish
rows = [{"prompt": f"Write the digit {n}.", "answer": str(n)} for n in range(10)]
def has_digit(text, answer):
    return float(any(letter.isdigit() for letter in text))
def go(**more):
    return burnish.train("grpo", model="tiny", data=rows, rewards=[has_digit],
        rollout={"prompts": 2, "samples": 4, "max_tokens": 4}, evaluation={"prompts": 2}, **more)
"""


class Kernel:
    """A kernel to which cells are sent, one after another."""

    def __init__(self, folder: Path) -> None:
        client = pytest.importorskip("jupyter_client")
        pytest.importorskip("ipykernel")
        # The kernel is this very Python, with the same packages in sight.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self.manager = client.KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, stop_when: str = "") -> list[dict[str, Any]]:
        """The outputs of a cell; interrupted once an output holds `stop_when`."""
        request = self.client.execute(code)
        outputs: list[dict[str, Any]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return outputs
            outputs.append({"kind": kind, **content})
            if stop_when and stop_when in str(content):
                stop_when = ""
                self.manager.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    found = Kernel(tmp_path_factory.mktemp("notebook"))
    found.run(SETUP)
    yield found
    found.close()


def test_a_cell_trains_with_one_output_that_is_updated(kernel):
    outputs = kernel.run("run = go(steps=2)\nrun")
    kinds = [one["kind"] for one in outputs]
    assert "error" not in kinds, outputs
    assert kinds.count("display_data") == 1
    assert "update_display_data" in kinds
    last = [one for one in outputs if one["kind"] == "update_display_data"][-1]
    assert "2/2" in last["data"]["text/html"]
    (result,) = [one for one in outputs if one["kind"] == "execute_result"]
    assert "finished" in result["data"]["text/plain"]
    again = kernel.run("go(steps=2).folder == run.folder")
    assert again[-1]["data"]["text/plain"] == "True"


def test_the_stop_button_stops_and_the_same_cell_goes_on(kernel):
    code = "run = go(steps=12, seed=3)\nprint(run.status, run.summary.sessions)"
    outputs = kernel.run(code, stop_when="1/12")
    (error,) = [one for one in outputs if one["kind"] == "error"]
    assert error["ename"] == "KeyboardInterrupt"
    assert "the same call continues it" in error["evalue"]
    said = "".join(one["text"] for one in kernel.run(code) if one["kind"] == "stream")
    assert "finished 2" in said


def test_the_page_is_text_and_says_what_happened():
    view = NotebookView(("<b>2 rows</b> skipped",), Watch(16))
    view.close = lambda: None  # type: ignore[method-assign]
    forecast = Forecast({"weights": 2**20}, 2**33)
    sizes = {
        "parameters": 115_264, "trained_parameters": 115_264, "threads": 1, "steps": 3, "done": 0,
    }  # fmt: skip
    view.show(
        Started(
            folder=Path("runs/x"), model="tiny", device="cpu", dtype="float32", forecast=forecast,
            prompts=PromptReport(5, 62), answers=AnswerBudget(16, ""), **sizes,
        )
    )  # fmt: skip
    view.show(HeldOut(0, Estimate(0.3, 0.2, 0.4, 100), 100, 100))
    for step in range(2):
        metrics = {"reward/total": 0.1 * step, "time/step_s": 0.5}
        view.show(StepDone(step, 3, metrics, 5, 8, 0.5, 800.0, 2.0, reused=False))
    view.show(Finished("finished", "", Path("runs/x")))
    page = view.text()
    assert "data: <b>2 rows</b> skipped" in page
    assert "2/3" in page
    assert "finished" in page


def test_a_terminal_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook()
