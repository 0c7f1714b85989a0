"""What a model's forward takes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from burnish.records import MediaPart

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")
logger = logging.getLogger(__name__)
FEWEST_PIECES = 64


class Segments(NamedTuple):
    """Rows whose pieces do not see each other, as flash attention reads them: a mask without its size.

    On a GPU in half precision, for the built-in decoder without a sliding window.
    """

    ends_N: Tensor
    """int32: 0, and where each piece ends when all rows lie end to end. Empty pieces at the end fill N
    up to a power of two: a compiled model meets few sizes, not a new one with every batch."""
    longest: int
    """No piece is longer; the length of a row, which is the same for every batch."""

    @staticmethod
    def can_run(module: Any, device: Any) -> bool:
        """Whether the model takes them there."""
        if device.type != "cuda" or getattr(module, "takes_segments", False) is not True:
            return False
        return _has_varlen(device)

    @classmethod
    def of(cls, starts_RS: Any, device: Any) -> Segments:
        """From the column (numpy, R x S) at which each token's piece begins."""
        import numpy as np
        import torch

        rows, length = starts_RS.shape
        is_first = starts_RS == np.arange(length)
        begins = np.flatnonzero(is_first)
        size = max(FEWEST_PIECES, 1 << len(begins).bit_length())
        ends_N = np.full(size, rows * length, dtype=np.int32)
        ends_N[: len(begins)] = begins
        return cls(torch.from_numpy(ends_N).to(device, non_blocking=True), length)


@functools.cache
def _has_varlen(device: Any) -> bool:
    """Whether flash attention over pieces of rows, empty ones too, works there, by doing it once."""
    import torch

    try:
        from torch.nn.attention.varlen import varlen_attn

        ends_3 = torch.tensor([0, 8, 8], dtype=torch.int32, device=device)
        with torch.enable_grad():
            x = torch.zeros(8, 1, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
            found = varlen_attn(x, x, x, ends_3, ends_3, 8, 8, window_size=(-1, 0))
            assert isinstance(found, torch.Tensor)
            torch.autograd.backward(found.sum())
        assert x.grad is not None
        assert x.grad.isfinite().all(), "gradients of empty pieces are not finite"
    except (ImportError, RuntimeError, AssertionError, TypeError, AttributeError) as error:
        logger.warning("documents are kept apart by masks, which is slower: %s", error)
        return False
    return True


def passes(items: Iterable[T], tokens: int, length: Callable[[T], int]) -> Iterator[list[T]]:
    """Items of similar length together, longest first: so many times the longest within the tokens."""
    some: list[T] = []
    for item in sorted(items, key=length, reverse=True):
        if some and (len(some) + 1) * length(some[0]) > tokens:
            yield some
            some = []
        some.append(item)
    if some:
        yield some


class ModelInput(NamedTuple):
    """One batch of rows for a model."""

    ids_RS: Tensor
    positions_RS: Tensor
    mask: Tensor | Segments | None = None
    """bool (R, S, S), True where a query may attend to a key; None is causal, or for a masked
    diffusion model every token of the row. `Segments` where the model takes them."""
    media: Sequence[Sequence[MediaPart]] | None = None
    """The images and sounds of each row, in the order of their placeholder tokens; the model keeps
    their tensors by hash. None for text."""


def media_names(media: Sequence[Sequence[MediaPart]]) -> str:
    """The media of some rows in a few words, for a message."""
    names = [f"{part.media_type} {part.sha256[:12]}" for row in media for part in row]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
