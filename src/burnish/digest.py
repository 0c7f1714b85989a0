"""The digest of functions and objects of this process: equal where they do the same.

Every value is a frame of one loop, so that depth costs no recursion. A frame is a generator of
texts (marks); where it needs the digest of another value it yields `_Of` and is sent that digest.
"""

from __future__ import annotations

import collections
import copyreg
import dis
import enum
import functools
import importlib.util
import io
import re
import socket
import sys
import sysconfig
import threading
import types
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import UserError
from burnish.seeds import digest

_first_seen: dict[int, tuple[Any, str]] = {}
"""Lists, tables, sets and objects that functions use, with their digest when first met."""

_AGAIN = "again"
_COLLECTING = (list, dict, set, collections.deque)
_GENERATED = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__"}
_GENERATED |= {"__dataclass_fields__", "__dataclass_params__", "_abc_impl", "__firstlineno__"}
_GENERATED |= {
    "__static_attributes__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
}
_REFUSED: tuple[tuple[Any, str], ...] = (
    (io.IOBase, "an open file"),
    (socket.socket, "a socket"),
    (threading.Thread, "a thread"),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), "a generator"),
)


class _Of(NamedTuple):
    """Asks for the digest of a value; alone: apart from what was met before, as sets need it."""

    value: Any
    name: str = ""
    alone: bool = False


_Marks = Generator[Any, str, None]
"""Yields texts, bytes and `_Of`."""


class _Frame:
    def __init__(self, asked: _Of, memo: dict[int, tuple[Any, str]]) -> None:
        self.value, self.name = asked.value, asked.name
        self.memo = {} if asked.alone else memo
        self.marks = _marks(asked.value)
        self.parts: list[str | bytes] = []


def code_digest(value: Any) -> str:
    """Identity of a function or an object: its byte code, and what that refers to.

    Comments and line numbers do not count. Helpers, constants, closures, class attributes and the
    user's own modules do; installed modules count by name. A list, a table or an object's
    attributes count as they were when first met, so a function that collects stays the same.
    """
    known = set(_first_seen)
    frames = [_Frame(_Of(value, getattr(value, "__name__", type(value).__name__)), {})]
    path = {id(value)}
    answer = None
    try:
        while True:
            frame = frames[-1]
            try:
                asked = frame.marks.send(answer)  # type: ignore[arg-type]
            except (StopIteration, _Refused) as ended:
                if isinstance(ended, _Refused):
                    if not any(_is_library_object(outer.value) for outer in frames[:-1]):
                        raise
                    frame.parts.append(type(frame.value).__name__)
                answer = digest(*frame.parts)
                frame.memo[id(frame.value)] = (frame.value, answer)
                path.discard(id(frame.value))
                frames.pop()
                if not frames:
                    return answer
                continue
            answer = None
            if not isinstance(asked, _Of):
                frame.parts.append(asked)
            elif id(asked.value) in path:
                answer = _AGAIN
            elif not asked.alone and id(asked.value) in frame.memo:
                answer = frame.memo[id(asked.value)][1]
            else:
                path.add(id(asked.value))
                frames.append(_Frame(asked, frame.memo))
    except BaseException as error:
        for new in set(_first_seen) - known:  # half-made digests
            del _first_seen[new]
        if isinstance(error, _Refused):
            raise UserError(_refusal(frames, str(error))) from None
        raise


class _Refused(Exception):
    """What a value is that has no digest."""


def _is_library_object(value: Any) -> bool:
    """Whether what this holds is not the user's to change: a client's sockets count by class."""
    plain = ("builtins", "functools", "collections", "types", "numpy")
    return type(value).__module__ not in plain and not _is_own(type(value))


def _refusal(frames: list[_Frame], kind: str) -> str:
    names = [frame.name for frame in frames if frame.name]
    where = f"{names[0]}: '{names[-1]}' is" if len(names) > 1 else f"{names[0]}: got"
    return (
        f"{where} {kind}, of which no digest can be taken, so an edit of it would go unseen. "
        "Make it inside the function, or pass the values that it holds."
    )


def _each(values: Iterable[Any], name: str = "") -> _Marks:
    for value in values:
        yield (yield _Of(value, name))


