"""The tokenizer of a Hugging Face folder, without transformers.

Text becomes tokens through `tokenizer.json` and conversations become text through the model's
own chat template. A model without a template gets its messages' contents joined by blank lines,
with no role markers, and whatever special tokens its tokenizer puts around plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from burnish.errors import MediaError, UserError, first_line
from burnish.lm.base import Messages, ids_of
from burnish.lm.chat_template import MEND, ChatTemplate
from burnish.lm.control_tokens import (
    ControlTokens,
    Disguised,
    Encoded,
    Rendered,
    authors_of,
    cut,
    mark,
    marked,
    parts_of,
)
from burnish.lm.weights import EndTokens, ModelConfig, TokenizerSettings, read_file, read_text
from burnish.records import Author, ImagePart, Message, Span, TextPart

if TYPE_CHECKING:
    from burnish.lm.media_processor import MediaProcessor

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""One of them lies in the folder of every model that reads more than text."""
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    *PROCESSOR_FILES,
    "video_preprocessor_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
"""Files of a folder that belong to its tokenizer and processor, where present."""

REMEMBERED = 1024
"""Conversations whose tokens are kept, the most recently used ones."""
REMEMBERED_CHARACTERS = 4000
"""Longer conversations are rendered each time: a thousand of them would fill the memory."""

_ROLE = re.compile(r"[\w .-]{1,64}")


class Continuation(NamedTuple):
    """A text behind a rendered conversation: what stands before it, and how both are encoded."""

    before: str
    text: str
    encode: Callable[[str], list[int]]


