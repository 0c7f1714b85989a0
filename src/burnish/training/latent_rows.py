"""Records of questions with auxiliary pictures, as rows of tokens and vectors.

A row is: vectors of the question's picture, the prompt, then the answer, in which each `<latent/>` is
the opening tag, so many slots and the closing tag.

The gate says which questions the start model answers without latents, with as few answers as decide.
A question is asked until its side of the threshold is known: at 8 answers and 0.5 at most, four wrong
ones are enough. Questions are asked in the order of the run, 16 at a time, until 256 of them are
measured, or until at most one in twenty lies on the other side, at 95 %. The side of most measured
questions is then assumed for the others. A stopped measurement continues as if it had not been.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from burnish.activity import advance, waiting_for
from burnish.bench.statistics import wilson
from burnish.errors import ArgumentError, UserError
from burnish.lm.tokenizer import Tokenizer, end_of_turn
from burnish.models.visual_latent import (
    LatentAnswer,
    LatentHead,
    LatentResponse,
    LatentRows,
    LatentTags,
    PatchEncoder,
    answer_of,
    generate_latents,
    use_latent,
)
from burnish.models.visual_latent.objective import pool_tokens, pooled_grid
from burnish.models.visual_latent.records import (
    Encoder,
    RejectedResponse,
    parse_response,
    read_picture,
    without_notes,
)
from burnish.models.visual_latent.step import Intervention
from burnish.png import data_uri
from burnish.records import Author, Finish, Reward, Span, Task, Trajectory
from burnish.store import StoredSample
from burnish.store.blobs import shared_blobs
from burnish.store.durable import write_file
from burnish.training.algorithm import HELD_OUT, stored
from burnish.training.data import text_of
from burnish.training.labelled import LabelledSet, UnusableRow

if TYPE_CHECKING:
    from burnish.config.schema import LatentsTrain
    from burnish.training.data import Data

TAG_NAMES = ("<latent>", "</latent>")
CONTROL = "\x0e\x0f"
"""Characters that no text has, for vocabularies of bytes."""
BASE_ACCURACY, USE_LATENT = "base_accuracy", "use_latent"
IGNORED = -100


class Record(NamedTuple):
    task: Task
    response: LatentResponse
    image: Any
    aux_images: tuple[Any, ...]
    base_accuracy: float | None
    use_latent: bool | None

    @property
    def can_imagine(self) -> bool:
        return bool(self.aux_images)


def record_set(data: Data, settings: LatentsTrain, **more: Any) -> LabelledSet[Record]:
    """The usable records of the settings' tasks."""

    def read(task: Task) -> Record:
        """Without auxiliary pictures, its text-only form."""
        aux = task.fields.get(settings.aux_images) or ()
        if not isinstance(aux, list | tuple):
            raise UnusableRow(f"'{settings.aux_images}' that is no list of pictures")
        text = text_of(task.fields.get(settings.response))
        count = len(aux) if aux else text.count("<latent/>")
        try:
            response = parse_response(text, count, needs_note=settings.notes)
        except RejectedResponse as rejected:
            raise UnusableRow(rejected.reason) from None
        if not settings.notes:
            response = response._replace(pieces=tuple(map(without_notes, response.pieces)))
        share, use = task.fields.get(BASE_ACCURACY), task.fields.get(USE_LATENT)
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if share is not None and not (is_number and 0 <= share <= 1):
            raise UnusableRow(f"'{BASE_ACCURACY}' that is no share from 0 to 1")
        if use is not None and not isinstance(use, bool):
            raise UnusableRow(f"'{USE_LATENT}' that is neither true nor false")
        known = None if share is None else float(share)
        return Record(task, response, task.fields.get(settings.image), tuple(aux), known, use)

    return LabelledSet(
        data.open(settings.task),
        read,
        what="records",
        bad=settings.bad_records,
        together=False,
        **more,
    )


class Row(NamedTuple):
    id: str
    ids: list[int]
    kinds: str
    """A letter a place: i image, p prompt, t text that is learned, z latent slot."""
    vectors_ND: Tensor
    """Of the places i and z, in order."""


