"""The parts of a run as Ray actors, each in its bundle of one placement group.

An actor starts and watches its process with the functions of `supervise`. Where an actor or its
machine dies, Ray makes the actor again within the run's means, and the supervisor, which sees the
process gone, starts it there. The run's folder must be one that all machines see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from burnish.config.cluster import Cluster
from burnish.engines.placement import Place
from burnish.engines.supervise import Command, Host, LocalHost, PartLost
from burnish.errors import UserError, first_line

DIED = -9
"""The exit code of a process whose actor is gone."""


class RayHost:
    """A process beside an actor, wherever Ray has put it."""

    def __init__(self, actor: Any, settings: Cluster) -> None:
        self._actor, self._settings = actor, settings

    @property
    def address(self) -> str:
        """Of the machine where the actor is now."""
        return str(self._ask("where", self._settings.start_s))

    def start(self, command: Command) -> int:
        return int(self._ask("start", self._settings.start_s, command))

    def poll(self) -> int | None:
        try:
            code: int | None = self._ask("poll", self._settings.heartbeat_s)
        except PartLost:
            return DIED
        return code

    def signal(self, number: int) -> None:
        with suppress(PartLost):
            self._ask("signal", self._settings.heartbeat_s, number)

    def end(self, within_s: float) -> None:
        with suppress(PartLost):  # its guard ended the process with it
            self._ask("end", within_s + self._settings.heartbeat_s, within_s)

    def free_port(self) -> int:
        return int(self._ask("free_port", self._settings.start_s))

    def _ask(self, method: str, within_s: float, *arguments: Any) -> Any:
        """What the actor answers; one that is silent for so long is ended, and Ray makes it again."""
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=within_s)
        except (RayActorError, GetTimeoutError) as error:
            if isinstance(error, GetTimeoutError):
                ray.kill(self._actor, no_restart=False)
            raise PartLost(
                f"Ray's actor of a part did not answer '{method}' within {within_s:g} s "
                f"(cluster.start_s, heartbeat_s): {first_line(error)}"
            ) from error


class _Actor(LocalHost):
    """What runs in Ray's process; a class of its own, so that Ray names it in its lists."""

    def where(self) -> str:
        import ray

        found: Any = ray.util
        return str(found.get_node_ip_address())

    def start(self, command: Command) -> int:
        self.end(0.0)  # of a call that Ray made again
        return super().start(command)

    def poll(self) -> int | None:
        # Made again, it has no process yet.
        return DIED if self._process is None else super().poll()


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "cluster.kind = 'ray' needs the package 'ray'; install it: pip install 'burnish[ray]'"
        ) from error
    if not ray.is_initialized():
        ray.init(address=address or None, log_to_driver=False, include_dashboard=False)
    return ray


def ray_nodes(address: str) -> list[dict[str, float]]:
    """What each machine of the cluster has."""
    ray = _connect(address)
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@contextmanager
def ray_hosts(settings: Cluster, places: Sequence[Place]) -> Iterator[dict[str, Host]]:
    """One actor for each part; all of them are gone at the end."""
    ray = _connect(settings.address)
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([place.bundle() for place in places], strategy="PACK")
    try:
        if not group.wait(settings.start_s):
            raise UserError(
                f"Ray could not place the {len(places)} parts within {settings.start_s:g} s "
                "(cluster.start_s); expected free machines for all of them: ray status"
            )
        made = ray.remote(_Actor)
        actors = {}
        for index, place in enumerate(places):
            wants = place.bundle()
            actors[place.name] = made.options(
                num_cpus=wants["CPU"],
                num_gpus=wants.get("GPU", 0),
                memory=wants.get("memory", 0),
                max_restarts=-1,
                max_task_retries=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            ).remote()
        yield {name: RayHost(actor, settings) for name, actor in actors.items()}
    finally:
        remove_placement_group(group)
