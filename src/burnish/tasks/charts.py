"""Bar and line charts with labels and values, and questions about them.

    [task]
    kind = "charts"

A chart has whole values up to 10 over letters in any order, gridlines with numbers, and, where asked
for, each value printed over its bar or point.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from burnish.errors import UserError
from burnish.tasks.pictures import (
    COLOURS,
    DESCRIBE,
    Asked,
    Picture,
    PictureSettings,
    PictureTasks,
    Sheet,
)

LABELS = tuple("ABCDEFGHKLMNPRSTUX")
TOP = 10
ChartQuestion = Literal["value", "largest", "smallest", "compare", "count", "describe"]
Form = Literal["bar", "line"]


class Chart(NamedTuple):
    """Values by label, from left to right."""

    form: str
    labels: tuple[str, ...]
    values: tuple[int, ...]
    colours: tuple[str, ...]
    size: int
    shows_values: bool

    @property
    def key(self) -> str:
        told = " ".join(f"{a}{b}" for a, b in zip(self.labels, self.values, strict=True))
        return f"chart {self.form}: {told}"

    @property
    def facts(self) -> list[str]:
        """The value of each label."""
        return [
            f"{label} is {value}" for label, value in zip(self.labels, self.values, strict=True)
        ]

    @property
    def description(self) -> str:
        return f"A {self.form} chart: {', '.join(self.facts)}."

    def ask(self, kind: str, rng: random.Random) -> Asked | None:
        if kind == DESCRIBE:
            return Asked(kind, "Describe the picture.", self.description)
        return _QUESTIONS[kind](self, rng)

    def png(self) -> bytes:
        sheet, size = Sheet(self.size), self.size
        left, right, top, bottom = size // 8, size - size // 32, size // 10, size - size // 7
        scale = max(1, size // 112)

        def height(value: int) -> int:
            return bottom - (bottom - top) * value // TOP

        for tick in range(0, TOP + 1, 2):
            sheet.line([(left, height(tick)), (right, height(tick))], "grey")
            sheet.text(left // 2, height(tick), str(tick), scale=max(1, scale - 1))
        sheet.line([(left, top), (left, bottom)], "black", 2)
        sheet.line([(left, bottom), (right, bottom)], "black", 2)
        slot = (right - left) // len(self.labels)
        middles = [left + slot * n + slot // 2 for n in range(len(self.labels))]
        points = [(x, height(value)) for x, value in zip(middles, self.values, strict=True)]
        if self.form == "line":
            sheet.line(points, "grey", 3)
        for (x, y), colour in zip(points, self.colours, strict=True):
            reach = slot // 3 if self.form == "bar" else size // 40
            box = (x - reach, y, x + reach, bottom) if self.form == "bar" else None
            if box:
                sheet.rectangle(box, colour)
            else:
                sheet.ellipse((x - reach, y - reach, x + reach, y + reach), colour)
        for (x, y), label, value in zip(points, self.labels, self.values, strict=True):
            sheet.text(x, bottom + (size - bottom) // 2, label, scale=scale)
            if self.shows_values:
                sheet.text(x, y - size // 22, str(value), scale=max(1, scale - 1))
        return sheet.png()


class Charts(PictureSettings, frozen=True, kw_only=True, tag="charts"):
    """Bar and line charts and questions about them: what an image model reads off a picture."""

    name: Annotated[str, Meta(min_length=1)] = "charts"
    """What the task is called in runs."""
    questions: tuple[ChartQuestion, ...] = ("value", "largest", "smallest", "compare", "count")
    """Kinds of questions, asked in turn; `describe` asks for every value."""
    forms: tuple[Form, ...] = ("bar", "line")
    """Kinds of charts."""
    least: Annotated[int, Meta(ge=2, le=6)] = 3
    """Values in a chart, at least."""
    most: Annotated[int, Meta(ge=2, le=6)] = 5
    """Values in a chart, at most."""
    shows_values: bool = False
    """Print each value over its bar or point."""
    size: Annotated[int, Meta(ge=96, le=1024, multiple_of=32)] = 224
    """Pixels of a side."""

    def build(self, seed: int, root: Path) -> PictureTasks:
        if self.least > self.most or not self.forms:
            raise UserError(
                f"tasks '{self.name}': least = {self.least}, most = {self.most}, forms = "
                f"{list(self.forms)}; expected least up to most, and at least one form."
            )
        return PictureTasks(self, seed)

    def draw(self, rng: random.Random) -> Picture:
        count = rng.randint(self.least, self.most)
        return Chart(
            rng.choice(self.forms),
            tuple(rng.sample(LABELS, count)),
            tuple(rng.sample(range(1, TOP + 1), count)),
            tuple(rng.sample(COLOURS, count)),
            self.size,
            self.shows_values,
        )


def _value(chart: Chart, rng: random.Random) -> Asked:
    n = rng.randrange(len(chart.labels))
    return Asked("value", f"What is the value of {chart.labels[n]}?", str(chart.values[n]))


def _largest(chart: Chart, rng: random.Random) -> Asked:
    label = chart.labels[chart.values.index(max(chart.values))]
    return Asked("largest", "Which label has the largest value?", label)


def _smallest(chart: Chart, rng: random.Random) -> Asked:
    label = chart.labels[chart.values.index(min(chart.values))]
    return Asked("smallest", "Which label has the smallest value?", label)


def _compare(chart: Chart, rng: random.Random) -> Asked:
    """Yes and no are equally frequent; values differ."""
    low, high = sorted(rng.sample(range(len(chart.labels)), 2), key=lambda n: chart.values[n])
    is_yes = rng.random() < 0.5
    first, second = (high, low) if is_yes else (low, high)
    question = f"Is {chart.labels[first]} larger than {chart.labels[second]}?"
    return Asked("compare", question, "yes" if is_yes else "no")


def _how_many(chart: Chart, rng: random.Random) -> Asked:
    return Asked("count", "How many values does the chart have?", str(len(chart.values)))


_QUESTIONS: dict[str, Callable[[Chart, random.Random], Asked | None]] = {
    "value": _value,
    "largest": _largest,
    "smallest": _smallest,
    "compare": _compare,
    "count": _how_many,
}
