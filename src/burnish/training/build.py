"""From a config to live objects: the only place that knows all of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from burnish.config import Config, Resolved, render, rooted
from burnish.config.schema import FREE
from burnish.errors import UserError
from burnish.lm.folder import LoadedModel, load_model
from burnish.lm.local import LocalLM
from burnish.lm.threads import choose_threads
from burnish.records import Task
from burnish.rewards.combine import Weighted
from burnish.rewards.config import build_all
from burnish.rewards.scorer import bind_check
from burnish.seeds import Seeds
from burnish.store import RunStore, manifest
from burnish.tasks.base import TaskSet
from burnish.tasks.config import build as build_tasks
from burnish.training import checkpoint
from burnish.training.checkpoint import TrainState
from burnish.training.collect import Collector
from burnish.training.data import Cursor, PromptReport, measure_prompts
from burnish.training.devices import World
from burnish.training.event_loop import EventLoop
from burnish.training.forecast import Shape, available_memory, forecast, measure_speed
from burnish.training.loop import Trainer
from burnish.training.optimiser import MasterAdamW
from burnish.training.rollout import single_turn
from burnish.training.trainable import Trainable
from burnish.training.update import Updater

SMALL_MODEL = 10_000_000
"""Below this many parameters half precision saves nothing."""


def build(resolved: Resolved[Config], folder: Path, *, root: Path, recipe: str = "") -> Trainer:
    """Build a run in `folder`, or pick up the one that is there.

    Files that the config names are looked up from `root`; `recipe` is a name for listings.

    Mistakes that need no model (data, rewards, fields) are found before one is loaded.
    """
    config = resolved.value
    world = World.join()
    tasks = build_tasks(config.task, config.run.seed, root)
    scorer = build_all(config.rewards, base=root)
    _check_names(config, scorer, tasks)
    if (folder / "config.json").exists():
        _check_same(resolved, folder, tasks)
    config = rooted(config, root)
    trainable = _load(config, world)
    length_of = _prompt_lengths(trainable.loaded)
    cursor = Cursor(
        tasks=tasks,
        length_of=length_of,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        drop_overlong=config.rollout.overlong_prompts == "drop",
    )
    prompts = measure_prompts(tasks, length_of, cursor.max_prompt_tokens, cursor.drop_overlong)
    portable = dataclasses.replace(resolved, value=config)
    store = _open_store(resolved, portable, folder, tasks, world, recipe)
    try:
        return _assemble(config, store, scorer, trainable, cursor, prompts, world)
    except BaseException:
        store.close()
        raise


def _load(config: Config, world: World) -> Trainable:
    """The model to train and, where the recipe asks for one, its frozen reference."""
    loaded = load_model(config.model.path, dtype=config.model.dtype, device=_device(config, world))
    if config.model.dtype == "auto":
        _choose_precision(loaded)
    trainable = Trainable(loaded, config.model.lora, Seeds(config.run.seed).for_("lora"))
    if config.policy.needs_reference:
        trainable.freeze_reference()
    return trainable


def _assemble(
    config: Config,
    store: RunStore,
    scorer: Weighted,
    trainable: Trainable,
    cursor: Cursor,
    prompts: PromptReport,
    world: World,
) -> Trainer:
    """The trainer, at the newest checkpoint of the run where there is one."""
    # Only the holder of the run's lock may sweep away what a dead writer left.
    place = checkpoint.latest(store.folder / "checkpoints")
    state = checkpoint.load_state(place) if place else TrainState()
    threads = _set_threads(config, trainable.loaded, state)
    state = msgspec.structs.replace(state, threads=threads)
    cursor.position = state.cursor
    optimiser = MasterAdamW(trainable.module.named_parameters(), config.optimiser)
    if place:
        checkpoint.load_optimiser(place, optimiser)
    lm = LocalLM(trainable.loaded)
    lm.weight_version = state.weight_version
    seeds = Seeds(config.run.seed)
    loop = EventLoop()
    updater = Updater(
        model=trainable.module,
        device=trainable.device,
        optimiser=optimiser,
        recipe=config.policy,
        config=config.update,
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_tokens,
        seeds=seeds,
        world=world,
        reference=trainable.reference if config.policy.needs_reference else None,
    )
    return Trainer(
        config=config,
        store=store,
        tasks=cursor.tasks,
        scorer=scorer,
        trainable=trainable,
        lm=lm,
        optimiser=optimiser,
        collector=Collector(lm, scorer, config.policy, config.rollout, single_turn, world, loop),
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
            updater.budget,
            available_memory(trainable.device),
        ),
        prompts=prompts,
        threads=threads,
    )


def _check_names(config: Config, scorer: Weighted, tasks: TaskSet) -> None:
    """Every field a reward asks for exists; the evaluation's part is a reward."""
    bind_check(scorer, tasks.fields)
    names = [part.name for part in scorer.children]
    if config.evaluation.part and config.evaluation.part not in names:
        raise UserError(
            f"evaluation.part is '{config.evaluation.part}'; expected one of {', '.join(names)}"
        )


