"""Match what was given against a closed schema: fill in defaults, and collect every mistake."""

from __future__ import annotations

import difflib
import enum
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct

from burnish.config import shapes
from burnish.config.given import PYTHON, Given, Origin, from_mapping, is_index
from burnish.config.peers import hint, home
from burnish.errors import did_you_mean
from burnish.texts import flat_key, toml_value

DEFAULT = "default"
NONE = "none"
"""How a config says that an optional value is absent; TOML has no word for it."""
FUNCTION = "function"
"""Kind of a table that names a function of the user's own by its `path`."""
SHOWN = 120
"""Characters of a wrong value that a message repeats."""


class Resolver:
    """One walk over a schema; afterwards `problems` and `origins` are filled."""

    def __init__(self, schema: type[Struct]) -> None:
        self.schema = schema
        self.problems: list[str] = []
        self.origins: dict[str, str] = {}
        self.places: dict[str, Origin] = {}
        """Dotted key of everything given -> where."""
        self.words: set[str] = set()
        """Dotted keys of tables that were given as a bare word."""
        self.kinds: dict[str, Sequence[type[Struct]]] = {}
        """Dotted key of a table -> the kinds that it may be."""

    def resolve(self, given: Given) -> Any:
        """The plain tree of the whole config."""
        return self._table(self.schema, given, NODEFAULT, "")

    def value(
        self, annotation: Any, given: Given | None, default: Any, path: str, at: Origin
    ) -> Any:
        """The plain value at `path`; `at` is the table that should hold it."""
        if given is None:
            return self._default(annotation, default, path, at)
        self.places[path] = given.origin
        shape = shapes.shape(annotation)
        if _is_none(given.value, annotation, shape):
            self.origins[path] = given.origin.label
            return None
        given = self._opened(_patched(given, annotation, default), annotation, shape, path)
        if isinstance(given.value, dict) and shape.structs:
            self.kinds[path] = shape.structs
            struct = self._chosen(shape.structs, given, default, path)
            if struct is None:
                return {}
            return self._table(
                struct, swapped(given, shape.structs, struct, default), default, path
            )
        if isinstance(given.value, list) and shape.item is not None and given.value:
            return [
                self.value(shape.item, item, NODEFAULT, f"{path}.{index}", item.origin)
                for index, item in enumerate(given.value)
            ]
        plain = _as_number(given.plain(), annotation)
        origin = given.latest()
        self.origins.update(dict.fromkeys(flatten(plain, path), origin.label))
        try:
            msgspec.convert(plain, annotation)
        except msgspec.ValidationError:
            self.problems.append(_mismatch(annotation, plain, path, origin))
        else:
            inner = [typing.get_args(option)[-1:] for option in shapes.options(annotation)]
            # A table of the user's own (`options`) may hold any number.
            if not {(Any,), (object,)} & set(inner) and _has_odd_number(plain, default):
                said = _shown(plain)
                self.problems.append(f"{origin}: {path} is {said}; expected a finite number.")
        return plain

    def _opened(self, given: Given, annotation: Any, shape: shapes.Shape, path: str) -> Given:
        """A bare word as the table or the list that it stands for; everything else as it is."""
        key = shapes.word_key(shape.structs)
        if isinstance(given.value, str | int) and not shapes.takes_text(annotation):
            if key:
                self.words.add(path)
                return Given(_named(given, given.table or {}, key, shape.structs), given.origin)
            if isinstance(given.value, str) and shapes.is_list(annotation):
                return Given([Given(given.value, given.origin)], given.origin)
        word = given.word
        if word is None or not key or not isinstance(given.value, dict):
            return given
        if key in given.value and given.value[key].origin.word:
            return given
        if _is_none(word.value, annotation, shape):
            return given
        return replace(given, value=_named(word, given.value, key, shape.structs))

    def _table(self, struct: type[Struct], given: Given, default: Any, path: str) -> dict[str, Any]:
        prefix = f"{path}." if path else ""
        before = len(self.problems)
        known = shapes.fields(struct)
        tag = shapes.tag(struct)
        plain: dict[str, Any] = {}
        at = given.origin
        if tag is not None:
            key, plain[tag[0]] = prefix + tag[0], tag[1]
            mark = given.value.get(tag[0])
            self.origins[key] = DEFAULT if mark is None else mark.origin.label
            # What a typed kind lacks is missing on the command line, not in the file.
            at = mark.origin if mark is not None and mark.origin.word else at
        valid = [field.key for field in known]
        for key, item in given.value.items():
            if key not in valid and key not in plain:
                self._unknown(prefix, key, valid, tag, item, at)
        for field in known:
            own = getattr(default, field.name) if type(default) is struct else field.default
            item = given.value.get(field.key)
            where = prefix + field.key
            plain[field.key] = self.value(field.annotation, item, own, where, at)
        if len(self.problems) == before:
            self._check(struct, plain, prefix, given)
        return plain

    def _check(self, struct: type[Struct], plain: Any, prefix: str, given: Given) -> None:
        """What the values break together: a table's own rules, and the length of a list."""
        try:
            msgspec.convert(plain, struct)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at `$")
            key = prefix + place.strip(".`")
            where = self.places.get(key) or blamed(given, message)
            key = key.strip(".")
            self.problems.append(f"{where}: {f'{key}: ' if key else ''}{message}.")

    def _chosen(
        self, structs: Sequence[type[Struct]], given: Given, default: Any, path: str
    ) -> type[Struct] | None:
        if len(structs) == 1 and shapes.tag(structs[0]) is None:
            return structs[0]
        kinds, key = shapes.kinds(structs), shapes.word_key(structs)
        mark = given.value.get(key)
        if mark is None:
            if type(default) in structs:
                return type(default)
            if len(structs) == 1:
                return structs[0]
            self.problems.append(
                f"{given.latest()}: missing key '{path}.{key}'; expected one of {_list(kinds)}."
            )
            return None
        known = {**shapes.aliases(structs), **kinds}
        if isinstance(mark.value, str) and mark.value in known:
            return known[mark.value]
        got = mark.plain()
        hint = did_you_mean(got, known) if isinstance(got, str) else ""
        where = path if path in self.words else f"{path}.{key}"
        self.problems.append(
            f"{mark.latest()}: {where} is {_shown(got)}; expected one of {_list(kinds)}.{hint}"
        )
        return None

    def _default(self, annotation: Any, default: Any, path: str, at: Origin) -> Any:
        if default is NODEFAULT:
            wanted = shapes.describe(annotation)
            table, _, key = path.rpartition(".")
            more = (
                f" Give {table} as a table with its kind and {key}." if table in self.words else ""
            )
            self.problems.append(f"{at}: missing key '{path}'; expected {wanted}.{more}")
            return None
        plain = to_plain(default)
        self.origins.update(dict.fromkeys(flatten(plain, path), DEFAULT))
        return plain

    def _unknown(
        self,
        prefix: str,
        key: str,
        valid: Sequence[str],
        tag: tuple[str, str] | None,
        item: Given,
        at: Origin,
    ) -> None:
        kind = f" for {tag[0]} '{tag[1]}'" if tag is not None else ""
        near = tag[0] if tag is not None and key == "kind" else _nearest(key, valid)
        homes = self._elsewhere(key) if tag is None else []
        named = [tag[0], *valid] if tag is not None and tag[0] != "kind" else valid
        hint = f"Valid keys: {_list(named)}." if valid else "It takes no keys."
        peer = _of_a_peer(prefix + key, item)
        is_table = isinstance(item.value, dict)
        if (meant := home(key, homes)) and not (peer and is_table):
            hint = f"Did you mean '{meant}'?"
        elif peer:
            hint = peer
        elif near:
            hint = f"Did you mean '{prefix}{near}'?"
        elif prefix and (peer := _of_a_peer(key, item)):  # `rollout.num_generations`
            hint = peer
        elif homes:
            hint = f"Did you mean {' or '.join(map(repr, homes[:3]))}?"
        elif (
            tag
            and item.origin.word
            and not at.word
            and (others := self._kinds_with(prefix[:-1], key))
        ):
            hint = f"It belongs to {_list(others)}: also set {prefix}{tag[0]}={others[0]}."
        self.problems.append(f"{item.latest()}: unknown key '{prefix}{key}'{kind}. {hint}")

    def _kinds_with(self, path: str, key: str) -> list[str]:
        marks = ((shapes.tag(one), shapes.fields(one)) for one in self.kinds.get(path, ()))
        return [mark[1] for mark, own in marks if mark and key in [field.key for field in own]]

    def _elsewhere(self, key: str) -> list[str]:
        return shapes.homes(self.schema, key)


