"""Images and sounds as a transformers processor reads them, kept by hash.

Each medium is processed once, alone, by the model's own processor: what it makes of the placeholder
token is the expansion, the tensors beside are those of this medium. They are kept within a limit of
bytes and made again from the blobs when they are needed again, also after a resume. How a family
joins the media of a batch is found by giving its processor two at once: one after the other (Qwen2.5-VL,
LLaVA, Qwen2-Audio) or row by row, short rows filled up with zeros (Idefics, SmolVLM).
"""

from __future__ import annotations

import copy
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.errors import MediaError, UserError, first_line
from burnish.lm.pretrained import load_processor
from burnish.media.images import image_info, open_image
from burnish.media.sounds import read_sound
from burnish.records import AudioPart, ImagePart, MediaPart
from burnish.store.blobs import Blobs, shared_blobs

CACHE_BYTES = 2 * 2**30
MOST_UNDERWAY = 256
MOST_MEDIA = 64
"""Images and sounds of one conversation, where a family sets no limit."""
_TEXT_TENSORS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
_MODALITIES = {"image": 1, "audio": 3}
"""Numbers by which transformers tells tokens of images and sounds from text (0) and video (2)."""


class _Medium(NamedTuple):
    ids: tuple[int, ...]
    tensors: dict[str, Tensor]

    @property
    def size(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


class MediaProcessor:
    """A transformers processor, its cache and its threads."""

    def __init__(self, processor: Any, name: str) -> None:
        """`name` is the model's, for messages."""
        self.processor, self.name, self.limit = processor, name, CACHE_BYTES
        self.blobs: list[Blobs] = []
        """Where bytes are looked for, before this machine's shared ones."""
        self.most = MOST_MEDIA
        self.examples: list[MediaPart] = []
        """A medium of each kind, for trying a model."""
        self._shares_border = False
        """Two media side by side have one token between them, not two (Idefics2)."""
        self._axes: dict[str, int] = {}
        """Along which axis a tensor holds the media: 0 one after the other, 1 row by row."""
        self._kept: OrderedDict[str, _Medium] = OrderedDict()
        self._expansions: dict[str, tuple[int, ...]] = {}
        self._sizes: dict[tuple[int, int] | None, tuple[int, ...]] = {}
        """Expansions of images by their width and height."""
        self._same_ids: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Each expansion once: those of many images are alike, and all are kept."""
        self._underway: dict[str, Future[_Medium]] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._own = threading.local()
        self.processed = 0
        """More than there are media means that some were made again."""
        self.waited_s = 0.0
        """How long a model waited for them."""

    @classmethod
    def from_folder(cls, folder: Path) -> MediaProcessor:
        """The processor of a model's folder; code that comes with it is not run."""
        processor = load_processor(folder)
        found = cls(processor, folder.name)
        if not found.placeholders:
            raise UserError(
                f"{folder}: {type(processor).__name__} names no image_token and no audio_token"
            )
        try:
            found.probe()
        except MediaError as error:
            raise UserError(f"{folder}: a small image or sound was tried: {error}") from error
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> MediaProcessor:
        """A copy of the model reads the same media with the same processor."""
        return self

    # --- what the tokenizer asks

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kinds of media that it reads, and the placeholder token of each."""
        found = {}
        for kind in _MODALITIES:
            has_part = getattr(self.processor, _PART[kind], None) is not None
            text = getattr(self.processor, f"{kind}_token", None)
            if has_part and isinstance(text, str) and text:
                found[kind] = text
        return found

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(self.kinds.values())

    @cached_property
    def placeholder_ids(self) -> tuple[int, ...]:
        """Ids of the placeholder tokens: never sampled, never trained."""
        vocabulary = self.processor.tokenizer.get_vocab()
        return tuple(vocabulary[text] for text in self.placeholders)

    def placeholder(self, part: MediaPart) -> str:
        """The token that the chat template writes for it."""
        kind = kind_of(part)
        if kind not in self.kinds:
            reads = " and ".join(_PLURAL[one] for one in self.kinds)
            raise MediaError(
                f"'{self.name}' reads {reads}; got {_ARTICLE[kind]} ({part.media_type} "
                f"{part.sha256[:12]}). Use a model that reads {_PLURAL[kind]}, or a task without"
            )
        return self.kinds[kind]

    def expansion(self, part: MediaPart, *, has_neighbour: bool = False) -> tuple[int, ...]:
        """The tokens that take the placeholder's place, also right behind those of another."""
        ids = self._expansions.get(part.sha256) or self._by_size(part)
        if ids is None:
            ids = self._get(part).ids
        return ids[1:] if has_neighbour and self._shares_border else ids

    def count_of(self, part: MediaPart) -> int:
        """How many placeholder tokens stand for it."""
        return sum(token in self.placeholder_ids for token in self.expansion(part))

    # --- what the model asks

    def check(self, ids: Sequence[int], media: Sequence[MediaPart]) -> None:
        """Refuse a row whose placeholder tokens are not those of its media."""
        found = sum(token in self.placeholder_ids for token in ids)
        expected = sum(map(self.count_of, media))
        if found != expected:
            raise UserError(
                f"a row has {found} placeholder tokens ({', '.join(self.placeholders)}) and its "
                f"{len(media)} images and sounds stand for {expected}; expected as many. Give the "
                "messages, or ids as tokenizer.prompt_ids makes them"
            )

    def prefetch(self, parts: Iterable[MediaPart]) -> None:
        """Begin to process media that will be asked for, in their order, without waiting."""
        with self._lock:
            # Media of one model are of similar size; before the first, its size is not known.
            size = self._bytes // len(self._kept) if self._kept else 0
            room = min(self.limit // max(size, 1) // 2, MOST_UNDERWAY) - len(self._underway)
            for part in dict.fromkeys(parts):
                if room <= 0:
                    return
                if part.sha256 not in self._kept and part.sha256 not in self._underway:
                    self._begin(part)
                    room -= 1

    def tensors(
        self, rows: Sequence[Sequence[MediaPart]], device: torch.device, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """The tensors of a batch, by the names that the model's forward gives them."""
        if not any(rows):
            return {}
        made = [[self._get(part).tensors for part in row] for row in rows]
        names = dict.fromkeys(name for row in made for one in row for name in one)
        found = {}
        for name in names:
            by_row = [[one[name] for one in row if name in one] for row in made]
            if self._axes.get(name) == 1:
                joined = _by_row(by_row)
            else:
                joined = torch.cat(_same_size([one for row in by_row for one in row], free=0))
            is_real = joined.is_floating_point()
            found[name] = joined.to(device, dtype if is_real else None, non_blocking=True)
        return found

    def token_types(self, ids_BS: Tensor) -> Tensor:
        """Which tokens are those of images (1) and sounds (3), for families that ask for it."""
        types_BS = torch.zeros_like(ids_BS)
        for kind, token in zip(self.kinds, self.placeholder_ids, strict=True):
            types_BS.masked_fill_(ids_BS == token, _MODALITIES[kind])
        return types_BS

    # --- the cache

    def _get(self, part: MediaPart) -> _Medium:
        with self._lock:
            kept = self._kept.get(part.sha256)
            if kept is not None:
                self._kept.move_to_end(part.sha256)
                return kept
            future = self._underway.get(part.sha256) or self._begin(part)
        began = time.perf_counter()
        try:
            return future.result()
        finally:
            with self._lock:
                self.waited_s += time.perf_counter() - began

    def _begin(self, part: MediaPart) -> Future[_Medium]:
        """Under the lock."""
        future = self._underway[part.sha256] = self._pool.submit(self._make, part)
        return future

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        threads = max(1, min(4, (os.cpu_count() or 2) // 2))
        return ThreadPoolExecutor(threads, thread_name_prefix="burnish-media")

    def _make(self, part: MediaPart) -> _Medium:
        made = None
        try:
            data = self._read(part)
            with _about(part):
                opened = open_image(data) if isinstance(part, ImagePart) else self._samples(data)
                found = self._process([opened], kind_of(part))
                if self._expansions.get(part.sha256, found.ids) != found.ids:
                    raise UserError(
                        f"{type(self.processor).__name__} makes other tokens of images of one size"
                    )
            if not isinstance(opened, np.ndarray):
                self._sizes[opened.size] = found.ids
            made = found
            return made
        finally:
            with self._lock:
                self.processed += 1
                if made is not None:
                    self._keep(part, made)
                self._underway.pop(part.sha256, None)

    def _keep(self, part: MediaPart, made: _Medium) -> None:
        """Under the lock."""
        self._expansions[part.sha256] = made.ids
        self._kept[part.sha256] = made
        self._bytes += made.size
        while self._bytes > self.limit and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].size

    def _by_size(self, part: MediaPart) -> tuple[int, ...] | None:
        """The expansion of an image as large as one before: rows are laid out before it is processed."""
        if isinstance(part, AudioPart):
            return None
        with _about(part):
            ids = self._sizes.get(_size_of(self._read(part)))
        if ids is not None:
            with self._lock:
                ids = self._expansions.setdefault(part.sha256, ids)
        return ids

    # --- opening and processing

    def _read(self, part: MediaPart) -> bytes:
        places = [*self.blobs, shared_blobs()]
        blobs = next((one for one in places if one.holds(part.sha256)), places[-1])
        return blobs.read(part)

    def _samples(self, data: bytes) -> np.ndarray:
        extractor = self.processor.feature_extractor
        samples = read_sound(data, rate=extractor.sampling_rate).samples
        longest = getattr(extractor, "n_samples", None)
        if longest is not None and len(samples) > longest:
            rate = extractor.sampling_rate
            raise MediaError(
                f"it lasts {len(samples) / rate:.1f} s; '{self.name}' hears the first {longest / rate:g} s"
            )
        return samples

    def ids_of(self, text: str, kind: str, has_template: bool) -> tuple[int, ...]:
        """The ids that the processor itself makes of a text with one example in it."""
        opened = [self.example(kind)]
        made = self._call(self.processor, text, kind, opened, special_tokens=not has_template)
        return tuple(made["input_ids"][0].tolist())

    def _call(
        self, processor: Any, text: str, kind: str, opened: list[Any], special_tokens: bool = False
    ) -> Any:
        options: dict[str, Any] = {"images": opened} if kind == "image" else {"audio": opened}
        if kind == "audio":
            options["sampling_rate"] = processor.feature_extractor.sampling_rate
        return processor(
            text=[text], return_tensors="pt", add_special_tokens=special_tokens, **options
        )

    def _process(self, opened: list[Any], kind: str) -> _Medium:
        """What the processor makes of placeholders with their media and nothing else."""
        text = self.kinds[kind] * len(opened)
        try:
            if not hasattr(self._own, "processor"):
                with self._lock:  # this thread's own: a tokenizer cannot be used by two at once
                    self._own.processor = copy.deepcopy(self.processor)
            made = self._call(self._own.processor, text, kind, opened)
        # Boundary: a family's own code, given one medium.
        except Exception as error:
            raise MediaError(
                f"{type(self.processor).__name__} cannot read it: {first_line(error)}"
            ) from error
        tensors = {
            name: value
            for name, value in made.items()
            if name not in _TEXT_TENSORS and isinstance(value, Tensor)
        }
        ids = tuple(made["input_ids"][0].tolist())
        return _Medium(self._same_ids.setdefault(ids, ids), tensors)

    def probe(self) -> None:
        """Give the processor one and two media of each kind: how they are joined, how many it takes."""
        for kind in self.kinds:
            medium, part = self.example(kind), _EXAMPLES[kind]
            one = self._process([medium], kind)
            self.examples.append(part)
            with self._lock:
                self._keep(part, one)
            try:
                two = self._process([medium, medium], kind)
            except UserError:
                self.most = 1
                continue
            self._shares_border = two.ids == (*one.ids, *one.ids[1:])
            if two.ids != one.ids * 2 and not self._shares_border:
                self.most = 1
                continue
            for name, tensor in one.tensors.items():
                # Along which a second medium was put; the first one where nothing shows it.
                a, b = tensor.shape, two.tensors[name].shape
                is_by_row = len(a) == len(b) > 1 and a[0] == b[0] and b[1] == 2 * a[1]
                self._axes[name] = int(is_by_row)

    def example(self, kind: str) -> Any:
        """A small image or sound, opened."""
        if kind == "audio":
            rate = self.processor.feature_extractor.sampling_rate
            time_N = np.arange(rate // 4, dtype=np.float32) / rate
            return 0.3 * np.sin(2 * np.pi * 440 * time_N, dtype=np.float32)
        from PIL import Image

        ramp = np.add.outer(np.arange(64), np.arange(96)) % 256
        return Image.fromarray(np.stack([ramp, ramp[::-1], 255 - ramp], -1).astype(np.uint8))


_PART = {"image": "image_processor", "audio": "feature_extractor"}
_PLURAL = {"image": "images", "audio": "sounds"}
_ARTICLE = {"image": "an image", "audio": "a sound"}


_EXAMPLES: dict[str, MediaPart] = {
    "image": ImagePart(hashlib.sha256(b"an example image").hexdigest()),
    "audio": AudioPart(hashlib.sha256(b"an example sound").hexdigest()),
}
"""Names under which the examples are kept; no file has them."""


_TURNS = (b"Exif", b"eXIf", b"EXIF", b"exif", b"XMP ", b"com.adobe.xmp", b"ns.adobe.com/xap")
"""Names of the notes, EXIF and XMP, that may turn an image, as JPEG, PNG, WebP and GIF write them."""


def _size_of(data: bytes) -> tuple[int, int] | None:
    """Width and height by the file's head; None where a note in it may turn the image."""
    if any(name in data for name in _TURNS):
        return None
    info = image_info(data)
    return (info.width, info.height)


def kind_of(part: MediaPart) -> str:
    """`image` or `audio`."""
    return "audio" if isinstance(part, AudioPart) else "image"


@contextmanager
def _about(part: MediaPart) -> Iterator[None]:
    """Say which image or sound cannot be read."""
    try:
        yield
    except UserError as error:
        line = f"{part.media_type} {part.sha256[:12]}: {error}"
        raise MediaError(line, sha256=part.sha256) from None


def _by_row(rows: list[list[Tensor]]) -> Tensor:
    """(rows, most media of a row, ...): zeros where a row has fewer, or smaller ones."""
    flat = _same_size([one for row in rows for one in row], free=1)
    media = iter(flat)
    empty = torch.zeros_like(flat[0])[:, :0]
    joined = [torch.cat([empty, *(next(media) for _ in row)], dim=1) for row in rows]
    return torch.cat(_same_size(joined, free=0))


def _same_size(tensors: list[Tensor], free: int) -> list[Tensor]:
    """Tensors filled up with zeros at their ends, in every axis but the free one."""
    sizes = [max(t.shape[axis] for t in tensors) for axis in range(tensors[0].ndim)]
    found = []
    for tensor in tensors:
        missing = [0 if a == free else sizes[a] - n for a, n in enumerate(tensor.shape)]
        padding = [amount for gap in reversed(missing) for amount in (0, gap)]
        found.append(torch.nn.functional.pad(tensor, padding) if any(padding) else tensor)
    return found
