"""A report as one HTML file that opens anywhere (no script, no request), or as Markdown.

Everything that came from a model, a judge or a person is escaped on its way into the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from burnish.intervals import interval_text
from burnish.step_warnings import WARNING
from burnish.texts import counted
from burnish.view.audit import Audit, Finding
from burnish.view.curves import HeldOutPoint, text_plot
from burnish.view.report.contents import RunReport, Shown

LONGEST = 1200
"""Characters of one text that are shown."""
LONGEST_TEXT = 600
"""In Markdown."""
FINDINGS = 6


def html_page(report: RunReport) -> str:
    rows = [
        (event.time[:19].replace("T", " "), event.kind, event.message) for event in report.events
    ]
    inner = html_table(("key", "value", "from"), report.settings)
    sections = [
        _head(report),
        _section("Curves", _curves(report)),
        _section("Forecast and fact", html_table(("", "forecast", "came"), report.facts)),
        _section("Audit", _audit(report.audit)),
        _section("Best of the last steps", "".join(map(_answer, report.best))),
        _section("Worst of the last steps", "".join(map(_answer, report.worst))),
        _section("Without a value", "".join(map(_answer, report.failed))),
        _section("Events", html_table(("time", "kind", ""), rows)),
        _section(
            "Settings",
            f"<details><summary>{len(report.settings)} settings</summary>{inner}</details>",
        ),
        _section(
            "Versions",
            html_table(("", ""), [row for row in (*report.versions, *report.hashes) if row[1]]),
        ),
    ]
    return html_file(report.name, "".join(sections))


def html_file(title: str, body: str, style: str = "") -> str:
    """A page that asks for nothing: no script, no request; `body` is HTML already."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_style()}{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


