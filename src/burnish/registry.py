"""Parts by kind and name, each imported when it is first asked for."""

from __future__ import annotations

import importlib
from typing import Any

from burnish.errors import UserError

PARTS: dict[str, dict[str, str]] = {
    "sampler": {"remote": "burnish.engines.servers:open_sampler"},
}
"""Where each part lives: `module:name` by kind and name."""


def find(kind: str, name: str) -> Any:
    """The part of that name.

    >>> find("sampler", "remote").__name__
    'open_sampler'
    """
    known = PARTS.get(kind, {})
    if name not in known:
        raise UserError(
            f"{kind}: got '{name}'; expected {', '.join(sorted(known)) or 'no such kind'}"
        )
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
