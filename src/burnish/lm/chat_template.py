"""Chat templates: Jinja text from a model's folder, rendered in a sandbox.

The environment offers what transformers offers to templates. A template is foreign text: it runs in
Jinja's immutable sandbox, with limits on its steps, its time and its text.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from burnish.errors import UserError
from burnish.lm.base import chat_message
from burnish.records import AudioPart, ImagePart, Message, TextPart

MEND = "Mend chat_template.jinja or tokenizer_config.json of the model's folder."

_VARYING = ("strftime_now", "random", "lipsum")
"""What a template can name that does not follow from the conversation."""


class ChatTemplate:
    """One compiled template and the special tokens it may name."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], tools: Sequence[Any] | None = None
    ) -> None:
        """`tools` are the JSON schemas of the functions that every conversation offers."""
        self.source = source
        self._tools = tools
        self.varies = any(name in source for name in _VARYING)
        """Whether the same conversation may give another text at another time."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _Environment().from_string(source)
        except Exception as error:  # boundary: a template is foreign text
            line = getattr(error, "lineno", "?")
            raise UserError(f"chat template, line {line}: {_why(error)}. {MEND}") from error

    @functools.cached_property
    def _wants_parts(self) -> bool:
        """Whether a plain text must be given as a list with one part, as SmolVLM's template asks."""
        if "content" not in self.source or "type" not in self.source:
            return False
        mark = "\ue000"

        def shows(content: Any) -> bool:
            try:
                text = self._text([{"role": "user", "content": content}], None, False)
            except Exception:  # boundary: a template is foreign text
                return False
            return text.count(mark) == 1

        return shows([{"type": "text", "text": mark}]) and not shows(mark)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as one text."""
        try:
            shown = [chat_message(m, _content(m, self._wants_parts)) for m in messages]
            return self._text(shown, self._tools, add_generation_prompt)
        except Exception as error:  # boundary: a template is foreign text
            roles = ", ".join(message.role for message in messages[:8])
            of = f"a conversation of roles [{roles}{', ...' if len(messages) > 8 else ''}]"
            does, told = "fails at", f"{_why(error)}. {MEND}"
            if isinstance(error, jinja2.TemplateError) and not isinstance(error, _Limit):
                does, told = "refuses", str(error.message)
            raise UserError(f"the chat template {does} {of}: {told}") from error

    def _text(self, messages: list[dict[str, Any]], tools: Any, adds_prompt: bool) -> str:
        token = _budget.set(_Budget())
        try:
            parts: list[str] = []
            size = 0
            for part in self._template.generate(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=adds_prompt,
                **self._special_tokens,
            ):
                parts.append(part)
                size += len(part)
                if size > MOST_CHARACTERS:
                    raise _Limit(f"a value grows past {MOST_CHARACTERS:,} characters")
            return "".join(parts)
        finally:
            _budget.reset(token)


def _why(error: Exception) -> str:
    if isinstance(error, _Limit):
        return str(error.message)
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    return f"{type(error).__name__}: {' '.join(str(error)[:500].split())}"


def _content(message: Message, as_parts: bool) -> str | list[dict[str, str]]:
    if not as_parts and not message.media:
        return message.text
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}]
    kinds = {ImagePart: "image", AudioPart: "audio"}
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": kinds[type(part)]}
        for part in message.content
    ]


class _GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant wrote; text is as is."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that Jinja asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_to_json = functools.partial(json.dumps, ensure_ascii=False)
"""Jinja's own filter escapes HTML characters, which no model was trained on."""


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


MOST_STEPS = 2_000_000
MOST_SECONDS = 30.0
MOST_CHARACTERS = 20_000_000


class _Limit(TemplateRuntimeError):
    """The template asked for more than any conversation needs."""


class _Budget:
    def __init__(self) -> None:
        self.steps = 0
        self.ends = time.monotonic() + MOST_SECONDS


_budget: ContextVar[_Budget | None] = ContextVar("burnish_template_budget", default=None)
_LOOP = "burnish_counted"


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox; loops and calls count their steps."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        # Makes as much random text as it is asked for; no conversation needs any.
        self.globals.pop("lipsum", None)
        self.filters |= {"tojson": _to_json, _LOOP: _counted}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(
                loop.iter, _LOOP, [], [], None, None, lineno=loop.lineno, environment=self
            )
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _step()
        return super().call(context, obj, *args, **kwargs)


def _counted(values: Iterable[Any]) -> Any:
    """What a loop goes through, one step an entry; sized things stay sized."""
    return _Counted(values) if isinstance(values, Sized) else _each(values)


class _Counted:
    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return _each(self._values)


def _each(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _step()
        yield value


def _step() -> None:
    budget = _budget.get()
    if budget is not None:
        budget.steps += 1
        if budget.steps > MOST_STEPS or time.monotonic() > budget.ends:
            raise _Limit(f"it loops: more than {MOST_STEPS:,} steps or {MOST_SECONDS:g} s")
