"""A run of several parts: prepared here, handed to `burnish.engines.cluster`, and joined by each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from burnish.api.needs import import_training
from burnish.config.recipes import Asked, change
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.engines.placement import Place
    from burnish.rewards.combine import Weighted

ADDRESS = "http://127.0.0.1:1"
"""Of a server that is not started yet; a run does not depend on it."""
GIB = 2**30


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
    from burnish.engines.served_rewards import ServedRewards

    cluster = config.cluster
    return partial(
        ServedRewards,
        urls=found.judges,
        token_env=TOKEN,
        attempt_s=config.rollout.score_timeout_s,
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

    settings = asked.resolved.value.cluster
    run = Run(folder=folder.absolute(), settings=settings, words=words, recipe=recipe, tell=tell)
    places = placed(asked)
    if settings.samplers.count:
        write_start(asked, run.home / "served")
    return supervise(run, places)


def placed(asked: Asked) -> list[Place]:
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


class PartRow(NamedTuple):
    """Where a part would run and what it would hold; `memory` in bytes, None where nobody can tell."""

    name: str
    machine: str
    gpus: str
    cores: str
    memory: int | None
    holds: str


def check_cluster(asked: Asked) -> list[PartRow]:
    """What a run's parts would be, before anything starts; refuses, in one line, what cannot fit."""
    found = []
    settings = asked.resolved.value.cluster
    if settings.kind not in ("local", "ray"):
        raise UserError(
            f"cluster.kind is '{settings.kind}', which starts no parts; expected local or ray"
        )
    places, parts = placed(asked), memory_by_part(asked)
    weights = parts.get("weights", 0)
    for place in places:
        kept = int(place.wants.memory_gb * GIB) or None
        if place.role == "trainer":
            needs, holds = sum(parts.values()), ", ".join(parts)
        elif place.role == "sampler":
            needs, holds = weights, "weights; its cache takes what it is left"
        else:
            needs, holds = kept, "what its rewards need"
        if needs and kept and needs > kept:
            raise UserError(
                f"{place.name} needs {needs / GIB:.1f} GiB ({holds}) and cluster.{place.role}s."
                f"memory_gb leaves it {kept / GIB:g}; expected more, or a smaller model or batch"
            )
        gpus = f"{place.wants.gpus:g}" if not place.gpus else ",".join(map(str, place.gpus))
        cores = ",".join(map(str, place.cores)) or (
            str(place.wants.cpus) if place.wants.cpus else "any"
        )
        found.append(PartRow(place.name, place.machine, gpus, cores, needs, holds))
    if settings.kind == "local":
        _fits(found, places)
    return found


def _fits(rows: Sequence[PartRow], places: Sequence[Place]) -> None:
    """Refuse parts that together need more memory than this machine has free."""
    from burnish.engines.placement import this_machine

    machine = this_machine()
    left: dict[int | str, float] = dict(enumerate(map(float, machine.gpus)))
    left["this machine"] = machine.memory
    for row, place in zip(rows, places, strict=True):
        for where in place.gpus or ("this machine",):
            left[where] -= (row.memory or 0) / max(1, len(place.gpus))
            if left[where] < 0:
                raise UserError(
                    f"{row.name} needs {(row.memory or 0) / GIB:.1f} GiB ({row.holds}), "
                    f"{-left[where] / GIB:.1f} GiB more than the parts before it leave of "
                    f"{where if place.gpus == () else f'GPU {where}'}; expected fewer or smaller "
                    "parts, or more machines (cluster.kind = 'ray')"
                )


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
