"""Weights from the trainer to the workers of a server: a process group of torch's, one for each server.

The trainer is rank 0 and sends the tensors in the order that a request names. A server that dies takes
no other's group along. This module is also imported inside of vLLM, so it needs torch alone.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed
"""Its stores and groups are exported without a name that type checkers see."""


class Place(NamedTuple):
    """Where a process finds its group, as a request carries it."""

    host: str
    port: int
    size: int
    device: str
    """`cpu` sends by gloo, `cuda` by NCCL."""
    deadline_s: float


class WeightGroup:
    """One process's end; every wait in it ends after the deadline with an error."""

    def __init__(self, place: Place, rank: int, store: Any, device: torch.device) -> None:
        wait = timedelta(seconds=place.deadline_s)
        self._device = device if place.device == device.type else torch.device("cpu")
        if self._device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = wait
            self._group = dist.ProcessGroupNCCL(store, rank, place.size, options)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, place.size, wait)
        self._wait = wait
        self.send(torch.zeros(1))  # the first collective is where all meet

    @classmethod
    def join(cls, place: Place, rank: int, device: torch.device) -> WeightGroup:
        """The end of a worker."""
        wait = timedelta(seconds=place.deadline_s)
        store = dist.TCPStore(place.host, place.port, place.size, is_master=False, timeout=wait)
        return cls(place, rank, store, device)

    def send(self, tensor: Tensor) -> None:
        """Rank 0's tensor to all; bytes travel, so that every dtype does."""
        self._broadcast(tensor.detach().to(self._device).contiguous().reshape(-1).view(torch.uint8))

    def receive(self, dtype: str, shape: Iterable[int]) -> Tensor:
        """The tensor that rank 0 sends next."""
        tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=self._device)
        self._broadcast(tensor.reshape(-1).view(torch.uint8))
        return tensor

    def _broadcast(self, flat: Tensor) -> None:
        if flat.numel():
            self._group.broadcast(flat, 0).wait(self._wait)


def address_towards(host: str, port: int) -> str:
    """This machine's address as that host sees it; nothing is sent."""
    kind = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind[0], socket.SOCK_DGRAM) as probe:
        probe.connect(kind[4])
        return str(probe.getsockname()[0])
