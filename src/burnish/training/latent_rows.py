"""Records of questions with auxiliary pictures, as rows of tokens and vectors.

    record = read_record(task, fields)                 # or UnusableRow, with the reason
    row = rows.row(record, has_latents=True)
    collated([row, ...], device)                       # LatentRows of models/visual_latent

A row is: vectors of the question's picture, the prompt, then the answer, in which each `<latent/>` is
the opening tag, so many slots and the closing tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from burnish.errors import ArgumentError, UserError
from burnish.lm.tokenizer import Tokenizer, end_of_turn
from burnish.models.visual_latent import LatentResponse, LatentRows, LatentTags
from burnish.models.visual_latent.objective import pool_tokens, pooled_grid
from burnish.models.visual_latent.records import (
    Encoder,
    RejectedResponse,
    parse_response,
    read_picture,
    without_notes,
)
from burnish.records import Task
from burnish.store.blobs import shared_blobs
from burnish.training.data import text_of
from burnish.training.labelled import LabelledSet, UnusableRow

if TYPE_CHECKING:
    from burnish.config.schema import LatentsTrain
    from burnish.training.data import Data

TAG_NAMES = ("<latent>", "</latent>")
CONTROL = "\x0e\x0f"
"""Characters that no text has, for vocabularies of bytes."""
BASE_ACCURACY, USE_LATENT = "base_accuracy", "use_latent"
"""Fields of a record that the gate reads."""
IGNORED = -100


class RecordFields(NamedTuple):
    image: str = "image"
    aux_images: str = "aux_images"
    response: str = "response"
    notes: bool = True
    """False: the notes behind spans are left out."""


class Record(NamedTuple):
    """A question, its answer and its pictures, not decoded yet."""

    task: Task
    response: LatentResponse
    image: Any
    aux_images: tuple[Any, ...]
    base_accuracy: float | None
    use_latent: bool | None

    @property
    def can_imagine(self) -> bool:
        return bool(self.aux_images)


def read_record(task: Task, fields: RecordFields) -> Record:
    """The record of a task; without auxiliary pictures, its text-only form."""
    aux = task.fields.get(fields.aux_images) or ()
    if not isinstance(aux, list | tuple):
        raise UnusableRow(f"'{fields.aux_images}' that is no list of pictures")
    text = text_of(task.fields.get(fields.response))
    count = len(aux) if aux else text.count("<latent/>")
    try:
        response = parse_response(text, count, needs_note=fields.notes)
    except RejectedResponse as rejected:
        raise UnusableRow(rejected.reason) from None
    if not fields.notes:
        response = response._replace(pieces=tuple(map(without_notes, response.pieces)))
    share = task.fields.get(BASE_ACCURACY)
    is_share = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1
    if share is not None and not is_share:
        raise UnusableRow(f"'{BASE_ACCURACY}' that is no share from 0 to 1")
    use = task.fields.get(USE_LATENT)
    if use is not None and not isinstance(use, bool):
        raise UnusableRow(f"'{USE_LATENT}' that is neither true nor false")
    known = None if share is None else float(share)
    return Record(task, response, task.fields.get(fields.image), tuple(aux), known, use)


def record_set(data: Data, settings: LatentsTrain, **more: Any) -> LabelledSet[Record]:
    """The usable records of the settings' tasks."""
    fields = RecordFields(settings.image, settings.aux_images, settings.response, settings.notes)
    return LabelledSet(
        data.open(settings.task),
        lambda task: read_record(task, fields),
        what="records",
        bad=settings.bad_records,
        setting="train.bad_records",
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
    """Slots are fed with the model's own predictions."""
    shared: float
    """Share of the rows with latents."""

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
        image_ND = self.image(record)
        question = self.tokenizer.render(record.task.messages)
        ids = [*[self.tags.start] * len(image_ND), *question]
        return Row(record.task.id, ids, "i" * len(image_ND) + "p" * len(question), image_ND)

    def image(self, record: Record) -> Tensor:
        """Vectors of the question's picture, (N, D); none where it has no picture."""
        if record.image is None:
            return torch.zeros(0, self.size)
        return self.vectors(record.image, record.task.id).flatten(0, 1)

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

    def shown(self, grid: Tensor) -> tuple[int, int]:
        """Rows and columns that latents of such a picture stand for."""
        return pooled_grid(self.slots, grid.shape[0], grid.shape[1])

    def vectors(self, value: Any, task: str) -> Tensor:
        """(rows, columns, D) of a picture, or of vectors as they are given: (N, D) is one row."""
        if isinstance(value, dict) and isinstance(value.get("sha256"), str):
            value = shared_blobs().bytes_of(value["sha256"])
        try:
            given = _as_vectors(value)
            if given is None:
                given = self.encoder(read_picture(value, self.root))
        except ArgumentError as error:
            raise UserError(f"task {task}: {error}") from error
        if not isinstance(given, Tensor) or given.ndim != 3 or given.shape[2] != self.size:
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise UserError(
                f"task {task}: a picture became {shape}; expected (rows, columns, {self.size}), "
                "the width of the model"
            )
        if not given.isfinite().all():
            raise UserError(f"task {task}: vectors of a picture that are no numbers")
        return given.detach().float().cpu()


def _as_vectors(value: Any) -> Tensor | None:
    """Numbers with a point as vectors; None for what is a picture."""
    if isinstance(value, str | bytes | Path):
        return None
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"a picture of {type(value).__name__}: {error}") from error
    if not found.is_floating_point() or found.ndim not in (2, 3):
        return None
    return found.unsqueeze(0) if found.ndim == 2 else found


