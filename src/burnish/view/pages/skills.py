"""Distilled skills: each edit beside the trajectories that speak for it, and the whole diff.

    shelf = SkillFolders([Path("distilled")], beside=Path("runs"))
    shelf.listing()
    shelf.page("distilled")

A folder is what `burnish skill distill --out` writes; its `report.json` is read whole each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from burnish.errors import StoreError
from burnish.view.pages.runs import NotFound, Page, keyed, readable
from burnish.view.report.page import html_file, html_table

REPORT, DIFF = "report.json", "skill.diff"
FILE_BYTES = 64 << 20
"""A larger report is not read."""
FOLDERS = 200
"""Distilled skills that are listed."""


class SkillEdit(Struct, frozen=True, kw_only=True):
    op: str
    file: str = ""
    target_section: str = ""
    target_text: str = ""
    old_text: str = ""
    after_section: str = ""
    content: str = ""
    source_ids: list[str] = []
    support: int = 0
    tasks: int | None = None
    """Tasks behind its trajectories; reports of earlier versions do not say."""
    reason: str = ""
    """Why it was left out."""


class SkillTrace(Struct, frozen=True, kw_only=True):
    task: str = ""
    passed: bool = False
    log: str = ""


class NotUsed(Struct, frozen=True, kw_only=True):
    """A trajectory, or several, that gave no patch."""

    ids: str = ""
    reason: str = ""


class SkillReport(Struct, frozen=True, kw_only=True):
    """The report of a distillation, as far as it is shown."""

    status: str
    skill: str
    model: str = ""
    counts: dict[str, int] = {}
    passed: int = 0
    failed: int = 0
    edits: list[SkillEdit] = []
    dropped: list[SkillEdit] = []
    refused: list[NotUsed] = []
    problems: list[str] = []
    warnings: list[str] = []
    trajectories: dict[str, str] = {}
    logs: dict[str, SkillTrace] = {}
    diff: str = ""


class SkillFolders:
    """Folders that were named, and those among the runs."""

    def __init__(self, chosen: Sequence[Path] = (), beside: Path | None = None) -> None:
        self.chosen, self.beside = list(chosen), beside

    def listing(self) -> Page:
        """Every folder with its status, one that cannot be read with the reason."""
        lines = []
        for key, folder in list(self._folders().items())[:FOLDERS]:
            line = {"key": key, "name": "", "status": "", "edits": 0, "problem": ""}
            try:
                found = read_report(folder)
                made = len(found.edits) if found.status == "changed" else 0
                line |= {"name": found.skill, "status": found.status, "edits": made}
            except StoreError as error:
                line["problem"] = str(error)
            lines.append(line)
        return {"skills": lines}

    def page(self, key: str) -> SkillReport:
        folders = self._folders()
        if key not in folders:
            raise NotFound(f"no distilled skill '{key}' here; the list has {len(folders)}.")
        return read_report(folders[key])

    def _folders(self) -> dict[str, Path]:
        found = list(self.chosen)
        if self.beside is not None and self.beside.is_dir():
            found += sorted(path for path in self.beside.iterdir() if is_distilled(path))
        return keyed(list(dict.fromkeys(found)))


def is_distilled(folder: Path) -> bool:
    """Whether `burnish skill distill` wrote this folder."""
    return (folder / REPORT).is_file() and (folder / DIFF).is_file()


def read_report(folder: Path) -> SkillReport:
    """The report in a folder; StoreError in one line where there is none to read."""
    place = folder / REPORT
    try:
        if place.stat().st_size > FILE_BYTES:
            raise StoreError(f"{readable(str(place))}: larger than {FILE_BYTES >> 20} MiB")
        return msgspec.json.decode(place.read_bytes(), type=SkillReport)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())[:200]
        raise StoreError(
            f"{readable(str(place))}: no report of burnish skill distill ({said})"
        ) from error


_CSS = """
.add { color: var(--c); } .cut { color: var(--b); } .at { color: var(--quiet); }
pre.diff span { display: block; min-height: 1.2em; }
"""


def skill_page(report: Mapping[str, Any]) -> str:
    name, status = escape(str(report["skill"])), str(report["status"])
    state = "finished" if status == "changed" else "stopped"
    cost = ", ".join(escape(f"{kind} {value}") for kind, value in report["cost"].items())
    head = (
        f"<header><p>burnish skill distill</p><h1>{name}</h1>"
        f'<p><span class="state {state}">{escape(status)}</span> '
        f"{report['passed']} trajectories passed, {report['failed']} failed, "
        f"{report['counts'].get('patches', 0)} patches, {len(report['edits'])} edits made</p>"
        f"{_list(report['problems'])}{f'<p><small>{cost}</small></p>' if cost else ''}</header>"
    )
    left_out = [(_place(one), one["support"], one["reason"]) for one in report["dropped"]]
    refused = [(one["ids"], one["reason"]) for one in report["refused"]]
    edits = "".join(_edit(edit, report["trajectories"]) for edit in report["edits"])
    sections = (
        ("Edits, and the trajectories that support them", edits),
        ("Diff", _diff(report["diff"])),
        ("Left out", html_table(("edit", "support", "why"), left_out)),
        ("No patch from", html_table(("trajectories", "why"), refused)),
        ("Warnings", _list(report["warnings"])),
    )
    body = "".join(f"<section><h2>{title}</h2>{text}</section>" for title, text in sections if text)
    return html_file(str(report["skill"]), f"{head}{body}", _CSS)


def _edit(edit: Mapping[str, Any], words: Mapping[str, str]) -> str:
    rows = [(name, words.get(name, "")) for name in edit["source_ids"]]
    lines = []
    for sign, key in (("-", "old_text"), ("+", "content")):
        text = str(edit.get(key) or "")
        lines += [sign + line for line in text.rstrip("\n").split("\n") if text]
    return (
        f'<article><h3>{escape(_place(edit))} <small class="value">support {edit["support"]}'
        f"</small></h3>{_diff(chr(10).join(lines))}"
        f"<details><summary>{len(rows)} trajectories</summary>{html_table(('id', 'task'), rows)}"
        "</details></article>"
    )


def _place(edit: Mapping[str, Any]) -> str:
    where = edit.get("target_section") or edit.get("after_section") or ""
    return " ".join(str(part) for part in (edit["op"], edit.get("file", ""), where) if part)


def _diff(text: str) -> str:
    kinds = {"+": "add", "-": "cut", "@": "at"}
    rows = "".join(
        f'<span class="{kinds.get(line[:1], "")}">{escape(line)}</span>'
        for line in text.rstrip("\n").split("\n")
    )
    return f'<pre class="diff">{rows}</pre>' if text else ""


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(str(line))}</li>' for line in lines)}</ul>" if lines else ""
