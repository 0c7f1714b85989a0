"""Entries of a fingerprint: what is compared exactly, what nearly, and what to the bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict


class Entry(TypedDict):
    """One stage of what a recipe, judge, scorer or function does."""

    at: str
    exact: NotRequired[Any]
    """The same on every machine."""
    near: NotRequired[dict[str, float]]
    """The same to 1e-4 on every machine."""
    bits: NotRequired[str]
    """Checksum of what only one machine repeats."""


def entry(
    at: str, exact: Any = None, near: Mapping[str, float] | None = None, bits: Any = None
) -> Entry:
    """An entry; `near` is kept to the bit as well."""
    made: Entry = {"at": at}
    if exact is not None:
        made["exact"] = exact
    if near is not None:
        made["near"] = {name: float(f"{value:.8g}") for name, value in near.items()}
    if bits is not None or near is not None:
        made["bits"] = checksum((bits, sorted((near or {}).items())))
    return made


def checksum(value: Any) -> str:
    """Eight letters that differ where two values do."""
    content = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.blake2b(content, digest_size=4).hexdigest()


def figure(value: float) -> str:
    """A number as it is compared on every machine."""
    return f"{0.0 if abs(value) < 1e-12 else value:.6g}"
