"""`burnish doctor`: what this machine can do."""

from __future__ import annotations

from dataclasses import asdict

from rich.text import Text

from burnish.cli.console import emit_json, err, say
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import RUNS, AsJson, RunsFolder
from burnish.texts import counted, safe

STYLES = {"ok": "green", "gap": "yellow", "broken": "red"}
FAILED = 3


def doctor(folder: RunsFolder = RUNS, as_json: AsJson = False) -> int:
    """What this machine can do: devices, precision, extras, sandbox, models, disk.

    A gap is something that cannot be done here, with a line that says what to
    do about it. The exit code is 0 unless something that is needed is broken.

    \b
      burnish doctor
      burnish doctor --json
    """
    from burnish.bench.doctor import State, examine

    with err.status("looking at this machine ..."):
        checks = examine(folder)
    code = FAILED if any(check.state is State.BROKEN for check in checks) else 0
    if as_json:
        for check in checks:
            emit_json(asdict(check))
        return code
    rows = []
    for check in checks:
        line = Text(safe(check.found))
        if check.remedy:
            line.append(f"\n{safe(check.remedy)}", style="cyan")
        rows.append((check.name, Text(check.state.value, style=STYLES[check.state]), line))
    print_rows(("", "", ""), rows)
    counts = {state: sum(check.state is state for check in checks) for state in State}
    say(
        f"{counts[State.OK]} ok, {counted(counts[State.GAP], 'gap')}, {counts[State.BROKEN]} broken",
        style="bold",
    )
    return code