def _named(items: Iterable[tuple[str, Any]]) -> _Marks:
    for name, value in sorted(items, key=lambda item: item[0]):
        yield name
        yield (yield _Of(value, name))


def _marks(value: Any) -> _Marks:
    """Texts that differ where the value does."""
    kind = type(value)
    if value is None or kind in (bool, float, complex, str, type(...), type(NotImplemented)):
        yield f"{kind.__name__} {value!r}"
    elif kind is int:
        yield f"int {value:x}"  # decimal digits are limited to 4300
    elif kind in (bytes, bytearray):
        yield from (kind.__name__, bytes(value))
    elif kind is tuple:
        yield f"tuple {len(value)}"
        yield from _each(value)
    elif kind is frozenset:
        yield "frozenset"
        yield from _unordered(value)
    elif isinstance(value, types.CodeType):
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        yield from ("code", value.co_code, value.co_exceptiontable, repr(names))
        yield from _each(value.co_consts)
    elif isinstance(value, types.ModuleType):
        yield from _of_module(value.__name__, getattr(value, "__file__", None))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, type):
        yield from _of_class(value)
    else:
        yield from _of_object(value)


def _unordered(values: Iterable[Any]) -> _Marks:
    found = []
    for value in values:
        found.append((yield _Of(value, alone=True)))
    yield from sorted(found)


def _of_object(value: Any) -> _Marks:
    kind = type(value)
    if isinstance(value, functools.partial):
        yield "partial"
        yield from _each((value.func, value.args))
        yield from _named(value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield from _each((value.__func__, value.__self__))
    elif isinstance(value, staticmethod | classmethod):
        yield from _each((kind, value.__func__))
    elif isinstance(value, property):
        yield from _each((kind, value.fget, value.fset, value.fdel))
    elif isinstance(value, enum.Enum):
        yield from _each((kind, value.name, value.value))
    elif isinstance(value, re.Pattern):
        yield from _each(("pattern", value.pattern, value.flags))
    elif isinstance(value, types.MappingProxyType):
        yield "mappingproxy"
        yield from _unordered(value.items())
    elif isinstance(value, _COLLECTING):
        yield (yield _Of(kind))
        yield from _first(value, _content(value))
    elif _is_array(value):
        yield from _of_array(value)
    elif isinstance(value, types.BuiltinFunctionType | types.BuiltinMethodType):
        yield f"builtin {value.__module__}.{value.__qualname__}"
        if not isinstance(value.__self__, types.ModuleType | None):
            yield (yield _Of(value.__self__))
    elif isinstance(value, functools._lru_cache_wrapper):
        yield "cached"
        yield from _each((value.__wrapped__,))
        yield from _named(value.cache_parameters().items())
    elif isinstance(value, io.StringIO | io.BytesIO):
        yield from _first(value, _each((kind, value.getvalue())))
    else:
        yield from _of_instance(value)


def _of_instance(value: Any) -> _Marks:
    for name in ("stdin", "stdout", "stderr"):
        if value is getattr(sys, name):
            yield f"sys.{name}"
            return
    for refused, words in _REFUSED:
        if isinstance(value, refused):
            raise _Refused(f"{words} ({type(value).__name__})")
    yield (yield _Of(type(value)))
    try:
        fingerprint = getattr(value, "fingerprint", None)
    except Exception:  # a __getattr__ of the user's
        fingerprint = None
    if isinstance(fingerprint, str):
        yield fingerprint
    else:
        yield from _first(value, _attributes(value))


def _attributes(value: Any) -> _Marks:
    bases: tuple[Any, ...] = (int, float, complex, str, bytes, tuple, frozenset)
    for base in bases:
        if isinstance(value, base):  # an instance of a subclass: its plain value
            yield (yield _Of(str.__str__(value) if base is str else base.__new__(base, value)))
    if isinstance(value, bytearray):
        yield bytes(value)
    vectorize = getattr(sys.modules.get("numpy"), "vectorize", None)
    if vectorize is not None and isinstance(value, vectorize):  # the rest is its cache
        keys = ("pyfunc", "otypes", "signature", "excluded", "cache")
        yield from _named((key, getattr(value, key, None)) for key in keys)
        return
    reduced = _reduced(value)
    if isinstance(reduced, str):
        yield reduced
    elif reduced is not None:
        make, arguments, state, listed, table = (*reduced, None, None, None)[:5]
        state = tuple(sorted(state.items(), key=repr)) if type(state) is dict else state
        yield from _each((make, arguments, state, tuple(listed or ()), tuple(table or ())))
    else:
        found = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__:
            for name, item in vars(cls).items():
                if isinstance(item, types.MemberDescriptorType) and hasattr(value, name):
                    found.setdefault(name, getattr(value, name))
        yield from _named((str(name), item) for name, item in found.items())


def _reduced(value: Any) -> Any:
    """What pickle would keep of an object of a library; None where that says nothing of its own."""
    kind: Any = type(value)
    special = kind in copyreg.dispatch_table or any(
        getattr(kind, name) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__")
    )
    if not special or (_is_own(kind) and hasattr(value, "__dict__")):
        return None
    try:
        reduce = copyreg.dispatch_table.get(kind)
        return reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:  # any class may refuse to be pickled: its attributes are left
        return None


def _content(value: Any) -> _Marks:
    if isinstance(value, dict):
        yield from _unordered_items(value)
        yield (yield _Of(getattr(value, "default_factory", None)))
    elif isinstance(value, set):
        yield from _unordered(value)
    else:
        yield f"{len(value)} {getattr(value, 'maxlen', None)}"
        yield from _each(list(value))
    if type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
        yield from _named(vars(value).items())


def _unordered_items(value: dict[Any, Any]) -> _Marks:
    found = []
    for key, item in list(value.items()):
        label = key if isinstance(key, str) else ""
        found.append(digest((yield _Of(key)), (yield _Of(item, label))))
    yield from sorted(found)


def _first(value: Any, marks: _Marks) -> _Marks:
    """The digest of these marks when the value was first met."""
    if id(value) not in _first_seen:
        _first_seen[id(value)] = (value, _AGAIN)
        parts: list[str | bytes] = []
        answer: Any = None
        while True:
            try:
                asked = marks.send(answer)
            except StopIteration:
                break
            answer = None
            if isinstance(asked, _Of):
                answer = yield asked
            else:
                parts.append(asked)
        _first_seen[id(value)] = (value, digest(*parts))
    yield _first_seen[id(value)][1]


def _is_array(value: Any) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)) or (
        torch is not None and isinstance(value, torch.Tensor)
    )


