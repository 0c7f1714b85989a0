"""`burnish bench NAME`: a published benchmark with a judge, a recorded judge, or a model's answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio

from burnish.bench.accuracy import accuracy, agreement, by_style, by_subset, flips
from burnish.bench.items import Item, Judged, choice_of, oracle_share
from burnish.bench.loaders import Benchmark, benchmark, load
from burnish.bench.point_scores import with_answers
from burnish.bench.points_judge import PointsJudge
from burnish.bench.recorded import read_recorded
from burnish.cli.bench_points import (
    Query,
    check_instructions,
    chosen_items,
    print_file,
    recorded_rubric,
    show_points,
    write_results,
)
from burnish.cli.bench_report import JudgeResult, judge_record, print_details, print_judges
from burnish.cli.console import emit_json, one_line, say
from burnish.cli.judge import check_outside
from burnish.cli.judge_options import JudgeFlags
from burnish.cli.judge_work import judge_all, spent_record, spent_text
from burnish.cli.judging import check_needs, default_path, open_judge, title
from burnish.errors import UserError
from burnish.records import Reward
from burnish.rewards.judges.benchmarks import ties_score

__all__ = ["Query", "run_bench"]


def run_bench(name: str, flags: JudgeFlags, query: Query) -> int:
    """Run a benchmark and print its scores."""
    bench = benchmark(name)
    if bench.kind == "rubric" and not flags.with_:
        return recorded_rubric(bench, query)
    items = chosen_items(load(name, query.data), query.limit)
    if query.recorded is not None:
        return _recorded(bench, items, query.recorded, query)
    if bench.kind == "instructions":
        return check_instructions(bench, items, flags, query)
    return _live(bench, items, flags, query)


def _recorded(bench: Benchmark, items: list[Item], recorded: Path, query: Query) -> int:
    """Replay recorded judges: one order, the other, and both."""
    judges = read_recorded(bench.name, recorded, items)
    people = {item.id: item.people for item in items if item.people}
    results = []
    for judge in judges.values():
        has_both = bool(judge.both)
        judged = judge.both if has_both else judge.forward
        results.append(
            JudgeResult(
                judge.name,
                accuracy(judged),
                by_subset(judged),
                judged,
                one_order=accuracy(judge.forward) if has_both else None,
                flips=flips(judge.forward, judge.backward) if has_both else None,
                agreement=agreement(judged, people) if people else None,
            )
        )
    if query.out is not None:
        write_results(query.out, [one for result in results for one in result.judged])
    if query.as_json:
        emit_json(_record(bench, len(items), results, query))
        return 0
    say(f"{bench.title}: {len(items)} items, {len(results)} recorded judges", style="bold")
    print_judges(results)
    for result in results if len(results) <= 3 else ():
        say()
        say(one_line(result.name), style="bold")
        print_details(result, has_file=query.out is not None)
    print_file(query.out)
    return 0


def _live(bench: Benchmark, items: list[Item], flags: JudgeFlags, query: Query) -> int:
    """Ask a judge about every item."""
    if query.answers is not None:
        items = with_answers(items, query.answers)
    if not flags.with_:
        raise UserError(
            f"benchmark '{bench.name}' needs a judge: --with direct --model smollm2, or --recorded "
            "FILE for verdicts that are on record."
        )
    unanswered = next((item for item in items if not item.responses), None)
    if unanswered is not None:
        raise UserError(
            f"{query.data}: item '{unanswered.id}' has no response to judge; give --answers FILE."
        )
    # HealthBench's own rule: each criterion met or not, points over positive points.
    judge = open_judge(
        flags, PointsJudge if bench.kind == "rubric" and flags.with_ == "point" else None
    )
    check_needs(judge.scorer, items, oracle=query.oracle)
    path = query.out or default_path(bench.name, judge, oracle=query.oracle)
    if not query.as_json:
        say(f"{bench.title}: {len(items)} items, {title(judge)}", style="bold")
    start = perf_counter()
    ask = partial(judge_all, bench=bench.name, oracle=query.oracle, quiet=query.as_json)
    _, judged = anyio.run(ask, judge, items, path)
    seconds = perf_counter() - start
    if bench.kind == "rubric":
        return show_points(bench, judge, judged, path, query, seconds)
    result = live_result(bench, judge.name, items, judged)
    if query.as_json:
        spent = spent_record(judge, seconds)
        record = _record(bench, len(items), [result], query)
        emit_json({**record, "spent": spent, "file": str(path)})
    else:
        if any(one.is_valid for one in judged):
            print_judges([result])
            print_details(result, has_file=True)
        else:
            say("no item has a verdict, so nothing is known about accuracy", style="yellow")
        say(spent_text(judge, seconds))
        print_file(path)
    return check_outside(judged)


def live_result(
    bench: Benchmark, name: str, items: list[Item], judged: list[Judged]
) -> JudgeResult:
    """Scores of a judge, with what its two orders said on their own where both were asked."""
    forward, backward = _one_order(judged, 0), _one_order(judged, 1)
    people = {item.id: item.people for item in items if item.people}
    ties = [one for one in judged if bench.name == "rewardbench2" and one.subset.lower() == "ties"]
    return JudgeResult(
        name,
        accuracy(judged),
        by_subset(judged),
        judged,
        one_order=accuracy(forward) if forward else None,
        flips=flips(forward, backward) if forward else None,
        agreement=agreement(judged, people) if people else None,
        styles=by_style(judged) if bench.name == "rmbench" else None,
        ties=ties_score([_ratings(one) for one in ties]) if ties else None,
        oracle=oracle_share(judged),
    )


def _one_order(judged: list[Judged], place: int) -> list[Judged]:
    """What one of two orders said of each pair; empty where a judge was asked in one only."""
    found = []
    for one in judged:
        parts = [_order_parts(reward) for reward in one.rewards]
        if len(parts) != 2 or not all(len(part) == 2 for part in parts):
            return []
        values = tuple(part[place].value for part in parts)
        found.append(
            Judged(
                one.id, one.judge, values=values, choice=choice_of(values), best=one.best,
                status=parts[0][place].status, subset=one.subset, group=one.group, info=one.info,
            )
        )  # fmt: skip
    return found


def _order_parts(reward: Reward) -> list[Reward]:
    """The parts `forward` and `backward` of a reward from both orders, wherever they stand."""
    named = {part.name: part for part in reward.parts}
    if {"forward", "backward"} <= named.keys():
        return [named["forward"], named["backward"]]
    for part in reward.parts:
        if found := _order_parts(part):
            return found
    return []


def _ratings(one: Judged) -> dict[str, Any]:
    """A row of the Ties subset: ratings of the right answers first."""
    right = [one.values[place] for place in one.best or ()]
    wrong = [v for place, v in enumerate(one.values) if place not in (one.best or ())]
    return {"id": one.id, "num_correct": len(right), "ratings": [*right, *wrong]}


def _record(
    bench: Benchmark, items: int, results: list[JudgeResult], query: Query
) -> dict[str, Any]:
    return {
        "bench": bench.name,
        "data": str(query.data),
        "items": items,
        "judges": [judge_record(result) for result in results],
    }