class LatentBatch(NamedTuple):
    rows: list[Row]
    is_own: bool
    shared: float

    def count(self, kind: str) -> int:
        return sum(row.kinds.count(kind) for row in self.rows)


class LatentMicro(NamedTuple):
    rows: LatentRows
    ids: list[str]
    is_own: bool
    text_share: float
    """Its learned tokens over those of the update."""
    latent_share: float


class RowMaker:
    """Turns records into rows; the same record always gives the same row."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tags: LatentTags,
        encoder: Encoder,
        size: int,
        slots: int,
        root: Path,
    ) -> None:
        self.tokenizer, self.tags, self.encoder = tokenizer, tags, encoder
        self.size, self.slots, self.root = size, slots, root
        self.end = end_of_turn(tokenizer)

    def row(self, record: Record, *, has_latents: bool) -> Row:
        prompt = self.prompt(record)
        ids, kinds, vectors = list(prompt.ids), prompt.kinds, [prompt.vectors_ND]
        response = record.response
        pieces = response.pieces if has_latents and record.can_imagine else (response.plain,)
        targets = self.targets(record) if len(pieces) > 1 else []
        for number, piece in enumerate(pieces):
            if number:
                ids += [self.tags.start, *[self.tags.start] * self.slots, self.tags.end]
                kinds += "t" + "z" * self.slots + "t"
                vectors.append(targets[number - 1])
            written = self.tokenizer.encode_data(piece.strip())
            ids += written
            kinds += "t" * len(written)
        ids += self.end
        kinds += "t" * len(self.end)
        return Row(record.task.id, ids, kinds, torch.cat(vectors))

    def prompt(self, record: Record) -> Row:
        image_ND = torch.zeros(0, self.size)
        if record.image is not None:
            image_ND = self.vectors(record.image, record.task.id).flatten(0, 1)
        question = self.tokenizer.render(record.task.messages)
        ids = [*[self.tags.start] * len(image_ND), *question]
        return Row(record.task.id, ids, "i" * len(image_ND) + "p" * len(question), image_ND)

    def targets(self, record: Record) -> list[Tensor]:
        """What each span should be, (K, D) each."""
        return [
            pool_tokens(grid.flatten(0, 1), (grid.shape[0], grid.shape[1]), self.slots).float()
            for grid in self.grids(record)
        ]

    def grids(self, record: Record) -> list[Tensor]:
        """Vectors of each auxiliary picture, (rows, columns, D)."""
        found = [self.vectors(value, record.task.id) for value in record.aux_images]
        for grid in found:
            if grid.shape[0] * grid.shape[1] < self.slots:
                raise UserError(
                    f"task {record.task.id}: an auxiliary picture of {grid.shape[0]} x {grid.shape[1]} "
                    f"vectors; expected at least train.slots = {self.slots}. Lower train.slots"
                )
        return found

    def vectors(self, value: Any, task: str) -> Tensor:
        """(rows, columns, D) of a picture, or of vectors as they are given: (N, D) is one row."""
        if isinstance(value, dict) and isinstance(value.get("sha256"), str):
            value = shared_blobs().bytes_of(value["sha256"])
        given: Any = None
        try:
            if not isinstance(value, str | bytes | Path):  # numbers with a point are vectors
                numbers = torch.as_tensor(value)
                if numbers.is_floating_point() and numbers.ndim in (2, 3):
                    given = numbers.unsqueeze(0) if numbers.ndim == 2 else numbers
            if given is None:
                given = self.encoder(read_picture(value, self.root))
        except (ArgumentError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"task {task}: a picture of {type(value).__name__}: {error}") from error
        if not isinstance(given, Tensor) or given.ndim != 3 or given.shape[2] != self.size:
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise UserError(
                f"task {task}: a picture became {shape}; expected (rows, columns, {self.size}), "
                "the width of the model"
            )
        return given.detach().float().cpu()


def collated(rows: Sequence[Row], size: int, device: torch.device) -> LatentRows:
    """Rows as one batch, padded on the left."""
    length = max(len(row.ids) for row in rows)
    shape = (len(rows), length)
    ids, labels = torch.zeros(shape, dtype=torch.long), torch.full(shape, IGNORED)
    mask, is_image, is_latent = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    vectors = torch.zeros(*shape, size)
    for index, row in enumerate(rows):
        place, written = (index, slice(length - len(row.ids), None)), torch.tensor(row.ids)
        of = {kind: torch.tensor([one == kind for one in row.kinds]) for kind in "izt"}
        ids[place], mask[place] = written, True
        is_image[place], is_latent[place] = of["i"], of["z"]
        labels[place] = torch.where(of["t"], written, IGNORED)
        vectors[place][of["i"] | of["z"]] = row.vectors_ND
    found = (ids, mask, vectors, is_image, is_latent, labels)
    return LatentRows(*(part.to(device) for part in found))


def find_tags(tokenizer: Tokenizer, names: Sequence[str]) -> LatentTags:
    """Token ids that open and close a span, and the one that ends an answer."""
    end, id_of = end_of_turn(tokenizer), tokenizer.backend.token_to_id

    def one(text: str) -> int | None:
        """The only token of a text."""
        ids = tokenizer.encode(text)
        return ids[0] if len(ids) == 1 else None

    if not end:
        raise UserError("the model's tokenizer has no end token; expected one to end answers with")
    if names and (len(names) != 2 or names[0] == names[1]):
        raise UserError(f"train.tags: got {list(names)}, expected two different tokens")
    known: Sequence[int | None] = [id_of(name) for name in names or TAG_NAMES]
    if names:
        known = [one(n) if i is None else i for n, i in zip(names, known, strict=True)]
    elif None in known:
        known = _unused(tokenizer) or [one(text) for text in CONTROL]
    start, close = known
    if start is None or close is None:
        raise UserError(
            f"train.tags: {' or '.join(map(repr, names or TAG_NAMES))} is not one token of this "
            "model; name two tokens of its vocabulary that no text has, such as "
            'train.tags=\'["<a>", "<b>"]\''
        )
    return LatentTags(int(start), int(close), end[0])


def _unused(tokenizer: Tokenizer) -> list[int]:
    """Two special tokens that neither the chat template nor the end of a text uses."""
    template = tokenizer.template.source if tokenizer.template else ""
    special = tokenizer.backend.get_added_tokens_decoder()
    taken = {*tokenizer.eos_ids, tokenizer.pad_id}
    free = [
        number
        for number, token in sorted(special.items())
        if token.special and number not in taken and token.content not in template
    ]
    return free[:2] if len(free) > 1 and len(special) > 4 else []


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


MOST_ASKED = 256
"""Questions that are measured at most, fewer where nearly all of them are alike."""
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

    def measure(
        self,
        asked: Asked,
        records: Sequence[Record],
        seed: Seed,
        file: Path,
        *,
        writes: bool = True,
    ) -> None:
        planned = records[:MOST_ASKED]
        with waiting_for(LABEL, "questions", len(planned)):
            for begin in range(0, len(planned), TOGETHER):
                some = planned[begin : begin + TOGETHER]
                missing = [one for one in some if one.task.id not in self.rates]
                if missing:
                    found = pass_rates(asked, missing, self.samples, self.threshold, seed)
                    ids = [one.task.id for one in missing]
                    self.rates |= dict(zip(ids, found, strict=True))
                    if writes:
                        file.parent.mkdir(parents=True, exist_ok=True)
                        write_file(file, json.dumps(self.rates, sort_keys=True).encode())
                advance(LABEL, len(some))
                if self._settles(records, begin + len(some)):
                    break

    def _settles(self, records: Sequence[Record], count: int) -> bool:
        """Assume the side of most of the first `count` for the rest; True where no more are asked."""
        if count == len(records):
            self.rest_is_hard = None
            return True
        hard = sum(self.is_hard(one.task.id) is True for one in records[:count])
        share = wilson(hard, count)
        self.rest_is_hard = share.value >= 0.5
        return share.high <= RARE or share.low >= 1 - RARE
