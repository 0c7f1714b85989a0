"""A typed Python function that a model may call.

    def calculate(expression: str) -> str:
        '''Compute an arithmetic expression.

        Args:
            expression: such as 12 * (3 + 4)
        '''

    tool = Tool(calculate)
    tool.schema                                      # what the chat template shows to the model
    await tool.call({"expression": "6 * 7"})         # ToolResult("42", is_error=False)

The JSON schema comes from the signature, the descriptions from the docstring. Whatever goes wrong
in a call (wrong arguments, an exception, a deadline, a result that is no text) is a result that
says so: the model reads it like any other observation.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import anyio
import msgspec

from burnish.errors import RolloutError, UserError, did_you_mean
from burnish.source import is_cancelled
from burnish.user_code import calling_user_code

MOST_STRAYS = 8
"""Calls that may still be running after their deadline; with more, nothing else gets done."""
_strays: list[threading.Thread] = []
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class ToolResult(NamedTuple):
    """What the model reads after its call."""

    text: str
    is_error: bool = False


class Tool:
    """A function, its JSON schema, and the limits of a call."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str = "",
        deadline_s: float = 10.0,
        max_characters: int = 2000,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        """`deadline_s` bounds a call, `max_characters` its result; a longer one is cut.

        `fixed` are arguments that the model neither sees nor gives.
        """
        self.name = name or getattr(function, "__name__", type(function).__name__)
        if not _NAME.fullmatch(self.name):
            raise UserError(f"tool '{self.name}': expected a name of letters, digits, _ and -.")
        if not deadline_s > 0 or not max_characters > 0:
            raise UserError(
                f"tool '{self.name}': deadline_s is {deadline_s} and max_characters "
                f"{max_characters}; expected more than 0."
            )
        self.function: Callable[..., Any] | None = function
        self.deadline_s, self.max_characters = deadline_s, max_characters
        self._fixed = dict(fixed or {})
        self._arguments = _arguments(function, self.name, self._fixed)
        self.schema = _schema(function, self.name, self._arguments)

    @classmethod
    def offered(cls, schema: dict[str, Any]) -> Tool:
        """A tool that the environment executes itself: its calls reach `Env.step`."""
        tool = cls.__new__(cls)
        tool.name = schema["function"]["name"]
        tool.schema, tool.function = schema, None
        return tool

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the function; every failure is a result."""
        assert self.function is not None
        try:
            given = msgspec.convert(dict(arguments), self._arguments, strict=False)
        except msgspec.ValidationError as error:
            return ToolResult(f"Error: wrong arguments for {self.name}: {error}", True)
        call = self._bound(self.function, msgspec.structs.asdict(given) | self._fixed)
        try:
            with anyio.move_on_after(self.deadline_s):
                return ToolResult(self._text(await call()))
            return ToolResult(f"Error: no result within {self.deadline_s:g} s", True)
        except RolloutError:
            raise
        except BaseException as error:  # boundary: a tool is foreign code
            if is_cancelled(error):
                raise
            return ToolResult(f"Error: {_line(error)}", True)

    def _bound(
        self, function: Callable[..., Any], given: dict[str, Any]
    ) -> Callable[[], typing.Awaitable[Any]]:
        async def awaited() -> Any:
            with calling_user_code():
                return await function(**given)

        if inspect.iscoroutinefunction(function):
            return awaited
        return lambda: in_thread(lambda: function(**given), f"tool '{self.name}'")

    def _text(self, value: Any) -> str:
        if not isinstance(value, str):
            # Not msgspec's own JSON, which writes null for NaN.
            value = json.dumps(msgspec.to_builtins(value), allow_nan=False, ensure_ascii=False)
        return self._cut(value)

    def _cut(self, text: str) -> str:
        shown = text[: self.max_characters].encode("utf-8", "replace").decode()
        more = f"... (cut: {len(text)} characters)" if len(text) > self.max_characters else ""
        return shown + more


async def in_thread(call: Callable[[], Any], what: str) -> Any:
    """The call's result from a daemon thread, which is left behind when the caller is cancelled.

    anyio's worker threads would keep the process from ending while a call hangs.
    """
    _strays[:] = [thread for thread in _strays if thread.is_alive()]
    if len(_strays) >= MOST_STRAYS:
        raise RolloutError(
            f"{len(_strays)} calls never returned and keep the interpreter busy (the next would be "
            f"of {what}); give it a limit of its own."
        )
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error else done.set_result(value)

    def work() -> None:
        value, failure = None, None
        try:
            with calling_user_code():
                value = call()
        except BaseException as error:  # boundary: a tool is foreign code
            # A future takes no StopIteration, and SystemExit would end the event loop.
            failure = (
                error if isinstance(error, ValueError | TypeError) else RuntimeError(_line(error))
            )
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        return await done
    finally:
        if not done.done() or done.cancelled():
            _strays.append(thread)


def _line(error: BaseException) -> str:
    try:
        text = " ".join(str(error)[:300].encode("utf-8", "replace").decode().split())
    except BaseException:  # boundary: the text of a foreign exception is foreign code too
        text = ""
    is_ours = isinstance(error, RuntimeError) and text.partition(":")[0].isidentifier()
    return text if is_ours else f"{type(error).__name__}: {text}" if text else type(error).__name__


def _arguments(
    function: Callable[..., Any], name: str, fixed: Mapping[str, Any]
) -> type[msgspec.Struct]:
    """The parameters as a struct, which checks and converts what a model gives."""
    try:
        parameters = inspect.signature(function).parameters
        hints = typing.get_type_hints(function, include_extras=True)
    except (ValueError, TypeError, NameError) as error:
        raise UserError(f"tool '{name}': its signature cannot be read ({error}).") from error
    unknown = [key for key in fixed if key not in parameters]
    if unknown:
        known = ", ".join(parameters) or "none"
        raise UserError(
            f"tool '{name}': options has '{unknown[0]}'; its parameters are {known}."
            f"{did_you_mean(unknown[0], parameters)}"
        )
    fields: list[Any] = []
    for parameter in parameters.values():
        if parameter.name in fixed:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(f"tool '{name}': parameter '{parameter}' cannot be given by name.")
        if parameter.name not in hints:
            raise UserError(
                f"tool '{name}': parameter '{parameter.name}' has no type; expected one such as "
                f"'{parameter.name}: str'."
            )
        field = (parameter.name, hints[parameter.name])
        has_default = parameter.default is not parameter.empty
        fields.append((*field, parameter.default) if has_default else field)
    try:
        struct = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, frozen=True,
                                   forbid_unknown_fields=True)  # fmt: skip
        msgspec.json.schema(struct)
    except (TypeError, ValueError) as error:
        raise UserError(f"tool '{name}': a parameter's type has no JSON form ({error}).") from error
    return struct


def _schema(
    function: Callable[..., Any], name: str, arguments: type[msgspec.Struct]
) -> dict[str, Any]:
    (_,), defined = msgspec.json.schema_components([arguments])
    parameters = defined.pop(arguments.__name__)
    text = inspect.getdoc(function) or ""
    described = dict(
        re.findall(r"^\s+(\w+)(?: \([^)]*\))?: (.+)$", text.partition("Args:")[2], re.M)
    )
    properties = {
        key: {k: v for k, v in value.items() if k != "title"}
        | ({"description": described[key]} if key in described else {})
        for key, value in parameters["properties"].items()
    }
    shape: dict[str, Any] = {"type": "object", "properties": properties}
    if parameters.get("required"):
        shape["required"] = parameters["required"]
    if defined:
        shape["$defs"] = defined
    description = " ".join(text.partition("\n\n")[0].split())
    about = {"name": name, "description": description, "parameters": shape}
    return {"type": "function", "function": about}