def _open_store(
    resolved: Resolved[Config],
    portable: Resolved[Config],
    folder: Path,
    tasks: TaskSet,
    world: World,
    recipe: str,
) -> RunStore:
    """Create the run, or open the one that is there; `portable` is kept as a recipe file."""
    if not (folder / "config.json").exists() and world.is_main:
        store = RunStore.create(
            folder,
            resolved.flat(),
            resolved.origins,
            config_hash=resolved.digest(FREE),
            data_hash=tasks.fingerprint,
            recipe=recipe,
        )
        (folder / "config.toml").write_text(render(portable), encoding="utf-8")
        world.wait()
        return store
    world.wait()
    return RunStore.open(folder, read_only=not world.is_main)


def _check_same(resolved: Resolved[Config], folder: Path, tasks: TaskSet) -> None:
    """A run is continued only with the config and the data it was started with."""
    about = manifest.read(folder)
    if about.config_hash != resolved.digest(FREE):
        changes = "; ".join(resolved.changes(about.config, FREE))
        raise UserError(
            f"run '{folder.name}' was started with another config ({changes}); change it back or "
            "choose another run.name"
        )
    if about.data_hash != tasks.fingerprint:
        raise UserError(
            f"run '{folder.name}' was started on other data (fingerprint {about.data_hash}, now "
            f"{tasks.fingerprint}); restore the data or choose another run.name"
        )


def _device(config: Config, world: World) -> str:
    if config.model.device != "auto" or world.size == 1 or not torch.cuda.is_available():
        return config.model.device
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"


def _choose_precision(loaded: LoadedModel) -> None:
    """Bfloat16 (over float32 master weights) where the hardware multiplies it fast."""
    cpu = loaded.device.type == "cpu"
    fast = torch.cpu._is_amx_tile_supported() if cpu else torch.cuda.is_bf16_supported()
    small = loaded.parameters < SMALL_MODEL
    loaded.module.to(torch.bfloat16 if fast and not small else torch.float32)


def _set_threads(config: Config, loaded: LoadedModel, state: TrainState) -> int:
    """One thread count for the whole run: sums in another order are other bits."""
    cores = os.cpu_count() or 1
    threads = state.threads or config.model.threads or choose_threads(loaded.parameters, cores)
    torch.set_num_threads(threads)
    return threads


def _prompt_lengths(loaded: LoadedModel) -> Callable[[Task], int]:
    known: dict[str, int] = {}

    def length_of(task: Task) -> int:
        if task.id not in known:
            known[task.id] = len(loaded.tokenizer.render(task.messages))
        return known[task.id]

    return length_of


def _shape(loaded: LoadedModel, optimiser: MasterAdamW) -> Shape:
    c = loaded.config
    heads = int(c["num_attention_heads"])
    width = int(c.get("head_dim") or c["hidden_size"] // heads)
    return Shape(
        parameters=loaded.parameters,
        trained=sum(p.numel() for p in optimiser.parameters),
        layers=int(c["num_hidden_layers"]),
        hidden=int(c["hidden_size"]),
        intermediate=int(c.get("intermediate_size") or 4 * c["hidden_size"]),
        kv_width=width * int(c.get("num_key_value_heads") or heads),
        vocabulary=int(c["vocab_size"]),
        bytes_per_value=loaded.dtype.itemsize,
    )
