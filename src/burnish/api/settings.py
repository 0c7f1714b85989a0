"""What `burnish.train` is given in Python as settings of a config: data, rewards, model.

Rows and functions get names in `burnish.memory`, so a config holds names and numbers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from msgspec import Struct
from msgspec.structs import fields

from burnish.arguments import as_table, refused
from burnish.config import schema
from burnish.config.resolve import to_plain
from burnish.config.shapes import options, tag
from burnish.errors import UserError, did_you_mean
from burnish.memory import keep_object, keep_rows, object_name
from burnish.records import Task
from burnish.rewards.config import RewardConfig
from burnish.rewards.scorer import Scorer
from burnish.tasks.config import TaskConfig
from burnish.tasks.files import File, HeldOut, HeldOutFile, HeldOutShare
from burnish.tasks.rows import read_table

PROMPTS = ("prompt", "question", "problem", "instruction")
"""Columns that are taken for the prompt, the first that is there."""
CHATS = ("messages", "conversation", "conversations")
ANSWERS = ("completion", "response", "output")
"""Columns that are taken for demonstrations where there is no `demonstration`."""
FRAMES = {"pandas": ("to_dict", "records"), "polars": ("to_dicts",), "pyarrow": ("to_pylist",)}
"""How the tables of other libraries give their rows."""
MAPPED = ("prompt", "messages", "system", "template")
"""Keys of `columns` that make the prompt; the others are fields."""

OWN_ARGUMENTS = ("data", "columns", "held_out", "seed", "name")
"""Arguments of `burnish.train` that are no key of a config."""

Columns = Mapping[str, str]


def as_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their keys, with `data`, `columns`, `held_out`, `rewards` and `model` read."""
    known = {*OWN_ARGUMENTS, *(field.encode_name for field in fields(schema.Config))}
    # None leaves a known setting as it is; an unknown one is kept, to be refused by its name.
    settings = {k: v for k, v in given.items() if v is not None or k not in known}
    data = settings.pop("data", None)
    columns = settings.pop("columns", None)
    if columns is not None:
        columns = as_table("columns", columns, "a dict such as {'prompt': 'question'}")
    held_out = settings.pop("held_out", None)
    if data is not None:
        settings["task"] = as_task(data, columns, held_out)
    elif columns is not None or held_out is not None:
        name = "columns" if columns is not None else "held_out"
        raise UserError(f"{name} is given without data; expected data=... beside it.")
    if "rewards" in settings:
        settings["rewards"] = as_rewards(settings["rewards"])
    if isinstance(settings.get("model"), str | Path):
        settings["model"] = {"path": str(settings["model"])}
    elif "model" in settings and not isinstance(settings["model"], Mapping | Struct):
        raise refused("model", settings["model"], "smollm2, tiny, a folder or a table")
    if isinstance(settings.get("policy"), Mapping):
        settings["policy"] = {key: as_component(one) for key, one in settings["policy"].items()}
    for short, key in (("seed", "run.seed"), ("name", "run.name")):
        if short in settings:
            settings[key] = settings.pop(short)
    return settings


# --- data


def as_task(data: Any, columns: Columns | None = None, held_out: Any = None) -> Any:
    """The task table of rows, a data frame, a file, a generator function or a task config."""
    kinds = _kinds(TaskConfig)
    is_table = isinstance(data, Struct) or (isinstance(data, Mapping) and "kind" in data)
    if is_table or callable(data) or (isinstance(data, str) and data in kinds):
        if columns is not None or held_out is not None:
            raise UserError("data: columns and held_out belong to rows or a file, not to a task.")
        if callable(data):
            return {"kind": "function", "path": keep_object(data), "name": object_name(data)}
        return {"kind": data} if isinstance(data, str) else data
    if isinstance(data, str | Path):
        return _from_file(Path(data), columns, held_out, kinds)
    rows = as_rows(data)
    if not rows:
        raise UserError("data: got no rows; expected at least one.")
    mapping = _mapping(rows, columns, "data")
    side = _held_out(held_out, mapping)
    return File(path=keep_rows(rows), name="rows", held_out=side, **mapping)


def _from_file(path: Path, columns: Columns | None, held_out: Any, kinds: Sequence[str]) -> File:
    if not path.suffix and not path.exists():
        raise UserError(
            f"data: no file '{path}' and no kind of task of that name; expected rows, a file or "
            f"one of {', '.join(kinds)}.{did_you_mean(str(path), kinds)}"
        )
    mapping = _mapping([row.values for row in read_table(path).rows], columns, str(path))
    return File(path=str(path.absolute()), held_out=_held_out(held_out, mapping), **mapping)


def as_rows(data: Any, what: str = "data") -> list[dict[str, Any]]:
    """Rows in memory as dicts: a list, a `datasets.Dataset`, a pandas or polars frame, a table."""
    if isinstance(data, Mapping):
        raise UserError(
            f"{what}: got a dict with {', '.join(map(str, data))}; expected rows. Choose a split: "
            f"{what}=dataset['train'], or give a list of dicts."
        )
    library = type(data).__module__.partition(".")[0]
    if library in FRAMES:
        method, *arguments = FRAMES[library]
        data = getattr(data, method)(*arguments)
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise UserError(
            f"{what}: got {type(data).__name__}; expected a list of dicts, a Dataset, a data frame, "
            "a path or a task."
        )
    return [_row(row, number, what) for number, row in enumerate(data)]