def _of_array(value: Any) -> _Marks:
    yield f"{type(value).__name__} {value.dtype!r} {tuple(value.shape)}"
    if hasattr(value, "detach"):
        import torch

        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        flat = dense.cpu().resolve_conj().resolve_neg().contiguous().flatten()
        yield flat.view(torch.uint8).numpy().tobytes()
    elif value.dtype.hasobject:
        yield from _each((value.tolist(),) if value.ndim == 0 else value.ravel().tolist())
    else:
        yield value.tobytes()


def _of_class(value: type) -> _Marks:
    yield f"class {value.__module__}.{value.__qualname__}"
    if not _is_own(value):
        return
    yield from _each(value.__bases__)
    yield (yield _Of(type(value)))
    hidden = _GENERATED
    if issubclass(value, enum.Enum):
        members = value.__members__
        yield from _named((name, member.value) for name, member in members.items())
        hidden = (
            hidden | set(members) | {n for n in vars(value) if n.startswith("_") and n[-1] == "_"}
        )
    descriptors = types.MemberDescriptorType | types.GetSetDescriptorType
    yield from _named(
        (name, None if isinstance(item, descriptors) else item)
        for name, item in vars(value).items()
        if name not in hidden
    )


def _of_function(function: types.FunctionType) -> _Marks:
    if not _is_own(function):
        yield f"function {function.__module__}.{function.__qualname__}"
        if function.__closure__:  # made by a library around what is the user's
            yield from _each(found[0] for c in function.__closure__ if (found := _held(c)))
        return
    code = function.__code__
    yield from _each((code, function.__defaults__))
    yield from _named((function.__kwdefaults__ or {}).items())
    written = _written(code)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    closed = {n: f[0] for n, cell in cells if n not in written and (f := _held(cell))}
    yield from _named(closed.items())
    names = {name for one in _inner(code) for name in one.co_names}
    used = {n: function.__globals__[n] for n in names - written if n in function.__globals__}
    yield from _named(used.items())
    for item in [*closed.values(), *used.values()]:
        yield from _mentioned(item, names, set())
    yield from _imports(code, str(function.__globals__.get("__package__") or ""), set())
    if vars(function):
        yield from _first(vars(function), _named(vars(function).items()))


