"""One process or several: the same loop, the same result up to the order of float additions.

Every process samples and scores its share of the groups, all exchange what they collected, and
gradient sums are added up. A single process never imports accelerate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from burnish.activity import waiting_for

Item = TypeVar("Item")


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or 0)


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> World:
        """Read the launcher's environment; initialise the process group where there is one."""
        if world_size() <= 1:
            return cls()
        from accelerate import PartialState

        state = PartialState(cpu=not torch.cuda.is_available())
        return cls(state.process_index, state.num_processes)

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
            with self._at("all_reduce"):
                for tensor in tensors:
                    torch.distributed.all_reduce(tensor)

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
            with self._at("barrier"):
                torch.distributed.barrier()

    def _everyone(self, items: list[Item]) -> list[Item]:
        """The items of all processes, one after the other."""
        if self.size == 1:
            return items
        from accelerate.utils import gather_object

        with self._at("gather"):
            found: list[Item] = gather_object(items)
        return found

    def _at(self, what: str) -> AbstractContextManager[object]:
        return waiting_for(f"process {self.rank} at {what}")
