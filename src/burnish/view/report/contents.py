"""What a report of a run says, as data: the page and the Markdown are two ways to write it."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from burnish.metrics import STEP_S
from burnish.records import Reward
from burnish.store import RunSummary, StoredEvent, StoredSample
from burnish.store.reader import RunReader
from burnish.store.sample import flatten
from burnish.texts import duration, safe
from burnish.view.audit import Audit, audit_run
from burnish.view.curves import RunCurves, curves_of

SHOWN = 3
"""Best, worst and failed answers, each."""
LATE_STEPS = 10
"""Steps at the end of a run that best and worst answers come from."""


Fact = tuple[str, str, str]
"""What, as expected, as it came."""


class Shown(NamedTuple):
    name: str
    prompt: str
    response: str
    reward: str
    parts: tuple[tuple[str, str, str], ...]
    """Name, value and reason of each node of the reward tree."""
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class RunReport:
    name: str
    recipe: str
    command: str
    created: str
    summary: RunSummary
    planned: int | None
    changed: tuple[tuple[str, str], ...]
    """Settings that differ from the recipe or its defaults, with their origin."""
    settings: tuple[tuple[str, str, str], ...]
    """Every setting: key, value, origin."""
    versions: tuple[tuple[str, str], ...]
    facts: tuple[Fact, ...]
    curves: RunCurves
    best: tuple[Shown, ...]
    worst: tuple[Shown, ...]
    failed: tuple[Shown, ...]
    audit: Audit
    events: tuple[StoredEvent, ...]
    hashes: tuple[tuple[str, str], ...]


def contents_of(store: RunReader, audit: Audit | None = None) -> RunReport:
    """Read a report's contents from a run's store; the run may still be going on."""
    about = store.about
    events = store.events()
    given = sorted(k for k, origin in about.origins.items() if origin.startswith("command line"))
    changed = [(key, _short(_setting(about.config, key))) for key in given]
    planned = about.config.get("steps")
    last = store.last_step() or 0
    query = f"SELECT id FROM samples WHERE status <> 'ok' ORDER BY rowid DESC LIMIT {SHOWN}"
    words = [about.recipe, *(f"{key}={value}" for key, value in changed)]
    return RunReport(
        name=store.name,
        recipe=about.recipe,
        command=" ".join(["burnish train", *(shlex.quote(word) for word in words if word)]),
        created=about.created[:16].replace("T", " "),
        summary=store.summary(),
        planned=planned if isinstance(planned, int) else None,
        changed=tuple(changed),
        settings=tuple(
            (key, _short(value), about.origins.get(key, "default"))
            for key, value in _flat(about.config)
        ),
        versions=(*about.versions.items(), ("platform", about.platform)),
        facts=tuple(_facts(store, events)),
        curves=curves_of(store),
        best=_answers(store, "reward DESC", last),
        worst=_answers(store, "reward ASC", last),
        failed=tuple(_shown(store, store.sample(row[0])) for row in store.query(query)),
        audit=audit or audit_run(store),
        events=tuple(event for event in events if event.kind not in ("forecast", "time")),
        hashes=(("configuration", about.config_hash), ("data", about.data_hash)),
    )


def _facts(store: RunReader, events: Sequence[StoredEvent]) -> list[Fact]:
    """Forecasts beside what came: the first time told for the main training, and the memory."""
    forecasts = [event.data for event in events if event.kind == "forecast"]
    told = [event for event in events if event.kind == "time" and not event.data.get("stage")]
    found = []
    if forecasts and told:
        ends = [ended for (ended,) in store.query("SELECT ended FROM sessions")]
        took = "not finished"
        if len(ends) == 1 and ends[0]:
            spent = datetime.fromisoformat(ends[0]) - datetime.fromisoformat(told[0].time)
            steps = [p.value for p in store.metrics(STEP_S).get(STEP_S, []) if p.value is not None]
            step = "no step yet"
            if steps:
                step = f"{duration(statistics.median(steps))} (median of {len(steps)})"
            took = f"{duration(spent.total_seconds())}, one step {step}"
        found.append((f"time after step {told[0].step}", told[0].message, took))
    if forecasts and "memory_bytes" in forecasts[0]:
        need = forecasts[0]["memory_bytes"] / 2**30
        free = forecasts[0].get("available_bytes", 0) / 2**30
        found.append(("memory", f"{need:.2f} GiB of {free:.1f} free", "not measured"))
    return found


def _answers(store: RunReader, order: str, last: int) -> tuple[Shown, ...]:
    query = (
        "SELECT id FROM samples WHERE split = 'train' AND step > ? AND reward IS NOT NULL "
        f"ORDER BY {order}, step DESC, idx LIMIT {SHOWN}"
    )
    ids = [row[0] for row in store.query(query, (last - LATE_STEPS,))]
    return tuple(_shown(store, store.sample(key)) for key in ids)


def _shown(store: RunReader, sample: StoredSample) -> Shown:
    nodes = flatten(sample.reward)
    return Shown(
        name=store.names([sample])[0],
        prompt=safe(sample.task.prompt),
        response=safe(sample.trajectory.text),
        reward=_value(sample.reward),
        parts=tuple(
            (
                name,
                _value(node),
                node.reason or safe("; ".join(e.observation for e in node.evidence)),
            )
            for name, node in nodes.items()
        ),
        evidence=tuple(
            safe(f"{e.source}: {e.observation}") for node in nodes.values() for e in node.evidence
        ),
    )


def _value(reward: Reward) -> str:
    return f"{reward.value:.4g}" if reward.value is not None else reward.status.value


def _setting(config: dict[str, Any], key: str) -> Any:
    if key in config:
        return config[key]
    found: Any = config
    for part in key.split("."):
        if isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict):
            found = found.get(part)
        else:
            return None
    return found


def _flat(config: dict[str, Any], path: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in config.items():
        name = f"{path}{key}"
        rows += _flat(value, f"{name}.") if isinstance(value, dict) and value else [(name, value)]
    return rows


def _short(value: Any, limit: int = 200) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
