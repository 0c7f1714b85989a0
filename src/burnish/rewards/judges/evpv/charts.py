"""What is written in a picture as facts; values of a chart by where its words stand (EVPV).

Values above a row of labels belong to the label under them, values right of a column of labels to the
label beside them; numbers that stand evenly along an axis are its ticks. With several values a label
the colour beside each entry of the legend tells the series. What cannot be told apart gives no reading.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import combinations, pairwise
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

import anyio.to_thread
from msgspec import structs

from burnish.errors import ArgumentError, UserError
from burnish.records import Status
from burnish.rewards.checks.quantities import read_quantity
from burnish.rewards.judges.evpv.evidence import MOST_FACTS, Extraction, Picture, picture_of
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

MOST_WORDS = 800
"""Words of a picture that are paired; a page with more is a text and no chart."""
MOST_SETS, MOST_TICKS = 24, 60
"""Rows and columns that are tried as labels, the longest first; ticks of one axis."""
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?%?")
_GAPS = re.compile(r"(?<=\d)[ ](?=\d|%|\.)")
_MINUS = re.compile(r"\A(\W*)[–—](?=[$£€¥]?\.?\d)")  # with a blank behind it, it is a bullet
_EDGES = " .,;:|'\"`_-–—·•()[]{}①②③④⑤⑥θ○●◎□■"
_LEGEND_MARK = 0.2
"""Share of the place left of a legend's entry that its mark covers at least."""
_NEAR_COLOUR = 48
"""Distance of two colours (sum over red, green and blue) up to which they are one."""
Colour = tuple[int, int, int]
Colours = Callable[[float, float, float, float], Sequence[tuple[Colour, float]]]
"""From a rectangle of the picture to its colours with their shares, without the background."""
Legend = dict["Word", Colour]
Edge = Callable[["Word"], float]


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
        text, parts = word.text.strip(), word.text.split()
        is_many = len(parts) > 1 and all(map(number_in, parts))
        if not is_many or number_in(text) is not None or word.is_upright:
            found.append(word)
            continue
        step = (word.right - word.left) / len(text)
        for one in re.finditer(r"\S+", text):
            left, right = (word.left + place * step for place in one.span())
            found.append(word._replace(text=one[0], left=left, right=right))
    return found


def read_chart(words: Sequence[Word], colours: Colours = lambda *sides: ()) -> list[Reading]:
    """The readings of a chart; none where the words do not stand as in one.

    >>> words = [Word("Tea", 0, 50, 20, 60), Word("Salt", 50, 50, 70, 60)]
    >>> [one[:2] for one in read_chart([*words, Word("3", 5, 9, 15, 19), Word("7", 55, 9, 65, 19)])]
    [('Tea', '3'), ('Salt', '7')]
    """
    flat = [one for one in split_words(words) if not one.is_upright and one.text.strip(_EDGES)]
    if len(flat) > MOST_WORDS or len(flat) < 3:
        return []
    size = median(one.height for one in flat) or 1.0
    legend = find_legend(flat, colours, size)
    rest = [one for one in flat if one not in legend]
    sets = sorted(_label_sets(rest, size), key=lambda one: -len(one.words))
    found = [_paired(labels, rest, legend, colours, size) for labels in sets[:MOST_SETS]]
    return max(found, key=len, default=[])


def _label_sets(words: Sequence[Word], size: float) -> list[_Labels]:
    """Rows and columns that may be the labels of a chart."""
    found = []
    merged = _joined_lines([one for one in words if number_in(one.text) is None], size)
    pool = [*merged, *(one for one in words if number_in(one.text) is not None)]
    for edge in ("top", "bottom", "y", "right", "left"):
        is_row = edge in ("top", "bottom", "y")
        along = attrgetter("x" if is_row else "y")
        for group in _aligned(pool, attrgetter(edge), 0.5 * size):
            labels = sorted(filter(_is_label, group), key=along)
            texts = {one.text for one in labels}
            if len(labels) < 2 or len(texts) < len(labels) or len(labels) < 0.7 * len(group):
                continue
            step = min(b - a for a, b in pairwise(map(along, labels)))
            if step > 0.8 * size:
                found.append(_Labels(labels, is_row, step / 2))
    return found


def _is_label(word: Word) -> bool:
    """A text, or a year: other numbers of a row are ticks or values."""
    number = number_in(word.text)
    return number is None or re.fullmatch(r"(?:19|20)\d\d", number) is not None


