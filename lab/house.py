"""Ceilings of size: lines and nodes of syntax trees, a room of the library, the tests and `lab`.

    python -m lab.house            # fails over a ceiling and says where; `make check` runs it
    python -m lab.house --lower    # writes today's figures where they are below the ceiling

A room is a first folder of `src/burnish`, `(top)` its modules that stand in none. Fewer lines must
also be less to read, so nodes are held too. Ceilings stand in `pyproject.toml` and only go down.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

Figures = dict[str, int]  # lines, nodes
FIGURE = re.compile(r'^"?([^"\n]+?)"? = \{ lines = \d+, nodes = \d+ \}\n', re.MULTILINE)


def room_of(path: Path) -> str:
    """The ceiling that this file of the repository counts towards, '' for none."""
    if path.parts[:2] == ("src", "burnish"):
        return path.parts[2] if len(path.parts) > 3 else "(top)"
    return path.parts[0] if path.parts[0] in {"tests", "lab"} else ""


def measured(root: Path) -> dict[str, Figures]:
    rooms: dict[str, Figures] = defaultdict(lambda: {"lines": 0, "nodes": 0})
    for folder in ("src/burnish", "tests", "lab"):
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            room = rooms[room_of(path.relative_to(root))]
            room["lines"] += text.count("\n")
            room["nodes"] += sum(1 for _ in ast.walk(ast.parse(text)))
    return dict(rooms)


def excesses(rooms: dict[str, Figures], ceilings: dict[str, Figures]) -> list[str]:
    """One line for each figure over its ceiling; a room without a ceiling is over it."""
    return [
        f"{room}: {figure} {kind}, ceiling {ceiling}"
        for room, figures in sorted(rooms.items())
        for kind, figure in figures.items()
        if figure > (ceiling := ceilings.get(room, {}).get(kind, 0))
    ]


def lowered(text: str, rooms: dict[str, Figures], ceilings: dict[str, Figures]) -> str:
    """`pyproject.toml` with each ceiling at the lower of itself and its figure; gone rooms go."""

    def line(found: re.Match[str]) -> str:
        room = found[1]
        if room not in rooms:
            return ""
        low = {kind: min(figure, ceilings[room][kind]) for kind, figure in rooms[room].items()}
        key = f'"{room}"' if room == "(top)" else room
        return f"{key} = {{ lines = {low['lines']}, nodes = {low['nodes']} }}\n"

    start = text.index("[tool.house]")
    return text[:start] + FIGURE.sub(line, text[start:])


def main(words: list[str], root: Path) -> int:
    project = root / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    rooms, ceilings = measured(root), tomllib.loads(text)["tool"]["house"]
    if "--lower" in words:
        project.write_text(lowered(text, rooms, ceilings), encoding="utf-8")
    over = excesses(rooms, ceilings)
    print(*over or [f"{len(rooms)} rooms under their ceilings"], sep="\n")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path()))
