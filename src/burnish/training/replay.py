"""Run a step that a guard stopped once more, from what it left in its crash folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from burnish.config import Config, load
from burnish.config.schema import Optimiser
from burnish.errors import GuardTripped, UserError
from burnish.lm.folder import load_model
from burnish.policy.doors import advantages
from burnish.seeds import Seeds
from burnish.training.collect import Scored, reward_batch
from burnish.training.devices import World
from burnish.training.guards import check_rows, load_crash
from burnish.training.optimiser import MasterAdamW
from burnish.training.trainable import Trainable
from burnish.training.update import Updater


def replay(place: Path) -> str:
    """The line the guard gave, found again; or a line that says it did not come back.

    Nothing is written: the weights of the crash folder are loaded, the stored samples go through
    advantages, log-probs, loss and gradient, and the update is thrown away.
    """
    if not (place / "report.json").is_file():
        raise UserError(
            f"{place} is no crash folder (no report.json); a stopped run names it, as "
            "runs/NAME/crash/step-N"
        )
    report = msgspec.json.decode((place / "report.json").read_bytes())
    scored = load_crash(place)
    if report["stage"] == "reward":
        return f"{report['message']} The reward itself broke; its {len(scored)} inputs are kept."
    config = load(Config, place.parent.parent / "config.toml").value
    try:
        _again(config, report["step"], place, scored)
    except GuardTripped as error:
        return str(error)
    return f"the {report['stage']} guard of step {report['step']} did not trip again"


def _again(config: Config, step: int, place: Path, scored: list[Scored]) -> None:
    trajectories = [s.trajectory for s in scored]
    values = advantages(config.policy, reward_batch(scored))
    check_rows("advantage", "advantages", values.values_B, [t.id for t in trajectories], step)
    loaded = load_model(place / "weights", dtype=config.model.dtype, device=config.model.device)
    trainable = Trainable(loaded)
    if config.policy.needs_reference:
        trainable.freeze_reference()
    updater = Updater(
        model=loaded.module,
        device=loaded.device,
        optimiser=MasterAdamW(loaded.module.named_parameters(), Optimiser()),
        recipe=config.policy,
        config=config.update,
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_tokens,
        seeds=Seeds(config.run.seed),
        world=World(),
        reference=trainable.reference if config.policy.needs_reference else None,
    )
    updater.update(step, trajectories, values, rate=0.0)
