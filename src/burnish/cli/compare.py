"""`burnish compare`: two runs side by side, many runs in a table, or two judges on the same items.

Runs are only read, so any of them may still be going on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text
from typer import Argument, Option

from burnish.arguments import as_word
from burnish.cli.completion import complete_runs
from burnish.cli.console import count, emit_json, interval, number, one_line, out, say
from burnish.cli.drawing import print_rows, value_style
from burnish.cli.shared_options import RUNS, AsJson, RunsFolder
from burnish.errors import UserError
from burnish.store import RunStore, find_run, manifest
from burnish.store.manifest import find_sweep
from burnish.texts import counted, duration, safe

if TYPE_CHECKING:
    from burnish.bench import Comparison, HeldOutRun, PairedTest
    from burnish.bench.comparison import JudgeComparison, RunComparison, RunSide
    from burnish.bench.items import Judged
    from burnish.bench.run_tables import RunTable
    from burnish.view.curves import Point

CHANGED = 3
"""Prompts that are shown for the better, and as many for the worse."""
NAMED = 8
"""Ids that a line of left-out prompts names; `--json` has them all."""
ANSWER_LINES = 3
DIFFERING = 6
"""Items on which the judges differ that are listed."""
METHODS = {"mcnemar": "exact McNemar test", "sign_flip": "paired sign-flip permutation test"}


def compare(
    words: Annotated[
        list[str],
        Argument(
            metavar="RUN...",
            help="Runs (a name, the beginning of it, or a folder), sweeps, or patterns such as "
            "'tiny-*'.",
            autocompletion=complete_runs,
        ),
    ],
    step: Annotated[
        int | None,
        Option(min=0, metavar="N", help="Held out after N steps; else the last of each."),
    ] = None,
    metric: Annotated[
        list[str] | None, Option(metavar="NAME", help="A curve to show; may be repeated.")
    ] = None,
    baseline: Annotated[
        str,
        Option(
            metavar="RUN",
            help="The group that the others are compared with: its label or a run; else the first.",
        ),
    ] = "",
    folder: RunsFolder = RUNS,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, Option("--csv", help="The table of many runs as CSV, one line a group.")
    ] = False,
) -> int:
    """Compare runs: a paired test of two, or a table of many with intervals over seeds.

    Two runs: prompts are matched by id, and runs with other held-out tasks or
    rewards are refused. More runs, a sweep or a pattern: runs that differ only
    in their seed are one group. Two result files of burnish judge or bench are
    compared item by item. Runs are only read, so any may still be going on.

    \b
      burnish compare grpo-1f dapo-7c
      burnish compare grpo-1f dapo-7c --metric length/mean --metric loss/kl
      burnish compare tiny-sweep-5d0c21aa       a sweep, by its name
      burnish compare 'grpo-*' 'dapo-*' --baseline grpo-1f --csv
      burnish compare direct.jsonl openrs.jsonl
    """
    if len(words) == 2 and are_results(*words):
        return compare_results(*words, as_json=as_json)
    folders, keys = chosen_runs(folder, words)
    if len(folders) == 2 and keys is None and not (baseline or as_csv):
        from burnish.bench.comparison import compare_runs

        with (
            RunStore.open(folders[0], read_only=True) as store_a,
            RunStore.open(folders[1], read_only=True) as store_b,
        ):
            found = compare_runs(store_a, store_b, step=step, metrics=metric or ())
        if as_json:
            emit_json(found.record())
        else:
            print_comparison(found)
        return 0
    return print_many(
        folders, keys or (), step, metric or (), baseline, as_json=as_json, as_csv=as_csv
    )


def chosen_runs(folder: Path, words: Sequence[str]) -> tuple[list[Path], list[str] | None]:
    """The run folders that the words name, and what the sweeps among them vary; None without one."""
    from burnish.bench.run_tables import runs_of_sweep

    named: dict[Path, str] = {}
    found: dict[Path, Path] = {}
    keys: list[str] | None = None
    for word in words:
        sweep = find_sweep(folder, word)
        if sweep is not None:
            several, varied = runs_of_sweep(sweep)
            keys = [*(keys or []), *varied]
        elif any(mark in word for mark in "*?["):
            several = _matching(folder, word)
        else:
            several = [find_run(folder, word)]
            place = several[0].resolve()
            if place in named:
                raise UserError(
                    f"'{named[place]}' and '{word}' are the same run, {found[place]}; expected "
                    f"different ones. Its own curves and scores: burnish show {found[place]}"
                )
            named[place] = word
        for run in several:
            found.setdefault(run.resolve(), run)
    if len(found) < 2:
        only = f"only run '{next(iter(found)).name}'" if found else "no run"
        raise UserError(
            f"{' '.join(words)}: {only}; expected at least two runs, a sweep or a pattern such as "
            "'tiny-*'. See: burnish runs"
        )
    return list(found.values()), keys


def _matching(folder: Path, pattern: str) -> list[Path]:
    places = [Path(place) for place in sorted(glob(pattern))]
    places += sorted(folder / name for name in glob(pattern, root_dir=folder))
    runs = [place for place in places if (place / manifest.FILE).is_file()]
    if not runs:
        raise UserError(f"no run fits '{pattern}' in {folder}. See: burnish runs")
    return runs


# --- many runs


def print_many(
    folders: Sequence[Path],
    keys: Sequence[str],
    step: int | None,
    metrics: Sequence[str],
    baseline: str,
    *,
    as_json: bool,
    as_csv: bool,
) -> int:
    """Compare groups of runs over their seeds."""
    from burnish.bench.run_tables import run_table

    with ExitStack() as stack:
        runs = [stack.enter_context(RunStore.open(f, read_only=True)) for f in folders]
        found = run_table(runs, step=step, metrics=metrics, baseline=baseline, keys=keys)
    if as_json:
        emit_json(found.record())
    elif as_csv:
        out.file.write(found.csv())
    else:
        print_table(found)
    return 0


def print_table(found: RunTable) -> None:
    """One line a group, the settings that differ, and what to know."""
    from burnish.bench.run_tables import LAST_EVALUATION

    say(found.title, style="bold")
    metrics = list(found.groups[0].metrics)
    has_cost = any(group.usd is not None for group in found.groups)
    columns = found.columns()
    for name in metrics:
        means = [group.metrics[name] for group in found.groups]
        columns[name] = ["-" if mean is None else mean.text() for mean in means]
    columns["time"] = [(g.seconds and duration(g.seconds.value)) or "-" for g in found.groups]
    columns["tokens"] = [(g.tokens and count(g.tokens.value)) or "-" for g in found.groups]
    if has_cost:
        columns["cost"] = ["-" if g.usd is None else f"${g.usd.value:.2f}" for g in found.groups]
    print_rows([*columns], zip(*columns.values(), strict=True), None)
    if found.differs:
        say()
        rows = ([Text(key), *map(_value, values)] for key, values in found.differs.items())
        print_rows(("differs", *(one.label for one in found.groups)), rows, None)
    for note in found.notes:
        if note.startswith(LAST_EVALUATION):
            note += "; --step N compares all after N"
        say(f"note      {one_line(note)}", style="yellow")


# --- two runs


def print_comparison(both: RunComparison) -> None:
    """The runs, what differs, the test, the prompts that changed, the curves, the verdict."""
    found = both.found
    _print_run("A", found.a, both.a)
    _print_run("B", found.b, both.b)
    if both.changes:
        rows = ((key, _value(a), _value(b)) for key, (a, b) in both.changes.items())
        print_rows(("differs", "A", "B"), rows)
    else:
        say("the two configs are the same")
    for note in both.notes:
        say(f"note      {one_line(note)}", style="yellow")
    say()
    if found.test is not None:
        _print_test(found.test)
    for letter, ids in (("A", found.only_a), ("B", found.only_b)):
        if ids:
            say(f"left out  {len(ids)} that only {letter} answered: {_few(ids)}", style="yellow")
    if found.unmarked:
        named = []
        for item in found.unmarked:
            whys = {"A": item.why_a, "B": item.why_b}
            told = ", ".join(f"{letter} {why}" for letter, why in whys.items() if why)
            named.append(f"{item.id} ({told})")
        say(f"left out  {len(named)} without a mark: {_few(named)}", style="yellow")
    _print_changed(found)
    _print_curves(both.a.curves, both.b.curves)
    say()
    say(found.verdict, style="bold")


def _print_run(letter: str, run: HeldOutRun, side: RunSide) -> None:
    recipe = f"recipe {side.recipe}, " if side.recipe else ""
    line = (
        f"{letter}  {run.name}: {recipe}{side.status}, {counted(side.steps, 'step')}, held out after "
        f"{counted(run.step, 'step')}"
    )
    say(one_line(line), style="bold")


def _value(value: Any) -> Text:
    text = "-" if value is None else one_line(str(value))
    return Text(text if len(text) <= 60 else text[:59] + "…")


def _print_test(test: PairedTest) -> None:
    from burnish.bench.comparison import p_text

    means = [("A", interval(test.mean_a)), ("B", interval(test.mean_b))]
    means.append(("B - A", interval(test.difference, signed=True)))
    print_rows(("held out", "mean, 95 % interval"), means)
    _print_fourfold(test)
    say(
        f"test      {METHODS[test.method]}, two-sided: {p_text(test.p_value)}, over "
        f"{test.difference.size} prompts"
    )


def _print_fourfold(test: PairedTest) -> None:
    if test.fourfold is not None:
        counts = test.fourfold
        say(
            f"right in  both {counts.both}, only A {counts.only_a}, only B {counts.only_b}, "
            f"neither {counts.neither}"
        )


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more (--json names all)" if len(names) > NAMED else ""
    return ", ".join(one_line(name) for name in names[:NAMED]) + more


def _print_changed(found: Comparison) -> None:
    changed = [pair for pair in found.most_changed(CHANGED) if pair.prompt]
    if not changed:
        return
    say()
    total = sum(pair.change != 0 for pair in found.pairs)
    say(f"prompts that changed most, of {total} that changed", style="bold")
    for pair in changed:
        head = Text(one_line(pair.id), style="bold")
        marks = f"  {number(pair.mark_a)} -> {number(pair.mark_b)}  "
        head.append(marks, style=value_style(pair.change))
        head.append(one_line(pair.prompt), style="cyan")
        out.print(head, no_wrap=True, overflow="ellipsis")
        for letter, answer in (("A", pair.answer_a), ("B", pair.answer_b)):
            for index, line in enumerate(_first_lines(answer)):
                mark = letter if index == 0 else " "
                out.print(Text(f"  {mark}  {line}"), no_wrap=True, overflow="ellipsis")


def _first_lines(answer: str) -> list[str]:
    lines = [safe(line).expandtabs(4) for line in answer.splitlines() if line.strip()]
    if not lines:
        return ["(blank)" if answer else "(empty)"]
    return lines[:ANSWER_LINES] + ["…"] * (len(lines) > ANSWER_LINES)


def _print_curves(
    curves_a: Mapping[str, Sequence[Point]], curves_b: Mapping[str, Sequence[Point]]
) -> None:
    """One line a metric; both runs share its scale, in steps and in values."""
    from burnish.view.curves import scale_of, sparkline

    names = [name for name in curves_a if curves_a[name] or curves_b[name]]
    if not names:
        return
    say()
    is_ascii = out.options.ascii_only
    values = {n: (_ends(curves_a[n]), _ends(curves_b[n])) for n in names}
    taken = max(map(len, names)) + max(len(t) for pair in values.values() for t in pair) * 2 + 8
    width = min(max((out.width - taken) // 2, 6), 32)
    rows = []
    for name in names:
        scale = scale_of(curves_a[name], curves_b[name])
        cells: list[str | Text] = [name]
        for curve, ends in zip((curves_a[name], curves_b[name]), values[name], strict=True):
            line = sparkline(curve, scale, width=width, ascii_only=is_ascii)
            cells += [ends, Text(line, style="cyan")]
        rows.append(cells)
    print_rows(("curves", "A first -> last", "", "B first -> last", ""), rows)


def _ends(points: Sequence[Point]) -> str:
    return f"{number(points[0][1])} -> {number(points[-1][1])}" if points else "-"


# --- two judges


def are_results(a: str, b: str) -> bool:
    """Both words name result files rather than runs."""
    return all(Path(word.partition("#")[0]).is_file() for word in (a, b))


def compare_results(a: str, b: str, *, as_json: bool) -> int:
    """Compare two judges, item by item."""
    from burnish.bench.comparison import compare_judges
    from burnish.bench.statistics import as_record

    judged_a, judged_b = _read_results(a), _read_results(b)
    found = compare_judges(judged_a, judged_b, judged_a[0].judge, judged_b[0].judge)
    if as_json:
        emit_json({
            "a": {"judge": found.name_a, "accuracy": as_record(found.accuracy_a)},
            "b": {"judge": found.name_b, "accuracy": as_record(found.accuracy_b)},
            "test": as_record(found.test),
            "agreed": found.agreed,
            "only_a": found.only_a,
            "only_b": found.only_b,
            "items": [
                {"id": x.id, "best": x.best, "a": x.choice, "b": y.choice} for x, y in found.pairs
            ],
            "verdict": found.verdict,
        })  # fmt: skip
    else:
        print_judges(found)
    return 0


def _read_results(word: str) -> list[Judged]:
    from burnish.bench.judging import read_results

    path, _, judge = word.partition("#")
    judged = read_results(Path(path))
    known = sorted({one.judge for one in judged})
    if not judge and len(known) == 1:
        return judged
    as_word(f"{path}#JUDGE", judge, known)
    return [one for one in judged if one.judge == judge]


def print_judges(found: JudgeComparison) -> None:
    """Both accuracies, the test, and items on which they differ."""
    from burnish.bench.comparison import p_text
    from burnish.bench.judge_accuracy import name_of
    from burnish.cli.bench_report import narrow, star_line

    sides = (("A", found.name_a, found.accuracy_a), ("B", found.name_b, found.accuracy_b))
    rows = [
        [f"{letter}  {name}", *map(narrow, side[:3]), str(side.ties), str(side.failed)]
        for letter, name, side in sides
    ]
    print_rows(("judge", "right of all, %", "decided", "valid", "ties", "failed"), rows, 0)
    if line := star_line(one for _, _, side in sides for one in side[:3]):
        say(line)
    _print_fourfold(found.test)
    say(f"test      {found.test.method.value}, two-sided: {p_text(found.test.p_value)}")
    say(f"the same  verdict on {found.agreed:.0%} of the items")
    for letter, ids in (("A", found.only_a), ("B", found.only_b)):
        if ids:
            say(f"left out  {len(ids)} items that only {letter} was asked about", style="yellow")
    differing = [(x, y) for x, y in found.pairs if x.credit != y.credit]
    for x, y in differing[:DIFFERING]:
        line = f"  {x.id}: label {name_of(x.best)}, A {name_of(x.choice)}, B {name_of(y.choice)}"
        out.print(Text(one_line(line)), no_wrap=True, overflow="ellipsis")
    say(found.verdict, style="bold")
