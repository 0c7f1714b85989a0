"""A typed Python function that a model may call."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import threading
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec

from burnish.errors import RolloutError, UserError, did_you_mean
from burnish.lm.base import JsonObject, Messages
from burnish.records import Message
from burnish.source import is_cancelled
from burnish.user_code import calling_user_code

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer

MOST_STRAYS = 8
"""Calls that may still be running after their deadline; with more, nothing else gets done."""
_strays: list[threading.Thread] = []
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class ToolResult(NamedTuple):
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
        self.function: Callable[..., Any] | None = function
        self.deadline_s, self.max_characters = deadline_s, max_characters
        self._fixed = dict(fixed or {})
        self._arguments = _arguments(function, self.name, self._fixed)
        self.schema = _schema(function, self.name, self._arguments)

    @classmethod
    def offered(cls, schema: JsonObject) -> Tool:
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
        function = partial(self.function, **msgspec.structs.asdict(given) | self._fixed)
        try:
            with anyio.move_on_after(self.deadline_s):
                if inspect.iscoroutinefunction(self.function):
                    with calling_user_code():
                        value = await function()
                else:
                    value = await in_thread(function, f"tool '{self.name}'")
                return ToolResult(self._text(value))
            return ToolResult(f"Error: no result within {self.deadline_s:g} s", True)
        except RolloutError:
            raise
        except BaseException as error:  # boundary: a tool is foreign code
            if is_cancelled(error):
                raise
            return ToolResult(f"Error: {_line(error)}", True)

    def _text(self, value: Any) -> str:
        if not isinstance(value, str):
            # Not msgspec's own JSON, which writes null for NaN.
            value = json.dumps(msgspec.to_builtins(value), allow_nan=False, ensure_ascii=False)
        shown: str = value[: self.max_characters].encode("utf-8", "replace").decode()
        more = f"... (cut: {len(value)} characters)" if len(value) > self.max_characters else ""
        return shown + more


async def in_thread(call: Callable[[], Any], what: str) -> Any:
    """The call's result from a daemon thread, which is left behind when the caller is cancelled.

    anyio's worker threads would keep the process from ending while a call hangs.
    """
    _strays[:] = [thread for thread in _strays if thread.is_alive()]
    if len(_strays) >= MOST_STRAYS:
        raise RolloutError(
            f"{len(_strays)} calls never returned (the next: {what}); give it a limit of its own"
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
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not is_named or parameter.name not in hints:
            raise UserError(f"tool '{name}': parameter '{parameter}'; expected such as x: str")
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *default))
    try:
        struct = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, frozen=True,
                                   forbid_unknown_fields=True)  # fmt: skip
        msgspec.json.schema(struct)
    except (TypeError, ValueError) as error:
        raise UserError(f"tool '{name}': a parameter's type has no JSON form ({error}).") from error
    return struct


def _schema(function: Callable[..., Any], name: str, arguments: type[msgspec.Struct]) -> JsonObject:
    (_,), defined = msgspec.json.schema_components([arguments])
    parameters = defined.pop(arguments.__name__)
    text = inspect.getdoc(function) or ""
    described = dict(
        re.findall(r"^\s+(\w+)(?: \([^)]*\))?: (.+)$", text.partition("Args:")[2], re.M)
    )
    properties = parameters["properties"]
    for key, value in properties.items():
        value.pop("title", None)
        if key in described:
            value["description"] = described[key]
    more = {"required": parameters.get("required"), "$defs": defined}
    shape = {"type": "object", "properties": properties} | {k: v for k, v in more.items() if v}
    description = " ".join(text.partition("\n\n")[0].split())
    about = {"name": name, "description": description, "parameters": shape}
    return {"type": "function", "function": about}


class Call(NamedTuple):
    """One call that a model wrote; with a `problem` it cannot be carried out."""

    name: str
    arguments: JsonObject
    problem: str = ""

    def as_dict(self) -> JsonObject:
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def parse_tagged(text: str) -> list[Call]:
    """JSON calls between `<tool_call>` tags; a call without its end is a call with a problem."""
    return [_call(found) for found in _TAGGED.findall(text)]


def parse_bare(text: str) -> list[Call]:
    """A reply that begins with the JSON of a call, as Llama 3 writes it."""
    text = text.strip().removeprefix("<|python_tag|>")
    return [_call(text)] if re.match(r'\{\s*"(?:name|type|function)"', text) else []


NOTATIONS: dict[str, Callable[[str], list[Call]]] = {"tagged": parse_tagged, "bare": parse_bare}


def _call(text: str) -> Call:
    try:
        found, _ = json.JSONDecoder().raw_decode(text.strip())
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Call("", {}, f"the call is not whole JSON ({why})")
    found = found.get("function", found) if isinstance(found, dict) else found
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(name, str) or not is_text(name):
        return Call("", {}, 'the call has no "name"; expected {"name": ..., "arguments": {...}}')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, dict) or not is_text(arguments):
        return Call(name, {}, 'the "arguments" are no JSON object of valid Unicode')
    return Call(name, arguments)


def is_text(value: Any) -> bool:
    """Whether a JSON value can be written down: JSON may spell half a character (`\\ud800`)."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