@cache
def _style() -> str:
    return (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _score(score: HeldOutPoint) -> str:
    text = interval_text(score.value, score.low, score.high, score.prompts)
    value, _, rest = text.partition(" ")
    return f"<b>{value}</b> {rest}"


def _head(report: RunReport) -> str:
    summary = report.summary
    of = f" of {report.planned}" if report.planned else ""
    scores = report.curves.held_out
    held_out = ""
    if scores:
        first, last = scores[0], scores[-1]
        held_out = (
            f'<p class="score">{_score(first)} &rarr; {_score(last)} '
            f"<small>held out, {last.prompts} prompts, 95 % intervals</small></p>"
        )
    reason = summary.end.reason
    statuses = ", ".join(f"{name} {count:,}" for name, count in summary.statuses.items())
    return (
        f"<header><p>burnish report</p><h1>{escape(report.name)}</h1>"
        f'<p><span class="state {escape(summary.status.value)}">{escape(summary.status.value)}'
        f"</span> {summary.steps}{of} steps, started {escape(report.created)} UTC</p>"
        f"{f'<p>{escape(reason)}</p>' if reason else ''}{held_out}"
        f"<p>{sum(summary.samples.values()):,} answers; rewards: {escape(statuses or 'none')}</p>"
        f"<p>Repeat it:</p><pre>{escape(report.command)}</pre></header>"
    )


def _curves(report: RunReport) -> str:
    curves = report.curves
    parts = dict(list(curves.parts.items())[:5])
    rewards = {"total": curves.reward, **parts} if len(parts) != 1 else parts
    charts: list[tuple[str, Mapping[str, Points], Sequence[tuple[float, float, float]]]] = [
        ("Reward", rewards, ()),
        (
            "Held-out score",
            {"score": [(p.step, p.value) for p in curves.held_out]},
            [(p.step, p.low, p.high) for p in curves.held_out],
        ),
        ("Length in tokens", {"length": curves.length}, ()),
        ("Useful groups", {"share": curves.useful}, ()),
        ("Entropy in nats", {"entropy": curves.entropy}, ()),
    ]
    figures = []
    for title, lines, bars in charts:
        picture = line_chart(lines, label=title, bars=bars)
        if picture:
            names = [name for name, points in lines.items() if points]
            figures.append(
                f"<figure><figcaption>{escape(title)}</figcaption>{picture}{legend(names)}</figure>"
            )
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def _audit(audit: Audit) -> str:
    told = (
        "<p>What moved in this run and was paid, the strongest first. An audit, not an alarm: "
        f"learning moves things too. {audit.answers:,} answers of {counted(audit.steps, 'step')} were read.</p>"
    )
    if audit.note:
        told += f"<p>{escape(audit.note)}</p>"
    elif not audit.findings:
        told += "<p>Nothing stands out.</p>"
    told += "".join(map(_finding, audit.findings[:FINDINGS]))
    if audit.gold is not None:
        picture = line_chart(
            {"reward": audit.gold.reward, "gold": audit.gold.gold}, label="Reward and gold score"
        )
        told += (
            f'<div class="finding"><h3>Reward and gold score</h3><p>{escape(audit.gold.text)}</p>'
            f"{picture}{legend(('reward', 'gold'))}{_ids(audit.gold.samples)}</div>"
        )
    if len(audit.conflicts) > 1:
        rows = [
            (name, *("" if value is None else f"{value:+.2f}" for value in row.values()))
            for name, row in audit.conflicts.items()
        ]
        table = html_table(("", *audit.conflicts), rows)
        told += f"<h3>Rewards against each other, within groups</h3>{table}"
    return told


def _finding(finding: Finding) -> str:
    picture = line_chart({finding.title: finding.curve}, label=finding.title)
    return (
        f'<div class="finding"><h3>{escape(finding.title)} '
        f"<small>strength {finding.strength:.2f}</small></h3><p>{escape(finding.text)}</p>"
        f"{picture}{_ids(finding.samples)}</div>"
    )


def _ids(samples: Sequence[str]) -> str:
    shown = " ".join(f"<code>{escape(name)}</code>" for name in samples)
    return f'<p class="ids">Answers: {shown}</p>' if samples else ""


def _answer(answer: Shown) -> str:
    evidence = "".join(f"<li>{escape(_cut(line))}</li>" for line in answer.evidence)
    return (
        f'<article><h3><code>{escape(answer.name)}</code> <span class="value">'
        f"{escape(answer.reward)}</span></h3>"
        f'<pre class="prompt">{escape(_cut(answer.prompt))}</pre>'
        f'<pre class="response">{escape(_cut(answer.response))}</pre>'
        f"{html_table(('reward', 'value', 'why'), answer.parts)}"
        f"{f'<ul>{evidence}</ul>' if evidence else ''}</article>"
    )


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of escaped cells; nothing where there are no rows."""
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in heads) if any(heads) else ""
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>' if body else ""


def _cut(text: str, most: int = LONGEST) -> str:
    rest = len(text) - most
    return text if rest <= 0 else f"{text[:most]} ... ({rest:,} characters more)"


Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 440, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 26
CLASSES = ("a", "b", "c", "d", "e", "f")
"""Colours stand in the page's style, so that light and dark are one chart."""


def line_chart(
    lines: Mapping[str, Points], *, label: str, bars: Sequence[tuple[float, float, float]] = ()
) -> str:
    """One chart of a few lines over the steps; `bars` are (step, low, high) behind them."""
    drawn = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        for name, points in lines.items()
    }
    drawn = {name: points for name, points in drawn.items() if points}
    if not drawn:
        return ""
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    ys += [edge for _, low, high in bars for edge in (low, high)]
    first, last, low, high = min(xs), max(xs), min(ys), max(ys)
    room = 0.06 * (high - low) if high > low else abs(low) * 0.1 or 1.0
    low, high = low - room, high + room

    def across(value: float) -> float:
        share = (value - first) / (last - first) if last > first else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def down(value: float) -> float:
        return TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    ]
    for value in ticks(low, high):
        y = down(value)
        parts += [
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>',
        ]
    ends = [(first, "middle")] if first == last else [(first, "start"), (last, "end")]
    parts += [
        f'<text class="axis" x="{across(value):.1f}" y="{HEIGHT - 8}" '
        f'text-anchor="{anchor}">{value:g}</text>'
        for value, anchor in ends
    ]
    parts += [
        f'<line class="bar" x1="{across(x):.1f}" x2="{across(x):.1f}" '
        f'y1="{down(under):.1f}" y2="{down(over):.1f}"/>'
        for x, under, over in bars
    ]
    for number, points in enumerate(drawn.values()):
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
        shade = CLASSES[number % len(CLASSES)]
        parts.append(f'<polyline class="line {shade}" points="{path}"/>')
        if len(points) == 1:
            x, y = points[0]
            parts.append(
                f'<circle class="dot {shade}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="3"/>'
            )
    return "".join([*parts, "</svg>"])


def legend(names: Sequence[str]) -> str:
    """The names of a chart's lines in their colours; nothing for one line."""
    if len(names) < 2:
        return ""
    keys = "".join(
        f'<span class="key {CLASSES[i % len(CLASSES)]}">{escape(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<p class="legend">{keys}</p>'


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """A few round numbers from low to high."""
    span = high - low
    if not span > 0:
        return [low]
    base = 10.0 ** math.floor(math.log10(span / most))
    step = next(base * scale for scale in (1, 2, 5, 10) if span / (base * scale) <= most)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def markdown(report: RunReport) -> str:
    """For issues, papers and pull requests."""
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
        "## Forecast and fact" if report.facts else "",
        _table(("", "forecast", "came"), report.facts) if report.facts else "",
        *(["## Warnings", "\n".join(told)] if told else []),
        *_audit_text(report),
        *_answer_texts("Best of the last steps", report.best),
        *_answer_texts("Worst of the last steps", report.worst),
        *_answer_texts("Without a value", report.failed),
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


def _audit_text(report: RunReport) -> list[str]:
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


def _answer_texts(title: str, answers: Sequence[Shown]) -> list[str]:
    if not answers:
        return []
    parts = [f"## {title}"]
    for answer in answers:
        parts += [
            f"### {_code(answer.name)}: {_plain(answer.reward)}",
            _block(_cut(answer.prompt, LONGEST_TEXT)),
            _block(_cut(answer.response, LONGEST_TEXT)),
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
