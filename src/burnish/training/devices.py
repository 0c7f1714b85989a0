"""One process or several: the same loop, the same result up to the order of float additions.

Every process samples and scores its share of the groups, all exchange what they collected, and
gradient sums are added up. Whoever starts the processes (torchrun, accelerate, Slurm) says in the
environment who is who: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from burnish.activity import waiting_for
from burnish.config.schema import Guards
from burnish.errors import ProcessDied, UserError, first_line

Item = TypeVar("Item")


_LAUNCHED = ("RANK", "MASTER_ADDR", "MASTER_PORT")
_START = "Start them so: torchrun --nproc-per-node 2 -m burnish train ..."


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or 0)


class PeerLost(ProcessDied):
    """A wait for the other processes ended without them: one is gone, or later than allowed."""


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, timeout_s: float = Guards().process_s) -> World:
        """Read the launcher's environment; initialise the process group where there is one."""
        if world_size() <= 1:
            _check_launcher()
            return cls()
        if missing := [name for name in _LAUNCHED if name not in os.environ]:
            raise UserError(
                f"WORLD_SIZE is {world_size()}, and {', '.join(missing)} is not in the environment; "
                f"expected what torchrun sets there. {_START}"
            )
        world = cls(int(os.environ["RANK"]), world_size())
        if not torch.distributed.is_initialized():
            backend = "gloo"
            if local_rank() < torch.cuda.device_count():
                torch.cuda.set_device(local_rank())
                backend = "cpu:gloo,cuda:nccl"
            timeout = datetime.timedelta(seconds=timeout_s)
            with world.at("the start of all processes"):
                torch.distributed.init_process_group(backend, timeout=timeout)
        return world

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This process's part: every `size`-th item."""
        return list(items[self.rank :: self.size])

    def gather(self, items: Sequence[Item], count: int) -> list[Item]:
        """All processes' parts of `count` items, put back in the order `share` split."""
        if self.size == 1:
            return list(items)
        tagged = [(self.rank + i * self.size, item) for i, item in enumerate(items)]
        everything = sorted(self._everyone(tagged), key=lambda pair: pair[0])
        assert len(everything) == count, f"gathered {len(everything)} of {count} items"
        return [item for _, item in everything]

    def add(self, tensors: Sequence[Tensor]) -> None:
        if self.size > 1:
            with self.at("all_reduce"):
                for tensor in tensors:
                    torch.distributed.all_reduce(tensor)

    def highest(self, value: int) -> int:
        """The largest of all processes' numbers; through the host, so that no GPU is waited for."""
        found = torch.tensor(value)
        with self.at("the next pass"):
            torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return int(found)

    def merge(self, found: dict[int, Tensor]) -> dict[int, Tensor]:
        """The union of all processes' dictionaries, on this process's device."""
        if self.size == 1:
            return found
        # Clones: a row of a larger tensor would take all of it along.
        device = next(iter(found.values())).device if found else torch.device("cpu")
        pairs = self._everyone([(key, value.cpu().clone()) for key, value in found.items()])
        return {key: value.to(device) for key, value in pairs}

    def stacked(self, found: dict[int, Tensor], count: int) -> Tensor:
        """The rows 0 to `count` that all processes found together, (count, ...)."""
        merged = self.merge(found)
        return torch.stack([merged[i] for i in range(count)])

    def differing(self, facts: Mapping[str, Any]) -> dict[int, list[str]]:
        """Processes whose facts are not those of the first one, with the names that differ."""
        everyone = self._everyone([dict(facts)])
        first, absent = everyone[0], object()
        found = {
            rank: [k for k in first.keys() | own if first.get(k, absent) != own.get(k, absent)]
            for rank, own in enumerate(everyone)
        }
        return {rank: sorted(names) for rank, names in found.items() if names}

    def first(self, value: Item) -> Item:
        return self._everyone([value])[0]

    def in_turn(self, build: Callable[[], Item]) -> Item:
        """The first process builds, then the others, which find on disk what it wrote."""
        if not self.is_main:
            self.wait()
        found = build()
        if self.is_main:
            self.wait()
        return found

    def wait(self) -> None:
        if self.size > 1:
            with self.at("barrier"):
                torch.distributed.barrier()

    def _everyone(self, items: list[Item]) -> list[Item]:
        """The items of all processes, one after the other."""
        if self.size == 1:
            return items
        everyone: list[list[Item]] = [[] for _ in range(self.size)]
        with self.at("gather"):
            torch.distributed.all_gather_object(everyone, items)
        return list(chain.from_iterable(everyone))

    @contextmanager
    def at(self, what: str) -> Iterator[None]:
        """Around what waits for the other processes; where one is gone, the error names the wait."""
        label = what if self.size == 1 else f"process {self.rank} at {what}"
        try:
            with waiting_for(label):
                yield
        except RuntimeError as error:
            if self.size == 1 or not _is_lost(error):
                raise
            raise PeerLost(
                f"{label} waited for the other processes, and one is gone or took longer than "
                f"guards.process_s: {first_line(error)}"
            ) from error


def _is_lost(error: RuntimeError) -> bool:
    """Gloo's own errors are plain ones whose text names its files."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


def _check_launcher() -> None:
    """`accelerate launch --cpu` starts one process of several; only the address of the others tells."""
    if {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"} <= os.environ.keys():
        raise UserError(
            "accelerate launch was asked for several processes and started one (as it does with "
            f"--cpu); expected RANK and WORLD_SIZE in the environment. {_START}"
        )
