"""Benchmark results on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
from burnish.cli.drawing import print_rows
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
    print_rows(titles, rows, gives_way=0)
    if line := star_line(_of_all(result.accuracy) for result in results):
        say(line)


def _of_all(found: Accuracy | None) -> Estimate | None:
    """The share of all; None where no item has a verdict, which says nothing of the judge."""
    return None if found is None or found.valid is None else found.all


def print_details(result: JudgeResult, *, has_file: bool) -> None:
    """One judge: subsets, difficulty, agreement, what it got wrong."""
    if len(result.subsets.each) > 1:
        rows = [
            (name or "(none)", str(one.items), narrow(_of_all(one)), *map(_short, one[1:3]))
            for name, one in result.subsets.each.items()
        ]
        print_rows(("subset", "items", "right of all, %", "decided", "valid"), rows)
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
        rows = ((name, str(one.size), str(one)) for name, one in found.subsets.items())
        print_rows(("subset", "items", "mean"), rows)


def print_instructions(found: dict[str, Obeyed]) -> None:
    """How each kind of instruction was obeyed."""
    rows = []
    for name, count in found.items():
        share = f" ({count.obeyed / count.decided:.0%})" if count.decided else ""
        rows.append((name, f"{count.obeyed} of {count.decided}{share}", str(count.undecided)))
    print_rows(("instruction", "obeyed", "undecided"), rows)


def _short(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{100 * estimate.value:.1f}"


def _kappa(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
