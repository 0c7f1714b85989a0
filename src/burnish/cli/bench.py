"""`burnish bench NAME`: a published benchmark with a judge, a recorded judge, or a model's answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from burnish.cli.console import emit_json, one_line, say
from burnish.cli.judge import check_outside
from burnish.cli.shared_options import AsJson, JudgeFlags, Limit, Oracle, takes
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.bench.evaluation import Answering
    from burnish.bench.items import Item, Judged
    from burnish.bench.judge_results import JudgeResult
    from burnish.bench.loaders import Benchmark
    from burnish.bench.open_judge import OpenJudge
    from burnish.rewards.judges.judge_model import JudgeModel
    from burnish.rewards.scorer import Scorer


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


@takes(JudgeFlags, without=("anchor",), with_="")
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
    shipped = data is None
    if data is None:
        if chosen.kind != "plans":
            raise UserError(
                f"benchmark '{name}' needs --data PATH: its published file or folder, none ships."
            )
        from burnish.bench.loaders.plans import SHIPPED

        data = SHIPPED
    asked = Asked(chosen, flags, data, answers, out, oracle, as_json)
    if chosen.kind == "rubric" and not flags.with_:
        return _recorded_marks(asked, recorded or data, limit)
    items = sample_items(load(name, data), limit)
    if solutions is not None or chosen.kind == "steps":
        return _write_solutions(asked, items, solutions)
    if pairs is not None:
        return _write_pairs(asked, items, pairs)
    if recorded is not None:
        return _recorded_judges(asked, items, recorded)
    if answers is not None:
        items = with_answers(items, answers)
    if chosen.kind == "plans":
        from burnish.cli.bench_plans import run_plans

        return run_plans(asked, items, None if shipped else data)
    if chosen.kind != "instructions":
        return _live_judge(asked, items)
    if answers is None:
        return _live_answers(asked, items)
    import anyio

    judged = anyio.run(_check, items, answers.stem, out)
    _show_instructions(asked, answers.stem, judged, out)
    return 0


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    bench: Benchmark
    flags: JudgeFlags
    data: Path
    answers: Path | None
    out: Path | None
    oracle: bool
    as_json: bool

    def open(self, special: Callable[[JudgeModel], Scorer] | None, *read: Path | None) -> Asking:
        """The judge, and where its results go; `read` are the files behind them."""
        from burnish.bench.open_judge import default_path
        from burnish.cli.judge_session import open_flags

        judge = open_flags(self.flags, special)
        path = self.out or default_path(self.bench.name, judge, *read, oracle=self.oracle)
        return Asking(self, judge, path)


@dataclass
class Asking:
    """A judge at work on a benchmark."""

    asked: Asked
    judge: OpenJudge
    path: Path
    seconds: float = 0.0

    def judge_all(self, items: list[Item], what: str, *, oracle: bool) -> list[Judged]:
        """Ask about all items; `what` stands above the progress."""
        import anyio

        from burnish.cli.judge_session import judge_all

        bench, quiet = self.asked.bench, self.asked.as_json
        if not quiet:
            say(f"{bench.title}: {what}", style="bold")
        start = perf_counter()
        work = partial(judge_all, bench=bench.name, oracle=oracle, quiet=quiet)
        _, judged = anyio.run(work, self.judge, items, self.path)
        self.seconds = perf_counter() - start
        return judged

    def tell(self, record: dict[str, Any], show: Callable[[], object]) -> None:
        """The record as JSON, or what `show` prints; then what was spent and where results lie."""
        from burnish.cli.judge_session import spent_record, spent_text

        if self.asked.as_json:
            spent = spent_record(self.judge, self.seconds)
            emit_json({**record, "spent": spent, "file": str(self.path)})
            return
        show()
        say(spent_text(self.judge, self.seconds))
        print_file(self.path)


def _write_pairs(asked: Asked, items: list[Item], out: Path) -> int:
    from burnish.bench.items import preference_rows

    if asked.bench.kind != "choice":
        raise UserError(
            f"benchmark '{asked.bench.name}' says how good one response is; --pairs expected one in "
            "which responses are compared, such as llmbar"
        )
    rows = preference_rows(items)
    ties = sum(row["tie"] for row in rows)
    told = f"{len(rows)} pairs of {len(items)} items, {ties} of them ties"
    counts = {"pairs": len(rows), "ties": ties, "items": len(items)}
    return _write_rows(asked, rows, out, counts, told, ("chosen", "rejected", "tie", "meta"))


def _write_solutions(asked: Asked, items: list[Item], out: Path | None) -> int:
    from burnish.bench.items import solution_rows

    if asked.bench.kind != "steps" or out is None:
        raise UserError(
            f"benchmark '{asked.bench.name}': --solutions FILE writes labelled steps as data for "
            "train.kind = 'process_reward_model', which no judge here is asked for; expected it with a "
            "benchmark that labels steps, such as bigbench_mistake"
        )
    rows = solution_rows(items)
    wrong = sum(row["first_wrong"] is not None for row in rows)
    steps = sum(len(row["steps"]) for row in rows)
    told = f"{len(rows)} solutions of {steps} steps, {wrong} of them with a wrong step"
    counts = {"solutions": len(rows), "wrong": wrong, "steps": steps}
    return _write_rows(asked, rows, out, counts, told, ("steps", "labels", "meta"))


def _write_rows(
    asked: Asked,
    rows: list[dict[str, Any]],
    out: Path,
    counts: dict[str, int],
    told: str,
    fields: tuple[str, ...],
) -> int:
    """Write rows to train on, and say how a recipe reads them."""
    from burnish.tasks.rows import write_jsonl

    write_jsonl(rows, out)
    if asked.as_json:
        emit_json({**counts, "file": str(out)})
        return 0
    say(f"wrote {out}: {told}")
    named = ", ".join(f'{one} = "{one}"' for one in fields)
    say(f'task = {{ kind = "file", messages = "prompt", fields = {{ {named} }} }}')
    return 0


# --- judges


def _recorded_judges(asked: Asked, items: list[Item], recorded: Path) -> int:
    """Replay recorded judges: one order, the other, and both."""
    from burnish.bench.judge_results import recorded_results, write_results
    from burnish.cli.bench_report import print_details, print_judges

    results = recorded_results(asked.bench.name, recorded, items)
    if asked.out is not None:
        write_results(asked.out, [one for result in results for one in result.judged])
    if asked.as_json:
        emit_json(_record(asked, len(items), results))
        return 0
    say(f"{asked.bench.title}: {len(items)} items, {len(results)} recorded judges", style="bold")
    print_judges(results)
    for result in results if len(results) <= 3 else ():
        say()
        say(one_line(result.name), style="bold")
        print_details(result, has_file=asked.out is not None)
    print_file(asked.out)
    return 0


def _live_judge(asked: Asked, items: list[Item]) -> int:
    from burnish.bench.judge_results import PointsJudge, live_result, point_score
    from burnish.bench.open_judge import check_items
    from burnish.bench.statistics import as_record
    from burnish.cli.bench_report import print_details, print_judges, print_points
    from burnish.cli.judge_session import title

    bench, flags = asked.bench, asked.flags
    if not flags.with_:
        raise UserError(
            f"benchmark '{bench.name}' needs a judge: --with direct --model smollm2, or --recorded "
            "FILE for verdicts that are on record."
        )
    unanswered = next((item for item in items if not item.responses), None)
    if unanswered is not None:
        raise UserError(
            f"{asked.data}: item '{unanswered.id}' has no response to judge; give --answers FILE."
        )
    # HealthBench's own rule: each criterion met or not, points over positive points.
    has_points = bench.kind == "rubric" and flags.with_ == "point"
    work = asked.open(PointsJudge if has_points else None, asked.data, asked.answers)
    labels = {item.id: item.hidden.get("faithful") for item in items}
    check_items(work.judge, items, oracle=asked.oracle)
    what = f"{len(items)} items, {title(work.judge)}"
    judged = work.judge_all(items, what, oracle=asked.oracle)
    if bench.kind == "rubric":
        found = point_score(judged)
        title_of = f"{bench.title}, {work.judge.name}"
        record = {"bench": bench.name, **as_record(found)}
        work.tell(record, partial(print_points, title_of, found))
    elif bench.kind == "faithful":
        _show_detection(work, judged, [bool(labels[one.id]) for one in judged])
    else:
        result = live_result(bench.name, work.judge.name, items, judged)

        def show() -> None:
            if any(one.is_valid for one in judged):
                print_judges([result])
                print_details(result, has_file=True)
            else:
                say("no item has a verdict, so nothing is known about accuracy", style="yellow")

        work.tell(_record(asked, len(items), [result]), show)
    return check_outside(judged)


def _show_detection(work: Asking, judged: list[Judged], faithful: list[bool]) -> None:
    """How well the judge's values tell faithful answers from others."""
    from burnish.bench.judge_accuracy import detection

    # A judge that lists claims flags an answer where any fails; a rating below the middle does.
    threshold = float(getattr(work.judge.scorer, "flags_below", 0.5))
    found = detection([one.values[0] for one in judged], faithful, threshold=threshold)
    shares = {"balanced": found.balanced, "caught": found.caught, "passed": found.passed}
    shares["all"] = found.all

    def show() -> None:
        say(f"decided   {found.decided} of {found.items} answers")
        for name, one in shares.items():
            label = {"caught": "flagged", "all": "of all"}.get(name, name)
            say(f"{label:9} {'-' if one is None else one}")

    figures: dict[str, Any] = {"decided": found.decided, "items": found.items}
    figures |= {key: None if one is None else one._asdict() for key, one in shares.items()}
    work.tell({"bench": work.asked.bench.name, **figures}, show)


