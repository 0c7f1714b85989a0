"""From a config to live objects: the only place that knows all of them."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from burnish.config import Config, Resolved, render, rooted
from burnish.config.schema import FREE
from burnish.errors import UserError
from burnish.lm.folder import LoadedModel, find_folder, load_model
from burnish.lm.local import LocalLM
from burnish.lm.memory import available_bytes
from burnish.lm.threads import choose_threads, usable_cores
from burnish.policy.state import PolicyState
from burnish.records import Task
from burnish.rewards.combine import Weighted
from burnish.rewards.config import build_all
from burnish.rewards.judges.ledger import Ledger, judges_built, ledger_name
from burnish.seeds import Seeds, digest
from burnish.store import RunStore
from burnish.store.durable import write_file
from burnish.surroundings import Surroundings
from burnish.tasks.base import TaskSet
from burnish.tasks.config import build as build_tasks
from burnish.training import checkpoint
from burnish.training.budget import model_sizes
from burnish.training.checkpoint import TrainState
from burnish.training.collect import Collector
from burnish.training.contents import file_digests
from burnish.training.data import Cursor, PromptReport, measure_prompts
from burnish.training.devices import World, local_rank
from burnish.training.event_loop import EventLoop
from burnish.training.forecast import Shape, forecast, measure_speed
from burnish.training.forward import plain_head
from burnish.training.imitation import open_experts, open_imitation, open_teachers
from burnish.training.loop import Trainer
from burnish.training.optimiser import MasterAdamW
from burnish.training.passes import Passes
from burnish.training.refusals import check_names, check_pieces, check_same
from burnish.training.rollout import single_turn
from burnish.training.stages import check_always
from burnish.training.trainable import Trainable
from burnish.training.update import Updater
from burnish.training.warm_start import WARM_START, WarmUp
from burnish.training.weighing import Weigher

logger = logging.getLogger(__name__)

SMALL_BYTES = 40_000_000
"""Weight files below this size: half precision saves nothing."""


def build(resolved: Resolved[Config], folder: Path, *, root: Path, recipe: str = "") -> Trainer:
    """Build a run in `folder`, or pick up the one that is there.

    Files that the config names are looked up from `root`; `recipe` is a name for listings.

    Mistakes that need no model (data, rewards, fields) are found before one is loaded.
    """
    config = resolved.value
    # Whatever a function of the user's own does to the working folder, the run stays in its place.
    folder, root = folder.absolute(), root.absolute()
    world = World.join()
    before = Surroundings()
    try:
        tasks = build_tasks(config.task, config.run.seed, root)
        with judges_built() as judges:
            scorer = build_all(config.rewards, base=root)
        check_names(config, scorer, tasks)
        config = rooted(config, root)
        check_pieces(config, [part.name for part in scorer.children])
        teachers = open_teachers(config, tasks, root)
    finally:
        changed = before.restore(choices=False)
        before.close()
    for what in changed:
        logger.warning(
            "a module of this run changed %s when it was imported; it was set back.", what
        )
    if config.curriculum:
        check_always(config.curriculum.always, tasks)
    fingerprint = _fingerprint(tasks, teachers)
    files = file_digests(config)
    if (folder / "config.json").exists():
        check_same(resolved, folder, fingerprint, files)
    trainable = _load(config, world, folder / WARM_START)
    length_of = _prompt_lengths(trainable.loaded)
    cursor = Cursor(
        tasks=tasks,
        length_of=length_of,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        drop_overlong=config.rollout.overlong_prompts == "drop",
    )
    prompts = measure_prompts(tasks, length_of, cursor.max_prompt_tokens, cursor.drop_overlong)
    portable = dataclasses.replace(resolved, value=config)
    stored = resolved.flat() | files
    store = _open_store(resolved, portable, stored, folder, fingerprint, world, recipe)
    try:
        trainer = _assemble(config, store, scorer, trainable, teachers, cursor, prompts, world)
        if judges:
            trainer.judges = Ledger(folder / ledger_name(world.rank), judges)
        return trainer
    except BaseException:
        store.close()
        raise


def _fingerprint(tasks: TaskSet, teachers: TaskSet | None) -> str:
    """Changes when the data changes: the prompts, or the demonstrations."""
    if teachers is None or teachers is tasks:
        return tasks.fingerprint
    return digest(tasks.fingerprint, teachers.fingerprint)


def _load(config: Config, world: World, warm: Path) -> Trainable:
    """The model to train and, where the recipe asks for one, its frozen reference.

    A run that has done its warm start begins with that.
    """
    device = _device(config, world)
    path = warm if warm.is_dir() else config.model.path
    loaded = load_model(path, dtype=_precision(config, device), device=device)
    _check_finite(loaded)
    trainable = Trainable(loaded, config.model.lora, Seeds(config.run.seed).for_("lora"))
    if config.policy.needs_reference:
        trainable.freeze_reference()
    return trainable


def _check_finite(loaded: LoadedModel) -> None:
    """A weight that is not finite is the start model's, not something that training did."""
    named = [(n, p.detach()) for n, p in loaded.module.named_parameters() if p.numel()]
    norms = torch.stack([torch.linalg.vector_norm(p.float()) for _, p in named])
    for (name, weight), is_fine in zip(named, torch.isfinite(norms).tolist(), strict=True):
        fine = torch.isfinite(weight)
        if not is_fine and not bool(fine.all()):
            raise UserError(
                f"model '{loaded.name}': weight {name} holds {weight[~fine].flatten()[0].item()} in "
                f"{int((~fine).sum())} of {weight.numel()} places; expected finite numbers"
            )


