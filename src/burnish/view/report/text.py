"""A report as Markdown, for issues, papers and pull requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from burnish.step_warnings import WARNING
from burnish.view.curves import text_plot
from burnish.view.report.contents import RunReport, Shown

LONGEST = 600
FINDINGS = 6


def markdown(report: RunReport) -> str:
    summary = report.summary
    of = f" of {report.planned}" if report.planned else ""
    told = [f"- {_plain(event.message)}" for event in report.events if event.kind == WARNING]
    rows = [
        (str(p.step), f"{p.value:.3f}", f"{p.low:.3f} to {p.high:.3f}", str(p.prompts))
        for p in report.curves.held_out
    ]
    parts = [
        f"# {_plain(report.name)}",
        f"{summary.status.value}, {summary.steps}{of} steps, started {report.created} UTC.",
        _block(report.command),
        *(
            ["## Held out", _table(("step", "score", "95 % interval", "prompts"), rows)]
            if rows
            else []
        ),
        *_plots(report),
        *_facts(report),
        *(["## Warnings", "\n".join(told)] if told else []),
        *_audit(report),
        *_answers("Best of the last steps", report.best),
        *_answers("Worst of the last steps", report.worst),
        *_answers("Without a value", report.failed),
        "## Versions",
        _table(("", ""), [row for row in (*report.versions, *report.hashes) if row[1]]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _plots(report: RunReport) -> list[str]:
    curves = report.curves
    lines = {"reward": curves.reward or next(iter(curves.parts.values()), [])}
    lines |= {"mean length (tokens)": curves.length, "entropy (nats)": curves.entropy}
    drawn = [
        f"{title}\n{text_plot(points, width=64, height=7)}"
        for title, points in lines.items()
        if len(points) > 1
    ]
    return ["## Curves", *(_block(plot) for plot in drawn)] if drawn else []


def _facts(report: RunReport) -> list[str]:
    if not report.facts:
        return []
    return ["## Forecast and fact", _table(("", "forecast", "came"), report.facts)]


def _audit(report: RunReport) -> list[str]:
    audit = report.audit
    parts = [
        "## Audit",
        "What moved and was paid, the strongest first. An audit, not an alarm: learning moves "
        "things too.",
    ]
    if audit.note:
        parts.append(_plain(audit.note))
    elif not audit.findings:
        parts.append("Nothing stands out.")
    parts += [
        f"- **{_plain(f.title)}** ({f.strength:.2f}): {_plain(f.text)} "
        f"{', '.join(map(_code, f.samples[:3]))}"
        for f in audit.findings[:FINDINGS]
    ]
    if audit.gold is not None:
        parts.append(f"- **Reward and gold score**: {_plain(audit.gold.text)}")
    return parts


def _answers(title: str, answers: Sequence[Shown]) -> list[str]:
    if not answers:
        return []
    parts = [f"## {title}"]
    for answer in answers:
        parts += [
            f"### {_code(answer.name)}: {_plain(answer.reward)}",
            _block(_cut(answer.prompt)),
            _block(_cut(answer.response)),
            _table(("reward", "value", "why"), answer.parts),
        ]
    return parts


def _block(text: str) -> str:
    """A fence that is longer than any run of backticks inside."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(_plain(str(cell)) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """One line without marks that Markdown or HTML would read."""
    line = " ".join(text.split())
    for mark in "\\`*_[]<>|":
        line = line.replace(mark, f"\\{mark}")
    return line


def _code(text: str) -> str:
    """One line between backticks, which it cannot end."""
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def _cut(text: str) -> str:
    rest = len(text) - LONGEST
    return text if rest <= 0 else f"{text[:LONGEST]} ... ({rest} characters more)"
