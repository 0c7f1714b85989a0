"""Counting things in texts, the same way everywhere: words, sentences, paragraphs, bullets."""

from __future__ import annotations

import re

_WORD = re.compile(r"\b[\w'’-]+\b")
_STOPS = re.compile(r"[.!?。！？]+")
# Tried once a run of stops and never given back: long runs of dots cost linear time.
_SENTENCE_END = re.compile(r"(?<![.!?。！？])[.!?。！？]++[\"'”’)\]]*+(?=\s|$)|[。！？]++")
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|vs|etc|e\.g|i\.e|jr|sr|no|fig|inc|ltd|approx)|\b[a-z])$",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\S", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+\S", re.MULTILINE)
_CLOSING = {")": "(", "]": "[", "}": "{"}


def words(text: str) -> list[str]:
    """Runs of letters, digits, underscores, apostrophes and hyphens."""
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """Spans that end in . ! ? (or a full-width form) before a blank, plus what remains.

    Decimal points do not end a sentence; neither do common abbreviations and initials.
    """
    flat = " ".join(text.split())
    found, start, read, says = [], 0, 0, False
    for match in _SENTENCE_END.finditer(flat):
        says = says or _says(flat[read : match.start()])
        read = match.end()
        before = flat[max(start, match.start() - 12) : match.start()]
        if match.group()[0] == "." and _ABBREVIATION.search(before):
            continue
        if says:
            found.append(flat[start:read].strip())
            start, says = read, False
    rest = flat[start:].strip()
    return found + ([rest] if _says(rest) else [])


def sentence_spans(text: str) -> int:
    """How many spans with a letter or digit end in . ! ? or a full-width form, or end the text."""
    return sum(map(_says, _STOPS.split(text)))


def _says(text: str) -> bool:
    return any(letter.isalnum() for letter in text)


def paragraphs(text: str) -> list[str]:
    """Blocks between blank lines."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return ["\n".join(block).strip() for block in blocks if block]


def lines(text: str) -> list[str]:
    """Lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def bullets(text: str) -> int:
    """Lines that start with -, *, + or a number with a point or a bracket."""
    return len(_BULLET.findall(text))


def headings(text: str) -> int:
    """Markdown headings."""
    return len(_HEADING.findall(text))


def brackets_balanced(text: str) -> bool:
    """True where every ( [ { is closed by its own kind, in order."""
    open_ones: list[str] = []
    for letter in text:
        if letter in "([{":
            open_ones.append(letter)
        elif letter in _CLOSING and (not open_ones or open_ones.pop() != _CLOSING[letter]):
            return False
    return not open_ones


def count_occurrences(text: str, needle: str, *, overlapping: bool = False) -> int:
    """How often the needle stands in the text, whatever the case; an empty needle counts 0."""
    haystack, needle = text.casefold(), needle.casefold()
    if not needle:
        return 0
    if not overlapping:
        return haystack.count(needle)
    count, start = 0, haystack.find(needle)
    while start >= 0:
        count, start = count + 1, haystack.find(needle, start + 1)
    return count


def constraint_tools(text: str) -> dict[str, int | bool]:
    """Everything that is counted here, by name."""
    return {
        "words": len(words(text)),
        "sentences": sentence_spans(text),
        "paragraphs": len(paragraphs(text)),
        "lines": len(lines(text)),
        "bullets": bullets(text),
        "headings": headings(text),
        "characters": len(text),
        "brackets_balanced": brackets_balanced(text),
    }