def _of_a_peer(key: str, item: Given) -> str:
    """What a setting of TRL or verl is called here; empty for other keys."""
    plain = item.plain()
    inner = flatten(plain, key) if isinstance(plain, dict) and plain else {key: plain}
    found = (
        hint(name, _shown(value), in_python=item.latest().label == PYTHON)
        for name, value in inner.items()
    )
    return next(filter(None, found), "").strip()


def _named(
    word: Given, table: Mapping[str, Given], key: str, structs: Sequence[type[Struct]]
) -> dict[str, Given]:
    """A table with the key that a bare word sets; `my_file.py:name` is a component of your own."""
    is_path = ":" in str(word.value) and FUNCTION in shapes.kinds(structs)
    kind = Given(FUNCTION if is_path else word.value, word.origin)
    if key in table:
        kind = kind.over(table[key])
    named = {**table, key: kind}
    return named | ({"path": Given(word.value, word.origin)} if is_path else {})


def to_plain(value: Any) -> Any:
    """A config value as tables, lists and scalars, every key written out."""
    if isinstance(value, Struct):
        tag = shapes.tag(type(value))
        plain = {} if tag is None else {tag[0]: tag[1]}
        named = msgspec.structs.fields(type(value))
        return plain | {f.encode_name: to_plain(getattr(value, f.name)) for f in named}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def flatten(plain: Any, path: str = "") -> dict[str, Any]:
    """Dotted key -> value; tables and lists of tables are opened, other lists are values."""
    prefix = f"{path}." if path else ""
    if isinstance(plain, dict) and (plain or not path):
        parts = [(prefix + flat_key(key), item) for key, item in plain.items()]
    elif isinstance(plain, list) and any(isinstance(item, dict) for item in plain):
        parts = [(f"{prefix}{index}", item) for index, item in enumerate(plain)]
    else:
        return {path: plain}
    flat: dict[str, Any] = {}
    for key, item in parts:
        flat |= flatten(item, key)
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The plain tree whose `flatten` is given."""
    root: dict[Any, Any] = {}
    for dotted, value in flat.items():
        *outer, last = [_part(part) for part in _PART.findall(dotted)]
        table = root
        for key in outer:
            table = table.setdefault(key, {})
        table[last] = value
    return {str(key): _with_lists(item) for key, item in root.items()}


_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[^.]+')


def _part(text: str) -> str | int:
    if text.startswith('"'):
        return str(tomllib.loads(f"key = {text}")["key"])
    return int(text) if text.isdigit() else text


def _with_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    inner = {key: _with_lists(item) for key, item in node.items()}
    return list(inner.values()) if inner and all(isinstance(key, int) for key in inner) else inner


def _patched(given: Given, annotation: Any, default: Any) -> Given:
    """`rewards.0.weight=2` where the list itself is the default: the default list, changed there."""
    if not isinstance(given.value, dict) or not shapes.is_list(annotation):
        return given
    items = to_plain(default) if isinstance(default, list | tuple) else []
    if not given.value or not all(is_index(k, len(items)) for k in given.value):
        return given
    from_default = Origin(DEFAULT)
    patched = [from_mapping(item, from_default) for item in items]
    for key, change in given.value.items():
        _merge(patched, int(key), change)
    return Given(patched, from_default)


def _merge(holder: Any, slot: Any, change: Given) -> None:
    old = holder[slot] if isinstance(holder, list) or slot in holder else None
    if old is None:
        holder[slot] = change
    elif isinstance(old.value, dict) and isinstance(change.value, dict):
        for key, item in change.value.items():
            _merge(old.value, key, item)
    else:
        holder[slot] = change.over(old)


def _is_none(value: Any, annotation: Any, shape: shapes.Shape) -> bool:
    if not shape.nullable:
        return False
    return value is None or (value == NONE and NONE not in shapes.words(annotation))


def _as_number(plain: Any, annotation: Any) -> Any:
    """The words for infinity that JSON needs, where a number is meant."""
    is_word = plain in ("inf", "-inf") and not shapes.takes_text(annotation)
    return float(plain) if is_word and float in shapes.options(annotation) else plain


def _mismatch(annotation: Any, plain: Any, path: str, origin: Origin) -> str:
    wanted = shapes.describe(annotation)
    hint = ""
    if isinstance(plain, str | list):
        known = [str(word) for word in shapes.listed_words(annotation)]
        wrong = [plain] if isinstance(plain, str) else [w for w in plain if isinstance(w, str)]
        hint = next(filter(None, (did_you_mean(w, known) for w in wrong if w not in known)), "")
    elif origin.word and shapes.takes_text(annotation) and not isinstance(plain, list | dict):
        hint = f" Quote it to keep it text: {path}='\"{_shown(plain)}\"'."
    return f"{origin}: {path} is {_shown(plain)}; expected {wanted}.{hint}"


def _has_odd_number(plain: Any, default: Any) -> bool:
    """Whether a number is not finite; infinity may stand where it is the default."""
    if isinstance(plain, dict | list):
        items = plain.values() if isinstance(plain, dict) else plain
        return any(_has_odd_number(item, default) for item in items)
    is_free = isinstance(default, float) and math.isinf(default)
    is_odd = math.isnan if is_free else lambda number: not math.isfinite(number)
    return isinstance(plain, float) and is_odd(plain)


def _shown(plain: Any) -> str:
    text = toml_value(plain)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return near[0] if near else ""


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)


def swapped(
    given: Given, structs: Sequence[type[Struct]], struct: type[Struct], default: Any
) -> Given:
    """What was given, less what only the old kind knows, where the command line chose another.

    What was typed stays, and so does what neither kind knows: both are told where they are wrong.
    """
    tag = shapes.tag(struct)
    mark = None if tag is None else given.value.get(tag[0])
    if tag is None or mark is None or not mark.origin.word:
        return given
    kinds = [shapes.tag(type(default))] if type(default) in structs else []
    if mark.replaced is not None:
        kinds = [(tag[0], mark.replaced)]
    gone = {key for old in structs if shapes.tag(old) in kinds for key in _keys(old)}
    gone -= _keys(struct)
    kept = {k: item for k, item in given.value.items() if k not in gone or item.latest().word}
    return Given(kept, given.origin)


def blamed(given: Given, message: str) -> str:
    """Where a table breaks its own rule: at the key that the message begins with, if that was typed."""
    named = given.value.get(message.partition(":")[0])
    return str((named if named is not None and named.latest().word else given).latest())


def _keys(struct: type[Struct]) -> set[str]:
    return {field.key for field in shapes.fields(struct)}
