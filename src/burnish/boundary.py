"""The one door for values from outside: a type states what is taken, and `public` reads it.

    @public
    def elastic_bounds(
        advantages: Annotated[Float64[Tensor, " B"] | Float64[Tensor, "B T"], MISSING],
        eps_low: Fraction = 0.2,
    ) -> ClipBounds: ...

    class Elastic(Settings, frozen=True):
        low: Fraction = 0.2

Numbers, words and flags are what their type says; a range is written in one place, for the function,
the settings, TOML and flags alike. Arrays are written in jaxtyping's notation. They may be tensors,
numpy arrays or nested lists; equal letters are equal lengths, and lists go to the device of the
first tensor of the call:

| annotation                   | what arrives                                                       |
|------------------------------|--------------------------------------------------------------------|
| `Float64[Tensor, " B"]`      | float64, without a graph                                           |
| `Float[Tensor, "B T"]`       | its own dtype and graph; half precision is raised to float32       |
| `Int[Tensor, " B"]`          | int64                                                              |
| `Bool[Tensor, " B"]`         | bool, from 0 and 1                                                 |
| `Annotated[..., MISSING]`    | NaN, or None in a list, is a missing number; else NaN is refused   |
| `Annotated[..., UNREAD]`     | the numbers are not looked at: outside a mask anything may stand   |
| `Annotated[..., SOME]`       | at least one number                                                |
| `Annotated[..., Meta(ge=0)]` | every number has to be in range                                    |

Inside the package call `function.plain`: nothing is checked twice. A name that only the type checker
imports is looked up at the first call, so a module of maths still imports without torch.
"""

from __future__ import annotations

