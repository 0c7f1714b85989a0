"""A comparison of two runs on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from burnish.bench import ABSENT, Comparison, HeldOutRun, Method, PairedTest, p_text
from burnish.cli.console import interval, number, one_line, out, say
from burnish.cli.rewards import value_style
from burnish.texts import safe
from burnish.view.curves import Point
from burnish.view.sparkline import scale_of, sparkline

CHANGED = 3
"""Prompts that are shown for the better, and as many for the worse."""
NAMED = 8
"""Ids that a line of left-out prompts names; `--json` has them all."""
ANSWER_LINES = 3
METHODS = {
    Method.MCNEMAR: "exact McNemar test",
    Method.SIGN_FLIP: "paired sign-flip permutation test",
}


class Side(NamedTuple):
    """One of the two runs, apart from its answers."""

    folder: Path
    recipe: str
    status: str
    steps: int
    curves: dict[str, list[Point]]


def print_comparison(
    found: Comparison,
    a: Side,
    b: Side,
    changes: Mapping[str, tuple[Any, Any]],
    notes: Sequence[str],
) -> None:
    """The runs, what differs, the test, the prompts that changed, the curves, the verdict."""
    _print_run("A", found.a, a)
    _print_run("B", found.b, b)
    _print_settings(changes)
    for note in notes:
        say(f"note      {one_line(note)}", style="yellow")
    say()
    if found.test is not None:
        _print_test(found.test)
    _print_left_out(found)
    _print_changed(found)
    _print_curves(a.curves, b.curves)
    say()
    say(found.verdict, style="bold")


def _print_run(letter: str, run: HeldOutRun, side: Side) -> None:
    recipe = f"recipe {side.recipe}, " if side.recipe else ""
    line = (
        f"{letter}  {run.name}: {recipe}{side.status}, {side.steps} steps, held out after "
        f"{run.step} steps"
    )
    say(one_line(line), style="bold")


def _print_settings(changes: Mapping[str, tuple[Any, Any]]) -> None:
    if not changes:
        say("the two configs are the same")
        return
    table = _table("differs", "A", "B")
    for key, (value_a, value_b) in changes.items():
        table.add_row(Text(one_line(key)), _value(value_a), _value(value_b))
    out.print(table)


def _value(value: Any) -> Text:
    text = "-" if value is ABSENT else one_line(str(value))
    return Text(text if len(text) <= 60 else text[:59] + "…")


def _print_test(test: PairedTest) -> None:
    table = _table("held out", "mean, 95 % interval")
    table.add_row("A", interval(test.mean_a))
    table.add_row("B", interval(test.mean_b))
    table.add_row("B - A", interval(test.difference, signed=True))
    out.print(table)
    if test.fourfold is not None:
        counts = test.fourfold
        say(
            f"right in  both {counts.both}, only A {counts.only_a}, only B {counts.only_b}, "
            f"neither {counts.neither}"
        )
    say(
        f"test      {METHODS[test.method]}, two-sided: {p_text(test.p_value)}, over "
        f"{test.difference.size} prompts"
    )


def _print_left_out(found: Comparison) -> None:
    for letter, ids in (("A", found.only_a), ("B", found.only_b)):
        if ids:
            say(f"left out  {len(ids)} that only {letter} answered: {_few(ids)}", style="yellow")
    if found.unmarked:
        named = [
            f"{item.id} ({', '.join(_reasons(item.why_a, item.why_b))})" for item in found.unmarked
        ]
        say(f"left out  {len(named)} without a mark: {_few(named)}", style="yellow")


def _reasons(why_a: str, why_b: str) -> list[str]:
    return [f"{letter} {why}" for letter, why in (("A", why_a), ("B", why_b)) if why]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more (--json names all)" if len(names) > NAMED else ""
    return ", ".join(one_line(name) for name in names[:NAMED]) + more


def _print_changed(found: Comparison) -> None:
    changed = found.most_changed(CHANGED)
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
    """The first lines that say something; a last one with dots where there are more."""
    lines = [safe(line).expandtabs(4) for line in answer.splitlines() if line.strip()]
    if not lines:
        return ["(blank)" if answer else "(empty)"]
    return lines[:ANSWER_LINES] + ["…"] * (len(lines) > ANSWER_LINES)


def _print_curves(curves_a: dict[str, list[Point]], curves_b: dict[str, list[Point]]) -> None:
    """One line a metric; both runs share its scale, in steps and in values."""
    names = [name for name in curves_a if curves_a[name] or curves_b[name]]
    if not names:
        return
    say()
    is_ascii = out.options.ascii_only
    values = {n: (_ends(curves_a[n]), _ends(curves_b[n])) for n in names}
    taken = max(map(len, names)) + max(len(t) for pair in values.values() for t in pair) * 2 + 8
    width = min(max((out.width - taken) // 2, 6), 32)
    table = _table("curves", "A first -> last", "", "B first -> last", "")
    for name in names:
        scale = scale_of(curves_a[name], curves_b[name])
        cells: list[Text] = [Text(one_line(name))]
        for curve, ends in zip((curves_a[name], curves_b[name]), values[name], strict=True):
            line = sparkline(curve, scale, width=width, ascii_only=is_ascii)
            cells += [Text(ends, no_wrap=True), Text(line, style="cyan", no_wrap=True)]
        table.add_row(*cells)
    out.print(table)


def _ends(points: Sequence[Point]) -> str:
    return f"{number(points[0][1])} -> {number(points[-1][1])}" if points else "-"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
