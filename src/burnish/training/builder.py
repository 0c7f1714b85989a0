"""From a config to live objects: the only place that knows all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from burnish import registry
from burnish.config import Config, Resolved, render, rooted
from burnish.config.paths import with_files
from burnish.config.recipes import OPEN
from burnish.config.resolve import to_plain
from burnish.config.schema import (
    FREE,
    Checkpoint,
    DistilTrain,
    DpoTrain,
    LatentsTrain,
    Optimiser,
    Remote,
    Stage as StageConfig,
)
from burnish.errors import StoreError, UserError
from burnish.lm.base import RemoteSampler
from burnish.lm.call_log import PaidReplies, judges_built
from burnish.lm.decoder import plain_head
from burnish.lm.folder import (
    DTYPES,
    LoadedModel,
    check_causal,
    choose_device,
    find_folder,
    is_diffusion,
    load_model,
)
from burnish.lm.hardware import available_bytes, choose_threads, has_fast_bfloat16, usable_cores
from burnish.lm.new_model import NEW
from burnish.memory import kept_files, kept_paths
from burnish.records import Task
from burnish.rewards.combine import Weighted
from burnish.rewards.config import build_all
from burnish.rewards.judges.prompting import check_reads_media
from burnish.rollouts import AgentRollout, EnvRollout, Tool
from burnish.rollouts.session import naming_task
from burnish.rollouts.tool import tool_form
from burnish.seeds import Seeds
from burnish.store import RunStore, manifest
from burnish.store.durable import write_file
from burnish.training import checkpoint
from burnish.training.algorithm import AnyAlgorithm, Parts, Setup
from burnish.training.algorithms import Chosen, find_algorithm
from burnish.training.checkpoint import TrainState
from burnish.training.data import AnswerBudget, Data, PromptReport, answer_budget, measure_prompts
from burnish.training.devices import World, local_rank
from burnish.training.forecast import (
    Forecast,
    Keys,
    Shape,
    advice,
    check_memory,
    forecast,
    model_sizes,
    savings,
)
from burnish.training.optimiser import MasterAdamW
from burnish.training.trackers import Trackers, check_trackers
from burnish.training.trainable import OtherModel, Trainable, other_forecast, start_model
from burnish.training.trainer import FINAL, Stage, Trainer, ending
from burnish.training.update import MicroBatcher
from burnish.training.validate import (
    check_names,
    check_same,
    check_secrets,
    check_sharding,
    check_together,
    file_digests,
)
from burnish.training.watchdog import EventLoop
from burnish.user_code import restored

logger = logging.getLogger(__name__)

SMALL_BYTES = 40_000_000
"""Weight files below this size: half precision saves nothing."""
LOOKED = 4
"""Tasks whose images and sounds are looked at before a judge is asked about any."""
NO_JUDGE = (
    "Start the server and run the same command again, or correct the judge's address in [[rewards]]"
)


def build(
    resolved: Resolved[Config],
    folder: Path,
    *,
    root: Path = Path(),
    recipe: str = "",
    scored_by: Callable[[Weighted], Weighted] | None = None,
) -> Trainer:
    """Build a run in `folder`, or pick up the one that is there.

        trainer = build(load(Config, "recipes/sft.toml"), Path("runs/mine"))
        for event in trainer.run(): ...

    Files that the config names are looked up from `root`; `recipe` is a name for listings.
    `scored_by` hands the rewards to others that score.
    Mistakes that need no model (data, rewards, fields) are found before one is loaded.
    """
    # Whatever a function of the user's own does to the working folder, the run stays in its place.
    folder, root = folder.absolute(), root.absolute()
    check_trackers(resolved.value.trackers)
    check_secrets(resolved.flat())
    parts, trainings = _prepare(resolved.value, root)
    config, data, world = parts.config, parts.data, parts.world
    if parts.scorer is not None and scored_by is not None:
        parts.scorer = scored_by(parts.scorer)
    files = file_digests(config)
    check_together(world, resolved, data.fingerprint, files)
    if (folder / "config.json").exists():
        check_same(resolved, folder, data.fingerprint, files)
    finals = [folder / "stages" / stage.name / FINAL for stage in config.stages]
    place = next((i for i, one in enumerate(finals) if not one.is_dir()), len(finals))
    trainable = _load(config, world, _start_weights(folder, config, place), trainings[place])
    tools = config.rollout.tools if isinstance(config.rollout, EnvRollout) else ()
    parts.length_of = _prompt_lengths(trainable.loaded, [one.build(root) for one in tools])
    parts.prompts = _measured(parts, trainings)
    digest = resolved.digest(FREE)
    resolved = _with_answers(resolved, parts, folder, trainable, trainings)
    config = parts.config
    parts.remote = _open_sampler(config, trainable, world, parts.loop)
    if not (folder / "config.json").exists() and world.is_main:
        store = RunStore.create(
            folder,
            resolved.flat() | files,
            resolved.origins,
            config_hash=digest,
            data_hash=data.fingerprint,
            recipe=recipe,
        )
        # What was given in Python: its rows, and the text of its functions.
        for kept, content in kept_files(kept_paths(to_plain(resolved.value)), folder):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_file(kept, content)
        portable = dataclasses.replace(resolved, value=with_files(config, folder))
        write_file(folder / "config.toml", render(portable).encode())
        world.wait()
    else:
        world.wait()
        store = RunStore.open(folder, read_only=not world.is_main)
    try:
        if parts.judges:
            parts.paid = PaidReplies(folder, parts.judges, rank=world.rank)
        return _assemble(parts, store, trainings, trainable, place)
    except BaseException as error:
        status, reason = ending(error)
        # A store that fails now must not hide why the run could not be built.
        with contextlib.suppress(StoreError):
            if world.is_main:
                store.finish(status, {"reason": reason, "exception": type(error).__name__})
        store.close()
        raise


def _prepare(config: Config, root: Path) -> tuple[Parts, list[Training]]:
    """Data, rewards and the kinds of training, checked; the user's modules are imported here."""
    trains = (*(stage.train for stage in config.stages), config.train)
    named = [(one.image, one.aux_images) for one in trains if isinstance(one, LatentsTrain)]
    pictures = tuple(dict.fromkeys(name for names in named for name in names))
    world, changed = World.join(config.guards.process_s), list[str]()
    with restored(changed.append, choices=False), judges_built() as judges:
        data = Data(config.task, config.run.seed, root, pictures=pictures)
        tasks = data.tasks
        scorer = build_all(config.rewards, base=root) if config.rewards else None
        data.rewards = tuple(part.name for part in scorer.children) if scorer else ()
        check_names(config, scorer, tasks)
        if judges:
            media = (part for task in tasks.sample(LOOKED) for part in task.media)
            check_reads_media(judges, media)
        config = rooted(config, root)
        trainings = [_choose(stage, config, data) for stage in (*config.stages, None)]
        check_sharding(config, [training.chosen.kind for training in trainings])
    for judge in judges:
        judge.reach.remedy = NO_JUDGE
    for what in changed:
        logger.warning(
            "a module of this run changed %s when it was imported; it was set back.", what
        )
    parts = Parts(config=config, data=data, scorer=scorer, world=world, judges=judges)
    return parts, trainings


