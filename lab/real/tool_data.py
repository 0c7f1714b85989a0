"""Real tool-calling data as tasks: ToolRL, BFCL and API-Bank rows, one function each.

    write_tool_tasks("bfcl", [Path("simple_python.parquet")], Path("bfcl.jsonl"))

    [task]
    kind = "file"
    path = "bfcl.jsonl"
    messages = "messages"
    id = "id"
    fields = { answer = "answer", demonstration = "demonstration", category = "category" }

The `tool_call` reward reads each `answer`: with `dialect = "blocks"` for ToolRL and API-Bank, whose
prompts ask for think, tool_call and response blocks, and with `dialect = "json"` for BFCL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from burnish.errors import UserError, did_you_mean
from burnish.tasks.mapping import RowError
from burnish.tasks.rows import read_table

T = TypeVar("T")

THOUGHT = "I should call the tool that fits, with the parameters that the user has given."
ALTERNATIVES = 64
"""Most accepted values of one nested argument."""
BFCL_INSTRUCTION = (
    "Call the tools that the request needs. Answer with a JSON list of calls and nothing else: "
    '[{"name": ..., "arguments": {...}}]. Parameters with ? may be left out. If no tool fits or a '
    "needed value is missing, answer []."
)


def from_toolrl(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ToolRL's RL files (prompt, reward_model) or SFT files (instruction, input, output).

    The answer is the text of the blocks; `category` says which of them there are.
    """
    if row.get("reward_model") is not None:
        answer = _typed(row, "reward_model", dict).get("ground_truth")
        turns = [_turn(message) for message in _typed(row, "prompt", list)]
        name = f"rl-{_typed(row, 'extra_info', dict).get('index', '')}"
    else:
        answer = row.get("output")
        turns = _turns(_text(row, "instruction"), _text(row, "input"))
        name = f"sft-{row.get('id', '')}"
    if not isinstance(answer, str) or not answer.strip():
        raise RowError(f"the answer is {answer!r:.40}, expected blocks")
    # The think block may name the other tags without using them.
    told = answer.partition("</think>")[2]
    calls, responds = "</tool_call>" in told, "</response>" in told
    if not calls and not responds:
        raise RowError("neither a tool_call nor a response block after the thought")
    category = "both" if calls and responds else "call" if calls else "response"
    return _task(f"toolrl-{name}", turns, answer, answer, category)


