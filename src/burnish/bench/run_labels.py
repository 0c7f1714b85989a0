"""What compared groups of runs are called, in the terminal, in Python and in the viewer.

    group_labels([["a"], ["b0", "b1"]], ["tiny", "tiny"], {"optimiser.learning_rate": [1e-6, 3e-6]}, ())
    # ["a", "learning_rate=3e-06"]

A group of one run has the run's name. A group of several has what a sweep varies, its recipe, or a
few of the settings that differ; all of them stand in the table of settings anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from burnish.bench.comparable import ABSENT
from burnish.memory import is_kept, kept_name

DIGESTS = "files."
"""Settings that are digests of files: they tell runs apart, but no person reads them."""
SETTINGS = 3
"""Settings that a label names."""
VALUE = 24
"""Characters of a value in a label."""


def group_labels(
    runs: Sequence[Sequence[str]],
    recipes: Sequence[str],
    differs: Mapping[str, Sequence[Any]],
    keys: Sequence[str],
) -> list[str]:
    """A short name for each group, all different where the names of the runs are.

    `runs` are the names of each group's runs, `differs` the settings that differ with each group's
    value. `keys` are what a sweep varies: its runs are named by a digest, so they name its groups.
    """
    names = [group[0] for group in runs]
    several = [place for place, group in enumerate(runs) if len(group) > 1]
    given = [key for key in keys if key in differs]
    told = [key for key in differs if not key.startswith(DIGESTS)]
    whole = [key for key in told if not any(_is_empty(value) for value in differs[key])]
    mixed = len(set(recipes)) > 1
    everywhere = list(range(len(runs)))
    few = _telling(given, differs, everywhere)
    tries = [(everywhere, False, few), (everywhere, True, few), (everywhere, False, given)]
    tries = [one for one in tries if given]
    tries += [(several, True, [])]
    tries += [(several, mixed, _telling(some, differs, several)) for some in (whole, told)]
    for places, with_recipe, chosen in tries:
        labels = list(names)
        for place in places:
            settings = {key: differs[key][place] for key in chosen}
            labels[place] = " ".join([recipes[place]] * with_recipe + _setting_texts(settings))
        if all(labels) and len(set(labels)) == len(labels):
            return labels
    return names


def _telling(
    keys: Sequence[str], differs: Mapping[str, Sequence[Any]], places: Sequence[int]
) -> list[str]:
    """At most three of the settings: those that part the most groups, else the first."""
    chosen: list[str] = []

    def together(key: str) -> int:
        """Pairs of groups that still have the same text."""
        texts = [tuple(setting_text(k, differs[k][i]) for k in (*chosen, key)) for i in places]
        return sum(size * size for size in Counter(texts).values())

    while len(chosen) < min(SETTINGS, len(keys)):
        chosen.append(min((key for key in keys if key not in chosen), key=together))
    return [key for key in keys if key in chosen]


def _setting_texts(settings: Mapping[str, Any]) -> list[str]:
    """Those that have a value; the first with a dash where none has."""
    filled = {key: value for key, value in settings.items() if not _is_empty(value)}
    shown = filled or dict(list(settings.items())[:1])
    return [setting_text(key, value) for key, value in shown.items()]


def _is_empty(value: Any) -> bool:
    return value is ABSENT or value is None or value in ("", [], {}, ())


def setting_text(key: str, value: Any) -> str:
    """`learning_rate=1e-06`; a key that ends in `kind` or `path` is named after its table.

    Places in lists are no names, and of a path the file's name is enough.
    """
    parts = key.split(".")
    names = [part for part in parts if not part.isdigit()] or parts
    of_table = parts[-1] in ("kind", "path") and len(parts) > 1 and not parts[-2].isdigit()
    name = parts[-2] if of_table else names[-1]
    return f"{name}={'-' if _is_empty(value) else _short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, str) and is_kept(value):
        value = kept_name(value)
    text = " ".join(plain_text(value).split())
    if isinstance(value, str) and "/" in text and " " not in text and "://" not in text:
        text = PurePath(text).name
    return text if len(text) <= VALUE else f"{text[: VALUE - 1]}…"


def plain_text(value: Any) -> str:
    """A setting as text: strings as they are, anything else as JSON."""
    if isinstance(value, str | float):
        return str(value)
    return msgspec.json.encode(value, enc_hook=str).decode()
