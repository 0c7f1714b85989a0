"""`burnish judge probe`: what a judge prefers besides quality, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text
from typer import Option

from burnish.arguments import as_word
from burnish.cli.console import emit_json, one_line, say
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import AsJson, File, JudgeFlags, Limit, takes
from burnish.errors import JudgeError, UserError
from burnish.intervals import interval_text
from burnish.seeds import derive

if TYPE_CHECKING:
    from burnish.bench.edits import Edit
    from burnish.bench.items import Item
    from burnish.bench.open_judge import OpenJudge
    from burnish.bench.probe import Finding, Twice


@takes(JudgeFlags, without=("both_orders", "rule", "anchor"), both_orders=False)
def probe(
    file: File,
    flags: JudgeFlags,
    bench: Annotated[
        str, Option(metavar="NAME", help="Read the file as this benchmark publishes it.")
    ] = "",
    edits: Annotated[
        str, Option(metavar="LIST", help="all, none, or names such as padding,praise.")
    ] = "all",
    own: Annotated[str, Option(metavar="AUTHOR", help="Whose responses are the judge's own.")] = "",
    limit: Limit = 50,
    as_json: AsJson = False,
) -> int:
    """What a judge prefers besides quality: place, length, format, its own, with intervals.

    Every pair is asked about in both orders; then each first response meets
    itself with padding, a heading and so on. What chance alone would rarely
    do is named as a bias.

    \b
      burnish judge probe pairs.jsonl --with direct --model smollm2
      burnish judge probe test.parquet --bench llmbar --model smollm2 --limit 30 --edits none
    """
    import anyio

    from burnish.bench.open_judge import check_items, with_inputs
    from burnish.bench.probe import edit_findings, pair_findings
    from burnish.cli import judge_session as session

    items = _pairs(file, bench, limit)
    chosen = _edits(edits)
    # One order at a time: a judge that already joins both has no place left to measure.
    judge = session.open_flags(flags._replace(both_orders=False))
    items = with_inputs(judge, items)
    check_items(judge, items, shows="a probe shows no labels: choose another judge")
    if not as_json:
        say(f"probe of {one_line(judge.name)} on {len(items)} pairs, each order on its own")
    start = perf_counter()
    asked, changed = anyio.run(partial(_ask, judge, items, chosen, quiet=as_json))
    seconds = perf_counter() - start
    findings = [*pair_findings(asked, own=own), *edit_findings(changed)]
    failed = sum(not one.is_valid for one in asked)
    if as_json:
        emit_json(_record(judge, findings, len(asked), failed, seconds))
    else:
        # One row a finding; a bias stands in yellow.
        from burnish.bench.probe import probe_verdict

        rows = []
        for finding in findings:
            style = "yellow" if finding.is_bias else ""
            name = Text(one_line(finding.name), style=style)
            rows.append((name, Text(_interval(finding), style=style), finding.reading))
        print_rows(("finding", "95 % interval", "what it means"), rows)
        say(probe_verdict(findings), style="bold")
        if failed:
            say(f"{failed} of {len(asked)} pairs have no verdict in one order", style="yellow")
        say(session.spent_text(judge, seconds))
    if failed == len(asked):
        reason = next((r.reason for one in asked for r in one.rewards if r.reason), "no reason")
        raise JudgeError(f"no pair got a verdict in both orders; the first failed with: {reason}")
    return 0


def _pairs(path: Path, bench: str, limit: int) -> list[Item]:
    from burnish.bench.loaders import load
    from burnish.bench.loaders.reading import read_items

    items = load(bench, path) if bench else read_items(path)
    pairs = [item for item in items if len(item.responses) == 2]
    if not pairs:
        raise UserError(
            f"{path}: no row has two responses; a probe needs pairs (a and b, or chosen and "
            "rejected)."
        )
    if limit:
        # A sample by id rather than the head of the file, which may be all of one kind.
        pairs = sorted(pairs, key=lambda item: derive("probe", item.id))[:limit]
    return pairs


def _edits(words: str) -> list[Edit]:
    from burnish.bench.edits import EDITS

    if words == "all":
        return list(EDITS.values())
    names = [word.strip() for word in words.split(",") if word.strip() not in ("", "none")]
    return [EDITS[as_word("--edits", name, EDITS)] for name in names]


async def _ask(
    judge: OpenJudge, items: list[Item], edits: Sequence[Edit], *, quiet: bool
) -> tuple[list[Twice], dict[str, list[Twice]]]:
    from burnish.bench.open_judge import forecast
    from burnish.bench.probe import ask_edits, ask_twice, edited
    from burnish.cli.judge_session import JudgeReporter, print_forecast

    found = await forecast(judge, items, per_item=2 * (1 + len(edits)))
    if not quiet:
        print_forecast(found, judge)
    pairs = len(items) + sum(len(edited(items, edit)) for edit in edits)
    with JudgeReporter(judge, pairs, "probing pairs", quiet=quiet) as report:
        limit = judge.settings.concurrency

        def done(one: Twice) -> None:
            report.step(one.is_valid)

        asked = await ask_twice(judge.scorer, items, limit=limit, done=done)
        changed = {
            edit.name: await ask_edits(judge.scorer, items, edit, limit=limit, done=done)
            for edit in edits
        }
    return asked, changed


def _interval(finding: Finding) -> str:
    if finding.estimate is None:
        return "-"
    text = interval_text(*finding.estimate, signed=finding.is_signed, digits=2)
    # What speaks against it on a line of its own: the column beside it has sentences.
    return text.replace(" (", "\n(")


def _record(
    judge: OpenJudge, findings: Sequence[Finding], pairs: int, failed: int, seconds: float
) -> dict[str, Any]:
    from burnish.bench.probe import probe_verdict
    from burnish.cli.judge_session import spent_record

    return {
        "judge": judge.name,
        "pairs": pairs,
        "failed": failed,
        "findings": [
            {
                **finding._asdict(),
                "estimate": None if finding.estimate is None else finding.estimate._asdict(),
                "doubt": "" if finding.estimate is None else finding.estimate.doubt,
            }
            for finding in findings
        ],
        "verdict": probe_verdict(findings),
        "spent": spent_record(judge, seconds),
    }