def from_api_bank(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of API-Bank; `category` is its level."""
    given = _opened(row, "answer")
    calls = given if isinstance(given, list) else [given]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("parameters"), dict):
            raise RowError(f"call {call!r:.60} has no parameters, expected name and parameters")
    if not calls:
        raise RowError("the answer has no call, expected one")
    lines = "\n".join(json.dumps(call, ensure_ascii=False) for call in calls)
    shown = f"<think> {THOUGHT} </think>\n<tool_call>\n{lines}\n</tool_call>"
    name = str(row.get("id", ""))
    turns = _turns(_text(row, "system"), _text(row, "user"))
    return _task(f"api-bank-{name}", turns, calls, shown, name.partition("-")[0])


def from_bfcl(row: Mapping[str, Any]) -> dict[str, Any]:
    """A single-turn row of BFCL, its function schemas as one-line signatures.

    The answer is a list of calls with BFCL's own latitude: `accepted` values of an argument and
    `optional` ones. Where no call is wanted (irrelevance) it is empty.
    """
    category = str(row.get("category", ""))
    turns = _typed(row, "question", list)
    truth, functions = _opened(row, "ground_truth"), _opened(row, "function")
    if len(turns) != 1 or not functions:
        raise RowError(
            f"{category}: a conversation of {len(turns)} turns with a simulated environment, "
            "expected one turn with its functions"
        )
    if truth is None and category != "irrelevance":
        raise RowError(f"{category}: no reference call, only that there should be one")
    answer = [_bfcl_call(call) for call in truth or []]
    shown = [{"name": call["name"], "arguments": call["arguments"]} for call in answer]
    tools = "\n".join(_signature(function) for function in functions)
    system = f"Tools:\n{tools}\n\n{BFCL_INSTRUCTION}"
    conversation = [_turn(message) for message in turns[0]]
    asked = [turn for turn in conversation if turn["role"] != "system"]
    own = [turn["content"] for turn in conversation if turn["role"] == "system"]
    messages = [{"role": "system", "content": "\n\n".join((*own, system))}, *asked]
    demonstration = json.dumps(shown, ensure_ascii=False)
    return _task(f"bfcl-{row.get('id', '')}", messages, answer, demonstration, category)


CONVERTERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "toolrl": from_toolrl,
    "bfcl": from_bfcl,
    "api_bank": from_api_bank,
}


class Written(NamedTuple):
    """What became of the rows."""

    tasks: int
    skipped: tuple[str, ...]
    """`file:row: why` for each row that is no task."""


def write_tool_tasks(kind: str, sources: Sequence[Path], target: Path) -> Written:
    """Convert files of rows into one JSONL file that tasks of kind `file` can be read from."""
    if kind not in CONVERTERS:
        raise UserError(
            f"no converter for '{kind}'; expected one of {', '.join(CONVERTERS)}."
            f"{did_you_mean(kind, CONVERTERS)}"
        )
    lines, skipped = [], []
    for source in sources:
        table = read_table(source)
        skipped += [f"{source.name}:{bad.number}: {bad.why}" for bad in table.bad]
        for row in table.rows:
            try:
                lines.append(json.dumps(CONVERTERS[kind](row.values), ensure_ascii=False))
            except RowError as error:
                skipped.append(f"{source.name}:{row.number}: {error}")
    if not lines:
        raise UserError(f"{target}: none of {len(skipped)} rows is a task of kind '{kind}'.")
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Written(len(lines), tuple(skipped))


def _task(
    name: str, messages: list[dict[str, str]], answer: Any, demonstration: str, category: str
) -> dict[str, Any]:
    return {
        "id": name,
        "messages": messages,
        "answer": answer,
        "demonstration": demonstration,
        "category": category,
    }


def _turns(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"'{column}' is {value!r:.40}, expected text")
    return value


def _turn(message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise RowError(f"message {message!r:.60}, expected role and content")
    return {"role": str(message["role"]), "content": str(message["content"])}


def _opened(row: Mapping[str, Any], column: str) -> Any:
    """A column's value, read as JSON where it is text."""
    if column not in row:
        raise RowError(f"no '{column}' in this row")
    value = row[column]
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise RowError(f"'{column}' is not JSON ({error})") from None


def _typed(row: Mapping[str, Any], column: str, wanted: type[T]) -> T:
    value = _opened(row, column)
    if not isinstance(value, wanted):
        raise RowError(f"'{column}' is {type(value).__name__}, expected a {wanted.__name__}")
    return value


def _bfcl_call(call: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
    """`{name: {argument: [right values]}}`; an empty text among them: may be left out."""
    if len(call) != 1:
        raise RowError(f"call {call!r:.60} has {len(call)} names, expected one")
    [(name, truths)] = call.items()
    arguments, accepted, optional = {}, {}, []
    for argument, values in truths.items():
        right = [full for value in values if value != "" for full in _whole(value)]
        if "" in values or not right:
            optional.append(argument)
        if right:
            accepted[argument] = right
            arguments[argument] = right[0]
    return {"name": name, "arguments": arguments, "accepted": accepted, "optional": optional}


def _whole(value: Any) -> list[Any]:
    """The values a nested object stands for: BFCL lists the right ones at each of its keys."""
    if isinstance(value, list):
        return [list(items) for items in islice(product(*map(_whole, value)), ALTERNATIVES)]
    if not isinstance(value, dict):
        return [value]
    choices = [
        [(key, full) for one in values if one != "" for full in _whole(one)]
        + [(key, None) for one in values if one == ""]
        for key, values in value.items()
        if isinstance(values, list)
    ]
    picked = islice(product(*choices), ALTERNATIVES)
    return [{key: one for key, one in pairs if one is not None} for pairs in picked]


def _signature(function: Mapping[str, Any]) -> str:
    schema = function.get("parameters", {})
    required = schema.get("required", [])
    shown = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(about)}"
        for name, about in schema.get("properties", {}).items()
    )
    return f"{function['name']}({shown}): {function.get('description', '')}".strip()


def _type(about: Mapping[str, Any]) -> str:
    if about.get("enum"):
        return " | ".join(map(str, about["enum"]))
    if about.get("type") == "array" and isinstance(about.get("items"), dict):
        return f"list of {_type(about['items'])}"
    return str(about.get("type", "any"))
