"""The update of policy optimisation: mini-batches, the recipe's loss, and what is seen beside it.

Rollouts that cannot move the weights are never computed: those a recipe masks, and those with
advantage 0 when no auxiliary term looks at them. They still count wherever the loss's denominator
counts them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.config.schema import Update as UpdateConfig
from burnish.lm.scalar_head import ScalarHead
from burnish.policy import SFT, SeparateCritic
from burnish.policy.balance import BalanceState, gradient_overlap
from burnish.policy.batch import Advantages, Loss as PolicyLoss, LossBatch, Normaliser
from burnish.policy.compute import loss as policy_loss
from burnish.policy.contrast.component import pool_packed
from burnish.policy.ppo import critic_loss
from burnish.policy.recipe import Recipe
from burnish.policy.trust_region import bucket_shares
from burnish.records import Trajectory
from burnish.seeds import Seeds
from burnish.training.algorithm import Algorithm, Loss, StepResult
from burnish.training.algorithms.sft import SftTerm, Shown, show
from burnish.training.critic import CriticModel, padded, token_tables
from burnish.training.guards import trip_mismatch
from burnish.training.packing import CausalModel, PackedBatch, scatter, to_device, token_scores
from burnish.training.update import MicroBatcher
from burnish.training.weighing import CriticReading, Marks, mark_rollouts, packed_marks

MARKED = {"surrogate": "policy/marked_share", "tokens": "policy/selected_share"}
"""Slot -> metric of the share of tokens that its component marks."""
Reference = Callable[[], AbstractContextManager[CausalModel]]
"""Opens the frozen reference model."""


logger = logging.getLogger(__name__)


@dataclass
class PolicyBatch:
    """The rollouts of a step with their advantages; `members` are those of one update."""

    step: int
    trajectories: Sequence[Trajectory]
    values: Advantages
    balance: Mapping[str, float] = field(default_factory=dict)
    old: Mapping[int, Tensor] = field(default_factory=dict)
    """Log-probs before the first update, by rollout; empty when there is only one update."""
    members: Sequence[int] = ()
    normaliser: Normaliser | None = None
    number: int = 0
    """Of the mini-batch, over all epochs."""
    marks: Marks = field(default_factory=dict)
    """Tokens that components marked in the whole mini-batch."""


class Rolled(NamedTuple):
    packed: PackedBatch
    update: PolicyBatch


class Valued(NamedTuple):
    packed: PackedBatch
    update: PolicyBatch


Micro = Rolled | Valued | Shown


@dataclass(eq=False)
class PolicyUpdate(Algorithm[PolicyBatch, Micro]):
    batches: MicroBatcher
    recipe: Recipe
    config: UpdateConfig
    seeds: Seeds
    _: KW_ONLY
    temperature: float
    max_tokens: int
    reference: Reference | None = None
    imitation: SftTerm | None = None
    """Demonstrations whose likelihood every update raises too."""
    copy_gradients: Callable[[], list[Tensor]] = list
    mismatch_stop: float = 0.0
    """Nats between the sampler's and the trainer's log-probs of a token, on average, above which no
    update is taken; 0: any distance will do."""
    value_head: ScalarHead | None = None
    """Of a critic on the policy's own states."""
    critic: CriticModel | None = None
    """One with states of its own."""
    entropies: dict[int, Tensor] = field(default_factory=dict, init=False)
    """Of each token, by rollout, as its first pass in the last step found them."""
    coefficient: float = field(default=0.0, init=False)
    rollout_sums: list[Tensor] = field(default_factory=list, init=False)
    """Gradients of the rollouts alone, where they are to be compared with those of imitation."""
    has_told_cut: bool = field(default=False, init=False)
    """A line has said that a step has fewer groups than mini-batches were asked for."""
    overlap: dict[str, float] = field(default_factory=dict, init=False)
    """Norms and cosine of the two losses' gradients, where they were compared."""

    @property
    def has_critic(self) -> bool:
        return self.value_head is not None or self.critic is not None

    def hold(self, values: Advantages, balance: BalanceState) -> Advantages:
        return replace(values, state=replace(values.state, balance=balance))

    # --- which rollouts, in which order

    def updates(self, batch: PolicyBatch) -> list[PolicyBatch]:
        """A step in which no kept group has signal moves nothing; only imitation goes on."""
        self.entropies, self.overlap = {}, {}
        if self.imitation is not None:
            measured = self.imitation.measure(self.batches, batch.values.state.balance, batch.step)
            if measured is not None:
                batch.values = self.hold(batch.values, measured.state)
                batch.balance = measured.metrics()
        has_signal = bool((batch.values.keep_B & batch.values.signal_B).any())
        if self.has_critic:  # a critic learns from every answer
            has_signal = bool(batch.values.keep_B.any())
        if not has_signal and self.imitation is None:
            return []
        # Rollouts that can have a gradient, or tokens that others are compared with.
        keep = batch.values.keep_B & has_signal
        has_others = bool(self.recipe.token_markers) or self.has_critic
        if not has_others and all(isinstance(term, SFT) for term in self.recipe.auxiliary):
            keep = keep & (batch.values.values_B.reshape(len(keep), -1) != 0).any(1)
        moving = set(keep.nonzero()[:, 0].tolist())
        config = self.config
        if config.epochs * config.minibatches > 1 and not batch.old:
            batch.old = self._old_logprobs(batch, moving)
        everyone = self.recipe.aggregate.keep_denominator
        dealt = (part for epoch in range(config.epochs) for part in self._deal(batch, epoch))
        return [
            replace(
                batch,
                members=[i for i in part if i in moving],
                normaliser=_normaliser(batch, part, everyone=everyone),
                number=number,
            )
            for number, part in enumerate(dealt)
            if self.imitation is not None or any(i in moving for i in part)
        ]

    def _deal(self, batch: PolicyBatch, epoch: int) -> list[list[int]]:
        """Mini-batches of whole groups, shuffled by the epoch's own seed when there are several."""
        groups: dict[str, list[int]] = {}
        for i, trajectory in enumerate(batch.trajectories):
            groups.setdefault(trajectory.group, []).append(i)
        order = list(groups.values())
        count = min(self.config.minibatches, len(order))
        if count < self.config.minibatches and not self.has_told_cut:
            self.has_told_cut = True
            logger.warning(
                "update.minibatches is %d, and step %d has %d groups, which stay whole: it makes %d "
                "updates an epoch. Raise rollout.prompts or lower update.minibatches.",
                *(self.config.minibatches, batch.step + 1, count, count),
            )
        if count > 1:
            self.seeds.rng("minibatch", batch.step, epoch).shuffle(order)
        return [[i for group in order[k::count] for i in group] for k in range(count)]

    # --- forward passes

    def micro_batches(self, batch: PolicyBatch, tokens: int) -> Iterator[Micro]:
        if self.recipe.token_markers and batch.members and not batch.marks:
            measured = self._measure(batch, [batch.members])
            seed = self.seeds.for_("tokens", batch.step, batch.number)
            batch.marks = mark_rollouts(self.recipe, batch.values, measured, batch.old, seed)
        for packed in self.batches.split(batch.trajectories, batch.members, tokens):
            yield Rolled(packed, batch)
        if self.critic is not None and batch.members:
            # Also where the passes of a first attempt did not fit: what they left is forgotten.
            self.critic.optimiser.clear()
            cut = self.critic.batches(self.batches)
            for packed in cut.split(batch.trajectories, batch.members, tokens):
                yield Valued(packed, batch)
                self.critic.optimiser.collect()
        if self.imitation is None:
            return
        self.rollout_sums = []
        if batch.number == 0 and self.imitation.compares(batch.step):
            self.rollout_sums = self.copy_gradients()
        self.coefficient = self.imitation.coefficient(batch.step, batch.values.state.balance)
        config = self.config
        update = batch.step * config.epochs * config.minibatches + batch.number
        shown = self.imitation.experts.take(update, self.imitation.term.batch)
        yield from show(self.batches, shown, tokens)

    def loss(self, model: Any, micro: Micro) -> Loss:
        if isinstance(micro, Valued):
            return self._critic_loss(micro)
        if isinstance(micro, Shown):
            assert self.imitation is not None
            return self.imitation.loss(model, micro, self.coefficient)
        packed, batch = micro
        recipe = self.recipe
        scores = token_scores(
            model,
            packed,
            self.temperature,
            entropy_gradient=recipe.needs_entropy,
            head=self.value_head,
        )
        current = scores.logp_BT.detach()
        old = current
        if batch.old:
            old = scatter(torch.cat([batch.old[i] for i in packed.members]), packed)
        reference = None
        if self.reference is not None and recipe.has_kl_term:
            with torch.no_grad(), self.reference() as frozen:
                reference = token_scores(frozen, packed, self.temperature).logp_BT
        corrects = recipe.needs_sampler_logprobs
        out = policy_loss(
            recipe,
            LossBatch(
                logp_BT=scores.logp_BT,
                old_logp_BT=old,
                normaliser=batch.normaliser,
                ref_logp_BT=reference,
                entropy_BT=scores.entropy_BT,
                max_tokens=self.max_tokens,
                sampler_logp_BT=scatter(packed.sampled_N, packed) if corrects else None,
                marks=packed_marks(batch.marks, packed, self.batches.device),
                entropy_coefficient=self.entropy_coefficient(batch.values),
                values_BT=scores.value_BT,
                **_values(batch, packed, current.dtype, self.batches.device),
            ),
        )
        entropy_BT = scores.entropy_BT.detach()
        for row, i in enumerate(packed.members):
            self.entropies.setdefault(i, entropy_BT[row])
        ids = [batch.trajectories[i].id for i in packed.members]
        sums, largest = _monitors(out, old, entropy_BT, packed)
        said = dict[str, Tensor]()
        if scores.value_BT is not None:
            said["the critic's value"] = scores.value_BT.detach()
        return Loss(out.total, ids, out.parts, {"logprobs": current}, sums, largest, said)

    def _critic_loss(self, micro: Valued) -> Loss:
        packed, batch = micro
        settings = self.recipe.critic
        assert self.critic is not None
        assert isinstance(settings, SeparateCritic)
        values_BT = self.critic.values(packed)
        known = _values(batch, packed, values_BT.dtype, self.batches.device)
        total = critic_loss(
            values_BT,
            known["old_values_BT"],
            known["returns_BT"],
            known["mask_BT"],
            settings.clip,
            keep_B=known["keep_B"],
            normaliser=batch.normaliser,
            keep_denominator=self.recipe.aggregate.keep_denominator,
        )
        ids = [batch.trajectories[i].id for i in packed.members]
        said = {"the critic's value": values_BT.detach()}
        return Loss(total, ids, {"value": total.detach()}, critic_rows=said)

    def _old_logprobs(self, batch: PolicyBatch, moving: set[int]) -> dict[int, Tensor]:
        """The trainer's own log-probs before the first update of the step.

        Packed as the first epoch will pack them: in half precision a number depends on its
        neighbours in a matrix product, and the first ratio is to be exactly 1.
        """
        parts = [[i for i in part if i in moving] for part in self._deal(batch, 0)]
        return {i: scores_2T[0] for i, scores_2T in self._measure(batch, parts).items()}

    @torch.no_grad()
    def _measure(self, batch: PolicyBatch, parts: Sequence[Sequence[int]]) -> dict[int, Tensor]:
        """Log-prob and entropy of each trained token under the current weights, (2, T) a rollout."""

        def work() -> dict[int, Tensor]:
            found: dict[int, Tensor] = {}
            for members in parts:
                for packed in self.batches.split(batch.trajectories, members):
                    scores = token_scores(self.batches.model, packed, self.temperature)
                    scores_2BT = torch.stack([scores.logp_BT, scores.entropy_BT])
                    for row, i in enumerate(packed.members):
                        found[i] = scores_2BT[:, row, : len(batch.trajectories[i].logprobs)]
            return found

        return self.batches.world.merge(self.batches.within_memory(work))

    def entropy_coefficient(self, values: Advantages) -> float | None:
        term = self.recipe.adaptive_entropy
        return None if term is None else term.current(values.state.entropy)

    @torch.no_grad()
    def pooled(self, trajectories: Sequence[Trajectory]) -> Tensor:
        """The mean of the last layer's states over each rollout's trained tokens, (B, D) float32."""
        batches = self.batches

        def work() -> dict[int, Tensor]:
            found: dict[int, Tensor] = {}
            for packed in batches.split(trajectories):
                hidden_RSD = batches.model(packed.inputs)
                hidden_ND = hidden_RSD.flatten(0, 1).index_select(0, packed.place_N)
                pooled = pool_packed(hidden_ND, packed.rollout_N, len(packed.members))
                found |= zip(packed.members, pooled.cpu(), strict=True)
            return found

        return batches.world.stacked(batches.within_memory(work), len(trajectories))

    @torch.no_grad()
    def read_critic(self, trajectories: Sequence[Trajectory]) -> CriticReading:
        """The critic's value before each trained token, and the KL that the reward loses."""
        batches, critic, head = self.batches, self.critic, self.value_head
        has_kl = self.recipe.gae is not None and self.recipe.gae.kl != 0

        def kl(packed: PackedBatch, logp_BT: Tensor) -> Tensor:
            assert self.reference is not None
            with self.reference() as model:
                return logp_BT - token_scores(model, packed, self.temperature).logp_BT

        own_names = [*(["values"] if critic is None else []), *(["kl"] if has_kl else [])]

        def read(packed: PackedBatch) -> list[Tensor]:
            """Of the policy's own pass, `own_names`: the shared head's values, the KL."""
            if not has_kl:
                assert head is not None, "gae without a critic is refused"
                hidden_ND = batches.model(packed.inputs).flatten(0, 1)
                return [scatter(head(hidden_ND.index_select(0, packed.source_N)), packed)]
            scores = token_scores(batches.model, packed, self.temperature, head=head)
            shared = [scores.value_BT] if scores.value_BT is not None else []
            return [*shared, kl(packed, scores.logp_BT)]

        def work() -> tuple[dict[int, Tensor], dict[int, Tensor]]:
            values, own, tokens = dict[int, Tensor](), dict[int, Tensor](), batches.tokens
            if critic is not None:
                cut = critic.batches(batches)
                values = token_tables(cut, trajectories, tokens, lambda p: [critic.values(p)])
            if own_names:
                own = token_tables(batches, trajectories, tokens, read)
            return values, own

        values, own = (batches.world.merge(found) for found in batches.within_memory(work))
        values_BT = padded(own, own_names.index("values")) if critic is None else padded(values, 0)
        return CriticReading(values_BT, padded(own, own_names.index("kl")) if has_kl else None)

    def gradients(self, update: PolicyBatch, sums: Sequence[Tensor]) -> None:
        """Let a separate critic take its step; compare the rollouts' loss and imitation.

        Norms and cosine of the gradients of the rollouts' loss and of the demonstrations' NLL.
        What imitation added is the difference of the sums after and before it: the sums that the
        optimiser reads stay as they are, to the bit.
        """
        if self.critic is not None and update.members:  # it learns nothing from demonstrations
            ids = [update.trajectories[i].id for i in update.members]
            self.critic.step(update.step, self.batches.world, ids)
        if not self.rollout_sums:
            return
        policy, self.rollout_sums = self.rollout_sums, []
        self.batches.world.add(policy)
        added = (total - part for total, part in zip(sums, policy, strict=True))
        found = gradient_overlap(policy, added)
        self.overlap = {"gradient/policy_norm": found.first_norm}
        if self.coefficient:
            self.overlap["gradient/sft_norm"] = found.second_norm / self.coefficient
        if found.cosine is not None:
            self.overlap["gradient/cosine"] = found.cosine

    def inspect(self, step: int, sums: Mapping[str, Tensor], ids: Sequence[str]) -> None:
        """Refuse an update on tokens that some other model seems to have sampled."""
        if not self.mismatch_stop:
            return
        none = torch.zeros((), dtype=torch.float64, device=self.batches.device)
        both = torch.stack([sums.get(name, none) for name in ("mismatch/mean_abs", "tokens")])
        self.batches.world.add([both])
        distance, tokens = both.tolist()
        if tokens and distance / tokens > self.mismatch_stop:
            trip_mismatch(distance / tokens, self.mismatch_stop, step, ids)

    def token_entropies(self, trajectories: Sequence[Trajectory]) -> dict[int, list[float]]:
        """The entropy at each trained token of the rollouts that moved the last update."""
        counts = [trajectories[i].trained_tokens for i in self.entropies]
        rows = [row[:count] for row, count in zip(self.entropies.values(), counts, strict=True)]
        # One transfer for all of them.
        whole = torch.cat(rows).double().cpu().round(decimals=4) if rows else torch.empty(0)
        own = dict(zip(self.entropies, torch.split(whole, counts), strict=True))
        self.entropies = {}
        return {i: row.tolist() for i, row in sorted(self.batches.world.merge(own).items())}


