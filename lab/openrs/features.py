"""Thirty criteria that a program can decide: numbers about one response to one request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

WORD = re.compile(r"[A-Za-z']+")
SENTENCE = re.compile(r"[.!?]+(?:\s|$)")
REFUSAL = re.compile(
    r"\b(?:as an ai|i cannot|i can't|i am unable|i'm sorry|i do not know|i don't know)\b"
)
HEDGE = re.compile(r"\b(?:maybe|perhaps|might|possibly|probably|seems?|could be)\b")
JOIN = re.compile(r"\b(?:because|therefore|however|since|so that|for example|first|then)\b")
COMMON = frozenset(
    re.findall(
        r"\w+", "the a an and or of to in on for is are was be it this that with as at by from"
    )
)

Feature = Callable[[str, str], float]


def words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def content(text: str) -> set[str]:
    return {word for word in words(text) if word not in COMMON and len(word) > 2}


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def repeated_words(request: str, text: str) -> float:
    """Share of words that were there before."""
    said = words(text)
    return ratio(len(said) - len(set(said)), len(said))


def repeated_triples(request: str, text: str) -> float:
    said = words(text)
    triples = list(zip(said, said[1:], said[2:], strict=False))
    return ratio(len(triples) - len(set(triples)), len(triples))


def repeated_lines(request: str, text: str) -> float:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ratio(len(lines) - len(set(lines)), len(lines))


def covered(request: str, text: str) -> float:
    """Share of the request's content words that the response takes up."""
    asked = content(request)
    return ratio(len(asked & content(text)), len(asked))


def copied(request: str, text: str) -> float:
    """Share of the response's content words that stand in the request."""
    said = content(text)
    return ratio(len(said & content(request)), len(said))


def echoes(request: str, text: str) -> float:
    """The response begins as the request does, or holds all of it."""
    return float(text.strip()[:40] in request or request.strip()[:60] in text)


def top_word(request: str, text: str) -> float:
    counts = Counter(word for word in words(text) if word not in COMMON)
    return ratio(max(counts.values(), default=0), sum(counts.values()))


def long_sentence(request: str, text: str) -> float:
    return max((len(words(part)) for part in SENTENCE.split(text)), default=0)


FEATURES: dict[str, Feature] = {
    "characters": lambda q, t: len(t),
    "words": lambda q, t: len(words(t)),
    "sentences": lambda q, t: len(SENTENCE.findall(t)),
    "lines": lambda q, t: len([line for line in t.splitlines() if line.strip()]),
    "paragraphs": lambda q, t: len([p for p in t.split("\n\n") if p.strip()]),
    "word length": lambda q, t: ratio(sum(map(len, words(t))), len(words(t))),
    "sentence length": lambda q, t: ratio(len(words(t)), max(1, len(SENTENCE.findall(t)))),
    "longest sentence": long_sentence,
    "different words": lambda q, t: len(set(words(t))),
    "repeated words": repeated_words,
    "repeated triples": repeated_triples,
    "repeated lines": repeated_lines,
    "most used word": top_word,
    "covers the request": covered,
    "copies the request": copied,
    "echoes the request": echoes,
    "refusal": lambda q, t: len(REFUSAL.findall(t.lower())),
    "hedging": lambda q, t: len(HEDGE.findall(t.lower())),
    "connectives": lambda q, t: len(JOIN.findall(t.lower())),
    "numbers": lambda q, t: len(re.findall(r"\d+", t)),
    "bullets": lambda q, t: len(re.findall(r"^\s*(?:[-*]|\d+[.)])\s", t, re.MULTILINE)),
    "commas": lambda q, t: t.count(","),
    "questions": lambda q, t: t.count("?"),
    "exclamations": lambda q, t: t.count("!"),
    "code": lambda q, t: len(re.findall(r"[{}<>=;]|```", t)),
    "names": lambda q, t: len(re.findall(r"(?<=[a-z] )[A-Z][a-z]+", t)),
    "quotation marks": lambda q, t: t.count('"'),
    "ends well": lambda q, t: float(t.rstrip()[-1:] in tuple('.!?"')),
    "begins well": lambda q, t: float(t.lstrip()[:1].isupper() or t.lstrip()[:1].isdigit()),
    "odd letters": lambda q, t: ratio(sum(ord(c) > 127 for c in t), max(1, len(t))),
}
