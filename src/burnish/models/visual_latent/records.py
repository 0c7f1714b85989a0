"""What is learned from: answers that imagine a picture, parsed strictly, and the pictures (GAP, section 3).

A `<latent/>` stands for one span of latents. A `<parser>` note follows it at once and says in words what
the imagined picture shows. What does not keep to this is refused with a reason.

Pictures become vectors of their patches by a frozen encoder without training: a patch is a fixed random
map of its pixels, and of its place. That is enough where pictures are drawn (grids, charts).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor

from burnish.boundary import SOME, Count, Positive, PositiveInt, Seed, public, public_method
from burnish.errors import ArgumentError, UserError
from burnish.models.visual_latent.objective import pool_tokens
from burnish.tensors import check_shape

if TYPE_CHECKING:
    from jaxtyping import Int

MOST_SIDE = 4096
"""Pixels of a side."""
PLACES = 64
"""Rows and columns of patches that the encoder can tell apart."""

LATENT = "<latent/>"
_TAG = re.compile(r"<(/?)(latent|parser|answer)\s*(/?)>")

TEACHER_PROMPT = """\
Answer the question about the picture. First say in one or two short sentences what you will do.
At the point where another picture would help (the same one turned, cropped, redrawn or marked), write
<latent/> in the place of that picture. Directly behind it write <parser>, then one sentence that says what
that picture shows: objects, places, relations, numbers; nothing that cannot be seen in it; then </parser>.
Then conclude in words. Write the final answer, and nothing else, between <answer> and </answer>.
Use <latent/> only where a picture helps, and never without its <parser> sentence."""
"""What a teacher model is asked that writes such answers."""


class RejectedResponse(ArgumentError):
    """An answer that cannot be learned from; `reason` is the same for all of a kind."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"text: {reason}")
        self.reason = reason


class LatentResponse(NamedTuple):
    """One answer."""

    pieces: tuple[str, ...]
    """Text before, between and behind the spans: one more than there are spans."""
    notes: tuple[str, ...]
    """What each imagined picture shows, by the answer itself; empty without a note."""
    answer: str
    plain: str
    """The same without spans and notes, for questions that need no picture."""

    @property
    def spans(self) -> int:
        return len(self.pieces) - 1


@public
def parse_response(text: str, pictures: Count, *, needs_note: bool = True) -> LatentResponse:
    """Read an answer for which there are so many auxiliary pictures.

    Refused: tags that do not match, `<latent>` in any other form than `<latent/>`, another number of
    spans than of pictures, a span without its note (`needs_note`), no answer or two.

    >>> text = "Turn it. <latent/> <parser>Red is left.</parser> <answer>red</answer>"
    >>> parse_response(text, pictures=1).plain
    'Turn it. <answer>red</answer>'
    """
    if not text.strip():
        raise RejectedResponse("no text")
    is_open = ""
    for found in _TAG.finditer(text):
        closes, name, alone = found.groups()
        if name == "latent" and (found[0] != LATENT or is_open):
            where = f"inside <{is_open}>" if is_open else f"in the place of {LATENT}"
            raise RejectedResponse(f"{found[0]} {where}")
        if name != "latent":
            if alone or is_open != (name if closes else ""):
                raise RejectedResponse("tags that do not match")
            is_open = "" if closes else name
    if is_open:
        raise RejectedResponse(f"<{is_open}> without its end")
    pieces = tuple(text.split(LATENT))
    if len(pieces) - 1 != pictures:
        raise RejectedResponse(f"{len(pieces) - 1} spans for {pictures} auxiliary pictures")
    notes = []
    for piece in pieces[1:]:
        note = re.match(r"\s*<parser>(.*?)</parser>", piece, re.DOTALL)
        if needs_note and (note is None or not note[1].strip()):
            raise RejectedResponse("a span without a <parser> note behind it")
        notes.append(note[1].strip() if note else "")
    answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if len(answers) > 1:
        raise RejectedResponse("more than one <answer>")
    answer = "".join(answers).strip()
    if not answer:
        raise RejectedResponse("no <answer>")
    plain = re.sub(r"[ \t]{2,}", " ", without_notes(text.replace(LATENT, ""))).strip()
    return LatentResponse(pieces, tuple(notes), answer, plain)


def without_notes(text: str) -> str:
    """A text without its `<parser>` notes and the space in front of them."""
    return re.sub(r"\s*<parser>.*?</parser>", "", text, flags=re.DOTALL)


@public
def answer_of(text: str) -> str | None:
    """What stands between the last answer tags of a written text; None without them.

    >>> answer_of("It is <answer> red </answer>.")
    'red'
    """
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[-1].strip() if found else None


Encoder = Callable[[Tensor], Tensor]
"""A picture, uint8 (H, W, 3), to vectors (rows, columns, D)."""


