"""A run of several parts: prepared here, handed to `burnish.engines.cluster`, and joined by each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.api.needs import import_training
from burnish.config.recipes import Asked, change
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.rewards.combine import Weighted

MOST_GROUPS = 1024
"""Groups that a judge scores at a time: as many as trainers send (`rollout.score_concurrency`)."""
SLACK_S = 30.0
"""How much later than its own deadline a judge may answer before another one is asked."""
ADDRESS = "http://127.0.0.1:1"
"""Of a server that is not started yet; a run does not depend on it."""


def starts_parts(asked: Asked) -> bool:
    """Whether this process is to start the parts of the run, and is none of them itself."""
    from burnish.engines.cluster import served

    return asked.resolved.value.cluster.kind in ("local", "ray") and served() is None


def joined(asked: Asked) -> Asked:
    """The settings of a process that trains: its sampler is the one of its cluster."""
    from burnish.config.schema import InProcess
    from burnish.engines.cluster import Served, served as told

    settings = asked.resolved.value.cluster
    if settings.kind not in ("local", "ray") or not settings.samplers.count:
        return asked
    if not isinstance(asked.resolved.value.sampler, InProcess):
        raise UserError(
            "cluster.samplers: got servers to start beside sampler.kind = 'remote', which names "
            "running ones; expected one of the two"
        )
    samplers = (ADDRESS,) * settings.samplers.count
    found = told() or Served(samplers=samplers, engine=settings.samplers.engine, folder="served")
    return change(asked, {"sampler": found.sampler()})


def scored_by(asked: Asked) -> Callable[[Weighted], Weighted] | None:
    """What hands the rewards to the judges of this process's cluster; None where there are none."""
    from burnish.engines.cluster import TOKEN, served

    found, config = served(), asked.resolved.value
    if found is None or not found.judges:
        return None
    from burnish.engines.client import ServedRewards

    cluster = config.cluster
    return partial(
        ServedRewards,
        urls=found.judges,
        token_env=TOKEN,
        attempt_s=config.rollout.score_timeout_s + SLACK_S,
        away_s=cluster.start_s + cluster.heartbeat_s,
    )


def run_cluster(
    asked: Asked,
    folder: Path,
    words: Sequence[str],
    recipe: Sequence[str],
    tell: Callable[[str], object],
) -> int:
    """Start the parts and keep them alive to the end of the run; the first trainer's exit code."""
    from burnish.engines.cluster import Run, supervise

    settings, rollout = asked.resolved.value.cluster, asked.resolved.value.rollout
    # A judge gives a group as long as a trainer would.
    limits = ("--deadline", f"{rollout.score_timeout_s}", "--concurrency", f"{MOST_GROUPS}")
    judging = (*recipe, *limits)
    run = Run(folder=folder.absolute(), settings=settings, words=words, judging=judging, tell=tell)
    places = placed(asked)
    if settings.samplers.count:
        write_start(asked, run.home / "served")
    return supervise(run, places)


def placed(asked: Asked) -> list[Any]:
    """Where each part runs; refuses what there is no room for."""
    from burnish.engines import placement

    settings = asked.resolved.value.cluster
    if settings.kind == "ray":
        from burnish.engines.ray_hosts import ray_nodes

        return placement.on_ray(settings, ray_nodes(settings.address))
    return placement.place(settings, placement.this_machine())


def write_start(asked: Asked, folder: Path) -> None:
    """The model folder that samplers are started on, in the precision that the run trains in."""
    import_training()
    from burnish.config import rooted
    from burnish.lm.folder import load_model, save_model
    from burnish.training.builder import precision
    from burnish.training.trainable import start_model

    config = rooted(asked.resolved.value, asked.root)
    dtype = precision(config, config.model.device)
    save_model(load_model(start_model(config), dtype=dtype, device="cpu"), folder)


def check_cluster(asked: Asked) -> list[Any]:
    """What a run's parts would be, before anything starts; refuses, in one line, what cannot fit."""
    from burnish.engines.placement import rows_of, this_machine

    settings = asked.resolved.value.cluster
    if settings.kind not in ("local", "ray"):
        raise UserError(
            f"cluster.kind is '{settings.kind}', which starts no parts; expected local or ray"
        )
    places = placed(asked)
    machine = this_machine() if settings.kind == "local" else None
    return rows_of(places, memory_by_part(asked), machine)


def memory_by_part(asked: Asked) -> dict[str, int]:
    """What a process that trains would hold at its fullest step; the model is opened to count it."""
    import dataclasses
    import tempfile

    from msgspec.structs import replace

    from burnish.config.cluster import Cluster

    training = import_training()
    value = replace(asked.resolved.value, cluster=Cluster(), trackers=())
    guards = replace(value.guards, memory_times=0.0)
    resolved = dataclasses.replace(asked.resolved, value=replace(value, guards=guards))
    with tempfile.TemporaryDirectory() as folder:
        trainer = training.build(resolved, Path(folder) / "run", root=asked.root)
        trainer.store.close()
        found: dict[str, int] = trainer.forecast.memory
    return found
