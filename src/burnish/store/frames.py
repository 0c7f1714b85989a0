"""A run for a notebook: samples, reward parts, evidence and metrics as pandas or Arrow, or as files.

    run = burnish.load_run("runs/first")
    run.samples(split="train").groupby("step").reward.mean()
    run.metrics()["reward/total"].plot()
    export(Path("runs/first"), Path("samples.parquet"))

A reward without a value is missing (NaN), never 0. Nothing is written into a run, so one that is
training can be looked at; each call reads what is stored by then.

Exported rows are streamed, and the file appears in one go. Token ids, masks and log-probs are lists
in JSON and Parquet; the task, the reward tree and the info are objects in JSON, and JSON text in the
other two. Images and sounds are named by their hash and copied beside the table, into
`samples_media/` for `samples.parquet`; tasks read them back with `media_folder = "samples_media"`.

A spreadsheet runs a cell that begins like a formula, and a model can write one. In a CSV file such a
text gets one apostrophe in front, unless `raw` is asked for.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from burnish.errors import StoreError, UserError, did_you_mean
from burnish.media.kinds import SUFFIXES
from burnish.records import Task
from burnish.store import manifest
from burnish.store.blobs import held_messages
from burnish.store.durable import make_folder, store_errors, whole_file, write_file
from burnish.store.reader import DATABASE, UNSCORED, RunEnd, RunReader, RunStatus, StoredEvaluation
from burnish.store.run import RunStore
from burnish.store.sample import COLUMNS, EVIDENCE_COLUMNS, PART_COLUMNS
from burnish.store.sample_name import sample_names

Form = Literal["pandas", "arrow"]
FORMS = ("pandas", "arrow")
TOKENS = ("token_ids", "loss_mask", "logprobs")
SPLITS = ("train", "dropped", "greedy", "eval:held_out")
"""Where training puts its samples; other evaluations are `eval:` and their name."""
TREES = ("spans", "task", "reward_tree", "info")
"""Columns of a sample that hold JSON objects."""
PLAIN = tuple(name for name in COLUMNS if name not in (*TOKENS, *TREES))
"""Columns of a sample that are one number or one text."""


def load_run(reference: str | Path, runs: str | Path = "runs") -> RunFrames:
    """A run by its folder, by its name in `runs`, or by the beginning of that name."""
    return RunFrames(find_run(Path(runs), str(reference)))


def load_runs(folder: str | Path = "runs", form: Form = "pandas") -> Any:
    """One row for each run of a folder: status, steps and its last held-out score, oldest first.

    `reason` says why a run stopped or crashed, `problem` why one cannot be read.
    """
    if not Path(folder).is_dir():
        raise UserError(f"no folder {folder} with runs here. Start a run: burnish train.")
    rows = []
    for info in list_runs(Path(folder)):
        last = info.last_evaluation
        score = (last.summary.get("score") if last else None) or (None, None, None, None)
        about = (info.name, info.status.value, info.recipe, info.created, info.steps)
        reason = info.end.reason if info.end else ""
        rows.append((*about, *score, reason, info.problem))
    names = ("name", "status", "recipe", "created", "steps")
    return _frame((*names, "held_out", "low", "high", "prompts", "reason", "problem"), rows, form)


class RunFrames:
    """The tables of one run as data frames."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<burnish run {self.folder.name}: .samples() .metrics() .parts() .evidence() .evaluations()>"

    def samples(
        self,
        *,
        step: int | None = None,
        split: str | None = None,
        status: str | None = None,
        tokens: bool = False,
        form: Form = "pandas",
    ) -> Any:
        """One row for each answer, filtered by whatever is given; reward parts as `part/NAME`.

        `sample` is its name (`train-3-2-4`: step, prompt, answer), `id` the store's key. `tokens`
        adds token ids, loss masks and log-probs as lists.
        """
        given = {"step": step, "split": split, "status": status}
        asked = {column: value for column, value in given.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in asked) or "1"
        columns = (*PLAIN, *(TOKENS if tokens else ()))
        values = list(asked.values())
        parts: dict[str, dict[str, float | None]] = {}
        with RunStore.open(self.folder, read_only=True) as run:
            query = "SELECT DISTINCT split FROM samples ORDER BY split"
            known = [row[0] for row in run.query(query)]
            # A wrong word must not look like no answers; a run may have none of a usual split yet.
            if split is not None and split not in (*known, *SPLITS):
                has = f"it has {', '.join(known)}" if known else "it has no samples yet"
                hint = did_you_mean(split, (*known, *SPLITS))
                raise UserError(f"run '{run.name}' has no split '{split}'; {has}.{hint}")
            query = f"SELECT {', '.join(columns)} FROM samples WHERE {where} ORDER BY rowid"
            rows = [dict(zip(columns, row, strict=True)) for row in run.query(query, values)]
            query = (
                "SELECT sample_id, name, value FROM reward_parts WHERE sample_id IN "
                f"(SELECT id FROM samples WHERE {where})"
            )
            for sample, path, value in run.query(query, values):
                _, *below = path.split("/")
                if len(below) == 1:  # the nodes right below the root
                    parts.setdefault(sample, {})[below[0]] = value
            named = list(sample_names(run, ((r["step"], r["split"], r["idx"]) for r in rows)))
        names = sorted({name for own in parts.values() for name in own})
        whole = (
            (name, *decode_cells(row).values(), *(parts.get(row["id"], {}).get(n) for n in names))
            for name, row in zip(named, rows, strict=True)
        )
        return _frame(("sample", *columns, *(f"part/{name}" for name in names)), whole, form)

    def metrics(self, form: Form = "pandas") -> Any:
        """The curves: one row for each step, one column for each metric."""
        with RunStore.open(self.folder, read_only=True) as run:
            curves = run.metrics()
        steps = sorted({point.step for curve in curves.values() for point in curve})
        by_name = {name: dict(curve) for name, curve in curves.items()}
        rows = ((step, *(own.get(step) for own in by_name.values())) for step in steps)
        frame = _frame(("step", *by_name), rows, form)
        return frame.set_index("step") if form == "pandas" else frame

    def parts(self, form: Form = "pandas") -> Any:
        """One row for each node of each reward tree; `name` is its path, such as `total/correct`."""
        return self._table("reward_parts", PART_COLUMNS, form)

    def evidence(self, form: Form = "pandas") -> Any:
        """One row for each observation behind a reward: raw judge replies are here."""
        return self._table("evidence", EVIDENCE_COLUMNS, form)

    def evaluations(self, form: Form = "pandas") -> Any:
        """One row for each evaluation, with its score and 95 % interval where it has one."""
        with RunStore.open(self.folder, read_only=True) as run:
            found = run.evaluations()
        rows = (
            (one.step, one.name, *(one.summary.get("score") or (None,) * 4), one.time)
            for one in found
        )
        return _frame(("step", "name", "score", "low", "high", "prompts", "time"), rows, form)

    def _table(self, table: str, columns: Sequence[str], form: Form) -> Any:
        with RunStore.open(self.folder, read_only=True) as run:
            query = f"SELECT {', '.join(columns)} FROM {table}"
            return _frame(columns, run.query(query), form)


