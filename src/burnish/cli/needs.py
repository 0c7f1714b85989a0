"""Packages that need torch, as commands import them; see `burnish.api.needs`."""

from __future__ import annotations

from burnish.api.needs import import_policy, import_training

__all__ = ["import_policy", "import_training"]
