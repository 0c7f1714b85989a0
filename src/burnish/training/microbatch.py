"""Trajectories in micro-batches that fit the device, and what happens where one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from burnish.errors import UserError
from burnish.lm.hardware import held_text, is_device_full
from burnish.records import MediaPart, Trajectory
from burnish.training.budget import pass_tokens
from burnish.training.devices import World
from burnish.training.forecast import LEAST_BUDGET
from burnish.training.forward import CausalModel
from burnish.training.packing import PackedBatch, make_rows, micro_batches, pack

Result = TypeVar("Result")


def prefetch_media(model: Any, media: Sequence[Sequence[MediaPart]]) -> None:
    """Have a model's threads process coming images and sounds while the device computes."""
    if any(media) and hasattr(model, "prefetch"):
        model.prefetch(media)


@dataclass
class MicroBatcher:
    """Cuts trajectories into packed micro-batches for one model."""

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
    _has_released: bool = field(default=False, init=False)
    """Since `begin`; the sampler takes its memory again when it next works."""
    _releases: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.tokens = self.tokens or pass_tokens(self.model, self.device)

    def begin(self) -> None:
        """A new update: the sampler may hold memory again."""
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
        prefetch_media(self.model, [row.media for group in mine for row in group])
        return [pack(group, trajectories, self.device) for group in mine]

    def within_memory(
        self, work: Callable[[], Result], clear: Callable[[], None] | None = None
    ) -> Result:
        """Do the work; on a full device all of it again, with more memory or in smaller passes.

        `clear` lets go of what the failed work had gathered.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_device_full(error):
                    raise
                can_release = self.release is not None and not self._has_released
                if not can_release and self.tokens // 2 < LEAST_BUDGET:
                    raise UserError(
                        f"out of device memory with micro-batches of {self.tokens} tokens"
                        f"{held_text()}; what saves most, in order: "
                        f"{self.advise(self.tokens) or 'a smaller model.path'}"
                    ) from error
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
