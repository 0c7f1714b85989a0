"""Checkpoints: a Hugging Face folder that loads as it lies, with the trainer's state inside.

    checkpoints/step-000010/
        config.json  model.safetensors  tokenizer.json ...      any tool can load these
        trainer/optimiser.safetensors                           master weights and moments
        trainer/policy.safetensors                              what the recipe remembers
        trainer/state.json                                      step, cursor, versions
        trainer/checksums.json                                  of every file above, and how many
                                                                rows run.db held

A checkpoint is written beside its place, synced and renamed into it, so a killed process or a power
cut leaves either a whole one or none. `newest` compares every byte with its checksum before a run
goes on from it, and the rows of the store with those that the checkpoint counted. Nothing random is
saved: every seed is derived from the run's. Checkpoints of earlier versions have no checksums; what
can be told without them is checked.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.errors import StoreError
from burnish.policy.state import PolicyState
from burnish.store import RunStore
from burnish.store.durable import remove_folder, sweep, whole_folder
from burnish.texts import shown_path
from burnish.training.curriculum import CurriculumState
from burnish.training.guards import check_saved
from burnish.training.optimiser import MasterAdamW

logger = logging.getLogger(__name__)

OPTIMISER = "trainer/optimiser.safetensors"
POLICY = "trainer/policy.safetensors"
STATE = "trainer/state.json"
CHECKSUMS = "trainer/checksums.json"
WEIGHTS = "model.safetensors"
SEALED = 2
"""From this layout on a checkpoint has checksums."""
HASHERS = 8
"""Threads that sum a checkpoint's files."""
PIECE = 1 << 24
"""Bytes that one of them takes at a time."""
DIGEST = 32
"""Bytes of a checksum."""

Count = Annotated[int, Meta(ge=0, le=10**12)]


class TrainState(Struct, frozen=True, kw_only=True):
    """Where a run stands between two steps."""

    step: Count = 0
    """Steps done."""
    cursor: Count = 0
    weight_version: Count = 0
    useless_streak: Count = 0
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """CPU threads of the run's first start."""
    curriculum: CurriculumState = CurriculumState()
    layout: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Of the folder; 1 is that of versions which wrote no number."""


class Sum(Struct, frozen=True):
    """Size and checksum of a file."""

    bytes: int
    blake2b: str
    """BLAKE2b over those of the file's pieces: thrice as fast as SHA-256, and on all cores."""


class Seal(Struct, frozen=True, kw_only=True):
    """`checksums.json`, written last: what the folder and the store held when it was."""

    files: dict[str, Sum]
    rows: dict[str, int]
    """Rows of each table of run.db; it only ever grows."""
    store: str = ""
    """Identity of that run.db."""


def save(
    folder: Path,
    state: TrainState,
    optimiser: MasterAdamW,
    policy: PolicyState,
    write_model: Callable[[Path], None],
    keep: int,
    store: RunStore,
) -> Path:
    """Write `step-N`, then remove all but the newest `keep`; refuses weights that are not finite."""
    place = folder / f"step-{state.step:06d}"
    if os.path.lexists(place):
        # Written before a start that ended between this and the run's last word.
        if damage := _damage(place):
            raise StoreError(
                f"cannot write {place}: something is in its place ({damage}); move it away."
            )
        return place
    tensors = {name: t.contiguous() for name, t in optimiser.state().items()}
    check_saved(tensors, state.step)
    state = msgspec.structs.replace(state, layout=SEALED)
    stays = f"; {newer[-1].name} stays" if (newer := _all(folder)) else ""
    with whole_folder(place, f"checkpoint {place.name}{stays}") as draft:
        (draft / "trainer").mkdir()
        write_model(draft)
        save_file(tensors, draft / OPTIMISER)
        save_file(policy.tensors(), draft / POLICY)
        (draft / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        sums = _sums(draft, _files(draft))
        seal = Seal(files=sums, rows=store.rows(), store=store.identity)
        (draft / CHECKSUMS).write_bytes(msgspec.json.format(msgspec.json.encode(seal)))
    for old in _all(folder)[:-keep]:
        remove_folder(old)
    return place


def newest(folder: Path, store: RunStore) -> Path | None:
    """The newest checkpoint, known to be whole; None where there is none.

    Where it is damaged, or `run.db` has lost rows that it counted, one line says so, names the
    newest one from which the run can go on, and how. Nothing is chosen silently.
    """
    if not os.path.lexists(folder):
        return None
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; expected the run's checkpoints in it.")
    sweep(folder)
    for stray in _strays(folder):
        logger.warning(
            "%s is no checkpoint of this run (expected step-N); it is left alone.", stray
        )
    found = _all(folder)
    if not found:
        return None
    held = store.rows()
    problem = _problem(found[-1], store, held)
    if problem:
        raise StoreError(f"{problem}. {_offer(found, store, held)}")
    return found[-1]


def load_state(place: Path) -> TrainState:
    """The trainer's state of a checkpoint."""
    try:
        return msgspec.json.decode((place / STATE).read_bytes(), type=TrainState)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"checkpoint {place}: {STATE} cannot be read: {_why(error)}.") from error


