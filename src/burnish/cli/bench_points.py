"""Benchmarks of single responses: HealthBench's marks and IFEval's instructions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import anyio

from burnish.bench.answering import Answering, blanks
from burnish.bench.items import Item, Judged
from burnish.bench.judging import ResultFile, judge_items
from burnish.bench.loaders import Benchmark, load_healthbench_marks
from burnish.bench.point_scores import (
    by_instruction,
    judged_marks,
    largest_deviation,
    point_score,
    with_answers,
)
from burnish.cli.bench_report import points_record, print_instructions, print_points
from burnish.cli.console import emit_json, one_line, say
from burnish.cli.judge import check_outside
from burnish.cli.judge_options import JudgeFlags
from burnish.cli.judge_work import judge_all, spent_record, spent_text
from burnish.cli.judging import OpenJudge, default_path, open_judge
from burnish.errors import UserError
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.judges.asking import JudgeModel
from burnish.seeds import derive


class Query(NamedTuple):
    """The flags of `burnish bench` besides those of the judge."""

    data: Path
    recorded: Path | None = None
    answers: Path | None = None
    limit: int = 0
    out: Path | None = None
    oracle: bool = False
    as_json: bool = False


def recorded_rubric(bench: Benchmark, query: Query) -> int:
    """The marks stand beside the rubrics, in the data's own file or in --recorded."""
    marked = load_healthbench_marks(query.recorded or query.data)
    kept = {item.id for item in chosen_items([one.item for one in marked], query.limit)}
    judged = judged_marks([one for one in marked if one.item.id in kept], "recorded")
    found, deviation = point_score(judged), largest_deviation(judged)
    if query.out is not None:
        write_results(query.out, judged)
    if query.as_json:
        record = {"bench": bench.name, **points_record(found), "largest_deviation": deviation}
        emit_json(record)
        return 0
    print_points(f"{bench.title}, recorded marks", found)
    if deviation is not None:
        say(f"recomputed scores differ from those on record by at most {deviation:.1e}")
    print_file(query.out)
    return 0


def check_instructions(bench: Benchmark, items: list[Item], flags: JudgeFlags, query: Query) -> int:
    """Check a model's answers, or those of a file, by rule."""
    if query.answers is not None:
        items, name = with_answers(items, query.answers), query.answers.stem
        judged = anyio.run(_check, items, name, query.out)
        _show_instructions(bench, name, judged, query.out, query)
        return 0
    if not flags.model and flags.replay is None:
        raise UserError(
            f"benchmark '{bench.name}' checks answers: give --answers FILE (key or prompt, and "
            "response), or --model MODEL to have them written."
        )
    judge = open_judge(flags._replace(with_=""), _answering)
    path = query.out or default_path(bench.name, judge)
    if not query.as_json:
        say(f"{bench.title}: {len(items)} prompts for {one_line(judge.name)}", style="bold")
    start = perf_counter()
    ask = partial(judge_all, bench=bench.name, quiet=query.as_json)
    _, judged = anyio.run(ask, judge, blanks(items), path)
    seconds = perf_counter() - start
    spent = {"spent": spent_record(judge, seconds), "file": str(path)}
    _show_instructions(bench, judge.name, judged, path, query, spent)
    if not query.as_json:
        say(spent_text(judge, seconds))
    return check_outside(judged)


def _answering(model: JudgeModel) -> Answering:
    return Answering(model, Instructions(InstructionsConfig()))


async def _check(items: list[Item], name: str, out: Path | None) -> list[Judged]:
    scorer = Instructions(InstructionsConfig())
    if out is None:
        return await judge_items(scorer, items, judge=name, bench="ifeval")
    with ResultFile(out) as file:
        return await judge_items(scorer, items, judge=name, bench="ifeval", file=file)


def _show_instructions(
    bench: Benchmark,
    name: str,
    judged: list[Judged],
    path: Path | None,
    query: Query,
    more: dict[str, Any] | None = None,
) -> None:
    found, kinds = point_score(judged), by_instruction(judged)
    if query.as_json:
        each = {key: value._asdict() for key, value in kinds.items()}
        record = {"bench": bench.name, "model": name, **points_record(found), "instructions": each}
        emit_json({**record, **(more or {})})
        return
    print_points(f"{bench.title}, all instructions of a prompt obeyed by {one_line(name)}", found)
    obeyed, decided = (sum(count[k] for count in kinds.values()) for k in (0, 1))
    share = f" ({obeyed / decided:.1%})" if decided else ""
    say(f"single instructions: {obeyed} of {decided} obeyed{share}")
    print_instructions(kinds)
    print_file(path)


def show_points(
    bench: Benchmark,
    judge: OpenJudge,
    judged: list[Judged],
    path: Path,
    query: Query,
    seconds: float,
) -> int:
    found = point_score(judged)
    if query.as_json:
        spent = spent_record(judge, seconds)
        emit_json({"bench": bench.name, **points_record(found), "spent": spent, "file": str(path)})
    else:
        print_points(f"{bench.title}, {judge.name}", found)
        say(spent_text(judge, seconds))
        print_file(path)
    return check_outside(judged)


def write_results(path: Path, judged: list[Judged]) -> None:
    """Add what was replayed to a result file, where its last line for the item says otherwise."""
    with ResultFile(path) as file:
        last = {(one.judge, one.id): one for one in file.records}
        for one in judged:
            if last.get((one.judge, one.id)) != one:
                file.append(one)


def print_file(path: Path | None) -> None:
    if path is not None:
        say(f"results   {one_line(str(path))}")


def chosen_items(items: list[Item], limit: int) -> list[Item]:
    """A sample by id rather than the head of the file; items of one group stay together."""
    if not limit or limit >= len(items):
        return items
    keys = sorted({item.group or item.id for item in items}, key=lambda k: derive("limit", k))
    kept: set[str] = set()
    size = 0
    counts: dict[str, int] = {}
    for item in items:
        counts[item.group or item.id] = counts.get(item.group or item.id, 0) + 1
    for key in keys:
        if size >= limit:
            break
        kept.add(key)
        size += counts[key]
    return [item for item in items if (item.group or item.id) in kept]