class PatchEncoder:
    """A random map of patches, fixed by its seed; nothing of it is trained."""

    @public_method
    def __init__(
        self,
        size: PositiveInt,
        patch: PositiveInt = 8,
        *,
        scale: Positive = 1.0,
        seed: Seed = 0,
    ) -> None:
        """`size`: width of the language model; `scale`: about the length of a vector."""
        self.size, self.patch, self.scale, self.seed = size, patch, scale, seed

    @cached_property
    def _filters(self) -> Tensor:
        draw = torch.Generator().manual_seed(self.seed % 2**63)
        wide = 3 * self.patch**2
        filters: Tensor = torch.randn(wide, self.size, generator=draw) / wide**0.5
        return filters

    @cached_property
    def _places(self) -> Tensor:
        draw = torch.Generator().manual_seed((self.seed + 1) % 2**63)
        rows, columns = torch.randn(2, PLACES, self.size, generator=draw)
        places: Tensor = (rows.unsqueeze(1) + columns.unsqueeze(0)) / 2**0.5
        return places

    @property
    def _factor(self) -> float:
        # Pixels of -1 to 1 have a mean square of about 1/3, places one of 1.
        return float(self.scale / (self.size * 4 / 3) ** 0.5)

    def __call__(self, pixels_HW3: Tensor) -> Tensor:
        """Vectors (rows, columns, D) of a picture whose sides are multiples of the patch."""
        pixels_HW3 = as_pixels(pixels_HW3)
        (high, below), (wide, beside) = (divmod(n, self.patch) for n in pixels_HW3.shape[:2])
        if below or beside or not 1 <= high <= PLACES or not 1 <= wide <= PLACES:
            raise ArgumentError(
                f"a picture of shape {tuple(pixels_HW3.shape)}; expected sides of 1 to {PLACES} patches "
                f"of {self.patch}. Resize it, or change the patch"
            )
        scaled = pixels_HW3.float() / 127.5 - 1
        split = scaled.view(high, self.patch, wide, self.patch, 3).permute(0, 2, 1, 3, 4)
        seen = split.reshape(high, wide, -1) @ self._filters
        return (seen + self._places[:high, :wide]) * self._factor

    def decode(self, latents_KD: Tensor, grid: tuple[int, int], shown: tuple[int, int]) -> Tensor:
        """The colour of each patch that fits vectors best, uint8 (rows, columns, 3).

        `grid`: patches of the whole picture, of which the latents are pooled to `shown`.
        """
        check_shape(latents_KD, "latents_KD", (shown[0] * shown[1], self.size))
        places = self._places[: grid[0], : grid[1]].flatten(0, 1)
        places_KD = pool_tokens.plain(places, grid, len(latents_KD))
        flat_3D = self._filters.view(self.patch**2, 3, self.size).sum(0)
        seen_KD = latents_KD.detach().float().cpu() / self._factor - places_KD
        colours_K3 = torch.linalg.lstsq(flat_3D.T, seen_KD.T).solution.T
        pixels: Tensor = ((colours_K3 + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        return pixels.view(*shown, 3)


def read_picture(value: Any, root: Path | None = None) -> Tensor:
    """uint8 (H, W, 3) of a file, a `data:` text, bytes, or rows of pixels (H, W, 3).

    With a `root`, paths start there and may not leave it, also not by a link.
    """
    is_coded = isinstance(value, str | Path | bytes)
    return _decoded(value, root) if is_coded else as_pixels(value)


@public
def as_pixels(picture: Annotated[Int[Tensor, "H W 3"], Meta(ge=0, le=255), SOME]) -> Tensor:
    """uint8 (H, W, 3) of rows of pixels; anything else is refused."""
    return picture.to(torch.uint8)


def _decoded(value: str | Path | bytes, root: Path | None) -> Tensor:
    """A file, bytes or `data:` text, opened under the limits of `burnish.media`."""
    from burnish.media import open_image

    name = "a picture of bytes" if isinstance(value, bytes) else f"picture '{str(value)[:60]}'"
    try:
        if isinstance(value, str) and value.startswith("data:"):
            value = base64.b64decode(value.partition(",")[2], validate=True)
        if root is not None and not isinstance(value, bytes):
            value = (root / value).resolve()
            if not value.is_relative_to(root.resolve()):
                raise UserError(f"it leads out of {root}; expected a file inside")
        image = open_image(value)
    except (OSError, ValueError, UserError) as error:
        raise ArgumentError(f"{name} cannot be read: {error}") from error
    wide, high = image.size
    if max(wide, high) > MOST_SIDE:
        raise ArgumentError(f"{name}: {wide} x {high} pixels; expected sides to {MOST_SIDE}")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(high, wide, 3)
