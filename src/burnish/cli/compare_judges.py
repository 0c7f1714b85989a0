"""`burnish compare A.jsonl B.jsonl`: two judges on the same items."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from burnish.bench.accuracy import name_of
from burnish.bench.compare import p_text
from burnish.bench.compare_judges import JudgeComparison, compare_judges
from burnish.bench.items import Judged
from burnish.bench.judging import read_results
from burnish.cli.bench_report import accuracy_record, narrow, table_of
from burnish.cli.console import emit_json, one_line, out, say
from burnish.errors import UserError, did_you_mean

SHOWN = 6
"""Items on which the judges differ that are listed."""


class Reference(NamedTuple):
    """A result file, and the judge that is meant where it holds several."""

    path: Path
    judge: str = ""


def are_results(a: str, b: str) -> bool:
    """Both words name result files rather than runs."""
    return all(_reference(word).path.is_file() for word in (a, b))


def compare_results(a: str, b: str, *, as_json: bool = False) -> int:
    """Compare two judges, item by item."""
    judged_a, judged_b = _read(a), _read(b)
    found = compare_judges(judged_a, judged_b, judged_a[0].judge, judged_b[0].judge)
    if as_json:
        emit_json(_record(found))
    else:
        print_comparison(found)
    return 0


def _reference(word: str) -> Reference:
    path, mark, judge = word.partition("#")
    return Reference(Path(path), judge if mark else "")


def _read(word: str) -> list[Judged]:
    path, judge = _reference(word)
    judged = read_results(path)
    known = sorted({one.judge for one in judged})
    if not judge and len(known) == 1:
        return judged
    if not judge:
        raise UserError(
            f"{path}: it holds {len(known)} judges; choose one as {path}#JUDGE: {', '.join(known)}."
        )
    if judge not in known:
        raise UserError(
            f"{path}: no judge '{judge}' in it; expected one of {', '.join(known)}."
            f"{did_you_mean(judge, known)}"
        )
    return [one for one in judged if one.judge == judge]


def print_comparison(found: JudgeComparison) -> None:
    """Both accuracies, the test, and items on which they differ."""
    titles = ("judge", "right of all, %", "decided", "valid", "ties", "failed")
    table = table_of(*titles, gives_way=0)
    sides = (("A", found.name_a, found.accuracy_a), ("B", found.name_b, found.accuracy_b))
    for letter, name, side in sides:
        cells = [f"{letter}  {name}", narrow(side.all), narrow(side.decided)]
        cells += [narrow(side.valid), str(side.ties), str(side.failed)]
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    out.print(table)
    if found.test.fourfold is not None:
        counts = found.test.fourfold
        say(
            f"right in  both {counts.both}, only A {counts.only_a}, only B {counts.only_b}, "
            f"neither {counts.neither}"
        )
    say(f"test      {found.test.method.value}, two-sided: {p_text(found.test.p_value)}")
    say(f"the same  verdict on {found.agreed:.0%} of the items")
    for letter, ids in (("A", found.only_a), ("B", found.only_b)):
        if ids:
            say(f"left out  {len(ids)} items that only {letter} was asked about", style="yellow")
    differing = [(x, y) for x, y in found.pairs if x.credit != y.credit]
    for x, y in differing[:SHOWN]:
        line = f"  {x.id}: label {name_of(x.best)}, A {name_of(x.choice)}, B {name_of(y.choice)}"
        out.print(Text(one_line(line)), no_wrap=True, overflow="ellipsis")
    say(found.verdict, style="bold")


def _record(found: JudgeComparison) -> dict[str, Any]:
    test = found.test._asdict()
    return {
        "a": {"judge": found.name_a, "accuracy": accuracy_record(found.accuracy_a)},
        "b": {"judge": found.name_b, "accuracy": accuracy_record(found.accuracy_b)},
        "test": {k: v._asdict() if hasattr(v, "_asdict") else v for k, v in test.items()},
        "agreed": found.agreed,
        "only_a": found.only_a,
        "only_b": found.only_b,
        "items": [
            {"id": x.id, "best": x.best, "a": x.choice, "b": y.choice} for x, y in found.pairs
        ],
        "verdict": found.verdict,
    }
