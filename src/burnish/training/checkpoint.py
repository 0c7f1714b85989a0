"""Checkpoints: a Hugging Face folder that loads as it lies, with the trainer's state inside.

    checkpoints/step-000010/                                (of stages: stages/NAME/step-000010/)
        config.json  model.safetensors  tokenizer.json ...      any tool can load these
        trainer/optimiser.safetensors                           master weights and moments, or,
        trainer/optimiser-00001-of-00004.safetensors ...        of several processes, a slice each
        trainer/algorithm.safetensors                           what the algorithm remembers
        trainer/state.json                                      step, versions, the algorithm's values
        trainer/checksums.json                                  of every file above, and the rows of run.db
    crash/step-N/                                           a step that a guard stopped, for `replay`
        report.json                     the line, the stage of the guard, the samples it names
        algorithm.safetensors           what the algorithm remembered when the step began
        weights/                        as they were when the guard tripped
        samples.jsonl  old.safetensors  what else the algorithm keeps (`save_batch`)

A checkpoint is written beside its place, synced and renamed into it. Nothing random is saved: every
seed is derived from the run's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import torch
from msgspec import Meta, Struct
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.config import Config, load
from burnish.config.schema import Optimiser
from burnish.errors import GuardTripped, StoreError, UserError
from burnish.lm.folder import DTYPES, choose_device, load_model
from burnish.rewards.config import build_all
from burnish.seeds import Seeds
from burnish.store import RunStore
from burnish.store.durable import remove_drafts, remove_folder, store_errors, whole_folder
from burnish.texts import shown_path
from burnish.training.algorithm import AlgorithmState, AnyAlgorithm, Setup
from burnish.training.algorithms import find_algorithm
from burnish.training.data import Data
from burnish.training.devices import World
from burnish.training.guards import check_saved, name_samples
from burnish.training.optimiser import MasterAdamW
from burnish.training.trainable import Trainable, start_model
from burnish.training.update import MicroBatcher, Updater

OPTIMISER = "trainer/optimiser.safetensors"
PART = "trainer/optimiser-{:05d}-of-{:05d}.safetensors"
ALGORITHM = "trainer/algorithm.safetensors"
STATE = "trainer/state.json"
CHECKSUMS = "trainer/checksums.json"
WEIGHTS = "model.safetensors"
LAYOUT = 3
"""Of the folder; others are not continued."""
HASHERS = 8
PIECE = 1 << 24
DIGEST = 32

Kind = TypeVar("Kind")
Count = Annotated[int, Meta(ge=0, le=10**12)]


class TrainState(Struct, frozen=True, kw_only=True):
    step: Count = 0
    weight_version: Count = 0
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """CPU threads of the run's first start."""
    algorithm: dict[str, Any] = {}
    layout: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Of the folder; 1 where no number was written."""


class Sum(Struct, frozen=True):
    bytes: int
    blake2b: str
    """BLAKE2b over those of the file's pieces: thrice as fast as SHA-256, and on all cores."""


class Checksums(Struct, frozen=True, kw_only=True):
    """`checksums.json`, written last: what the folder and the store held when it was."""

    files: dict[str, Sum] = {}
    rows: dict[str, int] = {}
    """Rows of each table of run.db; it only ever grows."""
    store: str = ""
    """Identity of that run.db."""


class Damaged(StoreError):
    def __init__(self, place: Path, what: str) -> None:
        super().__init__(f"checkpoint {shown_path(place)} is damaged: {what}")
        self.what = what


def save_part(world: World, optimiser: MasterAdamW, draft: Path | None = None) -> None:
    """This process's slice into the first one's draft; without a draft there nothing is written."""
    place = world.first(str(draft or ""))
    if place:
        tensors = optimiser.state()
        if not world.is_main:  # what every process holds whole is written once
            cut = {n for n, one in zip(optimiser.names, optimiser.slices, strict=True) if one}
            tensors = {key: t for key, t in tensors.items() if _weight_of(key) in cut}
            tensors = {key: t for key, t in tensors.items() if t.dim()}
        file = Path(place) / PART.format(world.rank + 1, world.size)
        with store_errors(f"write {file.name}", file):
            save_file({name: t.contiguous() for name, t in tensors.items()}, file)
    world.wait()


