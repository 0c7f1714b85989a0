"""Masked diffusion: predict masked tokens of answers, or of text, from both sides.

`train = { kind = "diffusion" }` trains a masked diffusion model (`burnish convert`, or
`model.path=diffusion:smollm2`) on the demonstrations of a run; prompts are never masked. With
`on = "text"` it learns whole texts: pre-training. How rates and masks are drawn is
`models/masked_diffusion`; here their numbers come from the seed, the step and the row alone, so a
step repeated after a crash, or cut into other passes, is the same step.

The loss of an update is the mean of `weight * (1/n) sum_masked nll / chance` over its rows, rows in
which nothing was masked included. Held-out losses have uniform rates in strata and masks of a fixed
seed, whatever the run trains with: runs with other samplers can be compared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.config.schema import Config
from burnish.config.schema import DiffusionTrain as DiffusionSettings
from burnish.errors import UserError
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.decoding import parse_decoding, read_decoding, write_decoding
from burnish.models.masked_diffusion import ema_control_variate, syntax_eligible
from burnish.models.masked_diffusion.samplers import (
    Noise,
    PPots,
    build_noise,
    evaluation_uniforms,
)
from burnish.records import Task
from burnish.seeds import Seeds, derive
from burnish.store.durable import write_file
from burnish.training.algorithm import (
    Algorithm,
    AlgorithmState,
    HeldOutScores,
    Loss,
    Setup,
    StepReport,
    StepResult,
)
from burnish.training.data import Data
from burnish.training.experts import find_demonstrations, open_experts, text_of
from burnish.training.forecast import Keys, Workload
from burnish.training.guards import check_rows
from burnish.training.masked_rows import TokenRow, Unit, answer_row, mask_row, passes, unit_losses
from burnish.training.metrics import held_out_rewards, token_counts
from burnish.training.microbatch import MicroBatcher

logger = logging.getLogger(__name__)

BINS = 10
"""Of rates, for the running losses of the smoothed loss."""
HELD_OUT_SEED = 20251118
"""Of the masks of every held-out loss, whatever the run's seed is."""
RATES_FILE = "rates.json"


class Noisy(NamedTuple):
    """The rows of a step under their masks."""

    rows: list[TokenRow]
    units: list[Unit]
    t_B: Tensor
    weight_B: Tensor
    metrics: dict[str, float]


