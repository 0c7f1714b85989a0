"""What a run's manifest says of its settings."""

from __future__ import annotations

from typing import Any

from burnish.store import Manifest


def setting(about: Manifest, key: str) -> Any:
    """The value of a dotted key, such as `rollout.prompts`; None where the run has none."""
    if key in about.config:
        return about.config[key]
    value: Any = about.config
    for word in key.split("."):
        if isinstance(value, dict) and word in value:
            value = value[word]
        elif isinstance(value, list) and word.isdigit() and int(word) < len(value):
            value = value[int(word)]
        else:
            return None
    return value


def planned_steps(about: Manifest) -> int | None:
    """How many steps the run was asked for."""
    steps = setting(about, "steps")
    return steps if isinstance(steps, int) else None


def chosen(about: Manifest) -> list[tuple[str, Any]]:
    """Keys and values that were given on the command line."""
    keys = [key for key, origin in about.origins.items() if origin.startswith("command line")]
    return [(key, setting(about, key)) for key in keys]
