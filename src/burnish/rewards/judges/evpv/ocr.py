"""What is written in a picture, as facts: words with their boxes, values of a chart by their labels (EVPV).

    {"type": "ocr", "image": "data:image/png;base64,..."}       # a piece of evidence; or bytes, or base64
    {"type": "ocr", "sha256": "3f2a..."}                        # a picture that a message holds

RapidOCR (the extra `ocr`) reads the words on the CPU, without a network. Where they
stand as in a chart, each value becomes a fact about its label (`charts.py`); lines of text are facts as
those of a document are. A reader glues words together, so that a subject is also found without its
blanks. Nothing that stands in a picture is an instruction: words become facts and nothing else.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import anyio.to_thread
from msgspec import structs

from burnish.errors import ArgumentError, UserError
from burnish.records import Status
from burnish.rewards.judges.evpv.charts import Reading, Word, number_in, read_chart
from burnish.rewards.judges.evpv.extracting import MOST_FACTS, Extraction
from burnish.rewards.judges.evpv.facts import (
    LONGEST,
    Fact,
    read_cell,
    read_fact,
    read_statement,
    spell,
    squeeze,
    subject_of,
)
from burnish.rewards.judges.evpv.pictures import Picture, picture_of
from burnish.rewards.judges.judge_model import JudgeModel

LEAST_CONFIDENCE = 0.5
"""Words that the reader is less sure of are left out and counted."""
KEPT = 256
"""Pictures whose words are kept in memory."""
MOST_SIDE = 2000
"""Pixels of the longer side that the reader looks at; a larger picture is made smaller."""
_INSTALL = "pip install 'burnish[ocr]' && pip install --no-deps rapidocr-onnxruntime"
_VALUE_AFTER = re.compile(r"(?P<one>.*\D)[\s:]\s*(?P<two>[-+−–]?[$£€]?\d[\d,.]*\s?%?)")

_reading = threading.Lock()
"""One picture at a time: the reader keeps state, and uses the cores it is given anyway."""


class Page(NamedTuple):
    """The words of a picture."""

    words: list[Word]
    unsure: int
    """Words that were left out."""
    turns: int = 0
    """Quarter turns to the left after which the picture was read; boxes are those after them."""


_pages: OrderedDict[str, Page] = OrderedDict()


async def from_ocr(
    piece: Mapping[str, Any], *, judge: JudgeModel | None = None, about: tuple[str, ...] = ()
) -> Extraction:
    """What is written in a picture; a picture that cannot be opened has a status and no facts."""
    picture = await anyio.to_thread.run_sync(picture_of, piece)
    if isinstance(picture, str):
        return Extraction(status=Status.PARSE_ERROR, reason=picture)
    page = await anyio.to_thread.run_sync(partial(read_words, picture))
    return page_facts(page, picture)


def read_words(picture: Picture) -> Page:
    """The words of a picture with their boxes; kept, since all answers to a task ask for the same."""
    with _reading:
        if (known := _pages.get(picture.sha256)) is not None:
            _pages.move_to_end(picture.sha256)
            return known
        page = _read_turned(picture)
        _pages[picture.sha256] = page
        while len(_pages) > KEPT:
            _pages.popitem(last=False)
        return page


def page_facts(page: Page, picture: Picture) -> Extraction:
    """Facts of the words: values of a chart, then lines."""
    facts: list[Fact] = []
    unreadable = page.unsure
    picture = picture.turned(page.turns)
    for reading in read_chart(page.words, picture.colours):
        if (fact := _chart_fact(reading, picture)) is not None:
            facts.append(fact)
    is_chart = bool(facts)
    for line in lines_of(page.words):
        text = " ".join(word.text.strip() for word in line)
        if len(facts) >= MOST_FACTS or not text or len(text) > LONGEST:
            unreadable += 1
            continue
        found = _VALUE_AFTER.fullmatch(text) if read_statement(text) is None else None
        written = f"{found['one'].strip(' :')} = {found['two']}" if found else text
        box = _box(line)
        for said in dict.fromkeys([text, written]):
            fact = _line_fact(said, picture.box(box), box.confidence, is_chart=is_chart)
            facts += [fact] if fact is not None else []
            unreadable += fact is None
    return Extraction(tuple(facts), unreadable)


def _chart_fact(reading: Reading, picture: Picture) -> Fact | None:
    """A value of a chart: its label has this value and no other."""
    label, series = reading.label, reading.series
    aliases = {squeeze(f"{label} {series}"), squeeze(f"{series} {label}")}
    try:
        return read_cell(
            label,
            series,
            reading.value,
            source=picture.box(reading.word),
            confidence=reading.confidence,
            aliases=tuple(sorted(aliases)),
        )
    except ArgumentError:
        return None


def _line_fact(text: str, source: str, confidence: float, *, is_chart: bool) -> Fact | None:
    """A line of text; beside a chart its subject is a name, whose letters keep their order."""
    try:
        fact = read_fact(text, source=source)
    except ArgumentError:
        return None
    subject = subject_of(text)
    return structs.replace(
        fact,
        confidence=confidence,
        aliases=(squeeze(subject),) if subject else (),
        spellings=(spell(subject),) if subject and is_chart else (),
    )


def _box(line: Sequence[Word]) -> Word:
    return Word(
        "",
        min(word.left for word in line),
        min(word.top for word in line),
        max(word.right for word in line),
        max(word.bottom for word in line),
        min(word.confidence for word in line),
    )


def lines_of(words: Sequence[Word]) -> list[list[Word]]:
    """Words that stand beside each other as lines, from the top; the title of an axis is a line."""
    upright = [[word] for word in words if word.is_upright]
    rows: list[list[Word]] = []
    for word in sorted((one for one in words if not one.is_upright), key=lambda one: one.y):
        last = rows[-1] if rows else None
        if last is not None and abs(word.y - last[-1].y) <= 0.4 * max(word.height, 1.0):
            last.append(word)
        else:
            rows.append([word])
    found: list[list[Word]] = []
    for row in rows:
        row.sort(key=lambda one: one.left)
        found.append([row[0]])
        for before, word in pairwise(row):
            # A wide gap parts two columns, but a price far right of its name belongs to it.
            is_pair = number_in(before.text) is None and number_in(word.text) is not None
            if word.left - before.right <= 1.5 * word.height or (is_pair and len(row) == 2):
                found[-1].append(word)
            else:
                found.append([word])
    return [*found, *upright]


def _read_turned(picture: Picture) -> Page:
    """The words of the picture as it is, or turned where most of them stand upright."""
    page = _read(picture)
    tall = [word for word in page.words if word.is_upright]
    if len(tall) <= max(2, len(page.words) // 2):
        return page
    return max([page, *(_read(picture.turned(turns)) for turns in (1, 3))], key=_weight)


def _weight(page: Page) -> float:
    """How much was read, and how surely."""
    level = (word for word in page.words if not word.is_upright)
    return math.fsum(word.confidence**4 * len(word.text) for word in level)


@cache
def _engine() -> Any:
    try:
        from rapidocr_onnxruntime import RapidOCR
    except ImportError:
        raise UserError(f"evidence of type ocr needs a reader; install it: {_INSTALL}") from None
    # Its own pool of threads would take every core of the machine.
    return RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)


def _read(picture: Picture) -> Page:
    """The words that the reader finds, with their boxes in pixels."""
    import numpy as np

    array, scale = picture.pixels, 1.0
    longest = max(array.shape[:2])
    if longest > MOST_SIDE:
        from PIL import Image

        scale = MOST_SIDE / longest
        size = max(1, round(array.shape[1] * scale)), max(1, round(array.shape[0] * scale))
        array = np.asarray(Image.fromarray(array).resize(size))
    # The reader takes blue green red.
    found, _ = _engine()(np.ascontiguousarray(array[:, :, ::-1]))
    words, unsure = [], 0
    for box, text, confidence in found or ():
        sides = [float(value) / scale for point in box for value in point]
        share = float(confidence)
        if (
            not math.isfinite(share)
            or share < LEAST_CONFIDENCE
            or not all(map(math.isfinite, sides))
        ):
            unsure += 1
            continue
        across, down = sides[0::2], sides[1::2]
        words.append(
            Word(
                str(text).strip()[:LONGEST],
                min(across),
                min(down),
                max(across),
                max(down),
                min(1.0, share),
            )
        )
    return Page([word for word in words if word.text], unsure, picture.turns)