def _measured(parts: Parts, trainings: Sequence[Training]) -> PromptReport:
    """Prompts measured; those that are too long for an algorithm that samples are refused."""
    rollout = parts.config.rollout
    samples = any(training.chosen.kind.samples_prompts for training in trainings)
    limit = rollout.max_prompt_tokens if samples else None
    drops = rollout.overlong_prompts == "drop"
    report = measure_prompts(parts.data.tasks, parts.length_of, limit, drops)
    note = "; what the program adds to them, tools too, is not known yet"
    return dataclasses.replace(report, note=note) if isinstance(rollout, AgentRollout) else report


def _with_answers(
    resolved: Resolved[Config],
    parts: Parts,
    folder: Path,
    trainable: Trainable,
    trainings: Sequence[Training],
) -> Resolved[Config]:
    """The settings with the limit of answers that the config leaves open, and where it comes from."""
    config, key = parts.config, "rollout.max_tokens"
    parts.answers = AnswerBudget(config.rollout.max_tokens, "")
    if parts.answers.tokens:
        return resolved
    parts.answers = _answer_budget(parts, folder, trainable, trainings)
    origin = resolved.origins.get(key, "")
    if not parts.answers.reason:
        return resolved
    if origin.startswith(OPEN):
        reason = f"{parts.answers.reason}; {origin}"
        parts.answers = dataclasses.replace(parts.answers, reason=reason)

    def budgeted(given: Config) -> Config:
        rollout = msgspec.structs.replace(given.rollout, max_tokens=parts.answers.tokens)
        return msgspec.structs.replace(given, rollout=rollout)

    parts.config = budgeted(config)
    origins = {**resolved.origins, key: f"chosen: {parts.answers.reason}"}
    return dataclasses.replace(resolved, value=budgeted(resolved.value), origins=origins)


