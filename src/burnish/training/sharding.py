"""One model held by several processes together: each keeps a slice of every weight.

    shards = Shards.cut(module, world)
    with shards.whole():                 # every weight, on every process
        ...                              # samples, log-probs, evaluation, files
    with shards.training():              # a layer's weights while it computes
        shards.backward(loss(module, micro))

Torch's `fully_shard` cuts each parameter along its first axis. The slices are the float32 master
weights; gathered weights have the precision that the model computes in. Gradients are summed over
the processes, in float32, into slices. Within `whole` a pass is this process's own business.

Within `training` every pass is one of all processes, which gather each layer together. Their shares of
an update differ in number and kind of passes: one has a row less, another reads the reference between
forward and backward. So each says what it would do next, all do the highest of that, and whoever wanted
something else does it on a row of padding whose loss counts nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.lm.decoder import Decoder
from burnish.lm.head import HALF
from burnish.lm.media_model import MediaDecoder
from burnish.lm.model_input import ModelInput
from burnish.training.devices import World
from burnish.training.optimiser import spread


class Next(IntEnum):
    """What a process would do next; of several wishes all take the highest."""

    END = 0
    """Nothing: its share of the update is done."""
    BACKWARD = 1
    FORWARD = 2
    LOOK = 3
    """A forward pass without a graph."""


class Shards:
    def __init__(self, module: Any, blocks: list[Any], world: World, dtype: torch.dtype) -> None:
        self.module, self.blocks, self.world = module, blocks, world
        self.dtype = dtype
        """Of gathered weights, in which the model computes."""
        self._is_training = self._is_empty = self._has_graph = False
        self._whole = 0
        self._padding: list[Tensor] = []
        """Outputs of this process's empty passes, for the backward pass."""
        module.register_forward_pre_hook(self._before, prepend=True)
        # Torch finds the root at its first pass, and only then settles where slices lie.
        self._is_empty = True
        with torch.no_grad():
            self._empty_row()
        self._is_empty = False
        module.reset_iter_state()

    @classmethod
    def cut(cls, module: Any, world: World) -> Shards:
        """Slice the weights in place; those that are trained become float32."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise UserError(
                f"model.shard = 'full' needs torch 2.13 or newer; got {torch.__version__}"
            )
        # Nothing changes hidden states in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        dtype, blocks = module.head_weight.dtype, _blocks(module)
        mesh = init_device_mesh(module.head_weight.device.type, (world.size,))
        policy = MixedPrecisionPolicy(
            param_dtype=dtype,
            reduce_dtype=torch.promote_types(dtype, torch.float32),
            cast_forward_inputs=False,
        )
        seeds = {
            p: seed for seed, p in enumerate(p for p in module.parameters() if p.requires_grad)
        }
        for part in [*blocks, module]:
            for parameter in part.parameters():
                # One part at a time: all of them in float32 would need twice the memory.
                if parameter in seeds and parameter.dtype in HALF:
                    parameter.data = spread(parameter, seeds[parameter])
            fully_shard(part, mesh=mesh, mp_policy=policy)
        module.set_reduce_scatter_unused_params(True)
        for part in [*blocks, module]:  # sums, as `World.add` makes them, and no means
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        return cls(module, blocks, world, dtype)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, every process holds all weights; all processes enter together."""
        if not self._whole:
            self.module.set_reshard_after_forward(False)
            with self.world.at("gathering the weights"), torch.no_grad():
                for part in (self.module, *self.blocks):
                    part.unshard()
        self._whole += 1
        try:
            yield
        finally:
            self._whole -= 1
            if not self._whole:
                for block in self.blocks:
                    block.set_reshard_after_forward(True, recurse=False)
                self.module.reset_iter_state()
                if self._is_training:
                    self.module.unshard()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside, passes are those of all processes; head and embedding stay gathered."""
        self.module.set_reshard_after_backward(False, recurse=False)
        self.module.unshard()
        self._is_training = True
        try:
            yield
            self._agree(Next.END)
        finally:
            self._is_training = self._has_graph = False
            self._padding.clear()
            self.module.reset_iter_state()

    def backward(self, total: Tensor) -> None:
        """The backward pass of a loss, which need not come from the model."""
        if self._has_graph:
            self._agree(Next.BACKWARD)
            total = total + self._nothing()
            self._has_graph = False
        total.backward()  # type: ignore[no-untyped-call]

    def _before(self, module: nn.Module, inputs: object) -> None:
        """Ahead of a pass of the model: in training it is one of all processes."""
        if self._is_empty or self._whole or not self._is_training:
            return
        has_graph = torch.is_grad_enabled()
        self._agree(Next.FORWARD if has_graph else Next.LOOK)
        self._has_graph |= has_graph

    def _agree(self, wanted: Next) -> None:
        """Take part in what others do until all do what this one wants."""
        while (chosen := Next(self.world.highest(wanted))) is not wanted:
            self._take_part(chosen)

    def _take_part(self, chosen: Next) -> None:
        if chosen is Next.BACKWARD:
            self._nothing().backward()  # type: ignore[no-untyped-call]
            return
        self._is_empty = True
        try:
            with torch.set_grad_enabled(chosen is Next.FORWARD):
                hidden = self._empty_row()
        finally:
            self._is_empty = False
        if chosen is Next.FORWARD:
            self._padding.append(hidden)

    def _empty_row(self) -> Tensor:
        places = torch.arange(2, device=self.module.head_weight.device).unsqueeze(0)
        hidden: Tensor = self.module(ModelInput(torch.zeros_like(places), places))
        return hidden

    def _nothing(self) -> Tensor:
        """0 with the graphs of the empty passes."""
        found = torch.zeros((), device=self.module.head_weight.device)
        for hidden in self._padding:
            found = found + 0.0 * hidden.float().sum()
        self._padding.clear()
        return found


def _blocks(module: Any) -> list[Any]:
    """The layers that are gathered one after the other."""
    if isinstance(module, Decoder):
        return list(module.model.layers)
    name = type(module.model).__name__
    if isinstance(module, MediaDecoder):
        raise UserError(
            f"model.shard = 'full': {name} reads images or sounds, whose layers not every row passes; "
            "expected a model of text, or model.shard = 'none'"
        )
    kinds = set(module.model._no_split_modules or ())
    found = [part for part in module.modules() if type(part).__name__ in kinds]
    if not found:
        raise UserError(
            f"model.shard = 'full': transformers names no layers of {name} that may be apart; expected "
            "model.shard = 'none'"
        )
    return found
