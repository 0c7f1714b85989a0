"""Training with latents: the model learns to imagine pictures between its words (GAP, arXiv 2605.12374).

A record's answer has `<latent/>` where another picture helps. There the row has K slots with vectors of
that picture; the hidden state before a slot predicts it (`models/visual_latent`). The loss is the mean
NLL of the answer's tokens and `alpha` times the latents' error. Answers of held-out questions are
generated: the model opens spans itself and feeds its own latents back. The basis is fitted once, to
auxiliary pictures of training records. With a gate, records that the start model answers well are
learned as text alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.activity import waiting_for
from burnish.errors import UserError
from burnish.lm.head import chunk_tokens
from burnish.lm.vectors import vector_model
from burnish.lm.weights import write_json
from burnish.models.visual_latent import LatentHead, PatchEncoder, latent_step, use_latent
from burnish.models.visual_latent.records import Encoder
from burnish.source import find_function
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
from burnish.training.data import missing_field
from burnish.training.events import Event, Prepared
from burnish.training.forecast import Workload, given_rows
from burnish.training.labelled import LOOK, surely_fit
from burnish.training.latent_rows import (
    ANSWERING,
    BASE_ACCURACY,
    LABEL,
    Asked,
    CapacityGate,
    LatentBatch,
    LatentMicro,
    Record,
    RowMaker,
    collated,
    find_tags,
    most_right,
    play,
    record_set,
    samples_of,
    told_interventions,
)
from burnish.training.metrics import token_counts

if TYPE_CHECKING:
    from burnish.config.schema import Config, LatentsTrain
    from burnish.training.data import Data

HEAD_FILE, ABOUT_FILE = "latent_head.safetensors", "latents.json"
GATE_FILE = "base_accuracy.json"
BASIS_RECORDS = 512
CHECKED = 64
SUMS = ("error", "spread", "fed", "wanted", "hidden", "slots")


class LatentsAlgorithm(Algorithm[LatentBatch, LatentMicro]):
    samples_answers = True
    can_be_stage = True

    def __init__(self, setup: Setup, settings: LatentsTrain) -> None:
        super().__init__(setup, settings)
        self.settings = settings
        self.loaded = setup.trainable.loaded
        self.device = setup.trainable.device
        self.model = vector_model(self.loaded.module)
        table_VD: Tensor = self.model.get_input_embeddings().weight.detach()
        self.size = table_VD.shape[1]
        scale = float(table_VD.float().norm(dim=1).mean())
        self.makes = RowMaker(
            self.loaded.tokenizer,
            find_tags(self.loaded.tokenizer, settings.tags),
            self._encoder(scale),
            self.size,
            settings.slots,
            setup.data.root,
        )
        longest = self.loaded.module.longest_row(0)
        self.longest = min(settings.max_tokens or longest, longest)
        self.records = record_set(
            setup.data,
            settings,
            seed=setup.seeds.for_("records"),
            fits=self._fits,
            max_tokens=self.longest,
            look=min(LOOK, max(BASIS_RECORDS, setup.steps * settings.batch)),
        )
        records = [one for one in self.records.first(BASIS_RECORDS) if one.can_imagine]
        if not records:
            raise UserError(
                f"train.aux_images: no record has pictures in '{settings.aux_images}'; expected some "
                "to learn latents from, or train.kind = 'sft'"
            )
        vectors_ND = torch.cat([t for one in records for t in self.makes.targets(one)])
        head = "pca" if settings.head == "none" else settings.head
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seeds.for_("latent head") % 2**63)
            self.head = LatentHead.fit(head, vectors_ND, settings.components or None)
        self.head = self.head.to(self.device)
        # The weight of the error summed over coefficients.
        self._alpha = settings.alpha / len(self.head.eigenvalues)
        self.gate = CapacityGate(settings.gate_samples, settings.gate_threshold)

    @classmethod
    def faults(cls, config: Config, settings: LatentsTrain, data: Data) -> Iterator[str]:
        tasks = data.open(settings.task)
        yield from missing_field(tasks, settings.response, "train.response")
        if settings.gate == "field":
            yield from missing_field(tasks, BASE_ACCURACY, "train.gate = 'field'")
        if settings.encoder != "patches":
            find_function(settings.encoder, "train.encoder", data.root)
        if settings.bad_records == "refuse":
            record_set(data, settings, look=CHECKED).held_out(
                min(CHECKED, config.evaluation.prompts)
            )

    def _encoder(self, scale: float) -> Encoder:
        settings = self.settings
        if settings.encoder != "patches":
            found: Encoder = find_function(settings.encoder, "train.encoder", self.setup.data.root)
            return found
        seed = self.setup.seeds.for_("latent encoder")
        return PatchEncoder(self.size, settings.patch, scale=scale, seed=seed)

    def _fits(self, record: Record) -> bool:
        messages, response = record.task.messages, record.response
        texts = [*(message.text for message in messages), *response.pieces]
        places = self.picture_places + response.spans * (self.settings.slots + 2)
        if surely_fit(texts, len(messages) + 1, self.longest - places):
            return True
        return len(self.makes.row(record, has_latents=True).ids) <= self.longest

    @cached_property
    def picture_places(self) -> int:
        """Places of the picture of the first record: those of a task set are taken to be of one size."""
        tasks = self.setup.data.open(self.settings.task).sample(1)
        image = tasks[0].fields.get(self.settings.image) if tasks else None
        if image is None:
            return 0
        return len(self.makes.vectors(image, tasks[0].id).flatten(0, 1))

    def prepare(self) -> Iterator[Preparation]:
        if self.settings.gate != "measure" or self.settings.head == "none":
            return
        self.gate.read(self.setup.folder / GATE_FILE)
        yield Preparation(LABEL, self._measure)

    @cached_property
    def _gated(self) -> list[Record]:
        count = min(self.records.size, self.setup.steps * self.settings.batch)
        return [one for one in self.records.first(count) if one.can_imagine]

    def _measure(self) -> Event:
        records, settings, seeds = self._gated, self.settings, self.setup.seeds
        self.gate.measure(
            self._asked()._replace(temperature=settings.gate_temperature, max_spans=0),
            records,
            lambda name, turn: seeds.for_("gate", name, turn),
            self.setup.folder / GATE_FILE,
            writes=self.setup.world.is_main,
        )
        measured = [one for one in records if one.task.id in self.gate.rates]
        hard = sum(self.imagines(one) for one in measured)
        most = most_right(settings.gate_samples, settings.gate_threshold)
        rest = ""
        if self.gate.rest_is_hard is not None:
            get = "get latents too" if self.gate.rest_is_hard else "get none, as most of these"
            rest = f"; the other {len(records) - len(measured):,} questions {get}"
        return Prepared(
            "gate",
            f"{hard} of {len(measured)} measured questions are hard for the start model (at most "
            f"{most} of {settings.gate_samples} answers right) and get latents{rest}",
        )

    def imagines(self, record: Record) -> bool:
        """Whether a record is learned with latents."""
        settings, use = self.settings, record.use_latent
        if settings.head == "none" or not record.can_imagine:
            return False
        if settings.gate == "off":
            return use is not False
        if settings.gate == "measure":
            is_hard = self.gate.is_hard(record.task.id)
            return settings.assume_hard if is_hard is None else is_hard
        if use is not None:
            return use
        rates = [record.base_accuracy]
        return bool(use_latent(rates, settings.gate_threshold, settings.assume_hard)[0])

    def batch(self, step: int) -> LatentBatch:
        records = self.records.draw(step, self.settings.batch)
        chosen = [self.imagines(one) for one in records]
        rows = [self.makes.row(one, has_latents=c) for one, c in zip(records, chosen, strict=True)]
        draw = torch.Generator().manual_seed(self.setup.seeds.for_("own latents", step))
        rho = self.settings.own * step / max(1, self.setup.steps - 1)
        # All rows of a step or none: the passes of its slots are one after another either way.
        is_own = any(chosen) and float(torch.rand((), generator=draw)) < rho
        return LatentBatch(rows, is_own, sum(chosen) / len(chosen))

    def micro_batches(self, batch: LatentBatch, tokens: int) -> Iterator[LatentMicro]:
        mine = self.setup.world.share(batch.rows)
        longest = max(len(row.ids) for row in batch.rows)
        head_VD = self.loaded.module.head_weight
        kept = chunk_tokens(head_VD.shape[0], head_VD.dtype, head_VD.device)
        size = max(1, min(tokens, kept) // longest)
        text, slots = max(1, batch.count("t")), max(1, batch.count("z"))
        for begin in range(0, len(mine), size):
            rows = mine[begin : begin + size]
            yield LatentMicro(
                collated(rows, self.size, self.device),
                [row.id for row in rows],
                batch.is_own,
                sum(row.kinds.count("t") for row in rows) / text,
                sum(row.kinds.count("z") for row in rows) / slots,
            )

    def loss(self, model: Any, micro: LatentMicro) -> Loss:
        rows, settings = micro.rows, self.settings
        own_B = torch.ones(len(rows.ids_BT), dtype=torch.bool, device=self.device)
        step = latent_step(
            vector_model(model),
            self.head,
            rows,
            alpha=self._alpha,
            beta=settings.beta,
            own_B=own_B if micro.is_own else None,
        )
        # Each part is a mean over the micro-batch; its share makes it one over the update.
        parts = {"text": step.parts["text"] * micro.text_share}
        total = parts["text"]
        if micro.latent_share:
            parts["latent"] = self._alpha * step.parts["latent"] * micro.latent_share
            parts["cosine"] = settings.beta * step.parts["cosine"] * micro.latent_share
            total = total + parts["latent"] + parts["cosine"]
        slots_BT = rows.is_latent_BT[:, 1:]
        found = step.predicted.vector.detach()[slots_BT].float()
        wanted = rows.vectors_BTD[:, 1:][slots_BT].float()
        hidden = step.hidden.raw.detach()[slots_BT].float()
        sums = (
            (found - wanted).square().sum(),
            (wanted - self.head.mean).square().sum(),
            found.norm(dim=1).sum(),
            wanted.norm(dim=1).sum(),
            hidden.norm(dim=1).sum(),
            slots_BT.sum(),
        )
        told = {name: part.detach() for name, part in parts.items() if name != "cosine" or part}
        return Loss(
            total, micro.ids, told, sums={"latents": torch.stack([s.double() for s in sums])}
        )

    def finish(self, step: int, batch: LatentBatch, result: StepResult) -> StepReport:
        images = [row.vectors_ND[: row.kinds.count("i")] for row in batch.rows]
        self.head.observe(torch.cat(images).to(self.device))
        found = {
            **token_counts([row.kinds.count("t") for row in batch.rows]),
            "latents/share": batch.shared,
            "latents/own": float(batch.is_own),
            "latents/input_norm": float(self.head.norm),
        }
        sums = dict(zip(SUMS, result.sums["latents"].tolist(), strict=True))
        if sums["slots"] and sums["spread"] and sums["wanted"]:
            found["latents/r2"] = 1 - sums["error"] / sums["spread"]
            found["latents/fed_ratio"] = sums["fed"] / sums["wanted"]
            found["latents/hidden_ratio"] = sums["hidden"] / sums["wanted"]
        return StepReport(found)

    def parameters(self) -> Iterable[tuple[str, Tensor]]:
        if self.settings.head == "none":
            return ()
        return [(f"latent_head.{name}", one) for name, one in self.head.named_parameters()]

    def workload(self) -> Workload:
        batch = self.settings.batch
        rows = (self.makes.row(one, has_latents=True) for one in self.records.first(min(batch, 16)))
        return given_rows(batch, max(len(row.ids) for row in rows), length="train.max_tokens")

    def _asked(self) -> Asked:
        config = self.setup.config
        spans = max(one.response.spans for one in self.records.first(64))
        return Asked(
            self.model,
            self.head,
            self.makes,
            self.device,
            config.evaluation.max_tokens or config.rollout.max_tokens,
            max_spans=0 if self.settings.head == "none" else spans,
        )

    def evaluate(self, step: int) -> HeldOutScores | None:
        """Share of held-out questions that are answered rightly; the model imagines by itself."""
        records = self.records.held_out(self.setup.config.evaluation.prompts)
        if not records:
            return None
        asked = self._asked()
        with waiting_for(ANSWERING, "prompts", len(records)):
            answers = asked.answer(records)
        marks = [asked.mark(r, a) for r, a in zip(records, answers, strict=True)]
        samples = samples_of(asked, step, self.setup.weight_version, records, answers)
        beside = ""
        if step >= self.setup.steps and self.settings.interventions and asked.max_spans:
            seed, names = self.setup.seeds.for_("interventions"), self.settings.interventions
            with waiting_for(ANSWERING, "prompts with replaced latents", len(names) * len(records)):
                found = play(asked, records, answers, names, seed)
            beside, data = told_interventions(found, answers, marks)
            if self.setup.world.is_main:
                self.setup.store.append_event("interventions", beside, data, step)
        return HeldOutScores(marks, "accuracy", samples, beside=beside)

    def state(self) -> AlgorithmState:
        encoder = self.makes.encoder
        scale = encoder.scale if isinstance(encoder, PatchEncoder) else None
        buffers = {name: one.detach().clone() for name, one in self.head.named_buffers()}
        return AlgorithmState({"scale": scale}, buffers)

    def restore(self, state: AlgorithmState) -> None:
        if state.values["scale"] is not None:
            self.makes.encoder = self._encoder(state.values["scale"])
        self.head.load_state_dict(dict(state.tensors), strict=False)

    def write(self, folder: Path) -> None:
        if self.settings.head == "none":
            return
        encoder, tokenizer = self.makes.encoder, self.loaded.tokenizer
        self.head.save(folder / HEAD_FILE)
        about: dict[str, Any] = {
            "head": self.settings.head,
            "slots": self.settings.slots,
            "tags": [tokenizer.backend.id_to_token(one) for one in self.makes.tags[:2]],
            "tag_ids": list(self.makes.tags[:2]),
            "encoder": self.settings.encoder,
        }
        if isinstance(encoder, PatchEncoder):
            about |= {"patch": encoder.patch, "scale": encoder.scale, "seed": encoder.seed}
        write_json(folder / ABOUT_FILE, about)


ALGORITHM = LatentsAlgorithm
