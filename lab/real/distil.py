"""Distil a grader into a small student that is trained from nothing, against a control.

    python -m lab.real.distil TEACHER_FOLDER --task search --student 12m --steps 800
    python -m lab.real.distil runs/afrl/checkpoints/step-60 --task shop
    python -m lab.real.distil tiny --task shop --cpu        a trial of a minute

The teacher is asked for its probabilities of the grades at the first token and for its text. One
student learns both (`answer_kd` and likelihood), the control learns the gold demonstrations of the
same prompts, with the same shape, first weights, steps and batches. For graded search a third one
also learns prompts that only the teacher has graded. All are measured in one run, by the first
token alone, on held-out tasks; results lie in `lab/real/results/`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from burnish.errors import BurnishError, UserError
from burnish.records import Task
from burnish.tasks.base import TaskSet
from burnish.tasks.config import TaskConfig, build as build_tasks
from lab.collect import Row
from lab.real.distil_table import write_table
from lab.real.study import DATA, GRADES, HERE, SEARCH, Judged, grade_figures, majority, tasks_of

if TYPE_CHECKING:
    from burnish.lm.folder import LoadedModel
    from burnish.lm.local import LocalLM
    from lab.real.students import Learned

SHOP = {
    "kind": "function",
    "path": "recipes.afrl.shop_search:make",
    "options": {"tail": 0.3},
    "held_out_size": 1000,
}
TASKS = ("search", "shop")
MAX_TOKENS = 32
TEACHER, CONTROL, DISTILLED = "teacher", "student, gold demonstrations", "student, distilled"
MORE, MAJORITY = "student, distilled, more prompts", "majority grade"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    student: str
    steps: int
    batch: int
    prompts: int
    """Training prompts, at most; of search all that there are."""
    pairs: int
    """Prompts of graded search that only the teacher grades."""
    held_out: int
    rounds: int
    """Of each timing."""
    batches: tuple[int, int]
    """Queries that are timed at once."""


GPU = Sizes(
    "12m",
    steps=800,
    batch=64,
    prompts=16_384,
    pairs=6_000,
    held_out=1_000,
    rounds=15,
    batches=(1, 32),
)
TRIAL = Sizes("trial", steps=6, batch=4, prompts=12, pairs=4, held_out=8, rounds=1, batches=(1, 2))


@dataclass(frozen=True)
class Plan:
    """One call of this program."""

    teacher: str
    task: str
    sizes: Sizes
    seeds: tuple[int, ...] = (0, 1, 2)
    device: str = "auto"
    data: Path = DATA
    rate: float = 1e-3
    temperature: float = 2.0
    beta: float = 1.0
    keep: Path | None = None
    """Where students are left; nowhere where None."""


class Material(NamedTuple):
    """What is taught and what is asked."""

    gold: list[Task]
    """With people's or the rules' demonstrations."""
    taught: list[Task]
    """The same prompts as the teacher answers them."""
    more: list[Task]
    """Further prompts that the teacher answered."""
    about: str


def run(plan: Plan, say: Say) -> tuple[list[Row], list[str]]:
    """Rows of all models, and what is to be known about them."""
    from burnish.lm.local import LocalLM
    from burnish.policy.answer_first import label_tokens
    from lab.real.students import grades_of

    teacher = _open_teacher(plan)
    train, held_out = _fitting(teacher, _tasks(plan), plan.sizes)
    before = teacher.tokenizer.render_text(train[0].messages)
    label_ids = label_tokens(teacher.tokenizer, GRADES, before)
    lm = LocalLM(teacher)
    material = _material(plan, lm, label_ids, train, held_out)
    lm.release()
    say(material.about)
    opinion = grades_of(teacher, held_out, label_ids).grade.tolist()
    common = majority([str(task.fields["grade"]) for task in train])
    guess = [common] * len(held_out)
    rows = [
        _row(plan, TEACHER, 0, teacher.parameters, opinion, opinion, held_out),
        _row(plan, MAJORITY, 0, 0, guess, opinion, held_out),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        home = plan.keep or Path(scratch)
        for seed in plan.seeds:
            lessons = {CONTROL: material.gold, DISTILLED: material.taught}
            if material.more:
                # Experts ask every task for the same fields, and the new pairs have no gold.
                names = set(material.more[0].fields)
                both = [*material.taught, *material.more]
                lessons[MORE] = [
                    msgspec.structs.replace(t, fields={k: t.fields[k] for k in names}) for t in both
                ]
            for name, shown in lessons.items():
                ids = None if name == CONTROL else label_ids
                student, learned = _train(
                    plan, teacher, _folder(home, name, seed), shown, seed, ids
                )
                found = grades_of(student, held_out, label_ids).grade.tolist()
                row = _row(plan, name, seed, student.parameters, found, opinion, held_out)
                rows.append({**row, "loss": learned.loss, "train_s": learned.seconds})
                say(
                    f"{name}, seed {seed}: accuracy {row['accuracy']:.3f} ({learned.seconds:.0f} s)"
                )
        _add_times(rows, lm, _folder(home, DISTILLED, plan.seeds[0]), held_out, plan.sizes)
    import torch

    sizes = plan.sizes
    device = torch.cuda.get_device_name() if teacher.device.type == "cuda" else "CPU"
    return rows, [
        (
            f"Students of shape {sizes.student}, {sizes.steps} steps of {sizes.batch} from random "
            f"weights, T {plan.temperature:g}, beta {plan.beta:g}, peak rate {plan.rate:g}; {device}, "
            f"{str(teacher.dtype).removeprefix('torch.')}."
        ),
        material.about,
    ]


def _folder(home: Path, name: str, seed: int) -> Path:
    return home / f"{name.replace(', ', '-').replace(' ', '_')}-seed{seed}"


def _open_teacher(plan: Plan) -> LoadedModel:
    import torch

    from burnish.lm.folder import load_model

    is_gpu = plan.device != "cpu" and torch.cuda.is_available()
    return load_model(plan.teacher, dtype="bfloat16" if is_gpu else "float32", device=plan.device)


def _tasks(plan: Plan) -> TaskSet:
    if plan.task == "shop":
        return build_tasks(msgspec.convert(SHOP, TaskConfig), seed=0)
    return tasks_of(SEARCH, plan.data)


def _fitting(teacher: LoadedModel, tasks: TaskSet, sizes: Sizes) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks that the teacher, and so the student, can read."""
    room = min(teacher.module.max_positions, 2048) - MAX_TOKENS
    count = min(sizes.prompts, tasks.train_size or sizes.prompts)
    given = ([tasks.train(i) for i in range(count)], tasks.held_out(sizes.held_out))
    train, held_out = (
        [task for task in side if len(teacher.tokenizer.render(task.messages)) <= room]
        for side in given
    )
    if not train or not held_out:
        raise UserError(
            f"no prompt of '{tasks.name}' fits into the {room} tokens that the teacher reads before "
            "its answer; choose a teacher with a longer context."
        )
    return train, held_out