def load_optimiser(place: Path, optimiser: MasterAdamW) -> None:
    """Put master weights and moments back, bit for bit."""
    tensors = _load(place / OPTIMISER)
    expected = optimiser.state()
    for name, tensor in expected.items():
        got = tensors.get(name)
        if got is None or got.shape != tensor.shape:
            shape = "nothing" if got is None else f"shape {tuple(got.shape)}"
            raise StoreError(
                f"checkpoint {place}: {OPTIMISER} has {shape} for {name}; expected "
                f"{tuple(tensor.shape)}. Was it written for another model?"
            )
    optimiser.load(tensors)


def load_policy(place: Path) -> PolicyState:
    """What the recipe remembered; checkpoints of earlier versions have none."""
    path = place / POLICY
    try:
        return PolicyState.from_tensors(_load(path)) if path.is_file() else PolicyState()
    except KeyError as error:
        raise StoreError(f"checkpoint {place}: {POLICY} lacks {error}.") from error


def _load(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{path} cannot be read: {_why(error)}.") from error
    return tensors


# --- which checkpoints there are, and whether they are whole


def _all(folder: Path) -> list[Path]:
    """The checkpoints by their step."""
    found = [p for p in folder.glob("step-*") if _NAME.fullmatch(p.name) and p.is_dir()]
    return sorted(found, key=_number)


def _strays(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not _NAME.fullmatch(p.name))


_NAME = re.compile(r"step-\d{6,12}", re.ASCII)


def _number(place: Path) -> int:
    return int(place.name.removeprefix("step-"))


def _problem(place: Path, store: RunStore, held: Mapping[str, int]) -> str:
    """What is wrong with a checkpoint, in one line; an empty text where it is whole."""
    damage = _damage(place)
    if damage:
        return f"checkpoint {shown_path(place)} is damaged: {damage}"
    if not _is_of(place, store):
        return f"checkpoint {shown_path(place)} is that of another run"
    lost = _lost(place, store, held)
    return (
        f"{shown_path(store.folder / 'run.db')} has lost what checkpoint {place.name} counted: {lost}"
        if lost
        else ""
    )


def _damage(place: Path) -> str:
    """What is wrong with the files of a checkpoint."""
    try:
        state = load_state(place)
    except StoreError as error:
        return str(error).partition(": ")[2].removesuffix(".")
    if state.step != _number(place):
        return f"{STATE} is that of step {state.step}"
    if state.layout > SEALED:
        return (
            f"{STATE} has layout {state.layout}, of a newer burnish; this one reads up to {SEALED}"
        )
    if state.layout == SEALED or (place / CHECKSUMS).exists():
        return next(_differences(place), "")
    # Before there were checksums: the files are there and can be opened.
    required = [
        name for name in (WEIGHTS, OPTIMISER, POLICY) if name != POLICY or (place / name).exists()
    ]
    return next((f"{name}: {why}" for name in required if (why := _unreadable(place / name))), "")


def _unreadable(path: Path) -> str:
    try:
        with safe_open(path, "pt") as file:
            file.keys()
    except (OSError, SafetensorError) as error:
        return _why(error)
    return ""


def _differences(place: Path) -> Iterator[str]:
    """Files that are not what their checksums say."""
    try:
        seal = msgspec.json.decode((place / CHECKSUMS).read_bytes(), type=Seal)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        yield f"{CHECKSUMS} cannot be read: {_why(error)}"
        return
    whole: list[str] = []
    for name, wanted in seal.files.items():
        path = place / name
        if not path.is_file():
            yield f"{name} is not there"
        elif path.stat().st_size != wanted.bytes:
            yield f"{name} has {path.stat().st_size:,} bytes, expected {wanted.bytes:,}"
        else:
            whole.append(name)
    for name, got in _sums(place, whole).items():
        if got != seal.files[name]:
            yield f"{name} has changed since it was written (its checksum differs)"


def _seal(place: Path) -> Seal | None:
    """What a checkpoint counted; None where it did not, or where that cannot be read."""
    try:
        return msgspec.json.decode((place / CHECKSUMS).read_bytes(), type=Seal)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def _is_of(place: Path, store: RunStore) -> bool:
    """Whether the checkpoint was written beside this store; earlier versions did not say."""
    seal = _seal(place)
    return seal is None or seal.store in ("", store.identity)


def _lost(place: Path, store: RunStore, held: Mapping[str, int]) -> str:
    """What the store held when the checkpoint was written and does not hold now."""
    seal = _seal(place)
    for table, count in seal.rows.items() if seal else ():
        if held.get(table, 0) < count:
            return f"{count - held.get(table, 0):,} of {count:,} rows of '{table}'"
    return store.hole(_number(place))


def _torn(place: Path, store: RunStore, held: Mapping[str, int]) -> str:
    """What is gone of steps that are stored only in part.

    A crash loses whole steps, which are sampled again. A step is stored in one go: where only some
    of its rows are gone, the file is damaged.
    """
    seal = _seal(place)
    if seal and held.get("rollouts", 0) >= seal.rows.get("rollouts", 0):
        for table in ("samples", "reward_parts", "evidence"):
            if held.get(table, 0) < seal.rows.get(table, 0):
                return f"rows of '{table}'"
    return store.torn()


def _offer(found: list[Path], store: RunStore, held: Mapping[str, int]) -> str:
    """What to do: go on from the newest checkpoint that is whole, or begin anew."""
    if torn := _torn(found[-1], store, held):
        return (
            f"A step is there only in part ({torn} are gone), so the run cannot go on: put run.db back "
            "from a copy, or start a new run with --again"
        )
    good = next((p for p in reversed(found[:-1]) if not _problem(p, store, held)), None)
    passed = [p for p in found if good is None or _number(p) > _number(good)]
    names = " ".join(f"checkpoints/{p.name}" for p in passed)
    aside = f"cd {shown_path(store.folder)} && mkdir -p aside && mv {names} aside"
    if good is not None:
        return f"The newest whole one is {good.name}; to go on from it: {aside}; then repeat the command"
    return (
        "No other checkpoint is whole; to compute the run's steps again from its start, with the "
        f"rollouts that are stored: {aside}; then repeat the command"
    )


def _files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _sums(folder: Path, names: list[str]) -> dict[str, Sum]:
    """Sizes and checksums; hashing leaves the interpreter free, so pieces are summed side by side."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    pieces = [(name, start) for name in names for start in range(0, sizes[name] or 1, PIECE)]
    with ThreadPoolExecutor(min(HASHERS, os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda piece: _piece(folder / piece[0], piece[1]), pieces))
    whole = {name: hashlib.blake2b(digest_size=DIGEST) for name in names}
    for (name, _), digest in zip(pieces, found, strict=True):
        whole[name].update(digest)
    return {name: Sum(sizes[name], whole[name].hexdigest()) for name in names}


def _piece(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.blake2b(file.read(PIECE), digest_size=DIGEST).digest()


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
