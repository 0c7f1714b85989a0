"""One decode step over the first slots: read their newest tokens, draw the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.lm.decoder import Decoder, Layer, Linear
from burnish.lm.fused import add_norm
from burnish.lm.sampler.slots import PagedCache, Slots, Variant
from burnish.lm.sampling import Draw, draw, top_logprobs
from burnish.models.blocks.topology import Norms, Streams, read_streams

FEW_ROWS = 48
"""Up to this many rows a CPU is faster with the product the other way round, the weight first: by
1.2 to 1.7 times for 16 and 32 rows in float32 and bfloat16, turning the result included."""


class Projection:
    """Linear maps of one input, their outputs side by side."""

    def __init__(self, *parts: nn.Module) -> None:
        self.parts = parts
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        plain = [part for part in parts if type(part) is Linear]
        if len(plain) == len(parts):
            self.weight = side_by_side([part.weight for part in plain])
            biases = [part.bias for part in plain if part.bias is not None]
            if biases:
                self.bias = side_by_side(biases) if len(biases) == len(plain) else None
                self.weight = self.weight if self.bias is not None else None

    def __call__(self, hidden_BD: Tensor) -> Tensor:
        if self.weight is not None:
            if hidden_BD.device.type == "cpu" and 1 < len(hidden_BD) <= FEW_ROWS:
                out_BN = torch.mm(self.weight, hidden_BD.t()).t()
                return out_BN.contiguous() if self.bias is None else out_BN + self.bias
            return F.linear(hidden_BD, self.weight, self.bias)
        if len(self.parts) == 1:
            out: Tensor = self.parts[0](hidden_BD)
            return out
        return torch.cat([part(hidden_BD) for part in self.parts], dim=-1)


class LayerPlan:
    """One layer's weights."""

    def __init__(self, layer: Layer, window: int) -> None:
        """`window`: tokens the layer sees, the newest included; 0 for all."""
        self.window = window
        attention, feed = layer.self_attn, layer.mlp
        self.norms, self.feed_norms = (detached(norms) for norms in layer.norms)
        self.shares = layer.shares
        self.qkv = Projection(attention.q_proj, attention.k_proj, attention.v_proj)
        norms = (attention.q_norm, attention.k_norm, attention.v_norm)
        self.q_norm, self.k_norm, self.v_norm = (
            None if norm is None else norm.weight.detach() for norm in norms
        )
        self.out = Projection(attention.o_proj)
        self.gate_up = Projection(feed.gate_proj, feed.up_proj)
        self.down = Projection(feed.down_proj)


class Plan:
    """Everything a decode step reads of a decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.architecture = decoder.architecture
        self.embedding = decoder.model.embed_tokens.weight.detach()
        layers = [layer for layer in decoder.model.layers if isinstance(layer, Layer)]
        a = self.architecture
        self.layers = [
            LayerPlan(layer, (a.sliding_window or 0) if index in a.windowed_layers else 0)
            for index, layer in enumerate(layers)
        ]
        self.final_norms = detached(decoder.model.final_norms)
        self.addresses = addresses(decoder)

    @property
    def is_current(self) -> bool:
        """Whether the decoder's parameters still live where this plan reads them."""
        return self.addresses == addresses(self.decoder)


def detached(norms: Norms) -> Norms:
    """The same weights without their graph."""
    return Norms(*(None if weight is None else weight.detach() for weight in norms))


def addresses(module: nn.Module) -> tuple[int, ...]:
    """Where each parameter's numbers are."""
    return tuple(parameter.data_ptr() for parameter in module.parameters())


def side_by_side(tensors: Sequence[Tensor]) -> Tensor | None:
    """One view over tensors that follow each other in memory along their first axis, or None."""
    first = tensors[0].detach()
    end = first.storage_offset()
    for tensor in tensors:
        apart = (
            tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or tensor.storage_offset() != end
            or tensor.shape[1:] != first.shape[1:]
            or not tensor.is_contiguous()
        )
        if apart:
            return None
        end += tensor.numel()
    rows = sum(tensor.shape[0] for tensor in tensors)
    return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())