def _normaliser(batch: PolicyBatch, members: Sequence[int], *, everyone: bool) -> Normaliser:
    """What the loss of these rollouts is divided by; with `everyone`, dropped ones count too."""
    keep = batch.values.keep_B.tolist()
    counted = [i for i in members if everyone or keep[i]]
    if batch.values.counted_BT is not None:
        by_rollout = batch.values.counted_BT.sum(1).tolist()
        total = sum(by_rollout[i] for i in counted)
    else:
        spans = (span for i in counted for span in batch.trajectories[i].spans)
        total = sum(len(span.logprobs) for span in spans if span.trainable)
    return Normaliser(tokens=float(total), rollouts=float(len(counted)))


def _values(
    batch: PolicyBatch, packed: PackedBatch, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """The members' part of the advantages, on the device in one transfer.

    Those fields of `LossBatch` that there are; bounds and advantages are (B,) or (B, T).
    """
    values = batch.values
    rows = torch.tensor(packed.members)
    by_token: tuple[str, ...] = ("mask_BT", "old_values_BT", "returns_BT")
    if values.values_B.dim() == 2:
        by_token += ("advantages_B", "low_B", "high_B")
    parts = {
        "keep_B": values.keep_B,
        "advantages_B": values.values_B,
        "low_B": values.low_B,
        "high_B": values.high_B,
    }
    if values.counted_BT is not None:
        parts["mask_BT"] = values.counted_BT
    if values.critic is not None:
        parts["old_values_BT"] = values.critic.values_BT
        parts["returns_BT"] = values.critic.returns_BT
    # With one update a step every ratio is 1: nothing is clipped in any bucket.
    if values.buckets_B is not None and batch.old:
        parts["buckets_B"] = values.buckets_B
    columns = [
        part[rows].double().reshape(len(rows), -1)[:, : packed.width] for part in parts.values()
    ]
    table = to_device(torch.cat(columns, 1).to(dtype), device)
    split = torch.split(table, [c.shape[1] for c in columns], 1)
    found = {
        name: one if name in by_token else one[:, 0] for name, one in zip(parts, split, strict=True)
    }
    found["keep_B"] = found["keep_B"].bool()
    mask_BT = packed.trained_BT
    found["mask_BT"] = mask_BT & found["mask_BT"].bool() if "mask_BT" in found else mask_BT
    return found


def _monitors(
    out: PolicyLoss, before_BT: Tensor, entropy_BT: Tensor, packed: PackedBatch
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Sums over tokens and maxima of one pass; `before_BT` are the log-probs before the step.

    The mismatch compares the sampler's log-probs with the trainer's own before the first update; on
    one device in float32 it is zero up to rounding.
    """
    # Both are 0 where there is no trained token, and so is what follows from them.
    gap_BT = (before_BT - scatter(packed.sampled_N, packed)).double()
    distance_BT = gap_BT.abs()
    sums = {
        "tokens": torch.full_like(out.clipped_share, packed.trained, dtype=torch.float64),
        "policy/clipped_share": out.clipped_share.double() * packed.trained,
        "policy/entropy": entropy_BT.double().sum(),
        "mismatch/mean_abs": distance_BT.sum(),
        "mismatch/kl": (torch.expm1(gap_BT) - gap_BT).sum(),
        **{f"correction/{k}": v.double() * packed.trained for k, v in out.correction.items()},
        **{MARKED[slot]: v.double() * packed.trained for slot, v in out.marked.items()},
    }
    if out.clipped_by_bucket_2P is not None:
        sums["buckets"] = out.clipped_by_bucket_2P
    largest = {
        "mismatch/max_ratio": distance_BT.amax().exp(),
        "policy/ratio_max": out.ratio_max.double(),
    }
    return sums, largest


def monitored(result: StepResult) -> dict[str, float]:
    """Means over the tokens that were computed, the clipped share of each bucket, and maxima."""
    sums = dict(result.sums)
    tokens = float(sums.pop("tokens", torch.ones(()))) or 1.0
    buckets = bucket_shares(sums.pop("buckets")) if "buckets" in sums else {}
    return {
        **{name: float(value) / tokens for name, value in sums.items()},
        **{f"policy/clipped_share/{name}": share for name, share in buckets.items()},
        **result.largest,
    }