def _material(
    plan: Plan, lm: LocalLM, label_ids: Sequence[int], train: list[Task], held_out: list[Task]
) -> Material:
    from lab.real.students import new_pairs, teach

    pairs = new_pairs(train, plan.sizes.pairs, seed=0) if plan.task == "search" else []
    room = min(lm.loaded.module.max_positions, 2048) - MAX_TOKENS
    pairs = [task for task in pairs if len(lm.loaded.tokenizer.render(task.messages)) <= room]
    taught = teach(lm, [*train, *pairs], GRADES, label_ids, MAX_TOKENS)
    about = (
        f"{len(train)} prompts with gold demonstrations, {len(pairs)} that only the teacher graded; "
        f"{taught.without_grade} of its texts did not begin with a grade. {len(held_out)} held out."
    )
    size = len(train)
    return Material(train, taught.tasks[:size], taught.tasks[size:], about)


def _train(
    plan: Plan,
    teacher: LoadedModel,
    folder: Path,
    shown: Sequence[Task],
    seed: int,
    label_ids: tuple[int, ...] | None,
) -> tuple[LoadedModel, Learned]:
    from lab.real.students import SHAPES, Lesson, new_student, open_student, train_student

    sizes = plan.sizes
    lesson = Lesson(sizes.steps, sizes.batch, plan.rate, plan.temperature, plan.beta)
    new_student(folder, teacher, SHAPES[sizes.student], seed)
    student = open_student(folder, teacher)
    learned = train_student(student, shown, lesson, seed, label_ids)
    student.write(folder)
    return student.loaded, learned


