"""Keep a step that a guard stopped, and run it once more from what was kept.

runs/NAME/crash/step-N/
    report.json  samples.jsonl      the line, the stage, the samples with their rewards
    weights/                        as they were when the guard tripped
    policy.safetensors              what the recipe remembered when the step began
    old.safetensors                 log-probs before the step's first update, where it has several
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct
from safetensors.torch import load_file, save_file

from burnish.config import Config, load
from burnish.config.schema import Optimiser
from burnish.errors import GuardTripped, RewardError, StoreError, UserError
from burnish.lm.folder import load_model
from burnish.policy.state import PolicyState
from burnish.rewards.config import build_all
from burnish.rewards.scorer import score_groups
from burnish.seeds import Seeds
from burnish.tasks.config import build as build_tasks
from burnish.training.collect import Scored
from burnish.training.imitation import open_imitation, open_teachers
from burnish.training.optimiser import MasterAdamW
from burnish.training.passes import Passes
from burnish.training.update import Progress, Reference, Updater
from burnish.training.warm_start import WARM_START
from burnish.training.weighing import Weigher


class Report(Struct, frozen=True, kw_only=True):
    """What `report.json` says."""

    message: str
    stage: str
    tensor: str
    step: int
    samples: tuple[str, ...]
    minibatch: int
    """How many mini-batches of the step had already moved the weights."""


def save_crash(
    place: Path,
    error: GuardTripped,
    scored: Sequence[Scored],
    progress: Progress,
    state: PolicyState,
) -> None:
    """Write all but the weights."""
    place.mkdir(parents=True, exist_ok=True)
    report = Report(
        message=str(error),
        stage=error.stage,
        tensor=error.tensor,
        step=error.step,
        samples=error.samples,
        minibatch=progress.minibatch,
    )
    (place / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    with (place / "samples.jsonl").open("wb") as lines:
        for item in scored:
            lines.write(msgspec.json.encode(item) + b"\n")
    save_file(state.tensors(), place / "policy.safetensors")
    if progress.old:
        old = {str(i): logprobs.contiguous() for i, logprobs in progress.old.items()}
        save_file(old, place / "old.safetensors")


def replay(place: Path) -> str:
    """The line the guard gave, found again; or a line that says it did not come back.

    Nothing is written: the weights of the crash folder are loaded, the stored samples go through
    advantages, log-probs, loss and gradient, and the update is thrown away. Adapters are merged
    into those weights, so a gradient is then named after the layer and not after its adapter.
    """
    if not (place / "report.json").is_file():
        raise UserError(
            f"{place} is no crash folder (no report.json); a stopped run names it, as "
            "runs/NAME/crash/step-N"
        )
    try:
        report = msgspec.json.decode((place / "report.json").read_bytes(), type=Report)
        lines = (place / "samples.jsonl").read_bytes().splitlines()
        scored = [msgspec.json.decode(line, type=Scored) for line in lines]
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"{place} is damaged: {error}.") from error
    config = load(Config, place.parent.parent / "config.toml").value
    try:
        if report.stage == "reward":
            _score_again(config, report, scored)
        else:
            _again(config, report, place, scored)
    except GuardTripped as error:
        return str(error)
    return f"the {report.stage} guard of step {report.step} did not trip again"


def _score_again(config: Config, report: Report, scored: list[Scored]) -> None:
    """Put the kept answers through the rewards as they are now."""
    groups: dict[str, list[Scored]] = {}
    for item in scored:
        groups.setdefault(item.trajectory.group, []).append(item)
    items = [(g[0].task, [s.trajectory.as_response() for s in g]) for g in groups.values()]
    scorer = build_all(config.rewards)
    work = functools.partial(
        score_groups,
        scorer,
        items,
        limit=config.rollout.score_concurrency,
        deadline_s=config.rollout.score_timeout_s,
    )
    try:
        anyio.run(work)
    except RewardError as error:
        line = f"reward guard at step {report.step}: {error}"
        raise GuardTripped(line, stage="reward", step=report.step) from error


def _again(config: Config, report: Report, place: Path, scored: list[Scored]) -> None:
    trajectories = [s.trajectory for s in scored]
    loaded = load_model(place / "weights", dtype=config.model.dtype, device=config.model.device)
    loaded.module.requires_grad_(True)
    reference: Reference | None = None
    if config.policy.needs_reference:
        warm = place.parent.parent / WARM_START
        start = warm if warm.is_dir() else config.model.path
        first = load_model(start, dtype=loaded.dtype, device=loaded.device)
        first.module.requires_grad_(False)
        reference = lambda: nullcontext(first.module)  # noqa: E731
    updater = Updater(
        passes=Passes(
            loaded.module,
            loaded.device,
            share_prompts=config.update.share_prompts,
            budget=config.update.micro_batch_tokens,
        ),
        optimiser=MasterAdamW(loaded.module.named_parameters(), Optimiser()),
        recipe=config.policy,
        config=config.update,
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_tokens,
        seeds=Seeds(config.run.seed),
        reference=reference,
    )
    tasks = build_tasks(config.task, config.run.seed)
    teachers = open_teachers(config, tasks, Path())
    updater.imitation = open_imitation(config, teachers, loaded.tokenizer)
    state = load_file(place / "policy.safetensors")
    weigher = Weigher(
        config.policy,
        updater.seeds,
        loaded.tokenizer,
        updater.pooled,
        PolicyState.from_tensors(state),
    )
    _, values = weigher.weigh(scored, report.step)
    # Measured again only where the measurement itself was stopped: what is kept knows its step.
    measured = updater.balance(report.step, values)
    if measured is not None:
        values = weigher.hold(values, measured.state)
    kept = place / "old.safetensors"
    old = load_file(kept, device=str(loaded.device)) if kept.is_file() else {}
    progress = Progress(report.minibatch, {int(i): logprobs for i, logprobs in old.items()})
    updater.update(report.step, trajectories, values, rate=0.0, progress=progress)
