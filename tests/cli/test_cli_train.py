"""`burnish train` around a training package that plays given events."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_training import FakeTrainer

from burnish.api import launch
from burnish.api.launch import choose_folder
from burnish.cli import console
from burnish.cli.entry import run
from burnish.config.recipes import resolve
from burnish.errors import GuardTripped, ModelError, UserError
from burnish.store import RunStatus, RunStore

RECIPE = """# burnish train small.toml
# A tiny random model on sums.
steps = 3

[model]
path = "tiny"

[task]
kind = "arithmetic"

[[rewards]]
kind = "numeric"
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe file in the working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return Path("small.toml")


@pytest.fixture
def training(monkeypatch):
    """The fake training package; `training.error` is raised in the middle of a run."""
    training = SimpleNamespace(error=None, folders=[])

    def build(resolved: object, folder: Path, *, root: Path, **asked: object) -> FakeTrainer:
        training.folders.append(folder)
        return FakeTrainer(folder, training.error)

    training.build = build
    monkeypatch.setattr(launch, "import_training", lambda: training)
    return training


def test_the_end_shows_the_change_the_curves_and_where_to_look(typed, recipe, training):
    shown = typed("train", recipe).out
    assert (
        "held out  0.320 [0.237, 0.417] -> 0.610 [0.512, 0.700]; change +0.290 [+0.200, +0.380], "
        "paired over 100 prompts, greedy answers, 95 % intervals  (finished in 1 min 23 s)"
    ) in shown
    folder = training.folders[0]
    assert f"burnish show {folder.name}    burnish runs\n" in shown
    assert str(folder / "checkpoints" / "step-000003") in shown
    assert "mean length (tokens)" in shown
    assert (folder / "plots" / "curves.png").stat().st_size > 5_000


def test_the_run_is_named_after_recipe_and_settings(typed, recipe, training):
    typed("train", recipe, "--quiet")
    typed("train", recipe, "run.seed=1", "--quiet")
    typed("train", recipe, "run.name=mine", "--runs", "elsewhere", "--quiet")
    first, second, third = training.folders
    assert first.parent == Path("runs")
    assert first.name.startswith("small-")
    assert len(first.name) == len("small-") + 8
    assert second.name != first.name
    assert third == Path("elsewhere/mine")


def older_run(name: str, created: str, drop: str = "steps", **changes: object) -> Path:
    """An unfinished run of `small.toml` by a burnish that did not know the setting `drop`."""
    asked = resolve(["small.toml"])
    known = {k: v for k, v in asked.resolved.flat().items() if k != drop} | changes
    folder = Path("runs") / name
    RunStore.create(folder, known, asked.resolved.origins, config_hash="old").close()
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"created": created}))
    return folder


def test_a_run_older_than_a_setting_is_found_again(typed, recipe, training):
    older_run("small-00000000", "2026-01-01", "rollout.top_k")
    newest = older_run("small-11111111", "2026-01-03", "rollout.top_k")
    older_run("small-22222222", "2026-01-02", "rollout.top_k")
    older_run("small-33333333", "2026-01-04", "rollout.top_k", **{"run.seed": 5})
    older_run("small-44444444", "2026-01-05", "rollout.top_k", **{"run.name": "small-44444444"})
    older_run("other-55555555", "2026-01-06", "rollout.top_k")
    (Path("runs") / "small-66666666").mkdir()
    (Path("runs") / "small-66666666" / "config.json").write_text("{}")
    assert choose_folder(resolve(["small.toml"])) == newest
    assert choose_folder(resolve(["small.toml", "rollout.top_k=7"])) not in [
        *Path("runs").iterdir()
    ]
    typed("train", recipe, "--quiet")
    assert training.folders == [newest]


def test_the_folder_of_the_very_config_comes_first(recipe):
    own = choose_folder(resolve(["small.toml"]))
    older_run(own.name, "2026-01-01", "rollout.top_k")
    older_run("small-11111111", "2026-01-03", "rollout.top_k")
    assert choose_folder(resolve(["small.toml"])) == own


def test_a_file_is_typed_as_it_was_given_and_a_shipped_recipe_by_its_name(recipe):
    assert resolve(["small.toml"]).typed == "small.toml"
    assert resolve([str(recipe.absolute())]).typed == str(recipe.absolute())
    assert resolve(["grpo"]).typed == "grpo"
    assert resolve([]).typed == "quickstart"
    Path("grpo.toml").write_text(RECIPE)
    assert resolve(["grpo.toml"]).typed == "grpo.toml"


def test_bounds_that_cannot_bind_are_warned_about(typed, recipe, training):
    recipe.write_text(
        f"{RECIPE}\n[policy.trust_region]\nkind = 'function'\npath = 'my.py:bounds'\n"
    )
    line = "warning: policy.trust_region: with one update a step every ratio is 1, so no bound "
    assert line in typed("train", recipe).err
    assert line not in typed("train", recipe, "update.epochs=2").err