def _assemble(
    config: Config,
    store: RunStore,
    scorer: Weighted,
    trainable: Trainable,
    teachers: TaskSet | None,
    cursor: Cursor,
    prompts: PromptReport,
    world: World,
) -> Trainer:
    """The trainer, at the newest checkpoint of the run where there is one."""
    # Only the holder of the run's lock may sweep away what a dead writer left.
    place = checkpoint.newest(store.folder / "checkpoints", store)
    state = checkpoint.load_state(place) if place else TrainState()
    threads = _set_threads(config, trainable.loaded, state.threads or _first_threads(store))
    state = msgspec.structs.replace(state, threads=threads)
    cursor.position = state.cursor
    optimiser = MasterAdamW(trainable.module.named_parameters(), config.optimiser)
    if place:
        checkpoint.load_optimiser(place, optimiser)
    lm = LocalLM(trainable.loaded)
    lm.weight_version = state.weight_version
    seeds = Seeds(config.run.seed)
    loop = EventLoop()
    passes = Passes(
        trainable.module,
        trainable.device,
        world,
        config.update.share_prompts,
        config.update.micro_batch_tokens,
        lm.release,
    )
    updater = Updater(
        passes=passes,
        optimiser=optimiser,
        recipe=config.policy,
        config=config.update,
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_tokens,
        seeds=seeds,
        reference=trainable.reference if config.policy.needs_reference else None,
    )
    if trainable.device.type == "cuda":
        updater.meanwhile = functools.partial(cursor.look_ahead, config.rollout.prompts)
    warm_up = None
    updater.imitation = open_imitation(config, teachers, trainable.loaded.tokenizer)
    if teachers and config.warm_start and not (store.folder / WARM_START).is_dir():
        shown = open_experts(config, teachers, trainable.loaded.tokenizer)
        warm_up = WarmUp(trainable, shown, config.warm_start, world, passes.budget)
    remembered = checkpoint.load_policy(place) if place else PolicyState()
    return Trainer(
        config=config,
        store=store,
        tasks=cursor.tasks,
        scorer=scorer,
        trainable=trainable,
        lm=lm,
        optimiser=optimiser,
        collector=Collector(lm, scorer, config.policy, config.rollout, single_turn, world, loop),
        weigher=Weigher(
            config.policy, seeds, trainable.loaded.tokenizer, updater.pooled, remembered
        ),
        updater=updater,
        cursor=cursor,
        seeds=seeds,
        world=world,
        loop=loop,
        state=state,
        forecast=forecast(
            config,
            _shape(trainable.loaded, optimiser),
            measure_speed(trainable.device, trainable.dtype),
            prompts.longest,
            passes.budget,
            available_bytes(trainable.device),
        ),
        prompts=prompts,
        threads=threads,
        warm_up=warm_up,
    )


def _open_store(
    resolved: Resolved[Config],
    portable: Resolved[Config],
    stored: dict[str, Any],
    folder: Path,
    fingerprint: str,
    world: World,
    recipe: str,
) -> RunStore:
    """Create the run, or open the one that is there; `portable` is kept as a recipe file."""
    if not (folder / "config.json").exists() and world.is_main:
        store = RunStore.create(
            folder,
            stored,
            resolved.origins,
            config_hash=resolved.digest(FREE),
            data_hash=fingerprint,
            recipe=recipe,
        )
        write_file(folder / "config.toml", render(portable).encode())
        world.wait()
        return store
    world.wait()
    return RunStore.open(folder, read_only=not world.is_main)


def _device(config: Config, world: World) -> str:
    asked = config.model.device
    if world.size == 1 or asked not in ("auto", "cuda") or not torch.cuda.is_available():
        return asked
    return f"cuda:{local_rank()}"


def _precision(config: Config, device: str) -> str:
    """Bfloat16 (over float32 master weights) where the hardware multiplies it fast.

    Chosen before loading: casting a loaded model would also round what must stay exact.
    """
    if config.model.dtype != "auto":
        return config.model.dtype
    weights = find_folder(config.model.path).glob("*.safetensors")
    if sum(file.stat().st_size for file in weights) < SMALL_BYTES:
        return "float32"
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    fast = torch.cpu._is_amx_tile_supported() if on_cpu else torch.cuda.is_bf16_supported()
    return "bfloat16" if fast else "float32"


def _set_threads(config: Config, loaded: LoadedModel, before: int) -> int:
    """One thread count for the whole run: sums in another order are other bits."""
    rows = config.rollout.prompts * config.rollout.samples
    # Beside a GPU the CPU only computes small tensors, and threads would wait for each other.
    on_cpu = loaded.device.type == "cpu"
    chosen = choose_threads(loaded.parameters, usable_cores(), rows) if on_cpu else 1
    threads = before or config.model.threads or chosen
    torch.set_num_threads(threads)
    return threads


def _first_threads(store: RunStore) -> int:
    """The count of the run's first start, 0 where there was none; for one without a checkpoint."""
    forecasts = store.events("forecast")
    return int(forecasts[0].data.get("threads", 0)) if forecasts else 0


def _prompt_lengths(loaded: LoadedModel) -> Callable[[Task], int]:
    known: dict[str, int] = {}

    def length_of(task: Task) -> int:
        if task.id not in known:
            known[task.id] = len(loaded.tokenizer.render(task.messages))
        return known[task.id]

    return length_of


def _shape(loaded: LoadedModel, optimiser: MasterAdamW) -> Shape:
    module = loaded.module
    return Shape(
        parameters=loaded.parameters,
        trained=sum(p.numel() for p in optimiser.parameters),
        vocabulary=module.head_weight.shape[0],
        sizes=model_sizes(loaded),
        has_plain_head=plain_head(module) is not None,
        packs=getattr(module, "packs", True),
    )
