"""Answers that a model writes with latents: right or wrong, under interventions, and as samples.

The gate says which questions the start model answers without latents, with as few answers as decide.
A question is asked until its side of the threshold is known: at 8 answers and 0.5 at most, four wrong
ones are enough. Questions are asked in the order of the run, 16 at a time, until `most` of them are
measured, or until at most one in twenty lies on the other side, at 95 %. The side of most measured
questions is then assumed for the others. A stopped measurement continues as if it had not been.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.activity import advance, waiting_for
from burnish.bench.statistics import wilson
from burnish.models.visual_latent import (
    LatentAnswer,
    LatentHead,
    PatchEncoder,
    answer_of,
    generate_latents,
    use_latent,
)
from burnish.models.visual_latent.generate import Intervention
from burnish.models.visual_latent.objective import pooled_grid
from burnish.png import data_uri
from burnish.records import Author, Finish, Reward, Span, Trajectory
from burnish.store import StoredSample
from burnish.store.durable import write_file
from burnish.training.algorithm import HELD_OUT, stored
from burnish.training.latent_rows import Record, RowMaker, collated

ANSWERING = "sampler"
"""What an evaluation waits for while records are answered, as with other kinds of training."""
ROWS = 32
MEANING = "1 where the text in <answer> is the record's"
SHOWN_SIDE = 96


class Asked(NamedTuple):
    model: Any
    head: LatentHead
    rows: RowMaker
    device: torch.device
    max_tokens: int
    max_spans: int = 0
    temperature: float = 0.0

    def answer(
        self,
        records: Sequence[Record],
        generator: torch.Generator | None = None,
        intervention: Intervention = "none",
        latents: Sequence[Sequence[Tensor]] | None = None,
    ) -> list[LatentAnswer]:
        found: list[LatentAnswer] = []
        for begin in range(0, len(records), ROWS):
            some = records[begin : begin + ROWS]
            prompts = collated([self.rows.prompt(one) for one in some], self.rows.size, self.device)
            found += generate_latents(
                *(self.model, self.head, prompts, self.rows.tags),
                slots=self.rows.slots,
                max_tokens=self.max_tokens,
                max_spans=self.max_spans,
                temperature=self.temperature,
                generator=generator,
                intervention=intervention,
                latents=None if latents is None else latents[begin : begin + ROWS],
            )
            advance(ANSWERING, len(some))
        return found

    def text(self, answer: LatentAnswer) -> str:
        """What an answer says, `<latent/>` where it imagines."""
        tags, pieces = self.rows.tags, [list[int]()]
        for token in answer.ids:
            if token == tags.start:
                pieces.append([])
            elif token not in (tags.end, tags.stop):
                pieces[-1].append(token)
        return " <latent/> ".join(map(self.rows.tokenizer.decode, pieces)).strip()

    def mark(self, record: Record, answer: LatentAnswer) -> float:
        """1 where the answer is that of the record, apart from case and space."""
        said, wanted = answer_of(self.text(answer)), record.response.answer
        return float(said is not None and said.casefold().split() == wanted.casefold().split())


def play(
    asked: Asked,
    records: Sequence[Record],
    plain: Sequence[LatentAnswer],
    names: Sequence[Intervention],
    seed: int,
) -> dict[str, list[float]]:
    """Marks of the same records with latents replaced; those that cannot be played are left out."""
    found: dict[str, list[float]] = {}
    for name in names:
        given: list[Sequence[Tensor]] | None = None
        chosen = list(records)
        if name == "oracle":
            chosen = [one for one in records if one.can_imagine]
            given = [[t.to(asked.device) for t in asked.rows.targets(one)] for one in chosen]
        elif name == "shuffle":
            chosen, given = [], []
            for begin in range(0, len(records), ROWS):
                answers = plain[begin : begin + ROWS]
                if sum(bool(answer.latents) for answer in answers) > 1:  # some to exchange
                    chosen += records[begin : begin + ROWS]
                    given += [answer.latents for answer in answers]
        if name == "shuffle" and not chosen:
            continue
        generator = torch.Generator(asked.device).manual_seed(seed % 2**63)
        answers = asked.answer(chosen, generator, name, given)
        found[name] = [asked.mark(r, a) for r, a in zip(chosen, answers, strict=True)]
    return found


def told_interventions(
    found: Mapping[str, Sequence[float]], answers: Sequence[LatentAnswer], marks: Sequence[float]
) -> tuple[str, dict[str, float]]:
    means = {name: sum(values) / len(values) for name, values in found.items() if values}
    own = sum(marks) / len(marks)
    spans = sum(len(one.latents) for one in answers) / len(answers)
    shown = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    line = f"answers with own latents {own:.3f} ({spans:.2g} spans each); replaced: {shown}"
    return line, {"own": own, "spans": spans, "questions": len(marks), **means}


def samples_of(
    asked: Asked,
    step: int,
    version: int,
    records: Sequence[Record],
    answers: Sequence[LatentAnswer],
) -> list[StoredSample]:
    rows = []
    for index, (record, answer) in enumerate(zip(records, answers, strict=True)):
        prompt = asked.rows.tokenizer.render(record.task.messages)
        name = f"eval.{step}.{index}"
        trajectory = Trajectory(
            name,
            record.task.id,
            name,
            (Span(Author.PROMPT, tuple(prompt)), Span(Author.MODEL, tuple(answer.ids))),
            asked.text(answer),
            finish=Finish.STOP if answer.is_finished else Finish.LENGTH,
            weight_version=version,
            info={"latents": shown_latents(asked, record, answer)} if answer.latents else {},
        )
        reward = Reward("answer", asked.mark(record, answer), reason=MEANING)
        rows.append((record.task, trajectory, reward))
    return stored(step, HELD_OUT, rows)


def shown_latents(asked: Asked, record: Record, answer: LatentAnswer) -> list[dict[str, Any]]:
    """Each span: its length beside that of the true picture, and both as pictures where they decode."""
    grids, targets = asked.rows.grids(record), asked.rows.targets(record)
    notes, encoder, slots = record.response.notes, asked.rows.encoder, asked.rows.slots

    def picture(patches: PatchEncoder, grid: Tensor, latents_KD: Tensor) -> str:
        rows, columns, _ = grid.shape
        pixels = patches.decode(latents_KD, (rows, columns), pooled_grid(slots, rows, columns))
        times = max(1, SHOWN_SIDE // max(pixels.shape[:2]))
        return data_uri(pixels.repeat_interleave(times, 0).repeat_interleave(times, 1).tolist())

    found = []
    for number, latents in enumerate(answer.latents):
        one: dict[str, Any] = {"slots": len(latents), "clipped": answer.clipped}
        target = targets[number] if number < len(targets) else None
        if len(latents):
            one["norm"] = round(float(latents.float().cpu().norm(dim=1).mean()), 4)
        if target is not None:
            one["target_norm"] = round(float(target.norm(dim=1).mean()), 4)
            one["note"] = notes[number] if number < len(notes) else ""
        if isinstance(encoder, PatchEncoder) and grids and len(latents):
            grid = grids[min(number, len(grids) - 1)]
            one["picture"] = picture(encoder, grid, latents.float().cpu())
            if target is not None:
                one["target"] = picture(encoder, grid, target)
        found.append(one)
    return found


TOGETHER = 16
"""Questions between two writes and two looks at the interval."""
RARE = 0.05
"""Measuring ends when, at 95 %, at most this share lies on the other side of the threshold."""
LABEL = "measuring the start model"

Seed = Callable[[str, int], int]
"""From a task and a round to a seed."""


def most_right(samples: int, threshold: float) -> int:
    """A question is hard where at most so many of its answers are right; -1: none is.

    >>> most_right(8, 0.5)
    4
    """
    return max(k for k in range(-1, samples + 1) if k == -1 or k / samples <= threshold)


def pass_rates(
    asked: Asked, records: Sequence[Record], samples: int, threshold: float, seed: Seed
) -> list[float]:
    """Share of right answers of a model that may not imagine, on the right side of the threshold.

    Each question is asked in rounds, as often as the side could be known at the earliest; the share is
    that of the answers asked for.
    """
    most = most_right(samples, threshold)
    right, wrong = [0] * len(records), [0] * len(records)

    def missing(place: int) -> int:
        """Answers after which the side may be known; 0 where it is."""
        still = min(most + 1 - right[place], samples - most - wrong[place])
        return max(still, 0) if right[place] + wrong[place] else max(still, 1)

    turn = 0
    while places := [place for place in range(len(records)) if missing(place)]:
        rows = [place for place in places for _ in range(missing(place))]
        for begin in range(0, len(rows), ROWS):
            some = rows[begin : begin + ROWS]
            draw = torch.Generator(asked.device)
            draw.manual_seed(seed(f"{records[some[0]].task.id} {begin}", turn) % 2**63)
            answers = asked.answer([records[place] for place in some], draw)
            for place, answer in zip(some, answers, strict=True):
                (right if asked.mark(records[place], answer) else wrong)[place] += 1
        turn += 1
    return [r / (r + w) for r, w in zip(right, wrong, strict=True)]


@dataclass
class CapacityGate:
    """Pass rates of the start model, and the side assumed for questions that were not measured."""

    samples: int
    threshold: float
    most: int
    """Questions that are measured; 0: every one, whatever the interval says."""
    rates: dict[str, float] = field(default_factory=dict)
    rest_is_hard: bool | None = None
    """The side assumed for questions that were not measured; None: all were."""

    def is_hard(self, task: str) -> bool | None:
        """Whether a question gets latents; None where nothing is known of it."""
        rate = self.rates.get(task)
        if rate is None:
            return self.rest_is_hard
        return bool(use_latent([rate], self.threshold, False)[0])

    def read(self, file: Path) -> None:
        if file.is_file():
            self.rates = json.loads(file.read_text(encoding="utf-8"))

    def planned(self, records: Sequence[Record]) -> Sequence[Record]:
        return records[: self.most] if self.most else records

    def measure(
        self,
        asked: Asked,
        records: Sequence[Record],
        seed: Seed,
        file: Path,
        *,
        writes: bool = True,
        chunks: int | None = None,
    ) -> float:
        """Measure, `chunks` times 16 further questions at most; returns the seconds that took."""
        began, planned, new = time.monotonic(), self.planned(records), 0
        with waiting_for(LABEL, "questions", len(planned)):
            for begin in range(0, len(planned), TOGETHER):
                some = planned[begin : begin + TOGETHER]
                missing = [one for one in some if one.task.id not in self.rates]
                if missing and new == chunks:
                    break
                if missing:
                    found = pass_rates(asked, missing, self.samples, self.threshold, seed)
                    ids = [one.task.id for one in missing]
                    self.rates |= dict(zip(ids, found, strict=True))
                    new += 1
                    if writes:
                        file.parent.mkdir(parents=True, exist_ok=True)
                        write_file(file, json.dumps(self.rates, sort_keys=True).encode())
                advance(LABEL, len(some))
                if self._settles(records, begin + len(some)):
                    break
        return time.monotonic() - began

    def _settles(self, records: Sequence[Record], count: int) -> bool:
        """Assume the side of most of the first `count` for the rest; True where no more are asked."""
        if count == len(records):
            self.rest_is_hard = None
            return True
        hard = sum(self.is_hard(one.task.id) is True for one in records[:count])
        share = wilson(hard, count)
        self.rest_is_hard = share.value >= 0.5
        return self.most > 0 and (share.high <= RARE or share.low >= 1 - RARE)
