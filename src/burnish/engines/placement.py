"""Which part runs where, before any is started: `burnish cluster check`, and what a run begins with."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from burnish.config.cluster import Cluster, Part
from burnish.errors import UserError
from burnish.lm.hardware import free_memory

ROLES = {"trainer": "trainers", "sampler": "samplers", "judge": "judges"}
GIB = 2**30
RAY_CPUS = 0.01
"""What Ray is told of a part that has no cores of its own: it places nothing that needs nothing."""


class Machine(NamedTuple):
    """What there is to hand out."""

    name: str
    cores: tuple[int, ...]
    gpus: tuple[int, ...]
    """The memory of each, in bytes."""
    memory: int
    """Bytes that are free."""


class Place(NamedTuple):
    """Where a part runs, and what is its own there."""

    name: str
    role: str
    machine: str
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    share: float = 1.0
    """Of its GPU's memory."""
    wants: Part = Part()

    def environment(self) -> dict[str, str]:
        """What tells its libraries."""
        found = {"OMP_NUM_THREADS": str(self.wants.cpus)} if self.wants.cpus else {}
        if self.gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.gpus))
        if self.share < 1:
            found["BURNISH_GPU_SHARE"] = f"{self.share:g}"
        return found

    def bundle(self) -> dict[str, float]:
        """The same as Ray asks for it."""
        wants = self.wants
        found = {"CPU": float(wants.cpus) or RAY_CPUS, "GPU": wants.gpus}
        found["memory"] = wants.memory_gb * GIB
        return {name: amount for name, amount in found.items() if amount}


def this_machine() -> Machine:
    """The cores that this process may use, the GPUs that it sees, the memory that is free."""
    import torch

    gpus = tuple(
        torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())
    )
    return Machine(platform.node(), tuple(sorted(os.sched_getaffinity(0))), gpus, free_memory())


def parts_of(settings: Cluster) -> Iterator[tuple[str, str, Part]]:
    """Name, role and wants of every part that is started: `sampler-0`."""
    for role, key in ROLES.items():
        wants = getattr(settings, key)
        for number in range(wants.count):
            yield f"{role}-{number}", role, wants


def place(settings: Cluster, machine: Machine) -> list[Place]:
    """Hand out a machine's cores, GPUs and memory; refuses, in one line, what it does not have."""
    cores, left = list(machine.cores), [1.0] * len(machine.gpus)
    memory, places = machine.memory / GIB, []
    for name, role, wants in parts_of(settings):
        key = f"cluster.{ROLES[role]}"
        if wants.cpus > len(cores):
            raise _refused(f"{key}.cpus", name, wants.cpus, f"{len(cores)} of", len(machine.cores))
        if wants.memory_gb > memory:
            free = f"{machine.memory / GIB:.1f} GiB"
            raise _refused(f"{key}.memory_gb", name, wants.memory_gb, f"{memory:.1f} of", free)
        own, cores = tuple(cores[: wants.cpus]), cores[wants.cpus :]
        memory -= wants.memory_gb
        gpus = _gpus(f"{key}.gpus", name, wants.gpus, left)
        places.append(Place(name, role, machine.name, own, gpus, min(wants.gpus or 1, 1), wants))
    return places


def _gpus(key: str, name: str, wanted: float, left: list[float]) -> tuple[int, ...]:
    """Take whole GPUs that are free, or a share of the first one that has it."""
    if wanted > 1 and wanted != int(wanted):
        raise UserError(f"{key} is {wanted:g}; expected a share below 1, or whole GPUs")
    each, count = min(wanted, 1.0), max(1, int(wanted))
    found = [i for i, share in enumerate(left) if share >= each - 1e-9][:count] if wanted else []
    if wanted and len(found) < count:
        raise _refused(key, name, f"{wanted:g}", f"{sum(left):g} of", len(left))
    for i in found:
        left[i] -= each
    return tuple(found)


def _refused(key: str, name: str, wanted: object, left: str, total: object) -> UserError:
    return UserError(
        f"{name} wants {key} = {wanted}, and {left} {total} are left here; expected fewer or smaller "
        "parts, or cluster.kind = 'ray' on more machines"
    )


def on_ray(settings: Cluster, nodes: Sequence[dict[str, float]]) -> list[Place]:
    """Parts whose place Ray chooses; refuses, in one line, what all its machines do not have."""
    places = [Place(name, role, "ray", wants=wants) for name, role, wants in parts_of(settings)]
    for kind in ("CPU", "GPU", "memory"):
        wanted = sum(one.bundle().get(kind, 0.0) for one in places)
        there = sum(node.get(kind, 0.0) for node in nodes)
        if wanted > there + 1e-9:
            raise UserError(
                f"the parts want {wanted:g} {kind}, and Ray's {len(nodes)} machines have {there:g}; "
                "expected fewer or smaller parts (cluster.trainers, samplers, judges)"
            )
    return places


class PartRow(NamedTuple):
    """Where a part would run and what it would hold: `memory` in bytes, None where nobody can tell."""

    name: str
    machine: str
    gpus: str
    cores: str
    memory: int | None
    holds: str


def rows_of(
    places: Sequence[Place], parts: Mapping[str, int], machine: Machine | None
) -> list[PartRow]:
    """What each part would hold, `parts` being a trainer's memory by what it is for.

    Refuses, in one line, a part for which there is not so much: of its own memory, or of what the
    parts before it leave of this machine and its GPUs.
    """
    rows = [_row(place, parts) for place in places]
    left: dict[int | str, float] = {"this machine": machine.memory} if machine else {}
    left |= dict(enumerate(map(float, machine.gpus if machine else ())))
    for row, place in zip(rows, places, strict=True):
        needs = row.memory or 0
        kept = place.wants.memory_gb * GIB
        if kept and needs > kept:
            raise _too_much(row, needs - kept, f"cluster.{ROLES[place.role]}.memory_gb leaves it")
        for where in (place.gpus or ("this machine",)) if machine else ():
            left[where] -= needs
            if left[where] < 0:
                shown = f"GPU {where}" if place.gpus else where
                raise _too_much(row, -left[where], f"the parts before it leave of {shown}")
    return rows


def _row(place: Place, parts: Mapping[str, int]) -> PartRow:
    wants = place.wants
    needs: int | None = int(wants.memory_gb * GIB) or None
    holds = "what its rewards need"
    if place.role == "trainer":
        needs, holds = sum(parts.values()), ", ".join(parts)
    elif place.role == "sampler":
        needs, holds = parts.get("weights", 0), "weights; its cache takes what it is left"
    gpus = ",".join(map(str, place.gpus)) or f"{wants.gpus:g}"
    cores = ",".join(map(str, place.cores)) or str(wants.cpus or "any")
    return PartRow(place.name, place.machine, gpus, cores, needs, holds)


def _too_much(row: PartRow, more: float, than: str) -> UserError:
    return UserError(
        f"{row.name} needs {(row.memory or 0) / GIB:.3g} GiB ({row.holds}), {more / GIB:.3g} GiB more "
        f"than {than}; expected fewer or smaller parts, or cluster.kind = 'ray' on more machines"
    )
