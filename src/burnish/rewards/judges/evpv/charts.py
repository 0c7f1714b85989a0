"""Labels of a chart beside their values, by where the words of a picture stand (EVPV).

    words = [Word("2017", 60, 90, 80, 100), Word("2018", 160, 90, 180, 100), Word("143", 60, 20, 80, 30)]
    read_chart(words)                                # [Reading(label='2017', value='143', ...)]

Pure geometry over words with boxes. Values above a row of labels belong to the label under them, values
right of a column of labels to the label beside them; numbers that stand evenly along an axis are its
ticks and no values. With several values a label the colour beside each entry of the legend says which
series a value belongs to. What cannot be told apart gives no reading: unknown, never a guess.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import anyio.to_thread
from msgspec import structs

from burnish.errors import ArgumentError, UserError
from burnish.records import Status
from burnish.rewards.checks.quantities import read_quantity
from burnish.rewards.judges.evpv.evidence import MOST_FACTS, Extraction
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

MOST_WORDS = 800
"""Words of a picture that are paired; a page with more is a text and no chart."""
MOST_SETS, MOST_TICKS = 24, 60
"""Rows and columns that are tried as labels, the longest first; ticks of one axis."""
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?%?")
_GAPS = re.compile(r"(?<=\d)[ ](?=\d|%|\.)")
_MINUS = re.compile(r"\A(\W*)[–—](?=[$£€¥]?\.?\d)")
"""A dash right before a number; with a blank between them it is a bullet."""
_EDGES = " .,;:|'\"`_-–—·•()[]{}①②③④⑤⑥θ○●◎□■"
_LEGEND_MARK = 0.2
"""Share of the place left of a legend's entry that its mark covers at least."""
_NEAR_COLOUR = 48
"""Distance of two colours (sum over red, green and blue) up to which they are one."""
Colours = Callable[[float, float, float, float], Sequence[tuple[tuple[int, int, int], float]]]
"""From a rectangle of the picture to its colours with their shares, without the background."""


class Word(NamedTuple):
    """What a reader of pictures found in one box, in pixels."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    confidence: float = 1.0

    @property
    def x(self) -> float:
        return (self.left + self.right) / 2

    @property
    def y(self) -> float:
        return (self.top + self.bottom) / 2

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def is_upright(self) -> bool:
        """Written up or down the page: the title of an axis."""
        return len(self.text.strip()) > 2 and self.height > 1.8 * (self.right - self.left)


class Reading(NamedTuple):
    """A value with what it is the value of."""

    label: str
    value: str
    word: Word
    """Where the value stands."""
    confidence: float
    series: str = ""
    """The entry of the legend, where there are several."""


class _Labels(NamedTuple):
    """A row or a column of labels."""

    words: list[Word]
    is_row: bool
    room: float
    """Half the distance of two neighbours: as far as a label's values may stand off."""


def number_in(text: str) -> str | None:
    """A text as one number with its sign of percent or currency; None where it is none.

    >>> number_in("1 250"), number_in("143."), number_in("2005 2006") is None
    ('1250', '143', True)
    """
    bare = _MINUS.sub(r"\1-", text.strip()).strip(_EDGES.replace("-", "")).strip("*")
    if _THOUSANDS.fullmatch(bare) or (bare.count(" ") == 1 and re.search(r" %\Z", bare)):
        bare = bare.replace(" ", "")
    elif re.fullmatch(r"\d \d%|\d+ \.\d+%?|\d+\. \d+%?", bare):
        bare = _GAPS.sub("", bare).replace(". ", ".")
    found = read_quantity(bare) if bare and len(bare) <= 24 else None
    if found is None or len(found.unit.lstrip("$£€¥")) > 2 or not re.search(r"\d", bare):
        return None
    return bare.replace(",", "")


def split_words(words: Iterable[Word]) -> list[Word]:
    """Boxes that hold several numbers as one box each, by the share of the characters."""
    found = []
    for word in words:
        parts = word.text.split()
        is_many = len(parts) > 1 and all(number_in(part) for part in parts)
        if not is_many or number_in(word.text) is not None or word.is_upright:
            found.append(word)
            continue
        step = (word.right - word.left) / len(word.text.strip())
        start = 0
        for part in parts:
            place = word.text.strip().index(part, start)
            start = place + len(part)
            sides = word.left + place * step, word.left + start * step
            found.append(word._replace(text=part, left=sides[0], right=sides[1]))
    return found


def read_chart(words: Sequence[Word], colours: Colours | None = None) -> list[Reading]:
    """The readings of a chart; none where the words do not stand as in one.

    `colours` looks at the picture itself and is asked where a label has several values.

    >>> words = [Word("Tea", 0, 50, 20, 60), Word("Salt", 50, 50, 70, 60)]
    >>> [one[:2] for one in read_chart([*words, Word("3", 5, 9, 15, 19), Word("7", 55, 9, 65, 19)])]
    [('Tea', '3'), ('Salt', '7')]
    """
    flat = [one for one in split_words(words) if not one.is_upright and one.text.strip(_EDGES)]
    if len(flat) > MOST_WORDS or len(flat) < 3:
        return []
    size = median(one.height for one in flat) or 1.0
    legend = find_legend(flat, colours, size) if colours is not None else {}
    rest = [one for one in flat if one not in legend]
    best: list[Reading] = []
    sets = sorted(_label_sets(rest, size), key=lambda one: -len(one.words))
    for labels in sets[:MOST_SETS]:
        found = _paired(labels, rest, legend, colours, size)
        if len(found) > len(best):
            best = found
    return best


