"""`burnish bench atp`: plans of tool calls, by the needs of the data or by three judges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from burnish.cli.console import emit_json, one_line, say
from burnish.cli.judge import check_outside
from burnish.cli.shared_options import JudgeFlags
from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.bench.evaluation import Answering
    from burnish.bench.items import Item, Judged
    from burnish.bench.loaders import Benchmark
    from burnish.bench.plans import PlanScore
    from burnish.rewards.judges.atp_bench.three_roles import Agreement
    from burnish.rewards.judges.judge_model import JudgeModel


def run_plans(
    bench: Benchmark,
    items: list[Item],
    flags: JudgeFlags,
    read: Sequence[Path | None],
    out: Path | None,
    *,
    oracle: bool,
    as_json: bool,
) -> int:
    """Judge the answers that there are, or let a model write them first.

    `read` are the files of items and answers; None for those that ship.
    """
    import anyio

    from burnish.bench.evaluation import blanks
    from burnish.bench.open_judge import default_path
    from burnish.bench.plans import agreement_record, plan_record, plan_score, with_oracle
    from burnish.cli import judge_session as session

    has_answers = all(item.responses for item in items)
    _check(bench, items, flags, has_answers=has_answers)
    if has_answers and not flags.with_:
        judged = anyio.run(_by_needs, items, out)
        _show(bench, "by the data's needs", judged, None, as_json=as_json, path=out)
        return 0
    judge = session.open_flags(flags, None if flags.with_ else _answering)
    path = out or default_path(bench.name, judge, *read, oracle=oracle)
    if not as_json:
        say(f"{bench.title}: {len(items)} items, {one_line(judge.name)}", style="bold")
    # A model that answers sees the question alone; its scorer sees the needs.
    sees_needs = oracle or not flags.with_
    ask = partial(session.judge_all, bench=bench.name, oracle=sees_needs, quiet=as_json)
    start = perf_counter()
    _, judged = anyio.run(ask, judge, items if has_answers else blanks(items), path)
    seconds = perf_counter() - start
    agreed = anyio.run(with_oracle, judged, items) if flags.with_ else None
    if as_json:
        record = {"bench": bench.name, "judge": judge.name, **plan_record(plan_score(judged))}
        record |= {"agrees_with_needs": agreement_record(agreed), "file": str(path)}
        emit_json({**record, "spent": session.spent_record(judge, seconds)})
    else:
        _show(bench, judge.name, judged, agreed, as_json=False, path=path)
        say(session.spent_text(judge, seconds))
    return check_outside(judged)


def _check(bench: Benchmark, items: list[Item], flags: JudgeFlags, *, has_answers: bool) -> None:
    without = next((item for item in items if not item.responses), None)
    if flags.with_ and without is not None:
        raise UserError(
            f"benchmark '{bench.name}': item '{without.id}' has no response to judge; give --answers "
            "FILE, or leave --with out and --model writes them."
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


async def _by_needs(items: list[Item], out: Path | None) -> list[Judged]:
    from burnish.bench.judging import ResultFile, judge_items
    from burnish.rewards.judges.atp_bench import atp_scorer

    ask = partial(judge_items, atp_scorer(), items, judge="needs", bench="atp", oracle=True)
    if out is None:
        return await ask()
    with ResultFile(out) as file:
        return await ask(file=file)


def _answering(model: JudgeModel) -> Answering:
    from burnish.bench.evaluation import Answering
    from burnish.rewards.judges.atp_bench import atp_scorer

    return Answering(model, atp_scorer())


def _show(
    bench: Benchmark,
    name: str,
    judged: list[Judged],
    agreed: Agreement | None,
    *,
    as_json: bool,
    path: Path | None,
) -> None:
    from burnish.bench.plans import plan_record, plan_score

    found = plan_score(judged)
    if as_json:
        emit_json({"bench": bench.name, "judge": name, **plan_record(found)})
        return
    _print(bench, name, found)
    if agreed is not None:
        say(f"judge and data  {_agreement(agreed)}")
    if path is not None:
        say(f"results         {one_line(str(path))}")


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
