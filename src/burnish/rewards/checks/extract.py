"""Where in a response the answer stands. Every function is linear in the text and total.

Answers longer than `LONGEST` characters are not read: no honest answer needs them, and what
follows (parsing, big integers, computer algebra) is not linear.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

LONGEST = 2000
"""Characters of the longest answer that is read."""

Where = Literal["auto", "boxed", "tag", "marker", "last", "whole"]
"""`boxed`: the last \\boxed{}; `tag`: the last <answer>...</answer>; `marker`: after the last
`####`, `answer is`, `answer:` or `A:`; `last`: the last number; `whole`: all of the text;
`auto`: the first of tag, boxed and marker that is there, else the last number."""

_MARKERS = re.compile(r"####|(?-i:\bA:)|\banswer\s{0,3}(?:is\b|:|=)\s{0,3}:?", re.IGNORECASE)


class Found(NamedTuple):
    """An answer and the place it was read from."""

    text: str
    place: str


def last_boxed(text: str) -> str | None:
    """Content of the last \\boxed{...} or \\fbox{...} with balanced braces.

    Of one that goes on past `LONGEST` characters, the first `LONGEST + 1`: too long, but there.
    """
    starts = [(text.rfind(mark), len(mark)) for mark in ("\\boxed{", "\\fbox{")]
    start, width = max(starts)
    if start < 0:
        return None
    depth, begin = 1, start + width
    for index in range(begin, min(len(text), begin + LONGEST + 1)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[begin:index].strip()
    return text[begin : begin + LONGEST + 1] if len(text) - begin > LONGEST else None


def last_tag(text: str, tag: str = "answer") -> str | None:
    """Content of the last <tag>...</tag> pair."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    if end < 0 or start < 0:
        return None
    return text[start + len(tag) + 2 : end].strip()


def after_marker(text: str) -> str | None:
    """The rest of the line after the last answer marker."""
    marks = list(_MARKERS.finditer(text, max(0, len(text) - 20_000)))
    if not marks:
        return None
    lines = text[marks[-1].end() :].strip().splitlines()
    return lines[0].strip().rstrip(".").strip() if lines else None


def find_answer(text: str, where: Where, tag: str = "answer") -> Found | None:
    """The answer at the given place; None where there is none. `last` is up to the caller.

    `auto` looks where an answer can mean nothing else: tag, box or marker, inner ones first.
    """
    if where == "auto":
        tagged = last_tag(text, tag)
        boxed = last_boxed(text if tagged is None else tagged)
        if boxed is not None:
            return Found(boxed, "box")
        return find_answer(text, "marker" if tagged is None else "tag", tag)
    if where == "whole":
        return Found(text.strip(), "whole text")
    read = {"boxed": last_boxed, "tag": lambda t: last_tag(t, tag), "marker": after_marker}
    found = read[where](text) if where in read else None
    places = {"boxed": "box", "tag": f"<{tag}>", "marker": "marker"}
    return None if found is None else Found(found, places[where])


def references(value: Any) -> list[str]:
    """Accepted answers as texts: one value or a list of them; a worked solution gives its answer."""
    values = value if isinstance(value, list | tuple) else [value]
    texts = [str(item).strip() for item in values if item is not None]
    found = []
    for text in filter(None, texts):
        inner = last_boxed(text)
        if inner is None and "####" in text:
            inner = after_marker(text)
        found.append(inner or text)
    return found


def short(text: str, limit: int = 80) -> str:
    """A text for people: on one line, cut in the middle."""
    flat = " ".join(text[: 4 * limit].split()) if len(text) > 4 * limit else " ".join(text.split())
    if len(flat) <= limit and len(text) <= 4 * limit:
        return flat
    tail = " ".join(text[-limit:].split())
    return f"{flat[: limit // 2]} ... {tail[-limit // 2 :]} ({len(text)} characters)"
