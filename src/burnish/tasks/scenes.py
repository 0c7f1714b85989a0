"""Coloured shapes on a white sheet, bar and line charts, and questions about them.

A chart has whole values up to 10 over letters in any order, and gridlines with numbers. Facts are
exact: they are what was drawn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Name
from burnish.tasks.pictures import (
    COLOURS,
    DESCRIBE,
    Asked,
    Picture,
    PictureSettings,
    Sheet,
    counted,
)

SHAPES = ("circle", "square", "triangle", "cross")
SceneQuestion = Literal["count", "colour", "shape", "place", "relation", "describe"]
RELATIONS = ("left of", "right of", "above", "below")


class Thing(NamedTuple):
    """One shape; `x` and `y` are pixels of its middle, or column and row of a grid from 1."""

    colour: str
    shape: str
    x: int
    y: int

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


class Scene(NamedTuple):
    """Things on a sheet, from top to bottom."""

    things: tuple[Thing, ...]
    size: int
    grid: int
    """Cells of a side; 0: things lie anywhere."""

    @property
    def key(self) -> str:
        told = "; ".join(f"{one.name} {one.x} {one.y}" for one in self.things)
        return f"scene {self.grid or self.size}: {told}"

    @property
    def facts(self) -> list[str]:
        """One for each thing, then the counts."""
        names, shapes = (Counter(getattr(t, k) for t in self.things) for k in ("name", "shape"))
        counts = [(names[name], name) for name in sorted(names)]
        counts += [(shapes[shape], shape) for shape in SHAPES if shape in shapes]
        return [
            *(f"a {one.name} is {self.place(one)}" for one in self.things),
            *(
                f"there {'is' if number == 1 else 'are'} {counted(number, noun)}"
                for number, noun in (*counts, (len(self.things), "thing"))
            ),
        ]

    @property
    def description(self) -> str:
        told = ", ".join(f"a {one.name} {self.place(one)}" for one in self.things)
        return f"{counted(len(self.things), 'thing')}: {told}."

    def place(self, one: Thing) -> str:
        """Where a thing is, in words."""
        if self.grid:
            return f"in row {one.y}, column {one.x}"
        half = self.size // 2
        vertical = "top" if one.y < half else "bottom"
        return f"at the {vertical} {'left' if one.x < half else 'right'}"

    def ask(self, kind: str, rng: random.Random) -> Asked | None:
        if kind == DESCRIBE:
            return Asked(kind, "Describe the picture.", self.description)
        return _QUESTIONS[kind](self, rng)

    def png(self) -> bytes:
        sheet = Sheet(self.size)
        cell = self.size // self.grid if self.grid else self.size // 4
        for number in range(1, self.grid):
            at = number * cell
            sheet.line([(at, 0), (at, self.size)], "grey")
            sheet.line([(0, at), (self.size, at)], "grey")
        for one in self.things:
            x = (one.x - 1) * cell + cell // 2 if self.grid else one.x
            y = (one.y - 1) * cell + cell // 2 if self.grid else one.y
            draw_shape(sheet, one.shape, one.colour, x, y, cell * 3 // 8)
        return sheet.png()

    def single(self, kind: str) -> list[Thing]:
        """The things that no other shares its `colour`, `shape` or `name` with."""
        counts = Counter(getattr(one, kind) for one in self.things)
        return [one for one in self.things if counts[getattr(one, kind)] == 1]


def draw_shape(sheet: Sheet, shape: str, colour: str, x: int, y: int, reach: int) -> None:
    """A shape around (x, y) that reaches so far in each direction."""
    left, top, right, bottom = x - reach, y - reach, x + reach, y + reach
    if shape == "circle":
        sheet.draw("ellipse", (left, top, right, bottom), colour)
    elif shape == "square":
        inset = reach // 8
        sheet.draw("rectangle", (left + inset, top + inset, right - inset, bottom - inset), colour)
    elif shape == "triangle":
        sheet.draw("polygon", (x, top, right, bottom, left, bottom), colour)
    else:
        bar = max(1, reach // 3)
        sheet.draw("rectangle", (x - bar, top, x + bar, bottom), colour)
        sheet.draw("rectangle", (left, y - bar, right, y + bar), colour)


class Scenes(PictureSettings, frozen=True, kw_only=True, tag="scenes"):
    """Coloured shapes and questions about them: what an image model can see of a simple picture."""

    name: Name = "scenes"
    """What the task is called in runs."""
    questions: Annotated[tuple[SceneQuestion, ...], Meta(min_length=1)] = (
        "count",
        "colour",
        "shape",
        "place",
        "relation",
    )
    """Kinds of questions, asked in turn; `describe` asks for everything that is there."""
    layout: Literal["grid", "scattered"] = "grid"
    """In the cells of a grid, named by row and column, or anywhere, named by quarter."""
    grid: Annotated[int, Meta(ge=2, le=7)] = 4
    """Cells of a side."""
    least: Annotated[int, Meta(ge=1, le=16)] = 2
    """Things in a picture, at least."""
    most: Annotated[int, Meta(ge=1, le=16)] = 5
    """Things in a picture, at most; not more than the cells of the grid, or 6 where they are scattered."""
    size: Annotated[int, Meta(ge=64, le=1024, multiple_of=32)] = 224
    """Pixels of a side."""

    def check(self) -> None:
        room = self.grid**2 if self.layout == "grid" else 6
        if not self.least <= self.most <= room:
            raise refused("least", self.least, f"up to most ({self.most}), and most up to {room}")

    def draw(self, rng: random.Random) -> Picture:
        """Colours and shapes by chance; in half of the scenes one colour or shape is frequent."""
        count = rng.randint(self.least, self.most)
        places = self._places(count, rng)
        shapes = SHAPES if rng.random() < 0.5 else rng.sample(SHAPES, 2)
        things = [Thing(rng.choice(COLOURS), rng.choice(shapes), x, y) for x, y in places]
        things.sort(key=lambda one: (one.y, one.x))
        return Scene(tuple(things), self.size, self.grid if self.layout == "grid" else 0)

    def _places(self, count: int, rng: random.Random) -> list[tuple[int, int]]:
        if self.layout == "grid":
            cells = [(x, y) for y in range(1, self.grid + 1) for x in range(1, self.grid + 1)]
            return rng.sample(cells, count)
        # Nothing lies on the middle lines, so that its quarter is plain.
        edge, gap = self.size // 8, self.size // 5
        free = [
            n for n in range(edge, self.size - edge) if abs(n - self.size // 2) > self.size // 16
        ]
        while True:
            found: list[tuple[int, int]] = []
            for _ in range(20 * count):
                x, y = rng.choice(free), rng.choice(free)
                if all(max(abs(x - a), abs(y - b)) >= gap for a, b in found):
                    found.append((x, y))
                if len(found) == count:
                    return found


def _count(scene: Scene, rng: random.Random) -> Asked:
    """Of a shape, a colour or a name; of something that is there in three of four questions."""
    one = rng.choice(scene.things)
    shape, colour = one.shape, one.colour
    if rng.random() < 0.25:
        shape, colour = rng.choice(SHAPES), rng.choice(COLOURS)
    form = rng.randrange(3)
    if form == 0:
        found, what = [t for t in scene.things if t.shape == shape], counted(2, shape)[2:]
    elif form == 1:
        found, what = [t for t in scene.things if t.colour == colour], f"{colour} things"
    else:
        found, what = list(scene.things), "things"
    return Asked("count", f"How many {what} are there?", str(len(found)))


def _attribute(scene: Scene, rng: random.Random, kind: str) -> Asked | None:
    """The colour of the only thing of a shape, or the shape of the only one of a colour."""
    # In the order of the names, which a draw goes by.
    if kind == "colour":
        known = sorted(scene.single("shape"), key=lambda one: SHAPES.index(one.shape))
    else:
        known = sorted(scene.single("colour"), key=lambda one: COLOURS.index(one.colour))
    if not known:
        return None
    one = rng.choice(known)
    if kind == "colour":
        return Asked(kind, f"What colour is the {one.shape}?", one.colour)
    return Asked(kind, f"What shape is {one.colour}?", one.shape)


def _place(scene: Scene, rng: random.Random) -> Asked | None:
    """What a cell of the grid holds, or in which quarter a thing lies."""
    if not scene.grid:
        known = scene.single("name")
        if not known:
            return None
        one = rng.choice(known)
        return Asked("place", f"Where is the {one.name}?", scene.place(one).removeprefix("at the "))
    one = rng.choice(scene.things)
    x, y = one.x, one.y
    if rng.random() < 0.2:
        x, y = rng.randint(1, scene.grid), rng.randint(1, scene.grid)
    found = next((one.name for one in scene.things if (one.x, one.y) == (x, y)), "nothing")
    return Asked("place", f"What is in row {y}, column {x}?", found)


def _relation(scene: Scene, rng: random.Random) -> Asked | None:
    """Yes and no are equally frequent."""
    known = scene.single("name")
    if len(known) < 2:
        return None
    first, second = rng.sample(known, 2)
    relation, wanted = rng.choice(RELATIONS), rng.random() < 0.5
    horizontal = relation in RELATIONS[:2]
    here, there = (first.x, second.x) if horizontal else (first.y, second.y)
    apart = 1 if scene.grid else scene.size // 8
    if abs(here - there) < apart:
        return None
    holds = here < there if relation in ("left of", "above") else here > there
    if holds != wanted:
        first, second = second, first
    question = f"Is the {first.name} {relation} the {second.name}?"
    return Asked("relation", question, "yes" if wanted else "no")


_QUESTIONS: dict[str, Callable[[Scene, random.Random], Asked | None]] = {
    "count": _count,
    "colour": partial(_attribute, kind="colour"),
    "shape": partial(_attribute, kind="shape"),
    "place": _place,
    "relation": _relation,
}


# --- charts


LABELS = tuple("ABCDEFGHKLMNPRSTUX")
TOP = 10
ChartQuestion = Literal["value", "largest", "smallest", "compare", "count", "describe"]
ChartForm = Literal["bar", "line"]


class Chart(NamedTuple):
    """Values by label, from left to right."""

    form: str
    labels: tuple[str, ...]
    values: tuple[int, ...]
    colours: tuple[str, ...]
    size: int

    @property
    def key(self) -> str:
        told = " ".join(f"{a}{b}" for a, b in zip(self.labels, self.values, strict=True))
        return f"chart {self.form}: {told}"

    @property
    def facts(self) -> list[str]:
        return [
            f"{label} is {value}" for label, value in zip(self.labels, self.values, strict=True)
        ]

    @property
    def description(self) -> str:
        return f"A {self.form} chart: {', '.join(self.facts)}."

    def ask(self, kind: str, rng: random.Random) -> Asked | None:
        labels, values = self.labels, self.values
        if kind == DESCRIBE:
            return Asked(kind, "Describe the picture.", self.description)
        if kind == "value":
            n = rng.randrange(len(labels))
            return Asked(kind, f"What is the value of {labels[n]}?", str(values[n]))
        if kind == "count":
            return Asked(kind, "How many values does the chart have?", str(len(values)))
        if kind in ("largest", "smallest"):
            label = labels[values.index(max(values) if kind == "largest" else min(values))]
            return Asked(kind, f"Which label has the {kind} value?", label)
        # Compared: yes and no are equally frequent; values differ.
        low, high = sorted(rng.sample(range(len(labels)), 2), key=lambda n: values[n])
        is_yes = rng.random() < 0.5
        first, second = (high, low) if is_yes else (low, high)
        question = f"Is {labels[first]} larger than {labels[second]}?"
        return Asked(kind, question, "yes" if is_yes else "no")

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
            if self.form == "bar":
                sheet.draw("rectangle", (x - slot // 3, y, x + slot // 3, bottom), colour)
            else:
                reach = size // 40
                sheet.draw("ellipse", (x - reach, y - reach, x + reach, y + reach), colour)
        for x, label in zip(middles, self.labels, strict=True):
            sheet.text(x, bottom + (size - bottom) // 2, label, scale=scale)
        return sheet.png()


class Charts(PictureSettings, frozen=True, kw_only=True, tag="charts"):
    """Bar and line charts and questions about them: what an image model reads off a picture."""

    name: Name = "charts"
    """What the task is called in runs."""
    questions: Annotated[tuple[ChartQuestion, ...], Meta(min_length=1)] = (
        "value",
        "largest",
        "smallest",
        "compare",
        "count",
    )
    """Kinds of questions, asked in turn; `describe` asks for every value."""
    forms: Annotated[tuple[ChartForm, ...], Meta(min_length=1)] = ("bar", "line")
    """Kinds of charts."""
    least: Annotated[int, Meta(ge=2, le=6)] = 3
    """Values in a chart, at least."""
    most: Annotated[int, Meta(ge=2, le=6)] = 5
    """Values in a chart, at most."""
    size: Annotated[int, Meta(ge=96, le=1024, multiple_of=32)] = 224
    """Pixels of a side."""

    def check(self) -> None:
        if self.least > self.most:
            raise refused("least", self.least, f"at most `most`, {self.most}")

    def draw(self, rng: random.Random) -> Picture:
        count = rng.randint(self.least, self.most)
        return Chart(
            rng.choice(self.forms),
            tuple(rng.sample(LABELS, count)),
            tuple(rng.sample(range(1, TOP + 1), count)),
            tuple(rng.sample(COLOURS, count)),
            self.size,
        )
