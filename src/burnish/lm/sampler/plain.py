"""The parts of a decode step in plain torch: the CPU's path, and the measure for the kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.lm.fused import add_norm
from burnish.lm.sampler.cache import PagedCache
from burnish.lm.sampler.plan import LayerPlan, Plan
from burnish.lm.sampler.seats import Seats, Variant
from burnish.lm.sampling import Draw, draw


class PlainOps:
    """Works on the first rows of the seats, whose cache pages it reads through their tables.

    Where one page holds a whole row and seat i owns page i + 1, the pages of the first rows are
    one slice of the cache, and nothing has to be gathered.
    """

    def __init__(self, plan: Plan, cache: PagedCache, seats: Seats) -> None:
        self.plan, self.cache, self.seats = plan, cache, seats
        a = plan.architecture
        self.heads, self.kv_heads, self.head_dim = a.heads, a.kv_heads, a.head_dim
        self.eps = a.norm_eps
        self.is_dense = seats.width == 1
        capacity = seats.width * cache.page
        positions = torch.arange(capacity, device=seats.device)
        rotation = plan.decoder.rotation(positions.unsqueeze(0), plan.embedding.dtype)
        self._cos, self._sin = rotation.cos.squeeze((0, 1)), rotation.sin.squeeze((0, 1))
        self._column = positions

    def begin(self, rows: int, variant: Variant) -> None:
        """What all layers of one step share."""
        seats = self.seats
        lengths_B = seats.lengths[:rows]
        self.rows = rows
        self.cos_B1E = self._cos.index_select(0, lengths_B).unsqueeze(1)
        self.sin_B1E = self._sin.index_select(0, lengths_B).unsqueeze(1)
        page = self.cache.page
        if self.is_dense:
            longest = int(lengths_B.max()) + 1
            page_B = torch.arange(1, rows + 1, device=seats.device)
            even = int(lengths_B.min()) + 1 == longest
        else:
            longest, even = len(self._column), False
            place_B = (lengths_B // page).unsqueeze(1)
            page_B = seats.table[:rows].gather(1, place_B).squeeze(1).long()
            page_B = page_B * (seats.left[:rows] > 0)
        self.longest = longest
        self.line_N = self.cache.line_index(page_B, lengths_B % page).view(-1)
        self.mask = None
        if not even:
            self.mask = self._mask(self._column[:longest] > lengths_B.unsqueeze(1))
        self.window_mask = self.mask
        window = self.plan.architecture.sliding_window
        if window is not None and longest > window:
            column, length_B1 = self._column[:longest], lengths_B.unsqueeze(1)
            self.window_mask = self._mask((column > length_B1) | (column <= length_B1 - window))

    def add_norm(
        self, residual_BD: Tensor, delta_BD: Tensor | None, weight_D: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The residual stream with `delta` added, and its norm."""
        return add_norm(residual_BD, delta_BD, weight_D, self.eps)

    def attend(self, index: int, layer: LayerPlan, qkv_BN: Tensor) -> Tensor:
        """File the new tokens' keys and values, and attend to what the layer sees of their rows."""
        turned = self.heads + self.kv_heads
        heads_BHE = qkv_BN.view(self.rows, turned + self.kv_heads, self.head_dim)
        turn_BHE = heads_BHE[:, :turned]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = F.rms_norm(turn_BHE[:, : self.heads], (self.head_dim,), layer.q_norm, self.eps)
            key = F.rms_norm(turn_BHE[:, self.heads :], (self.head_dim,), layer.k_norm, self.eps)
            turn_BHE = torch.cat((query, key), dim=1)
        swapped = turn_BHE.roll(self.head_dim // 2, dims=-1)
        turn_BHE = torch.addcmul(turn_BHE * self.cos_B1E, swapped, self.sin_B1E)
        key_lines, value_lines = self.cache.lines[index]
        key_lines.index_copy_(0, self.line_N, turn_BHE[:, self.heads :].reshape(-1, self.head_dim))
        value_lines.index_copy_(0, self.line_N, heads_BHE[:, turned:].reshape(-1, self.head_dim))
        keys, values = self._keys(index)
        # The heads that share a key stand in as its query positions: nothing is repeated.
        query = turn_BHE[:, : self.heads].reshape(self.rows, self.kv_heads, -1, self.head_dim)
        mask = self.window_mask if layer.window else self.mask
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return attended.reshape(self.rows, -1)

    def gated(self, gate_up_BN: Tensor) -> Tensor:
        """silu(gate) * up."""
        gate, up = gate_up_BN.chunk(2, dim=-1)
        return F.silu(gate) * up

    def draw(self, logits_BV: Tensor, places: slice | Tensor, variant: Variant) -> Draw:
        """One new token a row."""
        seats = self.seats
        return draw(logits_BV, seats.settings(places, variant), seats.next_uniforms(places))

    def advance(self, drawn: Draw, places: slice | Tensor, ends: Tensor, *, is_fed: bool) -> None:
        """Note what was drawn; rows that are not done go one token on.

        A row whose newest token was fed to the model has one more token in the cache.
        """
        s = self.seats
        line = int(s.step)
        s.out_tokens[line, places] = drawn.tokens_B
        s.out_logprobs[line, places] = drawn.logprobs_B
        s.out_raw[line, places] = drawn.raw_logprobs_B
        left = s.left[places]
        alive = left > 0
        s.tokens[places] = torch.where(alive, drawn.tokens_B, s.tokens[places])
        s.left[places] = (left - 1).clamp_(min=0) * ~torch.isin(drawn.tokens_B, ends)
        s.drawn[places] += alive
        if is_fed:
            s.lengths[places] += alive

    def _mask(self, hidden_BS: Tensor) -> Tensor:
        """What is added to the scores: minus infinity where a key is hidden, (B, 1, 1, S)."""
        mask = torch.zeros(hidden_BS.shape, dtype=self.cos_B1E.dtype, device=hidden_BS.device)
        return mask.masked_fill_(hidden_BS, float("-inf")).view(self.rows, 1, 1, -1)

    def _keys(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first rows, (B, Hkv, S, Dh)."""
        keys, values = self.cache.layers[index]
        if self.is_dense:
            rows = slice(1, self.rows + 1)
            return keys[rows, :, : self.longest], values[rows, :, : self.longest]
        return self._gathered(keys), self._gathered(values)

    def _gathered(self, pages_PHSE: Tensor) -> Tensor:
        table_BW = self.seats.table[: self.rows].long()
        rows_BWHSE = pages_PHSE[table_BW]
        return rows_BWHSE.transpose(1, 2).flatten(2, 3)
