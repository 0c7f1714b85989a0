"""A run at a glance."""

from __future__ import annotations

import textwrap
from typing import Any

from burnish.cli.console import STATUS_STYLES, interval, one_line, out, say
from burnish.cli.groups import by_group, print_group, teaches
from burnish.cli.listing import held_out_score
from burnish.cli.manifests import chosen, planned_steps, setting
from burnish.cli.report import print_curves
from burnish.store import RunStore
from burnish.view.curves import curves_of

GROUPS = 3
"""Groups of the last step that the summary shows."""

HIGHLIGHTS = (
    "model.path",
    "task.kind",
    "rollout.prompts",
    "rollout.samples",
    "rollout.max_tokens",
    "optimiser.learning_rate",
    "run.seed",
)


def print_summary(store: RunStore) -> None:
    """Settings, curves, statuses, held-out scores and the last step's groups."""
    summary = store.summary()
    planned = planned_steps(store.about)
    of = f" of {planned}" if planned else ""
    say(f"run '{store.name}'", style="bold")
    say(
        f"status    {summary.status.value}, {summary.steps}{of} steps, started "
        f"{summary.created[:16].replace('T', ' ')} UTC, {summary.sessions} start"
        f"{'s' * (summary.sessions != 1)}",
        style=STATUS_STYLES[summary.status.value],
    )
    if reason := summary.result.get("reason"):
        say(f"reason    {one_line(str(reason))}", style="yellow")
    _print_settings(store)
    statuses = ", ".join(f"{name} {n}" for name, n in summary.statuses.items())
    splits = ", ".join(f"{name} {n}" for name, n in summary.samples.items())
    say(f"samples   {splits or 'none'}")
    say(f"rewards   {statuses or 'none'}")
    _print_held_out(store)
    say()
    print_curves(curves_of(store))
    said = [event for event in store.events() if event.kind != "forecast"]
    for event in said[-3:]:
        say(f"event     {event.kind}: {one_line(event.message)}", style="yellow")
    _print_last_step(store)


def summary_record(store: RunStore) -> dict[str, Any]:
    """The same for machines, with the newest value of every metric."""
    summary = store.summary()
    return {
        "name": store.name,
        "folder": str(store.folder),
        "recipe": store.about.recipe,
        "status": summary.status.value,
        "started": summary.created,
        "steps": summary.steps,
        "planned": planned_steps(store.about),
        "samples": summary.samples,
        "statuses": summary.statuses,
        "result": summary.result,
        "held_out": [
            {"step": e.step, "score": held_out_score(e)} for e in store.evaluations("held_out")
        ],
        "metrics": {name: points[-1].value for name, points in store.metrics().items()},
    }


def _print_settings(store: RunStore) -> None:
    about = store.about
    values = [(key, setting(about, key)) for key in HIGHLIGHTS]
    shown = [f"{key}={value}" for key, value in values if value is not None]
    say(_filled("recipe", [about.recipe, *shown]))
    if words := chosen(about):
        say(_filled("changed", [f"{key}={value}" for key, value in words]), style="cyan")


def _filled(title: str, words: list[str]) -> str:
    """A title and words beside it, broken between words where the screen ends."""
    indent = " " * 10
    text = "  ".join(one_line(word) for word in words)
    return textwrap.fill(
        text,
        out.width,
        initial_indent=f"{title:<10}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _print_held_out(store: RunStore) -> None:
    for evaluation in store.evaluations("held_out"):
        score = held_out_score(evaluation)
        shown = interval((score[0], score[1], score[2], int(score[3]))) if score else "no score"
        say(f"held out  step {evaluation.step}: {shown} of {evaluation.samples} prompts")


def _print_last_step(store: RunStore) -> None:
    step = store.last_step()
    if step is None:
        say("no step is stored yet.")
        return
    groups = by_group(store.rollouts(step) or [])
    useful = sum(teaches(group) for group in groups.values())
    say()
    say(f"last step: {step}   useful groups {useful}/{len(groups)}", style="bold")
    for group in list(groups.values())[:GROUPS]:
        print_group(group)
        say()
    if len(groups) > GROUPS:
        say(f"... and {len(groups) - GROUPS} more groups", style="bright_black")
    first = next(iter(groups.values()))[0]
    say(f"look further: burnish show {store.folder} --step {step}")
    say(f"              burnish show {store.folder} --sample {first.id}")
    say(f"              burnish show {store.folder} --worst 5")
