"""`burnish bench NAME`: a published benchmark with a judge, a recorded judge, or a model's answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from burnish.cli.console import emit_json, one_line, say
from burnish.cli.judge import check_outside
from burnish.cli.shared_options import AsJson, JudgeFlags, Limit, Oracle, takes_judge
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.bench.evaluation import Answering
    from burnish.bench.items import Item, Judged
    from burnish.bench.judge_results import JudgeResult
    from burnish.bench.loaders import Benchmark
    from burnish.bench.open_judge import OpenJudge
    from burnish.rewards.judges.judge_model import JudgeModel


Name = Annotated[
    str,
    Argument(
        metavar="NAME",
        help="judgebench, rmbench, llmbar, pandalm, alpaca_pairs, lamp, rewardbench2, ppe, "
        "vl_rewardbench, multimodal_rewardbench, mm_rlhf, mathvision, "
        "healthbench, ifeval, atp, bigbench_mistake, mr_gsm8k, processbench, faithbench, wice, "
        "halueval or rgb.",
    ),
]
Data = Annotated[
    Path | None, Option(metavar="PATH", help="The published file or folder; of atp a set ships.")
]
Recorded = Annotated[
    Path | None, Option(metavar="FILE", help="Verdicts on record instead of a judge.")
]
Answers = Annotated[
    Path | None, Option(metavar="FILE", help="Responses, for healthbench, ifeval and atp.")
]
Results = Annotated[
    Path | None,
    Option(metavar="FILE", help="Results; under results/ by default, of --recorded none."),
]
Pairs = Annotated[
    Path | None, Option(metavar="FILE", help="Write the pairs to train on; no judge.")
]
Solutions = Annotated[
    Path | None, Option(metavar="FILE", help="Write labelled solutions to train on; no judge.")
]


@takes_judge(without=("anchor",), with_="")
def bench(
    name: Name,
    flags: JudgeFlags,
    data: Data = None,
    recorded: Recorded = None,
    answers: Answers = None,
    limit: Limit = 0,
    out: Results = None,
    pairs: Pairs = None,
    solutions: Solutions = None,
    oracle: Oracle = False,
    as_json: AsJson = False,
) -> int:
    """Measure a judge on a published benchmark, over all, decided and valid items.

    Data is read from where you have it; only the guides of atp are shipped.
    An unknown name lists all of them. The same command goes on where it was
    stopped. Two results are compared with burnish compare.

    \b
      burnish bench llmbar --data test.parquet --with direct --model smollm2 --limit 50
      burnish bench llmbar --data test.parquet --recorded judges.parquet
      burnish bench ifeval --data test.parquet --model smollm2 --limit 20
      burnish bench alpaca_pairs --data train.parquet --pairs pairs.jsonl
      burnish bench bigbench_mistake --data FILE --solutions solutions.jsonl
      burnish bench atp --model smollm2 --limit 20
    """
    from burnish.bench.judge_results import sample_items, with_answers
    from burnish.bench.loaders import benchmark, load

    chosen = benchmark(name)
    if data is None:
        data = _shipped(chosen)
    if chosen.kind == "rubric" and not flags.with_:
        return _recorded_marks(chosen, recorded or data, limit, out, as_json=as_json)
    items = sample_items(load(name, data), limit)
    if solutions is not None or chosen.kind == "steps":
        return _write_solutions(chosen, items, solutions, as_json=as_json)
    if pairs is not None:
        return _write_pairs(chosen, items, pairs, as_json=as_json)
    if recorded is not None:
        return _recorded_judges(chosen, items, data, recorded, out, as_json=as_json)
    if answers is not None:
        items = with_answers(items, answers)
    if chosen.kind == "plans":
        from burnish.cli.bench_plans import run_plans

        read = (None if data == _shipped(chosen) else data, answers)
        return run_plans(chosen, items, flags, read, out, oracle=oracle, as_json=as_json)
    if chosen.kind != "instructions":
        read = (data, answers)
        return _live_judge(chosen, items, flags, read, out, oracle=oracle, as_json=as_json)
    if answers is not None:
        return _checked_answers(chosen, items, answers.stem, out, as_json=as_json)
    return _live_answers(chosen, items, flags, data, out, as_json=as_json)


def _shipped(bench: Benchmark) -> Path:
    if bench.kind != "plans":
        raise UserError(
            f"benchmark '{bench.name}' needs --data PATH: its published file or folder, none ships."
        )
    from burnish.bench.loaders.plans import SHIPPED

    return SHIPPED


def _write_pairs(bench: Benchmark, items: list[Item], out: Path, *, as_json: bool) -> int:
    from burnish.bench.items import preference_rows
    from burnish.tasks.rows import write_jsonl

    if bench.kind != "choice":
        raise UserError(
            f"benchmark '{bench.name}' says how good one response is; --pairs expected one in which "
            "responses are compared, such as llmbar"
        )
    rows = preference_rows(items)
    ties = sum(row["tie"] for row in rows)
    write_jsonl(rows, out)
    if as_json:
        emit_json({"pairs": len(rows), "ties": ties, "items": len(items), "file": str(out)})
        return 0
    say(f"wrote {out}: {len(rows)} pairs of {len(items)} items, {ties} of them ties")
    say(
        'task = { kind = "file", messages = "prompt", fields = { chosen = "chosen", rejected = '
        '"rejected", tie = "tie", meta = "meta" } }'
    )
    return 0


def _write_solutions(
    bench: Benchmark, items: list[Item], out: Path | None, *, as_json: bool
) -> int:
    from burnish.bench.items import solution_rows
    from burnish.tasks.rows import write_jsonl

    if bench.kind != "steps":
        raise UserError(
            f"benchmark '{bench.name}' has no labels of steps; --solutions expected one that has, "
            "such as bigbench_mistake"
        )
    if out is None:
        raise UserError(
            f"benchmark '{bench.name}' labels the steps of solutions, which no judge here is asked "
            "for; give --solutions FILE to write them as data for train.kind = "
            "'process_reward_model'"
        )
    rows = solution_rows(items)
    wrong = sum(row["first_wrong"] is not None for row in rows)
    steps = sum(len(row["steps"]) for row in rows)
    write_jsonl(rows, out)
    if as_json:
        emit_json({"solutions": len(rows), "wrong": wrong, "steps": steps, "file": str(out)})
        return 0
    say(f"wrote {out}: {len(rows)} solutions of {steps} steps, {wrong} of them with a wrong step")
    say(
        'task = { kind = "file", messages = "prompt", fields = { steps = "steps", labels = '
        '"labels", meta = "meta" } }'
    )
    return 0


# --- judges


def _recorded_judges(
    bench: Benchmark,
    items: list[Item],
    data: Path,
    recorded: Path,
    out: Path | None,
    *,
    as_json: bool,
) -> int:
    from burnish.bench.judge_results import recorded_results, write_results
    from burnish.cli.bench_report import print_details, print_judges

    results = recorded_results(bench.name, recorded, items)
    if out is not None:
        write_results(out, [one for result in results for one in result.judged])
    if as_json:
        emit_json(_record(bench, len(items), results, data))
        return 0
    say(f"{bench.title}: {len(items)} items, {len(results)} recorded judges", style="bold")
    print_judges(results)
    for result in results if len(results) <= 3 else ():
        say()
        say(one_line(result.name), style="bold")
        print_details(result, has_file=out is not None)
    _print_file(out)
    return 0


def _live_judge(
    bench: Benchmark,
    items: list[Item],
    flags: JudgeFlags,
    read: tuple[Path, Path | None],
    out: Path | None,
    *,
    oracle: bool,
    as_json: bool,
) -> int:
    import anyio

    from burnish.bench.judge_results import PointsJudge, live_result
    from burnish.bench.open_judge import check_items, default_path
    from burnish.cli import judge_session as session
    from burnish.cli.bench_report import print_details, print_judges

    if not flags.with_:
        raise UserError(
            f"benchmark '{bench.name}' needs a judge: --with direct --model smollm2, or --recorded "
            "FILE for verdicts that are on record."
        )
    unanswered = next((item for item in items if not item.responses), None)
    if unanswered is not None:
        raise UserError(
            f"{read[0]}: item '{unanswered.id}' has no response to judge; give --answers FILE."
        )
    # HealthBench's own rule: each criterion met or not, points over positive points.
    judge = session.open_flags(
        flags, PointsJudge if bench.kind == "rubric" and flags.with_ == "point" else None
    )
    labels = {item.id: item.hidden.get("faithful") for item in items}
    check_items(judge, items, oracle=oracle)
    path = out or default_path(bench.name, judge, *read, oracle=oracle)
    if not as_json:
        say(f"{bench.title}: {len(items)} items, {session.title(judge)}", style="bold")
    start = perf_counter()
    ask = partial(session.judge_all, bench=bench.name, oracle=oracle, quiet=as_json)
    _, judged = anyio.run(ask, judge, items, path)
    seconds = perf_counter() - start
    if bench.kind == "rubric":
        return _show_points(bench, judge, judged, path, seconds, as_json=as_json)
    if bench.kind == "faithful":
        known = [bool(labels[one.id]) for one in judged]
        return _show_detection(bench, judge, judged, known, path, seconds, as_json=as_json)
    result = live_result(bench.name, judge.name, items, judged)
    if as_json:
        spent = session.spent_record(judge, seconds)
        record = _record(bench, len(items), [result], read[0])
        emit_json({**record, "spent": spent, "file": str(path)})
    else:
        if any(one.is_valid for one in judged):
            print_judges([result])
            print_details(result, has_file=True)
        else:
            say("no item has a verdict, so nothing is known about accuracy", style="yellow")
        say(session.spent_text(judge, seconds))
        _print_file(path)
    return check_outside(judged)


def _show_detection(
    bench: Benchmark,
    judge: OpenJudge,
    judged: list[Judged],
    faithful: list[bool],
    path: Path,
    seconds: float,
    *,
    as_json: bool,
) -> int:
    from burnish.bench.judge_accuracy import detection
    from burnish.cli import judge_session as session

    # A judge that lists claims flags an answer where any fails; a rating below the middle does.
    threshold = float(getattr(judge.scorer, "flags_below", 0.5))
    found = detection([one.values[0] for one in judged], faithful, threshold=threshold)
    if as_json:
        figures: dict[str, Any] = {"decided": found.decided, "items": found.items}
        for key in ("balanced", "caught", "passed", "all"):
            one = getattr(found, key)
            figures[key] = None if one is None else one._asdict()
        spent = session.spent_record(judge, seconds)
        emit_json({"bench": bench.name, **figures, "spent": spent, "file": str(path)})
    else:
        say(f"decided   {found.decided} of {found.items} answers")
        for name, one in (
            ("balanced", found.balanced),
            ("flagged", found.caught),
            ("passed", found.passed),
            ("of all", found.all),
        ):
            say(f"{name:9} {'-' if one is None else one}")
        say(session.spent_text(judge, seconds))
        _print_file(path)
    return check_outside(judged)


def _record(bench: Benchmark, items: int, results: list[JudgeResult], data: Path) -> dict[str, Any]:
    from burnish.bench.judge_results import judge_record

    return {
        "bench": bench.name,
        "data": str(data),
        "items": items,
        "judges": [judge_record(result) for result in results],
    }


# --- single responses: HealthBench's marks and IFEval's instructions


def _recorded_marks(
    bench: Benchmark, path: Path, limit: int, out: Path | None, *, as_json: bool
) -> int:
    from burnish.bench.judge_results import (
        judged_marks,
        largest_deviation,
        point_score,
        points_record,
        sample_items,
        write_results,
    )
    from burnish.bench.loaders.points import load_healthbench_marks
    from burnish.cli.bench_report import print_points

    marked = load_healthbench_marks(path)
    kept = {item.id for item in sample_items([one.item for one in marked], limit)}
    judged = judged_marks([one for one in marked if one.item.id in kept], "recorded")
    found, deviation = point_score(judged), largest_deviation(judged)
    if out is not None:
        write_results(out, judged)
    if as_json:
        record = {"bench": bench.name, **points_record(found), "largest_deviation": deviation}
        emit_json(record)
        return 0
    print_points(f"{bench.title}, recorded marks", found)
    if deviation is not None:
        say(f"recomputed scores differ from those on record by at most {deviation:.1e}")
    _print_file(out)
    return 0


def _checked_answers(
    bench: Benchmark, items: list[Item], name: str, out: Path | None, *, as_json: bool
) -> int:
    import anyio

    judged = anyio.run(_check, items, name, out)
    _show_instructions(bench, name, judged, out, as_json=as_json)
    return 0


def _live_answers(
    bench: Benchmark,
    items: list[Item],
    flags: JudgeFlags,
    data: Path,
    out: Path | None,
    *,
    as_json: bool,
) -> int:
    import anyio

    from burnish.bench.evaluation import blanks
    from burnish.bench.open_judge import default_path
    from burnish.cli import judge_session as session

    if not flags.model and flags.replay is None:
        raise UserError(
            f"benchmark '{bench.name}' checks answers: give --answers FILE (key or prompt, and "
            "response), or --model MODEL to have them written."
        )
    judge = session.open_flags(flags._replace(with_=""), _answering)
    path = out or default_path(bench.name, judge, data)
    if not as_json:
        say(f"{bench.title}: {len(items)} prompts for {one_line(judge.name)}", style="bold")
    start = perf_counter()
    ask = partial(session.judge_all, bench=bench.name, quiet=as_json)
    _, judged = anyio.run(ask, judge, blanks(items), path)
    seconds = perf_counter() - start
    spent = {"spent": session.spent_record(judge, seconds), "file": str(path)}
    _show_instructions(bench, judge.name, judged, path, spent, as_json=as_json)
    if not as_json:
        say(session.spent_text(judge, seconds))
    return check_outside(judged)


def _answering(model: JudgeModel) -> Answering:
    from burnish.bench.evaluation import Answering
    from burnish.rewards.checks.instructions import Instructions, InstructionsConfig

    return Answering(model, Instructions(InstructionsConfig()))


async def _check(items: list[Item], name: str, out: Path | None) -> list[Judged]:
    from burnish.bench.judging import ResultFile, judge_items
    from burnish.rewards.checks.instructions import Instructions, InstructionsConfig

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
    more: dict[str, Any] | None = None,
    *,
    as_json: bool,
) -> None:
    from burnish.bench.judge_results import by_instruction, point_score, points_record
    from burnish.cli.bench_report import print_instructions, print_points

    found, kinds = point_score(judged), by_instruction(judged)
    if as_json:
        each = {key: value._asdict() for key, value in kinds.items()}
        record = {"bench": bench.name, "model": name, **points_record(found), "instructions": each}
        emit_json({**record, **(more or {})})
        return
    print_points(f"{bench.title}, all instructions of a prompt obeyed by {one_line(name)}", found)
    obeyed, decided = (sum(count[k] for count in kinds.values()) for k in (0, 1))
    share = f" ({obeyed / decided:.1%})" if decided else ""
    say(f"single instructions: {obeyed} of {decided} obeyed{share}")
    print_instructions(kinds)
    _print_file(path)


def _show_points(
    bench: Benchmark,
    judge: OpenJudge,
    judged: list[Judged],
    path: Path,
    seconds: float,
    *,
    as_json: bool,
) -> int:
    from burnish.bench.judge_results import point_score, points_record
    from burnish.cli.bench_report import print_points
    from burnish.cli.judge_session import spent_record, spent_text

    found = point_score(judged)
    if as_json:
        spent = spent_record(judge, seconds)
        emit_json({"bench": bench.name, **points_record(found), "spent": spent, "file": str(path)})
    else:
        print_points(f"{bench.title}, {judge.name}", found)
        say(spent_text(judge, seconds))
        _print_file(path)
    return check_outside(judged)


def _print_file(path: Path | None) -> None:
    if path is not None:
        say(f"results   {one_line(str(path))}")