import ast
import collections.abc as abc
import dataclasses
import functools
import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, Protocol, TypeVar, Union, cast

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from burnish.arguments import as_word, refused
from burnish.errors import ArgumentError, did_you_mean
from burnish.numbers import plain
from burnish.tensors import LARGEST, as_float64, as_logp, torch

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
NonNegative = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Positive = Annotated[float, Meta(gt=0.0, le=LARGEST)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Fraction = Annotated[float, Meta(ge=0.0, lt=1.0)]
PositiveShare = Annotated[float, Meta(gt=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
PositiveInt = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Draws = Annotated[int, Meta(ge=1, le=1_000_000)]
"""Of draws and of candidates; a larger number is a slip that would fill the memory or never end."""
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""One that every generator here takes."""
Seconds = Annotated[float, Meta(gt=0.0, le=1e6)]
Name = Annotated[str, Meta(min_length=1)]


class Mark:
    """What a type says beside its range: `MISSING`."""


MISSING = Mark()
"""NaN, or None in a list, is a missing number of the array."""
INFINITE = Mark()
"""A number may be infinite: no bound at all."""
SOME = Mark()
"""An array has at least one number."""
UNREAD = Mark()
"""The values are not looked at: what stands outside a mask may be anything."""


Cap = Annotated[float, Meta(gt=0.0), INFINITE]

UNIONS = (Union, types.UnionType)
SINGLE = (None, Literal)
"""Origins of the types whose values hold no others."""

HUGE: dict[type, float] = {float: LARGEST, int: 2**63 - 1, bool: 1}
"""No number of use is beyond these, whatever its range."""


class Reads(Protocol):
    """Metadata of `Annotated` that reads a value by itself, as group labels do."""

    words: str
    """What is expected, in words."""

    def read(self, name: str, given: Any, call: Call) -> Any: ...


@dataclasses.dataclass
class Call:
    """What the arguments of one call have in common."""

    sizes: dict[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    """Length of each axis, or lengths of `*S`, and the argument that gave them."""
    device: Any = None
    """Of the first tensor."""

    def same(self, axis: str, size: Any, name: str) -> bool:
        """Whether an axis has the length that it had in the arguments before."""
        return bool(self.sizes.setdefault(axis, (size, name))[0] == size)


Reader = Callable[[str, Any, Call], Any]


class PublicFunction(Protocol[P, R]):
    """A function whose arguments are checked; `plain` is the same without checks."""

    __name__: str
    plain: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def public(function: Callable[P, R]) -> PublicFunction[P, R]:
    """Read the arguments of every call as the signature has them; the first that does not fit is named."""
    signature = inspect.signature(function)

    @functools.cache
    def readers() -> dict[str, Reader]:
        return {name: reader(kind) for name, kind in argument_types(function).items()}

    def arguments(*args: Any, **kwargs: Any) -> inspect.BoundArguments:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{function.__name__}: {error}") from None
        call, known = Call(device=_device(bound.arguments.values())), readers()
        for name, given in bound.arguments.items():
            read, kind = known[name], signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(
                    read(f"{name}[{i}]", one, call) for i, one in enumerate(given)
                )
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: read(key, one, call) for key, one in given.items()}
            else:
                bound.arguments[name] = read(name, given, call)
        return bound

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapped_async(*args: Any, **kwargs: Any) -> Any:
            bound = arguments(*args, **kwargs)
            return await function(*bound.args, **bound.kwargs)

        wrapped: Any = wrapped_async
    else:

        @functools.wraps(function)
        def wrapped_sync(*args: Any, **kwargs: Any) -> Any:
            bound = arguments(*args, **kwargs)
            return function(*bound.args, **bound.kwargs)

        wrapped = wrapped_sync
    wrapped.plain = function
    return cast("PublicFunction[P, R]", wrapped)


def public_method(function: Callable[P, R]) -> Callable[P, R]:
    """`public` for methods and `__init__`, as type checkers bind them."""
    return public(function)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Frozen settings whose types hold however they are made, in Python as from a file.

    `check` refuses what fields may not be *together*; types and ranges hold by then.
    """

    def __post_init__(self) -> None:
        call, accepted = Call(), _accepted(type(self))
        for name, read in _field_readers(type(self)):
            given = getattr(self, name)
            # Settings are replaced in a loop with one new value: the others were read before.
            if name in accepted and given is accepted[name]:
                continue
            value = read(name, given, call)
            if value is not given:  # a list for a tuple, a number of numpy's
                force_setattr(self, name, value)
            elif isinstance(given, SCALARS):
                accepted[name] = given
        self.check()

    def check(self) -> None:
        """Refuse fields that do not go together."""


def check_fields(record: T) -> T:
    """A dataclass whose fields are read in place, as its types have them; the first that does not fit is named."""
    given = dict(vars(record))
    call = Call(device=_device(given.values()))
    for name, read in _record_readers(cast(Any, type(record))):
        object.__setattr__(record, name, read(name, given[name], call))
    return record


@functools.cache
def _record_readers(kind: type) -> tuple[tuple[str, Reader], ...]:
    hints = _hints(kind)
    return tuple((one.name, reader(hints[one.name])) for one in dataclasses.fields(kind))


def argument_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The resolved annotation of every argument."""
    names = namespace(function.__module__)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        found[name] = object if name in ("self", "cls") else parameter.annotation
        while isinstance(found[name], str):
            found[name] = eval(found[name], names)
    return found


@functools.cache
def namespace(module: str) -> dict[str, Any]:
    """The names of a module, with those that stand under `if TYPE_CHECKING:` for the type checker."""
    home = importlib.import_module(module)
    names = dict(vars(home))
    for block in ast.parse(Path(str(home.__file__)).read_bytes()).body:
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom):
                    for alias in line.names:
                        names[alias.asname or alias.name] = _imported(str(line.module), alias.name)
                else:
                    exec(compile(ast.Module([line], []), module, "exec"), names)
    return names


def _imported(module: str, name: str) -> Any:
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else namespace(module)[name]


def expected(kind: Any) -> str:
    """What a type asks for, in words: `a number from 0 to below 1`, `a, b or none`."""
    options, marks = _parts(kind)
    for mark in marks:
        if words := getattr(mark, "words", "") or getattr(mark, "description", None):
            return str(words)
    arrays = [one for one in options if _is_array(one)]
    others = [one for one in options if not _is_array(one) and one is not type(None)]
    texts = [
        expected(one) if typing.get_origin(one) is Annotated else _words(one, _meta(marks))
        for one in others
    ]
    if arrays:
        texts.append(f"{_array_words(arrays[0], marks)} of shape {_shapes(arrays)}")
    if type(None) in options:
        texts.append("none")
    return " or ".join(dict.fromkeys(texts))


def reader(kind: Any) -> Reader:
    """The function that reads a value of a type, or refuses it."""
    options, marks = _parts(kind)
    for mark in marks:
        if hasattr(mark, "read"):
            return cast(Reads, mark).read
    if any(map(_is_array, options)):
        return _array_reader(options, marks)
    if is_plain(kind) and all(typing.get_origin(_opened(one)[0]) in SINGLE for one in options):
        return _plain_reader(_finite(kind))
    if len(options) > 1:
        return _union_reader(options)
    return _item_reader(options[0], _meta(marks))


def is_plain(kind: Any) -> bool:
    """True for numbers, words and flags, and for lists, tuples and dicts of them."""
    kind, marks = _opened(kind)
    origin = typing.get_origin(kind)
    if any(hasattr(mark, "read") for mark in marks):
        return False
    if origin in (*UNIONS, list, tuple, dict, abc.Sequence, abc.Mapping):
        return all(is_plain(one) for one in typing.get_args(kind) if one is not ...)
    return origin is Literal or kind in (bool, int, float, str, type(None))


def _opened(kind: Any) -> tuple[Any, list[Any]]:
    marks: list[Any] = []
    while typing.get_origin(kind) is Annotated:
        kind, *own = typing.get_args(kind)
        marks = own + marks
    return kind, marks


def _parts(kind: Any) -> tuple[list[Any], list[Any]]:
    """The members of a union, and the marks of the whole or of its array."""
    bare, marks = _opened(kind)
    if typing.get_origin(bare) not in UNIONS:
        return [bare], marks
    options: list[Any] = []
    for one in typing.get_args(bare):
        inner, own = _opened(one)
        if typing.get_origin(inner) in UNIONS or _is_array(inner):
            more, own = _parts(one)
            options += more
            marks = [*marks, *own]
        else:
            options.append(one)
    return options, marks


def _meta(marks: Iterable[Any]) -> Meta | None:
    return next((mark for mark in marks if isinstance(mark, Meta)), None)


def _is_array(kind: Any) -> bool:
    return hasattr(kind, "dim_str") and hasattr(kind, "array_type")


@functools.cache
def _field_readers(kind: type[Struct]) -> tuple[tuple[str, Reader], ...]:
    return tuple((one.name, reader(one.type)) for one in msgspec.structs.fields(kind))


SCALARS = (bool, int, float, str, type(None))


@functools.cache
def _accepted(kind: type[Struct]) -> dict[str, Any]:
    """The last value of each field that was fit as it came; never one that can change."""
    return {}


def _device(given: Iterable[Any]) -> Any:
    if "torch" not in sys.modules:
        return None
    return next((one.device for one in given if isinstance(one, torch.Tensor)), None)


# Numbers, words and flags: msgspec reads them; only a value that does not fit is looked at.


def _finite(kind: Any) -> Any:
    """The type with every bare `float` as a finite number."""
    if kind is float:
        return Number
    bare, marks = _opened(kind)
    if typing.get_origin(bare) in UNIONS:
        bare = Union[tuple(map(_finite, typing.get_args(bare)))]  # noqa: UP007
    return Annotated[bare, *marks] if marks else bare


def _plain_reader(kind: Any) -> Reader:
    options, marks = _parts(kind)
    numbers = [_opened(one)[0] for one in options]
    is_unbounded = any(INFINITE in own for own in (marks, *(_opened(one)[1] for one in options)))
    integers = [n for n in numbers if n is int or isinstance([*typing.get_args(n), None][0], int)]
    whole = bool(integers) and float not in numbers
    words = [word for one in numbers for word in typing.get_args(one) if isinstance(word, str)]

    def read(name: str, given: Any, call: Call) -> Any:
        value = plain(given)
        if whole and isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            found = msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError):
            error = refused(name, given, expected(kind))
            hint = did_you_mean(value, words) if words and isinstance(value, str) else ""
            raise ArgumentError(f"{error}.{hint}") if hint else error from None
        if isinstance(found, int | float) and not is_unbounded and abs(found) > HUGE[type(found)]:
            raise refused(name, given, expected(kind))
        return found

    return read


# Lists, records, functions and objects.


def _union_reader(kinds: Sequence[Any]) -> Reader:
    """The first of several types that fits; a plain refusal of all where none does."""
    readers = [reader(kind) for kind in kinds]
    structs = [one for one in kinds if isinstance(one, type) and issubclass(one, Struct)]
    tagged = {str(one.__struct_config__.tag): one for one in structs if one.__struct_config__.tag}

    def read(name: str, given: Any, call: Call) -> Any:
        if given is None and type(None) in kinds:
            return None
        if tagged and isinstance(given, Mapping):
            tag_field = str(structs[0].__struct_config__.tag_field)
            chosen = as_word(f"{name}.{tag_field}", given.get(tag_field), tagged)
            return _as_struct(name, given, tagged[chosen])
        said: list[ArgumentError] = []
        for one in readers:
            try:
                return one(name, given, call)
            except ArgumentError as error:
                said.append(error)
        others = [kind for kind in kinds if kind is not type(None)]
        if len(others) == 1:
            raise said[kinds.index(others[0])]
        # A refusal of something inside says more than one of the whole.
        inner = [error for error in said if not str(error).startswith(f"{name}:")]
        raise inner[0] if inner else refused(name, given, expected(Union[tuple(kinds)]))  # noqa: UP007

    return read


def _item_reader(kind: Any, limits: Meta | None) -> Reader:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is abc.Callable or kind is abc.Callable:
        return _callable
    if origin in (list, tuple, abc.Sequence, abc.Iterable, abc.Collection):
        return _list_reader(kind, origin, inner, limits)
    if origin in (dict, abc.Mapping):
        return _mapping_reader(kind, inner[1], limits)
    if typing.is_typeddict(kind):
        return _record_reader(kind)
    if kind in (Path, os.PathLike):
        return _path
    if kind is object:
        return lambda name, given, call: given
    if isinstance(kind, TypeVar):
        return reader(kind.__bound__ or object)
    if kind is Any or not isinstance(origin or kind, type):
        raise TypeError(f"{kind!r} says nothing that could be checked; name a type")
    return _instance_reader(kind, origin or kind)


def _callable(name: str, given: Any, call: Call) -> Any:
    if not callable(given):
        raise refused(name, given, "a function")
    return given


def _path(name: str, given: Any, call: Call) -> Path:
    if not isinstance(given, str | os.PathLike) or not str(given):
        raise refused(name, given, "a path")
    return Path(given)


def _instance_reader(kind: Any, base: type) -> Reader:
    is_struct = issubclass(base, Struct)

    def read(name: str, given: Any, call: Call) -> Any:
        if is_struct and isinstance(given, Mapping):
            return _as_struct(name, given, base)
        if not _is_instance(given, base):
            raise refused(name, given, expected(kind))
        return given

    return read


def _as_struct(name: str, given: Mapping[str, Any], kind: type[Struct]) -> Any:
    if issubclass(kind, Settings):
        return _as_settings(name, given, kind)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise ArgumentError(f"{name}{place.strip('`')}: {message}") from None


def _as_settings(name: str, given: Mapping[str, Any], kind: type[Settings]) -> Settings:
    fields = {one.encode_name: one for one in msgspec.structs.fields(kind)}
    for key in given:
        if key != kind.__struct_config__.tag_field:
            as_word(name, key, fields)
    for key, one in fields.items():
        if one.required and key not in given:
            raise ArgumentError(f"{name}: got no '{key}', expected {', '.join(fields)}")
    try:
        return kind(**{one.name: given[key] for key, one in fields.items() if key in given})
    except ArgumentError as error:
        raise ArgumentError(f"{name}.{error}") from None


def _is_instance(given: Any, base: type) -> bool:
    try:
        return isinstance(given, base)
    except TypeError:  # a protocol that cannot be asked at run time: its methods are
        wanted = [one for one in vars(base) if not one.startswith("_")]
        return all(hasattr(given, one) for one in wanted)


def _is_sized(limits: Meta | None, size: int) -> bool:
    return limits is None or (limits.min_length or 0) <= size <= (limits.max_length or size)


def _list_reader(kind: Any, origin: Any, inner: tuple[Any, ...], limits: Meta | None) -> Reader:
    is_fixed = origin is tuple and ... not in inner
    readers = [reader(one) for one in inner if one is not ...]
    make = tuple if origin is tuple else list

    def read(name: str, given: Any, call: Call) -> Any:
        items = plain(given)
        is_unordered = isinstance(items, Set) and origin is not abc.Collection
        is_odd = is_unordered or isinstance(items, str | bytes | Mapping)
        if is_odd or not isinstance(items, Iterable):
            raise refused(name, given, expected(kind))
        items = list(items)
        if not _is_sized(limits, len(items)) or (is_fixed and len(items) != len(readers)):
            raise refused(name, given, expected(Annotated[kind, limits] if limits else kind))
        each = readers if is_fixed else readers * len(items)
        found = (one(f"{name}[{i}]", items[i], call) for i, one in enumerate(each))
        return make(found)

    return read


def _mapping_reader(kind: Any, inner: Any, limits: Meta | None) -> Reader:
    item, has_text_keys = reader(inner), (*typing.get_args(kind), str)[0] is str

    def read(name: str, given: Any, call: Call) -> Any:
        is_table = isinstance(given, Mapping) and _is_sized(limits, len(given))
        if not is_table or (has_text_keys and not all(isinstance(key, str) for key in given)):
            raise refused(name, given, expected(kind))
        return {key: item(f"{name}.{key}", one, call) for key, one in given.items()}

    return read


def _record_reader(kind: Any) -> Reader:
    """A `TypedDict`: its keys are read, other keys stay as they are."""

    def read(name: str, given: Any, call: Call) -> Any:
        if not isinstance(given, Mapping):
            raise refused(name, given, expected(kind))
        found = dict(given)
        for key, one in _keys(kind).items():
            if key in found:
                found[key] = _key_reader(kind, key)(f"{name}.{key}", found[key], call)
            elif one:
                raise ArgumentError(f"{name}: got no '{key}', expected {expected(kind)}")
        return found

    return read


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    names = namespace(kind.__module__)
    return typing.get_type_hints(kind, names, names, include_extras=True)


@functools.cache
def _keys(kind: Any) -> dict[str, bool]:
    """The keys of a `TypedDict`, and whether each is needed."""
    hints = _hints(kind).items()
    return {key: typing.get_origin(hint) is not typing.NotRequired for key, hint in hints}


@functools.cache
def _key_reader(kind: Any, key: str) -> Reader:
    hint = _hints(kind)[key]
    is_marked = typing.get_origin(hint) in (typing.Required, typing.NotRequired)
    return reader(typing.get_args(hint)[0] if is_marked else hint)


# Arrays.


def _array_reader(options: Sequence[Any], marks: Sequence[Any]) -> Reader:
    """Numbers of one of several shapes, or None or a number where the union has these."""
    arrays = [one for one in options if _is_array(one)]
    others = [one for one in options if not _is_array(one)]
    other = reader(Union[tuple(others)]) if others else None  # noqa: UP007
    words = expected(Annotated[Union[tuple(options)], *marks] if marks else Union[tuple(options)])  # noqa: UP007
    lets_missing, limits = MISSING in marks, _meta(marks)
    bare = [_opened(one)[0] for one in others]
    classes = (str, *(one for one in bare if isinstance(one, type) and one not in (int, float)))
    takes_scalar = int in bare or float in bare

    def read(name: str, given: Any, call: Call) -> Any:
        is_scalar = takes_scalar and isinstance(plain(given), int | float)
        if other is not None and (is_scalar or given is None or isinstance(given, classes)):
            return other(name, given, call)
        values = _as_array(name, given, arrays[0], words)
        if call.device is not None and values.device != call.device:
            values = values.to(call.device)
        if not any(_fits(one.dim_str.split(), values, name, call) for one in arrays):
            raise _misshapen(name, values, arrays, call)
        if SOME in marks and not values.numel():
            raise ArgumentError(
                f"{name}: got shape {tuple(values.shape)}, expected at least one number"
            )
        if UNREAD not in marks:
            _check_values(name, values, lets_missing, limits, words)
        return _as_dtype(name, values, arrays[0], words)

    return read


def _as_array(name: str, given: Any, kind: Any, words: str) -> Tensor:
    if given is None:
        raise refused(name, given, words)
    if isinstance(given, torch.Tensor) and not given.is_floating_point() and not given.is_complex():
        return given
    return as_float64(given, name) if kind.dtypes == ("float64",) else as_logp(given, name)


def _fits(axes: Sequence[str], values: Tensor, name: str, call: Call) -> bool:
    """Whether a tensor has these axes; its lengths are kept where it has."""
    free = [place for place, axis in enumerate(axes) if axis[0] == "*"]
    if len(axes) != values.ndim and not (free and values.ndim >= len(axes) - 1):
        return False
    sizes = list(values.shape)
    if free:
        before, after = free[0], len(axes) - free[0] - 1
        inner = tuple(sizes[before : len(sizes) - after])
        if not call.same(axes[before], inner, name):
            return False
        sizes = [*sizes[:before], *sizes[len(sizes) - after :]]
        axes = [axis for axis in axes if axis[0] != "*"]
    for axis, size in zip(axes, sizes, strict=True):
        letter = axis.lstrip("#")
        if axis == "_" or (axis[0] == "#" and size == 1):
            continue
        if size != int(letter) if letter.isdigit() else not call.same(letter, size, name):
            return False
    return True


def _misshapen(name: str, values: Tensor, arrays: Sequence[Any], call: Call) -> ArgumentError:
    letters = dict.fromkeys(axis.lstrip("#") for one in arrays for axis in one.dim_str.split())
    known = [
        f"{axis} = {call.sizes[axis][0]} as in {call.sizes[axis][1]}"
        for axis in letters
        if axis in call.sizes and call.sizes[axis][1] != name
    ]
    where = f" with {', '.join(known)}" if known else ""
    return ArgumentError(
        f"{name}: got shape {tuple(values.shape)}, expected {_shapes(arrays)}{where}"
    )


def _shapes(arrays: Sequence[Any]) -> str:
    return " or ".join(f"({', '.join(one.dim_str.split())})" for one in arrays)


def _check_values(
    name: str, values: Tensor, lets_missing: bool, limits: Meta | None, words: str
) -> None:
    if values.is_meta:
        raise ArgumentError(f"{name}: got a meta tensor, expected a dense one that holds numbers")
    read = values.detach().double()
    is_odd = ~(read.abs() <= LARGEST)
    if limits is not None:
        for bound, is_out in (
            (limits.ge, torch.lt),
            (limits.gt, torch.le),
            (limits.le, torch.gt),
            (limits.lt, torch.ge),
        ):
            if bound is not None:
                is_odd |= is_out(read, bound)
    if lets_missing:
        is_odd &= ~read.isnan()
    if is_odd.any():
        place = is_odd.nonzero()[0].tolist()
        where = f"[{', '.join(map(str, place))}] is" if place else "got"
        raise ArgumentError(f"{name}: {where} {values[tuple(place)].item()}, expected {words}")


def _as_dtype(name: str, values: Tensor, kind: Any, words: str) -> Tensor:
    if "bool" in kind.dtypes:
        if values.dtype != torch.bool and not ((values == 0) | (values == 1)).all():
            raise refused(name, values.flatten().tolist(), words)
        return values.bool()
    if "int64" in kind.dtypes:
        if values.is_floating_point() and not (values == values.round()).all():
            raise refused(name, values.flatten().tolist(), words)
        return values.long()
    return values if values.is_floating_point() else values.double()


# Words.


def _words(kind: Any, limits: Meta | None) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in (int, float):
        return _range("whole number" if kind is int else "number", limits)
    simple = {bool: "True or False", str: "a text", object: "any value", Path: "a path"}
    if kind in simple:
        least = limits.min_length if limits is not None else None
        pattern = f" like {limits.pattern}" if limits is not None and limits.pattern else ""
        return "a text that is not empty" if kind is str and least else simple[kind] + pattern
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin is abc.Callable or kind is abc.Callable:
        return "a function"
    if origin is tuple and ... not in inner:
        return f"a list of {len(inner)}: {', '.join(map(expected, inner))}"
    if origin in (list, tuple, abc.Sequence, abc.Iterable, abc.Collection):
        least = limits.min_length if limits is not None else None
        return f"a list{f' of at least {least}' if least else ''}, each {expected(inner[0])}"
    if typing.is_typeddict(kind):
        needed = [key for key, is_needed in _keys(kind).items() if is_needed]
        return f"a dict with {', '.join(needed) or 'text keys'}"
    if origin in (dict, abc.Mapping) or kind is dict:
        return "a dict with text keys"
    name = getattr(origin or kind, "__name__", str(kind))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _array_words(kind: Any, marks: Iterable[Any]) -> str:
    if "bool" in kind.dtypes:
        return "1 (yes) and 0 (no)"
    noun = "whole numbers" if "int64" in kind.dtypes else "finite numbers"
    limits = _meta(marks)
    within = _range("", limits).removeprefix("a ").strip() if limits is not None else ""
    return f"{noun} {within}".strip()


def _range(noun: str, limits: Meta | None) -> str:
    """`a number from 0 to below 1`; a bound that only keeps sums finite is not told."""
    bounds = [getattr(limits, key, None) for key in ("ge", "gt", "le", "lt")]
    least, above, most, below = (
        None if bound is None or abs(bound) >= 1e9 else f"{bound:g}" for bound in bounds
    )
    if least is not None and (most is not None or below is not None):
        return f"a {noun} from {least} to {most if most is not None else f'below {below}'}"
    named = {"of at least": least, "above": above, "of at most": most, "below": below}
    parts = [f"{word} {bound}" for word, bound in named.items() if bound is not None]
    return f"a {noun} {' and '.join(parts)}" if parts else f"a finite {noun}"
