"""A Jinja sandbox in which no template runs for ever or fills the memory.

A chat template comes with a model: foreign text that is run for every prompt. Jinja's own sandbox
keeps it from the process's objects but not from its time and memory. Here every turn of a loop, every
call, filter and operator is a step of a budget, and no value may grow past a limit. The budget is
counted and not timed, so that the same template ends the same way on a slow machine; a generous
clock stands behind it for steps that are slow themselves.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes
from jinja2.environment import Environment, Template
from jinja2.exceptions import TemplateRuntimeError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_STEPS = 2_000_000
MOST_SECONDS = 30.0
MOST_CHARACTERS = 20_000_000
"""Of one value, and of the whole text; also the largest whole number that may be an argument."""

MOST_BITS = 10_000
"""Of a whole number."""

_CONTEXTS = (Context, EvalContext, Environment)
"""What Jinja puts before the arguments of some filters."""
_WIDE_FORMAT = re.compile(r"\d{7,}|\*")


class TemplateLimit(TemplateRuntimeError):
    """The template asked for more than any conversation needs."""


class Budget:
    """What one rendering has used."""

    def __init__(self) -> None:
        self.steps = 0
        self.ends = time.monotonic() + MOST_SECONDS

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TemplateLimit(f"it loops: more than {MOST_STEPS:,} steps")
        if time.monotonic() > self.ends:
            raise TemplateLimit(f"it loops: more than {MOST_SECONDS:g} s")


_budget: ContextVar[Budget | None] = ContextVar("burnish_template_budget", default=None)


@contextmanager
def limited() -> Iterator[None]:
    """Around the rendering of one conversation."""
    token = _budget.set(Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def render(template: Template, **values: Any) -> str:
    """The template's text, within the limits."""
    with limited():
        parts: list[str] = []
        size = 0
        for part in template.generate(**values):
            parts.append(part)
            size += len(part)
            if size > MOST_CHARACTERS:
                raise TemplateLimit(f"its text has more than {MOST_CHARACTERS:,} characters")
        return "".join(parts)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with a budget."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, function in list(self.filters.items()):
            self.filters[name] = _limited_filter(name, function)
        # Makes as much random text as it is asked for; no conversation needs any.
        self.globals.pop("lipsum", None)
        self.filters[_LOOP] = _counted
        self.filters[_JOIN] = _joined

    def set_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter of our own."""
        self.filters[name] = _limited_filter(name, function)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, _LOOP)
        for concat in tree.find_all(nodes.Concat):
            concat.nodes = [_filtered(nodes.List(list(concat.nodes), lineno=concat.lineno), _JOIN)]
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _step(args, kwargs)
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps `format`
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            _check_method(text, method.__name__, args)
        return _checked(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _step((), {})
        if operator == "*":
            _check_size(_product(left, right))
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return _checked(super().call_binop(context, operator, left, right))


_LOOP, _JOIN = "burnish_counted", "burnish_joined"


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
        _step((), {})
        yield value


def _joined(values: list[Any]) -> str:
    """The operator `~`."""
    _step((), {})
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


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


def _step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count one step; no argument may be a number that could only make something huge."""
    budget = _budget.get()
    if budget is not None:
        budget.step()
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > MOST_CHARACTERS:
            raise TemplateLimit("a call has a whole number of many millions")


def _checked(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple):
        _check_size(len(value))
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