def _record(asked: Asked, items: int, results: list[JudgeResult]) -> dict[str, Any]:
    from burnish.bench.judge_results import judge_record

    return {
        "bench": asked.bench.name,
        "data": str(asked.data),
        "items": items,
        "judges": [judge_record(result) for result in results],
    }


# --- single responses: HealthBench's marks and IFEval's instructions


def _recorded_marks(asked: Asked, path: Path, limit: int) -> int:
    """HealthBench's marks on record, which stand beside the rubrics."""
    from burnish.bench.judge_results import (
        judged_marks,
        largest_deviation,
        point_score,
        sample_items,
        write_results,
    )
    from burnish.bench.loaders.labelled import load_healthbench_marks
    from burnish.bench.statistics import as_record
    from burnish.cli.bench_report import print_points

    marked = load_healthbench_marks(path)
    kept = {item.id for item in sample_items([one.item for one in marked], limit)}
    judged = judged_marks([one for one in marked if one.item.id in kept], "recorded")
    found, deviation = point_score(judged), largest_deviation(judged)
    if asked.out is not None:
        write_results(asked.out, judged)
    if asked.as_json:
        figures = as_record(found)
        emit_json({"bench": asked.bench.name, **figures, "largest_deviation": deviation})
        return 0
    print_points(f"{asked.bench.title}, recorded marks", found)
    if deviation is not None:
        say(f"recomputed scores differ from those on record by at most {deviation:.1e}")
    print_file(asked.out)
    return 0


