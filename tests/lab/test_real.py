"""Real data: what is written, that every recipe runs, and a distillation from end to end."""

import csv
import json
import tomllib
from collections import Counter
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest
import torch
from lab.real import distil, study
from lab.real.distil import CONTROL, DISTILLED, MAJORITY, MORE, TEACHER
from lab.real.prepare import Size, counter, main, prepare
from lab.real.students import (
    SHAPES,
    Lesson,
    Shape,
    grades_of,
    new_student,
    open_student,
    train_student,
)
from lab.real.study import Judged, grade_figures, tasks_of
from real_rows import write_files

from burnish.config import Config, load
from burnish.errors import UserError
from burnish.lm import load_model
from burnish.lm.model_input import ModelInput
from burnish.policy.answer_first import label_tokens
from burnish.records import Message, Response, Task
from burnish.rewards.config import RewardConfig, build_all
from burnish.rewards.scorer import score_groups
from burnish.training import build
from burnish.training.events import StageBegun, StepDone

CHANCES = "teacher_probabilities"
"""The field that `train.kind = "sft"` reads a teacher's chances from."""
SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
RECIPES = ("search", "tools", "toolrl")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny", device="cpu")


def short(task):
    return Size(10, 5)


def write_parquet(path, rows):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)


def liveqa(question, answer, grade):
    row = {"paraphrase": question, "message": "", "subject": "", "answer": answer}
    return {**row, "grade": grade}


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_judges_who_disagree_repetitions_and_shared_pairs_are_left_out(tmp_path):
    shown = [liveqa("pain", "rest", 4), liveqa("pain", "rest", 1), liveqa("cough", "tea", 2)]
    shown += [liveqa("cough", "tea", 2), liveqa("fever", "wait", 3), liveqa("rash", "cream", 1)]
    write_parquet(tmp_path / "liveqa_med" / "train.parquet", shown)
    write_parquet(tmp_path / "liveqa_med" / "test.parquet", [liveqa("rash", "cream", 2)])
    lines = prepare(tmp_path, tmp_path / "out", short)
    kept = lines_of(tmp_path / "out" / "search_train.jsonl")
    assert [(task["grade"], task["source"]) for task in kept] == [
        ("C", "liveqa_med"),
        ("B", "liveqa_med"),
    ]
    line = next(line for line in lines if line.startswith("search_train"))
    assert "2 judges disagree on the grade" in line
    assert "1 repeats a pair" in line
    assert "1 its question is held out" in line


