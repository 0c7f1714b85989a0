"""Benchmarks of single responses: HealthBench's marks and IFEval's instructions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import anyio

from burnish.bench.items import Item, Judged, responses_of
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
from burnish.cli.judge_work import spent_record, spent_text
from burnish.cli.judging import JudgeFlags, OpenJudge
from burnish.errors import UserError
from burnish.lm.base import Sampling
from burnish.lm.named import open_lm
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.scorer import Scorer, gather
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
    elif flags.model:
        name = flags.model
        items = anyio.run(partial(_answer, items, flags))
    else:
        raise UserError(
            f"benchmark '{bench.name}' checks answers: give --answers FILE (key or prompt, and "
            "response), or --model MODEL to have them written."
        )
    scorer = Instructions(InstructionsConfig())
    start = perf_counter()
    judged = anyio.run(partial(_check, scorer, items, name, query.out))
    seconds = perf_counter() - start
    found, kinds = point_score(judged), by_instruction(judged)
    if query.as_json:
        kinds_record = {key: value._asdict() for key, value in kinds.items()}
        points = points_record(found)
        emit_json({"bench": bench.name, "model": name, **points, "instructions": kinds_record})
        return 0
    print_points(f"{bench.title}, all instructions of a prompt obeyed by {one_line(name)}", found)
    obeyed, decided = (sum(count[k] for count in kinds.values()) for k in (0, 1))
    share = f" ({obeyed / decided:.1%})" if decided else ""
    say(f"single instructions: {obeyed} of {decided} obeyed{share}, checked in {seconds:.1f} s")
    print_instructions(kinds)
    print_file(query.out)
    return 0


async def _answer(items: list[Item], flags: JudgeFlags) -> list[Item]:
    lm = open_lm(flags.model)
    sampling = Sampling(temperature=flags.temperature, max_tokens=flags.max_tokens)

    async def one(item: Item) -> Item:
        (completion,) = await lm.sample(item.messages, sampling)
        return replace(item, responses=responses_of(item.id, [completion.text]))

    return await gather([partial(one, item) for item in items], limit=flags.concurrency)


async def _check(scorer: Scorer, items: list[Item], name: str, out: Path | None) -> list[Judged]:
    if out is None:
        return await judge_items(scorer, items, judge=name, bench="ifeval")
    with ResultFile(out) as file:
        return await judge_items(scorer, items, judge=name, bench="ifeval", file=file)


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
    """A result file of what was replayed; an older one is replaced only by the same kind."""
    with ResultFile(path) as file:
        known = {(one.judge, one.id) for one in file.records}
        for one in judged:
            if (one.judge, one.id) not in known:
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
