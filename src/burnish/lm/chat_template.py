"""Chat templates: Jinja text from a model's folder, rendered in a sandbox.

The environment offers what transformers offers to templates: trimmed blocks, `break` and
`continue`, `raise_exception`, `strftime_now`, a `tojson` that keeps non-ASCII text, and the
`{% generation %}` block (its body is rendered as it stands). A template comes with a model, so it
is foreign text: it runs in Jinja's immutable sandbox, with limits on its time and its text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from burnish.errors import UserError
from burnish.lm.template_limits import LimitedEnvironment, TemplateLimit, render
from burnish.records import Message

MEND = "Mend chat_template.jinja or tokenizer_config.json of the model's folder."

_VARYING = ("strftime_now", "random", "lipsum")
"""What a template can name that does not follow from the conversation."""


class ChatTemplate:
    """One compiled template and the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.varies = any(name in source for name in _VARYING)
        """Whether the same conversation may give another text at another time."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(
                f"chat template, line {error.lineno}: {error.message}. {MEND}"
            ) from error
        except Exception as error:  # boundary: a template is foreign text
            raise UserError(f"chat template: it cannot be read: {_why(error)}. {MEND}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as one text."""
        try:
            return render(
                self._template,
                messages=[_as_dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:  # boundary: a template is foreign text
            roles = ", ".join(message.role for message in messages[:8])
            more = ", ..." if len(messages) > 8 else ""
            if isinstance(error, jinja2.TemplateError) and not isinstance(error, TemplateLimit):
                raise UserError(
                    f"the chat template refuses a conversation of roles [{roles}{more}]: "
                    f"{error.message}"
                ) from error
            raise UserError(
                f"the chat template fails at a conversation of roles [{roles}{more}]: "
                f"{_why(error)}. {MEND}"
            ) from error


def _why(error: Exception) -> str:
    if isinstance(error, TemplateLimit):
        return str(error.message)
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    return f"{type(error).__name__}: {' '.join(str(error)[:500].split())}"


def _as_dict(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_calls:
        shown["tool_calls"] = list(message.tool_calls)
    return shown


class _GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant wrote; text is as is."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that Jinja asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> LimitedEnvironment:
    environment = LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.set_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
