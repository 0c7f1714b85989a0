"""What a distillation did to a skill, as one HTML file: each edit beside the trajectories behind it.

skill_page(report)          # the table that `burnish skill distill` writes as report.json

No script, no request. Everything in it came from models and is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

_CSS = """
.add { color: var(--c); } .cut { color: var(--b); } .at { color: var(--quiet); }
pre.diff span { display: block; min-height: 1.2em; }
"""


def skill_page(report: Mapping[str, Any]) -> str:
    """The whole file."""
    style = (Path(__file__).parent / "report" / "report.css").read_text(encoding="utf-8")
    name, status = escape(str(report["skill"])), str(report["status"])
    state = "finished" if status == "changed" else "stopped"
    counts = report["counts"]
    head = (
        f"<header><p>burnish skill distill</p><h1>{name}</h1>"
        f'<p><span class="state {state}">{escape(status)}</span> '
        f"{report['passed']} trajectories passed, {report['failed']} failed, "
        f"{counts.get('patches', 0)} patches, {len(report['edits'])} edits made</p>"
        f"{_list(report['problems'])}{_cost(report['cost'])}</header>"
    )
    words = report["trajectories"]
    edits = "".join(_edit(edit, words) for edit in report["edits"])
    dropped = _table(
        ("edit", "support", "why"),
        [(_place(one), one["support"], one["reason"]) for one in report["dropped"]],
    )
    refused = _table(
        ("trajectories", "why"), [(one["ids"], one["reason"]) for one in report["refused"]]
    )
    sections = (
        ("Edits, and the trajectories that support them", edits),
        ("Diff", _diff(report["diff"])),
        ("Left out", dropped),
        ("No patch from", refused),
        ("Warnings", _list(report["warnings"])),
    )
    body = "".join(f"<section><h2>{title}</h2>{text}</section>" for title, text in sections if text)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{name}</title><style>{style}{_CSS}</style></head>"
        f"<body><main>{head}{body}</main></body></html>\n"
    )


def _edit(edit: Mapping[str, Any], words: Mapping[str, str]) -> str:
    rows = [(name, words.get(name, "")) for name in edit["source_ids"]]
    lines = [f"-{line}" for line in _lines(edit.get("old_text"))]
    lines += [f"+{line}" for line in _lines(edit.get("content"))]
    return (
        f'<article><h3>{escape(_place(edit))} <small class="value">support {edit["support"]}'
        f"</small></h3>{_diff(chr(10).join(lines))}"
        f"<details><summary>{len(rows)} trajectories</summary>{_table(('id', 'task'), rows)}"
        "</details></article>"
    )


def _lines(text: Any) -> list[str]:
    return str(text).rstrip("\n").split("\n") if text else []


def _place(edit: Mapping[str, Any]) -> str:
    where = edit.get("target_section") or edit.get("after_section") or ""
    return " ".join(str(part) for part in (edit["op"], edit.get("file", ""), where) if part)


def _diff(text: str) -> str:
    """A unified diff in colours."""
    kinds = {"+": "add", "-": "cut", "@": "at"}
    rows = "".join(
        f'<span class="{kinds.get(line[:1], "")}">{escape(line)}</span>'
        for line in text.rstrip("\n").split("\n")
    )
    return f'<pre class="diff">{rows}</pre>' if text else ""


def _cost(cost: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{escape(str(name))} {escape(str(value))}" for name, value in cost.items())
    return f"<p><small>{parts}</small></p>" if parts else ""


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(str(line))}</li>' for line in lines)}</ul>" if lines else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