def collated(rows: Sequence[Row], size: int, device: torch.device) -> LatentRows:
    """Rows as one batch, padded on the left."""
    length = max(len(row.ids) for row in rows)
    shape = (len(rows), length)
    ids, labels = torch.zeros(shape, dtype=torch.long), torch.full(shape, IGNORED)
    mask, is_image, is_latent = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    vectors = torch.zeros(*shape, size)
    for index, row in enumerate(rows):
        begin = length - len(row.ids)
        written = torch.tensor(row.ids)
        of = {kind: torch.tensor([one == kind for one in row.kinds]) for kind in "izt"}
        ids[index, begin:], mask[index, begin:] = written, True
        is_image[index, begin:], is_latent[index, begin:] = of["i"], of["z"]
        labels[index, begin:] = torch.where(of["t"], written, IGNORED)
        vectors[index, begin:][of["i"] | of["z"]] = row.vectors_ND
    found = (ids, mask, vectors, is_image, is_latent, labels)
    return LatentRows(*(part.to(device) for part in found))


def find_tags(tokenizer: Tokenizer, names: Sequence[str]) -> LatentTags:
    """Token ids that open and close a span, and the one that ends an answer."""
    end = end_of_turn(tokenizer)
    if not end:
        raise UserError("the model's tokenizer has no end token; expected one to end answers with")
    if names:
        if len(names) != 2 or names[0] == names[1]:
            raise UserError(f"train.tags: got {list(names)}, expected two different tokens")
        start, close = (_token(tokenizer, name) for name in names)
        return LatentTags(start, close, end[0])
    known: Sequence[int | None] = [tokenizer.backend.token_to_id(name) for name in TAG_NAMES]
    if None in known:
        known = _unused(tokenizer) or [_one(tokenizer, text) for text in CONTROL]
    if len(known) < 2 or None in known:
        raise UserError(
            "the tokenizer has neither <latent> nor two tokens that no text has; name two with "
            'train.tags, such as train.tags=\'["<a>", "<b>"]\''
        )
    return LatentTags(int(known[0] or 0), int(known[1] or 0), end[0])


def _token(tokenizer: Tokenizer, name: str) -> int:
    found = tokenizer.backend.token_to_id(name)
    found = _one(tokenizer, name) if found is None else found
    if found is None:
        raise UserError(
            f"train.tags: '{name}' is not one token of this model; expected a token of its vocabulary"
        )
    return int(found)


def _one(tokenizer: Tokenizer, text: str) -> int | None:
    ids = tokenizer.encode(text)
    return ids[0] if len(ids) == 1 else None


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
