"""ATP-Bench: questions whose answers need pictures, and Markdown documents as its free stand-in.

The benchmark's own rows have trace_id, query, image_query, doc, images and gt. Rows that also say where a
picture is needed (`needs`) are scored without a judge; the set that ships has them (40 guides, written by
`recipes/atp/manuals.py`). Of a Markdown document the images are taken out: the answer is to put them back,
and their places are the needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.bench.items import Item, message, responses_of
from burnish.bench.loaders.reading import Source, parsed, read_rows, text_of
from burnish.errors import UserError
from burnish.rewards.judges.atp_bench import read_needs
from burnish.seeds import derive

SHIPPED = Path(__file__).parents[1] / "data" / "atp_manuals.jsonl"
MARKDOWN = (".md", ".markdown")
LONGEST = 20_000
"""Characters of a Markdown document that is still a question."""
ASKED = (
    "Write this document again and put its pictures back. Call a picture where it belongs, on a line of "
    'its own, as <tool name="reference">{"image_id": 0}</tool>.'
)
_IMAGE = re.compile(r"!\[([^\]\n]{0,300})\]\(([^)\s\n]{1,1000})(?:[ \t][^)\n]{0,300})?\)")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_WORDS = (6, 10, 16)
"""Words of a paragraph that name it; more where fewer are not unique."""


class Stripped(NamedTuple):
    text: str
    captions: list[str]
    places: list[int]
    """Number of the paragraph that each image stands in or behind; -1 before the first."""
    starts: list[str]
    """The first words of each paragraph."""


def load_atp(path: Path) -> list[Item]:
    """Items from rows, or from Markdown documents (a file or a folder of them)."""
    files = [path] if path.suffix.lower() in MARKDOWN else []
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in MARKDOWN and f.is_file())
    if files:
        return _from_markdown(files, path)
    shapes = [("trace_id", "query", "doc"), ("trace_id", "query", "images")]
    return [_item(row) for row in read_rows(path, "ATP-Bench", shapes)]


def _item(row: Source) -> Item:
    id = str(row.values["trace_id"])
    doc = _maybe_list(row.values.get("doc"))
    shown: dict[str, Any] = {"documents": doc, "images": _images(row)}
    if row.values.get("sections"):
        shown["sections"] = [str(one) for one in _maybe_list(row.values["sections"])]
    hidden: dict[str, Any] = {}
    if row.values.get("needs") is not None:
        needs = parsed(row, "needs")
        read_needs(needs, row.where)
        hidden["needs"] = needs
    if row.values.get("gt"):
        hidden["gt"] = row.values["gt"]
    answer = row.values.get("response")
    return Item(
        id,
        message(text_of(row, "query")),
        responses_of(id, [answer] if isinstance(answer, str) else []),
        subset=str(row.values.get("category") or ""),
        shown=shown,
        hidden=hidden,
    )


def _images(row: Source) -> list[Any]:
    listed = _maybe_list(row.values.get("images"))
    asked = row.values.get("image_query")
    return [*([asked] if asked else []), *listed]


def _maybe_list(given: Any) -> list[Any]:
    if given is None or given == "":
        return []
    if isinstance(given, str) and given.lstrip().startswith("["):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return [given]
    return list(given) if isinstance(given, list | tuple) else [given]


def _from_markdown(files: Sequence[Path], path: Path) -> list[Item]:
    found = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        name = file.name if file == path else file.relative_to(path).as_posix()
        item = markdown_item(name, text) if len(text) <= LONGEST else None
        found += [item] if item is not None else []
    if not found:
        raise UserError(
            f"{path}: no Markdown document with an image and at most {LONGEST} characters; expected "
            "documents with images, or rows with trace_id, query and doc."
        )
    return found


def markdown_item(id: str, text: str) -> Item | None:
    """One document as a question; None where it has no image behind a paragraph.

    >>> item = markdown_item("a.md", "Open the lid.\\n\\n![the lid](lid.png)\\n\\nDone.")
    >>> item.hidden["needs"][0]["where"], item.shown["images"]
    ('Open the lid.', ['the lid'])
    """
    stripped = strip_images(text)
    usual = [n for n, place in enumerate(stripped.places) if place >= 0]
    if not usual:
        return None
    # In the order of the text the ids alone would give the places away.
    order = sorted(usual, key=lambda n: derive("atp images", id, n))
    captions = [stripped.captions[n] for n in order]
    needs = [
        {
            "where": stripped.starts[stripped.places[n]],
            "intent": stripped.captions[n] or "the picture",
            "tool": "reference",
            "args": {"image_id": order.index(n)},
        }
        for n in usual
    ]
    listed = "\n".join(f"{n}: {caption or '(no caption)'}" for n, caption in enumerate(captions))
    return Item(
        id,
        message(f"{ASKED}\n\nPictures:\n{listed}\n\nDocument:\n{stripped.text}"),
        (),
        subset="markdown",
        shown={"documents": [stripped.text], "images": captions, "sections": stripped.starts},
        hidden={"needs": needs, "gt": text},
    )


def strip_images(text: str) -> Stripped:
    """The text without its images, and where they were; those in code fences stay."""
    fences = [found.start() for found in _FENCE.finditer(text)]
    captions, at, cut, last = [], [], [], 0
    for found in _IMAGE.finditer(text):
        if sum(fence < found.start() for fence in fences) % 2:
            continue
        cut.append(text[last : found.start()])
        at.append(sum(map(len, cut)))
        captions.append(" ".join(found[1].split()))
        last = found.end()
    rest = "".join([*cut, text[last:]])
    pieces = [(m.start(), m[0]) for m in re.finditer(r"(?:[^\n]+\n?)+", rest) if m[0].strip()]
    starts = _names([piece for _, piece in pieces])
    begins = [begin for begin, _ in pieces]
    places = [sum(begin < place for begin in begins) - 1 for place in at]
    return Stripped(rest, captions, places, starts)


def _names(pieces: Sequence[str]) -> list[str]:
    """The first words of each paragraph, as they stand there; more where two begin alike."""
    found: list[str] = []
    for piece in pieces:
        line = piece.strip().splitlines()[0]
        for count in _WORDS:
            name = " ".join(line.split(" ")[:count]).rstrip()
            if name not in found:
                break
        found.append(name)
    return found
