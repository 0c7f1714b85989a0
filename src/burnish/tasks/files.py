"""Any file of rows as a finite task set, with a field mapping and a held-out side.

Training and held-out tasks are disjoint by content: equal prompts fall on the same side of a share, and
a training row whose prompt also stands in the held-out file is left out and counted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from burnish.boundary import Name, Settings
from burnish.errors import UserError
from burnish.memory import is_kept
from burnish.records import Task
from burnish.seeds import digest
from burnish.tasks.base import FiniteTasks, TaskSettings, content_key, is_held_out
from burnish.tasks.mapping import (
    Columns,
    Draft,
    RowError,
    has,
    look_up,
    missing_columns,
)
from burnish.tasks.media_columns import holds_media
from burnish.tasks.rows import BadRow, Format, Table, read_table
from burnish.tools.search.sources import SourceRow

SHOWN_BAD_ROWS = 3
NO_SHARE = "held_out = { by = 'share', share = 0 }"
"""The setting that holds nothing out."""


class HeldOutFile(Settings, frozen=True, tag_field="by", tag="file"):
    """Held-out tasks come from a file of their own."""

    path: Name
    """The file, in the format of the training file."""


class HeldOutShare(Settings, frozen=True, tag_field="by", tag="share"):
    """A share of the rows, chosen by a hash of the prompt; 0 holds nothing out."""

    share: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.1
    """Share of the rows."""


class HeldOutColumn(Settings, frozen=True, tag_field="by", tag="column"):
    """Rows whose column has one of these values."""

    column: Name
    """Path of the column."""
    values: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Values that are held out."""


HeldOut = HeldOutFile | HeldOutShare | HeldOutColumn


