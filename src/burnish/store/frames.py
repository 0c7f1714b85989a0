"""A run for a notebook: samples, reward parts, evidence and metrics as pandas or Arrow.

    run = burnish.load_run("runs/first")
    run.samples(split="train").groupby("step").reward.mean()
    run.metrics()["reward/total"].plot()

A reward without a value is missing (NaN), never 0. Nothing is written, so a run that is training
can be looked at; each call reads what is stored by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from burnish.errors import StoreError, UserError, did_you_mean
from burnish.store import manifest
from burnish.store.reader import DATABASE, UNSCORED, RunEnd, RunStatus, StoredEvaluation
from burnish.store.run import RunStore
from burnish.store.sample import COLUMNS, EVIDENCE_COLUMNS, PART_COLUMNS
from burnish.store.sample_name import sample_names

if TYPE_CHECKING:
    from burnish.store.database import Row

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
        with RunStore.open(self.folder, read_only=True) as run:
            if split is not None:
                _check_split(run, split)
            query = f"SELECT {', '.join(columns)} FROM samples WHERE {where} ORDER BY rowid"
            rows = list(run.query(query, values))
            query = (
                "SELECT sample_id, name, value FROM reward_parts WHERE sample_id IN "
                f"(SELECT id FROM samples WHERE {where})"
            )
            parts = _direct_parts(run.query(query, values))
            place = itemgetter(*(columns.index(name) for name in ("step", "split", "idx")))
            named = list(sample_names(run, map(place, rows)))
        names = sorted({name for own in parts.values() for name in own})
        ids = columns.index("id")
        whole = (
            (
                name,
                *decode_cells(dict(zip(columns, row, strict=True))).values(),
                *(parts.get(row[ids], {}).get(name) for name in names),
            )
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


def _check_split(run: RunStore, split: str) -> None:
    """A wrong word must not look like no answers; a run may have none of a usual split yet."""
    known = [row[0] for row in run.query("SELECT DISTINCT split FROM samples ORDER BY split")]
    if split not in (*known, *SPLITS):
        has = f"it has {', '.join(known)}" if known else "it has no samples yet"
        hint = did_you_mean(split, (*known, *SPLITS))
        raise UserError(f"run '{run.name}' has no split '{split}'; {has}.{hint}")


def _direct_parts(rows: Iterable[Row]) -> dict[str, dict[str, float | None]]:
    """The components of each sample: the nodes right below its root."""
    found: dict[str, dict[str, float | None]] = {}
    for sample, path, value in rows:
        if path.count("/") == 1:
            found.setdefault(sample, {})[path.partition("/")[2]] = value
    return found


def decode_cells(record: dict[str, Any]) -> dict[str, Any]:
    """A row of `samples` with its token columns as lists and `keep` as a truth value."""
    for name in record.keys() & set(TOKENS):
        record[name] = msgspec.json.decode(record[name])
    if "keep" in record:
        record["keep"] = bool(record["keep"])
    return record


def _frame(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: Form) -> Any:
    if form not in FORMS:
        hint = did_you_mean(form, FORMS)
        raise UserError(f"form is '{form}'; expected pandas or arrow.{hint}")
    found = list(rows)
    lists = {name: [row[place] for row in found] for place, name in enumerate(columns)}
    return _arrow(lists) if form == "arrow" else _pandas(lists)


def _pandas(lists: dict[str, list[Any]]) -> Any:
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


def _arrow(lists: dict[str, list[Any]]) -> Any:
    schema = arrow_schema(lists)
    import pyarrow

    return pyarrow.table(lists, schema=schema)


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
    if name in _TEXTS:
        return "string"
    return _KINDS.get(name, "float64")


_TEXTS = {
    *(
        "sample",
        "id",
        "trajectory_id",
        "split",
        "task_id",
        "group_key",
        "role",
        "prompt",
        "response",
    ),
    *("finish", "status", "sample_id", "name", "reason", "part", "source", "observation"),
    *("visibility", "error", "recipe", "created", "problem", "time"),
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
    infos = [_info(run) for run in _run_folders(folder)]
    return sorted(infos, key=lambda info: (info.created, info.name))


def find_run(folder: Path, reference: str) -> Path:
    """The run folder that a name, the beginning of a name, or a path means."""
    as_path = Path(reference)
    try:
        if (as_path / manifest.FILE).is_file():
            return as_path
    except OSError:  # longer than any path can be
        raise UserError(
            f"no run '{reference[:40]}'... ({len(reference)} characters): the name is too long for a "
            "file or folder; expected the name or the folder of a run."
        ) from None
    names = [run.name for run in _run_folders(folder)]
    if reference in names:
        return folder / reference
    fitting = [name for name in names if reference and name.startswith(reference)]
    if len(fitting) == 1:
        return folder / fitting[0]
    if fitting:
        raise UserError(
            f"'{reference}' means several runs in {folder}: {', '.join(fitting)}. "
            "Give more of the name."
        )
    if not names:
        raise UserError(f"no run '{reference}': {folder} holds no runs. Start one: burnish train.")
    hint = did_you_mean(reference, names) or f" Runs there: {_few(names)}."
    raise UserError(f"no run '{reference}' in {folder}.{hint}")


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    try:
        found = sorted(path.parent for path in folder.glob(f"*/{manifest.FILE}"))
        return [run for run in found if (run / DATABASE).is_file() or manifest.is_ours(run)]
    except OSError as error:
        raise StoreError(f"{folder}: cannot list the runs: {error.strerror}.") from error


def _info(folder: Path) -> RunInfo:
    try:
        with RunStore.open(folder, read_only=True) as store:
            evaluations = [e for e in store.evaluations() if not e.name.startswith(UNSCORED)]
            return RunInfo(
                name=folder.name,
                folder=folder,
                status=store.status(),
                created=store.about.created,
                recipe=store.about.recipe,
                steps=store.steps_done(),
                last_evaluation=evaluations[-1] if evaluations else None,
                end=store.end(),
            )
    except StoreError as error:
        return RunInfo(
            name=folder.name, folder=folder, status=RunStatus.UNREADABLE, problem=str(error)
        )


def _few(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
