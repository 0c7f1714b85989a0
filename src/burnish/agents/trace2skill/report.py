"""What a distillation did, as a table and to read: every edit with the trajectories behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from burnish.agents.trace2skill.distillation import (
    CHANGED,
    NOTHING,
    REFUSED,
    REJECTED,
    UNREAD,
    Distilled,
)
from burnish.agents.trace2skill.edits import TEXTS, Edit
from burnish.agents.trace2skill.guards import Support
from burnish.agents.trace2skill.patches import by_task
from burnish.agents.trace2skill.traces import Pool, Trace

LOG = 4_000
"""Characters of a trajectory that the report keeps."""


def report_of(
    found: Distilled,
    pool: Pool,
    *,
    skill: str = "",
    model: str = "",
    cost: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report as a table; `cost` is what the calls took."""
    words = {one.id: _short(one.instruction) for one in pool.all}
    tasks = by_task({one.id: one.task_id for one in pool.all})
    used = {one for edit in found.edits for one in edit.get("source_ids", ())}
    return {
        "status": found.status,
        "skill": skill,
        "model": model,
        "counts": dict(found.counts),
        "passed": len(pool.passed),
        "failed": len(pool.failed),
        "left_out": [{"id": name, "reason": reason} for name, reason in pool.left_out],
        "edits": [_edit(edit, tasks) for edit in found.edits],
        "dropped": [{**_edit(one.edit, tasks), "reason": one.reason} for one in found.dropped],
        "refused": [{"ids": a, "reason": b, "raw": c} for a, b, c in found.refused],
        "problems": list(found.problems),
        "warnings": list(found.warnings),
        "cost": dict(cost or {}),
        "trajectories": {name: words.get(name, "") for name in sorted(used)},
        "logs": {one.id: _log(one) for one in pool.all if one.id in used},
        "diff": found.diff,
    }


def markdown(report: Mapping[str, Any]) -> str:
    """The report to read."""
    counts = report["counts"]
    lines = [f"# Skill {report['skill']}: {report['status']}", ""]
    lines += [
        f"{counts.get('trajectories', 0)} trajectories ({report['passed']} passed, "
        f"{report['failed']} failed, {len(report['left_out'])} left out), "
        f"{counts.get('records', 0)} analysed ({counts.get('verified', 0)} by a fix that passed), "
        f"{counts.get('patches', 0)} patches.",
        "",
    ]
    if report["status"] != CHANGED:
        said = ", ".join(reasons(one["reason"] for one in report["dropped"]))
        why = {
            NOTHING: "nothing to learn from these trajectories",
            UNREAD: "no reply of the model could be read as a patch",
            REFUSED: f"no edit was kept: {said}",
            REJECTED: "the new version does not pass its checks",
        }[report["status"]]
        lines += [f"The skill is unchanged: {why}.", ""]
    if report["problems"]:
        lines += [*(f"- {line}" for line in report["problems"]), ""]
    if cost := ", ".join(f"{name} {value}" for name, value in report["cost"].items()):
        lines += [f"Cost: {cost}.", ""]
    lines += _table(
        "Edits, and the trajectories that support them",
        ("edit", "support", "trajectories"),
        [(_line(e), str(e["support"]), ", ".join(e["source_ids"])) for e in report["edits"]],
    )
    lines += _table(
        "Left out",
        ("edit", "support", "why"),
        [(_line(e), str(e["support"]), e["reason"]) for e in report["dropped"]],
    )
    lines += _table(
        "No patch from",
        ("trajectory", "why"),
        [(row["ids"], row["reason"]) for row in report["refused"]],
    )
    lines += _table("Warnings", ("what",), [(line,) for line in report["warnings"]])
    lines += _table("Trajectories", ("id", "task"), list(report["trajectories"].items()))
    return "\n".join(lines).rstrip("\n") + "\n"


def reasons(given: Iterable[str], most: int = 6) -> list[str]:
    """Reasons with how often each was given, the most frequent first.

    >>> reasons(["it is late", "no link", "no link"])
    ['no link (2)', 'it is late (1)']
    """
    found = Counter(given).most_common()
    words = [f"{reason} ({count})" for reason, count in found[:most]]
    rest = sum(count for _, count in found[most:])
    return [*words, f"others ({rest})"] if rest else words


def _edit(edit: Edit, tasks: Support) -> dict[str, Any]:
    shown = {name: edit[name] for name in ("op", *TEXTS) if edit.get(name)}
    sources = list(edit.get("source_ids", ()))
    return shown | {"source_ids": sources, "support": len(sources), "tasks": tasks(edit)}


def _log(trace: Trace) -> dict[str, Any]:
    text = trace.log
    cut = f"\n... ({len(text) - LOG:,} characters left out)" if len(text) > LOG else ""
    return {"task": trace.task_id, "passed": trace.passed, "log": text[:LOG] + cut}


def _line(edit: Mapping[str, Any]) -> str:
    place = edit.get("target_section") or edit.get("after_section") or ""
    content = edit.get("content") or edit.get("old_text") or edit.get("target_text") or ""
    return f"{edit['op']} {edit.get('file', '')} {place}: {_short(content, 120)}"


def _short(text: str, most: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table of the texts of a model, so nothing in its cells is markup."""
    if not rows:
        return []
    cells = [[" ".join(str(text).split()) for text in row] for row in rows]
    marks = str.maketrans({mark: f"\\{mark}" for mark in "|`*_[]<>\\"})
    return [
        f"## {title}",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(text.translate(marks) for text in row)} |" for row in cells),
        "",
    ]