class TaggedForm:
    """For templates that know nothing of tools."""

    name = "tagged"
    schemas: Sequence[JsonObject] = ()
    parse = staticmethod(parse_tagged)

    def __init__(self, tools: Sequence[Tool]) -> None:
        lines = [json.dumps(tool.schema["function"], ensure_ascii=False) for tool in tools]
        self.instructions = (
            "You can call these tools:\n"
            + "\n".join(lines)
            + '\nTo call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call> and '
            "stop. The result comes in <tool_response></tool_response>."
        )

    def opening(self, messages: Messages) -> list[Message]:
        first = messages[0] if messages and messages[0].role == "system" else None
        told = f"{first.content}\n\n{self.instructions}" if first else self.instructions
        return [Message("system", told), *messages[1 if first else 0 :]]

    def results(self, results: Messages) -> list[Message]:
        texts = [f"<tool_response>\n{result.content}\n</tool_response>" for result in results]
        return [Message("user", "\n".join(texts))]


class TemplateForm:
    """For templates that show the tools themselves."""

    def __init__(self, tools: Sequence[Tool], notation: str) -> None:
        self.name = f"template, {notation}"
        self.schemas: Sequence[JsonObject] = [tool.schema for tool in tools]
        self.parse = NOTATIONS[notation]

    def opening(self, messages: Messages) -> list[Message]:
        return list(messages)

    def results(self, results: Messages) -> list[Message]:
        return list(results)


ToolForm = TaggedForm | TemplateForm


def tool_form(renderer: Tokenizer | None, tools: Sequence[Tool]) -> ToolForm:
    """The template's own form where a trial shows that it has one, else the tagged form.

    The trial: the template shows the tool, a call in a notation that is read back as the same
    call, and the result.
    """
    template = getattr(renderer, "template", None)
    if renderer is None or template is None or "tools" not in template.source:
        return TaggedForm(tools)
    own = renderer.with_tools([tool.schema for tool in tools])
    asked = [Message("user", "q")]
    call = Call(tools[0].name, {"probe": "4711"})
    answered = [*asked, Message("assistant", "", tool_calls=(call.as_dict(),))]
    try:
        offered = own.render_text(asked)
        called = own.render_text(answered, add_generation_prompt=False)
        told = own.render_text([*answered, Message("tool", "result 0815", name=call.name)])
        # Replies are kept as the model wrote them, so a result must be welcome behind plain text.
        own.render_text([*asked, Message("assistant", "a"), Message("tool", "b", name=call.name)])
    except UserError:
        return TaggedForm(tools)
    if call.name not in offered or "0815" not in told:
        return TaggedForm(tools)
    written = called.removeprefix(os.path.commonprefix([offered, called]))  # noqa: RUF071  of texts
    for notation, parse in NOTATIONS.items():
        if call in parse(written if notation == "tagged" else written[written.find("{") :]):
            return TemplateForm(tools, notation)
    return TaggedForm(tools)


def messages_behind(form: ToolForm | None, messages: Messages) -> list[Message]:
    """New messages as the model reads them: results of tools in the form that it knows."""
    shown: list[Message] = []
    for is_tool, some in groupby(messages, key=lambda message: message.role == "tool"):
        own = list(some)
        shown += form.results(own) if is_tool and form is not None else own
    return shown


def whole_conversation(form: ToolForm | None, messages: Messages) -> list[Message]:
    """A whole conversation as the model reads it: tools offered, calls and results in their form."""
    if form is None:
        form = TaggedForm(()) if any(m.tool_calls or m.role == "tool" for m in messages) else None
        return messages_behind(form, [_with_calls(m) for m in messages])
    plain = isinstance(form, TaggedForm)
    return form.opening(messages_behind(form, [_with_calls(m) if plain else m for m in messages]))


def _with_calls(message: Message) -> Message:
    if not message.tool_calls:
        return message
    lines = [message.text] if message.text else []
    for call in message.tool_calls:
        own = {key: call["function"][key] for key in ("name", "arguments")}
        lines.append(f"<tool_call>{json.dumps(own, ensure_ascii=False)}</tool_call>")
    return Message(message.role, "\n".join(lines), message.name)
