"""`burnish judge FILE`: score or compare the responses of a file, and say why."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import anyio

from burnish.bench.accuracy import accuracy, by_subset
from burnish.bench.items import Judged, oracle_share
from burnish.bench.judge_rows import read_items
from burnish.cli.bench_report import accuracy_record
from burnish.cli.console import emit_json, one_line, say
from burnish.cli.judge_options import JudgeFlags
from burnish.cli.judge_report import OUTSIDE, failed_alike, print_items, print_summary
from burnish.cli.judge_work import judge_all, spent_record, spent_text
from burnish.cli.judging import OpenJudge, check_needs, open_judge, title
from burnish.errors import JudgeError, UserError
from burnish.rewards.judges.forecast import Forecast


class Query(NamedTuple):
    """The flags of `burnish judge` besides those of the judge."""

    out: Path | None = None
    limit: int = 0
    show: tuple[str, ...] = ()
    explain: int = 5
    oracle: bool = False
    as_json: bool = False


def judge_file(path: Path, flags: JudgeFlags, query: Query) -> int:
    """Judge every row of a file; rows that are already in --out are not asked again."""
    # The judge sees the anchor as the other response, so its column is no secret.
    show = (*query.show, *([flags.anchor] if flags.anchor else []))
    items = read_items(path, show=show)
    items = items[: query.limit] if query.limit else items
    judge = open_judge(flags)
    check_needs(judge.scorer, items, oracle=query.oracle)
    if not query.as_json:
        say(title(judge), style="bold")
    start = perf_counter()
    ask = partial(judge_all, oracle=query.oracle, quiet=query.as_json)
    found, judged = anyio.run(ask, judge, items, query.out)
    seconds = perf_counter() - start
    if query.as_json:
        emit_json(_record(judge, found, judged, seconds))
    else:
        print_items(items, judged, query.explain)
        print_summary(judged)
        say(spent_text(judge, seconds))
        if query.out is not None:
            say(f"results   {one_line(str(query.out))}")
    return check_outside(judged)


def check_outside(judged: list[Judged]) -> int:
    """0, or an error where nothing at all could be asked."""
    if not judged:
        raise UserError("there was nothing to judge; expected at least one row.")
    if all(one.status in OUTSIDE for one in judged):
        which = f"all {len(judged)}" if failed_alike(judged) else "the first"
        raise JudgeError(f"no item got a verdict; {which} failed with: {judged[0].reason}")
    return 0


def _record(
    judge: OpenJudge, found: Forecast, judged: list[Judged], seconds: float
) -> dict[str, Any]:
    has_labels = any(one.best for one in judged)
    return {
        "judge": judge.name,
        "forecast": found._asdict(),
        "spent": spent_record(judge, seconds),
        "statuses": dict(Counter(one.status.value for one in judged)),
        "accuracy": accuracy_record(accuracy(judged)) if has_labels else None,
        "subsets": {n: accuracy_record(a) for n, a in by_subset(judged).each.items()}
        if has_labels
        else {},
        "oracle_share": oracle_share(judged),
        "items": judged,
    }
