"""The parts of a decode step as launches of `burnish.lm.sampler.kernels`."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from burnish.lm.sampler import kernels
from burnish.lm.sampler.slots import PagedCache, Slots, Variant
from burnish.lm.sampler.step import LayerPlan, Plan
from burnish.lm.sampling import Draw, draw
from burnish.models.blocks.topology import Norms, Streams

VOCAB_BLOCK = 2048
KEYS_AT_ONCE = 64
PROGRAMS = 256
LEAST = 16


class TritonOps:
    """`PlainOps` in a handful of launches, all of which a CUDA graph can hold."""

    def __init__(self, plan: Plan, cache: PagedCache, slots: Slots) -> None:
        a = plan.architecture
        self.plan, self.cache, self.slots = plan, cache, slots
        self.a = a
        half = a.head_dim // 2
        capacity = slots.width * cache.page
        positions = torch.arange(capacity, device=slots.device)
        rotation = plan.decoder.rotation(positions.unsqueeze(0), plan.embedding.dtype)
        # Rounded as the training forward rounds them, and the second half's sine has its own sign.
        self._cos = rotation.cos[0, 0, :, half:].float().contiguous()
        self._sin = rotation.sin[0, 0, :, half:].float().contiguous()
        self._nothing = torch.zeros(1, device=slots.device)
        self._no_places = torch.zeros(1, dtype=torch.long, device=slots.device)
        self.rows = self.shares = 0

    def begin(self, rows: int, variant: Variant) -> None:
        """Note how many rows the step has, and how many programs share a row's keys.

        Several where rows are few and contexts long. It depends on the call alone, not on the state:
        another split gives other last bits.
        """
        self.rows = rows
        programs = triton.cdiv(PROGRAMS, rows * self.a.kv_heads)
        self.shares = int(min(variant.key_blocks, programs))

    def start(self, embedded_BD: Tensor) -> Streams:
        """The residual streams of new tokens; Y is float32, and `read` writes to it in place."""
        streams = self.a.topology.start(embedded_BD)
        y = None if streams.y is None else streams.y.to(torch.float32, copy=streams.x is not None)
        return Streams(streams.x, y)

    def read(self, streams: Streams, norms: Norms) -> tuple[Streams, Tensor]:
        """The streams with their update added, and what the next sublayer reads: one launch."""
        x, y, update, share = streams
        first = y if x is None else x
        assert first is not None  # there is no topology without a stream
        rows, size = first.shape
        kind = self.plan.embedding.dtype
        out = torch.empty_like(first, dtype=kind)
        moves_x = x is not None and (update is not None or norms.x_norm is not None)
        new_x = torch.empty_like(x) if x is not None and moves_x else x
        nothing = self._nothing
        block = triton.next_power_of_2(size)
        kernels.read_streams[(rows,)](
            nothing if x is None else x,
            nothing if new_x is None else new_x,
            nothing if y is None else y,
            nothing if update is None else update,
            *(nothing if weight is None else weight for weight in norms[:3]),
            nothing if norms.x_scale is None else norms.x_scale,
            out,
            size,
            share,
            self.a.norm_eps,
            HAS_X=x is not None,
            HAS_Y=y is not None,
            HAS_UPDATE=update is not None,
            MOVES_X=moves_x,
            X_NORM=norms.x_norm is not None,
            IN_NORM=norms.in_norm is not None,
            X_SCALE=norms.x_scale is not None,
            BLOCK=block,
            num_warps=max(1, min(8, block // 256)),
        )
        return Streams(new_x, y), out

    def norm(self, update_BD: Tensor, weight_D: Tensor) -> Tensor:
        """What a sublayer has computed, normed."""
        return self.read(Streams(None, update_BD), Norms(y_norm=weight_D))[1]

    def attend(self, index: int, layer: LayerPlan, qkv_BN: Tensor) -> Tensor:
        """Write the new tokens' keys and values, and attend to what the layer sees of their rows."""
        a, rows, slots = self.a, self.rows, self.slots
        keys, values = self.cache.layers[index]
        out = qkv_BN.new_empty(rows, a.heads * a.head_dim)
        shares = self.shares
        parts: tuple[Tensor, Tensor, Tensor] = (self._nothing,) * 3
        if shares > 1:
            peaks = torch.empty(rows, shares, a.heads, device=qkv_BN.device)
            part_out = torch.empty(rows, shares, a.heads, a.head_dim, device=qkv_BN.device)
            parts = (part_out, peaks, torch.empty_like(peaks))
        half = a.head_dim // 2
        group = a.heads // a.kv_heads
        kernels.attend[(rows, a.kv_heads, shares)](
            qkv_BN,
            keys,
            values,
            slots.table,
            slots.lengths,
            slots.left,
            self._cos,
            self._sin,
            self._nothing if layer.q_norm is None else layer.q_norm,
            self._nothing if layer.k_norm is None else layer.k_norm,
            self._nothing if layer.v_norm is None else layer.v_norm,
            out,
            *parts,
            slots.width,
            a.head_dim**-0.5,
            a.norm_eps,
            HEADS=a.heads,
            KV=a.kv_heads,
            GROUP=group,
            HALF=half,
            PAGE=self.cache.page,
            NORMS=(layer.q_norm is not None) + (layer.v_norm is not None),
            WINDOW=layer.window,
            SHARES=shares,
            G=max(LEAST, triton.next_power_of_2(group)),
            E=max(LEAST, triton.next_power_of_2(half)),
            N=KEYS_AT_ONCE,
            PRECISION="ieee",
            num_warps=4,
        )
        if shares > 1:
            kernels.merge[(rows, a.heads)](
                *parts,
                out,
                HEADS=a.heads,
                DIM=a.head_dim,
                SHARES=shares,
                S=triton.next_power_of_2(shares),
                E=triton.next_power_of_2(a.head_dim),
                num_warps=1,
            )
        return out

    def gated(self, gate_up_BN: Tensor) -> Tensor:
        """silu(gate) * up."""
        rows, both = gate_up_BN.shape
        out = gate_up_BN.new_empty(rows, both // 2)
        block = min(1024, triton.next_power_of_2(both // 2))
        kernels.gated[(rows, triton.cdiv(both // 2, block))](
            gate_up_BN, out, both // 2, BLOCK=block
        )
        return out

    def draw(self, logits_BV: Tensor, places: slice | Tensor, variant: Variant) -> Draw:
        """One new token a row."""
        slots = self.slots
        if variant.filters:
            return draw(logits_BV, slots.settings(places, variant), slots.next_uniforms(places))
        rows, size = logits_BV.shape
        blocks = triton.cdiv(size, VOCAB_BLOCK)
        chosen: dict[str, Any] = {"HAS_PLACES": isinstance(places, Tensor), "BLOCK": VOCAB_BLOCK}
        index = places if isinstance(places, Tensor) else self._no_places
        peaks = torch.empty(rows, blocks, device=logits_BV.device)
        best = torch.empty(rows, blocks, dtype=torch.int32, device=logits_BV.device)
        totals, raw_totals = torch.empty_like(peaks), torch.empty_like(peaks)
        partial = (peaks, best, totals, raw_totals)
        kernels.block_sums[(rows, blocks)](
            logits_BV, index, slots.temperature, *partial, size, blocks, **chosen
        )
        tokens = torch.empty(rows, dtype=torch.long, device=logits_BV.device)
        drawn = Draw(tokens, *(torch.empty(rows, device=logits_BV.device) for _ in range(2)))
        kernels.pick[(rows,)](
            logits_BV,
            index,
            slots.temperature,
            slots.greedy.view(torch.uint8),
            slots.uniforms,
            slots.drawn,
            *partial,
            *drawn,
            size,
            blocks,
            slots.steps,
            N=triton.next_power_of_2(blocks),
            **chosen,
        )
        return drawn

    def advance(self, drawn: Draw, places: slice | Tensor, ends: Tensor, *, is_fed: bool) -> None:
        """Note what was drawn; rows that are not done go one token on."""
        s = self.slots
        rows = len(drawn.tokens_B)
        kernels.advance[(triton.cdiv(rows, 128),)](
            places if isinstance(places, Tensor) else self._no_places,
            s.step,
            *drawn,
            ends,
            s.tokens,
            s.lengths,
            s.left,
            s.drawn,
            s.out_tokens,
            s.out_logprobs,
            s.out_raw,
            rows,
            s.count,
            len(ends),
            HAS_PLACES=isinstance(places, Tensor),
            IS_FED=is_fed,
            ENDS=max(1, triton.next_power_of_2(len(ends))),
            BLOCK=128,
        )
