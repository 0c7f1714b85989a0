"""`burnish show`: a run at a glance, one of its steps, or one of its samples."""

from __future__ import annotations

import heapq
import itertools
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from burnish.cli.console import STATUS_STYLES, emit_json, interval, one_line, out, say
from burnish.cli.drawing import print_curves
from burnish.cli.runs import choose_run, held_out_score, planned_steps, setting
from burnish.cli.shared_options import RUNS, AsJson, RunName, RunsFolder
from burnish.cli.show_samples import (
    by_group,
    print_group,
    print_list,
    print_sample,
    print_step,
    teaches,
)
from burnish.errors import UserError, did_you_mean
from burnish.store import Manifest, RunStore, StoredSample

GROUPS = 3
"""Groups of the last step that the summary shows."""
MOST = 10**9
"""As many as `steps` allows, and far below what SQLite cannot hold."""
HIGHLIGHTS = (
    "model.path",
    "task.kind",
    "rollout.prompts",
    "rollout.samples",
    "rollout.max_tokens",
    "optimiser.learning_rate",
    "run.seed",
)


def show(
    run: RunName = "",
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, max=MOST, metavar="N", help="The groups of one step."),
    ] = None,
    sample: Annotated[
        str, typer.Option("--sample", metavar="ID", help="One answer whole, such as 12/train/3.")
    ] = "",
    split: Annotated[
        str, typer.Option("--split", help="Only train, dropped or eval:held_out samples.")
    ] = "",
    worst: Annotated[
        int, typer.Option("--worst", min=0, max=MOST, metavar="N", help="The N lowest rewards.")
    ] = 0,
    best: Annotated[
        int, typer.Option("--best", min=0, max=MOST, metavar="N", help="The N highest rewards.")
    ] = 0,
    failed: Annotated[
        int,
        typer.Option("--failed", min=0, max=MOST, metavar="N", help="N rewards without a value."),
    ] = 0,
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Open a run: its curves, a step's groups, or one answer and why it got its reward.

    \b
      burnish show                          the newest run at a glance
      burnish show grpo-1f --step 12        prompts and answers of step 12
      burnish show --sample 12/train/3      one answer and its reward tree
      burnish show --worst 5 --split eval:held_out
    """
    with RunStore.open(choose_run(folder, run), read_only=True) as store:
        if sample:
            found = store.sample(sample)
            if as_json:
                _emit([found])
            else:
                print_sample(store, found)
        elif worst or best or failed:
            _check_split(store, split)
            lists = _lists(store, step, split, worst=worst, best=best, failed=failed)
            _show_lists(lists, as_json=as_json)
        elif step is not None or split:
            _check_split(store, split)
            _show_step(store, step, split, as_json=as_json)
        elif as_json:
            emit_json(summary_record(store))
        else:
            print_summary(store)
    return 0


def _show_step(store: RunStore, step: int | None, split: str, *, as_json: bool) -> None:
    if step is None:
        last = next(reversed([s.step for s in store.samples(split=split)]), None)
        step = last if last is not None else 0
    samples = list(store.samples(step=step, split=split or None))
    if not split:
        samples = [s for s in samples if not s.split.startswith("eval:")]
    if not samples:
        steps = store.steps()
        has = f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has no steps yet"
        raise UserError(f"run '{store.name}' has no samples of step {step}; {has}.")
    if as_json:
        _emit(samples)
    else:
        print_step(store, step, samples)


def _lists(
    store: RunStore, step: int | None, split: str, *, worst: int, best: int, failed: int
) -> dict[str, list[StoredSample]]:
    """The lists that are asked for, by title."""

    def candidates(**more: Any) -> Iterator[StoredSample]:
        return store.samples(step=step, split=split or None, **more)

    def value(sample: StoredSample) -> float:
        return sample.reward.value if sample.reward.value is not None else 0.0

    lists: dict[str, list[StoredSample]] = {}
    if worst:
        lists["lowest rewards"] = heapq.nsmallest(worst, candidates(status="ok"), value)
    if best:
        lists["highest rewards"] = heapq.nlargest(best, candidates(status="ok"), value)
    if failed:
        without = (s for s in candidates() if s.reward.value is None)
        lists["rewards without a value"] = list(itertools.islice(without, failed))
    return lists


def _show_lists(lists: dict[str, list[StoredSample]], *, as_json: bool) -> None:
    for title, samples in lists.items():
        if as_json:
            _emit(samples)
        elif samples:
            print_list(title, samples)
        else:
            say(f"{title}: none")


def _check_split(store: RunStore, split: str) -> None:
    known = store.summary().samples
    if split and split not in known:
        raise UserError(
            f"run '{store.name}' has no split '{split}'; expected one of "
            f"{', '.join(known) or 'none yet'}.{did_you_mean(split, known)}"
        )


def _emit(samples: list[StoredSample]) -> None:
    for sample in samples:
        emit_json({"id": sample.id, **msgspec.to_builtins(sample)})


def print_summary(store: RunStore) -> None:
    """Settings, curves, statuses, held-out scores and the last step's groups."""
    from burnish.view.curves import curves_of

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


def chosen(about: Manifest) -> list[tuple[str, Any]]:
    """Keys and values that were given on the command line."""
    keys = [key for key, origin in about.origins.items() if origin.startswith("command line")]
    return [(key, setting(about, key)) for key in keys]


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
        # A loss or a preference is measured on given answers, so that no samples are stored.
        count = evaluation.summary.get("count", evaluation.samples)
        say(f"held out  step {evaluation.step}: {shown} of {count} prompts")


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