class DiffusionAlgorithm(Algorithm[Noisy, list[Unit]]):
    """`train = { kind = "diffusion" }`."""

    samples_answers = False
    trains_diffusion = True

    def __init__(self, setup: Setup, settings: DiffusionSettings) -> None:
        self.setup, self.settings = setup, settings
        loaded = setup.trainable.loaded
        assert isinstance(loaded.module, Decoder)
        self.module = loaded.module
        self.tokenizer = loaded.tokenizer
        self.experts = open_experts(
            setup.config, setup.data, loaded.tokenizer, setup.seeds, settings.by
        )
        if settings.syntax and loaded.module.architecture.prompt_sees == "prompt":
            raise UserError(
                f"train.syntax is '{settings.syntax}', and prompts of '{loaded.name}' do not see their "
                "answers; expected a model converted with prompt_sees 'all', or no train.syntax"
            )
        self.noise = noise_of(settings, loaded.tokenizer)
        how = parse_decoding(settings.decoding, read_decoding(loaded.folder))
        self.decoding = parse_decoding(f"canvas={settings.canvas}", how)
        setup.decoding = (
            f"block={how.block},steps={how.steps},order={how.order},canvas={settings.canvas}"
        )
        self.baseline_K: list[float] | None = None

    @classmethod
    def check(cls, config: Config, settings: DiffusionSettings, data: Data) -> None:
        from burnish.lm.diffusion.decoding import Decoding

        parse_decoding(settings.decoding, Decoding())
        noise_of(settings, None)
        tasks = find_demonstrations(config, data, "diffusion")
        if settings.by and settings.by not in tasks.fields:
            known = ", ".join(sorted(tasks.fields))
            raise UserError(
                f"train.by is '{settings.by}', a field that task set '{tasks.name}' does not have; "
                f"expected one of {known}."
            )
        if settings.held_out == "rewards" and not config.rewards:
            raise UserError(
                "train.held_out is 'rewards', and the config has none; expected [[rewards]], or "
                "train.held_out = 'loss'"
            )

    # --- a step

    def batch(self, step: int) -> Noisy:
        self._fit(step)
        seeds = self.setup.seeds
        tasks = self.experts.draw(step, self.settings.batch)
        rows = [self.row(task, i, seeds.for_("window", step, i)) for i, task in enumerate(tasks)]
        generator = torch.Generator().manual_seed(seeds.for_("rates", step))
        u_B = self.noise.rate_uniforms(len(rows), generator)
        return self._noisy(rows, u_B, Seeds(seeds.for_("masks", step)))

    def row(self, task: Task, draw: int, seed: int = 0) -> TokenRow:
        """What is learned of one task: its answer behind its prompt, or a window of its text."""
        if self.settings.on == "answers":
            shown = self.experts.as_trajectory(task, draw)
            found = answer_row(shown, self.settings.canvas, next(iter(self.experts.end), None))
            if self.settings.syntax:
                found = self._with_syntax(found)
        else:
            text = text_of(task.fields[self.experts.field])
            ids = [*self.tokenizer.behind((), text).encode(text), *self.experts.end]
            windows = -(-len(ids) // self.settings.sequence)
            start = seed % windows * self.settings.sequence
            own = ids[start : start + self.settings.sequence]
            size = len(text.encode()) if windows == 1 else 0
            found = TokenRow(f"{task.id}.text{draw}", tuple(own), np.ones(len(own), bool), size)
        longest = self.module.max_positions
        if len(found.ids) > longest:
            raise UserError(
                f"task {task.id} has {len(found.ids)} tokens with its answer and train.canvas = "
                f"{self.settings.canvas}; the model reads {longest}. Shorten it or lower train.canvas"
            )
        return found

    def _with_syntax(self, row: TokenRow) -> TokenRow:
        """Syntax tokens of the prompt may be masked too (SyRM); what is learned changes with it."""
        texts = [self.tokenizer.backend.id_to_token(token) or "" for token in row.ids[: row.prompt]]
        marks = row.eligible.copy()
        marks[: row.prompt] |= np.array(syntax_eligible(texts, self.settings.syntax), dtype=bool)
        return replace(row, eligible=marks)

    def _noisy(self, rows: list[TokenRow], u_B: Tensor, seeds: Seeds) -> Noisy:
        """Each row under its masks; what a row gets does not depend on the others."""
        mask_id = self.module.architecture.mask_id
        assert mask_id is not None
        learned = max(1, sum(row.count > 0 for row in rows))
        units: list[list[Unit]] = []
        drawn, clipped = [], 0.0
        for i, row in enumerate(rows):
            generator = torch.Generator().manual_seed(seeds.for_("row", i))
            u_F1L = self.noise.mask_uniforms(1, len(row.ids), generator)
            ids_1L = torch.tensor([row.ids])
            eligible_1L = torch.from_numpy(row.eligible)[None]
            noised = self.noise.corrupt(ids_1L, eligible_1L, u_B[i : i + 1], u_F1L, mask_id)
            weight = float(noised.weight_B[0])
            drawn.append((float(noised.t_B[0]), weight))
            clipped += noised.clipped_share / len(rows)
            scale = weight * (row.count > 0) / (learned * len(noised.passes))
            units.append(
                [
                    mask_row(
                        row,
                        one.mask_BL[0].numpy(),
                        np.broadcast_to(one.chance_BX[0].numpy(), len(row.ids)),
                        scale=scale,
                        number=i,
                    )
                    for one in noised.passes
                ]
            )
        t_B, weight_B = torch.tensor(drawn, dtype=torch.float64).unbind(1)
        masked = sum(len(unit.places) for own in units for unit in own)
        eligible = sum(row.count * len(own) for row, own in zip(rows, units, strict=True))
        metrics = {
            "diffusion/mean_rate": float(t_B.mean()),
            "diffusion/masked_share": masked / max(1, eligible),
            "diffusion/clipped_share": clipped,
            "diffusion/weight_max": float(weight_B.max()),
            "diffusion/forwards": float(sum(map(len, units))),
        }
        # Stacked, the masks of a row share a pass; else all first masks come before the second.
        flat = [unit for own in units for unit in own]
        if not self.settings.stacked:
            flat = [unit for group in zip(*units, strict=True) for unit in group]
        return Noisy(rows, flat, t_B, weight_B, metrics)

    def micro_batches(self, batch: Noisy, tokens: int) -> Iterator[list[Unit]]:
        count = self.noise.masks.forwards
        size = len(batch.rows)
        parts = [batch.units]
        if not self.settings.stacked:
            parts = [batch.units[k * size : (k + 1) * size] for k in range(count)]
        for part in parts:
            yield from passes(self.setup.world.share(part), tokens)

    def loss(self, model: Any, micro: list[Unit]) -> Loss:
        device = self.setup.trainable.device
        loss_U = unit_losses(model, micro, device)
        scale_U = torch.tensor([unit.scale for unit in micro], device=device, dtype=loss_U.dtype)
        index_U = torch.tensor([unit.number for unit in micro], device=device)
        row_B = loss_U.new_zeros(self.settings.batch)
        forwards = self.noise.masks.forwards
        row_B = row_B.index_add(0, index_U, loss_U.detach() / forwards)
        return Loss(
            (loss_U * scale_U).sum(),
            [unit.row.id for unit in micro],
            rows={"losses": loss_U.detach()[:, None]},
            sums={"row_losses": row_B},
        )

    def finish(self, step: int, batch: Noisy, result: StepResult) -> StepReport:
        rows = result.sums["row_losses"].tolist()
        found = ema_control_variate(rows, batch.t_B, self.baseline_K or [0.0] * BINS)
        smooth = {}
        if self.baseline_K is not None:
            # The mean of the running losses stands for the rates that the step did not draw.
            mean = sum(self.baseline_K) / BINS
            smooth = {"diffusion/smoothed_loss": float(found.adjusted_mean) + mean}
        self.baseline_K = found.baseline.tolist()
        counts = token_counts([row.count for row in batch.rows])
        return StepReport({**counts, **batch.metrics, **smooth})

    def workload(self) -> Workload:
        shown = [self.row(task, i) for i, task in enumerate(self.experts.draw(0, 16))]
        return Workload(
            self.settings.batch * self.noise.masks.forwards,
            1,
            max(row.prompt for row in shown),
            max(row.count for row in shown),
            is_sampled=False,
            keys=Keys("train.batch", "", "", ""),
        )

    # --- rates by a fitted density

    def _fit(self, step: int) -> None:
        """Probe the model and fit the density of rates, where the sampler asks for it at this step."""
        rates = self.noise.rates
        if not isinstance(rates, PPots) or not rates.wants_probe(step):
            return
        settings = self.settings
        tasks = self.experts.draw(0, settings.probe_rows)
        rows = [self.row(task, i) for i, task in enumerate(tasks)]
        grid = [j / settings.probe_rates for j in range(1, settings.probe_rates)]
        seed = self.setup.seeds.for_("probe", step)
        table = self.setup.batches.within_memory(
            lambda: loss_table(
                self.module, rows, grid, settings.probe_masks, seed, self.setup.batches, self.noise
            )
        )
        fit = rates.refit(grid, table, step)
        if self.setup.world.is_main:
            said = json.dumps(rates.state(), indent=1).encode()
            write_file(self.setup.folder / RATES_FILE, said)
        if fit.fallback:
            logger.warning("train.rates: %s", fit.fallback)

    # --- held out, resume, files

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The loss of held-out rows with uniform rates and fixed masks, or the rewards of answers."""
        config = self.setup.config
        if self.settings.held_out == "rewards":
            return held_out_rewards(self.setup, step)
        tasks = self.experts.tasks.held_out(config.evaluation.prompts)
        known = [task for task in tasks if text_of(task.fields.get(self.experts.field))]
        rows = [self.row(task, i) for i, task in enumerate(known)]
        if not rows:
            return None
        batches = self.setup.batches
        losses = batches.within_memory(
            lambda: held_out_losses(self.module, rows, self.settings.held_out_masks, batches)
        )
        nll_B = torch.tensor(losses, dtype=torch.float64)
        check_rows("logprob", "held-out losses", nll_B, [row.id for row in rows], step)
        return HeldOutScores(losses, "loss")

    def state(self) -> AlgorithmState:
        return AlgorithmState({"noise": self.noise.state(), "baseline": self.baseline_K})

    def restore(self, state: AlgorithmState) -> None:
        self.noise.load(state.values["noise"])
        self.baseline_K = state.values["baseline"]

    def write(self, folder: Path) -> None:
        write_decoding(folder, self.decoding)


ALGORITHM = DiffusionAlgorithm


def noise_of(settings: DiffusionSettings, tokenizer: Any) -> Noise:
    """The samplers that the settings name; without a tokenizer, to check them."""
    options: dict[str, Any] = {"max_weight": settings.max_weight}
    if settings.rates == "clipped":
        options |= {"low": settings.low, "high": settings.high}
    if settings.rates == "p_pots":
        options |= {
            "mix_uniform": settings.mix_uniform,
            "refit_every": settings.refit_every,
            "start": settings.probe_at,
            "n_starts": settings.fit_starts,
            "moment": settings.moment,
            "loss_max": settings.loss_max,
        }
    ids: set[int] = set()
    if tokenizer is not None:
        for text in settings.delimiters:
            ids |= set(tokenizer.encode(text))
    return build_noise(
        settings.rates,
        settings.masks,
        passes=settings.passes,
        strata=settings.strata,
        delimiters=sorted(ids),
        delta=settings.delta,
        eps=settings.eps,
        options=options,
    )


@torch.no_grad()
def held_out_losses(
    module: Decoder, rows: Sequence[TokenRow], masks: int, batches: MicroBatcher
) -> list[float]:
    """Mean loss of each row over `masks` uniform rates in strata, with masks of a fixed seed."""
    mask_id = module.architecture.mask_id
    assert mask_id is not None
    longest = max(len(row.ids) for row in rows)
    noise = build_noise()
    u_N, u_1NL = evaluation_uniforms(len(rows) * masks, longest, HELD_OUT_SEED)
    units = []
    for n in range(len(rows) * masks):
        row = rows[n // masks]
        ids_1L, eligible_1L = torch.tensor([row.ids]), torch.from_numpy(row.eligible)[None]
        field_11L = u_1NL[:, n : n + 1, : len(row.ids)]
        one = noise.corrupt(ids_1L, eligible_1L, u_N[n : n + 1], field_11L, mask_id).passes[0]
        chance_L = np.broadcast_to(one.chance_BX[0].numpy(), len(row.ids))
        units.append(mask_row(row, one.mask_BL[0].numpy(), chance_L, number=n))
    loss_N = losses_of(module, units, batches)
    return loss_N.view(len(rows), masks).mean(1).tolist()


@torch.no_grad()
def losses_of(module: Decoder, units: Sequence[Unit], batches: MicroBatcher) -> Tensor:
    """The loss of each unit by its index, (N,), over all processes; without gradients."""
    found: dict[int, Tensor] = {}
    for some in passes(batches.world.share(units), batches.tokens):
        loss_U = unit_losses(module, some, batches.device).double().cpu()
        found |= {unit.number: value for unit, value in zip(some, loss_U, strict=True)}
    merged = batches.world.merge(found)
    return torch.stack([merged[n] for n in range(len(units))])


def loss_table(
    module: Decoder,
    rows: Sequence[TokenRow],
    grid: Sequence[float],
    masks: int,
    seed: int,
    batches: MicroBatcher,
    noise: Noise,
) -> Tensor:
    """Losses [row, rate, mask] on a grid of rates with independent masks; delimiters as in training."""
    units = []
    eps, known = noise.eps, sorted(noise.delimiters)
    for x, row in enumerate(rows):
        is_delimiter_L = np.isin(np.array(row.ids), known)
        for t, rate in enumerate(grid):
            generator = torch.Generator().manual_seed(derive(seed, x, t))
            u_KL = torch.rand(masks, len(row.ids), generator=generator, dtype=torch.float64)
            chance = (1 - eps) * rate + eps
            chance_L = np.where(is_delimiter_L, min(chance + noise.delta, 1.0), chance)
            for k in range(masks):
                index = (x * len(grid) + t) * masks + k
                mask_L = u_KL[k].numpy() < chance_L
                units.append(mask_row(row, mask_L, chance_L, number=index))
    return losses_of(module, units, batches).view(len(rows), len(grid), masks)


def read_rates(folder: Path) -> Mapping[str, Any] | None:
    """The fitted density that a run has written; None without one."""
    file = folder / RATES_FILE
    found: Mapping[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
    return found
