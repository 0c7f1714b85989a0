"""A model that a person names on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from burnish.api.needs import require_torch

if TYPE_CHECKING:
    from burnish.lm.base import LM


def open_model(name: str, api_key_env: str = "") -> LM:
    """The model that a person names; of a run's folder, its newest weights."""
    from burnish.api.models import newest_weights
    from burnish.lm.named import open_lm
    from burnish.store.manifest import is_ours

    if "://" in name:
        return open_lm(name, api_key_env=api_key_env or None)
    if name.startswith("replay:"):
        return open_lm(name)
    require_torch("models in this process")
    folder = Path(name).expanduser()
    return open_lm(str(newest_weights(folder)) if is_ours(folder) else name)
