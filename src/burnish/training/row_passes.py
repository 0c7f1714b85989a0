"""Values of all rows of a step: passes without a graph, and values of a pass put in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from burnish.training.algorithm import Setup

MicroT = TypeVar("MicroT")
RenderedT = TypeVar("RenderedT")


class Batch(NamedTuple, Generic[RenderedT]):
    """The rows of a step as tokens."""

    step: int
    rendered: RenderedT


def in_place(values_P: Tensor, places_P: Tensor, size: int) -> Tensor:
    """Values of a pass at their places in the step, float64 (N,) for N = `size`."""
    empty_N = torch.zeros(size, dtype=torch.float64, device=values_P.device)
    return empty_N.index_put((places_P,), values_P.detach().double())


def over_rows(
    setup: Setup,
    cut: Callable[[int], Iterator[MicroT]],
    size: int,
    values: Callable[[MicroT], tuple[Tensor, Sequence[Tensor]]],
) -> list[Tensor]:
    """Values of all rows, (`size`, ...) each, over all processes and without a graph.

    `cut` gives this process's passes of about so many tokens; `values` of a pass are places among
    the rows, and some tensors with a value for each.
    """

    def work() -> list[Tensor]:
        found: list[Tensor] = []
        for micro in cut(setup.batches.tokens):
            places, several = values(micro)
            for number, value in enumerate(several):
                if len(found) <= number:
                    found.append(value.new_zeros(size, *value.shape[1:]))
                found[number].index_copy_(0, places, value)
        return found

    with torch.no_grad():
        mine = setup.batches.within_memory(work)
    return _gathered(setup, mine) if setup.world.size > 1 else mine


def _gathered(setup: Setup, mine: Sequence[Tensor]) -> list[Tensor]:
    """The sums of all processes' values; one without a row of its own knows no shape."""
    world, device = setup.world, setup.trainable.device
    everyone = world.gather([[value.cpu() for value in mine]], world.size)
    known = [values for values in everyone if values]
    return [torch.stack(values).sum(0).to(device) for values in zip(*known, strict=True)]
