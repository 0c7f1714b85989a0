"""Masked diffusion: predict masked tokens of answers, or of text, from both sides.

Where rows come from is `training/diffusion_rows.py`; how rates and masks are drawn is
`models/masked_diffusion`; here their numbers come from the seed, the step and the row alone.

The loss of an update is the mean of `weight * (1/n) sum_masked nll / chance` over its rows, rows in
which nothing was masked included. Held-out losses have uniform rates in strata and masks of a fixed
seed, whatever the run trains with: runs with other samplers can be compared.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from burnish.config.schema import Config, DiffusionTrain as DiffusionSettings
from burnish.errors import UserError
from burnish.lm.decoder import Decoder, Layer
from burnish.lm.diffusion.masked_rows import TokenRow, Unit, unit_losses, unit_passes
from burnish.lm.diffusion.sampler import parse_decoding, read_decoding, write_decoding
from burnish.models.masked_diffusion.control import BINS, GradientBaseline, smoothed_loss
from burnish.models.masked_diffusion.samplers import PPots, UniformRates
from burnish.seeds import Seeds
from burnish.store.durable import write_file
from burnish.training.algorithm import (
    Algorithm,
    AlgorithmState,
    HeldOutScores,
    Loss,
    Preparation,
    Setup,
    StepReport,
    StepResult,
)
from burnish.training.data import Data, missing_field
from burnish.training.diffusion_rows import (
    CorpusRows,
    TaskRows,
    canvas_of,
    held_out_losses,
    mask_rows,
    noise_of,
    probed_losses,
    setting_faults,
)
from burnish.training.forecast import Workload, given_rows
from burnish.training.guards import check_rows
from burnish.training.metrics import held_out_rewards, token_counts
from burnish.training.packed_text import check_corpus
from burnish.training.token_cache import READING

logger = logging.getLogger(__name__)

RATES_FILE = "rates.json"


class MaskedBatch(NamedTuple):
    rows: list[TokenRow]
    units: list[Unit]
    t_B: Tensor
    weight_B: Tensor
    metrics: dict[str, float]


class MaskedMicro(NamedTuple):
    units: list[Unit]
    t_U: Tensor
    correction_N: Tensor | None
    """What the control variate adds to the gradient of the update, in one pass of it."""


class DiffusionAlgorithm(Algorithm[MaskedBatch, MaskedMicro]):
    samples_answers = False
    trains_diffusion = True

    def __init__(self, setup: Setup, settings: DiffusionSettings) -> None:
        self.setup, self.settings = setup, settings
        loaded = setup.trainable.loaded
        assert isinstance(loaded.module, Decoder)
        self.module = loaded.module
        if settings.syntax and loaded.module.architecture.prompt_sees == "prompt":
            raise UserError(
                f"train.syntax is '{settings.syntax}', and prompts of '{loaded.name}' do not see their "
                "answers; expected a model converted with prompt_sees 'all', or no train.syntax"
            )
        self.noise = noise_of(settings, loaded.tokenizer)
        self.canvas = canvas_of(settings)
        how = parse_decoding(settings.decoding, read_decoding(loaded.folder))
        self.decoding = parse_decoding(f"canvas={self.canvas}", how)
        setup.decoding = self.decoding.to_text()
        self.baseline_K: list[float | None] = [None] * BINS
        kind = CorpusRows if settings.sources else TaskRows
        self.rows: CorpusRows | TaskRows = kind(setup, settings, self.module)
        self.text = self.rows.text
        rates = self.noise.rates
        self._bounds = (0.0, 1.0)
        if isinstance(rates, UniformRates):
            self._bounds = rates.low, rates.high
        self.gradient_baseline = None
        if settings.control == "gradient":
            low, high = self._bounds
            self.gradient_baseline = GradientBaseline(_controlled(self.module), low=low, high=high)

    @classmethod
    def faults(cls, config: Config, settings: DiffusionSettings, data: Data) -> Iterator[str]:
        yield from setting_faults(settings)
        noise_of(settings, None)
        if settings.sources:
            check_corpus(settings, data)
            return
        tasks = data.open(config.experts.task)
        yield from missing_field(tasks, config.experts.field, "experts.field")
        if settings.by:
            yield from missing_field(tasks, settings.by, "train.by")
        if settings.held_out == "rewards" and not config.rewards:
            yield "train.held_out is 'rewards', and the config has none; expected [[rewards]], or 'loss'"

    def prepare(self) -> Iterator[Preparation]:
        if (text := self.text) is not None:
            steps, rows = self.setup.steps, self.settings.batch
            yield Preparation(READING, lambda: text.prepare(steps, rows))

    def batch(self, step: int) -> MaskedBatch:
        self._fit(step)
        seeds = self.setup.seeds
        rows = self.rows.train(step)
        generator = torch.Generator().manual_seed(seeds.for_("rates", step))
        u_B = self.noise.rate_uniforms(len(rows), generator)
        return self._masked(rows, u_B, Seeds(seeds.for_("masks", step)))

    def _masked(self, rows: list[TokenRow], u_B: Tensor, seeds: Seeds) -> MaskedBatch:
        """Each row under its masks; what a row gets does not depend on the others."""
        fields = []
        for i, row in enumerate(rows):
            generator = torch.Generator().manual_seed(seeds.for_("row", i))
            fields.append(self.noise.mask_uniforms(1, len(row.ids), generator)[:, 0])
        noised, units = mask_rows(self.noise, rows, u_B, fields, self.rows.mask)
        t_B, weight_B = noised.t_B, noised.weight_B
        pull_B = weight_B
        if self.noise.baseline is not None:
            pull_B = weight_B / self.noise.baseline.scales(t_B)
        learned = max(1, sum(row.count > 0 for row in rows))
        scale_B = (pull_B / (learned * len(noised.passes))).tolist()
        units = [
            [unit._replace(scale=scale * (unit.row.count > 0)) for unit in own]
            for own, scale in zip(units, scale_B, strict=True)
        ]
        masked = sum(len(unit.places) for own in units for unit in own)
        eligible = sum(row.count * len(own) for row, own in zip(rows, units, strict=True))
        metrics = {
            "diffusion/mean_rate": float(t_B.mean()),
            "diffusion/masked_share": masked / max(1, eligible),
            "diffusion/clipped_share": noised.clipped_share,
            "diffusion/weight_max": float(weight_B.max()),
            "diffusion/forwards": float(sum(map(len, units))),
        }
        # The masks of a row share a pass.
        flat = [unit for own in units for unit in own]
        return MaskedBatch(rows, flat, t_B, weight_B, metrics)

    def micro_batches(self, batch: MaskedBatch, tokens: int) -> Iterator[MaskedMicro]:
        correction_N = self._correction(batch)
        for some in unit_passes(self.setup.world.share(batch.units), tokens):
            t_U = batch.t_B[[unit.number for unit in some]]
            yield MaskedMicro(some, t_U, correction_N)
            correction_N = None

    def loss(self, model: Any, micro: MaskedMicro) -> Loss:
        device = self.setup.trainable.device
        units = micro.units
        loss_U = unit_losses(model, units, device)
        scale_U = torch.tensor([unit.scale for unit in units], device=device, dtype=loss_U.dtype)
        index_U = torch.tensor([unit.number for unit in units], device=device)
        row_B = loss_U.new_zeros(self.settings.batch)
        forwards = self.noise.masks.forwards
        row_B = row_B.index_add(0, index_U, loss_U.detach() / forwards)
        sums, total = {"row_losses": row_B}, (loss_U * scale_U).sum()
        if self.gradient_baseline is not None:
            has_answer_U = torch.tensor([unit.row.count > 0 for unit in units], device=device)
            counted_U = torch.where(has_answer_U, loss_U / forwards, 0.0)
            sums["bin_gradients"] = self.gradient_baseline.bin_gradients(
                counted_U, micro.t_U.to(device)
            )
            if micro.correction_N is not None:  # a term of value 0 with that gradient
                parameters = self.gradient_baseline.parameters
                flat_N = torch.cat([one.flatten() for one in parameters])
                pull = (flat_N * micro.correction_N).sum()
                total = total + (pull - pull.detach())
        return Loss(
            total,
            [unit.row.id for unit in units],
            rows={"losses": loss_U.detach()[:, None]},
            sums=sums,
        )

    def _correction(self, batch: MaskedBatch) -> Tensor | None:
        """Of the whole update; the first process adds it."""
        if self.gradient_baseline is None or not self.setup.world.is_main:
            return None
        has_answer_B = torch.tensor([row.count > 0 for row in batch.rows])
        if not has_answer_B.any():
            return None
        device = self.setup.trainable.device
        t_B, weight_B = (x[has_answer_B].to(device) for x in (batch.t_B, batch.weight_B))
        return self.gradient_baseline.correction(t_B, weight_B)

    def finish(self, step: int, batch: MaskedBatch, result: StepResult) -> StepReport:
        has_answer_B = torch.tensor([row.count > 0 for row in batch.rows])
        loss_B = result.sums["row_losses"].cpu()[has_answer_B]
        t_B, weight_B = batch.t_B[has_answer_B], batch.weight_B[has_answer_B]
        smooth = {}
        if len(loss_B):
            low, high = self._bounds
            found = smoothed_loss(loss_B, t_B, weight_B, self.baseline_K, low=low, high=high)
            self.baseline_K = found.baseline
            if found.loss is not None:
                smooth = {"diffusion/smoothed_loss": found.loss}
            if self.noise.baseline is not None:
                self.noise.baseline.adjust(loss_B, t_B)
            if self.gradient_baseline is not None:
                self.gradient_baseline.learn(result.sums["bin_gradients"], t_B)
        metrics = {**token_counts([row.count for row in batch.rows]), **batch.metrics, **smooth}
        if isinstance(self.rows, CorpusRows):
            metrics["text/epoch"] = self.rows.text.epochs((step + 1) * self.settings.batch)
            count_B = torch.tensor([row.count for row in batch.rows], dtype=torch.float64)
            nats = (result.sums["row_losses"].cpu() * batch.weight_B * count_B).sum()
            if bits := self.rows.bits(batch.rows, float(nats)):
                metrics["text/bits_per_byte"] = bits.per_byte
                metrics["text/unigram_bits_per_byte"] = bits.unigram
        return StepReport(metrics)

    def workload(self) -> Workload:
        prompt, answer = self.rows.longest_row()
        passes = self.settings.batch * self.noise.masks.forwards
        return given_rows(passes, answer, prompt=prompt)

    def _fit(self, step: int) -> None:
        """Probe the model and fit the density of rates, where the sampler asks for it at this step."""
        rates = self.noise.rates
        if not isinstance(rates, PPots) or not rates.wants_probe(step):
            return
        settings = self.settings
        rows = self.rows.probe(settings.probe_rows)
        seed = self.setup.seeds.for_("probe", step)
        sizes = settings.probe_rates, settings.probe_masks
        found = self.setup.batches.within_memory(
            lambda: probed_losses(self.module, rows, *sizes, seed, self.setup.batches, self.noise)
        )
        fit = rates.refit(*found, step=step)
        if self.setup.world.is_main:
            said = json.dumps(rates.state(), indent=1).encode()
            write_file(self.setup.folder / RATES_FILE, said)
        if fit.fallback:
            logger.warning("train.rates: %s", fit.fallback)

    def evaluate(self, step: int) -> HeldOutScores | None:
        """The loss of held-out rows with uniform rates and fixed masks, or the rewards of answers."""
        config = self.setup.config
        if self.settings.held_out == "rewards":
            return held_out_rewards(self.setup, step)
        rows = self.rows.held_out(config.evaluation.prompts)
        if not rows:
            return None
        batches = self.setup.batches
        losses = batches.within_memory(lambda: held_out_losses(self.module, rows, batches))
        nll_B = torch.tensor(losses, dtype=torch.float64)
        check_rows("logprob", "held-out losses", nll_B, [row.id for row in rows], step)
        nats = [loss * row.count for loss, row in zip(losses, rows, strict=True)]
        bits = None
        if isinstance(self.rows, CorpusRows):
            bits = self.rows.bits(rows, math.fsum(nats))
        if bits is None:
            return HeldOutScores(losses, "loss")
        # A row's mark is its bits over the mean bytes of a row: their mean is all bits over all bytes.
        marks = [nat / math.log(2) * len(rows) / bits.size for nat in nats]
        beside = f"a bound from above; single tokens by their frequency: {bits.unigram:.3f}"
        return HeldOutScores(marks, "bits_per_byte", beside=beside)

    def state(self) -> AlgorithmState:
        tensors = {}
        if self.gradient_baseline is not None:
            assert self.gradient_baseline.gradients_KN is not None
            tensors = {"gradients": self.gradient_baseline.gradients_KN}
        values: dict[str, Any] = {"noise": self.noise.state(), "baseline": self.baseline_K}
        if self.text is not None:
            values["text"] = self.text.tokens.fingerprint
        return AlgorithmState(values, tensors)

    def restore(self, state: AlgorithmState) -> None:
        if self.text is not None:
            self.text.check_same(state.values.get("text", ""))
        self.noise.load(state.values["noise"])
        self.baseline_K = state.values["baseline"]
        if self.gradient_baseline is not None:
            held = self.gradient_baseline.gradients_KN
            assert held is not None
            self.gradient_baseline.gradients_KN = state.tensors["gradients"].to(held)

    def write(self, folder: Path) -> None:
        write_decoding(folder, self.decoding)


ALGORITHM = DiffusionAlgorithm


def _controlled(module: Decoder) -> list[Tensor]:
    """The weights whose gradients a control variate follows."""
    last = cast(Layer, module.model.layers[-1])
    both = (last.self_attn.o_proj.weight, last.mlp.down_proj.weight)
    found = [one for one in both if one.requires_grad]
    if not found:
        raise UserError(
            "train.control is 'gradient', and the last layer's output matrices are not trained; "
            "expected a training of all weights. Leave model.lora out, or set train.control = 'none'"
        )
    return found
