"""The optimiser steps of one training step, for any algorithm: accumulation, guards, gradients.

An update is cut into micro-batches that fit the device; their gradients add up to that of the whole,
however it is cut and over however many processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from burnish.activity import moved
from burnish.errors import GuardTripped, UserError
from burnish.lm.hardware import held_text, is_device_full
from burnish.models.norm_report import LayerWatch
from burnish.records import Trajectory
from burnish.training.algorithm import AnyAlgorithm, Loss, StepResult
from burnish.training.devices import World
from burnish.training.forecast import LEAST_BUDGET, pass_tokens
from burnish.training.guards import Watch, check_tensors
from burnish.training.optimiser import MasterAdamW
from burnish.training.packing import CausalModel, PackedBatch, make_rows, micro_batches, pack
from burnish.training.sharding import Shards

Result = TypeVar("Result")


@dataclass
class MicroBatcher:
    model: CausalModel
    device: torch.device
    world: World = field(default_factory=World)
    share_prompts: bool = True
    tokens: int = 0
    """Tokens of one pass, 0 for what fits; halved when the device runs out of memory."""
    release: Callable[[], None] | None = None
    """Gives back what the sampler holds on the device; asked for before passes are made smaller."""
    advise: Callable[[int], str] = lambda tokens: ""
    """What would free memory with passes of so many tokens, for the message where nothing helps."""
    shards: Shards | None = None
    """Where the processes hold the model together."""
    _has_released: bool = field(default=False, init=False)
    """Since `begin`; the sampler takes its memory again when it next works."""
    _releases: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.tokens = self.tokens or pass_tokens(self.model, self.device)

    def begin(self) -> None:
        self._has_released = False

    def split(
        self,
        trajectories: Sequence[Trajectory],
        part: Sequence[int] | None = None,
        tokens: int | None = None,
    ) -> list[PackedBatch]:
        """This process's micro-batches of the given rollouts, by position; without `part`, of all."""
        part = range(len(trajectories)) if part is None else part
        chosen = [trajectories[i] for i in part]
        # A model with a state that no mask hides computes every rollout in a row of its own.
        share = self.share_prompts and getattr(self.model, "packs", True)
        rows = make_rows(chosen, share)
        rows = [replace(row, members=tuple(part[m] for m in row.members)) for row in rows]
        # Rows are shared and not micro-batches: processes may come to differ in their tokens.
        mine = micro_batches(self.world.share(rows), tokens or self.tokens)
        media = [row.media for group in mine for row in group]
        if any(media) and hasattr(self.model, "prefetch"):  # while the device computes
            self.model.prefetch(media)
        return [pack(group, trajectories, self.device) for group in mine]

    def within_memory(
        self, work: Callable[[], Result], clear: Callable[[], None] | None = None
    ) -> Result:
        """Do the work; on a full device all of it again, with more memory or in smaller passes.

        `clear` lets go of what the failed work had gathered. All weights are at hand.
        """
        with self.whole():
            return self._repeated(work, clear)

    def whole(self) -> AbstractContextManager[None]:
        """Inside, this process holds every weight of the model; all processes enter together."""
        return nullcontext() if self.shards is None else self.shards.whole()

    def in_step(self, work: Callable[[], Result], clear: Callable[[], None]) -> Result:
        """The passes of an update, together with the other processes where they share the model.

        A device that is then full ends the run: the others are within the same pass.
        """
        if self.shards is None:
            return self._repeated(work, clear)
        if self.release is not None:
            self.release()
        try:
            with self.shards.training():
                return work()
        except RuntimeError as error:
            if not is_device_full(error):
                raise
            raise self._full(f"update.micro_batch_tokens={self.tokens // 2}, ") from error

    def _full(self, first: str = "") -> UserError:
        return UserError(
            f"out of device memory with micro-batches of {self.tokens} tokens"
            f"{held_text()}; what saves most, in order: {first}"
            f"{self.advise(self.tokens) or 'a smaller model.path'}"
        )

    def _repeated(self, work: Callable[[], Result], clear: Callable[[], None] | None) -> Result:
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_device_full(error):
                    raise
                can_release = self.release is not None and not self._has_released
                if not can_release and self.tokens // 2 < LEAST_BUDGET:
                    raise self._full() from error
            # Outside the handler: the error's frames hold the tensors that did not fit.
            if clear is not None:
                clear()
            self._free_memory()

    def _free_memory(self) -> None:
        """Ask for the sampler's memory once an update, then halve the token budget.

        An update after the first one to ask does both, or every step would begin with a failure
        and end with a sampler that has to be built again.
        """
        is_first = self.release is not None and not self._has_released
        if self.release is not None and is_first:
            self.release()
            self._has_released = True
            self._releases += 1
        if not is_first or (self._releases > 1 and self.tokens // 2 >= LEAST_BUDGET):
            self.tokens //= 2
        torch.cuda.empty_cache()


@dataclass
class Totals:
    losses: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    largest: dict[str, Tensor] = field(default_factory=dict)

    def note(self, loss: Loss) -> None:
        losses = {"total": loss.total.detach(), **loss.parts}
        self.add(Totals(losses, dict(loss.sums), dict(loss.largest)))

    def add(self, other: Totals) -> None:
        _add(self.losses, other.losses)
        _add(self.sums, other.sums)
        for name, value in other.largest.items():
            value = value.double()
            before = self.largest.get(name)
            self.largest[name] = value if before is None else torch.maximum(before, value)

    def read(self, norms: Sequence[float], weight_norm: Tensor, world: World) -> StepResult:
        """The numbers of all processes, in one transfer from the device."""
        tables = (self.losses, self.sums, self.largest, {"weights": weight_norm})
        flat = [value.double().reshape(-1) for table in tables for value in table.values()]
        shapes = [value.shape for table in tables for value in table.values()]
        sizes = [value.numel() for value in flat]
        numbers = iter(torch.split(torch.cat(flat).cpu(), sizes))
        laid = iter(shapes)
        losses, sums, largest, weights = (
            {name: next(numbers).reshape(next(laid)) for name in table} for table in tables
        )
        everyone = world.gather([(losses, sums, largest)], world.size)
        result = Totals()
        for one in everyone:
            result.add(Totals(*one))
        updates = max(len(norms), 1)
        return StepResult(
            updates=len(norms),
            losses={name: float(value) / updates for name, value in result.losses.items()},
            sums=result.sums,
            largest={name: float(value) for name, value in result.largest.items()},
            gradient_norm=sum(norms) / updates,
            weight_norm=float(weights["weights"]),
        )


def _add(sums: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        sums[name] = sums[name] + value.double() if name in sums else value.double()


@dataclass
class Updater:
    algorithm: AnyAlgorithm
    optimiser: MasterAdamW
    batches: MicroBatcher
    done: int = 0
    """Updates of the step under way that are done; a replay goes on from there."""
    layers: LayerWatch | None = None
    """Is shown the gradients of every update, where layers are measured."""

    def run(self, step: int, batch: Any, rate: float, skip: int = 0) -> StepResult:
        """All updates of a step but the first `skip`, at one learning rate."""
        self.done = skip
        self.batches.begin()
        totals = Totals()
        norms: list[float] = []
        ids: list[str] = []
        with self.batches.whole():
            updates = self.algorithm.updates(batch)[skip:]
        for update in updates:
            with self.batches.world.at("the update"):
                found, watch, ids = self._accumulate(step, update)
                totals.add(found)
                norms.append(self._apply(step, update, rate, watch, ids, found.sums))
            self.done += 1
        if not norms:
            return StepResult()
        result = totals.read(norms, self.optimiser.weight_norm, self.batches.world)
        if not math.isfinite(result.weight_norm):
            self._check_weights(step, ids)
        return result

    def _accumulate(self, step: int, update: Any) -> tuple[Totals, Watch, list[str]]:
        shards = self.batches.shards

        def work() -> tuple[Totals, Watch, list[str]]:
            self.optimiser.clear()
            totals, watch, ids = Totals(), Watch(step), list[str]()
            for micro in self.algorithm.micro_batches(update, self.batches.tokens):
                moved()
                loss = self.algorithm.loss(self.batches.model, micro)
                for name, values in loss.rows.items():
                    watch.rows("logprob", name, values, loss.ids)
                for name, values in loss.critic_rows.items():
                    watch.rows("value", name, values, loss.ids)
                named = [*loss.parts.items(), ("loss", loss.total.detach())]
                watch.tensors("loss", named, loss.ids)
                if shards is None:
                    loss.total.backward()  # type: ignore[no-untyped-call]
                else:
                    shards.backward(loss.total)
                self.optimiser.collect()
                totals.note(loss)
                ids.extend(loss.ids)
            return totals, watch, ids

        return self.batches.in_step(work, self.optimiser.clear)

    def _apply(
        self,
        step: int,
        update: Any,
        rate: float,
        watch: Watch,
        ids: Sequence[str],
        found: Mapping[str, Tensor],
    ) -> float:
        sums = self.optimiser.sums
        self.batches.world.add(self.optimiser.own_sums)
        norm = self.optimiser.gradient_norm()

        def name_the_gradient() -> None:
            named = zip(self.optimiser.names, self.optimiser.sums, strict=True)
            check_tensors("gradient", named, ids, step)

        if self.batches.device.type == "cuda":
            self.algorithm.meanwhile()
        try:
            read = watch.settle(norm, name_the_gradient, ids)
        except GuardTripped:
            # The cause may be the update before this one: then the weight that it broke is named.
            if self.done:
                self._check_weights(step, ids)
            raise
        self.algorithm.inspect(step, found, ids)
        if self.layers is not None:
            self.layers.note_gradients(zip(self.optimiser.names, sums, strict=True))
        self.algorithm.gradients(update, sums)
        self.optimiser.step(rate, norm)
        return read

    def _check_weights(self, step: int, ids: Sequence[str]) -> None:
        """Trip where an update has left a weight that is not finite.

        Called where their norm is not: that overflows long before the weights do.
        """
        named = zip(self.optimiser.names, self.optimiser.masters, strict=True)
        check_tensors("weight", named, ids, step)
