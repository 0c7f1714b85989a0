import json
import runpy
import statistics
import sys
from pathlib import Path

import _speed_children as children
import msgspec
import pytest
import speed
import torch
from _speed_records import Device, DeviceJob, PeerResult, Rates, Result, Row
from speed_cases import RATES, peer, result, row


@pytest.fixture
def in_this_process(monkeypatch):
    """Children run here, where torch is already imported; the first, of the device, as it is."""
    real, threads = children._wait, torch.get_num_threads()

    def wait(command, limit_s):
        script = Path(command[1])
        if script.name == "_speed_floor.py":
            return real(command, limit_s)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", command[1:])
            runpy.run_path(str(script), run_name="__main__")
        return ""

    monkeypatch.setattr(children, "_wait", wait)
    yield
    torch.set_num_threads(threads)


def test_quick_run_writes_raw_numbers_and_figures_made_of_them(tmp_path, in_this_process):
    out = tmp_path / "out.json"
    words = [
        "--quick", "--parts", "generation,tail,step,memory", "--without-trl", "--json", str(out),
    ]  # fmt: skip
    assert speed.main(words) == 0
    report = json.loads(out.read_text())
    assert report["status"] == "ok"
    assert report["model"] == "tiny"
    assert report["device"]["rates"]["float32"]["bytes_per_s"] > 1e6
    assert set(report["device"]["versions"]) >= {"torch", "transformers", "trl"}
    assert_generation(report["parts"]["generation"])
    assert_tail(report["parts"]["tail"])
    assert_step(report["parts"]["step"])
    memory = report["parts"]["memory"]["figures"][0]
    raw = report["parts"]["memory"]["raw"][0]["burnish"]
    assert memory["update_ratio"] == raw["forecast_bytes"]["activations"] / raw["update_bytes"]
    assert memory["update_parts"] == "activations"


def assert_generation(part):
    rows = {(r["program"], r["layout"]): r for r in part["raw"]}
    assert set(rows) == {("burnish", "groups"), ("burnish", "distinct"), ("generate", "distinct")}
    for r in part["raw"]:
        assert r["tokens"] == 8 * 8
        assert len(r["seconds"]) == 3
    slow = statistics.median(rows["generate", "distinct"]["seconds"])
    assert [f["layout"] for f in part["figures"]] == ["groups", "distinct"]
    for figure in part["figures"]:
        own = rows["burnish", figure["layout"]]
        fast = statistics.median(own["seconds"])
        assert figure["ratio"] == pytest.approx(slow / fast)
        assert figure["tokens_per_s"] == pytest.approx(64 / fast)
        assert figure["floor_share"] == pytest.approx(own["floor_s"] / fast)


def assert_tail(part):
    rows = {(r["program"], r["layout"]): r for r in part["raw"]}
    tail, full = rows["burnish", "tail"], rows["burnish", "full"]
    # A random model draws a line's end now and then.
    assert len(set(tail["lengths"])) > 1
    assert (len(tail["lengths"]), tail["new_tokens"]) == (16, 64)
    longest = max(tail["lengths"])
    assert tail["tokens"] == sum(tail["lengths"]) < 16 * longest
    assert full["tokens"] == rows["generate", "full"]["tokens"] == 16 * longest
    (figure,) = part["figures"]
    assert (figure["longest"], figure["budget"]) == (longest, 64)
    assert not figure["is_lower_bound"]
    # Lengths are the seeds' doing alone, so runs agree.
    assert "lengths differ" not in figure["note"]


def assert_step(part):
    (record,), (figure,) = part["raw"], part["figures"]
    steps = record["burnish"]["steps"]
    assert len(steps) == 4
    kept = [s["seconds"] for s in steps[record["size"]["warm"] :]]
    assert figure["step_s"] == pytest.approx(statistics.median(kept))
    assert figure["ratio"] is None
    for s in steps:
        assert 0 < s["rollout_s"] + s["score_s"] + s["update_s"] <= s["seconds"]
        assert s["rollouts"] == 8


class FakeChildren:
    """Plays the child processes; `broken` scripts fail."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken

    def __call__(self, script: str, job, kind, **_) -> children.Outcome:
        if script in self.broken:
            return children.Outcome(None, f"{script} ended with 1: the GPU fell off", 1.0)
        return children.Outcome(self._value(script, job), "", 1.0)

    def _value(self, script: str, job) -> Device | list[Row] | Result | PeerResult:
        if script == "_speed_floor.py":
            assert isinstance(job, DeviceJob)
            rates: dict[str, Rates] = {"float32": RATES, "bfloat16": RATES}
            about = {"kind": "cpu", "name": "abacus", "threads": 1, "memory_bytes": 1}
            return Device(python="3", versions={}, rates=rates, **about)
        if script == "_speed_generation.py":
            return [row("burnish", "groups", [1.0]), row("generate", "distinct", [3.0])]
        if script == "_burnish_step.py":
            return result(4.0, 1.0)
        return peer(6.0, 2.0)


def run_with(monkeypatch, fake: FakeChildren, tmp_path: Path, *words: str):
    monkeypatch.setattr(children, "run", fake)
    out = tmp_path / "out.json"
    code = speed.main(["--json", str(out), *words])
    return code, msgspec.json.decode(out.read_bytes()) if out.exists() else {}


def test_a_part_that_fails_is_named_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    fake = FakeChildren("_speed_generation.py")
    code, report = run_with(monkeypatch, fake, tmp_path, "--parts", "generation,learn")
    assert code == 1
    assert report["status"] == "failed"
    assert report["parts"]["generation"]["status"] == "failed"
    assert "the GPU fell off" in report["parts"]["generation"]["error"]
    assert report["parts"]["learn"]["status"] == "ok"
    assert report["parts"]["learn"]["figures"][0]["after"] == 0.75
    assert "the GPU fell off" in capsys.readouterr().out


def test_a_child_leaves_what_it_wrote_and_why_it_ended(monkeypatch, tmp_path, capfd):
    script = tmp_path / "half.py"
    script.write_text(
        "import pathlib, sys\n"
        "pathlib.Path(sys.argv[2]).write_text('[1, 2]')\n"
        "print('speed: half way', file=sys.stderr)\n"
        "print('noise of a library', file=sys.stderr)\n"
        "raise RuntimeError('no more memory')\n"
    )
    monkeypatch.setattr(children, "HERE", tmp_path)
    outcome = children.run("half.py", RATES, list[int])
    assert outcome.value == [1, 2]
    assert outcome.error == "half.py ended with 1: RuntimeError: no more memory"
    shown = capfd.readouterr().err
    assert "speed: half way" in shown
    assert "noise" not in shown


def test_a_child_that_hangs_is_stopped(monkeypatch, tmp_path):
    (tmp_path / "hang.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(children, "HERE", tmp_path)
    outcome = children.run("hang.py", RATES, list[int], limit_s=0.5)
    assert outcome.error == "hang.py was stopped after 0.5 s"
    assert outcome.value is None
    assert outcome.seconds < 50