def _label_sets(words: Sequence[Word], size: float) -> list[_Labels]:
    """Rows and columns that may be the labels of a chart."""
    found = []
    merged = _joined_lines([one for one in words if number_in(one.text) is None], size)
    pool = [*merged, *(one for one in words if number_in(one.text) is not None)]
    for is_row in (True, False):
        edges: tuple[Callable[[Word], float], ...] = (
            ((lambda w: w.top), (lambda w: w.bottom), (lambda w: w.y))
            if is_row
            else ((lambda w: w.right), (lambda w: w.left))
        )
        for edge in edges:
            for group in _aligned(pool, edge, 0.5 * size):
                labels = [one for one in group if _is_label(one)]
                texts = {one.text for one in labels}
                if len(labels) < 2 or len(texts) < len(labels) or len(labels) < 0.7 * len(group):
                    continue
                labels.sort(key=lambda one: one.x if is_row else one.y)
                places = [one.x if is_row else one.y for one in labels]
                steps = [b - a for a, b in pairwise(places)]
                if min(steps) > 0.8 * size:
                    found.append(_Labels(labels, is_row, min(steps) / 2))
    return found


def _is_label(word: Word) -> bool:
    """A text, or a year: other numbers of a row are ticks or values."""
    number = number_in(word.text)
    return number is None or re.fullmatch(r"(?:19|20)\d\d", number) is not None


def _paired(
    labels: _Labels,
    words: Sequence[Word],
    legend: dict[Word, tuple[int, int, int]],
    colours: Colours | None,
    size: float,
) -> list[Reading]:
    own = set(labels.words)
    numbers = [one for one in words if number_in(one.text) is not None and one not in own]
    ticks = find_ticks(numbers, size)
    beside: dict[Word, list[Word]] = defaultdict(list)
    for value in (one for one in numbers if one not in ticks):
        if (label := _label_of(value, labels, size)) is not None:
            beside[label].append(value)
    if len(beside) < 2:
        return []
    most = max(len(values) for values in beside.values())
    if most == 1:
        only = [(label, values[0]) for label, values in beside.items()]
        return [_reading(label, value) for label, value in only]
    if len(legend) < 2 or colours is None:
        return []
    found = []
    for label, values in beside.items():
        found += _by_series(label, values, legend, colours, size, is_row=labels.is_row)
    return found


def _label_of(value: Word, labels: _Labels, size: float) -> Word | None:
    """The label that a value stands over, or beside."""
    if labels.is_row:
        near = min(labels.words, key=lambda one: abs(one.x - value.x))
        is_near = abs(near.x - value.x) <= labels.room and value.bottom <= near.top + 0.5 * size
        return near if is_near else None
    near = min(labels.words, key=lambda one: abs(one.y - value.y))
    is_near = abs(near.y - value.y) <= labels.room and value.left >= near.right - 0.5 * size
    return near if is_near else None


def _by_series(
    label: Word,
    values: Sequence[Word],
    legend: dict[Word, tuple[int, int, int]],
    colours: Colours,
    size: float,
    *,
    is_row: bool,
) -> list[Reading]:
    """Each value under the entry of the legend whose colour stands around it most.

    A series that two values of one label claim is taken from neither.
    """
    claimed: dict[Word, list[Word]] = defaultdict(list)
    for value in values:
        entry = _series_of(value, legend, colours, size, is_row=is_row)
        if entry is not None:
            claimed[entry].append(value)
    return [_reading(label, only[0], entry) for entry, only in claimed.items() if len(only) == 1]


def _series_of(
    value: Word,
    legend: dict[Word, tuple[int, int, int]],
    colours: Colours,
    size: float,
    *,
    is_row: bool,
) -> Word | None:
    """The entry of the legend with the colour of the bar that a value stands on, in or beside."""
    below = (value.left, value.bottom, value.right, value.bottom + 0.9 * size)
    before = (value.left - 0.9 * size, value.top, value.left, value.bottom)
    around = (value.left - 2, value.top - 2, value.right + 2, value.bottom + 2)
    for place in (around, below) if is_row else (around, before):
        shares: dict[Word, float] = defaultdict(float)
        for colour, share in colours(*place):
            near = min(legend, key=lambda one: _distance(legend[one], colour))
            if _distance(legend[near], colour) <= _NEAR_COLOUR:
                shares[near] += share
        best = max(shares, key=lambda one: shares[one], default=None)
        if best is not None and shares[best] >= 0.3:
            return best
    return None