def _live_answers(asked: Asked, items: list[Item]) -> int:
    """Let a model answer, and check its answers by rule."""
    from burnish.bench.evaluation import Answering, blanks
    from burnish.rewards.checks.instructions import Instructions, InstructionsConfig

    if not asked.flags.model and asked.flags.replay is None:
        raise UserError(
            f"benchmark '{asked.bench.name}' checks answers: give --answers FILE (key or prompt, and "
            "response), or --model MODEL to have them written."
        )

    def answering(model: JudgeModel) -> Answering:
        return Answering(model, Instructions(InstructionsConfig()))

    asked = replace(asked, flags=asked.flags._replace(with_=""), oracle=False)
    work = asked.open(answering, asked.data)
    what = f"{len(items)} prompts for {one_line(work.judge.name)}"
    judged = work.judge_all(blanks(items), what, oracle=False)
    _show_instructions(asked, work.judge.name, judged, work.path, work)
    return check_outside(judged)


async def _check(items: list[Item], name: str, out: Path | None) -> list[Judged]:
    from burnish.bench.judging import ResultFile, judge_items
    from burnish.rewards.checks.instructions import Instructions, InstructionsConfig

    scorer = Instructions(InstructionsConfig())
    with nullcontext() if out is None else ResultFile(out) as file:
        return await judge_items(scorer, items, judge=name, bench="ifeval", file=file)


def _show_instructions(
    asked: Asked, name: str, judged: list[Judged], path: Path | None, work: Asking | None = None
) -> None:
    from burnish.bench.judge_results import by_instruction, point_score
    from burnish.bench.statistics import as_record
    from burnish.cli.bench_report import print_instructions, print_points

    found, kinds = point_score(judged), by_instruction(judged)
    each = {key: value._asdict() for key, value in kinds.items()}
    record = {"bench": asked.bench.name, "model": name, **as_record(found), "instructions": each}

    def show() -> None:
        what = f"all instructions of a prompt obeyed by {one_line(name)}"
        print_points(f"{asked.bench.title}, {what}", found)
        obeyed, decided = (sum(count[k] for count in kinds.values()) for k in (0, 1))
        share = f" ({obeyed / decided:.1%})" if decided else ""
        say(f"single instructions: {obeyed} of {decided} obeyed{share}")
        print_instructions(kinds)

    if work is not None:
        work.tell(record, show)
    elif asked.as_json:
        emit_json(record)
    else:
        show()
        print_file(path)


def print_file(path: Path | None) -> None:
    """Where the results lie."""
    if path is not None:
        say(f"results   {one_line(str(path))}")
