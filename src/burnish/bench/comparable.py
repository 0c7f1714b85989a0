"""Whether the marks of two runs mean the same: the same score, reward and held-out prompts.

Where they do not, a difference between the marks says nothing about the models, and the comparison
is refused with one line that names what differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from burnish.memory import is_kept, kept_name
from burnish.records import Task

Settings = Mapping[str, Any]
"""A run's config by dotted key, with digests of its code under `files.NAME`."""

LIVES = ("run.name", "run.folder")
"""Where a run lives, which says nothing about what it does."""
DEADLINES = ("timeout_s", "deadline_s")
"""Settings that decide whether a reward has a value, never which one."""
LOWER_IS_BETTER = ("loss", "bits_per_byte", "log_spectral_distance")
"""Held-out measures of which less is better."""
NAMED = 4
SHORT = 40


def differing(a: Settings, b: Settings) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, with both values; None where a run has no such key."""
    return {
        key: (a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if key not in LIVES and a.get(key) != b.get(key)
    }


def why_incomparable(
    names: tuple[str, str],
    a: Settings,
    b: Settings,
    tasks: tuple[Mapping[str, Task], Mapping[str, Task]] | None,
) -> str:
    """Why the marks of two runs cannot be compared, in one line; empty where they can.

    With `tasks`, by id, also prompt by prompt; without them it is asked whether their scores mean the
    same.
    """
    runs = "runs '{}' and '{}' cannot be compared".format(*names)
    part_a, part_b = (str(one.get("evaluation.part", "")) for one in (a, b))
    if part_a != part_b:
        scores = (
            f"the reward '{p}'" if p else "the total of all rewards" for p in (part_a, part_b)
        )
        return f"{runs}: their scores are {' and '.join(scores)}; set the same evaluation.part."
    rewards = differing(_rewards(a, part_a), _rewards(b, part_b))
    if rewards:
        shared = "" if part_a else ", or score both by one that they share (evaluation.part)"
        return (
            f"{runs}: their rewards differ ({_listed(rewards)}), so their marks do not mean the "
            f"same. Train one again with the rewards of the other{shared}."
        )
    reasons = [] if tasks is None else _other_tasks(a, b, *tasks)
    if not reasons:
        return ""
    return (
        f"{runs}: their held-out tasks differ ({'; '.join(reasons)}); expected the same prompts "
        "with the same answers under the same ids."
    )


def _other_tasks(
    a: Settings, b: Settings, tasks_a: Mapping[str, Task], tasks_b: Mapping[str, Task]
) -> list[str]:
    """How the prompts differ; fewer of the same ones are no obstacle.

    Where every prompt is the same the settings may differ: two runs that were trained on different
    data are then compared fairly.
    """
    shared = sorted(tasks_a.keys() & tasks_b.keys())
    changed = [
        key
        for key in shared
        if not (
            tasks_a[key].messages == tasks_b[key].messages
            and tasks_a[key].fields == tasks_b[key].fields
        )
    ]
    if not changed and tasks_a.keys() == tasks_b.keys() and shared:
        return []
    settings = differing(_tasks(a), _tasks(b))
    reasons = [_listed(settings)] if settings else []
    if changed:
        reasons.append(f"prompt '{changed[0]}' is not the same in both")
    elif not shared:
        reasons.append("no prompt in common")
    return reasons


def _tasks(settings: Settings) -> dict[str, Any]:
    """What defines the tasks. A file counts by its name: its contents show in the prompts."""
    return {
        key: PurePath(str(value)).name if key.endswith(".path") else value
        for key, value in settings.items()
        if key.startswith("task.")
    }


def _rewards(settings: Settings, part: str) -> dict[str, Any]:
    """What defines the score, under `rewards.NAME.KEY` so that the order does not matter.

    A score that is one reward depends on no other reward, and not on that one's weight.
    """
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        words = key.split(".", 2)
        if words[0] == "rewards" and len(words) == 3:
            tables.setdefault(words[1], {})[words[2]] = value
    found: dict[str, Any] = {}
    for table in tables.values():
        title = reward_title(table)
        if part and title != part:
            continue
        for key, value in table.items():
            if key == "name" or key.rpartition(".")[2] in DEADLINES or (part and key == "weight"):
                continue
            is_code = key.rpartition(".")[2] == "path" and ".py:" in str(value)
            found[f"rewards.{title}.{key}"] = PurePath(str(value)).name if is_code else value
            if is_code:
                file = PurePath(str(value).partition(":")[0]).name
                found[f"contents of {file}"] = settings.get(f"files.{file}")
    return found


def reward_title(table: Mapping[str, Any]) -> str:
    """A reward's name; without one its function's name, or its kind."""
    if table.get("name"):
        return str(table["name"])
    kind = str(table.get("kind", ""))
    return str(table.get("path", "")).rpartition(":")[2] if kind == "function" else kind


def _listed(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """`task.level: 1 and 2; task.kind: ...`, the first few."""

    def short(value: Any) -> str:
        text = "nothing" if value is None else repr(value)
        return text if len(text) <= SHORT else text[: SHORT - 1] + "…"

    shown = [f"{key}: {short(a)} and {short(b)}" for key, (a, b) in differences.items()]
    more = f"; and {len(shown) - NAMED} more" if len(shown) > NAMED else ""
    return "; ".join(shown[:NAMED]) + more


DIGESTS = "files."
"""Settings that are digests of files: they tell runs apart, but no person reads them."""
SETTINGS = 3
VALUE = 24


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
    tries = [(everywhere, False, few), (everywhere, False, given)] if given else []
    tries += [(several, True, [])]
    tries += [(several, mixed, _telling(some, differs, several)) for some in (whole, told)]
    for places, with_recipe, chosen in tries:
        labels = list(names)
        for place in places:
            settings = {key: differs[key][place] for key in chosen}
            filled = {key: value for key, value in settings.items() if not _is_empty(value)}
            # Those that have a value; the first with a dash where none has.
            shown = filled or dict(list(settings.items())[:1])
            texts = [setting_text(key, value) for key, value in shown.items()]
            labels[place] = " ".join([recipes[place]] * with_recipe + texts)
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


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {}, ())


def setting_text(key: str, value: Any) -> str:
    """`learning_rate=1e-06`; a key that ends in `kind` or `path` is named after its table.

    Places in lists are no names, and of a path the file's name is enough.
    """
    parts = key.split(".")
    names = [part for part in parts if not part.isdigit()] or parts
    of_table = parts[-1] in ("kind", "path") and len(parts) > 1 and not parts[-2].isdigit()
    name = parts[-2] if of_table else names[-1]
    if _is_empty(value):
        return f"{name}=-"
    if isinstance(value, str) and is_kept(value):
        value = kept_name(value)
    text = " ".join(plain_text(value).split())
    if isinstance(value, str) and "/" in text and " " not in text and "://" not in text:
        text = PurePath(text).name
    return f"{name}={text if len(text) <= VALUE else f'{text[: VALUE - 1]}…'}"


def plain_text(value: Any) -> str:
    """A setting as text: strings as they are, anything else as JSON."""
    if isinstance(value, str | float):
        return str(value)
    return msgspec.json.encode(value, enc_hook=str).decode()
