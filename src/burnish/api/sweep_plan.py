"""What a sweep trains: a grid of settings times seeds, and where each of its runs stands.

Every combination is checked and has its folder before anything is trained. A run is named as
`burnish train` names it, so that a run made by hand counts too.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from burnish.api.launch import choose_folder
from burnish.bench.comparable import setting_text
from burnish.boundary import PositiveInt, Seed
from burnish.config.recipes import resolve
from burnish.errors import StoreError, UserError
from burnish.seeds import Seeds
from burnish.store import RunStatus, RunStore, manifest
from burnish.store.manifest import SweepRecord, SweepRun, now, read_sweep, sweep_path, write_sweep
from burnish.texts import toml_key, toml_value

SEED = "run.seed"
OWN = ("run.name", "run.folder")
"""Settings that would put several runs into one folder."""
MOST = 10_000
"""Runs of one sweep; more is a mistake in the grid."""
INTERRUPTED = "interrupted"
"""How the reason of a run of one process begins that a person stopped."""

Axis = tuple[str, list[str]]
"""A setting and its values as TOML texts."""


@dataclass
class RunState:
    """Where one run of a sweep stands."""

    run: SweepRun
    folder: Path
    status: str = "waiting"
    """waiting, running, finished, failed, interrupted, or elsewhere: another process trains it."""
    reason: str = ""
    """Why it failed."""
    step: int = 0
    steps: int = 0
    remaining_s: float | None = None
    before: float | None = None
    after: float | None = None

    @property
    def label(self) -> str:
        """Its varied settings and its seed, in short."""
        parts = [setting_text(key, value) for key, value in self.run.settings.items()]
        return " ".join([*parts, f"seed={self.run.seed}"])

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "run": self.run.name,
            "folder": str(self.folder),
            "settings": self.run.settings,
            "seed": self.run.seed,
            "status": self.status,
            "reason": self.reason,
            "step": self.step,
            "steps": self.steps,
            "before": self.before,
            "after": self.after,
            "command": ["burnish", "train", *self.run.words],
        }


class Grid(NamedTuple):
    """What a sweep is made of, before its settings are checked."""

    words: list[str]
    """The recipe and the settings that all runs share."""
    axes: list[Axis]
    seeds: int | list[int] = 1
    sample: int | None = None
    name: str = ""


@dataclass
class SweepPlan:
    """A sweep whose settings are checked and whose runs have folders."""

    record: SweepRecord
    folder: Path
    """Of the runs."""
    states: list[RunState] = field(default_factory=list)
    model: str = ""
    """Of the first run: a path or a shipped name."""
    device: str = "auto"
    threads: int = 0

    def save(self) -> None:
        """Store the sweep beside its runs."""
        write_sweep(self.folder, self.record)


# --- the grid


def read_words(words: Sequence[str]) -> Grid:
    """The grid of a command line: `key=a,b` is an axis, `key=a` a setting of all runs."""
    recipe = [words[0]] if words and ("=" not in words[0] or words[0].endswith(".toml")) else []
    shared, axes = [], []
    for word in words[len(recipe) :]:
        key, _, text = word.partition("=")
        values = split_values(text)
        if len(values) > 1:
            axes.append((key.strip(), values))
        else:
            shared.append(word)
    return Grid([*recipe, *shared], axes)


def split_values(text: str) -> list[str]:
    """The values of `a,b,c`; commas inside quotes, brackets and braces part nothing."""
    parts, depth, quote, start = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            before = text[:place]
            backslashes = len(before) - len(before.rstrip("\\"))
            is_escaped = quote == '"' and backslashes % 2 == 1
            quote = "" if letter == quote and not is_escaped else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth <= 0:
            parts.append(text[start:place])
            start = place + 1
    found = [part.strip() for part in (*parts, text[start:])]
    if len(found) > 1 and not all(found):
        raise UserError(
            f"'{text[:80]}' has an empty value; expected values between commas, such as 1e-6,3e-6. "
            "A text with a comma needs quotes: '\"a,b\"'."
        )
    return found


class SweepTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[sweep]` table of a sweep file."""

    recipe: str
    """A shipped recipe, or a file beside the sweep's."""
    seeds: PositiveInt | list[Seed] = 1
    sample: PositiveInt | None = None
    name: str = ""
    settings: dict[str, Any] = {}
    """Of all runs."""
    grid: dict[str, Any] = {}
    """Dotted key -> list of values."""


class SweepFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A sweep file: `[sweep]`, `[sweep.settings]` and `[sweep.grid]`."""

    sweep: SweepTable


def read_file(path: Path) -> Grid:
    """The grid of a sweep file."""
    from burnish.config import load

    table = load(SweepFile, path).value.sweep
    recipe = path.parent / table.recipe
    words = [str(recipe) if recipe.is_file() else table.recipe]
    words += [f"{key}={toml_value(value)}" for key, value in flat_keys(table.settings).items()]
    return Grid(words, as_axes(table.grid), table.seeds, table.sample, table.name)


def is_sweep_file(path: Path) -> bool:
    """A TOML file with a `[sweep]` table."""
    import tomllib

    if path.suffix != ".toml" or not path.is_file():
        return False
    try:
        return "sweep" in tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False  # whoever loads it says what is wrong


def flat_keys(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested tables."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        dotted = f"{prefix}{key if '.' in key else toml_key(key)}"
        found |= flat_keys(value, f"{dotted}.") if isinstance(value, dict) else {dotted: value}
    return found


def as_axes(grid: Mapping[str, Any]) -> list[Axis]:
    """The axes of a grid of Python values by dotted key."""
    grid = flat_keys(grid)
    for key, values in grid.items():
        if not isinstance(values, list | tuple) or not values:
            raise UserError(f"grid: {key} is {values!r}; expected a list of values to try.")
    return [(key, [toml_value(value) for value in values]) for key, values in grid.items()]


# --- the plan


def plan_sweep(grid: Grid, runs: str | Path | None = None) -> SweepPlan:
    """Check every combination and find its folder; nothing is trained or written."""
    home = None if runs is None else Path(runs)
    first = resolve(grid.words)
    config = first.resolved.value
    axes = [(key, values) for key, values in grid.axes if key != SEED]
    typed = [values for key, values in grid.axes if key == SEED]
    if typed and grid.seeds != 1:
        raise UserError(f"{SEED} is in the grid and seeds are asked for too; expected one of them.")
    seeds: Sequence[int | str] = typed[0] if typed else grid.seeds  # type: ignore[assignment]
    if isinstance(seeds, int):
        seeds = range(config.run.seed, config.run.seed + seeds)
    states: dict[str, RunState] = {}
    for chosen in _combinations(axes, grid.sample, len(seeds)):
        for seed in seeds:
            own = [f"{SEED}={seed}"] if typed or grid.seeds != 1 else []
            state = _planned([*grid.words, *chosen, *own], chosen, home)
            twin = states.setdefault(state.run.name, state)
            if twin is not state:
                raise UserError(
                    f"the grid holds one run twice: {_said(twin.run.words)} and "
                    f"{_said(state.run.words)} are the same settings; expected different values."
                )
    ordered = list(states.values())
    digest = hashlib.sha256("\n".join(sorted(states)).encode()).hexdigest()
    record = SweepRecord(
        name=grid.name or f"{first.recipe.stem}-sweep-{digest[:8]}",
        recipe=first.typed,
        created=now(),
        grid={key: _known([s.run.settings[key] for s in ordered]) for key, _ in axes},
        seeds=_known([s.run.seed for s in ordered]),
        runs=[state.run for state in ordered],
        sampled=grid.sample,
    )
    plan = SweepPlan(record, ordered[0].folder.parent, ordered)
    plan.model, plan.device = config.model.path, config.model.device
    plan.threads = config.model.threads
    remember(plan)
    return plan


def _combinations(axes: list[Axis], sample: int | None, seeds: int) -> list[tuple[str, ...]]:
    """The words of each combination; a sample keeps the grid's order.

    The draw does not depend on its size, so that a larger sample holds the smaller one.
    """
    keys = [key for key, _ in axes]
    for key in keys:
        if keys.count(key) > 1 or key in OWN:
            raise UserError(
                f"{key} is in the grid twice, or names runs; expected all values of a setting at once."
            )
    total = math.prod(len(values) for _, values in axes)
    words = [[f"{key}={value}" for value in values] for key, values in axes]
    count = min(total, sample or total)
    if not 0 < count * seeds <= MOST:
        raise UserError(
            f"the sweep has {count * seeds} runs; expected 1 to {MOST}. Draw some of the grid: "
            "--sample N."
        )
    if count == total:
        return list(itertools.product(*words))
    rng = Seeds(0).rng("sweep", *itertools.chain.from_iterable(words))
    places: set[int] = set()
    while len(places) < count:
        places.add(rng.randrange(total))
    return [_at(words, place) for place in sorted(places)]


def _at(words: Sequence[Sequence[str]], place: int) -> tuple[str, ...]:
    """The combination at a place of the product, whose last axis changes fastest."""
    chosen = []
    for values in reversed(words):
        place, index = divmod(place, len(values))
        chosen.append(values[index])
    return tuple(reversed(chosen))


def _planned(words: list[str], chosen: Sequence[str], home: Path | None) -> RunState:
    asked = resolve(words)
    config = asked.resolved.value
    if config.run.name:
        raise UserError(
            f"run.name is '{config.run.name}': all runs of the sweep would have that folder; "
            "expected none. Add run.name= to leave it out."
        )
    flat = asked.resolved.flat()
    pairs = (word.partition("=")[::2] for word in chosen)
    settings = {key: flat.get(key, text) for key, text in pairs}
    folder = choose_folder(asked, home)
    run = SweepRun(name=folder.name, settings=settings, seed=config.run.seed, words=words)
    return RunState(run, folder, steps=config.steps)


def _known(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def remember(plan: SweepPlan) -> None:
    """Fill in where each run stands, from its folder and from an earlier start of the sweep."""
    file = sweep_path(plan.folder, plan.record.name)
    # A damaged file costs the reasons of failed runs, and is written again.
    before = None
    with suppress(StoreError):
        before = read_sweep(file) if file.is_file() else None
    if before is not None:
        plan.record.created = before.created
        failures = {run.name: run.failure for run in before.runs}
        for state in plan.states:
            state.run.failure = failures.get(state.run.name, "")
    for state in plan.states:
        refresh(state)


def refresh(state: RunState) -> None:
    """Read where a run stands from its folder."""
    state.status, state.reason = "waiting", ""
    if (state.folder / manifest.FILE).is_file():
        with RunStore.open(state.folder, read_only=True) as store:
            end = store.end()
            state.step = store.steps_done()
            scores = [e.summary.get("score") for e in store.evaluations("held_out")]
        values = [score[0] if score else None for score in scores]
        state.before = values[0] if values else None
        state.after = values[-1] if len(values) > 1 else None
        known = {RunStatus.FINISHED: "finished", RunStatus.RUNNING: "elsewhere"}
        state.status = known.get(end.status, "interrupted")
        is_told = end.reason.startswith(INTERRUPTED) or end.exception == "SIGTERM"
        if end.status is RunStatus.STOPPED and not is_told:
            state.status, state.reason = "failed", end.reason
    if state.run.failure and state.status in ("waiting", "interrupted", "failed"):
        state.status, state.reason = "failed", state.run.failure


def _said(words: Sequence[str]) -> str:
    return " ".join(words[1:]) or words[0]