def _mentioned(module: Any, names: set[str], met: set[int]) -> _Marks:
    """The attributes of the user's own module that a function names, as they are in this process."""
    if isinstance(module, types.ModuleType) and id(module) not in met and _is_own_module(module):
        met.add(id(module))
        found = {name: vars(module)[name] for name in names & set(vars(module))}
        yield from _named(found.items())
        for name in sorted(found):
            yield from _mentioned(found[name], names, met)


# --- the user's own modules


def _is_own(value: Any) -> bool:
    """Whether a function or class is the user's: of a notebook, a script, a file beside it."""
    module = sys.modules.get(str(value.__module__))
    if module is None:
        return _is_own_file(str(value.__module__), None)
    return _is_own_module(module)


def _is_own_module(module: types.ModuleType) -> bool:
    return _is_own_file(module.__name__, getattr(module, "__file__", None))


def _is_own_file(name: str, file: str | None) -> bool:
    top = name.partition(".")[0]
    if top in ("burnish", "__main__"):
        return top == "__main__"  # also where a tool such as pytest or a kernel runs it
    if file is None or file in ("built-in", "frozen"):
        return top not in sys.stdlib_module_names
    return not ({"site-packages", "dist-packages"} & set(Path(file).parts)) and not any(
        Path(file).is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")
    )


def _of_module(name: str, file: str | None, met: set[str] | None = None) -> _Marks:
    """An installed module by its name, the user's own by its code and that of what it imports."""
    met = set() if met is None else met
    yield f"module {name}"
    if name in met or name == "__main__" or file is None or not _is_own_file(name, file):
        return
    met.add(name)
    try:
        content = Path(file).read_bytes()
    except OSError:
        return
    try:
        code = compile(content, "module", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # not Python, or edited and broken since it was imported
        yield content
        return
    yield (yield _Of(code))
    package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
    yield from _imports(code, package, met)


def _imports(code: types.CodeType, package: str, met: set[str]) -> _Marks:
    for name in _imported(code, package):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            continue
        if spec and spec.origin and spec.has_location and _is_own_file(name, spec.origin):
            yield from _of_module(name, spec.origin, met)


def _imported(code: types.CodeType, package: str) -> list[str]:
    found: dict[str, None] = {}
    for one in _inner(code):
        steps = list(dis.get_instructions(one))
        for at, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, taken, name = steps[at - 2].argval, steps[at - 1].argval, step.argval
                if level:
                    parts = package.split(".")
                    base = parts[: len(parts) - level + 1]
                    name = ".".join([*base, name] if name else base)
                top = name.partition(".")[0]
                if not top or top in sys.stdlib_module_names or top == "burnish":
                    continue
                # `from package import module`: only a package of the user's is looked into
                own = getattr(sys.modules.get(top), "__file__", None)
                inner = taken if taken and (own is None or _is_own_file(top, own)) else ()
                found |= dict.fromkeys([name, *(f"{name}.{one}" for one in inner if one != "*")])
    return list(found)


# --- reading code


def _held(cell: types.CellType) -> tuple[Any] | None:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a name that is not bound yet
        return None


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _inner(constant)


def _written(code: types.CodeType) -> set[str]:
    """Names that the code itself assigns outside it: counters, not part of what it is."""
    stores = ("STORE_GLOBAL", "STORE_DEREF")
    return {
        str(i.argval)
        for one in _inner(code)
        for i in dis.get_instructions(one)
        if i.opname in stores
    }
