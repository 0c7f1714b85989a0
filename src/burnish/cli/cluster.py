"""`burnish cluster`: what a run's parts would be, and how fast a step, before anything starts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typer import Option

from burnish.api.cluster import check_cluster
from burnish.cli.console import emit_json, err, out, say, size
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


def plan(
    gpus: Annotated[int, Option(min=1, max=100_000, help="How many, over all machines.")] = 8,
    model: Annotated[Literal["1.5b", "7b", "32b"], Option(help="Of Qwen2.5's shape.")] = "7b",
    gpu: Annotated[Literal["h100", "h200"], Option(help="Of which kind.")] = "h200",
    prompts: Annotated[int, Option(min=1, help="Of a step.")] = 64,
    samples: Annotated[int, Option(min=1, help="Answers to each.")] = 8,
    mean_tokens: Annotated[int, Option(min=1, help="Of an answer.")] = 1024,
    most_tokens: Annotated[int, Option(min=1, help="Of the longest answer.")] = 2048,
    as_json: AsJson = False,
) -> int:
    """Predict how long a step takes on several GPUs, and what each of them holds.

    A model of compute, memory and network, fitted to one H200: nothing of it
    was measured.

    \b
      burnish cluster plan --gpus 64 --model 32b
    """
    import msgspec

    from burnish.engines.plan import GPUS, SIZES, Job, predict, render

    job = Job(prompts=prompts, samples=samples, mean_tokens=mean_tokens, most_tokens=most_tokens)
    found = predict(SIZES[model], GPUS[gpu], gpus, job)
    if as_json:
        emit_json({"event": "prediction", **msgspec.to_builtins(found)})
    else:
        say(render(found))
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
