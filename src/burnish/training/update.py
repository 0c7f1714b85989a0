"""One step's update: epochs, mini-batches and micro-batches whose gradients equal the big batch.

Rollouts that cannot move the weights are never computed: those a recipe masks, and those with
advantage 0 when no auxiliary term looks at them. They still count wherever the loss's denominator
counts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.config.schema import Update as UpdateConfig
from burnish.errors import GuardTripped
from burnish.policy.auxiliary import masked_nll
from burnish.policy.balance import gradient_overlap
from burnish.policy.batch import Advantages, LossBatch, Normaliser
from burnish.policy.contrast.pool import pool_packed
from burnish.policy.doors import loss
from burnish.policy.pieces import SFT
from burnish.policy.recipe import Recipe
from burnish.records import Trajectory
from burnish.seeds import Seeds
from burnish.training.forward import CausalModel, token_scores
from burnish.training.guards import Watch, check_tensors
from burnish.training.held_back import Measured
from burnish.training.imitation import Imitation
from burnish.training.monitors import Monitors
from burnish.training.optimiser import MasterAdamW
from burnish.training.packing import PackedBatch, scatter
from burnish.training.passes import Passes
from burnish.training.step_batch import StepBatch, normaliser_of, values_of

Reference = Callable[[], AbstractContextManager[CausalModel]]
"""Opens the frozen reference model."""


@dataclass
class Progress:
    """How far a step's update has come; what a replay needs to go on from there."""

    minibatch: int = 0
    """Mini-batches done, over all epochs."""
    old: dict[int, Tensor] = field(default_factory=dict)


class Found(NamedTuple):
    """What the passes of one mini-batch leave beside gradients."""

    monitors: Monitors
    watch: Watch
    shown: list[str]
    """Demonstrations that were imitated."""
    policy: list[Tensor]
    """Gradients of the rollouts alone, where they are to be compared with those of imitation."""


