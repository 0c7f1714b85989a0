"""GAP on the grid world: a picture is changed several times, and the pictures between help to answer.

    python -m lab.gap.grid                                          # tiny decoder, CPU, 3 seeds
    python -m lab.gap.grid --size small --device cuda --processes 8
    python -m lab.gap.grid --size smollm2 --device cuda --processes 8   # SmolLM2, one GPU
    python -m lab.gap.grid --trial                                  # a few steps, nothing is kept
    python -m lab.gap.report                                        # tables and pictures again

Stage 1 trains a decoder to answer at once, without latents; stage 2 goes on from it with each arm.
`tiny`: 2 x 2 cells, 1 to 3 operations, 3 layers of width 64; `small`: 3 x 3 cells, 1 or 2 operations, 4
layers of width 96; both from small embeddings, so that hidden states become many times longer than inputs. `smollm2`: 4 x 4 cells, 1 to 4 operations, the embedded
model, whose hidden states are so from the start; a latent's patch has 2 x 2 cells.

    none        answers at once                        none_long   the same, at pca's positions
    notes       the pictures between as words          filler      slots without content, no latent loss
    raw, normed, ema_norm, linear, pca                 the ladder of heads
    pca_gate    latents only for questions that the stage-1 decoder fails (8 answers, at most half right)
    pca_random  latents for as many questions, drawn at random

Every answer is generated, the model opens its spans itself; then latents are replaced by each
intervention. A row is written to the CSV when it is done, and a second start goes on behind it.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.models.visual_latent import LatentHead, LatentRows, norm_ratio, use_latent
from burnish.models.visual_latent.step import decode, embedded, positions
from lab.gap.decoders import Plan, Task, new_decoder, new_world, train
from lab.gap.measure import PLAYED, measure
from lab.gap.report import write
from lab.gap.world import Example, World

LADDER = ("raw", "normed", "ema_norm", "linear", "pca")
CONTROLS = ("none", "none_long", "filler", "notes")
GATED = ("pca_gate", "pca_random")
ARMS = (*CONTROLS, *LADDER, *GATED)
TAU = 0.5


class Cell(NamedTuple):
    """One training: accuracies with its own latents and under each intervention."""

    size: str
    arm: str
    seed: int
    steps: int
    positions: int
    """Computed in stage 2, in units of a forward and backward pass over one."""
    gap: float
    """Norm of the hidden states over that of vision embeddings, after stage 1."""
    start_accuracy: float
    """Of the stage-1 decoder."""
    accuracy: float
    by_operations: str
    """Accuracy by the number of operations, as JSON."""
    spans: float
    """Opened in an answer, mean."""
    fed_ratio: float | None
    """Norm of the latents that are fed, over that of the pictures' vectors."""
    r2: float | None
    """Of generated latents against the true pictures."""
    clipped: float | None
    """Share of latents that the guard cut."""
    zero: float | None
    mean: float | None
    noise: float | None
    shuffle: float | None
    skip: float | None
    oracle: float | None
    held: int
    """Questions that accuracies are of."""
    seconds: float