def test_a_set_that_is_missing_is_one_line_and_its_old_files_go(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bfcl_train.jsonl").write_text("{}\n")
    lines = prepare(tmp_path, tmp_path / "out", short)
    assert sorted(line.partition(":")[0] for line in lines) == [
        *("api_bank", "bfcl", "cranfield", "liveqa_med", "toolrl")
    ]
    assert all("does not exist; left out" in line for line in lines)
    assert not list((tmp_path / "out").iterdir())
    assert main([str(tmp_path / "no"), str(tmp_path / "out")]) == 2
    assert "is no folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The files made of the shared data."""
    if not SHARED.is_dir():
        pytest.skip("the shared data is not beside this checkout")
    for name in ("pyarrow", "gguf", "tokenizers"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("real")
    try:
        count = counter("smollm2")
    except UserError as error:
        pytest.skip(str(error))
    return folder, prepare(SHARED, folder, count)


def test_the_real_files_are_whole_small_and_parted(real):
    folder, lines = real
    files = {file.stem: lines_of(file) for file in folder.glob("*.jsonl")}
    assert sorted(files) == sorted(
        f"{name}_{side}"
        for name in ("search", "bfcl", "toolrl", "api_bank")
        for side in ("train", "held_out")
    )
    assert sum(file.stat().st_size for file in folder.glob("*.jsonl")) < 8e6
    assert not any("left out" in line for line in lines)
    for name in ("search", "bfcl", "toolrl", "api_bank"):
        keys = [
            {json.dumps(task.get("messages", task.get("prompt"))) for task in files[f"{name}_{s}"]}
            for s in ("train", "held_out")
        ]
        assert keys[0]
        assert keys[1]
        assert not keys[0] & keys[1]
    for side in ("train", "held_out"):
        grades = Counter((task["source"], task["grade"]) for task in files[f"search_{side}"])
        assert len(grades) == 8
    share = len(files["bfcl_held_out"]) / (len(files["bfcl_train"]) + len(files["bfcl_held_out"]))
    assert 0.2 < share < 0.3


@pytest.mark.parametrize("name", RECIPES)
def test_every_real_demonstration_earns_the_best_score(real, name):
    folder, _ = real
    recipe = study.HERE / f"{name}.toml"
    config = tomllib.loads(recipe.read_text())
    # A busy machine may be slow, which says nothing of the demonstrations.
    for table in config["rewards"]:
        if table["kind"] == "section":
            table["timeout_s"] = 600.0
    scorer = build_all([msgspec.convert(r, RewardConfig) for r in config["rewards"]])
    tasks = tasks_of(recipe, folder)
    shown = [*tasks.sample(tasks.train_size), *tasks.held_out()]
    pairs = [(task, [Response(task.id, task.fields["demonstration"])]) for task in shown]
    found = anyio.run(partial(score_groups, scorer, pairs, deadline_s=3600.0))
    parts = [rewards[0].components for rewards in found]
    assert {part["exact"] for part in parts} == {1.0}
    if name != "search":
        assert {part["format"] for part in parts} == {1.0}
    else:
        assert {(part["grade"], part["rule"], part["why"]) for part in parts} == {(1.0, 1.0, 1.0)}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_two_steps(name, data, tmp_path):
    recipe = study.HERE / f"{name}.toml"
    table = tomllib.loads(recipe.read_text())["task"]
    settings = {
        "task.path": data / Path(table["path"]).name,
        "task.held_out.path": data / Path(table["held_out"]["path"]).name,
        "model": '{ path = "tiny", device = "cpu", threads = 1 }', "steps": 2, "stages.0.steps": 2,
        "stages.0.train.batch": 2, "rollout.prompts": 2, "rollout.samples": 4,
        "rollout.max_tokens": 10, "evaluation.prompts": 3, "evaluation.every": 1,
    }  # fmt: skip
    if name == "search":
        settings |= {"curriculum.pool": 6, "curriculum.samples": 2}
    words = [f"{key}={value}" for key, value in settings.items()]
    trainer = build(load(Config, recipe, words), tmp_path / "run", root=recipe.parent)
    try:
        events = list(trainer.run())
    finally:
        trainer.store.close()
    steps = [event for event in events if isinstance(event, StepDone) and not event.stage]
    assert len(steps) == 2
    assert any(isinstance(event, StageBegun) for event in events) == (name == "search")
    expected = {
        "search": {"grade", "rule", "why", "exact"},
        "tools": {"format", "name", "arguments", "exact"},
        "toolrl": {"correctness", "format", "length", "exact"},
    }[name]
    assert expected <= {key.split("/")[1] for key in steps[0].metrics if key.startswith("reward/")}
    if name == "search":
        assert steps[0].metrics["optimiser/updates"] == 1, "imitation alone moves the weights"


def test_grade_figures_by_hand():
    judged = [Judged("a", 0, 0), Judged("a", 0, 1), Judged("b", 3, 3), Judged("b", 2, None)]
    found = grade_figures(judged)
    assert found["accuracy"] == 0.5
    assert found["macro_accuracy"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert found["ordinal_score"] == pytest.approx((1 + 2 / 3 + 1 + 0) / 4)
    assert found["graded_share"] == 0.75
    assert found["grade_error"] == pytest.approx(1 / 3)
    assert (found["a/accuracy"], found["b/macro_accuracy"]) == (0.5, 0.5)
    assert (found["grade/D"], found["grade/A"]) == (0.5, 1.0)
    assert "grade/C" not in found
    assert "grade_error" not in grade_figures([Judged("a", 0, None)])


def test_first_tokens_do_not_depend_on_their_neighbours_or_padding(tiny):
    texts = ["short", "a much longer prompt than the one before it", "mid size"]
    tasks = [Task(str(i), (Message("user", text),)) for i, text in enumerate(texts)]
    ids = label_tokens(tiny.tokenizer, study.GRADES)
    together = grades_of(tiny, tasks, ids)
    for i, task in enumerate(tasks):
        prompt = torch.tensor([tiny.tokenizer.render(task.messages)])
        with torch.inference_mode():
            hidden = tiny.module(ModelInput(prompt, torch.arange(prompt.shape[1])[None]))
            chances = tiny.module.logits(hidden)[0, -1, list(ids)].softmax(-1)
        torch.testing.assert_close(
            together.probabilities[i].float(), chances.float(), rtol=1e-4, atol=1e-6
        )
        assert together.grade[i] == chances.argmax()


def test_a_new_student_has_the_teachers_tokenizer_and_its_own_seed(tiny, tmp_path):
    shape = Shape(hidden=24, layers=1, heads=2, kv_heads=1, intermediate=40)
    made = [load_model(new_student(tmp_path / str(s), tiny, shape, s)) for s in (0, 1)]
    head = 12
    layer = 2 * 24 * head * 3 + 3 * 24 * 40 + 2 * 24
    assert made[0].parameters == 260 * 24 + layer + 24
    assert made[0].tokenizer.encode("A rule") == tiny.tokenizer.encode("A rule")
    assert not torch.equal(made[0].module.head_weight, made[1].module.head_weight)


@pytest.mark.parametrize("task", ["search", "shop"])
def test_distillation_from_end_to_end(task, data, tmp_path, capsys):
    words = ["tiny", "--task", task, "--cpu", "--data", str(data), "--out", str(tmp_path)]
    assert distil.main([*words, "--keep", str(tmp_path / "kept"), "--seeds", "0", "1"]) == 0
    table = (tmp_path / f"distil_{task}.md").read_text()
    assert table in capsys.readouterr().out
    with (tmp_path / f"distil_{task}.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    students = [CONTROL, DISTILLED, *([MORE] if task == "search" else [])]
    assert Counter(row["model"] for row in rows) == {
        **dict.fromkeys((TEACHER, MAJORITY), 1),
        **dict.fromkeys(students, 2),
    }
    by_model = {row["model"]: row for row in reversed(rows)}
    assert float(by_model[TEACHER]["agreement"]) == 1.0
    for name in (TEACHER, DISTILLED):
        one, full = (float(by_model[name][f"ms_{way}_1"]) for way in ("one", "full"))
        assert 0 < one < full
    assert float(by_model[DISTILLED]["weights"]) < float(by_model[TEACHER]["weights"])
    kept = [folder.name for folder in (tmp_path / "kept").iterdir()]
    assert len(kept) == 2 * len(students)
    load_model(tmp_path / "kept" / kept[0])


def test_a_student_learns_its_teachers_grades_and_the_control_the_demonstrations(tiny, tmp_path):
    ids = label_tokens(tiny.tokenizer, study.GRADES)
    lesson = Lesson(steps=60, batch=4, rate=1e-2, temperature=1.0, beta=1.0)
    gold = [0, 1, 2, 3]
    # The teacher is sure of the grade after the one that is demonstrated.
    said = [1, 2, 3, 0]
    tasks = [
        Task(
            str(g),
            (Message("user", "abcd"[g] * 3),),
            {
                "demonstration": study.GRADES[g],
                CHANCES: [0.97 if i == teachers else 0.01 for i in range(4)],
            },
        )
        for g, teachers in zip(gold, said, strict=True)
    ]
    found = {}
    for name, taught in (("control", None), ("distilled", ids)):
        folder = new_student(tmp_path / name, tiny, SHAPES["trial"], 0)
        student = open_student(folder, tiny)
        train_student(student, tasks, lesson, 0, taught)
        found[name] = grades_of(student.loaded, tasks, ids).grade.tolist()
    assert found == {"control": gold, "distilled": said}
