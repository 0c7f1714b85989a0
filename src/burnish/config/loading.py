"""Load a config: a TOML file and `key=value` words against a closed msgspec schema.

Precedence, lowest first: the schema's defaults, the file, the words in their order. A table that is
given in part keeps the defaults of the rest. "none" stands for an absent optional value.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from burnish.config.given import (
    COMMAND_LINE,
    PYTHON,
    Given,
    Meaning,
    Origin,
    dotted,
    from_file,
    from_mapping,
    from_origins,
    override,
    put,
)
from burnish.config.resolve import DEFAULT, Resolver, flatten, to_plain, unflatten
from burnish.config.shapes import fields, tag
from burnish.errors import UserError
from burnish.memory import keep_object
from burnish.texts import flat_key, toml_key, toml_value

T = TypeVar("T", bound=Struct)

Source = Path | Mapping[str, Any] | Given | None


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """A config with every value settled."""

    value: T
    origins: dict[str, str]
    """Dotted key -> `default`, `recipes/grpo.toml:12` or `command line`."""
    name: str = ""
    """The file it was loaded from; empty where there was none."""

    def flat(self) -> dict[str, Any]:
        """Dotted key -> plain value, fit for JSON: an infinite float is the word "inf"."""
        return {key: _finite(value) for key, value in flatten(to_plain(self.value)).items()}

    @property
    def hash(self) -> str:
        """SHA-256 of all values."""
        return self.digest()

    def digest(self, exclude: Sequence[str] = ()) -> str:
        """SHA-256 of the values whose dotted keys begin with none of `exclude`.

        A `*` in one of them stands for one part of a key: `rewards.*.budget.`.
        """
        left_out = _beginning(exclude)
        kept = {k: v for k, v in self.flat().items() if not left_out(k)}
        return hashlib.sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()

    def changes(self, stored: Mapping[str, Any], exclude: Sequence[str] = ()) -> list[str]:
        """What differs from another config's `flat()`: `optimiser.learning_rate: 1e-05 -> 2e-05`.

        A setting that the other one lacks and that has its default here is younger than the other
        config: no difference.
        """
        own, left_out = self.flat(), _beginning(exclude)
        young = {k for k, origin in self.origins.items() if origin == DEFAULT and k not in stored}
        found = []
        for key in dict.fromkeys([*stored, *own]):
            before, after = _shown(stored, key), _shown(own, key)
            if before != after and key not in young and not left_out(key):
                found.append(f"{key}: {before} -> {after}")
        return found


def _beginning(patterns: Sequence[str]) -> Callable[[str], object]:
    """Whether a key begins with one of these."""
    parts = (re.escape(pattern).replace(r"\*", r"[^.]+") for pattern in patterns)
    return re.compile("|".join(parts) or "(?!)").match


def load(
    schema: type[T],
    source: Source = None,
    overrides: Sequence[str] = (),
    meaning: Meaning | None = None,
    settings: Mapping[str, Any] | None = None,
    label: str = COMMAND_LINE,
) -> Resolved[T]:
    """A config from a file (or a mapping, or nothing) and overrides; all mistakes in one error.

    `overrides` are words, `settings` Python values by their keys, applied after the words. `meaning`
    turns each override's value into what it means, such as a path from some folder. `label` says
    where the words were typed.
    """
    name = str(source) if isinstance(source, Path) else ""
    given = _given(source)
    for word in overrides:
        override(given, word, meaning, label)
    for keys, value in _assignments(settings or {}):
        put(given, keys, value, Origin(PYTHON, f"{'.'.join(keys)}={value!r}"), meaning)
    resolver = Resolver(schema)
    plain = resolver.resolve(given)
    if resolver.problems:
        raise UserError("\n".join(resolver.problems))
    return Resolved(msgspec.convert(plain, schema), resolver.origins, name)


def _given(source: Source) -> Given:
    if isinstance(source, Path):
        return from_file(source)
    if isinstance(source, Given):
        return source
    return from_mapping(source or {}, Origin("mapping" if source else "config"))


def changed(
    resolved: Resolved[T], settings: Mapping[str, Any], meaning: Meaning | None = None
) -> Resolved[T]:
    """The same config with some settings changed; the others keep their origins."""
    given = from_origins(to_plain(resolved.value), resolved.origins, DEFAULT)
    loaded = load(type(resolved.value), given, (), meaning, settings)
    return replace(loaded, name=resolved.name)


def from_value(value: T) -> Resolved[T]:
    """A config that was built in Python; what differs from the defaults has the origin `Python`."""
    return load(type(value), from_mapping(_set_values(value), Origin(PYTHON)))


def _assignments(settings: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Keys and plain values of settings in Python.

    A dict changes the keys that it holds; a list, or a typed table, replaces what stood there.
    """
    for key, value in settings.items():
        keys = dotted(key)
        if not keys:
            raise UserError(f"{PYTHON}: {key!r:.60} is no setting; expected a name such as steps.")
        if isinstance(value, Mapping) and value:
            for inner, plain in _assignments({flat_key(str(k)): v for k, v in value.items()}):
                yield [*keys, *inner], plain
        else:
            yield keys, _set_values(value)


def _set_values(value: Any) -> Any:
    """A typed table as a plain one without the keys that have their defaults; a live function as
    its name in `burnish.memory`."""
    if isinstance(value, list | tuple):
        return [_set_values(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _set_values(item) for key, item in value.items()}
    if isinstance(value, Struct):
        mark = tag(type(value))
        own = {f.key: (getattr(value, f.name), f.default) for f in fields(type(value))}
        kept = {key: _set_values(item) for key, (item, default) in own.items() if item != default}
        return ({} if mark is None else {mark[0]: mark[1]}) | kept
    if isinstance(value, PurePath):
        return str(value)
    return keep_object(value) if callable(value) else to_plain(value)


def load_flat(schema: type[T], flat: Mapping[str, Any]) -> Resolved[T]:
    """A config from another's `flat()`, as a run's folder keeps it."""
    return load(schema, unflatten(flat))


def render(resolved: Resolved[Any]) -> str:
    """The config as TOML with the origin of each value beside it; `load` reads it back the same."""
    lines = _table_lines(to_plain(resolved.value), (), "", resolved.origins)
    return "\n".join(lines).strip("\n") + "\n"


def _table_lines(
    table: Mapping[str, Any], keys: tuple[str, ...], path: str, origins: Mapping[str, str]
) -> Iterator[str]:
    inner: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict) or (
            isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)
        ):
            inner.append((key, value))
        else:
            origin = _origin(path + flat_key(key), origins)
            yield f"{toml_key(key)} = {toml_value(value)}  # {origin}"
    for key, value in inner:
        name = ".".join(toml_key(part) for part in (*keys, key))
        if isinstance(value, dict):
            yield from ("", f"[{name}]")
            yield from _table_lines(value, (*keys, key), f"{path}{flat_key(key)}.", origins)
            continue
        for index, item in enumerate(value):
            yield from ("", f"[[{name}]]")
            yield from _table_lines(item, (*keys, key), f"{path}{flat_key(key)}.{index}.", origins)


def _origin(key: str, origins: Mapping[str, str]) -> str:
    inside = next((origins[k] for k in origins if k.startswith(f"{key}.")), DEFAULT)
    return origins.get(key, inside).replace("\n", " ")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return toml_value(flat[key]) if key in flat else "absent"