def laid_side_by_side(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, those that a decode step reads together moved next to each other."""
    laid = dict(weights)
    for name in weights:
        for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            stem, found, kind = name.rpartition(f"{group[0]}.")
            if not found:
                continue
            members = [f"{stem}{part}.{kind}" for part in group]
            joined = torch.cat([laid.pop(member) for member in members])
            sizes = [weights[member].shape[0] for member in members]
            laid.update(zip(members, torch.split(joined, sizes), strict=True))
    return laid


class Ops(Protocol):
    """The parts of a step that are not matrix products: plain torch, or kernels."""

    def begin(self, rows: int, variant: Variant) -> None: ...
    def start(self, embedded_BD: Tensor) -> Streams: ...
    def read(self, streams: Streams, norms: Norms) -> tuple[Streams, Tensor]: ...
    def norm(self, update_BD: Tensor, weight_D: Tensor) -> Tensor: ...
    def attend(self, index: int, layer: LayerPlan, qkv_BN: Tensor) -> Tensor: ...
    def gated(self, gate_up_BN: Tensor) -> Tensor: ...
    def draw(self, logits_BV: Tensor, places: slice | Tensor, variant: Variant) -> Draw: ...
    def advance(
        self, drawn: Draw, places: slice | Tensor, ends: Tensor, *, is_fed: bool
    ) -> None: ...


class PlainOps:
    """The same parts in plain torch: the CPU's path, and the reference for the kernels.

    Works on the first slots, whose cache pages it reads through their tables.

    Where one page holds a whole row and slot i owns page i + 1, the pages of the first rows are
    one slice of the cache, and nothing has to be gathered.
    """

    def __init__(self, plan: Plan, cache: PagedCache, slots: Slots) -> None:
        self.plan, self.cache, self.slots = plan, cache, slots
        a = plan.architecture
        self.heads, self.kv_heads, self.head_dim = a.heads, a.kv_heads, a.head_dim
        self.eps = a.norm_eps
        self._add_norm = partial(add_norm, eps=a.norm_eps)
        self.is_dense = slots.width == 1
        capacity = slots.width * cache.page
        positions = torch.arange(capacity, device=slots.device)
        rotation = plan.decoder.rotation(positions.unsqueeze(0), plan.embedding.dtype)
        self._cos, self._sin = rotation.cos.squeeze((0, 1)), rotation.sin.squeeze((0, 1))
        self._column = positions

    def begin(self, rows: int, variant: Variant) -> None:
        """What all layers of one step share."""
        slots = self.slots
        lengths_B = slots.lengths[:rows]
        self.rows = rows
        self.cos_B1E = self._cos.index_select(0, lengths_B).unsqueeze(1)
        self.sin_B1E = self._sin.index_select(0, lengths_B).unsqueeze(1)
        page = self.cache.page
        if self.is_dense:
            longest = int(lengths_B.max()) + 1
            page_B = torch.arange(1, rows + 1, device=slots.device)
            even = int(lengths_B.min()) + 1 == longest
        else:
            longest, even = len(self._column), False
            place_B = (lengths_B // page).unsqueeze(1)
            page_B = slots.table[:rows].gather(1, place_B).squeeze(1).long()
            page_B = page_B * (slots.left[:rows] > 0)
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

    def start(self, embedded_BD: Tensor) -> Streams:
        """The residual streams of new tokens."""
        return self.plan.architecture.topology.start(embedded_BD)

    def read(self, streams: Streams, norms: Norms) -> tuple[Streams, Tensor]:
        """The streams with their update added, and what the next sublayer reads of them."""
        if streams.x is None and streams.y is not None:
            # One stream that is never normalised, as nearly all models have: no detour.
            y_BD, normed_BD = add_norm(streams.y, streams.update, norms.y_norm, self.eps)
            return Streams(None, y_BD), normed_BD
        return read_streams(streams, norms, self._add_norm)

    def norm(self, update_BD: Tensor, weight_D: Tensor) -> Tensor:
        """What a sublayer has computed, normed."""
        return self._add_norm(update_BD, None, weight_D)[1]

    def attend(self, index: int, layer: LayerPlan, qkv_BN: Tensor) -> Tensor:
        """Write the new tokens' keys and values, and attend to what the layer sees of their rows."""
        turned = self.heads + self.kv_heads
        heads_BHE = qkv_BN.view(self.rows, turned + self.kv_heads, self.head_dim)
        turn_BHE = heads_BHE[:, :turned]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = F.rms_norm(turn_BHE[:, : self.heads], (self.head_dim,), layer.q_norm, self.eps)
            key = F.rms_norm(turn_BHE[:, self.heads :], (self.head_dim,), layer.k_norm, self.eps)
            turn_BHE = torch.cat((query, key), dim=1)
        swapped = turn_BHE.roll(self.head_dim // 2, dims=-1)
        turn_BHE = torch.addcmul(turn_BHE * self.cos_B1E, swapped, self.sin_B1E)
        value_BHE = heads_BHE[:, turned:]
        if layer.v_norm is not None:
            value_BHE = F.rms_norm(value_BHE, (self.head_dim,), layer.v_norm, self.eps)
        key_lines, value_lines = self.cache.lines[index]
        key_lines.index_copy_(0, self.line_N, turn_BHE[:, self.heads :].reshape(-1, self.head_dim))
        value_lines.index_copy_(0, self.line_N, value_BHE.reshape(-1, self.head_dim))
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
        slots = self.slots
        return draw(logits_BV, slots.settings(places, variant), slots.next_uniforms(places))

    def advance(self, drawn: Draw, places: slice | Tensor, ends: Tensor, *, is_fed: bool) -> None:
        """Note what was drawn; rows that are not done go one token on.

        A row whose newest token was fed to the model has one more token in the cache.
        """
        s = self.slots
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
        table_BW = self.slots.table[: self.rows].long()
        rows_BWHSE = pages_PHSE[table_BW]
        return rows_BWHSE.transpose(1, 2).flatten(2, 3)


class Stepper:
    """Decodes with a plan's weights and an `Ops`' arithmetic."""

    def __init__(self, plan: Plan, ops: Ops, slots: Slots, ends: tuple[int, ...]) -> None:
        self.plan, self.ops, self.slots = plan, ops, slots
        self._ends = torch.tensor(ends, dtype=torch.long, device=slots.device)
        self._alternatives: dict[int, tuple[Tensor, Tensor]] = {}

    def decode(self, rows: int, variant: Variant) -> None:
        """One step; results go to the slots' outputs."""
        self._record(self._logits(rows, variant), slice(0, rows), variant, is_fed=True)
        self.slots.step.add_(1)

    def first(self, logits_NV: Tensor, places_N: Tensor, variant: Variant) -> None:
        """Draw the first token of rows that were just put into slots."""
        self.slots.step.zero_()
        self._record(logits_NV, places_N, variant, is_fed=False)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Next-token logits of final-normed hidden states."""
        return self.plan.decoder.logits(hidden_ND)

    def alternatives(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` likeliest tokens of each step of a burst, ids and log-probs, (K, B, count).

        Never replaced once made: captured graphs hold their addresses.
        """
        if count not in self._alternatives:
            shape = (*self.slots.out_tokens.shape, count)
            ids = torch.zeros(shape, dtype=torch.long, device=self.slots.device)
            self._alternatives[count] = (ids, torch.zeros(shape, device=self.slots.device))
        return self._alternatives[count]

    def _logits(self, rows: int, variant: Variant) -> Tensor:
        ops = self.ops
        ops.begin(rows, variant)
        streams = ops.start(F.embedding(self.slots.tokens[:rows], self.plan.embedding))
        for index, layer in enumerate(self.plan.layers):
            streams, normed = ops.read(streams, layer.norms)
            update = layer.out(ops.attend(index, layer, layer.qkv(normed)))
            streams = self._with(streams, update, layer.norms, layer.shares[0])
            streams, normed = ops.read(streams, layer.feed_norms)
            update = layer.down(ops.gated(layer.gate_up(normed)))
            streams = self._with(streams, update, layer.feed_norms, layer.shares[1])
        _, hidden = ops.read(streams, self.plan.final_norms)
        return self.logits(hidden)

    def _with(self, streams: Streams, update: Tensor, norms: Norms, share: float) -> Streams:
        """The streams with what a sublayer has computed; the next `read` adds it."""
        if norms.out_norm is not None:
            update = self.ops.norm(update, norms.out_norm)
        return Streams(streams.x, streams.y, update, share)

    def _record(
        self, logits_BV: Tensor, places: slice | Tensor, variant: Variant, *, is_fed: bool
    ) -> None:
        """Draw, note what was drawn, and move the rows that are not done one token on."""
        drawn = self.ops.draw(logits_BV, places, variant)
        if variant.alternatives:
            settings = self.slots.settings(places, variant)
            values, ids = top_logprobs(logits_BV, settings, variant.alternatives)
            out_ids, out_values = self.alternatives(variant.alternatives)
            self._write(out_ids, places, ids)
            self._write(out_values, places, values)
        self.ops.advance(drawn, places, self._ends, is_fed=is_fed)

    def _write(self, out_KBA: Tensor, places: slice | Tensor, values_BA: Tensor) -> None:
        """Into this step's line of an output, at these slots."""
        line = out_KBA.index_select(0, self.slots.step)
        line[0, places, : values_BA.shape[1]] = values_BA
        out_KBA.index_copy_(0, self.slots.step, line)


BUCKETS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Numbers of rows that have a graph; a batch runs in the smallest that holds it."""


def bucket(rows: int) -> int:
    """The smallest bucket that holds this many rows."""
    return next(size for size in BUCKETS if size >= rows)


class Graphs:
    """Captures the steps of every bucket when the first of a kind is asked for, and replays them.

    All at once, so that no later call has to wait for one.
    """

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._graphs: dict[tuple[int, Variant], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def decode(self, rows: int, variant: Variant) -> None:
        """One step over the first `rows` slots; `rows` is a bucket."""
        # What the kernels look up for each row anyway: its temperature, 0 included.
        variant = variant._replace(greedy=True, all_greedy=False, tempered=True)
        if (rows, variant) not in self._graphs:
            # The largest first: the others fit into the memory it leaves in the pool.
            for size in reversed(BUCKETS):
                if size <= self._stepper.slots.count:
                    self._graphs[size, variant] = self._capture(size, variant)
        self._graphs[rows, variant].replay()

    def _capture(self, rows: int, variant: Variant) -> torch.cuda.CUDAGraph:
        slots = self._stepper.slots
        current, side = torch.cuda.current_stream(), self._side
        side.wait_stream(current)
        # By hand: torch's own context collects garbage and empties the allocator's cache first,
        # a tenth of a second for each graph.
        with torch.cuda.stream(side):
            # A first run outside the graph compiles kernels and opens libraries; it must not count.
            kept = [tensor.clone() for tensor in slots.written]
            self._stepper.decode(rows, variant)
            for tensor, value in zip(slots.written, kept, strict=True):
                tensor.copy_(value)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._stepper.decode(rows, variant)
            finally:
                graph.capture_end()
        current.wait_stream(side)
        return graph
