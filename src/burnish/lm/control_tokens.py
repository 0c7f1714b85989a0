"""Control tokens: only the chat template writes them, never a text from data.

A tokenizer reads `<|im_end|>` as the end of a turn wherever it stands, so an answer that is judged
could end its turn in the judge's prompt and write the verdict itself. A conversation with such a
text in its data is therefore tokenised with a copy of the tokenizer in which every control token
has a private name: what the template wrote is given that name, what the data wrote stays plain
text. Merges, prefix spaces and normalisation follow the same rules as ever, in one pass. All other
conversations never meet the copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import count, groupby
from typing import Any, NamedTuple

import tokenizers
from msgspec.structs import replace

from burnish.lm.base import Messages
from burnish.records import Author, Content, Message, Span, TextPart

_LAST = 0x10FFFD
"""The last character of private use; private names are taken from here downwards."""
_CASES = re.compile(r"lower|upper|title|capitalize|swapcase")
"""Filters by which a template writes a content in other letters than the data has."""


class Encoded(NamedTuple):
    """Ids, and the place in the text of the first character of each; None: added around it."""

    ids: list[int]
    places: list[int | None]


class Disguised(NamedTuple):
    """A rendered conversation in which the template's control tokens have their private names."""

    text: str
    places: list[int]
    """Where each character of `text` stands in the rendering."""


