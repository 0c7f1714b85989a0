"""Policy optimisation of a masked diffusion model, experimental: ratios of likelihood bounds.

A masked diffusion model has no log-prob of an answer but a lower bound of it, which masks estimate; the
ratio of an answer is `exp((bound_new - bound_old) / tokens)`, both under the very same masks, so that
their noise cancels as far as the model has not moved. What is unsound is refused: ratios, KL and
entropy of single tokens have no meaning here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.config.schema import Config, DiffusionPolicyTrain as Settings, InProcess
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.masked_rows import (
    TokenRow,
    Unit,
    answer_row,
    bound_units,
    unit_logprobs,
    unit_passes,
)
from burnish.lm.diffusion.sampler import Decoding, parse_decoding, read_decoding, write_decoding
from burnish.lm.tokenizer import end_of_turn
from burnish.policy import AllTokens, Clipped, NoCorrection, NoCritic
from burnish.policy.batch import LossBatch
from burnish.policy.compute import loss as policy_loss
from burnish.records import Trajectory
from burnish.rollouts import SingleTurn
from burnish.training.algorithm import Loss, Setup
from burnish.training.algorithms.policy import PolicyAlgorithm
from burnish.training.algorithms.policy_update import PolicyBatch
from burnish.training.data import Data
from burnish.training.diffusion_rows import canvas_faults, mask_of


@dataclass(frozen=True)
class Estimated:
    members: list[int]
    units: list[Unit]
    """The masks of the first answer, then those of the second, and so on."""
    update: PolicyBatch


class DiffusionPolicy(PolicyAlgorithm):
    trains_diffusion = True

    def __init__(self, setup: Setup, settings: Settings) -> None:
        loaded = setup.trainable.loaded
        how = parse_decoding(settings.decoding, read_decoding(loaded.folder))
        if settings.canvas:
            how = parse_decoding(f"canvas={settings.canvas}", how)
        self.decoding, self.masks = how, settings.masks
        setup.decoding = how.to_text()
        self.end = next(iter(end_of_turn(loaded.tokenizer)), None)
        super().__init__(setup, settings)  # type: ignore[arg-type]  # reads none of them
        # What the sampler noted is the log-prob of a token when it was written, not a part of a bound.
        self.mismatch_stop = 0.0

    @classmethod
    def faults(cls, config: Config, settings: Any, data: Data) -> Iterator[str]:
        parse_decoding(settings.decoding, Decoding())
        if settings.canvas:
            yield from canvas_faults(settings.decoding, settings.canvas)
        yield from _unsound(config)
        yield from super().faults(config, settings, data)

    def write(self, folder: Path) -> None:
        super().write(folder)
        write_decoding(folder, self.decoding)

    def row(self, shown: Trajectory) -> TokenRow:
        module = self.setup.trainable.loaded.module
        assert isinstance(module, Decoder)
        return answer_row(
            shown,
            canvas=self.decoding.canvas,
            end=self.end,
            mask=mask_of(module),
            longest=module.max_positions,
        )

    def units(self, shown: Trajectory, index: int, step: int) -> list[Unit]:
        seed = self.seeds.for_("bound", step, index)
        return bound_units(self.row(shown), self.masks, seed, index)

    def micro_batches(self, batch: PolicyBatch, tokens: int) -> Iterator[Any]:
        mine = self.batches.world.share(list(batch.members))
        yield from self._cut(batch, mine, tokens)

    def _cut(self, batch: PolicyBatch, members: Sequence[int], tokens: int) -> Iterator[Estimated]:
        """Whole answers together; one that alone is more than a pass is a pass of its own."""
        one_each = []
        units: dict[int, list[Unit]] = {}
        for i in members:
            units[i] = self.units(batch.trajectories[i], i, batch.step)
            one_each.append(units[i][0])
        for some in unit_passes(one_each, max(1, tokens // self.masks)):
            chosen = [unit.number for unit in some]
            yield Estimated(chosen, [unit for i in chosen for unit in units[i]], batch)

    def estimate(self, model: Decoder, micro: Estimated) -> tuple[Tensor, Tensor]:
        """Each token's share of the bound (B, T), and the bound a token by mask (B, K)."""
        device = self.batches.device
        found = unit_logprobs(model, micro.units, device)
        lengths = [micro.update.trajectories[i].trained_tokens for i in micro.members]
        weight, column = [], []
        for number, unit in enumerate(micro.units):
            weight.append(1.0 / unit.chances)
            answer = np.searchsorted(np.flatnonzero(unit.row.eligible), unit.places)
            column.append(np.minimum(answer, lengths[number // self.masks] - 1))
        weight_N = torch.from_numpy(np.concatenate(weight)).to(found.logp_N)
        column_N = torch.from_numpy(np.concatenate(column)).to(device)
        parts_N = found.logp_N * weight_N
        shape = (len(micro.members), max(lengths))
        row_N = torch.div(found.unit_N, self.masks, rounding_mode="floor")
        share_BT = parts_N.new_zeros(shape).index_put(
            (row_N, column_N), parts_N / self.masks, accumulate=True
        )
        total_U = parts_N.detach().new_zeros(len(micro.units))
        total_U = total_U.index_add(0, found.unit_N, parts_N.detach())
        length_B1 = torch.tensor(lengths, device=device)[:, None]
        return share_BT, total_U.view(len(lengths), self.masks) / length_B1

    def _old_logprobs(self, batch: PolicyBatch, moving: set[int]) -> dict[int, Tensor]:
        """Each token's share of the bound before the first update, under the step's masks."""

        @torch.no_grad()
        def work() -> dict[int, Tensor]:
            found: dict[int, Tensor] = {}
            mine = self.batches.world.share(sorted(moving))
            for micro in self._cut(batch, mine, self.batches.tokens):
                share_BT, _ = self.estimate(self.batches.model, micro)  # type: ignore[arg-type]
                for row, i in enumerate(micro.members):
                    found[i] = share_BT[row, : batch.trajectories[i].trained_tokens]
            return found

        return self.batches.world.merge(self.batches.within_memory(work))

    def loss(self, model: Any, micro: Any) -> Loss:
        assert isinstance(micro, Estimated)
        batch, device = micro.update, self.batches.device
        share_BT, bound_BK = self.estimate(model, micro)
        current = share_BT.detach()
        lengths = [batch.trajectories[i].trained_tokens for i in micro.members]
        length_B = torch.tensor(lengths, device=device)
        mask_BT = torch.arange(share_BT.shape[1], device=device) < length_B[:, None]
        old_BT = current
        if batch.old:
            old_BT = torch.zeros_like(current)
            for row, i in enumerate(micro.members):
                old_BT[row, : lengths[row]] = batch.old[i].to(current)
        rows, values = torch.tensor(micro.members), batch.values
        out = policy_loss(
            self.recipe,
            LossBatch(
                logp_BT=share_BT,
                old_logp_BT=old_BT,
                mask_BT=mask_BT,
                advantages_B=values.values_B[rows].to(current),
                low_B=values.low_B[rows].to(current),
                high_B=values.high_B[rows].to(current),
                keep_B=values.keep_B[rows].to(device),
                normaliser=batch.normaliser,
                max_tokens=self.max_tokens,
            ),
        )
        trained = float(mask_BT.sum())
        spread_B = bound_BK.std(1) / self.masks**0.5 if self.masks > 1 else None
        sums = {
            "tokens": torch.full_like(out.clipped_share, trained, dtype=torch.float64),
            "policy/clipped_share": out.clipped_share.double() * trained,
            "diffusion/bound": (bound_BK.mean(1) * length_B).double().sum(),
        }
        if spread_B is not None:
            sums["diffusion/bound_error"] = (spread_B * length_B).double().sum()
        ids = [batch.trajectories[i].id for i in micro.members]
        largest = {"policy/ratio_max": out.ratio_max.double()}
        return Loss(out.total, ids, out.parts, {"bounds": current}, sums, largest)


ALGORITHM = DiffusionPolicy


def _unsound(config: Config) -> Iterator[str]:
    recipe = config.policy
    whole = "its bound is of the whole answer"
    rules = (
        (
            recipe.ratio == "sequence",
            f"policy.ratio: '{recipe.ratio}' compares the probability of each token, which a masked "
            f"diffusion model does not have ({whole}); use ratio = 'sequence'",
        ),
        (
            not recipe.auxiliary,
            "policy.auxiliary: its terms read the log-probs or entropies of single tokens, which a "
            f"masked diffusion model does not have ({whole}); use auxiliary = []",
        ),
        (
            isinstance(recipe.surrogate, Clipped) and isinstance(recipe.tokens, AllTokens),
            "policy.surrogate and policy.tokens: others than 'clipped' and 'all' look at single tokens, "
            f"and a masked diffusion model has none to look at ({whole})",
        ),
        (
            isinstance(recipe.correction, NoCorrection),
            "policy.correction: compares the sampler's log-probs with the trainer's, and those of a "
            "masked diffusion model are of different things; use correction = 'none'",
        ),
        (
            isinstance(recipe.critic, NoCritic) and not recipe.stepwise and not recipe.contrastive,
            "policy.advantage and policy.shaping: credit by token, critics and contrastive heads read "
            "the states of a model from left to right; use one advantage an answer",
        ),
        (
            isinstance(config.rollout, SingleTurn),
            "rollout.kind: a masked diffusion model is optimised on single turns; use 'single_turn'",
        ),
        (
            config.rollout.temperature == 1.0,
            f"rollout.temperature is {config.rollout.temperature:g}, and the bound is that of the "
            "model's own distribution; use 1",
        ),
        (
            isinstance(config.sampler, InProcess),
            "sampler.kind: servers do not sample masked diffusion models; use 'in_process'",
        ),
    )
    for holds, reason in rules:
        if not holds:
            yield f"train.kind = 'diffusion_policy': {reason}"