@dataclass
class Updater:
    """Turns a step's advantages into new weights."""

    passes: Passes
    """The model, where it is computed, and in how many pieces."""
    optimiser: MasterAdamW
    recipe: Recipe
    config: UpdateConfig
    temperature: float
    max_tokens: int
    seeds: Seeds
    reference: Reference | None = None
    imitation: Imitation | None = None
    """Demonstrations whose likelihood every update raises too."""
    meanwhile: Callable[[], None] | None = None
    """Work for the host while the device finishes its passes."""
    progress: Progress = field(default_factory=Progress)
    """Of the update under way, or of the last one."""
    entropies: dict[int, Tensor] = field(default_factory=dict)
    """Of each token, by rollout, as its first pass in the last update found them."""
    gradients: dict[str, float] = field(default_factory=dict)
    """Norms and cosine of the two losses' gradients in the last update, where they were compared."""

    def balance(self, step: int, values: Advantages) -> Measured | None:
        """The weight of imitation at a step, measured where that is due; None where it is given."""
        if self.imitation is None:
            return None
        self.passes.begin()
        return self.imitation.measure(self.passes, values.state.balance, step)

    def update(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        values: Advantages,
        rate: float,
        progress: Progress | None = None,
    ) -> tuple[dict[str, float], int]:
        """Metrics of the update, and how many optimiser steps were taken.

        A step in which no kept group has signal moves nothing, whatever its auxiliary terms; only
        imitation goes on. With `progress`, only what is left of an interrupted update is done.
        """
        self.progress = progress or Progress()
        self.entropies = {}
        self.gradients = {}
        self.passes.begin()
        has_signal = bool((values.keep_B & values.signal_B).any())
        if not has_signal and self.imitation is None:
            return {}, 0
        moving = self._moving(values) if has_signal else set()
        batch = StepBatch(step, trajectories, values)
        if self.config.epochs * self.config.minibatches > 1:
            self.progress.old = self.progress.old or self._old_logprobs(batch, moving)
            batch = StepBatch(step, trajectories, values, self.progress.old)
        monitors = Monitors()
        norms: list[float] = []
        done = self.progress.minibatch
        for members in self._minibatches(batch)[done:]:
            part = [i for i in members if i in moving]
            if part or self.imitation:
                everyone = self.recipe.aggregate.keep_denominator
                normaliser = normaliser_of(batch, members, everyone=everyone)
                found = self._accumulate(batch, part, normaliser)
                monitors.add(found.monitors)
                norms.append(self._apply(batch, part, rate, found))
            self.progress.minibatch += 1
        if norms:
            monitors.watch_weights(self.optimiser.weight_norm)
        metrics = monitors.read(norms, self.passes.world)
        if not math.isfinite(monitors.weight_norm):
            self._check_weights(step, batch.ids(sorted(moving)))
        return {**metrics, **self.gradients}, len(norms)

    def _check_weights(self, step: int, ids: Sequence[str]) -> None:
        """Trip where an update has left a weight that is not finite.

        Called where their norm is not: that overflows long before the weights do.
        """
        named = zip(self.optimiser.names, self.optimiser.masters, strict=True)
        check_tensors("weight", named, ids, step)

    # --- which rollouts, in which order

    def _moving(self, values: Advantages) -> set[int]:
        """Rollouts that can have a gradient."""
        keep = values.keep_B
        if all(isinstance(piece, SFT) for piece in self.recipe.auxiliary):
            keep = keep & (values.values_B.reshape(len(keep), -1) != 0).any(1)
        return set(keep.nonzero()[:, 0].tolist())

    def _minibatches(self, batch: StepBatch) -> list[list[int]]:
        """The mini-batches of all epochs, each of whole groups."""
        return [m for epoch in range(self.config.epochs) for m in self._deal(batch, epoch)]

    def _deal(self, batch: StepBatch, epoch: int) -> list[list[int]]:
        """Groups shuffled by the epoch's own seed when there is more than one mini-batch."""
        groups: dict[str, list[int]] = {}
        for i, trajectory in enumerate(batch.trajectories):
            groups.setdefault(trajectory.group, []).append(i)
        order = list(groups.values())
        count = min(self.config.minibatches, len(order))
        if count > 1:
            self.seeds.rng("minibatch", batch.step, epoch).shuffle(order)
        return [[i for group in order[k::count] for i in group] for k in range(count)]

    # --- forward and backward

    def _accumulate(self, batch: StepBatch, part: Sequence[int], normaliser: Normaliser) -> Found:
        """Gradient sums of one mini-batch, in as many passes as the memory asks for."""

        def work() -> Found:
            self.optimiser.clear()
            found = Found(Monitors(), Watch(batch.step), [], [])
            for packed in self.passes.cut(batch.trajectories, part):
                self._backward(batch, packed, normaliser, found)
            if self.imitation:
                if self._compares(self.imitation, batch.step):
                    found.policy.extend(self.optimiser.copy_sums())
                self._imitate(self.imitation, batch, found)
            return found

        return self.passes.within_memory(work, self.optimiser.clear)

    def _backward(
        self, batch: StepBatch, packed: PackedBatch, normaliser: Normaliser, found: Found
    ) -> None:
        """One pass; nothing in it waits for the device."""
        members = packed.members
        ids = batch.ids(members)
        scores = token_scores(
            self.passes.model, packed, self.temperature, entropy_gradient=self.recipe.needs_entropy
        )
        current = scores.logp_BT.detach()
        found.watch.rows("logprob", "logprobs", current, ids)
        old = current
        if batch.old:
            old = scatter(torch.cat([batch.old[i] for i in members]), packed)
        values = values_of(batch, packed, current.dtype, self.passes.device)
        out = loss(
            self.recipe,
            LossBatch(
                logp_BT=scores.logp_BT,
                old_logp_BT=old,
                mask_BT=values.counted_BT,
                advantages_B=values.advantages_B,
                low_B=values.low_B,
                high_B=values.high_B,
                keep_B=values.keep_B,
                normaliser=normaliser,
                ref_logp_BT=self._reference_logprobs(packed),
                entropy_BT=scores.entropy_BT,
                max_tokens=self.max_tokens,
                buckets_B=values.buckets_B,
            ),
        )
        found.watch.tensors("loss", [("loss", out.total.detach()), *out.parts.items()], ids)
        out.total.backward()  # type: ignore[no-untyped-call]
        self.optimiser.collect()
        entropy_BT = scores.entropy_BT.detach()
        found.monitors.note(out, old, entropy_BT, packed)
        for row, i in enumerate(members):
            self.entropies.setdefault(i, entropy_BT[row])

    def _imitate(self, imitation: Imitation, batch: StepBatch, found: Found) -> None:
        """Gradients of the demonstrations' negative log-prob, beside those of the rollouts."""
        updates = self.config.epochs * self.config.minibatches
        shown = imitation.take(batch.step * updates + self.progress.minibatch)
        tokens = sum(t.trained_tokens for t in shown)
        for packed in self.passes.cut(shown):
            ids = [shown[i].id for i in packed.members]
            found.shown.extend(ids)
            logp_BT = token_scores(self.passes.model, packed, 1.0).logp_BT
            nll = masked_nll(logp_BT, packed.trained_BT, tokens=tokens)
            term = imitation.coefficient(batch.step, batch.values.state.balance) * nll
            found.watch.rows("logprob", "logprobs", logp_BT.detach(), ids)
            found.watch.tensors("loss", [("sft", term.detach())], ids)
            term.backward()  # type: ignore[no-untyped-call]
            self.optimiser.collect()
            found.monitors.add_term("sft", term.detach())

    def _apply(self, batch: StepBatch, part: Sequence[int], rate: float, found: Found) -> float:
        """Add gradients over processes, guard everything, take the optimiser step."""
        self.passes.world.add(self.optimiser.sums)
        norm = self.optimiser.gradient_norm()
        ids = batch.ids(part) + found.shown

        def name_the_gradient() -> None:
            named = zip(self.optimiser.names, self.optimiser.sums, strict=True)
            check_tensors("gradient", named, ids, batch.step)

        if self.meanwhile is not None:
            self.meanwhile()
        try:
            read = found.watch.settle(norm, name_the_gradient, ids)
        except GuardTripped:
            # The cause may be the update before this one: then the weight that it broke is named.
            if self.progress.minibatch:
                self._check_weights(batch.step, ids)
            raise
        if self.imitation and found.policy:
            self._compare(self.imitation, batch, found.policy)
        self.optimiser.step(rate, norm)
        return read

    def _compares(self, imitation: Imitation, step: int) -> bool:
        """Whether the update under way is the first of a step that compares gradients."""
        every = imitation.piece.gradients_every
        return every > 0 and step % every == 0 and self.progress.minibatch == 0

    def _compare(self, imitation: Imitation, batch: StepBatch, policy: list[Tensor]) -> None:
        """Norms and cosine of the gradients of the rollouts' loss and of the demonstrations' NLL.

        What imitation added is the difference of the sums after and before it: the sums that the
        optimiser reads stay as they are, to the bit.
        """
        self.passes.world.add(policy)
        added = (total - part for total, part in zip(self.optimiser.sums, policy, strict=True))
        found = gradient_overlap(policy, added)
        self.gradients = {"gradient/policy_norm": found.first_norm}
        coefficient = imitation.coefficient(batch.step, batch.values.state.balance)
        if coefficient:
            self.gradients["gradient/sft_norm"] = found.second_norm / coefficient
        if found.cosine is not None:
            self.gradients["gradient/cosine"] = found.cosine

    def token_entropies(self, trajectories: Sequence[Trajectory]) -> dict[int, list[float]]:
        """The entropy at each trained token of the rollouts that moved the last update."""
        counts = [trajectories[i].trained_tokens for i in self.entropies]
        rows = [row[:count] for row, count in zip(self.entropies.values(), counts, strict=True)]
        # One transfer for all of them.
        whole = torch.cat(rows).double().cpu().round(decimals=4) if rows else torch.empty(0)
        own = dict(zip(self.entropies, torch.split(whole, counts), strict=True))
        self.entropies = {}
        return {i: row.tolist() for i, row in sorted(self.passes.world.merge(own).items())}

    @torch.no_grad()
    def pooled(self, trajectories: Sequence[Trajectory]) -> Tensor:
        """The mean of the last layer's states over each rollout's trained tokens, (B, D) float32."""

        def work() -> dict[int, Tensor]:
            found: dict[int, Tensor] = {}
            for packed in self.passes.cut(trajectories):
                hidden_RSD = self.passes.model(packed.ids_RS, packed.positions_RS, packed.mask_RSS)
                hidden_ND = hidden_RSD.flatten(0, 1).index_select(0, packed.place_N)
                pooled = pool_packed(hidden_ND, packed.rollout_N, len(packed.members))
                found |= zip(packed.members, pooled.cpu(), strict=True)
            return found

        merged = self.passes.world.merge(self.passes.within_memory(work))
        return torch.stack([merged[i] for i in range(len(trajectories))])

    @torch.no_grad()
    def _old_logprobs(self, batch: StepBatch, moving: set[int]) -> dict[int, Tensor]:
        """The trainer's own log-probs before the first update of the step.

        Packed as the first epoch will pack them: in half precision a number depends on its
        neighbours in a matrix product, and the first ratio is to be exactly 1.
        """

        def work() -> dict[int, Tensor]:
            found: dict[int, Tensor] = {}
            for members in self._deal(batch, 0):
                here = [i for i in members if i in moving]
                for packed in self.passes.cut(batch.trajectories, here):
                    logp_BT = token_scores(self.passes.model, packed, self.temperature).logp_BT
                    for row, i in enumerate(packed.members):
                        found[i] = logp_BT[row, : len(batch.trajectories[i].logprobs)]
            return found

        return self.passes.world.merge(self.passes.within_memory(work))

    @torch.no_grad()
    def _reference_logprobs(self, packed: PackedBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with self.reference() as model:
            return token_scores(model, packed, self.temperature).logp_BT
