"""`burnish show`: a run at a glance, one of its steps, or one of its samples."""

from __future__ import annotations

import heapq
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from typer import Option

from burnish.cli.console import STATUS_STYLES, emit_json, interval, one_line, out, say
from burnish.cli.drawing import print_curves, print_rows
from burnish.cli.runs import (
    MEASURES,
    choose_run,
    end_line,
    held_out_score,
    planned_steps,
    raised_line,
    setting,
)
from burnish.cli.shared_options import RUNS, AsJson, RunName, RunsFolder
from burnish.cli.show_samples import (
    by_group,
    print_group,
    print_list,
    print_sample,
    print_step,
    useful_groups,
)
from burnish.errors import UserError, did_you_mean
from burnish.metrics import agreeing
from burnish.store import Manifest, RunStatus, RunStore, StoredSample
from burnish.store.processes import read_processes
from burnish.store.run import DATA
from burnish.store.sample_name import shown_step
from burnish.texts import counted

AGREEMENT = ("reward/corr/", "reward/conflict/")
GROUPS = 3
"""Groups of the last step that the summary shows."""
MOST = 10**9
"""As many as `steps` allows, and far below what SQLite cannot hold."""
HIGHLIGHTS = (
    "model.path",
    "task.kind",
    "train.batch",
    "rollout.prompts",
    "rollout.samples",
    "rollout.max_tokens",
    "optimiser.learning_rate",
    "run.seed",
)


