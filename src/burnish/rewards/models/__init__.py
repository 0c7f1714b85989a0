"""Reward models that are trained: losses and heads. Loaded when first asked for; they need torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.rewards.models.ties import tie_preference_loss

__all__ = ["tie_preference_loss"]

_HOMES = {"tie_preference_loss": "ties"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
