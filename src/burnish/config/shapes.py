"""What a type annotation of a config allows, as the loader needs to know it and as a person reads it."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec
from msgspec import Meta, Struct

from burnish.boundary import expected, is_plain


class Shape(NamedTuple):
    """The parts of an annotation."""

    structs: tuple[type[Struct], ...]
    """Tables that may stand here; more than one are told apart by their tag."""
    item: Any
    """Annotation of a list's entries where those are tables, else None."""
    nullable: bool


class Field(NamedTuple):
    """One key of a table."""

    key: str
    name: str
    annotation: Any
    default: Any
    """`msgspec.NODEFAULT` where it must be given."""


def shape(annotation: Any) -> Shape:
    """Take an annotation apart."""
    structs: list[type[Struct]] = []
    item = None
    nullable = False
    for option in options(annotation):
        origin = typing.get_origin(option)
        arguments = typing.get_args(option)
        if option is type(None):
            nullable = True
        elif is_struct(option):
            structs.append(option)
        elif origin in (list, tuple) and arguments and shape(arguments[0]).structs:
            item = arguments[0]
    return Shape(tuple(structs), item, nullable)


def options(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself; constraints taken off."""
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from options(member)
    else:
        yield annotation


def is_struct(kind: Any) -> bool:
    """True for a msgspec Struct class."""
    return isinstance(kind, type) and issubclass(kind, Struct)


def is_list(annotation: Any) -> bool:
    """True where a list may stand."""
    return any(
        typing.get_origin(o) in (list, tuple) or o in (list, tuple) for o in options(annotation)
    )


def takes_text(annotation: Any) -> bool:
    """True where any text may stand."""
    return any(option in (str, Any, object) for option in options(annotation))


def fields(struct: type[Struct]) -> list[Field]:
    """The keys of a table, in order."""
    hints = typing.get_type_hints(struct, include_extras=True)
    found = []
    for field in msgspec.structs.fields(struct):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(Field(field.encode_name, field.name, hints[field.name], default))
    return found


def tag(struct: type[Struct]) -> tuple[str, str] | None:
    """The key and the value that name a table's kind, where it has one."""
    config = struct.__struct_config__
    return (config.tag_field, str(config.tag)) if config.tag_field is not None else None


def kinds(structs: Iterable[type[Struct]]) -> dict[str, type[Struct]]:
    """Tables by the kind that names them."""
    return {mark[1]: struct for struct in structs if (mark := tag(struct)) is not None}


def aliases(structs: Iterable[type[Struct]]) -> dict[str, type[Struct]]:
    """Tables by the other names that they declare: `grpo` for `sum_then_normalise`."""
    return {name: struct for struct in structs for name in getattr(struct, "ALIASES", ())}


def word_key(structs: Sequence[type[Struct]]) -> str:
    """The key that a bare word in place of a table sets: its kind, or the one it declares."""
    marks = [mark[0] for struct in structs if (mark := tag(struct)) is not None]
    declared = [getattr(struct, "WORD", "") for struct in structs]
    return next(filter(None, [*marks, *declared]), "")


def words(annotation: Any) -> list[Any]:
    """The values of a Literal or an enumeration; empty where other values may stand as well."""
    found: list[Any] = []
    for option in options(annotation):
        if typing.get_origin(option) is Literal:
            found += typing.get_args(option)
        elif isinstance(option, type) and issubclass(option, enum.Enum):
            found += [member.value for member in option]
        elif option is not type(None):
            return []
    return found


def listed_words(annotation: Any) -> list[Any]:
    """The same, also of what a list may hold."""
    held = [typing.get_args(o)[0] for o in options(annotation) if is_list(o) and typing.get_args(o)]
    return words(annotation) or [word for one in held for word in words(one)]


def annotated_keys(
    struct: type[Struct], prefix: str = "", seen: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Every dotted key that a table may hold, also inside its tables, with its annotation."""
    if struct in seen:
        return
    for field in fields(struct):
        yield prefix + field.key, field.annotation
        inner = shape(field.annotation)
        for table in inner.structs:
            yield from annotated_keys(table, f"{prefix}{field.key}.", (*seen, struct))


def homes(schema: type[Struct], name: str) -> list[str]:
    """The keys that end in this name, in any table: `optimiser.learning_rate` and others."""
    keys = dict.fromkeys(key for key, _ in annotated_keys(schema))
    return [key for key in keys if key.rpartition(".")[2] == name]


def describe(annotation: Any) -> str:
    """What a key takes, in the words that Python's arguments have: `a number from 0 to 1 or none`."""
    kinds = list(options(annotation))
    if is_plain(annotation):
        return expected(annotation).replace("a dict with text keys", "a table")
    if typing.get_origin(annotation) in (Union, types.UnionType):
        parts = [describe(member) for member in typing.get_args(annotation)]
        return " or ".join(dict.fromkeys(parts))
    if any(is_struct(kind) or dict in (kind, typing.get_origin(kind)) for kind in kinds):
        return "a table"
    if is_list(annotation):
        least = next((m.min_length for m in typing.get_args(annotation) if isinstance(m, Meta)), 0)
        return f"a list of at least {least} table" if least else "a list of tables"
    return ", ".join(map(str, words(annotation))) or expected(annotation)
