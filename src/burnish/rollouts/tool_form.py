"""How a model is offered tools, how it calls them, and how it reads their results.

A chat template that knows tools is used in its own form: it shows the schemas, and its rendering of
a call says which notation the model writes (`<tool_call>` JSON of Qwen and Hermes, bare JSON of
Llama 3). Every other model gets a plain tagged form: the schemas stand in the system message, a
call is JSON between tags, and results come in a user message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from burnish.errors import UserError
from burnish.records import Message
from burnish.rollouts.session import Renderer
from burnish.rollouts.tool import Tool


class Call(NamedTuple):
    """One call that a model wrote; with a `problem` it cannot be carried out."""

    name: str
    arguments: dict[str, Any]
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """In the form of OpenAI's messages."""
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class ToolForm(Protocol):
    """One way to speak about tools."""

    @property
    def name(self) -> str: ...

    @property
    def schemas(self) -> Sequence[dict[str, Any]]:
        """What the chat template is given; empty where the messages say it all."""
        ...

    def opening(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation's beginning, with the tools in it."""
        ...

    def parse(self, text: str) -> list[Call]:
        """The calls in a reply, in order."""
        ...

    def results(self, results: Sequence[Message]) -> list[Message]:
        """Messages of role tool in the form that the template takes."""
        ...


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
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return Call("", {}, 'the call has no "name"; expected {"name": ..., "arguments": {...}}')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not is_text(found["name"]):
        return Call("", {}, "the call's name holds half a character; expected valid Unicode")
    if not isinstance(arguments, dict):
        return Call(found["name"], {}, 'the "arguments" are no JSON object')
    if not is_text(arguments):
        problem = 'the "arguments" hold half a character; expected valid Unicode'
        return Call(found["name"], {}, problem)
    return Call(found["name"], arguments)


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
    schemas: Sequence[dict[str, Any]] = ()

    def __init__(self, tools: Sequence[Tool]) -> None:
        lines = [json.dumps(tool.schema["function"], ensure_ascii=False) for tool in tools]
        self.instructions = (
            "You can call these tools:\n"
            + "\n".join(lines)
            + '\nTo call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call> and '
            "stop. The result comes in <tool_response></tool_response>."
        )

    def opening(self, messages: Sequence[Message]) -> list[Message]:
        first = messages[0] if messages and messages[0].role == "system" else None
        told = f"{first.content}\n\n{self.instructions}" if first else self.instructions
        return [Message("system", told), *messages[1 if first else 0 :]]

    def parse(self, text: str) -> list[Call]:
        return parse_tagged(text)

    def results(self, results: Sequence[Message]) -> list[Message]:
        texts = [f"<tool_response>\n{result.content}\n</tool_response>" for result in results]
        return [Message("user", "\n".join(texts))]


class TemplateForm:
    """The chat template's own form."""

    def __init__(self, tools: Sequence[Tool], notation: str) -> None:
        self.name = f"template, {notation}"
        self.schemas = [tool.schema for tool in tools]
        self.parse = NOTATIONS[notation]

    def opening(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages)

    def results(self, results: Sequence[Message]) -> list[Message]:
        return list(results)


def tool_form(renderer: Renderer | None, tools: Sequence[Tool]) -> ToolForm:
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
    written = called[_common(offered, called) :]
    for notation, parse in NOTATIONS.items():
        if call in parse(written if notation == "tagged" else written[written.find("{") :]):
            return TemplateForm(tools, notation)
    return TaggedForm(tools)


def _common(first: str, second: str) -> int:
    """Length of the common beginning, not inside a tag or a JSON text."""
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


def messages_behind(form: ToolForm | None, messages: Sequence[Message]) -> list[Message]:
    """New messages as the model reads them: results of tools in the form that it knows."""
    shown: list[Message] = []
    for is_tool, some in groupby(messages, key=lambda message: message.role == "tool"):
        own = list(some)
        shown += form.results(own) if is_tool and form is not None else own
    return shown


def whole_conversation(form: ToolForm | None, messages: Sequence[Message]) -> list[Message]:
    """A whole conversation as the model reads it: tools offered, calls and results in their form."""
    if form is None:
        form = TaggedForm(()) if any(m.tool_calls or m.role == "tool" for m in messages) else None
        return messages_behind(form, [_with_calls(m) for m in messages])
    plain = isinstance(form, TaggedForm)
    return form.opening(messages_behind(form, [_with_calls(m) if plain else m for m in messages]))


def _with_calls(message: Message) -> Message:
    """A reply with its calls in the tagged form."""
    if not message.tool_calls:
        return message
    functions = [call["function"] for call in message.tool_calls]
    calls = [Call(f["name"], f["arguments"]) for f in functions]
    lines = [
        "<tool_call>"
        + json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        + "</tool_call>"
        for call in calls
    ]
    text = "\n".join([*([message.text] if message.text else []), *lines])
    return Message(message.role, text, message.name)