class ControlTokens:
    """The control tokens of one tokenizer, and what keeps them out of data."""

    def __init__(
        self, backend: tokenizers.Tokenizer, texts: Iterable[str], template: str = ""
    ) -> None:
        """`texts` are those of the tokens, `template` is the source of the chat template."""
        self._backend = backend
        known = {text: backend.token_to_id(text) for text in texts if text}
        self._ids = {text: id_ for text, id_ in known.items() if id_ is not None}
        # What a character gets that no tokenizer knows: not a sign that its text was written.
        unknown = set(backend.encode(chr(_LAST), add_special_tokens=False).ids)
        self._read = frozenset(id_ for id_ in self._ids.values() if id_ not in unknown)
        longest_first = sorted(self._ids, key=len, reverse=True)
        case = re.IGNORECASE if _CASES.search(template) else 0
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", case)
        first = _LAST - len(self._ids)
        self._break = chr(first)
        """Inside the text of a control token, this makes it a plain text."""
        self._names = {text: chr(first + 1 + i) for i, text in enumerate(self._ids)}
        self._reserved = re.compile(f"[{chr(first)}-{chr(_LAST)}]")
        added = backend.get_added_tokens_decoder().values()
        self._is_normalised = backend.normalizer is not None and any(
            token.normalized for token in added if token.content in self._ids
        )
        """Whether other letters than its own, such as wide ones, can become a control token."""

    def stand_in(self, messages: Messages, text: str = "") -> bool:
        """Whether a text of the messages, or `text`, would be read as a control token."""
        for part in (text, *(part for m in messages for part in (m.role, m.text, m.name or ""))):
            if self._pattern.search(part) or (self._is_normalised and self._ranges(part)):
                return True
        return any(m.tool_calls and self.broken(m).tool_calls != m.tool_calls for m in messages)

    def reach(self, encoding: tokenizers.Encoding, text: str, authors: Sequence[Author]) -> bool:
        """Whether a control token was read from characters that are not the template's."""
        return any(
            not _is_template(authors, text, start, end)
            for id_, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if id_ in self._read and end > start
        )

    def count(self, text: str) -> int:
        """How many control tokens the tokenizer reads in a text."""
        return len(self._ranges(text))

    def shattered(self, message: Message) -> Message:
        """The message broken wherever a control token may begin.

        A template that leaves out words can make one of what is left: `<|im_/thinkend|>`.
        """
        firsts = re.compile(f"[{''.join(re.escape(name[0]) for name in self._ids)}]")

        def shatter(text: str) -> str:
            return firsts.sub(lambda found: found[0] + self._break, text)

        own = self.broken(message)
        return replace(
            own, content=_each_part(own, shatter), tool_calls=_each_text(own.tool_calls, shatter)
        )

    def broken(self, message: Message) -> Message:
        """The message with every control token's text in it made plain."""
        return replace(
            message,
            role=self._broken(message.role),
            content=_each_part(message, self._broken),
            name=None if message.name is None else self._broken(message.name),
            tool_calls=_each_text(message.tool_calls, self._broken),
        )

    def disguised(self, rendered: str, authors: Sequence[Author] | None) -> Disguised:
        """A rendering of broken messages: the template's control tokens under private names."""
        named = {
            start: (end, name)
            for start, end, name in self._ranges(rendered)
            if authors is None or _is_template(authors, rendered, start, end)
        }
        text: list[str] = []
        places: list[int] = []
        until = 0
        for place, character in enumerate(rendered):
            if place in named:
                until, name = named[place]
                character = self._names[name]
            elif place < until or character == self._break:
                continue
            text.append(character)
            places.append(place)
        return Disguised("".join(text), places)

    def plain(self, text: str) -> str:
        """A text from data, without characters that are private names."""
        return self._reserved.sub("\ufffd", text)

    def encode(self, text: str, *, special_tokens: bool = False) -> Encoded:
        """Ids of a disguised text: private names are control tokens, everything else is plain."""
        encoding = self._renamed.encode(text, add_special_tokens=special_tokens)
        by_name = {self._names[written]: id_ for written, id_ in self._ids.items()}
        read = zip(encoding.tokens, encoding.ids, encoding.offsets, strict=True)
        ids, places = [], []
        for token, id_, (start, end) in read:
            ids.append(by_name.get(token, id_))
            places.append(start if end > start else None)
        return Encoded(ids, places)

    def _broken(self, text: str) -> str:
        text = self._pattern.sub(lambda found: self._split(found[0]), self.plain(text))
        if not self._is_normalised:
            return text
        for start, end, _ in reversed(self._ranges(text)):
            text = text[:start] + self._split(text[start:end]) + text[end:]
        return text

    def _split(self, text: str) -> str:
        return f"{text[:1]}{self._break}{text[1:]}"

    def _ranges(self, text: str) -> list[tuple[int, int, str]]:
        """Where the tokenizer reads which control token; not where a break stands inside."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        by_id = {id_: name for name, id_ in self._ids.items() if id_ in self._read}
        return [
            (start, end, by_id[id_])
            for id_, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if id_ in by_id and end > start and self._break not in text[start:end]
        ]

    @cached_property
    def _renamed(self) -> tokenizers.Tokenizer:
        """The tokenizer in which every control token has its private name and no other."""
        spec = json.loads(self._backend.to_str())
        plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
        for token in spec["added_tokens"]:
            if token["content"] in self._names:
                token |= {"content": self._names[token["content"]], **plain}
        # In the vocabulary too: some tokenizer models look there.
        names, model = self._names, spec["model"]
        vocab = model.get("vocab")
        if isinstance(vocab, dict):
            model["vocab"] = {names.get(token, token): id_ for token, id_ in vocab.items()}
        elif isinstance(vocab, list):
            model["vocab"] = [[names.get(token, token), score] for token, score in vocab]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        if "merges" in model:
            pairs = [m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"]]
            model["merges"] = [pair for pair in pairs if not names.keys() & {*pair, "".join(pair)}]
        return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _is_template(authors: Sequence[Author], text: str, start: int, end: int) -> bool:
    """Whether the range is the template's; blanks beside a token belong to whom they may."""
    own = authors[start:end]
    return own.count(Author.TEMPLATE) == len(own) or all(
        author is Author.TEMPLATE or character.isspace()
        for author, character in zip(own, text[start:end], strict=True)
    )


def _each_part(message: Message, change: Callable[[str], str]) -> Content:
    """The content with every text in it changed; images and sounds stay."""
    if not message.media or isinstance(message.content, str):
        return change(message.text)
    return tuple(
        TextPart(change(part.text)) if isinstance(part, TextPart) else part
        for part in message.content
    )


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """JSON-like data with every text in it changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_each_text(key, change): _each_text(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_each_text(one, change) for one in value)
    return value


class Part(NamedTuple):
    """Where a content stands in the text."""

    start: int
    end: int
    author: Author


class Rendered(NamedTuple):
    """A conversation as tokens, whole and cut by author."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]


def marked(messages: Messages) -> tuple[Message, ...]:
    """The messages with a mark in the place of each text of their contents."""
    numbers = count()
    return tuple(replace(m, content=_each_part(m, lambda _: mark(next(numbers)))) for m in messages)


def parts_of(text: str, frame: str, messages: Messages) -> list[Part] | None:
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
        author = Author.TOOL if message.role == "tool" else Author.PROMPT
        parts.append(Part(start, place, author))
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
