"""`burnish compare`: two runs side by side, as text or as JSON.

Both runs are only read, so either may still be going on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.bench import ABSENT, Comparison, HeldOutRun, compare, differing
from burnish.cli.compare_report import Side, print_comparison
from burnish.cli.console import emit_json
from burnish.errors import UserError, did_you_mean
from burnish.store import RunStore, StoredEvaluation, find_run
from burnish.view.curves import Point
from burnish.view.held_out import CURVES, evaluation_after, evaluations, held_out_run


class Query(NamedTuple):
    """The flags of `burnish compare`."""

    step: int | None = None
    metrics: tuple[str, ...] = ()
    as_json: bool = False


def compare_runs(folder: Path, reference_a: str, reference_b: str, query: Query) -> int:
    """Compare two runs' held-out answers, settings and curves."""
    folder_a, folder_b = find_run(folder, reference_a), find_run(folder, reference_b)
    if folder_a.resolve() == folder_b.resolve():
        raise UserError(
            f"'{reference_a}' and '{reference_b}' are the same run, {folder_a}; expected two. "
            f"Its own curves and scores: burnish show {folder_a}"
        )
    with (
        RunStore.open(folder_a, read_only=True) as store_a,
        RunStore.open(folder_b, read_only=True) as store_b,
    ):
        by_step = (evaluations(store_a), evaluations(store_b))
        chosen = [
            evaluation_after(store, found, query.step)
            for store, found in zip((store_a, store_b), by_step, strict=True)
        ]
        found = compare(held_out_run(store_a, chosen[0]), held_out_run(store_b, chosen[1]))
        names = _known(query.metrics, store_a, store_b)
        a, b = (_side(store, names) for store in (store_a, store_b))
    notes = _notes(found, *by_step)
    changes = differing(found.a.settings, found.b.settings)
    if query.as_json:
        emit_json(_record(found, a, b, changes, notes))
    else:
        print_comparison(found, a, b, changes, notes)
    return 0


def _known(asked: Sequence[str], store_a: RunStore, store_b: RunStore) -> list[str]:
    """The metrics to show; one that neither run has is a mistake where it was asked for."""
    known = list(dict.fromkeys([*store_a.metrics(), *store_b.metrics()]))
    for name in asked:
        if name not in known:
            hint = did_you_mean(name, known) or f" They have: {', '.join(known) or 'none yet'}."
            raise UserError(
                f"neither run '{store_a.name}' nor run '{store_b.name}' has a metric '{name}'.{hint}"
            )
    return [name for name in dict.fromkeys(asked or CURVES) if name in known]


def _side(store: RunStore, names: Sequence[str]) -> Side:
    curves: dict[str, list[Point]] = {
        name: [(step, value) for step, value in points if value is not None]
        for name, points in ((name, store.metrics(name).get(name, [])) for name in names)
    }
    steps = len(store.steps())
    return Side(store.folder, store.about.recipe, store.status().value, steps, curves)


def _notes(
    found: Comparison, steps_a: dict[int, StoredEvaluation], steps_b: dict[int, StoredEvaluation]
) -> list[str]:
    """What a person should know before believing the test."""
    notes = []
    if found.a.step != found.b.step:
        both = sorted(steps_a.keys() & steps_b.keys())
        choose = f"; --step N compares both after N steps: {', '.join(map(str, both))}"
        notes.append(
            f"the last evaluation of each is compared: A's after {found.a.step} steps, B's after "
            f"{found.b.step}{choose if both else ''}"
        )
    budgets = [_budget(run.settings) for run in (found.a, found.b)]
    if budgets[0] != budgets[1]:
        notes.append(
            f"answers had at most {budgets[0]} tokens in A and {budgets[1]} in B, which alone can "
            "make a difference"
        )
    return notes


def _budget(settings: Any) -> Any:
    return settings.get("evaluation.max_tokens") or settings.get("rollout.max_tokens")


def _record(
    found: Comparison,
    a: Side,
    b: Side,
    changes: dict[str, tuple[Any, Any]],
    notes: list[str],
) -> dict[str, Any]:
    """The whole comparison for machines; a setting that a run does not have is null."""
    test = found.test
    return {
        "a": _run_record(found.a, a),
        "b": _run_record(found.b, b),
        "differs": {
            key: [None if value is ABSENT else value for value in pair]
            for key, pair in changes.items()
        },
        "notes": notes,
        "test": None if test is None else _test_record(test._asdict()),
        "prompts": [{**pair._asdict(), "change": pair.change} for pair in found.pairs],
        "only_a": found.only_a,
        "only_b": found.only_b,
        "unmarked": [item._asdict() for item in found.unmarked],
        "curves": {name: {"a": points, "b": b.curves[name]} for name, points in a.curves.items()},
        "verdict": found.verdict,
    }


def _run_record(run: HeldOutRun, side: Side) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(side.folder),
        "recipe": side.recipe,
        "status": side.status,
        "steps": side.steps,
        "evaluated_after": run.step,
        "answers": len(run.answers),
    }


def _test_record(test: dict[str, Any]) -> dict[str, Any]:
    """Estimates and counts as objects with names instead of bare lists."""
    return {k: v._asdict() if hasattr(v, "_asdict") else v for k, v in test.items()}
