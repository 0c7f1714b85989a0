"""Which reward gave this score: an identity that changes with its settings and its source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.rewards.scorer import Scorer
from burnish.seeds import digest


def fingerprint(scorer: Scorer) -> str:
    """The scorer's own `fingerprint`; a scorer without one cannot be told from its next version."""
    own = getattr(scorer, "fingerprint", None)
    if not isinstance(own, str):
        raise UserError(
            f"reward '{scorer.name}' ({type(scorer).__name__}) has no fingerprint, so its scores "
            "cannot be cached; give it a `fingerprint` property: a text that changes with its "
            "settings and its code."
        )
    return digest(scorer.name, own)


def function_fingerprint(function: Callable[..., Any]) -> str:
    """Identity of a function: its file's content, its name, and what was bound into it."""
    bound: list[str] = []
    while isinstance(function, partial):
        bound.append(repr((function.args, sorted(function.keywords.items()))))
        function = function.func
    if not inspect.isfunction(function):
        bound.append(repr(getattr(function, "__dict__", "")))
        call = type(function).__call__
        function = call if inspect.isfunction(call) else function
    cells = getattr(function, "__closure__", None) or ()
    bound += [repr(cell.cell_contents) for cell in cells]
    bound.append(repr(getattr(function, "__defaults__", None)))
    bound.append(repr(getattr(function, "__kwdefaults__", None)))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return digest(_source(function), name, *bound)


def _source(function: Callable[..., Any]) -> str | bytes:
    """The whole file, because helpers count as much as the function; else its byte code."""
    file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if file and Path(file).is_file():
        return Path(file).read_bytes()
    code = getattr(function, "__code__", None)
    return repr((code.co_code, code.co_consts, code.co_names)) if code else repr(function)
