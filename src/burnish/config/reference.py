"""Every key of a config with its type, default and meaning, read from the schema itself.

The meaning of a key is the text under its field in the code; `burnish config` prints this and
`python docs/make_config.py` writes it as a page.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import NODEFAULT, Struct

from burnish.config import shapes
from burnish.config.resolve import to_plain
from burnish.config.schema import Config
from burnish.errors import UserError, did_you_mean
from burnish.texts import toml_value

ITEM = "N"
"""Stands for the position of a table in a list: `rewards.N.weight` is typed `rewards.0.weight`."""
LONGEST = 60
"""Characters of a default that are shown."""


class Key(NamedTuple):
    """One key of a table."""

    key: str
    """Dotted: `policy.advantage.scale`."""
    type: str
    """What it may be, with its bounds."""
    default: str
    """As TOML; empty where the key must be given."""
    meaning: str
    kinds: tuple[str, ...] = ()
    """Kinds of the table that have the key; empty where every one has it."""
    tag: str = ""
    """The key that names these kinds: `kind`, or another."""
    elsewhere: str = ""
    """The section that lists the keys inside it, where it holds a table."""


class Section(NamedTuple):
    """One table: what it is for, its kinds, and its keys."""

    path: str
    """Dotted; empty for the config itself."""
    meaning: str
    tag: str
    """The key that names its kind: `kind`; empty where it has none."""
    kinds: dict[str, str]
    """Kind -> what it is."""
    aliases: dict[str, str]
    """Other name -> kind."""
    keys: tuple[Key, ...]


@functools.cache
def sections() -> tuple[Section, ...]:
    """Every table of the config. One that may stand in several places is listed at the first."""
    return tuple(_walk("", "Everything a run depends on.", (Config,), {}))


def find(key: str) -> list[Key]:
    """The keys of this dotted name, one for each meaning that it has in different kinds."""
    wanted = _plain(key)
    return [one for section in sections() for one in section.keys if _plain(one.key) == wanted]


def find_sections(path: str) -> list[Section]:
    """The tables at a dotted path, also where another place lists their keys.

    Several where kinds of one table call different tables by one name, as `train.sizes`.
    """
    wanted = _plain(path.rstrip("."))
    known: dict[str, list[Section]] = {}
    for section in sections():
        known.setdefault(_plain(section.path), []).append(section)
    if wanted in known:
        return known[wanted]
    return next((known[_plain(one.elsewhere)] for one in find(wanted) if one.elsewhere), [])


def refuse(key: str) -> UserError:
    """The error for a key that is not there, with the nearest."""
    known = [one.key for section in sections() for one in section.keys]
    last = [one for one in known if one.rpartition(".")[2] == key.rpartition(".")[2]]
    near = did_you_mean(key, known) or (f" Did you mean '{last[0]}'?" if last else "")
    return UserError(f"no config key '{key[:80]}'.{near or ' burnish config lists the tables.'}")


def _plain(key: str) -> str:
    return re.sub(rf"\.(\d+|{ITEM})(?=\.|$)", "", key)


def _walk(
    path: str,
    meaning: str,
    structs: tuple[type[Struct], ...],
    homes: dict[tuple[type[Struct], ...], str],
) -> Iterator[Section]:
    """A table and the tables inside it; `homes` remembers where each was listed."""
    holders: dict[Key, list[type[Struct]]] = {}
    inner: list[tuple[str, str, tuple[type[Struct], ...]]] = []
    for struct in structs:
        texts = field_texts(struct)
        for field in shapes.fields(struct):
            dotted = f"{path}.{field.key}" if path else field.key
            tables, is_list = _tables(field.annotation)
            if tables and tables not in homes:
                homes[tables] = f"{dotted}.{ITEM}" if is_list else dotted
                inner.append((homes[tables], texts[field.name], tables))
            shown = _type(field.annotation, tables, is_list), _default(field.default)
            key = Key(dotted, *shown, texts[field.name], elsewhere=homes.get(tables, ""))
            holders.setdefault(key, []).append(struct)
    marks = [mark[0] for struct in structs if (mark := shapes.tag(struct)) is not None]
    names = {struct: kind for kind, struct in shapes.kinds(structs).items()}
    yield Section(
        path,
        meaning,
        marks[0] if marks else "",
        {kind: first_sentence(struct) for struct, kind in names.items()},
        {name: names[struct] for name, struct in shapes.aliases(structs).items()},
        tuple(_ordered(holders, names, marks)),
    )
    for place, text, tables in inner:
        yield from _walk(place, text, tables, homes)


def _ordered(
    holders: dict[Key, list[type[Struct]]], names: dict[type[Struct], str], marks: list[str]
) -> Iterator[Key]:
    """Keys of every kind, then the others with the kinds that have them."""
    count = max(len(names), 1)
    yield from (key for key, structs in holders.items() if len(structs) == count)
    for key, structs in holders.items():
        if len(structs) < count:
            kinds = tuple(names[struct] for struct in structs)
            yield key._replace(kinds=kinds, tag=marks[0])


def _tables(annotation: Any) -> tuple[tuple[type[Struct], ...], bool]:
    """The tables that may stand at a key, and whether it is a list of them."""
    shape = shapes.shape(annotation)
    if shape.item is not None:
        return shapes.shape(shape.item).structs, True
    return shape.structs, False


def _type(annotation: Any, tables: Sequence[type[Struct]], is_list: bool) -> str:
    if not tables:
        return shapes.describe(annotation)
    kinds = shapes.kinds(tables)
    table = f"table or word: {', '.join(kinds)}" if len(kinds) > 1 else "table"
    null = " or none" if shapes.shape(annotation).nullable else ""
    return (f"list of {table}" if is_list else table) + null


def _default(value: Any) -> str:
    if value is NODEFAULT:
        return ""
    if isinstance(value, Struct):
        mark = shapes.tag(type(value))
        word = getattr(value, getattr(type(value), "WORD", ""), "")
        return toml_value(mark[1] if mark else word) if mark or word else "its own defaults"
    text = toml_value(to_plain(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def first_sentence(struct: type[Struct]) -> str:
    """What a table is, from its docstring."""
    text = inspect.getdoc(struct) or ""
    return text.split("\n\n")[0].replace("\n", " ").strip()


def field_texts(struct: type[Struct]) -> dict[str, str]:
    """Field -> the text under it in the code, from the class itself or the base that has it."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        found |= _texts_of(base.__module__).get(base.__qualname__, {})
    return {name: found.get(name, "") for name in struct.__struct_fields__}


@functools.cache
def _texts_of(module: str) -> dict[str, dict[str, str]]:
    if not module.startswith("burnish"):
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_field_texts(node)) for node in classes}


def _field_texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            yield field.target.id, " ".join(str(text.value.value).split())