@dataclass(frozen=True)
class Training:
    name: str
    chosen: Chosen
    steps: int
    optimiser: Optimiser
    checkpoint: Checkpoint


def _choose(stage: StageConfig | None, config: Config, data: Data) -> Training:
    train = stage.train if stage else config.train
    chosen = find_algorithm(train)
    if stage and not chosen.kind.can_be_stage:
        raise UserError(
            f"stages: '{stage.name}' has train.kind = '{train.__struct_config__.tag}', which can "
            "only be the main training. Train it in a run of its own, and name the folder of its "
            "checkpoint as model.path here"
        )
    chosen.kind.check(config, chosen.settings, data)
    if stage is None:
        return Training("", chosen, config.steps, config.optimiser, config.checkpoint)
    kept = Checkpoint(every=stage.checkpoint_every, keep=1)
    return Training(stage.name, chosen, config.stage_steps(stage), stage.optimiser, kept)


def _start_weights(folder: Path, config: Config, place: int) -> str | Path:
    if place == 0:
        return start_model(config)
    return folder / "stages" / config.stages[place - 1].name / FINAL


def _load(config: Config, world: World, path: str | Path, training: Training) -> Trainable:
    device = config.model.device
    if world.size > 1 and device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{local_rank()}"
    if not training.chosen.kind.trains_text:
        dtype = "float32" if config.model.dtype == "auto" else config.model.dtype
        place = choose_device(device)
        other = training.chosen.kind.open_model(find_folder(path), DTYPES[dtype], place)
        other.name = config.model.path
        _check_finite(other)
        return Trainable(other)
    loaded = load_model(path, dtype=precision(config, device), device=device)
    if config.model.path == NEW and path == start_model(config):
        sizes = config.model.new
        loaded.name = f"{NEW} ({sizes.layers} x {sizes.width}, {sizes.topology})"
    _check_finite(loaded)
    return Trainable(loaded, config.model.lora, Seeds(config.run.seed).for_("lora"))


def _open_sampler(
    config: Config, trainable: Trainable, world: World, loop: EventLoop
) -> RemoteSampler | None:
    settings = config.sampler
    if not isinstance(settings, Remote):
        return None
    folder = Path(settings.folder)
    if world.is_main and not (folder / "config.json").is_file():
        trainable.write(folder)
    world.wait()
    opened: RemoteSampler = registry.find("sampler", "remote")(
        settings,
        loop=loop.run,
        tokenizer=trainable.loaded.tokenizer,
        longest_row=trainable.module.longest_row,
    )
    return opened