def stage_1(plan: Plan, seed: int) -> None:
    """Train the start of a seed and keep it beside the results."""
    file = start_file(plan, seed)
    if file.is_file():
        return
    from safetensors.torch import save_file

    world = new_world(plan.size, seed)
    task, device = Task(plan, world), torch.device(plan.device)
    model = new_decoder(world, plan.size).to(device)
    head = LatentHead.fit("raw", task.embeddings()).to(device)
    print(f"seed {seed}: stage 1", file=sys.stderr, flush=True)
    train(
        *(plan, model, head, lambda step: task.batch("gap stage 1", step, "text"), plan.first),
        rho=0.0,
        alpha=0.0,
        seed=seed,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    if plan.size == "smollm2":
        state.pop("lm_head.weight", None)  # tied
    draft = file.with_suffix(".draft")
    save_file(state, str(draft))
    draft.rename(file)


def start_file(plan: Plan, seed: int) -> Path:
    return plan.out / "start" / f"{plan.size}-{plan.first}-{seed}.safetensors"


def started(plan: Plan, world: World) -> Any:
    """The decoder as stage 1 left it."""
    from safetensors.torch import load_file

    model = new_decoder(world, plan.size)
    missing = model.load_state_dict(load_file(str(start_file(plan, world.seed))), strict=False)
    assert not missing.unexpected_keys
    assert missing.missing_keys in ([], ["lm_head.weight"])
    return model.to(plan.device).eval()


def stage_2(plan: Plan, arm: str, seed: int) -> Cell:
    """Train one arm and measure it."""
    began, world = time.monotonic(), new_world(plan.size, seed)
    task, device = Task(plan, world), torch.device(plan.device)
    start, embeddings = started(plan, world), task.embeddings()
    torch.manual_seed(task.seeds.for_("gap head") % 2**31)
    kind = arm if arm in LADDER else "pca"
    head = LatentHead.fit(kind, embeddings).to(device)
    gap, (base, _) = norm_gap(task, start, head), measure(task, start, head, "none")
    print(
        f"seed {seed}: {arm}; hidden states {gap:.0f} times vision embeddings, at once "
        f"{base.accuracy:.3f}",
        file=sys.stderr,
        flush=True,
    )
    model = started(plan, world)
    rows_of, steps = batches(plan, task, arm, start, head)
    computed = train(
        *(plan, model, head, rows_of, steps),
        rho=plan.rho if arm in (*LADDER, *GATED) else 0.0,
        # Mean over the coefficients, so that the text is not drowned.
        alpha=0.0 if arm in CONTROLS else 1.0 / len(head.eigenvalues),
        seed=seed,
    )
    found, played = measure(task, model, head, arm)
    return Cell(
        plan.size,
        arm,
        seed,
        steps,
        computed,
        gap,
        base.accuracy,
        found.accuracy,
        json.dumps(found.by_operations),
        found.spans,
        found.fed_ratio,
        found.r2,
        found.clipped,
        *(played.get(name) for name in PLAYED),
        held=world.operations * -(-plan.held // world.operations),
        seconds=round(time.monotonic() - began, 1),
    )


def batches(
    plan: Plan, task: Task, arm: str, start: Any, head: LatentHead
) -> tuple[Callable[[int], LatentRows], int]:
    """The batch of each step of an arm, and how many steps it has."""
    world = task.world
    if arm in GATED:
        share = gate_share(task, start) if arm == "pca_random" else None

        def is_hard(example: Example, draw: torch.Generator) -> Tensor:
            if share is not None:
                return torch.rand(len(example.asked_B1), generator=draw) < share
            return use_latent(task.pass_rates(start, example, draw), TAU)

        return lambda step: task.gated(step, is_hard), plan.steps
    formats = {"none": "text", "none_long": "text", "notes": "notes", "filler": "filler"}
    format_, steps = formats.get(arm, "latents"), plan.steps
    if arm == "none_long":
        steps = round(plan.steps * length_ratio(world, plan.rho))

    def rows_of(step: int) -> LatentRows:
        rows = task.batch("gap stage 2", step, format_)
        if arm != "filler":
            return rows
        is_slot = rows.is_latent_BT.unsqueeze(-1)
        return rows._replace(vectors_BTD=torch.where(is_slot, head.mean, rows.vectors_BTD))

    return rows_of, steps


def length_ratio(world: World, rho: float) -> float:
    """Positions of a step with latents over those of one without, as `train` counts them."""
    short = world.cells + world.operations + 3
    slots = world.operations * world.slots
    long = short + slots + 2 * world.operations
    return (long + rho / 2 * slots * long / 6) / short


def gate_share(task: Task, start: Any) -> float:
    """Share of questions that the gate gives latents, over all numbers of operations."""
    draw = task.generator("gap gate share")
    chosen = [
        use_latent(task.pass_rates(start, example, draw), TAU) for example in task.drawn(800, draw)
    ]
    return float(torch.cat(chosen).float().mean())


@torch.no_grad()
def norm_gap(task: Task, model: Any, head: LatentHead) -> float:
    """How many times longer hidden states are than vision embeddings."""
    rows = task.batch("gap norms", 0, "text")
    out = decode(model, embedded(model, head, rows), rows.mask_BT, positions(rows.mask_BT))
    return norm_ratio(out.hidden.raw[rows.mask_BT], rows.vectors_BTD[rows.is_image_BT])


def read_cells(file: Path) -> list[Cell]:
    """Rows of a CSV; empty where there is none yet."""
    if not file.is_file():
        return []
    kinds = {
        name: (str if "str" in str(kind) else int if kind in ("int", int) else float)
        for name, kind in Cell.__annotations__.items()
    }
    with file.open(encoding="utf-8", newline="") as lines:
        return [
            Cell(**{n: kinds[n](v) if v != "" else None for n, v in row.items()})
            for row in csv.DictReader(lines)
        ]


def add_cell(file: Path, cell: Cell) -> None:
    """Append a row; several processes may."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8", newline="") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        writer = csv.DictWriter(out, Cell._fields, lineterminator="\n")
        if not out.tell():
            writer.writeheader()
        writer.writerow({n: "" if v is None else v for n, v in cell._asdict().items()})


def work(job: tuple[Plan, str, int]) -> Cell | None:
    """One job of a process: stage 1 of a seed where no arm is named, else a cell."""
    plan, arm, seed = job
    torch.set_num_threads(1)
    if not arm:
        stage_1(plan, seed)
        return None
    cell = stage_2(plan, arm, seed)
    if not plan.is_trial:
        add_cell(plan.out / f"{plan.name}.csv", cell)
    print(json.dumps(cell._asdict()), flush=True)
    return cell


def run(plan: Plan, seeds: list[int], arms: list[str], processes: int) -> list[Cell]:
    """All cells that are not there yet."""
    done = {(c.arm, c.seed) for c in read_cells(plan.out / f"{plan.name}.csv")}
    wanted = [(plan, a, s) for s in seeds for a in arms if (a, s) not in done]
    starts = [(plan, "", s) for s in dict.fromkeys(s for _, _, s in wanted)]
    if processes == 1:
        return [c for job in [*starts, *wanted] if (c := work(job)) is not None]
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=1) as pool:
        pool.map(work, starts, chunksize=1)
        found = pool.map(work, wanted, chunksize=1)
    return [c for c in found if c is not None]


DEFAULTS: dict[str, dict[str, Any]] = {
    "tiny": {"first": 600, "steps": 1000, "rows": 32, "rate": 3e-3},
    "small": {"first": 900, "steps": 1000, "rows": 64, "rate": 2e-3},
    "smollm2": {"first": 600, "steps": 800, "rows": 64, "rate": 2e-4},
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", choices=list(DEFAULTS), default="tiny")
    parser.add_argument("--out", type=Path, default=Path("lab/gap/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--first", type=int, help="steps of stage 1")
    parser.add_argument("--steps", type=int, help="steps of stage 2")
    parser.add_argument("--rows", type=int, help="questions of a step")
    parser.add_argument("--rate", type=float, help="learning rate")
    parser.add_argument("--rho", type=float, default=0.5, help="own latents at the end of stage 2")
    parser.add_argument("--held", type=int, default=600, help="held-out questions")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trial", action="store_true", help="a few steps, nothing is kept")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    values = {
        n: v if getattr(given, n) is None else getattr(given, n)
        for n, v in DEFAULTS[given.size].items()
    }
    if given.trial:
        with tempfile.TemporaryDirectory() as folder:
            values |= {"first": 3, "steps": 2, "rows": 8}
            plan = Plan(
                given.size, given.device, **values, rho=1.0, held=8, out=Path(folder), is_trial=True
            )
            run(plan, given.seeds[:1], given.arms, given.processes)
        return
    plan = Plan(
        given.size,
        given.device,
        **values,
        rho=given.rho,
        held=given.held,
        out=given.out,
        is_trial=False,
    )
    run(plan, given.seeds, given.arms, given.processes)
    print(write(plan.out / f"{plan.name}.csv"))


if __name__ == "__main__":
    main(sys.argv[1:])
