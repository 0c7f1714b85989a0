"""Names of settings in TRL and verl, and what they are called here.

The tables are those of `docs/from_trl.md` and `docs/from_verl.md`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.config.given import Given, Origin, override

PACKAGE = Path(__file__).resolve().parents[1]

PAGES = {"TRL": "from_trl.md", "verl": "from_verl.md"}
ARGUMENTS = "GRPOTrainer"
"""The table of arguments, which has a column for Python."""
NONE = "none"


class Peer(NamedTuple):
    """One setting of another library."""

    library: str
    name: str
    words: str
    """Ours, as typed: `rollout.samples=8`; `none` where there is nothing like it."""
    python: str
    """The same as an argument of `burnish.train`, where that is not the key itself."""
    differs: str


def hint(name: str, value: str = "", *, in_python: bool = False) -> str:
    """What a setting of TRL or verl is here, as a sentence that follows another; or nothing.

    `value` is what was given, as TOML; it is repeated where both libraries mean the same by it.
    """
    peer = settings().get(name)
    if peer is None:
        return ""
    key, _, _ = peer.words.partition("=")
    is_same = (
        value
        and peer.words != NONE
        and not peer.differs
        and " " not in peer.words
        and "[" not in peer.words
    )
    ours = f"{key}={value}" if is_same else peer.words
    if in_python and ours != NONE:
        ours = peer.python or as_arguments(ours)
    more = f" ({peer.differs})" if peer.differs else ""
    if ours == NONE:
        return f" {peer.library}'s {peer.name} has no counterpart here{more}."
    return f" {peer.library}'s {peer.name} is {ours} here{more}."


def home(name: str, homes: Sequence[str]) -> str:
    """The key that is meant by its last word: the only one of that name, or what TRL or verl mean."""
    if len(homes) == 1:
        return homes[0]
    peer = settings().get(name)
    key = peer.words.partition("=")[0] if peer else ""
    return key if key in homes else ""


@functools.cache
def settings() -> dict[str, Peer]:
    """Every setting of the tables by its name; the first row where a name has several."""
    found: dict[str, Peer] = {}
    for library, page in PAGES.items():
        for peer in _rows(library, page):
            found.setdefault(peer.name, peer)
    return found


def _rows(library: str, page: str) -> list[Peer]:
    folders = (PACKAGE / "_peers", PACKAGE.parents[1] / "docs")
    place = next((folder / page for folder in folders if (folder / page).is_file()), None)
    if place is None:
        return []
    rows: list[Peer] = []
    heading = ""
    for line in place.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:].strip()
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 4 or not re.fullmatch(r"`[\w.]+`", cells[0]):
            continue
        name = cells[0].strip("`")
        if heading == ARGUMENTS:
            words, python = cells[1].strip("`"), cells[2].strip("`")
        else:
            words, python = cells[2].strip("`"), ""
        rows.append(Peer(library, name, words, python, cells[3].replace("`", "")))
    return rows


def as_arguments(words: str) -> str:
    """`rollout.samples=8` as an argument in Python: `rollout={"samples": 8}`."""
    root = Given({}, Origin("page"))
    for word in words.split(" "):
        override(root, word)
    return ", ".join(f"{key}={_python(value)}" for key, value in root.plain().items())


def _python(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {_python(item)}' for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
