"""`burnish cluster check`: what a run's parts would be, before anything starts."""

from __future__ import annotations

from typing import Any

from burnish.api.cluster import check_cluster
from burnish.cli.console import emit_json, err, out, size
from burnish.cli.shared_options import AsJson, Words


def check(words: Words = None, as_json: AsJson = False) -> int:
    """Say which part of a run would run where, and what it would hold in memory.

    Nothing is started; what there is no room for is refused in one line.

    \b
      burnish cluster check grpo cluster=local cluster.samplers=2
      burnish cluster check grpo cluster=ray cluster.trainers=4 cluster.trainers.gpus=1
    """
    from burnish.config.recipes import resolve

    with err.status("opening the model and the data ..."):
        rows = check_cluster(resolve(words or []))
    if as_json:
        for row in rows:
            emit_json({"event": "part", **row._asdict()})
    else:
        _print(rows)
    return 0


def _print(rows: list[Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("part", "machine", "gpus", "cores", "memory", "holds"):
        table.add_column(title, overflow="fold")
    for row in rows:
        memory = "not known" if row.memory is None else f"{size(row.memory)}"
        table.add_row(row.name, row.machine, row.gpus, row.cores, memory, row.holds)
    out.print(table)