def _answer_budget(
    parts: Parts, folder: Path, trainable: Trainable, trainings: Sequence[Training]
) -> AnswerBudget:
    """As the run began, or chosen now; 0 without a reason where the model writes no answers."""
    config, longest = parts.config, parts.prompts.longest
    if (folder / manifest.FILE).is_file():
        known = manifest.read(folder).config.get("rollout.max_tokens")
        if isinstance(known, int) and known > 0:
            return AnswerBudget(known, "as the run began")
    is_rewarded = parts.scorer is not None and config.evaluation.prompts > 0
    is_rewarded &= not trainings[-1].chosen.kind.trains_score_head
    if not is_rewarded and not any(one.chosen.kind.samples_answers for one in trainings):
        return AnswerBudget(0, "")
    train, shown = config.train, config.experts.field
    if isinstance(train, DpoTrain | DistilTrain):
        shown = train.chosen if isinstance(train, DpoTrain) else train.field
    tokenizer = trainable.loaded.tokenizer
    room = trainable.module.longest_row(longest) - longest
    return answer_budget(parts.data.tasks, shown, lambda text: len(tokenizer.encode(text)), room)


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
    parts: Parts, store: RunStore, trainings: Sequence[Training], trainable: Trainable, place: int
) -> Trainer:
    """The trainer, at the newest checkpoint of the stage under way where there is one."""
    config = parts.config
    # That of the run's first start also where there is no checkpoint yet.
    told = store.events("forecast")
    before = int(told[0].data.get("threads", 0)) if told else 0
    found = _newest(store, trainings[place].name)
    known = checkpoint.load_state(found).threads if found else 0
    threads = _set_threads(config, trainable.loaded, known or before)
    stage = _open_stage(parts, store, trainings[place], trainable, threads)
    opened = iter(range(place + 1, len(trainings)))

    def next_stage() -> Stage:
        number = next(opened)
        model = trainable
        if config.model.lora is not None or trainable.shards is not None:
            # Adapters are merged into the weights that the stage left; new ones are trained. What
            # several processes hold together cannot be copied, as a reference is.
            start = _start_weights(store.folder, config, number)
            model = _load(config, parts.world, start, trainings[number])
        return _open_stage(parts, store, trainings[number], model, threads)

    return Trainer(
        **vars(parts),
        store=store,
        trainable=trainable,
        threads=threads,
        stage=stage,
        next_stage=next_stage,
        trackers=Trackers(config, store) if config.trackers and parts.world.is_main else None,
    )


def _newest(store: RunStore, name: str) -> Path | None:
    # Only the holder of the run's lock may sweep away what a dead writer left.
    where = store.folder / "stages" / name if name else store.folder / "checkpoints"
    return checkpoint.newest(where, store, name)


def _open_stage(
    parts: Parts, store: RunStore, training: Training, trainable: Trainable, threads: int
) -> Stage:
    config, name, kind = parts.config, training.name, training.chosen.kind
    seeds, loaded = Seeds(config.run.seed), trainable.loaded
    found = _newest(store, name)
    state = checkpoint.load_state(found) if found else TrainState()
    state = msgspec.structs.replace(state, threads=threads)
    update = config.update
    setup = Setup(
        **vars(parts),
        steps=training.steps,
        trainable=trainable,
        batches=MicroBatcher(
            trainable.module,
            trainable.device,
            parts.world,
            update.share_prompts,
            update.micro_batch_tokens,
        ),
        store=store,
        seeds=Seeds(seeds.for_("stage", name)) if name else seeds,
        stage=name,
        done=state.step,
        weight_version=state.weight_version,
    )
    if loaded.score_head is not None and not kind.trains_score_head:
        raise UserError(
            f"model.path: '{loaded.name}' is a reward model, which writes no text; expected "
            "a causal model. train.kind = 'reward_model' goes on training it, or "
            "'process_reward_model' where it scores steps"
        )
    if kind.trains_diffusion and not is_diffusion(loaded):
        raise UserError(
            f"model.path: '{loaded.name}' writes from left to right; expected a masked "
            "diffusion model: model.path=diffusion:smollm2, or convert a folder: burnish convert "
            "MODEL FOLDER"
        )
    if not kind.trains_diffusion:
        check_causal(loaded, "model.path")
    algorithm = kind(setup, training.chosen.settings)
    shape = None if isinstance(loaded, OtherModel) else _shape(loaded)
    if config.model.shard == "full" and parts.world.size > 1:
        setup.batches.shards = trainable.cut(parts.world)
    named = [*trainable.module.named_parameters(), *algorithm.parameters()]
    optimiser = MasterAdamW(named, training.optimiser)
    setup.copy_gradients = optimiser.copy_sums
    if found:
        checkpoint.load_optimiser(found, optimiser)
        algorithm.restore(checkpoint.load_algorithm(found))
    place = [stage.name for stage in config.stages].index(name) if name else None
    return Stage(
        name=name,
        steps=training.steps,
        settings=training.optimiser,
        checkpoint=training.checkpoint,
        setup=setup,
        algorithm=algorithm,
        optimiser=optimiser,
        state=state,
        forecast=_forecast(setup, algorithm, optimiser, shape, place),
    )


