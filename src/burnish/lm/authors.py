"""Who wrote what in a rendered conversation: the template, or one of its messages.

A conversation is rendered twice: as it is, and as a frame with a mark in the place of each content.
What stands between two marks of the frame is the template's; the contents follow one another in
their order. A template that rewrites contents does not fit its frame, and then nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, groupby
from typing import NamedTuple

from burnish.lm.control_tokens import Encoded
from burnish.records import Author, Content, Message, Span, TextPart


class Part(NamedTuple):
    """Where a content stands in the text."""

    start: int
    end: int
    author: Author


class Rendered(NamedTuple):
    """A conversation as tokens, whole and cut by author."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]


def marked(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with a mark in the place of each text of their contents."""
    numbers = count()
    return tuple(
        Message(m.role, _marked_content(m, numbers), name=m.name, tool_calls=m.tool_calls)
        for m in messages
    )


def parts_of(text: str, frame: str, messages: Sequence[Message]) -> list[Part] | None:
    """The place of each text of the contents; None where the text is not its frame filled in."""
    parts: list[Part] = []
    place = 0
    contents = [(message, content) for message in messages for content in message.texts]
    for index, (message, content) in enumerate(contents):
        before, found, frame = frame.partition(mark(index))
        start = place + len(before)
        if not text.startswith(content, start):
            content = content.strip()
        if not (found and text.startswith(before, place) and text.startswith(content, start)):
            return None
        place = start + len(content)
        parts.append(Part(start, place, _author(message)))
    return parts if text[place:] == frame else None


def authors_of(parts: Sequence[Part], start: int, end: int) -> list[Author]:
    """The author of each character from `start` to `end`; the parts are those that lie in there."""
    authors: list[Author] = []
    for part in parts:
        authors += [Author.TEMPLATE] * (part.start - start - len(authors))
        authors += [part.author] * (part.end - part.start)
    return authors + [Author.TEMPLATE] * (end - start - len(authors))


def cut(encoded: Encoded, authors: Sequence[Author] | None) -> Rendered:
    """The ids, and the same cut by author; all the prompt's where the authors are not known."""
    own = [
        Author.TEMPLATE if place is None else authors[place] if authors else Author.PROMPT
        for place in encoded.places
    ]
    spans: list[Span] = []
    until = 0
    for author, group in groupby(own):
        begin, until = until, until + len(list(group))
        spans.append(Span(author=author, token_ids=tuple(encoded.ids[begin:until])))
    return Rendered(tuple(encoded.ids), tuple(spans))


def mark(index: int) -> str:
    """A placeholder for the content of one message, in characters of private use."""
    return f"\ue000{index}\ue001"


def _author(message: Message) -> Author:
    return Author.TOOL if message.role == "tool" else Author.PROMPT


def _marked_content(message: Message, numbers: Iterator[int]) -> Content:
    if not message.media or isinstance(message.content, str):
        return mark(next(numbers))
    return tuple(
        TextPart(mark(next(numbers))) if isinstance(part, TextPart) else part
        for part in message.content
    )
