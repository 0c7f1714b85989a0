"""`burnish audit`: what moved in a run and was paid for, strongest first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from burnish.arguments import as_word
from burnish.cli.console import emit_json, one_line, say
from burnish.cli.runs import choose_run
from burnish.cli.shared_options import RUNS, AsJson, RunName, RunsFolder
from burnish.errors import UserError
from burnish.store import RunStore
from burnish.texts import counted

if TYPE_CHECKING:
    from burnish.view.audit import Audit


Gold = Annotated[
    str, Option(metavar="NAME", help="A reward of weight 0, or file.py:function, to audit by.")
]
GOLD_ANSWERS = 512
"""Answers that a gold scorer is asked about."""


def audit(
    run: RunName = "", gold: Gold = "", folder: RunsFolder = RUNS, as_json: AsJson = False
) -> int:
    """Is it learning, or pleasing the reward? What moved in a run and was paid, ranked.

    Length, format, phrases, copies, entropy, spread, components, conflicts,
    flips of a judge; each with the ten answers that moved it. An audit, not
    an alarm: learning moves things too.

    \b
      burnish audit
      burnish audit grpo-1f --gold my_checks.py:really_right
    """
    import msgspec

    with RunStore.open(choose_run(folder, run), read_only=True) as store:
        found = audit_of(store, gold)
    if as_json:
        emit_json(msgspec.to_builtins(found))
    else:
        say(f"audit of run '{found.run}'", style="bold")
        say(
            f"{found.answers} answers of {counted(found.steps, 'step')}; what moved and was paid, strongest first"
        )
        if found.note or not found.findings:
            say(found.note or "nothing stands out.")
        for finding in found.findings:
            say()
            say(f"{finding.strength:.2f}  {finding.title}", style="bold")
            say(f"      {one_line(finding.text)}")
            say(f"      {' '.join(finding.samples)}", style="bright_black")
        if found.gold is not None:
            say()
            say(f"gold  {one_line(found.gold.text)}", style="bold")
            say(f"      {' '.join(found.gold.samples)}", style="bright_black")
        if found.findings:
            first = next((name for f in found.findings for name in f.samples), "")
            say()
            say(f"look at one: burnish show {found.run} --sample {first}")
    return 0


def audit_of(store: RunStore, gold: str) -> Audit:
    """The audit of a run; `gold` names a reward of it, a function, or nothing."""
    from burnish.view.audit import audit_run

    if ":" in gold:
        return audit_run(store, gold_scores=_gold_scores(store, gold))
    if gold:
        from burnish.view.audit.measures import draw

        as_word("--gold", gold, sorted(draw(store).weights))
    return audit_run(store, gold_part=gold)


def _gold_scores(store: RunStore, path: str) -> dict[str, float]:
    import anyio

    from burnish.records import Response
    from burnish.rewards.function import from_function
    from burnish.rewards.scorer import score_groups
    from burnish.source import find_function
    from burnish.view.audit.measures import draw

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


def report(
    run: RunName = "",
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="FILE", help=".html or .md; else standard output."),
    ] = None,
    gold: Gold = "",
    markdown: Annotated[bool, Option("--markdown", help="Markdown instead of HTML.")] = False,
    folder: RunsFolder = RUNS,
) -> int:
    """Write what a run came to as one file: curves, forecast and fact, samples, audit, versions.

    \b
      burnish report > report.html
      burnish report grpo-1f --out report.md
    """
    from burnish.view import report as pages

    with RunStore.open(choose_run(folder, run), read_only=True) as store:
        contents = pages.contents_of(store, audit_of(store, gold))
    suffix = out.suffix.lower() if out else ""
    if suffix not in ("", ".html", ".htm", ".md"):
        raise UserError(f"the report's file is {out}; expected a name that ends in .html or .md")
    is_markdown = markdown or suffix == ".md"
    text = pages.markdown(contents) if is_markdown else pages.html_page(contents)
    if out is None:
        sys.stdout.write(text)
        return 0
    out.write_text(text, encoding="utf-8")
    say(f"report  {out}  ({len(text.encode()) / 1024:.0f} KB, nothing else is needed to open it)")
    return 0