def find_legend(
    words: Sequence[Word], colours: Colours, size: float
) -> dict[Word, tuple[int, int, int]]:
    """Texts with a coloured mark on their left, at least two of them in one row or one column."""
    marked: dict[Word, tuple[int, int, int]] = {}
    for word in (one for one in words if _is_label(one)):
        seen = colours(word.left - 1.6 * size, word.y - 0.4 * size, word.left, word.y + 0.4 * size)
        if seen and seen[0][1] >= _LEGEND_MARK:
            marked[word] = seen[0][0]
    found: dict[Word, tuple[int, int, int]] = {}
    for edge in ((lambda w: w.y), (lambda w: w.left)):
        for group in _aligned(list(marked), edge, 0.5 * size):
            own = [marked[one] for one in group]
            is_clear = all(
                _distance(a, b) > _NEAR_COLOUR for n, a in enumerate(own) for b in own[:n]
            )
            if len(group) > max(1, len(found)) and is_clear:
                found = {one: marked[one] for one in sorted(group, key=lambda w: (w.y, w.left))}
    return found


def find_ticks(numbers: Sequence[Word], size: float) -> set[Word]:
    """Numbers along an axis: aligned, evenly apart, and rising or falling in equal steps."""
    found: set[Word] = set()
    edges: tuple[tuple[Callable[[Word], float], Callable[[Word], float]], ...] = (
        ((lambda w: w.right), (lambda w: w.y)),
        ((lambda w: w.left), (lambda w: w.y)),
        ((lambda w: w.y), (lambda w: w.x)),
    )
    for edge, along in edges:
        for group in _aligned(numbers, edge, 0.4 * size):
            if not 3 <= len(group) <= MOST_TICKS:
                continue
            group.sort(key=along)
            pairs = [(along(one), _amount(one)) for one in group]
            if _is_even([place for place, _ in pairs], 0.12) and _is_straight(pairs):
                found.update(group)
    return found


def _amount(word: Word) -> float:
    quantity = read_quantity(number_in(word.text) or "")
    return 0.0 if quantity is None else quantity.value


def _is_even(places: Sequence[float], slack: float) -> bool:
    """Whether places stand one step apart, or whole steps where one was not read."""
    steps = [b - a for a, b in pairwise(places)]
    least = min(steps)
    return least > 0 and all(
        abs(one / least - round(one / least)) <= slack * round(one / least) for one in steps
    )


def _is_straight(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether most of the numbers lie on one line over their places; one or two may be misread."""
    best = 0
    for n, (place, value) in enumerate(pairs):
        for other, amount in pairs[:n]:
            slope = (value - amount) / (place - other)
            if slope:
                near = abs(slope) * 3 + 1e-9
                hits = sum(abs(amount + slope * (p - other) - v) <= near for p, v in pairs)
                best = max(best, hits)
    return best >= max(3, 0.6 * len(pairs))


def _aligned(
    words: Sequence[Word], edge: Callable[[Word], float], slack: float
) -> list[list[Word]]:
    """Groups of words whose edges lie within `slack` of the one before."""
    groups: list[list[Word]] = []
    for word in sorted(words, key=edge):
        if groups and edge(word) - edge(groups[-1][-1]) <= slack:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _joined_lines(words: Sequence[Word], size: float) -> list[Word]:
    """Labels that are broken into lines as one label: lines under each other that share a middle."""
    left = sorted(words, key=lambda one: (one.top, one.left))
    found: list[Word] = []
    for word in left:
        for place, above in enumerate(found):
            is_under = -0.4 * size <= word.top - above.bottom <= 0.45 * size
            is_same = (
                abs(word.x - above.x) <= 0.6 * size
                or abs(word.right - above.right) <= 0.3 * size
                or abs(word.left - above.left) <= 0.3 * size
            )
            if is_under and is_same:
                found[place] = Word(
                    f"{above.text.strip()} {word.text.strip()}",
                    min(above.left, word.left),
                    above.top,
                    max(above.right, word.right),
                    word.bottom,
                    min(above.confidence, word.confidence),
                )
                break
        else:
            found.append(word)
    return found


def _flat(word: Word) -> str:
    return " ".join(word.text.replace("=", " ").split()).strip(_EDGES + "*")


def _reading(label: Word, value: Word, entry: Word | None = None) -> Reading:
    written = number_in(value.text) or value.text
    sure = min(one.confidence for one in (label, value, entry) if one is not None)
    return Reading(_flat(label), written, value, sure, _flat(entry) if entry is not None else "")


def _distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    return sum(abs(int(a) - int(b)) for a, b in zip(one, other, strict=True))


LEAST_CONFIDENCE = 0.5
"""Words that the reader is less sure of are left out and counted."""
KEPT = 256
"""Pictures whose words are kept in memory."""
MOST_SIDE = 2000
"""Pixels of the longer side that the reader looks at; a larger picture is made smaller."""
_INSTALL = "pip install 'burnish[ocr]' && pip install --no-deps rapidocr-onnxruntime"
_VALUE_AFTER = re.compile(r"(?P<one>.*\D)[\s:]\s*(?P<two>[-+−–]?[$£€]?\d[\d,.]*\s?%?)")

_one_reader = threading.Lock()
"""One picture at a time: the reader keeps state, and uses the cores it is given anyway."""


class Page(NamedTuple):
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
    with _one_reader:
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
