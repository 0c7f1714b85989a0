"""A picture of coloured cells that is changed in the mind: records with auxiliary pictures for latents.

    make(random.Random(1))["response"]      # 'rotate. <latent/> <parser>Top row: ...</parser> ...'

The question names one or more operations and a cell. The picture after each operation is an auxiliary
picture; the note says its top row, so that words alone do not hold the rest.
"""

from __future__ import annotations

import random
from typing import Any

from burnish.png import data_uri

PALETTE = {
    "red": (220, 40, 40),
    "blue": (40, 70, 220),
    "green": (40, 170, 60),
    "yellow": (240, 220, 50),
    "black": (10, 10, 10),
    "white": (250, 250, 250),
}
PATCH = 8
Grid = list[list[str]]


def rotate(grid: Grid) -> Grid:
    """A quarter turn to the left."""
    return [list(row) for row in zip(*grid, strict=True)][::-1]


def flip(grid: Grid) -> Grid:
    """Left and right exchanged."""
    return [row[::-1] for row in grid]


def transpose(grid: Grid) -> Grid:
    """Rows become columns."""
    return [list(row) for row in zip(*grid, strict=True)]


def shift_down(grid: Grid) -> Grid:
    """Every row one down, the last to the top."""
    return [grid[-1], *grid[:-1]]


def shift_right(grid: Grid) -> Grid:
    """Every column one to the right, the last to the left."""
    return [[row[-1], *row[:-1]] for row in grid]


def swap(grid: Grid) -> Grid:
    """Red and blue exchanged."""
    other = {"red": "blue", "blue": "red"}
    return [[other.get(cell, cell) for cell in row] for row in grid]


OPERATIONS = {
    "rotate": rotate,
    "flip": flip,
    "transpose": transpose,
    "shift down": shift_down,
    "shift right": shift_right,
    "swap": swap,
}


def make(rng: random.Random, side: int = 3, operations: int = 2) -> dict[str, Any]:
    """A record with one to so many operations."""
    names = list(PALETTE)
    grid = [[rng.choice(names) for _ in range(side)] for _ in range(side)]
    chosen = [rng.choice(list(OPERATIONS)) for _ in range(rng.randint(1, operations))]
    row, column = rng.randrange(side), rng.randrange(side)
    grids = [grid]
    for name in chosen:
        grids.append(OPERATIONS[name](grids[-1]))
    answer = grids[-1][row][column]
    steps = [
        f"{name} <latent/> <parser>top row {' '.join(after[0])}</parser>"
        for name, after in zip(chosen, grids[1:], strict=True)
    ]
    return {
        "prompt": f"{', '.join(chosen)}: colour at row {row + 1}, column {column + 1}?",
        "image": picture(grid),
        "aux_images": [picture(after) for after in grids[1:]],
        "response": f"{' '.join(steps)} <answer>{answer}</answer>",
        "answer": answer,
        "split_by": f"{grid} {chosen} {row} {column}",
    }


def picture(grid: Grid) -> str:
    """The grid as a picture, eight pixels a cell."""
    rows = []
    for line in grid:
        pixels = [PALETTE[cell] for cell in line for _ in range(PATCH)]
        rows += [pixels] * PATCH
    return data_uri(rows)