def decode_cells(record: dict[str, Any]) -> dict[str, Any]:
    """A row of `samples` with its token columns as lists and `keep` as a truth value."""
    for name in record.keys() & set(TOKENS):
        record[name] = msgspec.json.decode(record[name])
    if "keep" in record:
        record["keep"] = bool(record["keep"])
    return record


def _one_of(word: str, allowed: Collection[str], line: str) -> None:
    if word not in allowed:
        hint = did_you_mean(word, allowed)
        raise UserError(f"{line}; expected one of {', '.join(allowed)}.{hint}")


def _frame(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: Form) -> Any:
    _one_of(form, FORMS, f"form is '{form}'")
    found = list(rows)
    lists = {name: [row[place] for row in found] for place, name in enumerate(columns)}
    if form == "arrow":
        schema = arrow_schema(lists)
        import pyarrow

        return pyarrow.table(lists, schema=schema)
    try:
        import pandas
    except ModuleNotFoundError:
        raise UserError(
            "data frames need pandas. Install it: pip install 'burnish[query]', or ask for "
            "form='arrow'."
        ) from None
    frame = pandas.DataFrame(lists)
    # Where every value is missing pandas cannot know that the column is one of numbers.
    kinds = {name: "float64" for name in lists if _kind(name) == "float64" and name not in TOKENS}
    return frame.astype(kinds)