def _row(row: Any, number: int, what: str) -> dict[str, Any]:
    if isinstance(row, Task):
        return {"id": row.id, "messages": to_plain(row.messages), **row.fields}
    if isinstance(row, str):
        return {"prompt": row}
    if not isinstance(row, Mapping):
        raise UserError(
            f"{what}: row {number} is {type(row).__name__}; expected a dict with named columns."
        )
    # A data frame says NaN where a row has no value.
    plain = {
        str(key): None if (isinstance(value, float) and value != value) else value
        for key, value in row.items()
    }
    # A chat that ends with an answer is its prompt and a demonstration; in place.
    for name in CHATS:
        turns = plain.get(name)
        if (
            _is_chat(turns)
            and turns[-1].get("role") == "assistant"
            and "demonstration" not in plain
        ):
            plain[name], plain["demonstration"] = list(turns[:-1]), turns[-1].get("content")
    for name in ("chosen", "rejected", *ANSWERS):
        turns = plain.get(name)
        if _is_chat(turns) and len(turns) == 1:
            plain[name] = turns[0].get("content")
    return plain


def _is_chat(value: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(turn, Mapping) and "role" in turn for turn in value)
    )


def _mapping(
    rows: Sequence[Mapping[str, Any]], columns: Columns | None, what: str
) -> dict[str, Any]:
    """Prompt, fields and optional fields of rows; `columns` says it, or their names do."""
    known = list(dict.fromkeys(name for row in rows for name in row))
    mapped: dict[str, Any] = dict(columns or {})
    if not {"prompt", "messages"} & mapped.keys():
        mapped = _prompt_column(rows, known, what) | mapped
    fields = {key: path for key, path in mapped.items() if key not in MAPPED}
    if columns is None or not fields:
        used = {mapped.get("prompt"), mapped.get("messages"), "id"}
        fields |= {name: name for name in known if name not in used}
        answer = next((name for name in ANSWERS if name in known), "")
        if answer and "demonstration" not in fields:
            fields["demonstration"] = answer
    missing = (n for n, p in fields.items() if p in known and any(r.get(p) is None for r in rows))
    chosen = {key: value for key, value in mapped.items() if key in MAPPED}
    found = {**chosen, "fields": fields, "optional": tuple(missing)}
    return found | ({"id": "id"} if "id" in known and columns is None else {})


def _prompt_column(
    rows: Sequence[Mapping[str, Any]], known: Sequence[str], what: str
) -> dict[str, str]:
    for name in (*CHATS, *PROMPTS):
        if name in known:
            is_chat = any(_is_chat(row.get(name)) for row in rows)
            return {"messages": name} if is_chat else {"prompt": name}
    raise UserError(
        f"{what}: no column holds the prompt; it has {', '.join(known) or 'no columns'}. Name it: "
        "columns={'prompt': 'COLUMN'} or a template such as {'prompt': 'Question: {COLUMN}'}."
    )


def _held_out(given: Any, mapping: Mapping[str, Any]) -> HeldOut:
    if given is None:
        return HeldOutShare()
    if isinstance(given, Struct):
        return given  # type: ignore[return-value]
    if isinstance(given, int | float) and not isinstance(given, bool):
        return HeldOutShare(share=float(given))
    if isinstance(given, str | Path):
        return HeldOutFile(path=str(Path(given).absolute()))
    return HeldOutFile(path=keep_rows(as_rows(given, "held_out"), "held_out"))


# --- rewards


def as_rewards(given: Any) -> list[Any]:
    """Reward tables of functions, scorers, names, tables, or pairs of one of these and a weight."""
    items = given if isinstance(given, list | tuple) else [given]
    tables: list[dict[str, Any]] = []
    for item in items:
        is_pair = isinstance(item, tuple) and len(item) == 2
        one, weight = item if is_pair else (item, None)
        table = as_reward(one)
        if weight is not None:
            table = {**table, "weight": weight}
        if callable(one) and not isinstance(one, Scorer):
            table["name"] = _unused(table["name"], [other.get("name") for other in tables])
        tables.append(table)
    return tables


def as_reward(given: Any) -> dict[str, Any]:
    """The reward table of one function, scorer, name or table."""
    if isinstance(given, Struct):
        return dict(to_plain(given))
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str):
        kinds = _kinds(RewardConfig)
        if given in kinds:
            return {"kind": given}
        if ":" in given:
            return {"kind": "function", "path": given}
        raise UserError(
            f"rewards: no kind '{given}'; expected one of {', '.join(kinds)}, or the path of a function "
            f"such as my_rewards.py:brief.{did_you_mean(given, kinds)}"
        )
    if isinstance(given, Scorer) or callable(given):
        name = given.name if isinstance(given, Scorer) else object_name(given)
        return {"kind": "function", "name": name, "path": keep_object(given)}
    raise refused(
        "rewards",
        given,
        "a function, a Scorer, a table, or a name such as numeric or my_rewards.py:brief, or a list "
        "of these",
    )


def _unused(name: str, taken: Sequence[str | None]) -> str:
    number, own = 1, name
    while own in taken:
        number += 1
        own = f"{name}_{number}"
    return own


def _kinds(union: Any) -> list[str]:
    return sorted(mark[1] for struct in options(union) if (mark := tag(struct)) is not None)


# --- components


def as_component(given: Any) -> Any:
    """The table of a function that stands in a slot of the policy; everything else as it is."""
    if isinstance(given, list | tuple):
        return [as_component(one) for one in given]
    return {"kind": "function", "path": keep_object(given)} if callable(given) else given
