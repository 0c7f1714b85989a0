"""`burnish bench atp`: plans of tool calls, by the needs of the data or by three judges."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.cli.console import emit_json, one_line, say
from burnish.cli.judge import check_outside
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.bench.evaluation import Answering
    from burnish.bench.items import Item, Judged
    from burnish.bench.loaders import Benchmark
    from burnish.bench.loaders.plans import PlanScore
    from burnish.cli.bench import Asked
    from burnish.rewards.judges.atp_bench.three_roles import Agreement
    from burnish.rewards.judges.judge_model import JudgeModel


def run_plans(asked: Asked, items: list[Item], data: Path | None) -> int:
    """Judge the answers that there are, or let a model write them first; no `data`: it ships."""
    import anyio

    from burnish.bench.evaluation import Answering, blanks
    from burnish.bench.loaders.plans import plan_record, plan_score, renamed, with_oracle
    from burnish.bench.statistics import as_record
    from burnish.rewards.judges.atp_bench import atp_scorer

    bench, flags = asked.bench, asked.flags
    has_answers = all(item.responses for item in items)
    if flags.with_ and not has_answers:
        raise UserError(
            f"benchmark '{bench.name}': an item has no response to judge; give --answers FILE, or leave "
            "--with out and --model writes them."
        )
    if not flags.with_ and not all("needs" in item.hidden for item in items):
        raise UserError(
            f"benchmark '{bench.name}': the data does not say where a picture is needed (no column "
            "'needs'); give judges: --answers FILE --with atp --model MODEL."
        )
    if not has_answers and not flags.model and flags.replay is None:
        raise UserError(
            f"benchmark '{bench.name}' scores answers: give --answers FILE (id and response), or "
            "--model MODEL to have them written."
        )
    if has_answers and not flags.with_:
        score = plan_score(anyio.run(_by_needs, items, asked.out))
        if asked.as_json:
            told = {"bench": bench.name, "judge": "by the data's needs", **plan_record(score)}
            emit_json(told)
        else:
            _print(bench, "by the data's needs", score)
            if asked.out is not None:
                say(f"results         {one_line(str(asked.out))}")
        return 0

    def answering(model: JudgeModel) -> Answering:
        return Answering(model, atp_scorer())

    work = asked.open(None if flags.with_ else answering, data, asked.answers)
    judge = work.judge
    # A model that answers sees the question alone; its scorer sees the needs.
    judged = work.judge_all(
        items if has_answers else blanks(items),
        f"{len(items)} items, {one_line(judge.name)}",
        oracle=asked.oracle or not flags.with_,
    )
    agreed = anyio.run(with_oracle, judged, items) if flags.with_ else None
    score = plan_score(judged)
    record = {"bench": bench.name, "judge": judge.name, **plan_record(score)}

    def show() -> None:
        _print(bench, judge.name, score)
        if agreed is not None:
            say(f"judge and data  {_agreement(agreed)}")

    work.tell(record | {"agrees_with_needs": renamed(as_record(agreed))}, show)
    return check_outside(judged)


async def _by_needs(items: list[Item], out: Path | None) -> list[Judged]:
    from burnish.bench.judging import ResultFile, judge_items
    from burnish.rewards.judges.atp_bench import atp_scorer

    with nullcontext() if out is None else ResultFile(out) as file:
        return await judge_items(
            atp_scorer(), items, judge="needs", bench="atp", oracle=True, file=file
        )


def _print(bench: Benchmark, name: str, found: PlanScore) -> None:
    corpus = found.corpus
    say(f"{bench.title}, {one_line(name)}: {found.items} items, {found.failed} without a plan")
    lines = {
        "F1": found.f1,
        "final score": found.final,
        "valid calls": found.validity,
        "success rate": corpus.success_rate_macro,
        "  of all calls": corpus.success_rate_micro,
        "missed": corpus.missed_mean,
        "with calls": corpus.tool_adoption,
        "calls": corpus.mean_calls,
    }
    for label, value in lines.items():
        shown = "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
        say(f"{label:15} {shown}")
    if corpus.per_tool:
        tools = ", ".join(
            f"{one_line(t)[:30]} {s:.2f}" for t, s in list(corpus.per_tool.items())[:12]
        )
        say(f"{'tools':15} {tools}")
    if corpus.unjudged:
        say(f"{'unjudged':15} {corpus.unjudged} calls, in no rate", style="yellow")
    if found.between is not None:
        say(f"{'passes':15} {_agreement(found.between)}")


def _agreement(found: Agreement) -> str:
    share = "-" if found.share is None else f"{found.share:.3f}"
    kappa = "" if found.kappa is None else f", kappa {found.kappa:.3f}"
    gaps = "" if found.gaps is None else f"; the same places missing {found.gaps:.3f}"
    return f"agree on {share} of {found.items} calls{kappa}{gaps}"
