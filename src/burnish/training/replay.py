"""Keep a step that a guard stopped, and run it once more from what was kept.

runs/NAME/crash/step-N/
    report.json                     the line, the stage of the guard, the samples it names
    algorithm.safetensors           what the algorithm remembered when the step began
    weights/                        as they were when the guard tripped
    samples.jsonl  old.safetensors  what else the algorithm keeps (`save_batch`)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from safetensors.torch import load_file, save_file

from burnish.config import Config, load
from burnish.config.schema import Optimiser
from burnish.errors import GuardTripped, StoreError, UserError
from burnish.lm.folder import DTYPES, choose_device, load_model
from burnish.rewards.config import build_all
from burnish.seeds import Seeds
from burnish.store import RunStore
from burnish.training.algorithm import AlgorithmState, Setup
from burnish.training.algorithms import find_algorithm
from burnish.training.data import Data, PromptReport
from burnish.training.devices import World
from burnish.training.event_loop import EventLoop
from burnish.training.guards import name_samples
from burnish.training.microbatch import MicroBatcher
from burnish.training.optimiser import MasterAdamW
from burnish.training.trainable import Trainable, start_model
from burnish.training.update import Updater

STATE = "algorithm.safetensors"


class Report(Struct, frozen=True, kw_only=True):
    """What `report.json` says."""

    message: str
    stage: str
    """Of the guard."""
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
    """Write the report and the algorithm's state."""
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
    save_file({name: t.contiguous() for name, t in state.tensors.items()}, place / STATE)


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
    try:
        report = msgspec.json.decode((place / "report.json").read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"{place} is damaged: {error}.") from error
    run = place.parent.parent
    config = load(Config, run / "config.toml").value
    with RunStore.open(run, read_only=True) as store:
        try:
            _again(config, report, place, store)
        except GuardTripped as error:
            name_samples(error, store)
            return str(error)
        except (OSError, msgspec.MsgspecError, json.JSONDecodeError, RecursionError) as error:
            raise StoreError(f"{place} is damaged: {error}.") from error
    return f"the {report.stage} guard of step {report.step + 1} did not trip again"


def _again(config: Config, report: Report, place: Path, store: RunStore) -> None:
    setup = _setup(config, report, place, store)
    train = next((s.train for s in config.stages if s.name == report.training), config.train)
    kind, settings = find_algorithm(train)
    try:
        algorithm = kind(setup, settings)
        algorithm.restore(AlgorithmState(report.algorithm, load_file(place / STATE)))
        batch = algorithm.load_batch(place, report.step)
        named = [*setup.trainable.module.named_parameters(), *algorithm.parameters()]
        updater = Updater(algorithm, MasterAdamW(named, Optimiser()), setup.batches)
        setup.copy_gradients = updater.optimiser.copy_sums
        updater.run(report.step, batch, rate=0.0, skip=report.update)
    finally:
        setup.loop.close()


def _setup(config: Config, report: Report, place: Path, store: RunStore) -> Setup:
    """The run as it was, on the weights of the crash."""
    train = next((s.train for s in config.stages if s.name == report.training), config.train)
    kind, weights = find_algorithm(train).kind, place / "weights"
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
    update = config.update
    batches = MicroBatcher(
        loaded.module,
        loaded.device,
        share_prompts=update.share_prompts,
        tokens=update.micro_batch_tokens,
    )
    return Setup(
        config=config,
        steps=config.steps,
        data=Data(config.task, config.run.seed),
        scorer=build_all(config.rewards) if config.rewards else None,
        trainable=Trainable(loaded, start=start),
        batches=batches,
        store=store,
        seeds=seeds,
        world=World(),
        loop=EventLoop(),
        prompts=PromptReport(0, 0),
        length_of=lambda task: len(loaded.tokenizer.render(task.messages)),
        stage=report.training,
    )