class Tokenizer:
    """Text to ids and back, and conversations to ids."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: dict[str, str] | None = None,
        chat_template: str | None = None,
        eos_ids: Iterable[int] = (),
        pad_id: int | None = None,
        media: MediaProcessor | None = None,
    ) -> None:
        """`media` reads images and sounds; None for text models, which refuse them."""
        self.backend = backend
        self.media = media
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = dict(special_tokens or {})
        self.template = (
            ChatTemplate(chat_template, self.special_tokens) if chat_template is not None else None
        )
        end, pad = (
            backend.token_to_id(self.special_tokens.get(name, ""))
            for name in ("eos_token", "pad_token")
        )
        self.eos_ids = tuple(dict.fromkeys(id_ for id_ in (*eos_ids, end) if id_ is not None))
        # 0 where nothing is named: padding is masked anyway.
        candidates = (pad, pad_id, *self.eos_ids, 0)
        self.pad_id = next(int(id_) for id_ in candidates if id_ is not None)
        self._remembered = lru_cache(REMEMBERED)(self._render)
        self._remembered_frame = lru_cache(REMEMBERED)(self.render_text)
        self._with_tools: dict[str, Tokenizer] = {}

    @classmethod
    def from_folder(cls, folder: Path, media: MediaProcessor | None = None) -> Tokenizer:
        """The tokenizer that lies in a model's folder; `media` where the model reads more than text."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UserError(
                f"{folder} has no tokenizer.json; write one with AutoTokenizer's save_pretrained(folder)"
            )
        tokens = folder / "special_tokens_map.json"
        settings = read_file(folder / "tokenizer_config.json", TokenizerSettings, tokens)
        config = read_file(folder / "config.json", ModelConfig)
        generation = read_file(folder / "generation_config.json", EndTokens)
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
            # No tokenizer knows it: some fail at what they do not know.
            backend.encode("\U0010fffd")
        # Boundary: the tokenizers library raises bare Exception for any unreadable file, or panics.
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise UserError(f"{file} is not a tokenizer: {first_line(error)}") from error
            raise
        template = folder / "chat_template.jinja"
        other = read_file(folder / "chat_template.json", TokenizerSettings).template
        return cls(
            backend,
            special_tokens=settings.texts,
            chat_template=read_text(template) if template.is_file() else settings.template or other,
            eos_ids=generation.eos_ids + config.eos_ids,
            pad_id=config.pad_id,
            media=media,
        )

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> Tokenizer:
        """The same tokenizer for conversations in which the template offers these tools."""
        key = json.dumps(list(tools), sort_keys=True)
        if key not in self._with_tools:
            own = Tokenizer(
                self.backend,
                special_tokens=self.special_tokens,
                eos_ids=self.eos_ids,
                pad_id=self.pad_id,
                media=self.media,
            )
            if self.template is not None:
                own.template = ChatTemplate(self.template.source, self.special_tokens, list(tools))
            self._with_tools[key] = own
        return self._with_tools[key]

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """Ids of a text that may hold control tokens, as `render_text` gives it.

        `special_tokens` adds what the tokenizer puts around plain text. Texts from data go through
        `render`, `behind` or `encode_data`, which read no control token in them.
        """
        ids: list[int] = self.backend.encode(text, add_special_tokens=special_tokens).ids
        return ids

    def encode_data(self, text: str) -> list[int]:
        """Ids of a text from data that stands alone; no control token is read in it."""
        if not self.control.stand_in((), text):
            return self.encode(text)
        return self.control.encode(self.control.plain(text)).ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ids, without special tokens unless asked for."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def render_text(self, messages: Messages, *, add_generation_prompt: bool = True) -> str:
        """A conversation as the text that the model is shown."""
        self.check_media(messages)
        if self.template is None:
            return "\n\n".join(map(self._plain, messages))
        return self.template.render(messages, add_generation_prompt=add_generation_prompt)

    def render(self, messages: Messages, *, add_generation_prompt: bool = True) -> list[int]:
        """A conversation as ids; with the generation prompt, the model answers next."""
        return list(self._rendered(messages, add_generation_prompt).ids)

    def prompt_ids(
        self, messages: Messages, *, add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """`render` with the media that its placeholder tokens stand for: what a model is given."""
        return ids_of(self._rendered(messages, add_generation_prompt).spans)

    def render_spans(
        self, messages: Messages, *, add_generation_prompt: bool = True
    ) -> tuple[Span, ...]:
        """`render`, cut into spans by author; the spans joined are exactly `render`'s ids.

        A token belongs to the author of its first character. Where a template rewrites the
        contents so that they cannot be found again, the whole conversation is the prompt's. The
        tokens of an image or a sound are a span of their own, which names it.
        """
        return self._rendered(messages, add_generation_prompt).spans

    def after_reply(self, history: Messages, new: Messages) -> tuple[Span, ...] | None:
        """What the template writes behind the last message of `history` when `new` is added.

        It begins with the token that ends a reply. Such a token parts a text, so that what follows
        it is encoded alone as it is in its conversation. None where the whole conversation has to
        be looked at: another token follows the reply, the template rewrites contents, or the new
        messages hold media or the text of control tokens.
        """
        talk = (*history, *new)
        if any(message.media or message.tool_calls for message in new) or self.control.stand_in(
            new
        ):
            return None
        _check_roles(new)
        text = self.render_text(talk)
        parts = parts_of(text, self._framed(talk, add_generation_prompt=True), talk)
        count = sum(len(message.texts) for message in new)
        if parts is None or len(parts) == count:
            return None
        start = parts[-1 - count].end
        if not text.startswith(self._ends, start):
            return None
        behind = text[start:]
        authors = authors_of(parts[len(parts) - count :], start, len(text))
        encoding = self.backend.encode(behind, add_special_tokens=False)
        if self.control.reach(encoding, behind, authors):
            return None
        return cut(Encoded(encoding.ids, _places(encoding)), authors).spans

    def prefetch(self, conversations: Iterable[Messages]) -> None:
        """Have coming images and sounds processed by threads, in their order; text has none."""
        if self.media is not None:
            self.media.prefetch(p for talk in conversations for m in talk for p in m.media)

    def behind(self, messages: Messages, text: str) -> Continuation:
        """A text from data as the answer to a conversation, ready to be encoded behind it."""
        conversation = tuple(messages)
        self.check_media(conversation)
        if not self.control.stand_in((), text):
            return Continuation(self.render_text(conversation), text, self.encode)
        before, _ = self._disguised(conversation, add_generation_prompt=True)
        control = self.control
        return Continuation(before.text, control.plain(text), lambda t: control.encode(t).ids)

    @cached_property
    def _ends(self) -> tuple[str, ...]:
        """Texts of the added tokens that end a reply, wherever they stand.

        Left out are those that another text before them can hide: as a part of a word, or where they
        are looked for in the normalised text.
        """
        added = self.backend.get_added_tokens_decoder()
        known = [added[id_] for id_ in self.eos_ids if id_ in added]
        is_hidden = self.backend.normalizer is not None
        return tuple(
            t.content for t in known if not t.single_word and not (is_hidden and t.normalized)
        )

    @cached_property
    def control(self) -> ControlTokens:
        """The tokens that the template alone may write."""
        added = self.backend.get_added_tokens_decoder()
        mask = self.special_tokens.get("mask_token")
        chosen = {
            t.content
            for i, t in added.items()
            if t.special or i in self.eos_ids or t.content == mask
        }
        chosen |= set(self.media.placeholders) if self.media else set()
        others = [t.content for t in added.values() if t.content not in chosen]
        source = self.template.source if self.template else ""
        if any(text in source for text in others):
            # Those that the template writes around a user's turn, and the first one of an answer.
            turn = [Message("user", mark(0))]
            with suppress(UserError):  # a template for other roles says nothing about its turns
                asked = self.render_text(turn, add_generation_prompt=False)
                opened = self.render_text(turn).removeprefix(asked)
                first = [text for text in others if text in opened]
                first.sort(key=lambda text: (opened.index(text), -len(text)))
                chosen |= {text for text in others if text in asked} | set(first[:1])
        return ControlTokens(self.backend, sorted(chosen), source)

    def _rendered(self, messages: Messages, add_generation_prompt: bool) -> Rendered:
        conversation = tuple(messages)
        size = sum(len(message.text) for message in conversation)
        if self._is_repeatable(conversation) and size <= REMEMBERED_CHARACTERS:
            return self._remembered(conversation, add_generation_prompt)
        return self._render(conversation, add_generation_prompt)

    def _is_repeatable(self, messages: Messages) -> bool:
        """Whether equal messages give equal tokens each time, and can be looked up by value."""
        varies = self.template is not None and self.template.varies
        return not varies and not any(message.tool_calls for message in messages)

    def _render(self, messages: tuple[Message, ...], add_generation_prompt: bool) -> Rendered:
        _check_roles(messages)
        self.check_media(messages)
        if self.control.stand_in(messages):
            return self._guarded(messages, add_generation_prompt)
        text = self.render_text(messages, add_generation_prompt=add_generation_prompt)
        authors = self._authors(text, messages, add_generation_prompt)
        encoding = self.backend.encode(text, add_special_tokens=self.template is None)
        if authors is not None and self.control.reach(encoding, text, authors):
            return self._guarded(messages, add_generation_prompt)
        if authors is None and self._writes_more(text, messages, add_generation_prompt):
            return self._guarded(messages, add_generation_prompt)
        return self._cut(Encoded(encoding.ids, _places(encoding)), authors, messages)

    def _writes_more(self, text: str, messages: Messages, add_generation_prompt: bool) -> bool:
        """Whether a rendering has more control tokens than the template writes around contents."""
        frame = self._framed(messages, add_generation_prompt)
        return self.control.count(text) > self.control.count(frame)

    def _guarded(self, messages: tuple[Message, ...], add_generation_prompt: bool) -> Rendered:
        disguised, authors = self._disguised(messages, add_generation_prompt=add_generation_prompt)
        encoded = self.control.encode(disguised.text, special_tokens=self.template is None)
        places = [None if place is None else disguised.places[place] for place in encoded.places]
        return self._cut(Encoded(encoded.ids, places), authors, messages)

    def _cut(
        self, encoded: Encoded, authors: Sequence[Author] | None, messages: Messages
    ) -> Rendered:
        media = [part for message in messages for part in message.media]
        rendered = cut(encoded, authors)
        if not media or self.media is None:
            return rendered
        ids_of_texts = {self._id_of(text) for text in self.media.placeholders}
        found = [token for token in rendered.ids if token in ids_of_texts]
        if found != [self._id_of(self.media.placeholder(part)) for part in media]:
            raise UserError(
                f"the chat template writes {len(found)} placeholder tokens for {len(media)} media. {MEND}"
            )
        spans: list[Span] = []
        rest = iter(media)
        for span in rendered.spans:
            for is_medium, part in groupby(span.token_ids, key=lambda token: token in ids_of_texts):
                own = tuple(part)
                if not is_medium:
                    spans.append(Span(author=span.author, token_ids=own))
                    continue
                for medium in islice(rest, len(own)):
                    has_neighbour = bool(spans and spans[-1].media)
                    tokens = self.media.expansion(medium, has_neighbour=has_neighbour)
                    spans.append(Span(Author.PROMPT, tokens, media=(medium,)))
        return Rendered(tuple(ids_of(spans)), tuple(spans))

    def _id_of(self, text: str) -> int | None:
        found: int | None = self.backend.token_to_id(text)
        return found

    def _plain(self, message: Message) -> str:
        if not message.media or isinstance(message.content, str) or self.media is None:
            return message.text
        return "".join(
            part.text if isinstance(part, TextPart) else self.media.placeholder(part)
            for part in message.content
        )

    def check_media(self, messages: Messages) -> None:
        """Refuse a conversation with images or sounds that the model cannot read."""
        if self.media is None:
            refuse_media(messages)
            return
        parts = [part for message in messages for part in message.media]
        for part in parts:
            self.media.placeholder(part)
        if (count := len(parts)) > self.media.most:
            raise MediaError(
                f"a conversation holds {count} images and sounds; this model takes "
                f"{self.media.most}. Split the task, or use a model that takes more"
            )

    def _disguised(
        self, messages: Messages, *, add_generation_prompt: bool
    ) -> tuple[Disguised, list[Author] | None]:
        for breaks in (self.control.broken, self.control.shattered):
            broken = tuple(map(breaks, messages))
            text = self.render_text(broken, add_generation_prompt=add_generation_prompt)
            authors = self._authors(text, broken, add_generation_prompt)
            if authors is not None or not self._writes_more(text, broken, add_generation_prompt):
                break
        return self.control.disguised(text, authors), authors

    def _authors(
        self, text: str, messages: Messages, add_generation_prompt: bool
    ) -> list[Author] | None:
        """The author of each character; None where the template rewrites the contents."""
        parts = parts_of(text, self._framed(messages, add_generation_prompt), messages)
        return None if parts is None else authors_of(parts, 0, len(text))

    def _framed(self, messages: Messages, add_generation_prompt: bool) -> str:
        """The conversation's text with a mark in the place of each text of its contents."""
        own = marked(messages)
        frame = self._remembered_frame if self._is_repeatable(own) else self.render_text
        return frame(own, add_generation_prompt=add_generation_prompt)


def _places(encoding: tokenizers.Encoding) -> list[int | None]:
    """Where each token begins; None where its range is empty: it was added around the text."""
    return [start if end > start else None for start, end in encoding.offsets]


def refuse_media(messages: Messages) -> None:
    """Refuse images and sounds for a model that reads text only."""
    for number, message in enumerate(messages):
        for part in message.media:
            kind = "an image" if isinstance(part, ImagePart) else "a sound"
            raise MediaError(
                f"message {number} ({message.role}) holds {kind}, and this model reads text only"
            )


def _check_roles(messages: Messages) -> None:
    """A role is a word; templates write it between their markers, where more could forge them."""
    for number, message in enumerate(messages):
        if not _ROLE.fullmatch(message.role):
            raise UserError(
                f"message {number} has the role {message.role[:40]!r}; expected one word, such as user"
            )


def odd_token(one: Tokenizer, other: Tokenizer) -> str | None:
    """A token that two tokenizers number differently; None where their vocabularies are equal."""
    ours, theirs = one.backend.get_vocab(), other.backend.get_vocab()
    if ours == theirs:
        return None
    return next(token for token in (*ours, *theirs) if ours.get(token) != theirs.get(token))


def end_of_turn(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token that the chat template writes behind an answer; () where a model has none.

    Models may know several end tokens; the template says which of them ends a turn.
    """
    dialogue = [Message("user", "a"), Message("assistant", "b")]
    try:
        ids = tokenizer.render(dialogue, add_generation_prompt=False) if tokenizer.template else []
    except UserError:  # a template for other roles; it cannot say
        ids = []
    written = [token for token in ids if token in tokenizer.eos_ids]
    return tuple(written[-1:]) or tokenizer.eos_ids[:1]
