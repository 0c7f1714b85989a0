"""The runs of a folder: what is there, where each stands, and which one a person means."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from burnish.errors import StoreError, UserError, did_you_mean
from burnish.store import manifest
from burnish.store.reader import DATABASE, RunStatus, StoredEvaluation
from burnish.store.run import RunStore


class RunInfo(Struct, frozen=True, kw_only=True):
    """One line of a listing."""

    name: str
    folder: Path
    status: RunStatus
    created: str = ""
    recipe: str = ""
    steps: int = 0
    last_evaluation: StoredEvaluation | None = None
    problem: str = ""
    """Why an unreadable run cannot be read."""


def list_runs(folder: Path) -> list[RunInfo]:
    """Every run in a folder, oldest first; a damaged one is listed as unreadable."""
    infos = [_info(run) for run in _run_folders(folder)]
    return sorted(infos, key=lambda info: (info.created, info.name))


def find_run(folder: Path, reference: str) -> Path:
    """The run folder that a name, the beginning of a name, or a path means."""
    as_path = Path(reference)
    if (as_path / manifest.FILE).is_file():
        return as_path
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
            evaluations = store.evaluations()
            return RunInfo(
                name=folder.name,
                folder=folder,
                status=store.status(),
                created=store.about.created,
                recipe=store.about.recipe,
                steps=len(store.steps()),
                last_evaluation=evaluations[-1] if evaluations else None,
            )
    except StoreError as error:
        return RunInfo(
            name=folder.name, folder=folder, status=RunStatus.UNREADABLE, problem=str(error)
        )


def _few(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