def _paired(
    labels: _Labels, words: Sequence[Word], legend: Legend, colours: Colours, size: float
) -> list[Reading]:
    """Each value with the label that it stands over or beside, and with its series."""
    own = set(labels.words)
    numbers = [one for one in words if number_in(one.text) is not None and one not in own]
    ticks = find_ticks(numbers, size)
    beside: dict[Word, list[Word]] = defaultdict(list)
    for value in (one for one in numbers if one not in ticks):
        along = attrgetter("x" if labels.is_row else "y")
        near = min(labels.words, key=lambda one: abs(along(one) - along(value)))
        if labels.is_row:
            is_clear = value.bottom <= near.top + 0.5 * size
        else:
            is_clear = value.left >= near.right - 0.5 * size
        if is_clear and abs(along(near) - along(value)) <= labels.room:
            beside[near].append(value)
    if len(beside) < 2:
        return []
    if all(len(values) == 1 for values in beside.values()):
        return [_reading(label, values[0]) for label, values in beside.items()]
    found = []
    for label, values in beside.items():
        claimed: dict[Word, list[Word]] = defaultdict(list)
        for value in values:
            entry = _series_of(value, legend, colours, size, is_row=labels.is_row)
            if entry is not None:
                claimed[entry].append(value)
        # A series that two values of one label claim is taken from neither.
        only = ((own, entry) for entry, own in claimed.items() if len(own) == 1)
        found += [_reading(label, value, entry) for (value,), entry in only]
    return found


def _series_of(
    value: Word, legend: Legend, colours: Colours, size: float, *, is_row: bool
) -> Word | None:
    """The entry of the legend with the colour of the bar that a value stands on, in or beside."""
    if not legend:
        return None
    below = (value.left, value.bottom, value.right, value.bottom + 0.9 * size)
    before = (value.left - 0.9 * size, value.top, value.left, value.bottom)
    around = (value.left - 2, value.top - 2, value.right + 2, value.bottom + 2)
    for place in (around, below) if is_row else (around, before):
        shares: dict[Word, float] = defaultdict(float)
        for colour, share in colours(*place):
            near = min(legend, key=lambda one: _distance(legend[one], colour))
            if _distance(legend[near], colour) <= _NEAR_COLOUR:
                shares[near] += share
        best = max(shares, key=shares.__getitem__, default=None)
        if best is not None and shares[best] >= 0.3:
            return best
    return None


def find_legend(words: Sequence[Word], colours: Colours, size: float) -> Legend:
    """Texts with a coloured mark on their left, at least two of them in one row or one column."""
    marked: Legend = {}
    for word in filter(_is_label, words):
        seen = colours(word.left - 1.6 * size, word.y - 0.4 * size, word.left, word.y + 0.4 * size)
        if seen and seen[0][1] >= _LEGEND_MARK:
            marked[word] = seen[0][0]
    found: Legend = {}
    for edge in ("y", "left"):
        for group in _aligned(list(marked), attrgetter(edge), 0.5 * size):
            pairs = combinations([marked[one] for one in group], 2)
            is_clear = all(_distance(*pair) > _NEAR_COLOUR for pair in pairs)
            if len(group) > max(1, len(found)) and is_clear:
                found = {one: marked[one] for one in sorted(group, key=attrgetter("y", "left"))}
    return found


def find_ticks(numbers: Sequence[Word], size: float) -> set[Word]:
    """Numbers along an axis: aligned, evenly apart, and rising or falling in equal steps."""
    found: set[Word] = set()
    for edge, along in (("right", "y"), ("left", "y"), ("y", "x")):
        for group in _aligned(numbers, attrgetter(edge), 0.4 * size):
            if not 3 <= len(group) <= MOST_TICKS:
                continue
            group.sort(key=attrgetter(along))
            places = [getattr(one, along) for one in group]
            steps = [b - a for a, b in pairwise(places)]
            if (least := min(steps)) <= 0:
                continue
            # One step apart, or whole steps where one was not read.
            counts = [one / least for one in steps]
            is_even = all(abs(one - round(one)) <= 0.12 * round(one) for one in counts)
            read = (read_quantity(number_in(one.text) or "") for one in group)
            amounts = [0.0 if one is None else one.value for one in read]
            if is_even and _is_straight(list(zip(places, amounts, strict=True))):
                found.update(group)
    return found


