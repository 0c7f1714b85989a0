"""What the shell completes: recipes and config keys, runs, models.

Nothing here raises or needs torch: a mistake in a half-typed line has no completion.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from burnish.errors import BurnishError

Item = tuple[str, str]
"""A completion and the text that zsh and fish show beside it."""


def complete_words(ctx: Any, incomplete: str) -> list[Item]:
    """A recipe as the first word, then `key=` and the words that a key may be set to."""
    typed: list[str] = ctx.params.get("words") or []
    if typed[-1:] == ["="]:
        # bash takes `=` for a word of its own and replaces only what stands behind it.
        pairs = _settings(f"{typed[-2]}={incomplete}")
        return [(word.partition("=")[2], note) for word, note in pairs]
    if typed:
        return list(_settings(incomplete))
    return [*_recipes(), *_files(incomplete, ".toml")]


def complete_keys(incomplete: str) -> list[Item]:
    """Dotted keys of a config, and its tables."""
    return [(word.removesuffix("="), note) for word, note in _settings(incomplete)]


def complete_runs(ctx: Any, incomplete: str) -> list[Item]:
    """Names of the runs in the folder of `--runs`."""
    from burnish.store import list_runs

    folder = ctx.params.get("runs") or ctx.params.get("folder") or "runs"
    with suppress(BurnishError, OSError):
        return [(info.name, info.status.value) for info in list_runs(Path(folder))]
    return []


def complete_models(incomplete: str) -> list[Item]:
    """Models that ship, and folders that hold one."""
    from burnish.lm.base import SHIPPED

    with suppress(OSError):
        found = [
            (str(place), "folder")
            for place in _matching(incomplete)
            # A folder above models is shown too: a run's checkpoints lie two levels down.
            if (place / "config.json").is_file() or any(place.glob("*/config.json"))
        ]
        return [*((name, "ships with burnish") for name in SHIPPED), *found]
    return []


def _recipes() -> Iterator[Item]:
    from burnish.config.recipes import all_recipes, read_card

    with suppress(BurnishError):
        for name, path in all_recipes().items():
            yield name, read_card(path).description[:60]


def _settings(incomplete: str) -> Iterator[Item]:
    """`optimiser.learning_rate=`, or behind the sign the values of a closed list."""
    from burnish.config import Config, shapes

    key, sign, _ = incomplete.partition("=")
    for known, annotation in shapes.annotated_keys(Config):
        tags = [tag for table in shapes.shape(annotation).structs if (tag := shapes.tag(table))]
        if not sign:
            yield f"{known}=", shapes.describe(annotation)
            yield from dict.fromkeys((f"{known}.{name}=", "kind of table") for name, _ in tags)
        elif known == key:
            words = [*shapes.words(annotation), *(word for _, word in tags)]
            yield from ((f"{key}={word}", "") for word in words)
        else:
            yield from ((f"{key}={word}", "") for name, word in tags if f"{known}.{name}" == key)


def _files(incomplete: str, suffix: str) -> list[Item]:
    with suppress(OSError):
        return [
            (f"{place}/" if place.is_dir() else str(place), "")
            for place in _matching(incomplete)
            if place.is_dir() or place.suffix == suffix
        ]
    return []


def _matching(incomplete: str) -> list[Path]:
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    found = sorted(place for place in folder.iterdir() if not place.name.startswith("."))
    return [place for place in found if str(place).startswith(incomplete)]
