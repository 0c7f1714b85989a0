"""How candidate and examiner talk: frames of JSON that can hold plain data and nothing else.

What arrives is rebuilt from built-in types alone, so an answer can be wrong but cannot act: no
`__eq__`, no `__bool__`, no code of the sender's. Anything else stays where it is and is named by
a handle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST = 16 << 20
"""Bytes of the largest frame."""
DEEPEST = 200
SMALL = 1 << 53


class NotPlain(TypeError):
    """A value that is not plain data where only plain data can be sent."""


class TooDeep(NotPlain):
    """Plain data inside plain data inside plain data, further down than is sent."""


class Broken(ValueError):
    """A frame that is too large, cut off or not in this format."""


def encode(value: Any, keep: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """Plain data as JSON-able data; for other objects `keep` gives a handle or raises `NotPlain`."""
    if value is None or value is True or value is False or type(value) is str:
        return value
    if depth > DEEPEST:
        raise TooDeep(f"nested deeper than {DEEPEST}")

    def each(items: Any) -> list[Any]:
        return [encode(item, keep, depth + 1) for item in items]

    # A subclass is sent as what it is made of, read without calling its own methods.
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -SMALL < number < SMALL else {"i": hex(number)}
    if isinstance(value, float):
        return {"f": float.hex(value)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return each(list.__iter__(value))
    if isinstance(value, tuple):
        return {"t": each(tuple.__iter__(value))}
    if isinstance(value, dict):
        return {"d": [each(pair) for pair in dict.items(value)]}
    if isinstance(value, set):
        return {"s": each(set.__iter__(value))}
    if isinstance(value, frozenset):
        return {"z": each(frozenset.__iter__(value))}
    if isinstance(value, bytes | bytearray):
        return {"b" if isinstance(value, bytes) else "a": bytes(value).hex()}
    if isinstance(value, complex):
        return {"c": [float.hex(value.real), float.hex(value.imag)]}
    if type(value) is range:
        return {"r": each((value.start, value.stop, value.step))}
    if type(value) is Fraction:
        return {"q": [hex(value.numerator), hex(value.denominator)]}
    if type(value) is Decimal:
        return {"m": str(value)}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item(), keep, depth + 1)
    if keep is None:
        raise NotPlain(f"a {type(value).__name__} is not plain data")
    return {"h": keep(value)}


def decode(value: Any, handle: Callable[[Any], Any], depth: int = 0) -> Any:
    """The built-in values that `encode` described; `Broken` for anything else."""
    if depth > DEEPEST:
        raise Broken(f"nested deeper than {DEEPEST}")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list):
        return [decode(item, handle, depth + 1) for item in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise Broken("not a value of this format")
    [(tag, body)] = value.items()

    def each() -> list[Any]:
        return [decode(item, handle, depth + 1) for item in body]

    try:
        match tag:
            case "i":
                return int(body, 16)
            case "f":
                return float.fromhex(body)
            case "t":
                return tuple(each())
            case "d":
                return {key: item for key, item in each()}  # noqa: C416 (a pair must be a pair)
            case "s":
                return set(each())
            case "z":
                return frozenset(each())
            case "b":
                return bytes.fromhex(body)
            case "a":
                return bytearray.fromhex(body)
            case "c":
                return complex(float.fromhex(body[0]), float.fromhex(body[1]))
            case "r":
                return range(*each())
            case "q":
                return Fraction(int(body[0], 16), int(body[1], 16))
            case "m":
                return Decimal(body)
            case "h":
                return handle(body)
    except Broken:
        raise
    except Exception as error:  # boundary: whatever the other side wrote, it is only malformed
        raise Broken(f"a malformed value: {type(error).__name__}") from None
    raise Broken(f"unknown tag {tag!r:.20}")


class Talk:
    """Frames over two descriptors: 4 bytes of length, then JSON."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self.source, self.sink = ends

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        if len(data) > LARGEST:
            raise Broken(f"a message of {len(data)} bytes; at most {LARGEST}")
        write_all(self.sink, len(data).to_bytes(4, "big") + data)

    def receive(self, arrived: Callable[[], None] | None = None) -> Any:
        """The next message; `EOFError` when the other side is gone.

        `arrived` is called before anything of the message is read but its length.
        """
        size = int.from_bytes(self._exactly(4), "big")
        if arrived is not None:
            arrived()
        if size > LARGEST:
            raise Broken(f"a message of {size} bytes; at most {LARGEST}")
        try:
            return json.loads(self._exactly(size))
        except (ValueError, RecursionError):
            raise Broken("a message that is not JSON") from None

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(self.source, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write to a pipe, which may take only a part at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
