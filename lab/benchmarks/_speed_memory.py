"""What an update adds to memory while it works."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


class UpdateMemory:
    """Wraps an update and keeps the most that updates needed at one time.

    On a GPU: the allocator's peak over what was allocated before, and what earlier updates left
    behind (the first makes the sums of gradients and keeps them). That is activations and
    gradients. On the CPU, which has no such counter: the bytes of distinct tensors that autograd
    holds for the backward pass at one time, the model's own weights left out: activations alone.
    """

    def __init__(self, device: torch.device, parameters: Iterable[Tensor]) -> None:
        self.device = device
        self.added = 0
        self.peak = 0
        """Largest allocation of the whole run; 0 on the CPU."""
        self._left = 0
        self._own = {_address(parameter) for parameter in parameters}

    def watch(self, update: Callable[P, R]) -> Callable[P, R]:
        """The update, observed; the device is done when it returns."""

        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            if self.device.type != "cuda":
                held = HeldTensors(self._own)
                with torch.autograd.graph.saved_tensors_hooks(held.pack, held.unpack):
                    result = update(*args, **kwargs)
                self.added = max(self.added, held.peak)
                return result
            self.read_peak()
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            result = update(*args, **kwargs)
            torch.cuda.synchronize(self.device)
            rise = torch.cuda.max_memory_allocated(self.device) - before
            self.added = max(self.added, self._left + rise)
            self._left += torch.cuda.memory_allocated(self.device) - before
            return result

        return watched

    def read_peak(self) -> int:
        """The largest allocation so far."""
        if self.device.type == "cuda":
            self.peak = max(self.peak, torch.cuda.max_memory_allocated(self.device))
        return self.peak


class HeldTensors:
    """Counts the bytes that autograd holds; several tensors in one storage count once."""

    def __init__(self, left_out: set[int]) -> None:
        self.left_out = left_out
        self.live = 0
        self.peak = 0
        self._users: Counter[int] = Counter()

    def pack(self, tensor: Tensor) -> _Held:
        held = _Held(tensor)
        address, size = _address(tensor), tensor.untyped_storage().nbytes()
        if address in self.left_out:
            return held
        if self._users[address] == 0:
            self.live += size
            self.peak = max(self.peak, self.live)
        self._users[address] += 1
        weakref.finalize(held, self._release, address, size)
        return held

    def unpack(self, held: _Held) -> Tensor:
        return held.tensor

    def _release(self, address: int, size: int) -> None:
        self._users[address] -= 1
        if self._users[address] == 0:
            self.live -= size


class _Held:
    """A tensor on its way through autograd; dies with the graph that holds it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