def show(
    run: RunName = "",
    step: Annotated[
        int | None, Option(min=0, max=MOST, metavar="N", help="The groups of one step, from 1.")
    ] = None,
    sample: Annotated[
        str, Option(metavar="ID", help="One answer whole, such as train-3-2-4.")
    ] = "",
    split: Annotated[str, Option(help="Only train, dropped or eval:held_out samples.")] = "",
    worst: Annotated[int, Option(min=0, max=MOST, metavar="N", help="The N lowest rewards.")] = 0,
    best: Annotated[int, Option(min=0, max=MOST, metavar="N", help="The N highest rewards.")] = 0,
    failed: Annotated[
        int, Option(min=0, max=MOST, metavar="N", help="N rewards without a value.")
    ] = 0,
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Open a run: its curves, a step's groups, or one answer and why it got its reward.

    \b
      burnish show                          the newest run at a glance
      burnish show grpo-1f --step 12        prompts and answers of step 12
      burnish show --sample train-3-2-4     one answer and its reward tree
      burnish show --worst 5 --split eval:held_out
    """
    step = _stored_step(step, split)
    with RunStore.open(choose_run(folder, run), read_only=True) as store:
        if sample:
            found = store.sample(sample)
            if as_json:
                _emit(store, [found])
            else:
                print_sample(store, found)
        elif worst or best or failed:
            _check_split(store, split)

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
            for title, samples in lists.items():
                if as_json:
                    _emit(store, samples)
                elif samples:
                    print_list(store, title, samples)
                else:
                    say(f"{title}: none")
        elif step is not None or split:
            _check_split(store, split)
            _show_step(store, step, split, as_json=as_json)
        elif as_json:
            emit_json(summary_record(store))
        else:
            print_summary(store)
    return 0


def _stored_step(step: int | None, split: str) -> int | None:
    """A step as people count as the store counts; an evaluation has the steps made before it."""
    if step is None or split.startswith("eval:"):
        return step
    if step == 0:
        raise UserError(
            "--step: got 0, expected a step from 1 on. Answers before training: --split "
            "eval:held_out --step 0"
        )
    return step - 1


def _show_step(store: RunStore, step: int | None, split: str, *, as_json: bool) -> None:
    if step is None:
        last = next(reversed([s.step for s in store.samples(split=split)]), None)
        step = last if last is not None else 0
    samples = list(store.samples(step=step, split=split or None))
    if not split:
        samples = [s for s in samples if not s.split.startswith("eval:")]
    if not samples:
        steps = store.steps()
        has = f"it has steps {steps[0] + 1} to {steps[-1] + 1}" if steps else "it has no steps yet"
        shown = shown_step(step, split or "train")
        held = [found for found in store.evaluations("held_out") if found.step == step + 1]
        if held and not split:
            has += f"; held-out answers after it: --split eval:held_out --step {step + 1}"
        raise UserError(f"run '{store.name}' has no samples of step {shown}; {has}.")
    if as_json:
        _emit(store, samples)
    else:
        print_step(store, step, samples)


def _check_split(store: RunStore, split: str) -> None:
    known = store.summary().samples
    if split and split not in known:
        raise UserError(
            f"run '{store.name}' has no split '{split}'; expected one of "
            f"{', '.join(known) or 'none yet'}.{did_you_mean(split, known)}"
        )


def _emit(store: RunStore, samples: list[StoredSample]) -> None:
    for name, sample in zip(store.names(samples), samples, strict=True):
        emit_json({"sample": name, "id": sample.id, **msgspec.to_builtins(sample)})


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
    if summary.status is RunStatus.RUNNING and (told := store.events("time")):
        last = told[-1]
        say(f"time      {last.message} (told at {last.time[11:16]} UTC)")
    for process in read_processes(store.folder) if summary.status is RunStatus.RUNNING else ():
        which = f"process {process.rank}, " if process.size > 1 else ""
        doing = process.doing or "at work"
        at = "at the start" if process.step is None else f"step {process.step + 1}"
        say(f"now       {which}{at}: {one_line(doing)} ({process.time[11:19]} UTC)")
    if line := end_line(summary.end):
        say(_filled("reason", line.split(), " "), style="yellow")
    about = store.about
    values = [(key, setting(about, key)) for key in HIGHLIGHTS]
    if setting(about, "rollout.max_tokens") == 0:  # no answer was sampled
        values = [(key, value) for key, value in values if not key.startswith("rollout.")]
    shown = [f"{key}={value}" for key, value in values if value is not None]
    say(_filled("recipe", [about.recipe, *shown]))
    if words := chosen(about):
        say(_filled("changed", [f"{key}={value}" for key, value in words]), style="cyan")
    statuses = ", ".join(f"{name} {n}" for name, n in summary.statuses.items())
    splits = ", ".join(f"{name} {n}" for name, n in summary.samples.items())
    say(f"samples   {splits or 'none'}")
    say(f"rewards   {statuses or 'none'}")
    if raised := raised_line(store):
        say(_filled("raised", raised.split(), " "), style="yellow")
    _print_held_out(store)
    say()
    print_curves(curves_of(store))
    _print_agreement(store)
    for event in store.events(DATA):
        say(f"data      {one_line(event.message)}")
    said = [event for event in store.events() if event.kind not in ("forecast", "time", DATA)]
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
        "end": msgspec.to_builtins(summary.end),
        "time_left": next((event.data for event in reversed(store.events("time"))), None)
        if summary.status is RunStatus.RUNNING
        else None,
        "held_out": [
            {"step": e.step, "score": held_out_score(e)} for e in store.evaluations("held_out")
        ],
        "metrics": {name: points[-1].value for name, points in store.metrics().items()},
    }


def chosen(about: Manifest) -> list[tuple[str, Any]]:
    """Keys and values that were given on the command line."""
    keys = [key for key, origin in about.origins.items() if origin.startswith("command line")]
    return [(key, setting(about, key)) for key in keys]


def _filled(title: str, words: list[str], between: str = "  ") -> str:
    indent = " " * 10
    text = between.join(one_line(word) for word in words)
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
        shown = interval(score)
        # A loss or a preference is measured on given answers, so that no samples are stored.
        count = evaluation.summary.get("count", evaluation.samples)
        when = f"after step {evaluation.step}" if evaluation.step else "start"
        what, unit = MEASURES.get(evaluation.summary.get("measure", ""), ("held out ", "prompt"))
        say(f"{what} {when}: {shown} of {counted(count, unit)}")


def _print_agreement(store: RunStore) -> None:
    """Correlation and conflict of every two rewards in the newest step that has them."""
    last = {name: points[-1] for name, points in store.metrics().items() if points}
    compared = [last[name].step for name in last if name.startswith(AGREEMENT)]
    newest = max(compared, default=0)
    # A pair that newer steps could not compare has a last point in an older one: left out.
    values = {name: point.value for name, point in last.items() if point.step == newest}
    names = agreeing([name for name, value in values.items() if value is not None])
    if not names:
        return
    say()
    say(
        f"do the rewards agree? correlation / share of answers in opposite order, step {newest + 1}"
    )
    rows = [
        [name, *[""] * row, *(_agreement(values, name, other) for other in names[row + 1 :])]
        for row, name in enumerate(names[:-1])
    ]
    print_rows(("", *map(one_line, names[1:])), rows)


def _agreement(values: Mapping[str, float | None], first: str, second: str) -> str:
    # Rewards stand in a pair's name in the order of the config, here in that of the alphabet.
    corr, conflict = (
        values.get(f"{kind}{first}~{second}", values.get(f"{kind}{second}~{first}"))
        for kind in AGREEMENT
    )
    shown = "-" if corr is None else f"{corr:+.2f}"
    return f"{shown} / {'-' if conflict is None else f'{conflict:.0%}'}"


def _print_last_step(store: RunStore) -> None:
    step = store.last_step()
    if step is None:
        say("no step is stored yet.")
        return
    groups = by_group(store.rollouts(step) or [])
    if not groups:  # sft and its like store no answers
        return
    say()
    say(f"last step: {step + 1}   {useful_groups(groups)}".rstrip(), style="bold")
    for group in list(groups.values())[:GROUPS]:
        print_group(store, group)
        say()
    if len(groups) > GROUPS:
        say(f"... and {len(groups) - GROUPS} more groups", style="bright_black")
    first = next(iter(groups.values()))[0]
    say(f"look further: burnish show {store.folder} --step {step + 1}")
    say(f"              burnish show {store.folder} --sample {store.names([first])[0]}")
    say(f"              burnish show {store.folder} --worst 5")
