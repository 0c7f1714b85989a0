"""One decode step over the first rows of the seats: read their newest tokens, draw the next."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.lm.sampler.plan import LayerPlan, Plan
from burnish.lm.sampler.seats import Seats, Variant
from burnish.lm.sampling import Draw, top_logprobs


class Ops(Protocol):
    """The parts of a step that are not matrix products: plain torch, or kernels."""

    def begin(self, rows: int, variant: Variant) -> None: ...
    def add_norm(
        self, residual_BD: Tensor, delta_BD: Tensor | None, weight_D: Tensor
    ) -> tuple[Tensor, Tensor]: ...
    def attend(self, index: int, layer: LayerPlan, qkv_BN: Tensor) -> Tensor: ...
    def gated(self, gate_up_BN: Tensor) -> Tensor: ...
    def draw(self, logits_BV: Tensor, places: slice | Tensor, variant: Variant) -> Draw: ...
    def advance(
        self, drawn: Draw, places: slice | Tensor, ends: Tensor, *, is_fed: bool
    ) -> None: ...


class Stepper:
    """Decodes with a plan's weights and an `Ops`' arithmetic."""

    def __init__(self, plan: Plan, ops: Ops, seats: Seats, ends: tuple[int, ...]) -> None:
        self.plan, self.ops, self.seats = plan, ops, seats
        self._ends = torch.tensor(ends, dtype=torch.long, device=seats.device)
        self._alternatives: dict[int, tuple[Tensor, Tensor]] = {}

    def decode(self, rows: int, variant: Variant) -> None:
        """One step; results go to the seats' outputs."""
        self._record(self._logits(rows, variant), slice(0, rows), variant, is_fed=True)
        self.seats.step.add_(1)

    def first(self, logits_NV: Tensor, places_N: Tensor, variant: Variant) -> None:
        """Draw the first token of rows that have just taken their seats."""
        self.seats.step.zero_()
        self._record(logits_NV, places_N, variant, is_fed=False)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Next-token logits of final-normed hidden states."""
        return self.plan.decoder.logits(hidden_ND)

    def alternatives(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` likeliest tokens of each step of a burst, ids and log-probs, (K, B, count).

        Never replaced once made: captured graphs know their addresses.
        """
        if count not in self._alternatives:
            shape = (*self.seats.out_tokens.shape, count)
            ids = torch.zeros(shape, dtype=torch.long, device=self.seats.device)
            self._alternatives[count] = (ids, torch.zeros(shape, device=self.seats.device))
        return self._alternatives[count]

    def _logits(self, rows: int, variant: Variant) -> Tensor:
        ops = self.ops
        ops.begin(rows, variant)
        residual = F.embedding(self.seats.tokens[:rows], self.plan.embedding)
        delta: Tensor | None = None
        for index, layer in enumerate(self.plan.layers):
            residual, normed = ops.add_norm(residual, delta, layer.norm)
            attended = ops.attend(index, layer, layer.qkv(normed))
            residual, normed = ops.add_norm(residual, layer.out(attended), layer.feed_norm)
            delta = layer.down(ops.gated(layer.gate_up(normed)))
        _, hidden = ops.add_norm(residual, delta, self.plan.norm)
        return self.logits(hidden)

    def _record(
        self, logits_BV: Tensor, places: slice | Tensor, variant: Variant, *, is_fed: bool
    ) -> None:
        """Draw, note what was drawn, and move the rows that are not done one token on."""
        drawn = self.ops.draw(logits_BV, places, variant)
        if variant.alternatives:
            settings = self.seats.settings(places, variant)
            values, ids = top_logprobs(logits_BV, settings, variant.alternatives)
            out_ids, out_values = self.alternatives(variant.alternatives)
            self._write(out_ids, places, ids)
            self._write(out_values, places, values)
        self.ops.advance(drawn, places, self._ends, is_fed=is_fed)

    def _write(self, out_KBA: Tensor, places: slice | Tensor, values_BA: Tensor) -> None:
        """Into this step's line of an output, at these seats."""
        line = out_KBA.index_select(0, self.seats.step)
        line[0, places, : values_BA.shape[1]] = values_BA
        out_KBA.index_copy_(0, self.seats.step, line)
