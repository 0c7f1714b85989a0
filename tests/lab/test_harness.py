"""The harness from end to end on the tiny model, and its recipes."""

import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from lab.harness import Options, run_studies
from lab.plan import GPU, METHODS, TRIAL, Arm, Study, studies_of
from lab.recipes import arm_settings, run_name, start_settings, write_recipe
from lab.report import write_report
from lab.slots import Record, Slot, start_id, stored
from lab.tables import Tables
from tiny_study import SIZES, STUDY

import warm
from burnish.store import RunStore
from lab import slots


class Done(NamedTuple):
    home: Path
    records: dict[tuple[str, int], Record]


def quick_run(command, *, stdout, stderr, env, timeout):
    """`subprocess.run` without a new import of torch; once as it is, for the start's own figures."""
    if Path(stdout.name).stem == "start-measured":
        return subprocess.run(command, stdout=stdout, stderr=stderr, env=env, timeout=timeout)
    python, flag, module, *words = command
    assert (python, flag, stderr) == (sys.executable, "-m", subprocess.STDOUT)
    code = warm.run(module, words, log=stdout.name, environment=env, timeout=timeout)
    return subprocess.CompletedProcess(command, code)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    home = tmp_path_factory.mktemp("studies")
    quick = SimpleNamespace(**{**vars(subprocess), "run": quick_run})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "subprocess", quick)
        kept = []
        found = run_studies([STUDY], Options(home, SIZES, jobs=2), lambda line: None, kept.append)
        assert sorted((r.arm, r.seed) for r in kept) == sorted(
            (r.arm, r.seed) for r in found["tiny"]
        )
    return Done(home, {(r.arm, r.seed): r for r in found["tiny"]})


def test_every_arm_and_seed_is_run_and_measured(done):
    for arm in ("slow", "fast, much"):
        for seed in (0, 1):
            record = done.records[arm, seed]
            assert (record.status, record.reason) == ("finished", "")
            assert record.row["is_trained"] == record.row["has_start"] == 1.0
            assert record.row["asked"] == SIZES.prompts
            assert [row["done"] for row in record.curves] == [0, 1, 2]
            assert record.row["train_s"] > 0
    assert done.records["(start)", 0].row["is_trained"] == 0.0


def test_a_failing_arm_has_a_reason_and_no_figure(done):
    for seed in (0, 1):
        record = done.records["broken", seed]
        assert record.status == "failed"
        assert "training ended with code 3" in record.reason
        assert "100% of the rewards of step 1 have no value" in record.reason
        assert record.row == {}
        assert record.curves == []


def test_all_arms_begin_with_the_same_weights(done):
    folder = done.home / "tiny"
    for arm in ("slow", "fast, much"):
        recipe = tomllib.loads((folder / f"{run_name(arm, 1)}.toml").read_text())
        assert recipe["model"]["path"] == "start/stages/warm_start/final"
        assert recipe["stages"] == []
        assert recipe["run"]["seed"] == 1
    scores = {r.row["score_start"] for r in done.records.values() if "score_start" in r.row}
    assert len(scores) == 1


def test_trained_tokens_are_those_of_rollouts_that_move_something(done):
    record = done.records["fast, much", 0]
    with RunStore.open(done.home / "tiny" / "fast--much-seed0", read_only=True) as store:
        moving = [s for s in store.samples(split="train") if s.keep and s.advantage]
        tokens = sum(s.trajectory.trained_tokens for s in moving)
    assert record.row["trained_tokens"] == tokens > 0


def test_finished_runs_are_not_repeated_and_none_begins_late(done):
    before = {file: file.stat().st_mtime_ns for file in done.home.glob("tiny/*.record.json")}
    options = Options(done.home, SIZES, minutes=1e-9)
    again = run_studies([STUDY], options, lambda line: None)["tiny"]
    assert {(r.arm, r.seed) for r in again} == {
        ("(start)", 0),
        *((arm, seed) for arm in ("slow", "fast, much") for seed in (0, 1)),
    }
    assert all(r == done.records[r.arm, r.seed] for r in again)
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_results_name_failures_and_pair_seeds(done, tmp_path):
    Tables.of(list(done.records.values()), jobs=2).write(tmp_path, ["tiny"])
    text = write_report("tiny", [STUDY], tmp_path)
    assert text == (tmp_path / "table.md").read_text()
    assert "| the start model | 1 | 0.000 |" in text
    assert "| slow | 2 | 1.000 ± 0.000 |" in text
    assert "| broken | 0 |  |" in text
    assert "Failed: broken, seed 1: training ended with code 3" in text
    assert "up to 2 runs sharing the device" in text
    pytest.importorskip("matplotlib")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_a_record_of_other_settings_is_not_taken(done):
    file = done.home / "tiny" / "slow-seed0.toml"
    record = done.records["slow", 0]
    slot = Slot("tiny", "slow", 0, file, "other", None, measure="tiny_study:measure", prompts=7)
    assert stored(slot) is None
    own, start, *_ = record.digest.split()
    assert start == record.row["start"] == start_id(done.home / "tiny")
    slot = dataclasses.replace(slot, digest=own, start_id=start)
    assert stored(slot) == record
    assert stored(dataclasses.replace(slot, start_id="other")) is None
    assert stored(dataclasses.replace(slot, prompts=8)) is None


def test_a_half_written_record_is_not_taken(tmp_path):
    slot = Slot("s", "a", 0, tmp_path / "a-seed0.toml", "", None)
    slot.record.write_text('{"study": "s", "arm"')
    assert stored(slot) is None


def test_a_broken_start_fails_its_own_study_alone(tmp_path):
    study = Study("lost", "?", (Arm("a", "tiny"),), (), start={"stages.0.stepps": 2})
    other = Study("none", "?", (), (), start=None)
    found = run_studies([study, other], Options(tmp_path, SIZES), lambda line: None)
    assert [(r.status, r.seed) for r in found["lost"]] == [("failed", 0), ("failed", 1)]
    assert "stages" in found["lost"][0].reason
    assert found["none"] == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", [GPU, TRIAL], ids=["gpu", "trial"])
def test_every_recipe_of_every_study_is_valid(method, sizes, tmp_path):
    for study in studies_of(method):
        if study.start is not None:
            settings = start_settings(study, sizes)
            write_recipe(tmp_path / "start.toml", study.arms[0].recipe, settings)
            start = tomllib.loads((tmp_path / "start.toml").read_text())
            assert start["optimiser"]["learning_rate"] == 0.0
        digests = set()
        for arm in study.arms:
            settings = arm_settings(study, arm, 0, sizes)
            digests.add(write_recipe(tmp_path / "arm.toml", arm.recipe, settings))
        assert len(digests) == len(study.arms), "two arms are the same"
        assert len({run_name(arm.name, 0) for arm in study.arms}) == len(study.arms)