class File(Columns, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """Tasks from a JSONL, JSON, CSV, TSV or Parquet file."""

    path: Name
    """JSONL, JSON, CSV, TSV or Parquet file."""
    name: str = ""
    """The file's stem where empty."""
    format: Format = "auto"
    """By the file's ending where `auto`."""
    id: str = ""
    """Path of a column of unique ids; the row number where empty."""
    labels: tuple[str, ...] | None = None
    """Fields that a judge must not see; all of them where not given."""
    held_out: HeldOut = HeldOutShare()
    """Which rows are never trained on."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """What happens to rows that lack a column: stop, or leave them out and count them."""

    def check_columns(self) -> None:
        super().check_columns()
        self.check_names("labels", self.labels or ())

    def build(self, seed: int, root: Path) -> FiniteTasks:
        return load_file(self, seed, root)


class Entry(NamedTuple):
    row: SourceRow
    key: str
    task: Task


Finish = Callable[[Draft], Draft]
"""Last word on a row, such as taking the answer out of a worked solution; raises `RowError`."""


def load_file(
    config: File,
    seed: int,
    root: Path,
    finish: Finish = lambda draft: draft,
    labels: tuple[str, ...] = (),
) -> FiniteTasks:
    """Read, map and split; every mistake in the file is reported before the first task is used.

    `labels` names label-bearing fields that `finish` adds.
    """
    path = _place(config.path, root)
    table = read_table(path, config.format)
    if not config.prompt and not config.messages:
        config = _mapped_by_name(config, table)
    labels = (*(config.fields if config.labels is None else config.labels), *labels)
    name = config.name or path.stem
    notes: list[str] = []
    entries = _entries(config, table, name, labels, finish, notes)
    contents = [table.content, *_media_hashes(config, entries)]
    how = config.held_out
    if isinstance(how, HeldOutFile):
        other, train = read_table(_place(how.path, root), config.format), entries
        held_out = _entries(config, other, f"{name}/held-out", labels, finish, notes)
        contents += [other.content, *_media_hashes(config, held_out)]
    else:
        if isinstance(how, HeldOutColumn):
            chosen = _keys_by_column(how, entries, path)
        else:
            chosen = _keys_by_share(how, entries, path)
        train = [entry for entry in entries if entry.key not in chosen]
        held_out = [entry for entry in entries if entry.key in chosen]
    distinct = {entry.key: entry for entry in reversed(held_out)}
    _note_repeated(train, held_out, path, notes)
    kept = [entry for entry in train if entry.key not in distinct]
    if not kept:
        raise UserError(f"{path}: no training row is left: every row is held out or repeats one.")
    if left_out := len(train) - len(kept):
        rows = "training rows left out because their prompt is held out"
        notes.append(f"{path.name}: {left_out} {rows}.")
    return FiniteTasks(
        name=name,
        fields=frozenset(entries[0].task.fields),
        fingerprint=digest(*contents, _settings(config)),
        seed=seed,
        train_tasks=tuple(entry.task for entry in kept),
        # By content and not by position, so that a limit is a fair sample of a sorted file.
        held_out_tasks=tuple(distinct[key].task for key in sorted(distinct)),
        notes=tuple(notes),
    )


def _mapped_by_name(config: File, table: Table) -> File:
    """A file whose rows have `prompt` or `messages` needs no mapping: other columns are fields."""
    rows = [row.values for row in table.rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    source = next((name for name in ("prompt", "messages") if name in names), "")
    if not source:
        raise UserError(f"{table.path}: no prompt or messages in {names}; set task.prompt.")
    config = _media_by_name(config, rows, names, _media_folder(config, table))
    is_chat = source == "messages" or any(isinstance(row.get(source), list) for row in rows)
    given = {"messages" if is_chat else "prompt": source}
    if config.fields:
        return msgspec.structs.replace(config, **given)
    taken = (source, config.id, *config.media_paths)
    fields = {name: name for name in names if name not in taken}
    gaps = tuple(name for name in fields if any(row.get(name) is None for row in rows))
    optional = (*config.optional, *(name for name in gaps if name not in config.optional))
    return msgspec.structs.replace(config, fields=fields, optional=optional, **given)


def _media_by_name(
    config: File, rows: list[dict[str, Any]], names: list[str], folder: Path | None
) -> File:
    """Columns called image, images or audio that hold such things are no fields, unless named as one."""
    found = dict[str, str]()
    named = {*config.pictures, *config.fields, *config.fields.values()}
    for setting, known in (("images", ("images", "image")), ("audio", ("audio", "audios"))):
        for name in known:
            is_free = name in names and name not in named and not getattr(config, setting)
            if is_free and holds_media((row.get(name) for row in rows), folder):
                found.setdefault(setting, name)
    return msgspec.structs.replace(config, **found)


def _place(path: str, root: Path) -> Path:
    """A file from `root`; rows that live in this process have no folder."""
    return Path(path) if is_kept(path) else root / path


def _settings(config: File) -> bytes:
    """The mapping without its paths: moving a file does not make it another dataset."""
    settings = msgspec.to_builtins(config)
    settings.pop("path")
    settings["held_out"].pop("path", None)
    for name in ("images", "audio", "pictures", "media_folder"):
        # A file without media has the fingerprint that it had before there were any; where the
        # media stand does not matter, what they are is hashed with the rows.
        if name == "media_folder" or not settings[name]:
            settings.pop(name)
    return msgspec.json.encode(settings, order="deterministic")


def _entries(
    config: File,
    table: Table,
    name: str,
    labels: tuple[str, ...],
    finish: Finish,
    notes: list[str],
) -> list[Entry]:
    missing_columns(config, (row.values for row in table.rows), str(table.path))
    bad, ids, entries = list(table.bad), dict[str, int](), list[Entry]()
    folder = _media_folder(config, table)
    for row in table.rows:
        try:
            draft = finish(config.draft(row.values, folder))
            row_id = str(look_up(row.values, config.id)) if config.id else str(row.number)
            if row_id in ids:
                raise RowError(f"id '{row_id}' is also that of row {ids[row_id]}")
        except RowError as error:
            bad.append(BadRow(row.number, str(error)))
            continue
        ids[row_id] = row.number
        task = Task(f"{name}/{row_id}", draft.messages, draft.fields, labels, name)
        entries.append(Entry(row, content_key(draft.messages), task))
    _report_bad(config, table, bad, notes)
    if not entries:
        raise UserError(f"{table.path}: no usable row ({len(bad)} skipped).")
    return entries


def _media_folder(config: File, table: Table) -> Path | None:
    """Where the paths of its images and sounds begin; rows kept in this process have none."""
    return None if is_kept(str(table.path)) else table.path.parent / config.media_folder


def _media_hashes(config: File, entries: list[Entry]) -> list[bytes]:
    """Of the images and sounds, which may stand in files of their own."""
    found = []
    for _, _, task in entries:
        found += [part.sha256 for message in task.messages for part in message.media]
        for name in config.pictures:
            value = task.fields.get(name)
            listed = value if isinstance(value, list) else [value]
            found += [one["sha256"] for one in listed if isinstance(one, dict)]
    return [b"".join(map(bytes.fromhex, found))] if found else []


def _report_bad(config: File, table: Table, bad: list[BadRow], notes: list[str]) -> None:
    if not bad:
        return
    whole = [f"{table.path}:{row.number}: {row.why}" for row in sorted(bad)]
    more = [f"and {len(bad) - SHOWN_BAD_ROWS} more"] if len(bad) > SHOWN_BAD_ROWS else []
    shown = "; ".join(whole[:SHOWN_BAD_ROWS] + more)
    if config.bad_rows == "refuse":
        raise UserError(f"{shown}. Mend the file, or set task.bad_rows = 'skip'.")
    total = len(table.rows) + len(table.bad)
    notes.append(f"{table.path.name}: {len(bad)} of {total} rows skipped ({shown}).")


def _keys_by_share(how: HeldOutShare, entries: list[Entry], path: Path) -> set[str]:
    """By hash; a tiny file still gets one prompt on each side."""
    keys = {entry.key for entry in entries}
    if how.share == 0:
        return set()
    if len(keys) < 2:
        raise UserError(
            f"{path}: one prompt cannot be split into training and held-out; set {NO_SHARE}."
        )
    chosen = {key for key in keys if is_held_out(key, how.share)}
    return (chosen or {min(keys)}) if len(chosen) < len(keys) else chosen - {max(keys)}


def _keys_by_column(how: HeldOutColumn, entries: list[Entry], path: Path) -> set[str]:
    rows = [entry.row.values for entry in entries]
    found = [str(look_up(row, how.column)) if has(row, how.column) else None for row in rows]
    chosen = {e.key for e, value in zip(entries, found, strict=True) if value in how.values}
    if not chosen:
        known = sorted({value for value in found if value is not None})
        raise UserError(f"{path}: no '{how.column}' of {known[:8]} in {list(how.values)}.")
    return chosen


def _note_repeated(train: list[Entry], held_out: list[Entry], path: Path, notes: list[str]) -> None:
    sides = {
        "in training, where each row is a task of its own": train,
        "held out, where the first row of a prompt is kept": held_out,
    }
    for side, entries in sides.items():
        if repeated := len(entries) - len({entry.key for entry in entries}):
            rows = f"{repeated} of {len(entries)} rows"
            notes.append(f"{path.name}: {rows} repeat a prompt {side}.")


# --- ready mappings for GSM8K, MATH and multiple choice, as these sets are shipped


_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
GROUND_TRUTH = "reward_model.ground_truth"
LONGEST_BARE_ANSWER = 200
"""A MATH label without \\boxed{} beyond this many characters is a solution that lost its box."""


class Form(TaskSettings, frozen=True, kw_only=True):
    path: Name
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
        shared |= {"optional": ("data_source",), "labels": ("answer",), "messages": "prompt"}
        fields = {"answer": GROUND_TRUTH, "data_source": "data_source"}
        tasks = load_file(File(fields=fields, **shared), seed, root, _finish_multiple_choice)
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
    depth = 1
    for found in _BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return text[start : found.start()]
    return None


def _finish_gsm8k(draft: Draft) -> Draft:
    solution = _worked(draft, "solution", "answer")
    return Draft(draft.messages, {"answer": gsm8k_answer(solution), "solution": solution})


def _finish_math(draft: Draft) -> Draft:
    solution = _worked(draft, "solution", GROUND_TRUTH).strip()
    boxes = boxed_answers(solution)
    if not boxes:
        if "boxed" in solution or len(solution) > LONGEST_BARE_ANSWER or not solution:
            raise RowError(rf"no answer in \boxed{{}} (got ...{solution[-40:]!r})")
        boxes = [solution]
    answers = list(dict.fromkeys(boxes))
    return Draft(draft.messages, {"answer": boxes[-1], "answers": answers, "solution": solution})


def _finish_multiple_choice(draft: Draft) -> Draft:
    answer = _worked(draft, "answer", GROUND_TRUTH).strip()
    choices = options(next((m.text for m in reversed(draft.messages) if m.role == "user"), ""))
    if not answer or (choices and answer not in choices):
        raise RowError(f"answer {answer!r} is none of the options {', '.join(choices)}")
    return Draft(draft.messages, {**draft.fields, "answer": answer, "choices": choices})


def _worked(draft: Draft, field: str, column: str) -> str:
    value = draft.fields[field]
    if not isinstance(value, str):
        raise RowError(f"'{column}' is {type(value).__name__}, expected text")
    return value
