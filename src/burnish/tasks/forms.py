"""GSM8K, MATH and multiple choice: ready mappings for the files these sets are shipped in."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from burnish.tasks.base import FiniteTasks, TaskSettings
from burnish.tasks.files import File, HeldOut, HeldOutShare, as_text, load_file
from burnish.tasks.mapping import Draft, RowError
from burnish.tasks.rows import Format

GROUND_TRUTH = "reward_model.ground_truth"
LONGEST_BARE_ANSWER = 200
"""A MATH label without \\boxed{} beyond this many characters is a solution that lost its box."""


class Form(TaskSettings, frozen=True, kw_only=True):
    """Settings of every ready mapping."""

    path: Annotated[str, Meta(min_length=1)]
    """JSONL, JSON, CSV, TSV or Parquet file."""
    name: str = ""
    """What the task is called in runs; the file's stem where empty."""
    format: Format = "auto"
    """By the file's ending where `auto`."""
    system: str = ""
    """A system message; replaces the row's own."""
    template: str = ""
    """Rewrites the question: `{prompt}` is its text."""
    held_out: HeldOut = HeldOutShare()
    """Which rows are never trained on."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """What happens to rows that lack a column: stop, or leave them out and count them."""

    def build(self, seed: int, root: Path) -> FiniteTasks:
        return load_form(self, seed, root)


class GSM8K(Form, frozen=True, kw_only=True, tag="gsm8k"):
    """Columns `question` and `answer`; the number follows `####`. Fields: answer, solution."""


class Math(Form, frozen=True, kw_only=True, tag="math"):
    """Columns `prompt` (chat messages) and `reward_model.ground_truth` (a worked solution with
    \\boxed{}, or the bare answer). Fields: answer (the last box), answers (every box), solution."""


class MultipleChoice(Form, frozen=True, kw_only=True, tag="multiple_choice"):
    """Columns `prompt` (chat messages with lines `A. ...` after `Options:`) and
    `reward_model.ground_truth`. Fields: answer, choices (letter -> text, empty for open questions),
    data_source."""


def load_form(config: Form, seed: int, root: Path) -> FiniteTasks:
    """Read a file in one of the known forms."""
    shared = {name: getattr(config, name) for name in Form.__struct_fields__}
    if not config.name and not isinstance(config, MultipleChoice):
        # These files are called train and test; a multiple-choice file is called after its set.
        shared["name"] = "gsm8k" if isinstance(config, GSM8K) else "math"
    if isinstance(config, GSM8K):
        file = File(prompt="question", fields={"solution": "answer"}, **shared)
        tasks = load_file(file, seed, root, _finish_gsm8k, labels=("answer",))
    elif isinstance(config, Math):
        file = File(messages="prompt", fields={"solution": GROUND_TRUTH}, **shared)
        tasks = load_file(file, seed, root, _finish_math, labels=("answer", "answers"))
    else:
        fields = {"answer": GROUND_TRUTH, "data_source": "data_source"}
        file = File(
            messages="prompt",
            fields=fields,
            optional=("data_source",),
            labels=("answer",),
            **shared,
        )
        tasks = load_file(file, seed, root, _finish_multiple_choice)
    several = sum(len(task.fields.get("answers", ())) > 1 for task in tasks.train_tasks)
    if several:
        note = f"{tasks.name}: {several} solutions box several answers; the last one is the answer."
        tasks = dataclasses.replace(tasks, notes=(*tasks.notes, note))
    return tasks


def gsm8k_answer(solution: str) -> str:
    """The number after the last `####`, without thousands separators."""
    _, marker, tail = solution.rpartition("####")
    answer = tail.strip().replace(",", "").removeprefix("$")
    if not marker or not re.fullmatch(r"-?\d+(\.\d+)?", answer):
        raise RowError(f"no number after '####' (got {tail.strip()[:40]!r})")
    return answer


def boxed_answers(text: str) -> list[str]:
    r"""Contents of every `\boxed{...}`, `\fbox{...}` and `\boxed x`, in order, braces balanced."""
    answers = []
    for match in re.finditer(r"\\(?:boxed|fbox)(?:\s*\{|\s+([^\s${}\\]+))", text):
        content = match.group(1) or _balanced(text, match.end())
        if content is not None and content.strip():
            answers.append(content.strip())
    return answers


def options(text: str) -> dict[str, str]:
    """Letter -> text of the lines `A. ...` that follow a line `Options:`; empty without one."""
    _, found, tail = text.partition("Options:\n")
    if not found:
        return {}
    return {m[1]: m[2].strip() for m in re.finditer(r"^([A-Z])[.)] (.*)$", tail, re.MULTILINE)}


def _balanced(text: str, start: int) -> str | None:
    """Text from after an opening brace to the brace that closes it; None where none does."""
    depth, position = 1, start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return text[start:position]
        position += 1
    return None


def _finish_gsm8k(draft: Draft) -> Draft:
    solution = as_text(draft.fields["solution"], "answer")
    return Draft(draft.messages, {"answer": gsm8k_answer(solution), "solution": solution})


def _finish_math(draft: Draft) -> Draft:
    solution = as_text(draft.fields["solution"], GROUND_TRUTH).strip()
    boxes = boxed_answers(solution)
    if not boxes:
        if "boxed" in solution or len(solution) > LONGEST_BARE_ANSWER or not solution:
            raise RowError(rf"no answer in \boxed{{}} (got ...{solution[-40:]!r})")
        boxes = [solution]
    answers = list(dict.fromkeys(boxes))
    return Draft(draft.messages, {"answer": boxes[-1], "answers": answers, "solution": solution})


def _finish_multiple_choice(draft: Draft) -> Draft:
    answer = as_text(draft.fields["answer"], GROUND_TRUTH).strip()
    question = next((m.text for m in reversed(draft.messages) if m.role == "user"), "")
    choices = options(question)
    if not answer or (choices and answer not in choices):
        raise RowError(f"answer {answer!r} is none of the options {', '.join(choices)}")
    return Draft(draft.messages, {**draft.fields, "answer": answer, "choices": choices})