def save(
    folder: Path,
    state: TrainState,
    optimiser: MasterAdamW,
    algorithm: AlgorithmState,
    write_model: Callable[[Path], None],
    keep: int,
    store: RunStore,
    world: World,
) -> Path:
    """Write `step-N`, then remove all but the newest `keep`; refuses weights that are not finite.

    Where processes hold slices, all others call `save_part` meanwhile.
    """
    place = folder / f"step-{state.step:06d}"
    if os.path.lexists(place):
        # Written before a start that ended between this and the run's last word.
        try:
            _check_files(place)
        except Damaged as damage:
            raise StoreError(
                f"cannot write {place}: something is in its place ({damage.what}); move it away."
            ) from damage
        if any(optimiser.slices):
            save_part(world, optimiser)
        return place
    tensors = {name: t.contiguous() for name, t in optimiser.state().items()}
    check_saved(tensors, max(state.step - 1, 0))
    state = msgspec.structs.replace(state, layout=LAYOUT, algorithm=dict(algorithm.values))
    stays = f"; {before[-1].name} stays" if (before := _all(folder)) else ""
    with whole_folder(place, f"checkpoint {place.name}{stays}") as draft:
        (draft / "trainer").mkdir()
        write_model(draft)
        if any(optimiser.slices):
            save_part(world, optimiser, draft)
        else:
            save_file(tensors, draft / OPTIMISER)
        remembered = {name: t.contiguous() for name, t in algorithm.tensors.items()}
        save_file(remembered, draft / ALGORITHM)
        (draft / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        names = [p.relative_to(draft).as_posix() for p in draft.rglob("*") if p.is_file()]
        sums = _sums(draft, sorted(names))
        written = Checksums(files=sums, rows=store.rows(), store=store.identity)
        (draft / CHECKSUMS).write_bytes(msgspec.json.format(msgspec.json.encode(written)))
    for old in _all(folder)[:-keep]:
        remove_folder(old)
    return place


def newest(folder: Path, store: RunStore, stage: str = "") -> Path | None:
    """The newest checkpoint of a run or of one of its stages, known to be whole; None without one.

    Where it is damaged, or `run.db` has lost rows that it counted, one line says so, names the
    newest one from which the run can go on, and how. Nothing is chosen silently.
    """
    if not folder.is_dir():
        return None
    remove_drafts(folder)
    found = _all(folder)
    if not found:
        return None
    held = store.rows()
    if problem := _problem(found[-1], store, held, stage):
        raise StoreError(f"{problem}. {_offer(found, store, held, stage)}")
    return found[-1]


def load_state(place: Path) -> TrainState:
    return _decoded(place, STATE, TrainState)


def load_optimiser(place: Path, optimiser: MasterAdamW) -> None:
    """From the file or the slices of any number of processes; each reads the rows that it holds."""
    files = _optimiser_files(place)
    if not files:
        raise Damaged(place, f"{OPTIMISER} is not there")
    cut = dict(zip(optimiser.names, optimiser.slices, strict=True))
    with _reading(place, OPTIMISER), contextlib.ExitStack() as opened:
        held = [opened.enter_context(safe_open(str(file), framework="pt")) for file in files]
        parts = {key: [one for one in held if key in one.keys()] for key in held[0].keys()}  # noqa: SIM118
        optimiser.load(
            {key: _rows(key, found, cut.get(_weight_of(key))) for key, found in parts.items()}
        )


def _weight_of(key: str) -> str:
    return key.partition("/")[2]


def _rows(key: str, parts: Sequence[Any], cut: tuple[int, int] | None) -> Tensor:
    """The wanted rows of a tensor that lies in parts, one after the other; all without `cut`."""
    pieces = [part.get_slice(key) for part in parts]
    if not pieces[0].get_shape():  # a count, the same in each
        scalar: Tensor = parts[0].get_tensor(key)
        return scalar
    sizes = [piece.get_shape()[0] for piece in pieces]
    first, rows = cut or (0, sum(sizes))
    found, begin = list[Tensor](), 0
    for piece, size in zip(pieces, sizes, strict=True):
        low, high = max(first - begin, 0), min(first + rows - begin, size)
        begin += size
        if low < high:
            found.append(piece[low:high])
    return torch.cat(found) if found else pieces[0][:0]


def _optimiser_files(place: Path) -> list[Path]:
    return sorted((place / OPTIMISER).parent.glob("optimiser*.safetensors"))


def load_algorithm(place: Path) -> AlgorithmState:
    return AlgorithmState(load_state(place).algorithm, _tensors(place, ALGORITHM))


def _decoded(place: Path, name: str, kind: type[Kind]) -> Kind:
    with _reading(place, name):
        return msgspec.json.decode((place / name).read_bytes(), type=kind)


def _tensors(place: Path, name: str) -> dict[str, Tensor]:
    with _reading(place, name):
        return dict(load_file(place / name))


@contextmanager
def _reading(place: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise Damaged(place, f"{name}: {why or type(error).__name__}") from error


def _all(folder: Path) -> list[Path]:
    found = [p for p in folder.glob("step-*") if _NAME.fullmatch(p.name) and p.is_dir()]
    return sorted(found, key=_number)


_NAME = re.compile(r"step-\d{6,12}", re.ASCII)


def _number(place: Path) -> int:
    return int(place.name.removeprefix("step-"))


def _problem(place: Path, store: RunStore, held: Mapping[str, int], stage: str) -> str:
    try:
        written = _check_files(place)
    except Damaged as damage:
        return str(damage)
    if written.store not in ("", store.identity):
        return f"checkpoint {shown_path(place)} is that of another run"
    gone = ((table, count, count - held.get(table, 0)) for table, count in written.rows.items())
    short = (f"{less:,} of {count:,} rows of '{table}'" for table, count, less in gone if less > 0)
    if lost := next(short, "") or store.missing_before(_number(place), stage):
        database = shown_path(store.folder / "run.db")
        return f"{database} has lost what checkpoint {place.name} counted: {lost}"
    return ""


def _check_files(place: Path) -> Checksums:
    state = load_state(place)
    if state.step != _number(place):
        raise Damaged(place, f"{STATE} is that of step {state.step}")
    if state.layout != LAYOUT:
        raise StoreError(
            f"checkpoint {shown_path(place)} was written by another burnish (layout {state.layout}, here "
            f"{LAYOUT}), whose runs can be looked at and not continued; start a new run with --again."
        )
    written = _decoded(place, CHECKSUMS, Checksums)
    own = [file.relative_to(place).as_posix() for file in _optimiser_files(place)]
    for name in (STATE, *own, ALGORITHM, WEIGHTS):
        if name not in written.files and (place / name).exists():
            raise Damaged(place, f"{CHECKSUMS} has no checksum of {name}")
    for name, wanted in written.files.items():  # sizes first, which cost nothing
        path = place / name
        if not path.is_file():
            raise Damaged(place, f"{name} is not there")
        if (size := path.stat().st_size) != wanted.bytes:
            raise Damaged(place, f"{name} has {size:,} bytes, expected {wanted.bytes:,}")
    for name, got in _sums(place, list(written.files)).items():
        if got != written.files[name]:
            raise Damaged(place, f"{name} has changed since it was written (its checksum differs)")
    return written


def _torn(place: Path, store: RunStore, held: Mapping[str, int]) -> str:
    """What is gone of steps that are stored only in part.

    A crash loses whole steps, which are sampled again. A step is stored in one go: where only some
    of its rows are gone, the file is damaged.
    """
    counted: dict[str, int] = {}
    with contextlib.suppress(Damaged):
        counted = _decoded(place, CHECKSUMS, Checksums).rows
    less = {table for table, count in counted.items() if held.get(table, 0) < count}
    if "rollouts" not in less:
        for table in ("samples", "reward_parts", "evidence"):
            if table in less:
                return f"rows of '{table}'"
    return store.missing_samples()


def _offer(found: list[Path], store: RunStore, held: Mapping[str, int], stage: str) -> str:
    if torn := _torn(found[-1], store, held):
        return (
            f"A step is there only in part ({torn} are gone), so the run cannot go on: put run.db back "
            "from a copy, or start a new run with --again"
        )
    good = next((p for p in reversed(found[:-1]) if not _problem(p, store, held, stage)), None)
    passed = [p for p in found if good is None or _number(p) > _number(good)]
    names = " ".join(str(p.relative_to(store.folder)) for p in passed)
    aside = f"cd {shown_path(store.folder)} && mkdir -p aside && mv {names} aside"
    if good is not None:
        return f"The newest whole one is {good.name}; to go on from it: {aside}; then repeat the command"
    return (
        "No other checkpoint is whole; to compute the run's steps again from its start, with the "
        f"rollouts that are stored: {aside}; then repeat the command"
    )


def _sums(folder: Path, names: list[str]) -> dict[str, Sum]:
    """Sizes and checksums; hashing leaves the interpreter free, so pieces are summed side by side."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    pieces = [(name, start) for name in names for start in range(0, sizes[name] or 1, PIECE)]

    def sum_of(piece: tuple[str, int]) -> bytes:
        with (folder / piece[0]).open("rb") as file:
            file.seek(piece[1])
            return hashlib.blake2b(file.read(PIECE), digest_size=DIGEST).digest()

    with ThreadPoolExecutor(min(HASHERS, os.cpu_count() or 1)) as pool:
        found = list(pool.map(sum_of, pieces))
    whole = {name: hashlib.blake2b(digest_size=DIGEST) for name in names}
    for (name, _), digest in zip(pieces, found, strict=True):
        whole[name].update(digest)
    return {name: Sum(sizes[name], whole[name].hexdigest()) for name in names}


CRASH_STATE = "algorithm.safetensors"


class Report(Struct, frozen=True, kw_only=True):
    message: str
    stage: str
    tensor: str
    step: int
    samples: tuple[str, ...]
    update: int
    """How many updates of the step had already moved the weights."""
    training: str = ""
    """The stage of the run; empty for its main training."""
    algorithm: dict[str, Any] = {}
    """Values of the algorithm's state."""


def save_crash(
    place: Path, error: GuardTripped, training: str, state: AlgorithmState, update: int
) -> None:
    report = Report(
        message=str(error),
        stage=error.stage,
        tensor=error.tensor,
        step=error.step,
        samples=error.samples,
        update=update,
        training=training,
        algorithm=dict(state.values),
    )
    (place / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    save_file({name: t.contiguous() for name, t in state.tensors.items()}, place / CRASH_STATE)


def replay(place: Path) -> str:
    """The line the guard gave, found again; or a line that says it did not come back.

    Nothing is written: the weights of the crash folder are loaded, the batch that was kept goes
    through log-probs, loss and gradient, and the update is thrown away. Adapters are merged into
    those weights, so a gradient is then named after the layer and not after its adapter.
    """
    if not (place / "report.json").is_file():
        raise UserError(
            f"{place} is no crash folder (no report.json); a stopped run names it, as "
            "runs/NAME/crash/step-N"
        )
    report = _decoded(place, "report.json", Report)
    run = place.parent.parent
    config = load(Config, run / "config.toml").value
    with RunStore.open(run, read_only=True) as store, _reading(place, "what was kept"):
        try:
            setup, algorithm = _opened(config, report, place, store)
            with contextlib.closing(setup.loop):
                algorithm.restore(AlgorithmState(report.algorithm, load_file(place / CRASH_STATE)))
                batch = algorithm.load_batch(place, report.step)
                named = [*setup.trainable.module.named_parameters(), *algorithm.parameters()]
                updater = Updater(algorithm, MasterAdamW(named, Optimiser()), setup.batches)
                setup.copy_gradients = updater.optimiser.copy_sums
                updater.run(report.step, batch, rate=0.0, skip=report.update)
        except GuardTripped as error:
            name_samples(error, store)
            return str(error)
    return f"the {report.stage} guard of step {report.step + 1} did not trip again"


def _opened(
    config: Config, report: Report, place: Path, store: RunStore
) -> tuple[Setup, AnyAlgorithm]:
    """The training that the guard stopped, with the weights of the crash folder."""
    train = next((s.train for s in config.stages if s.name == report.training), config.train)
    (kind, settings), weights = find_algorithm(train), place / "weights"
    dtype, device = config.model.dtype, config.model.device
    if kind.trains_text:
        loaded = load_model(weights, dtype=dtype, device=device)
    else:
        exact = DTYPES["float32" if dtype == "auto" else dtype]
        loaded = kind.open_model(weights, exact, choose_device(device))
    names = [stage.name for stage in config.stages]
    before = names[: names.index(report.training)] if report.training else names
    start = store.folder / "stages" / before[-1] / "final" if before else start_model(config)
    seeds = Seeds(config.run.seed)
    if report.training:
        seeds = Seeds(seeds.for_("stage", report.training))
    share, tokens = config.update.share_prompts, config.update.micro_batch_tokens
    setup = Setup(
        config=config,
        steps=config.steps,
        data=Data(config.task, config.run.seed),
        scorer=build_all(config.rewards) if config.rewards else None,
        trainable=Trainable(loaded, start=start),
        batches=MicroBatcher(loaded.module, loaded.device, share_prompts=share, tokens=tokens),
        store=store,
        seeds=seeds,
        world=World(),
        length_of=lambda task: len(loaded.tokenizer.render(task.messages)),
        stage=report.training,
    )
    return setup, kind(setup, settings)
