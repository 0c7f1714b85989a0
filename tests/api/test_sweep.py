"""Sweeps: the grid, the plan, and children that end in every way; fakes in place of trainings."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_train import CHATTY, FAIL, FINISH, GUARD, KILLED, LARGE, WAIT
from hypothesis import given, strategies as st

from burnish.api import sweep as engine
from burnish.api.sweep import SweepEvent, find_gpus, parameters_of, run_sweep, sweep
from burnish.api.sweep_plan import Grid, plan_sweep, read_file, read_words, split_values
from burnish.errors import StoreError, UserError
from burnish.store import RunStore
from burnish.store.manifest import read_sweep, sweep_path
from burnish.store.processes import ProcessRecord
from burnish.texts import toml_value

RATE = "optimiser.learning_rate"


# --- the grid


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-6,3e-6", ["1e-6", "3e-6"]), (" a , b ", ["a", "b"]), ("one", ["one"]), ("", [""]),
        ('"a,b",c', ['"a,b"', "c"]), ("'a,b'", ["'a,b'"]), (r'"a\",b",c', [r'"a\",b"', "c"]),
        (r'"a\\",b', [r'"a\\"', "b"]), ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ('{ kind = "raw", x = [1,2] },none', ['{ kind = "raw", x = [1,2] }', "none"]),
    ],
)  # fmt: skip
def test_values_between_commas(text, values):
    assert split_values(text) == values


@given(
    st.lists(
        st.one_of(
            st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
            st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
            st.lists(st.text("a,]\"'\\"), max_size=3),
        ),
        min_size=1,
        max_size=4,
    )
)  # fmt: skip
def test_any_values_written_as_toml_are_parted_again(values):
    texts = [toml_value(value) for value in values]
    assert split_values(",".join(texts)) == texts


@pytest.mark.parametrize("text", ["1,,2", ",1", "1,"])
def test_an_empty_value_is_refused(text):
    with pytest.raises(UserError, match="has an empty value; expected values between commas"):
        split_values(text)


def test_words_are_settings_or_axes():
    grid = read_words(["tiny", "steps=3", f"{RATE}=1,2", 'model.lora.targets=["a","b"]'])
    assert grid.words == ["tiny", "steps=3", 'model.lora.targets=["a","b"]']
    assert grid.axes == [(RATE, ["1", "2"])]


def test_the_product_of_settings_and_seeds_in_order(tmp_path):
    grid = Grid(["tiny", "run.seed=4"], [(RATE, ["1e-4", "1e-3"]), ("steps", ["2", "3"])], 2)
    plan = plan_sweep(grid, tmp_path)
    found = [(*state.run.settings.values(), state.run.seed) for state in plan.states]
    assert found == [
        (1e-4, 2, 4), (1e-4, 2, 5), (1e-4, 3, 4), (1e-4, 3, 5),
        (1e-3, 2, 4), (1e-3, 2, 5), (1e-3, 3, 4), (1e-3, 3, 5),
    ]  # fmt: skip
    assert plan.record.grid == {RATE: [1e-4, 1e-3], "steps": [2, 3]}
    assert plan.record.seeds == [4, 5]
    assert plan.states[0].label == "learning_rate=0.0001 steps=2 seed=4"
    assert plan.states[0].run.words == [
        "tiny", "run.seed=4", f"{RATE}=1e-4", "steps=2", "run.seed=4",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_runs_are_named_as_train_names_them(tmp_path):
    """The order of words, other spellings of a number and of a seed change no name."""
    from burnish.api.launch import choose_folder
    from burnish.config.recipes import resolve

    plan = plan_sweep(Grid(["tiny", "steps=3"], [(RATE, ["1e-4", "1e-3"])], [0, 7]), tmp_path)
    by_hand = choose_folder(resolve(["tiny", "run.seed=7", f"{RATE}=0.001", "steps=3"]), tmp_path)
    assert by_hand == plan.states[3].folder
    again = plan_sweep(Grid(["tiny", f"{RATE}=1e-4"], [("steps", ["3"])]), tmp_path)
    assert again.states[0].run.name == plan.states[0].run.name


def test_a_larger_sample_holds_the_smaller_one(tmp_path):
    axes = [(RATE, [f"{n}e-5" for n in range(1, 8)]), ("steps", ["1", "2", "3"])]
    samples = [plan_sweep(Grid(["tiny"], axes, 2, n), tmp_path) for n in (3, 5, 100)]
    small, large, whole = ([state.run.name for state in plan.states] for plan in samples)
    assert (len(small), len(large), len(whole)) == (6, 10, 42)
    assert set(small) < set(large) < set(whole)
    assert large == [name for name in whole if name in large]  # in the grid's order


def test_a_sweep_file_is_the_same_sweep(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        '[sweep]\nrecipe = "tiny"\nseeds = 2\n[sweep.settings]\nsteps = 3\n'
        "[sweep.grid]\noptimiser.learning_rate = [1e-4, 1e-3]\n"
        '"policy.advantage.kind" = ["sum_then_normalise", "raw"]\n'
    )
    typed = read_words(
        ["tiny", "steps=3", f"{RATE}=1e-4,1e-3", "policy.advantage.kind=sum_then_normalise,raw"]
    )
    there, here = plan_sweep(read_file(file)), plan_sweep(typed._replace(seeds=2))
    assert [state.folder for state in there.states] == [state.folder for state in here.states]
    assert there.record.name == here.record.name
    (tmp_path / "own.toml").write_text(Path("recipes/tiny.toml").read_text())
    file.write_text('[sweep]\nrecipe = "own.toml"\n[sweep.grid]\nsteps = [1, 2]\n')
    assert read_file(file).words == [str(tmp_path / "own.toml")]


@pytest.mark.parametrize(
    ("grid", "line"),
    [
        (Grid(["tiny"], [(RATE, ["1e-4", "0.0001"])]), "the grid holds one run twice"),
        (Grid(["tiny"], [(RATE, ["1"]), (RATE, ["2"])]), "is in the grid twice"),
        (Grid(["tiny"], [("run.name", ["a", "b"])]), "run.name is in the grid"),
        (Grid(["tiny", "run.name=x"], [(RATE, ["1", "2"])]), "run.name is 'x': all runs"),
        (Grid(["tiny"], [("run.seed", ["1", "2"])], 3), "run.seed is in the grid and seeds are"),
        (Grid(["tiny"], [("run.seed", ["1", "x"])]), 'run.seed is "x"; expected'),
        (Grid(["tiny"], [], []), "has 0 runs; expected 1"),
        (Grid(["tiny"], [("steps", [str(n) for n in range(1, 102)])], 100), "has 10100 runs"),
        (Grid(["tiny"], [(RATE, ["1e-4", "fast"])]), "learning_rate is \"fast\"; expected"),
        (Grid(["tiny"], [("optimiser.lerning_rate", ["1", "2"])]), "learning_rate"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_anything_starts(grid, line, tmp_path):
    with pytest.raises(UserError) as refused:
        plan_sweep(grid, tmp_path)
    assert line in str(refused.value)
    assert list(tmp_path.iterdir()) == []


# --- children


@pytest.fixture
def fake(monkeypatch):
    command = (sys.executable, str(Path(__file__).with_name("fake_train.py")))
    monkeypatch.setattr(engine, "TRAIN", command)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(engine, "find_gpus", list)
    monkeypatch.setattr(engine, "usable_cores", lambda: 4)


def kinds(events: list[SweepEvent]) -> list[str]:
    return [event.kind for event in events if event.kind != "progress"]


def environments(folder: Path) -> list[tuple[str, str | None]]:
    found = []
    for run in sorted(folder.glob("tiny-*/")):
        with RunStore.open(run, read_only=True) as store:
            event = store.events("environment")[0]
        found.append((event.message, event.data["cuda"]))
    return found


@pytest.mark.usefixtures("fake")
def test_every_end_is_told_and_failures_wait_for_a_retry(tmp_path):
    rates = [FINISH, FAIL, GUARD, KILLED, CHATTY]
    events: list[SweepEvent] = []
    found = sweep("tiny", {RATE: rates}, runs=tmp_path, jobs=2, show=events.append)
    told = {state.run.settings[RATE]: (state.status, state.reason) for state in found.runs}
    assert told == {
        FINISH: ("finished", ""), FAIL: ("failed", "the data is gone; expected a file."),
        GUARD: ("failed", "no useful group"), KILLED: ("failed", "killed by SIGKILL"),
        CHATTY: ("finished", ""),
    }  # fmt: skip
    assert kinds(events)[:3] == ["jobs", "started", "started"]
    assert events[0].text == "5 runs to train, 2 at once, as asked"
    assert found.runs[1].before == 0.25
    assert found.table is not None
    assert repr(found) == f"<sweep {found.name}: 2 of 5 runs finished>"
    assert "learning_rate=1e-05" in found._repr_html_()
    stored = read_sweep(sweep_path(tmp_path, found.name))
    assert [run.failure for run in stored.runs][1:4] == [told[r][1] for r in (FAIL, GUARD, KILLED)]

    again = sweep("tiny", {RATE: rates}, runs=tmp_path, show=events.append)
    assert kinds(events).count("started") == 5
    assert [state.reason for state in again.runs] == [state.reason for state in found.runs]

    tried: list[SweepEvent] = []
    sweep("tiny", {RATE: rates}, runs=tmp_path, retry=True, show=tried.append)
    assert kinds(tried).count("started") == 3
    assert kinds(tried).count("failed") == 3


@pytest.mark.usefixtures("fake")
def test_leaving_early_interrupts_what_is_under_way(tmp_path):
    plan = plan_sweep(Grid(["tiny"], [(RATE, [str(WAIT), str(FINISH)])], 2), tmp_path)
    began = time.monotonic()
    events = run_sweep(plan, jobs=2)
    waiting = 2
    for event in events:
        waiting -= event.kind == "progress" and event.state.before is not None
        if waiting <= 0:
            break
    events.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 60
    assert [state.status for state in plan.states] == ["interrupted"] * 2 + ["waiting"] * 2
    later = plan_sweep(Grid(["tiny"], [(RATE, [str(WAIT), str(FINISH)])], 2), tmp_path)
    assert [state.status for state in later.states] == ["interrupted"] * 2 + ["waiting"] * 2


def test_a_run_that_sigterm_ended_is_continued(tmp_path):
    grid = Grid(["tiny"], [(RATE, [str(FINISH)])], 1)
    folder = plan_sweep(grid, tmp_path).states[0].folder
    with RunStore.create(folder, {}, {}):
        record = ProcessRecord(folder, rank=1, size=2)
        record.die("signal", "interrupted with SIGTERM", exception="SIGTERM")
    assert [state.status for state in plan_sweep(grid, tmp_path).states] == ["interrupted"]


@pytest.mark.usefixtures("fake")
def test_as_many_at_once_as_cores_and_memory_allow(tmp_path):
    """Four cores; a small run allows all of them, a run of 10 GiB in 16 GiB free only itself."""
    small: list[SweepEvent] = []
    sweep("tiny", {RATE: [FINISH]}, seeds=5, runs=tmp_path / "small", show=small.append)
    assert kinds(small)[:5] == ["started", "jobs", *["started"] * 3]
    assert small[1].text.startswith(
        "5 runs to train, 4 at once: 4 cores, 1 thread each; a run needs"
    )
    assert environments(tmp_path / "small") == [("1", None)] * 5
    large: list[SweepEvent] = []
    sweep("tiny", {RATE: [LARGE]}, seeds=2, runs=tmp_path / "large", show=large.append)
    assert kinds(large) == ["started", "jobs", "finished", "started", "finished"]
    assert "1 at once" in large[1].text


@pytest.mark.usefixtures("fake")
def test_cores_are_divided_among_few_runs(tmp_path):
    sweep("tiny", {RATE: [FINISH]}, seeds=2, runs=tmp_path)
    assert environments(tmp_path) == [("2", None)] * 2


@pytest.mark.usefixtures("fake")
def test_runs_are_dealt_to_gpus(tmp_path, monkeypatch):
    gpus = [engine.Gpu("0", 16 << 30), engine.Gpu("3", 16 << 30)]
    monkeypatch.setattr(engine, "find_gpus", lambda: gpus)
    events: list[SweepEvent] = []
    sweep("tiny", {RATE: [LARGE]}, seeds=2, runs=tmp_path, show=events.append)
    assert kinds(events)[:2] == ["started", "started"]
    assert sorted(str(cuda) for _, cuda in environments(tmp_path)) == ["0", "3"]


def test_gpus_as_the_driver_lists_them(monkeypatch):
    listed = "0, GPU-aa, 81000\n1, GPU-bb, 500\n"
    done = subprocess.CompletedProcess([], 0, listed, "")
    monkeypatch.setattr(engine.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(engine.subprocess, "run", lambda *a, **k: done)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert find_gpus() == [("0", 81000 << 20), ("1", 500 << 20)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    assert find_gpus() == [("GPU-bb", 500 << 20)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus() == []


def test_a_models_size_is_guessed_from_its_files(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    assert parameters_of(str(tmp_path)) == 1000
    assert parameters_of("tiny") < parameters_of("smollm2")
    assert parameters_of(str(tmp_path / "none")) == 0


@pytest.fixture
def being_written(tmp_path):
    plan = plan_sweep(Grid(["tiny", f"{RATE}={FINISH}"], []), tmp_path)
    with RunStore.create(plan.states[0].folder, {}, {}):
        yield tmp_path


@pytest.mark.usefixtures("fake")
def test_a_run_of_another_process_is_left_to_it(being_written):
    events: list[SweepEvent] = []
    found = sweep("tiny", {RATE: [FINISH]}, runs=being_written, show=events.append)
    assert ([state.status for state in found.runs], events) == (["elsewhere"], [])
    assert found.table is None


@pytest.mark.usefixtures("fake")
def test_of_two_equal_sweeps_at_once_the_second_says_who_trains_it(tmp_path):
    grid = Grid(["tiny"], [(RATE, [str(FINISH), str(CHATTY)])])
    first = run_sweep(plan_sweep(grid, tmp_path), jobs=1)
    next(first)
    with pytest.raises(StoreError, match=r"is being trained by pid \d+ on .*--list"):
        next(run_sweep(plan_sweep(grid, tmp_path)))
    late = plan_sweep(grid, tmp_path)
    assert [event.kind for event in first][-1] == "finished"
    # The plan was made while the first one trained: nothing is left to do.
    assert list(run_sweep(late)) == []
    assert {state.status for state in late.states} == {"finished"}


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot make .*runs: Not a directory\."):
        sweep("tiny", {RATE: [FINISH]}, runs=tmp_path / "file" / "runs")