def _row(
    plan: Plan,
    model: str,
    seed: int,
    weights: int,
    found: Sequence[int],
    opinion: Sequence[int],
    held_out: Sequence[Task],
) -> Row:
    judged = [
        Judged(str(task.fields.get("source", plan.task)), GRADES.index(task.fields["grade"]), grade)
        for task, grade in zip(held_out, found, strict=True)
    ]
    agreement = sum(a == b for a, b in zip(found, opinion, strict=True)) / len(found)
    figures = grade_figures(judged)
    row: Row = {"task": plan.task, "model": model, "seed": seed, "weights": weights}
    return {**row, **figures, "agreement": agreement}


def _add_times(
    rows: list[Row], teacher: LocalLM, student: Path, tasks: Sequence[Task], sizes: Sizes
) -> None:
    """Milliseconds of the teacher and of one distilled student, in their rows."""
    from burnish.lm.folder import load_model
    from burnish.lm.local import LocalLM
    from lab.real.latency import latencies

    like = teacher.loaded
    small = LocalLM(load_model(student, dtype=like.dtype, device=like.device))
    models = {TEACHER: teacher, DISTILLED: small}
    times = latencies(
        models, tasks, batches=sizes.batches, max_tokens=MAX_TOKENS, rounds=sizes.rounds
    )
    for (name, batch, way), timed in times.items():
        row = next(row for row in rows if row["model"] == name)
        row[f"ms_{way}_{batch}"] = timed.ms_per_query
        row[f"tokens_{way}_{batch}"] = timed.tokens


def main(words: Sequence[str] | None = None) -> int:
    """Teach, train, measure and write."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.real.distil",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("teacher", metavar="TEACHER_FOLDER")
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--student", choices=("12m", "18m", "trial"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--pairs", type=int, help="prompts of search that only the teacher grades")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N")
    parser.add_argument("--cpu", action="store_true", help="a trial on a CPU")
    parser.add_argument("--data", type=Path, default=DATA, help="files of lab.real.prepare")
    parser.add_argument("--keep", type=Path, help="leave the students in this folder")
    parser.add_argument("--out", type=Path, help="where the results go")
    asked = parser.parse_args(words)
    base = TRIAL if asked.cpu else GPU
    given = {"student": asked.student, "steps": asked.steps, "pairs": asked.pairs}
    sizes = Sizes(**{**vars(base), **{k: v for k, v in given.items() if v is not None}})
    plan = Plan(
        teacher=asked.teacher,
        task=asked.task,
        sizes=sizes,
        seeds=tuple(asked.seeds or ((0,) if asked.cpu else (0, 1, 2))),
        device="cpu" if asked.cpu else "auto",
        data=asked.data,
        keep=asked.keep,
    )
    # A trial says nothing about a method: its figures never land among the results.
    trial = Path("runs") / "lab-trial" / "real" / "results"
    place = asked.out or (trial if asked.cpu else HERE / "results")
    try:
        rows, notes = run(plan, lambda line: print(line, flush=True))
    except BurnishError as error:
        print(error, file=sys.stderr)
        return 2
    command = (
        f"python -m lab.real.distil TEACHER_FOLDER --task {plan.task} "
        f"--student {sizes.student} --steps {sizes.steps}"
    )
    print(f"\n{write_table(place, plan.task, rows, notes, command, sizes.batches)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
