"""Benchmark results on the screen and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from burnish.bench.judge_accuracy import (
    Accuracy,
    Agreement,
    Styles,
    confusion,
    disagreements,
    name_of,
)
from burnish.bench.judge_results import JudgeResult, Obeyed, PointScore
from burnish.bench.statistics import Estimate
from burnish.cli.console import one_line, out, say
from burnish.cli.drawing import table_of
from burnish.intervals import ALL_EQUAL, FEW, TOO_FEW, interval_text

SHOWN = 5
"""Disagreements that are listed."""


def percent(estimate: Estimate | None) -> str:
    """`81.0 % [76.1, 85.1]`, and what speaks against the interval."""
    return "-" if estimate is None else _hundredfold(estimate, " %")


def narrow(estimate: Estimate | None) -> str:
    """`81.0 [76.1, 85.1]`, for columns whose head says that these are percentages.

    A star says what `star_line` spells out under the table.
    """
    if estimate is None:
        return "-"
    return _hundredfold(estimate).replace(f" ({TOO_FEW})", " *").replace(ALL_EQUAL, "all equal")


def _hundredfold(estimate: Estimate, unit: str = "") -> str:
    value, low, high, size = estimate
    return interval_text(100 * value, 100 * low, 100 * high, size, digits=1, unit=unit)


def star_line(estimates: Iterable[Estimate | None]) -> str:
    """What the star of `narrow` means; empty where no estimate has one."""
    has_star = any(one is not None and one.doubt == TOO_FEW for one in estimates)
    return f"* {TOO_FEW}: fewer than {FEW} items" if has_star else ""


def print_judges(results: Sequence[JudgeResult]) -> None:
    """All judges side by side."""
    has_orders = any(result.one_order for result in results)
    has_people = any(result.agreement for result in results)
    titles = ["judge", *(["one order"] if has_orders else []), "right of all, %"]
    titles += ["decided", "valid", "ties", "failed"]
    titles += ["flips"] if any(result.flips for result in results) else []
    titles += ["kappa"] if has_people else []
    rows = []
    for result in results:
        found = result.accuracy
        cells = [one_line(result.name)]
        cells += [_short(_of_all(result.one_order))] if has_orders else []
        cells += [narrow(_of_all(found)), _short(found.decided), _short(found.valid)]
        cells += [str(found.ties), str(found.failed)]
        if "flips" in titles:
            cells.append(_short(result.flips.flipped if result.flips else None))
        if has_people:
            cells.append(_kappa(result.agreement.kappa if result.agreement else None))
        rows.append(cells)
    table = _filled(titles, rows)
    # Measured as if there were room for all: a console's own measure ends at its width.
    wanted = out.measure(table, options=out.options.update_width(10_000)).maximum
    if (excess := wanted - out.width) > 0:
        room = max(len(cells[0]) for cells in rows) - excess
        for cells in rows:
            cells[0] = _broken(cells[0], room)
        table = _filled(titles, rows)
    out.print(table)
    if line := star_line(_of_all(result.accuracy) for result in results):
        say(line)


def _filled(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = table_of(*titles, gives_way=0)
    for cells in rows:
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _broken(name: str, room: int) -> str:
    """A name on lines of at most `room` characters, broken behind / and _ where it has them."""
    lines = [""]
    for piece in re.split(r"(?<=[/_])", name):
        if lines[-1] and len(lines[-1]) + len(piece) > room:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _of_all(found: Accuracy | None) -> Estimate | None:
    """The share of all; None where no item has a verdict, which says nothing of the judge."""
    return None if found is None or found.valid is None else found.all


def print_details(result: JudgeResult, *, has_file: bool) -> None:
    """One judge: subsets, difficulty, agreement, what it got wrong."""
    if len(result.subsets.each) > 1:
        table = table_of("subset", "items", "right of all, %", "decided", "valid")
        for name, found in result.subsets.each.items():
            cells = [name or "(none)", str(found.items), narrow(_of_all(found))]
            table.add_row(
                *(Text(one_line(c)) for c in [*cells, _short(found.decided), _short(found.valid)])
            )
        out.print(table)
        if line := star_line(_of_all(found) for found in result.subsets.each.values()):
            say(line)
        if result.subsets.macro is not None and result.agreement is None:
            say(f"mean of the subsets  {result.subsets.macro:.1%}")
    if result.styles is not None:
        print_styles(result.styles)
    if result.ties is not None:
        say(f"Ties                 {result.ties:.3f}")
    if result.published is not None:
        told = ", ".join(f"{k} {v:.1%}" for k, v in result.published.items() if v is not None)
        say(f"as published         {told}")
    if result.agreement is not None:
        print_agreement(result.agreement)
    counts = confusion(result.judged)
    if counts and all(len(one.values) == 2 for one in result.judged):
        told = ", ".join(f"{label} -> {said} {n}" for (label, said), n in counts.items())
        say(f"label -> verdict     {told}")
    if result.oracle:
        say(f"oracle evidence      in {result.oracle:.0%} of the verdicts", style="yellow")
    wrong = disagreements(result.judged)
    for one in wrong[:SHOWN]:
        why = f"  {one_line(one.reason)}" if one.reason else ""
        line = f"  {one.id}: label {name_of(one.best)}, said {name_of(one.choice)}{why}"
        out.print(Text(one_line(line)), no_wrap=True, overflow="ellipsis")
    if len(wrong) > SHOWN:
        where = "the result file has all" if has_file else "--out FILE keeps all"
        say(f"  and {len(wrong) - SHOWN} more; {where}, each with its reasons")


def print_styles(styles: Styles) -> None:
    """RM-Bench's three difficulties."""
    levels = (("easy", styles.easy), ("normal", styles.normal), ("hard", styles.hard))
    told = ", ".join(f"{name} {value:.1%}" for name, value in levels if value is not None)
    mean = "" if styles.mean is None else f"; mean {styles.mean:.1%}"
    say(f"difficulty           {told}{mean}")


def print_agreement(found: Agreement) -> None:
    """The judge and people."""
    each = ", ".join(_kappa(value) for value in found.with_each)
    say(f"with the majority    {percent(found.percent)}, Cohen's kappa {_kappa(found.kappa)}")
    say(f"with each person     Cohen's kappa {each}")
    say(f"people among them    Fleiss' kappa {_kappa(found.people)}")


def print_points(title: str, found: PointScore) -> None:
    """A benchmark of single responses."""
    score = "no score" if found.score is None else str(found.score)
    failed = f"; {found.failed} without a value" if found.failed else ""
    say(f"{title}: {score} over {found.items} items{failed}", style="bold")
    if len(found.subsets) > 1:
        table = table_of("subset", "items", "mean")
        for name, estimate in found.subsets.items():
            table.add_row(Text(one_line(name)), str(estimate.size), str(estimate))
        out.print(table)


def print_instructions(found: dict[str, Obeyed]) -> None:
    """How each kind of instruction was obeyed."""
    table = table_of("instruction", "obeyed", "undecided")
    for name, count in found.items():
        share = f" ({count.obeyed / count.decided:.0%})" if count.decided else ""
        table.add_row(
            Text(one_line(name)), f"{count.obeyed} of {count.decided}{share}", str(count.undecided)
        )
    out.print(table)


def _short(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{100 * estimate.value:.1f}"


def _kappa(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
