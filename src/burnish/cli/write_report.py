"""`burnish report` and `burnish audit`: what a run came to, as a file or on the screen."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import msgspec

from burnish.cli.console import emit_json, one_line, say
from burnish.errors import UserError
from burnish.records import Response
from burnish.rewards.function import from_function
from burnish.rewards.scorer import score_groups
from burnish.source import find_function
from burnish.store import RunStore, find_run, list_runs
from burnish.view.audit import Audit, audit_run
from burnish.view.audit.drawn import draw
from burnish.view.report import contents_of, html_page, markdown

GOLD_ANSWERS = 512
"""Answers that a gold scorer is asked about."""


def write_report(folder: Path, reference: str, out: Path | None, gold: str, as_text: bool) -> int:
    """Write the report to a file, or to the standard output where none is named."""
    with RunStore.open(_find(folder, reference), read_only=True) as store:
        report = contents_of(store, _audit(store, gold))
    suffix = out.suffix.lower() if out else ""
    if suffix not in ("", ".html", ".htm", ".md"):
        raise UserError(f"the report's file is {out}; expected a name that ends in .html or .md")
    text = markdown(report) if as_text or suffix == ".md" else html_page(report)
    if out is None:
        sys.stdout.write(text)
        return 0
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot write the report: {error.strerror}.") from error
    say(f"report  {out}  ({len(text.encode()) / 1024:.0f} KB, nothing else is needed to open it)")
    return 0


def print_audit(folder: Path, reference: str, gold: str, as_json: bool) -> int:
    """The audit on the screen."""
    with RunStore.open(_find(folder, reference), read_only=True) as store:
        audit = _audit(store, gold)
    if as_json:
        emit_json(msgspec.to_builtins(audit))
        return 0
    say(f"audit of run '{audit.run}'", style="bold")
    say(f"{audit.answers} answers of {audit.steps} steps; what moved and was paid, strongest first")
    if audit.note or not audit.findings:
        say(audit.note or "nothing stands out.")
    for finding in audit.findings:
        say()
        say(f"{finding.strength:.2f}  {finding.title}", style="bold")
        say(f"      {one_line(finding.text)}")
        say(f"      {' '.join(finding.samples)}", style="bright_black")
    if audit.gold is not None:
        say()
        say(f"gold  {one_line(audit.gold.text)}", style="bold")
        say(f"      {' '.join(audit.gold.samples)}", style="bright_black")
    if audit.findings:
        first = next((name for f in audit.findings for name in f.samples), "")
        say()
        say(f"look at one: burnish show {audit.run} --sample {first}")
    return 0


def _audit(store: RunStore, gold: str) -> Audit:
    if not gold:
        return audit_run(store)
    if ":" not in gold:
        return audit_run(store, gold_part=_part(store, gold))
    return audit_run(store, gold_scores=_gold_scores(store, gold))


def _part(store: RunStore, name: str) -> str:
    known = sorted(draw(store).weights)
    if name not in known:
        raise UserError(
            f"--gold {name}: the run has no reward of that name; expected one of "
            f"{', '.join(known) or 'none'}, or your own scorer as file.py:function"
        )
    return name


def _gold_scores(store: RunStore, path: str) -> dict[str, float]:
    """What a function says of a sub-sample of the answers, evenly over the steps."""
    scorer = from_function(find_function(path, "gold scorer", Path(".")))
    answers = draw(store).answers
    every = max(1, len(answers) // GOLD_ANSWERS)
    items = []
    for answer in answers[::every]:
        sample = store.sample(answer.id)
        items.append((sample.task, [Response(answer.id, sample.trajectory.text)]))
    scored = anyio.run(score_groups, scorer, items)
    return {
        responses[0].id: rewards[0].value
        for (_, responses), rewards in zip(items, scored, strict=True)
        if rewards[0].value is not None
    }


def _find(folder: Path, reference: str) -> Path:
    if reference:
        return find_run(folder, reference)
    runs = list_runs(folder)
    if not runs:
        raise UserError(f"{folder} holds no runs. Start one: burnish train")
    return runs[-1].folder