def test_a_finished_run_is_shown_and_again_numbers_the_next(typed, recipe, training):
    typed("train", recipe)
    shown = typed("train", recipe)
    assert len(training.folders) == 1
    assert shown.code == 0
    assert "is finished already; nothing to do." in shown.out
    assert "0.320 [0.237, 0.417] -> 0.610 [0.512, 0.700]" in shown.out
    assert "burnish train small.toml --again" in shown.out
    for number in (2, 3):
        typed("train", recipe, "--again", "--quiet")
        assert training.folders[-1].name == f"{training.folders[0].name}-{number}"


def test_again_continues_an_interrupted_repetition(typed, recipe, training):
    typed("train", recipe, "--quiet")
    training.error = KeyboardInterrupt()
    assert typed("train", recipe, "--again").code == 130
    training.error = None
    typed("train", recipe, "--again", "--quiet")
    assert training.folders[1] == training.folders[2]


def test_ctrl_c_says_which_steps_are_done_again():
    stage = SimpleNamespace(
        name="warm_start", steps=60, algorithm=SimpleNamespace(samples_prompts=False)
    )
    trainer = SimpleNamespace(stage=stage, state=SimpleNamespace(step=42), saved_step=30)
    assert launch.interrupted_after(trainer) == (
        "after 42 of 60 steps of stage 'warm_start' (12 since its last checkpoint, which are done again)"
    )
    trainer.saved_step = 42
    assert launch.interrupted_after(trainer) == "after 42 of 60 steps of stage 'warm_start'"


def test_ctrl_c_says_how_to_continue_and_marks_the_run(typed, recipe, training):
    training.error = KeyboardInterrupt()
    shown = typed("train", recipe, "run.seed=4", "--json")
    assert shown.code == 130
    assert shown.err == (
        "burnish: interrupted after 1 of 3 steps; the same command continues it: "
        "burnish train small.toml run.seed=4\n"
    )
    with RunStore.open(training.folders[0], read_only=True) as store:
        assert store.status() is RunStatus.STOPPED
        assert store.summary().result["reason"] == "interrupted with Ctrl-C"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("task 3 is too long. Raise rollout.max_prompt_tokens."), 2),
        (ModelError("the model's file is cut short."), 3),
        (GuardTripped("gradient guard: lm_head is nan at step 1.", stage="gradient"), 3),
    ],
)
def test_errors_in_the_middle_are_one_line(typed, recipe, training, error, code):
    training.error = error
    shown = typed("train", recipe, "--json")
    assert shown.code == code
    assert shown.err == f"burnish: {error}\n"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ...",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_a_full_gpu_is_one_line_and_ends_with_3(typed, recipe, training, text):
    training.error = RuntimeError(text)
    shown = typed("train", recipe, "--json")
    assert shown.code == 3
    assert shown.err.startswith("burnish: burnish train ran out of GPU memory")
    assert "Free the GPU" in shown.err
    assert shown.err.count("\n") == 1


def test_a_bug_keeps_its_traceback(typed, recipe, training):
    training.error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        typed("train", recipe)


def test_json_lines_parse_and_nothing_else_is_printed(typed, recipe, training):
    events = [json.loads(line) for line in typed("train", recipe, "--json").out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == ["started", "held_out", "step", "step", "step", "held_out", "saved", "finished"]
    assert events[0]["forecast"]["memory"]["weights"] == 2**20
    assert events[2]["useful_groups"] == 5
    assert events[2]["metrics"]["loss/surrogate"] == -0.01
    assert events[-1]["change"] == {"value": 0.29, "low": 0.2, "high": 0.38, "size": 100}
    again = json.loads(typed("train", recipe, "--json").out)
    assert again["event"] == "already_finished"


def test_quiet_prints_the_result_alone(typed, recipe, training):
    shown = typed("train", recipe, "--quiet")
    assert shown.err == ""
    assert shown.out.count("\n") == 1
    assert shown.out.startswith("held out  0.320 [0.237, 0.417] -> 0.610")


def test_print_config_names_every_origin_and_starts_nothing(typed, recipe, training):
    shown = typed("train", recipe, "optimiser.learning_rate=2e-6", "--print-config")
    assert "steps = 3  # small.toml:3" in shown.out
    assert "learning_rate = 2e-06  # command line" in shown.out
    assert "prompts = 8  # default" in shown.out
    assert training.folders == []
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smal.toml"], "no recipe file smal.toml. Did you mean 'small.toml'?"),
        (["small.toml", "stpes=3"], "unknown key 'stpes'. Did you mean 'steps'?"),
        (["small.toml", "steps=0"], "steps"),
        (["small.toml", "twenty"], "'twenty' is not a setting; expected key=value"),
        (["small.toml", "--agian"], "--agian"),
        (["small.toml", "task.kind=arithmetik"], "Did you mean 'arithmetic'?"),
    ],
)
def test_mistakes_get_one_line(typed, recipe, training, words, message):
    shown = typed("train", *words)
    assert shown.code == 2
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert training.folders == []


def test_a_reader_that_leaves_ends_no_run(recipe, training, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as pipe:
        monkeypatch.setattr(console.out, "_file", pipe)
        monkeypatch.setattr(console.out, "quiet", False)
        assert run(["train", str(recipe)]) == 0
    assert "the work goes on" in capsys.readouterr().err
    with RunStore.open(training.folders[0], read_only=True) as store:
        assert store.status() is RunStatus.FINISHED