def _forecast(
    setup: Setup,
    algorithm: AnyAlgorithm,
    optimiser: MasterAdamW,
    shape: Shape | None,
    place: int | None,
) -> Forecast:
    """What a step of this training needs; an update that does not fit says what would free most.

    `place` is that of a stage, whose settings have longer names.
    """
    config, batches = setup.config, setup.batches
    work, free = algorithm.workload(), available_bytes(setup.trainable.device)
    trained = sum(p.numel() for p in optimiser.parameters)
    if shape is None:
        assert isinstance(setup.trainable.loaded, OtherModel)
        found = other_forecast(setup.trainable.loaded, trained, work, free)
    else:
        processes = 1 if batches.shards is None else setup.world.size
        shape = dataclasses.replace(shape, trained=trained, processes=processes)
        if place is not None:
            long = [key.replace("train.", f"stages.{place}.train.", 1) for key in work.keys]
            work = work._replace(keys=Keys(*long))
        batches.advise = lambda tokens: advice(savings(config, work, shape, tokens))
        found = forecast(config, work, shape, batches.tokens, free)
    check_memory(found, config.guards.memory_times)
    return found


def _shape(loaded: LoadedModel) -> Shape:
    """As the model computes; its slices have another precision."""
    module = loaded.module
    return Shape(
        parameters=loaded.parameters,
        trained=0,
        vocabulary=module.head_weight.shape[0],
        sizes=model_sizes(loaded),
        has_plain_head=plain_head(module) is not None,
        packs=getattr(module, "packs", True),
    )


def precision(config: Config, device: str) -> str:
    """Bfloat16 (over float32 master weights) where the hardware multiplies it fast.

    Chosen before loading: casting a loaded model would also round what must stay exact.
    """
    if config.model.dtype != "auto":
        return config.model.dtype
    weights = find_folder(start_model(config)).glob("*.safetensors")
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    is_small = sum(file.stat().st_size for file in weights) < SMALL_BYTES
    return "float32" if is_small or not has_fast_bfloat16(on_cpu=on_cpu) else "bfloat16"


def _set_threads(config: Config, loaded: LoadedModel, before: int) -> int:
    """One thread count for the whole run: sums in another order are other bits."""
    rows = config.rollout.prompts * config.rollout.samples
    # Beside a GPU the CPU only computes small tensors, and threads would wait for each other.
    on_cpu = loaded.device.type == "cpu"
    chosen = choose_threads(loaded.parameters, usable_cores(), rows) if on_cpu else 1
    threads = before or config.model.threads or chosen
    torch.set_num_threads(threads)
    return threads


def _prompt_lengths(loaded: LoadedModel, tools: Sequence[Tool] = ()) -> Callable[[Task], int]:
    known: dict[str, int] = {}
    tokenizer = loaded.tokenizer
    form = tool_form(tokenizer, tools) if tools else None
    renderer = tokenizer.with_tools(form.schemas) if form and form.schemas else tokenizer

    def length_of(task: Task) -> int:
        if task.id not in known:
            messages = form.opening(task.messages) if form else task.messages
            with naming_task(task):
                known[task.id] = len(renderer.render(messages))
        return known[task.id]

    return length_of