def _is_straight(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether most of the numbers lie on one line over their places; one or two may be misread."""
    wanted = max(3, 0.6 * len(pairs))
    for (other, amount), (place, value) in combinations(pairs, 2):
        slope = (value - amount) / (place - other)
        near = abs(slope) * 3 + 1e-9
        hits = sum(abs(amount + slope * (p - other) - v) <= near for p, v in pairs)
        if slope and hits >= wanted:
            return True
    return False


def _aligned(words: Sequence[Word], edge: Edge, slack: float) -> list[list[Word]]:
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
    found: list[Word] = []
    for word in sorted(words, key=attrgetter("top", "left")):
        for place, above in enumerate(found):
            is_under = -0.4 * size <= word.top - above.bottom <= 0.45 * size
            is_same = (
                abs(word.x - above.x) <= 0.6 * size
                or abs(word.right - above.right) <= 0.3 * size
                or abs(word.left - above.left) <= 0.3 * size
            )
            if is_under and is_same:
                text = f"{above.text.strip()} {word.text.strip()}"
                left, right = min(above.left, word.left), max(above.right, word.right)
                found[place] = Word(text, left, above.top, right, word.bottom)
                break
        else:
            found.append(word)
    return found


def _flat(word: Word) -> str:
    return " ".join(word.text.replace("=", " ").split()).strip(_EDGES + "*")


def _reading(label: Word, value: Word, entry: Word | None = None) -> Reading:
    written = number_in(value.text) or value.text
    return Reading(_flat(label), written, value, _flat(entry) if entry is not None else "")


def _distance(one: Colour, other: Colour) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


LEAST_CONFIDENCE = 0.5
"""Words that the reader is less sure of are left out and counted."""
KEPT = 256
"""Pictures whose words are kept in memory."""
MOST_SIDE = 2000
"""Pixels of the longer side that the reader looks at; a larger picture is made smaller."""
_INSTALL = "pip install 'burnish[ocr]' && pip install --no-deps rapidocr-onnxruntime"
_VALUE_AFTER = re.compile(r"(?P<one>.*\D)[\s:](?P<two>[-+−–]?[$£€]?\d[\d,.]*\s?%?)")

_one_reader = threading.Lock()
"""One picture at a time: the reader keeps state, and uses the cores it is given anyway."""


class Page(NamedTuple):
    words: list[Word]
    unsure: int
    """Words that were left out."""
    turns: int = 0
    """Quarter turns to the left after which the picture was read; boxes are those after them."""


_pages: OrderedDict[str, Page] = OrderedDict()


async def from_ocr(piece: Mapping[str, Any], **_: Any) -> Extraction:
    """What is written in a picture; a picture that cannot be opened has a status and no facts."""
    picture = await anyio.to_thread.run_sync(picture_of, piece)
    if isinstance(picture, str):
        return Extraction(status=Status.PARSE_ERROR, reason=picture)
    return page_facts(await anyio.to_thread.run_sync(read_words, picture), picture)


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
    """Facts of the words: values of a chart, whose labels have no other one, then lines."""
    facts: list[Fact] = []
    unreadable = page.unsure
    picture = picture.turned(page.turns)
    for label, value, word, series in read_chart(page.words, picture.colours):
        both = {squeeze(f"{label} {series}"), squeeze(f"{series} {label}")}
        with suppress(ArgumentError):
            fact = read_cell(label, series, value, source=picture.box(word))
            facts.append(structs.replace(fact, aliases=tuple(sorted(both))))
    is_chart = bool(facts)
    for line in lines_of(page.words):
        text = " ".join(word.text.strip() for word in line)
        if len(facts) >= MOST_FACTS or not text or len(text) > LONGEST:
            unreadable += 1
            continue
        found = _VALUE_AFTER.fullmatch(text) if read_statement(text) is None else None
        written = f"{found['one'].strip(' :')} = {found['two']}" if found else text
        left, top, right, bottom = zip(*(word[1:5] for word in line), strict=True)
        box = Word("", min(left), min(top), max(right), max(bottom))
        for said in dict.fromkeys([text, written]):
            try:
                fact = read_fact(said, source=picture.box(box))
            except ArgumentError:
                unreadable += 1
                continue
            # Beside a chart a subject is a name, whose letters keep their order.
            subject = subject_of(said)
            aliases = (squeeze(subject),) if subject else ()
            spellings = (spell(subject),) if subject and is_chart else ()
            facts.append(structs.replace(fact, aliases=aliases, spellings=spellings))
    return Extraction(tuple(facts), unreadable)


def lines_of(words: Sequence[Word]) -> list[list[Word]]:
    """Words that stand beside each other as lines, from the top; the title of an axis is a line."""
    upright = [[word] for word in words if word.is_upright]
    rows: list[list[Word]] = []
    for word in sorted((one for one in words if not one.is_upright), key=attrgetter("y")):
        if rows and abs(word.y - rows[-1][-1].y) <= 0.4 * max(word.height, 1.0):
            rows[-1].append(word)
        else:
            rows.append([word])
    found: list[list[Word]] = []
    for row in rows:
        row.sort(key=attrgetter("left"))
        found.append([row[0]])
        for before, word in pairwise(row):
            # A wide gap parts two columns, but a price far right of its name belongs to it.
            is_pair = number_in(before.text) is None and number_in(word.text) is not None
            if word.left - before.right > 1.5 * word.height and not (is_pair and len(row) == 2):
                found.append([])
            found[-1].append(word)
    return [*found, *upright]


def _read_turned(picture: Picture) -> Page:
    """The words of the picture as it is, or turned where most of them stand upright."""
    page = _read(picture)
    tall = [word for word in page.words if word.is_upright]
    if len(tall) <= max(2, len(page.words) // 2):
        return page

    def weight(page: Page) -> float:
        """How much was read, and how surely."""
        level = (word for word in page.words if not word.is_upright)
        return math.fsum(word.confidence**4 * len(word.text) for word in level)

    return max([page, *(_read(picture.turned(turns)) for turns in (1, 3))], key=weight)


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
        across, down = ([float(value) / scale for value in side] for side in zip(*box, strict=True))
        share = float(confidence)
        if not share >= LEAST_CONFIDENCE or not all(map(math.isfinite, [*across, *down])):
            unsure += 1
        elif bare := str(text).strip()[:LONGEST]:
            sides = (min(across), min(down), max(across), max(down))
            words.append(Word(bare, *sides, min(1.0, share)))
    return Page(words, unsure, picture.turns)
