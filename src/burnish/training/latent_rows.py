"""Records of questions with auxiliary pictures, as rows of tokens and vectors.

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
from burnish.models.visual_latent.objective import pool_tokens
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
        if not given.isfinite().all():
            raise UserError(f"task {task}: vectors of a picture that are no numbers")
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
