"""Chat templates: Jinja text from a model's folder, rendered in a sandbox.

The environment offers what transformers offers to templates: trimmed blocks, `break` and
`continue`, `raise_exception`, `strftime_now`, a `tojson` that keeps non-ASCII text, and the
`{% generation %}` block (its body is rendered as it stands). A template comes with a model, so it
is foreign text: it runs in Jinja's immutable sandbox, with limits on its time and its text.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Sized,
    ValuesView,
)
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.environment import Environment, Template
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from burnish.errors import UserError
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
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(
                f"chat template, line {error.lineno}: {error.message}. {MEND}"
            ) from error
        except Exception as error:  # boundary: a template is foreign text
            raise UserError(f"chat template: it cannot be read: {_why(error)}. {MEND}") from error

    @functools.cached_property
    def _wants_parts(self) -> bool:
        """Whether a plain text must be given as a list with one part, as SmolVLM's template asks."""
        if "content" not in self.source or "type" not in self.source:
            return False
        mark = "\ue000"
        shapes = (mark, [{"type": "text", "text": mark}])
        as_text, as_parts = (self._shows(mark, content) for content in shapes)
        return as_parts and not as_text

    def _shows(self, mark: str, content: Any) -> bool:
        try:
            text = render(
                self._template,
                messages=[{"role": "user", "content": content}],
                tools=None,
                documents=None,
                add_generation_prompt=False,
                **self._special_tokens,
            )
        except Exception:  # boundary: a template is foreign text
            return False
        return text.count(mark) == 1

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as one text."""
        try:
            return render(
                self._template,
                messages=[_as_dict(message, self._wants_parts) for message in messages],
                tools=self._tools,
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


def _content(message: Message, as_parts: bool) -> str | list[dict[str, str]]:
    """Text, or the parts as templates of models that read media know them."""
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


def _as_dict(message: Message, as_parts: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": _content(message, as_parts)}
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


MOST_STEPS = 2_000_000
MOST_SECONDS = 30.0
MOST_CHARACTERS = 20_000_000
"""Of one value, and of the whole text; also the largest whole number that may be an argument."""

MOST_MADE = 500_000_000
"""Characters and entries of all values that one rendering makes."""

MOST_BITS = 10_000
"""Of a whole number."""

_CONTEXTS = (Context, EvalContext, Environment)
"""What Jinja puts before the arguments of some filters."""
_WIDE_FORMAT = re.compile(r"\d{7,}|\*")


_HOLDERS = (list, tuple, set, dict, KeysView, ValuesView, ItemsView)
"""What writes out everything that it holds when it is written out."""


class TemplateLimit(TemplateRuntimeError):
    """The template asked for more than any conversation needs."""


class Budget:
    """What one rendering has used."""

    def __init__(self) -> None:
        self.steps = 0
        self.made = 0
        self.sizes: dict[int, tuple[object, int]] = {}
        """Of each list or mapping, by its id: itself, and the size of all that is in it."""
        self.ends = time.monotonic() + MOST_SECONDS

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TemplateLimit(f"it loops: more than {MOST_STEPS:,} steps")
        if time.monotonic() > self.ends:
            raise TemplateLimit(f"it loops: more than {MOST_SECONDS:g} s")

    def make(self, size: int) -> None:
        self.made += size
        if self.made > MOST_MADE:
            raise TemplateLimit(f"its values have more than {MOST_MADE:,} characters together")

    def size(self, value: Any) -> int:
        """Characters of a text, and of all texts in a list or mapping, each entry counted too.

        A list that holds another one twice is written out with both: a few of them, each inside the
        next, are longer than any memory.
        """
        if isinstance(value, str | bytes):
            return len(value)
        if not isinstance(value, _HOLDERS):
            return 1
        if id(value) not in self.sizes:
            held = (*value.keys(), *value.values()) if isinstance(value, dict) else value
            self.sizes[id(value)] = (value, 1 + sum(map(self.size, held)))
        return self.sizes[id(value)][1]


_budget: ContextVar[Budget | None] = ContextVar("burnish_template_budget", default=None)


def render(template: Template, **values: Any) -> str:
    """The template's text, within the limits."""
    token = _budget.set(Budget())
    try:
        parts: list[str] = []
        size = 0
        for part in template.generate(**values):
            parts.append(part)
            size += len(part)
            if size > MOST_CHARACTERS:
                raise TemplateLimit(f"its text has more than {MOST_CHARACTERS:,} characters")
        return "".join(parts)
    finally:
        _budget.reset(token)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with a budget."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, function in list(self.filters.items()):
            self.filters[name] = _limited_filter(name, function)
        # Makes as much random text as it is asked for; no conversation needs any.
        self.globals.pop("lipsum", None)
        self.globals["namespace"] = _Namespace
        self.filters[_LOOP] = _counted
        self.filters[_JOIN] = _joined
        self.filters[_MADE] = _checked

    def set_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter of our own."""
        self.filters[name] = _limited_filter(name, function)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return tree

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The text of a macro or of a block that is set."""
        texts = list(parts)
        _check_size(sum(map(len, texts)))
        return str(_checked("".join(texts)))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _step(args, kwargs)
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps `format`
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            _check_method(text, method.__name__, args)
        return _checked(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _step()
        if operator == "*":
            _check_size(_product(left, right))
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return _checked(super().call_binop(context, operator, left, right))


class _Namespace(Namespace):
    """Written out without what it holds, which can change and so has no known size."""

    def __repr__(self) -> str:
        return "<Namespace>"


_LOOP, _JOIN, _MADE = "burnish_counted", "burnish_joined", "burnish_made"


class _Counting(NodeTransformer):
    """Puts our filters around what a loop goes through, `~`, and written lists and mappings."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _LOOP)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(nodes.List(list(node.nodes), lineno=node.lineno), _JOIN)]
        return node

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:
        return _filtered(self.generic_visit(node), _MADE)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx == "store" else _filtered(node, _MADE)


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(
        node, name, [], [], None, None, lineno=node.lineno, environment=node.environment
    )


def _counted(values: Iterable[Any]) -> Any:
    """What a loop goes through, one step an entry; sized things stay sized."""
    return _Counted(values) if isinstance(values, Sized) else _each(values)


class _Counted:
    """An iterable with a length whose every entry is a step."""

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


def _joined(values: list[Any]) -> str:
    """The operator `~`."""
    _step()
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return str(_checked("".join(texts)))


def _limited_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        _step(args, kwargs)
        own = [value for value in (*args, *kwargs.values()) if not isinstance(value, _CONTEXTS)]
        if own and isinstance(own[0], str):
            _check_method(own[0], name, own[1:])
        elif name == "join" and len(own) > 1 and isinstance(own[1], str):
            _check_method(own[1], name, own[:1])
        return _checked(function(*args, **kwargs))

    return within


def _step(args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
    """Count one step; no argument may be a number that could only make something huge."""
    budget = _budget.get()
    if budget is not None:
        budget.step()
    for value in (*args, *(kwargs or {}).values()):
        if isinstance(value, int) and abs(value) > MOST_CHARACTERS:
            raise TemplateLimit("a call has a whole number of many millions")


def _checked(value: Any) -> Any:
    """A value that was just made, if it is not too large."""
    budget = _budget.get()
    if budget is not None and isinstance(value, (str, bytes, *_HOLDERS)):
        budget.make(len(value))
        _check_size(budget.size(value))
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise TemplateLimit("a number has thousands of digits")
    return value


def _check_method(text: str, name: str, args: Sequence[Any]) -> None:
    """Refuse what would make a long text of short ones before it is made."""
    if name in ("expandtabs", "translate"):
        raise TemplateLimit(f"'{name}' is not offered")
    if name in ("format", "format_map"):
        _check_format(text)
    elif name == "replace" and len(args) > 1 and all(isinstance(a, str) for a in args[:2]):
        _check_size(len(text) + text.count(args[0]) * len(args[1]))
    elif name == "join" and args and isinstance(args[0], Sized):
        _check_size(len(text) * len(args[0]))
    elif name == "indent" and args and isinstance(args[0], int):
        _check_size(len(text) + (text.count("\n") + 1) * args[0])


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise TemplateLimit("a format asks for a very wide field")


def _check_size(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise TemplateLimit(f"a value grows past {MOST_CHARACTERS:,} characters")


def _product(left: Any, right: Any) -> int:
    """Length of a repeated text or list; 0 for numbers."""
    for many, times in ((left, right), (right, left)):
        if isinstance(many, str | bytes | list | tuple) and isinstance(times, int):
            return len(many) * times
    return 0


def _check_power(base: Any, exponent: Any) -> None:
    if not (isinstance(base, int) and isinstance(exponent, int) and exponent > 0):
        return
    if base.bit_length() * exponent > MOST_BITS:
        raise TemplateLimit("a number has thousands of digits")
