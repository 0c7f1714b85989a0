"""What a run's manifest says of its settings."""

from __future__ import annotations

import textwrap
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


def rewarded(about: Manifest) -> str:
    """What earned reward: `digit (regex [0-9]), brief (length, weight 0.2)`."""
    told = []
    place = 0
    while setting(about, f"rewards.{place}.kind") is not None:
        told.append(_reward(about, f"rewards.{place}"))
        place += 1
    return ", ".join(filter(None, told))


def _reward(about: Manifest, table: str) -> str:
    """One reward in a few words; empty for one of weight 0, which is only measured."""
    kind, name, weight, pattern, forbids, method, path = (
        setting(about, f"{table}.{key}")
        for key in ("kind", "name", "weight", "pattern", "forbid", "method", "path")
    )
    if weight == 0:
        return ""
    function = str(path or "").rpartition(":")[2] if kind == "function" else ""
    own = pattern or method or function
    detail = textwrap.shorten(f"{'not ' * bool(forbids)}{own or ''}", 40)
    facts = [] if function and name in (None, "", function) else [f"{kind} {detail}".rstrip()]
    if weight not in (None, 1):
        facts.append(f"weight {weight:g}")
    title = name or function or facts[0]
    rest = ", ".join(fact for fact in facts if fact != title)
    return f"{title} ({rest})" if rest else title


def chosen(about: Manifest) -> list[tuple[str, Any]]:
    """Keys and values that were given on the command line."""
    keys = [key for key, origin in about.origins.items() if origin.startswith("command line")]
    return [(key, setting(about, key)) for key in keys]