def arrow_schema(columns: Iterable[str]) -> Any:
    """The Arrow types of columns of a run's tables, by their names."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise UserError(
            "Arrow and Parquet need pyarrow. Install it: pip install 'burnish[data]'."
        ) from None

    def typed(name: str) -> Any:
        kind = getattr(pyarrow, _kind(name))()
        return pyarrow.list_(kind) if name in TOKENS else kind

    return pyarrow.schema([(name, typed(name)) for name in columns])


def _kind(name: str) -> str:
    """What a column holds, by the name that Arrow has for it."""
    return "string" if name in _TEXTS else _KINDS.get(name, "float64")


_TEXTS = {
    *("sample", "id", "trajectory_id", "split", "task_id", "group_key", "role", "prompt"),
    *("response", "finish", "status", "sample_id", "name", "reason", "part", "source"),
    *("observation", "visibility", "error", "recipe", "created", "problem", "time"),
    *TREES,
}
_KINDS = {
    **dict.fromkeys(("step", "idx", "weight_version", "prompt_tokens"), "int64"),
    **dict.fromkeys(("response_tokens", "steps", "prompts", "token_ids"), "int64"),
    "loss_mask": "int8",
    "keep": "bool_",
}


class RunInfo(Struct, frozen=True, kw_only=True):
    name: str
    folder: Path
    status: RunStatus
    created: str = ""
    recipe: str = ""
    steps: int = 0
    last_evaluation: StoredEvaluation | None = None
    end: RunEnd | None = None
    problem: str = ""
    """Why an unreadable run cannot be read."""


def list_runs(folder: Path) -> list[RunInfo]:
    """Every run in a folder, oldest first; a damaged one is listed as unreadable."""
    infos = []
    for run in _run_folders(folder):
        try:
            with RunStore.open(run, read_only=True) as store:
                scored = [e for e in store.evaluations() if not e.name.startswith(UNSCORED)]
                info = RunInfo(
                    name=run.name,
                    folder=run,
                    status=store.status(),
                    created=store.about.created,
                    recipe=store.about.recipe,
                    steps=store.steps_done(),
                    last_evaluation=scored[-1] if scored else None,
                    end=store.end(),
                )
        except StoreError as error:
            unreadable = RunStatus.UNREADABLE
            info = RunInfo(name=run.name, folder=run, status=unreadable, problem=str(error))
        infos.append(info)
    return sorted(infos, key=lambda info: (info.created, info.name))


def find_run(folder: Path, reference: str) -> Path:
    """The run folder that a name, the beginning of a name, or a path means."""
    with contextlib.suppress(OSError):  # longer than any path can be
        if (Path(reference) / manifest.FILE).is_file():
            return Path(reference)
    names = [run.name for run in _run_folders(folder)]
    if reference in names:
        return folder / reference
    fitting = [name for name in names if reference and name.startswith(reference)]
    if len(fitting) == 1:
        return folder / fitting[0]
    shown = reference[:80]
    if fitting:
        line = f"'{shown}' means several runs in {folder}: {', '.join(fitting)}. Give more of the name."
    elif not names:
        line = f"no run '{shown}': {folder} holds no runs. Start one: burnish train."
    else:
        few = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        hint = did_you_mean(reference, names) or f" Runs there: {few}."
        line = f"no run '{shown}' in {folder}.{hint}"
    raise UserError(line)


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    with store_errors(f"list the runs of {folder}", folder):
        found = sorted(path.parent for path in folder.glob(f"*/{manifest.FILE}"))
        return [run for run in found if (run / DATABASE).is_file() or manifest.is_ours(run)]


METRIC_COLUMNS = ("step", "name", "value")
BATCH_ROWS = 512

_FORMULA = re.compile(
    # Signs that begin a formula, their full-width and small forms too, behind what an import may
    # strip: blanks, quotes, marks without width. A tab or a return alone is stripped likewise.
    r"[\t\r]|[\s\x00-\x1f\"'`“”‘’\u200b-\u200f\u2060\ufeff]*[=+\-@＝＋－＠﹦﹢﹣﹫]"
)

Record = dict[str, Any]


def export(
    run: Path | RunReader,
    path: Path,
    what: Literal["samples", "metrics"] = "samples",
    *,
    raw: bool = False,
) -> int:
    """Write a table of the run to `path`, in the format its suffix names; how many rows it has.

    `raw` keeps texts in a CSV file that a spreadsheet would run as formulas.
    """
    _one_of(path.suffix, _WRITERS, f"{path}: unknown format '{path.suffix}'")
    _one_of(what, ("samples", "metrics"), f"cannot export '{what}'")
    writer = _write_raw_csv if raw and path.suffix == ".csv" else _WRITERS[path.suffix]
    if isinstance(run, RunReader):
        return _export(run, path, what, writer)
    with RunStore.open(run, read_only=True) as store:
        return _export(store, path, what, writer)


def _export(run: RunReader, path: Path, what: str, writer: Writer) -> int:
    columns = COLUMNS if what == "samples" else METRIC_COLUMNS
    stored = run.table(what, columns)
    rows: Iterator[tuple[Any, ...]] = stored
    if what == "samples":
        place = itemgetter(*(columns.index(name) for name in ("step", "split", "idx")))
        columns = ("sample", *columns)
        # The names are made one step at a time, as the rows come.
        rows, same = itertools.tee(rows)
        names = sample_names(run, map(place, same))
        rows = ((name, *row) for name, row in zip(names, rows, strict=True))
    count = 0

    def records() -> Iterator[Record]:
        nonlocal count
        for row in rows:
            count += 1
            record = dict(zip(columns, row, strict=True))
            if what == "samples":
                _copy_media(run, record, media_folder(path))
            yield record

    # A writer that fails leaves rows unread, which must be let go of before the database closes.
    with contextlib.closing(stored), whole_file(path) as draft:
        writer(draft, columns, records())
    return count


def media_folder(path: Path) -> Path:
    """Where the images and sounds of an exported table are."""
    return path.with_name(f"{path.stem}_media")


def _copy_media(run: RunReader, record: Record, folder: Path) -> None:
    """Put the images and sounds of one sample beside the table, whole or not at all."""
    if not any('"sha256"' in record[name] for name in ("task", "info")):
        return
    task = msgspec.json.decode(record["task"], type=Task)
    for message in held_messages(task, msgspec.json.decode(record["info"])):
        for part in message.media:
            target = folder / f"{part.sha256}{SUFFIXES[part.media_type]}"
            if not target.is_file():
                make_folder(folder)
                write_file(target, run.blobs.read(part))


def _write_jsonl(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    with path.open("wb") as file:
        for record in records:
            file.write(_object(record) + b"\n")


def _write_json(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    with path.open("wb") as file:
        file.write(b"[")
        for number, record in enumerate(records):
            file.write((b",\n" if number else b"\n") + _object(record))
        file.write(b"\n]\n")


def _write_csv(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    _write_raw_csv(path, columns, ({k: inert(v) for k, v in one.items()} for one in records))


def _write_raw_csv(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(record.values() for record in records)


def inert(cell: Any) -> Any:
    """A cell that no spreadsheet runs: a text like a formula behind an apostrophe, else itself."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _write_parquet(path: Path, columns: tuple[str, ...], records: Iterator[Record]) -> None:
    schema = arrow_schema(columns)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch := list(itertools.islice(records, BATCH_ROWS)):
            writer.write_table(
                pa.Table.from_pylist([decode_cells(r) for r in batch], schema=schema)
            )


def _object(record: Record) -> bytes:
    """The record as one JSON object; columns that are JSON already go in as they are."""
    for column in record.keys() & {*TREES, *TOKENS}:
        record[column] = msgspec.Raw(record[column].encode())
    if "keep" in record:
        record["keep"] = bool(record["keep"])
    return msgspec.json.encode(record)


Writer = Callable[[Path, tuple[str, ...], Iterator[Record]], None]

_WRITERS: dict[str, Writer] = {
    ".jsonl": _write_jsonl,
    ".json": _write_json,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
