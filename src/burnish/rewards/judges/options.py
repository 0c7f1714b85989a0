"""A judge method's options as typed settings, with one line for every mistake.

class Settings(Options, frozen=True):
    lo: int = 1

settings = read_options("point", {"lo": 0}, Settings)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from burnish.errors import UserError, did_you_mean


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a method's settings: closed, frozen."""


S = TypeVar("S", bound=Options)


def read_options(judge: str, options: Mapping[str, Any], kind: type[S]) -> S:
    """The settings, or a `UserError` that names the option and what was expected."""
    known = kind.__struct_encode_fields__
    for name in options:
        if name not in known:
            raise UserError(
                f"judge '{judge}' has no option '{name}'; expected "
                f"{', '.join(known) or 'none'}.{did_you_mean(name, known)}"
            )
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        said = str(error).replace("`", "'").replace(" - at '$.", " in option '")
        raise UserError(f"judge '{judge}': {said}") from None
