"""Reward models that are trained: losses and heads. Loaded when first asked for; they need torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.models.ties import tie_preference_loss

__all__ = ["tie_preference_loss"]

__getattr__, __dir__ = lazy_exports(__name__)
