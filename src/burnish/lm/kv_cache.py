"""A key-value cache of fixed capacity: allocated once, written in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Keys and values of every layer, (L, B, Hkv, Smax, Dh) each, and how many tokens are in.

    All rows have the same length: shorter prompts are padded on the left and the padding is
    masked by the caller.
    """

    def __init__(self, keys_LBHSE: Tensor, values_LBHSE: Tensor, length: int = 0) -> None:
        self.length = length
        self._keys = keys_LBHSE
        self._values = values_LBHSE
        # One view a layer, made once: indexing a tensor costs as much as a small operation.
        self._layers = list(zip(keys_LBHSE.unbind(0), values_LBHSE.unbind(0), strict=True))

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int, int, int, int],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """A cache of the given (L, B, Hkv, Smax, Dh) with nothing in it."""
        keys = torch.empty(shape, dtype=dtype, device=device)
        return cls(keys, torch.empty_like(keys))

    @property
    def rows(self) -> int:
        return self._keys.shape[1]

    @property
    def capacity(self) -> int:
        return self._keys.shape[3]

    def append(self, layer: int, key_BHSE: Tensor, value_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's new tokens; everything in that layer, (B, Hkv, length + S, Dh).

        `length` itself moves once all layers have written; the decoder does that.
        """
        keys, values = self._layers[layer]
        end = self.length + key_BHSE.shape[2]
        if end > self.capacity:
            raise ValueError(f"key-value cache holds {self.capacity} tokens; {end} are needed")
        keys[:, :, self.length : end] = key_BHSE
        values[:, :, self.length : end] = value_BHSE
        return keys[:, :, :end], values[:, :, :end]

    def select(self, rows: Sequence[int] | Tensor, capacity: int | None = None) -> KVCache:
        """A new cache of these rows in this order; a row may be named more than once."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self._keys.device)
        capacity = self.capacity if capacity is None else capacity
        layers, _, heads, _, size = self._keys.shape
        chosen = KVCache.empty(
            (layers, len(index), heads, capacity, size),
            dtype=self._keys.dtype,
            device=self._keys.device,
        )
        filled = slice(0, self.length)
        chosen._keys[:, :, :, filled] = self._keys[:, :, :, filled].index_select(1, index)
        chosen._values[:, :, :, filled] = self._values[:, :, :, filled].index_select(1, index)
        chosen.length = self.length
        return chosen

    def repeat(self, times: int, capacity: int | None = None) -> KVCache:
        """Every row `times` times in a row: one prefill shared by several rollouts."""
        rows = torch.arange(self.rows, device=self._keys.device).repeat_interleave(times)
        return self.select(rows, capacity)
