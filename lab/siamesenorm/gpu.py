"""Topologies, depths, learning rates and warm-up on one GPU, in ten minutes.

    python -m lab.siamesenorm.gpu books.parquet --processes 6 --minutes 9
    python -m lab.siamesenorm.gpu books.parquet --transformers    # its model, without our kernels
    python -m lab.siamesenorm.gpu books.parquet --steps 2000 --rows 32 --minutes 60    # longer
    python -m lab.siamesenorm.gpu --cpu                 # every part once, tiny, in a minute

About 100 M weights in 24 and in 48 layers, bytes, 512 a row, bfloat16: half of the rows are text, half
sums such as `17+25=42`, of which a tenth is held out. Pre-Norm and SiameseNorm at three rates without
warm-up, Post-Norm as a control at the middle rate; three seeds each. Then a small diffusion
transformer on drawn shapes. First of all, alone on the GPU, the time and memory of a step. The model is
the built-in decoder, which `burnish train pretrain` trains, from the first weights of its family (std
0.02, matrices that write to the stream smaller by the root of 2 x layers).

A row of `gpu-500.csv` (by the number of steps, and of rows where they are not 8) is written when its
training is done, and a second start goes on with what is missing. `gpu-500.md` has means and spreads
over seeds, never the best one.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.lm.architecture import OWN, Architecture
from burnish.lm.decoder import Decoder
from burnish.lm.model_input import ModelInput
from burnish.models.blocks import Topology
from burnish.models.norm_report import LayerWatch, drop_sensitivity
from burnish.models.siamesenorm import new_model
from burnish.seeds import Seeds, digest
from lab.siamesenorm.cpu import read
from lab.siamesenorm.vision import DiffusionTransformer, draw_shapes, flow_loss

PARTS = ("cost", "text", "shapes")
ARMS = {"pre": "pre", "siamese": "siamese_post_pre", "post": "post"}
WIDTHS = {24: 576, 48: 448, 4: 32, 8: 32}
"""Of models with so many layers: about 100 M weights, or tiny ones."""
OK, STUCK, DIVERGED = "ok", "stuck", "diverged"
"""Stuck: no better than the frequencies of bytes. Diverged: a loss or gradient that is not finite."""


class Cell(NamedTuple):
    """What one row of the table is about."""

    part: str
    """One of `PARTS`."""
    arm: str
    layers: int
    rate: float
    warm_up: int
    seed: int


class Found(NamedTuple):
    """What was measured; None for what was not, or has no value."""

    status: str
    loss: float | None = None
    """Held-out, nats a byte; of shapes the squared error."""
    sums_right: float | None = None
    """Share of held-out sums whose whole answer is the likeliest, byte by byte."""
    drop_change: float | None = None
    """Rise of the loss without the last quarter of the blocks."""
    growth: float | None = None
    """Of the residual stream from the embedding to the last block."""
    largest_gradient: float | None = None
    step_ms: float | None = None
    memory_gib: float | None = None


class Plan(NamedTuple):
    """Sizes of the whole study."""

    depths: tuple[int, ...] = (24, 48)
    rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    warm_ups: tuple[int, ...] = (0,)
    seeds: int = 3
    steps: int = 500
    rows: int = 8
    length: int = 512
    shape_layers: int = 12
    shape_width: int = 256
    shape_rows: int = 128
    device: str = "cuda"
    is_eager: bool = False
    is_transformers: bool = False

    def cells(self) -> list[Cell]:
        """All trainings, seed by seed, so that a study that is cut short has whole comparisons."""
        found = [Cell("cost", arm, n, 0.0, 0, 0) for n in self.depths for arm in ARMS]
        middle = self.rates[len(self.rates) // 2]
        for seed in range(self.seeds):
            for layers in self.depths:
                for warm_up in self.warm_ups:
                    for rate in self.rates:
                        arms = [arm for arm in ARMS if arm != "post" or rate == middle]
                        found += [Cell("text", arm, layers, rate, warm_up, seed) for arm in arms]
            found += [Cell("shapes", arm, self.shape_layers, 1e-3, 0, seed) for arm in ARMS]
        return found


TINY = Plan((4, 8), (1e-3, 4e-3), (0, 4), 2, 6, 4, 64, 2, 32, 8, "cpu")


class TooLate(Exception):
    """The minutes are over."""


# --- the text


class Text(NamedTuple):
    """Training bytes, held-out bytes, and the held-out sums."""

    train: Tensor
    held: Tensor
    sums: Tensor
    held_sums: list[str]
    unigram: float
    """Nats a held-out byte by the frequencies of bytes."""


@functools.cache
def make_text(path: Path | None) -> Text:
    """Bytes of a file, its last tenth held out, and all sums of two numbers of two digits."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    sums = [f"{a}+{b}={a + b}\n" for a, b in pairs]
    is_held = [int(digest(one), 16) % 10 == 0 for one in sums]
    trained = [one for one, held in zip(sums, is_held, strict=True) if not held]
    held_sums = [one for one, held in zip(sums, is_held, strict=True) if held]
    order = torch.randperm(len(trained), generator=torch.Generator().manual_seed(1)).tolist()
    stream = _bytes("".join(trained[i] for i in order))
    content = stream if path is None else read(path)
    cut = len(content) - len(content) // 10
    train, held = content[:cut], content[cut:]
    shares = (torch.bincount(train, minlength=256) + 1.0) / (len(train) + 256)
    unigram = float(-shares.log()[held].mean())
    return Text(train, held, stream, held_sums, unigram)


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()))


def _rows(source: Tensor, starts: Tensor, length: int) -> Tensor:
    return source[starts.unsqueeze(1) + torch.arange(length)]


def batch(text: Text, plan: Plan, draw: torch.Generator) -> Tensor:
    """Rows of text, then as many of sums."""
    half = plan.rows // 2
    parts = []
    for source, count in ((text.train, plan.rows - half), (text.sums, half)):
        starts = torch.randint(0, len(source) - plan.length, (count,), generator=draw)
        parts.append(_rows(source, starts, plan.length))
    return torch.cat(parts)


# --- a training


def model_of(arm: str, layers: int, plan: Plan, seed: int) -> nn.Module:
    """A new model with the first weights of its family, in the built-in decoder or in transformers."""
    width, heads = WIDTHS[layers], max(1, WIDTHS[layers] // 64)
    inner = 64 * round(width * 8 / 3 / 64) or 64
    made = new_model(
        seed=seed,
        vocab_size=256,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=plan.length,
        initializer_range=0.02,
        norm_topology=ARMS[arm],
        tie_word_embeddings=False,
    )
    if plan.is_transformers:
        return made.to(plan.device)
    decoder = Decoder(
        Architecture(
            family=OWN,
            vocab_size=256,
            hidden_size=width,
            intermediate_size=inner,
            layers=layers,
            heads=heads,
            kv_heads=heads,
            head_dim=width // heads,
            norm_eps=1e-5,
            rope_theta=10_000.0,
            max_positions=plan.length,
            topology=Topology(ARMS[arm]),
        )
    )
    decoder.load_state_dict(made.state_dict())
    return decoder.to(plan.device)


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Of the next byte, at every place of the rows."""
    if not isinstance(model, Decoder):
        found: Tensor = model(ids, use_cache=False).logits
        return found
    positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    return model.logits(model(ModelInput(ids, positions)))


def next_byte_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Nats a byte."""
    logits = logits_of(model, ids)[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


class Step:
    """A step of AdamW with the norm of gradients cut at 1. On a GPU it is recorded once and replayed:
    48 narrow layers would otherwise wait for the launch of each kernel."""

    def __init__(
        self, model: nn.Module, loss: Callable[..., Tensor], given: Sequence[Tensor], plan: Plan
    ) -> None:
        self.model, self.loss, self.device = model, loss, plan.device
        self.given = [one.to(plan.device) for one in given]
        self.rate = torch.zeros((), device=plan.device)
        self.largest = torch.zeros((), device=plan.device)
        """Norm of the gradient, over all steps."""
        is_gpu = plan.device == "cuda"
        self.optimiser = torch.optim.AdamW(
            model.parameters(),
            self.rate,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            fused=is_gpu,
            capturable=is_gpu,
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        if is_gpu and not plan.is_eager:
            self._record()

    def __call__(self, given: Sequence[Tensor], rate: float) -> None:
        """Take a step on these rows."""
        self.rate.fill_(rate)
        for place, one in zip(self.given, given, strict=True):
            place.copy_(one)
        if self.graph is None:
            self._work()
        else:
            self.graph.replay()

    def _work(self) -> None:
        self.optimiser.zero_grad()
        is_gpu = self.device == "cuda"
        with torch.autocast(self.device, torch.bfloat16, enabled=is_gpu, cache_enabled=False):
            value = self.loss(*self.given)
        value.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.largest.copy_(torch.maximum(self.largest, norm))
        self.optimiser.step()

    def _record(self) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # at rate 0, so that no weight moves
                self._work()
        torch.cuda.current_stream().wait_stream(aside)
        self.optimiser.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._work()
        self.largest.zero_()
        for state in self.optimiser.state.values():
            for one in state.values():
                one.zero_()


def train(
    model: nn.Module,
    draw: Callable[[], Sequence[Tensor]],
    loss: Callable[..., Tensor],
    cell: Cell,
    plan: Plan,
    until: float,
) -> float | None:
    """A cosine to a tenth of the rate; the largest gradient, None where one was not finite."""
    step = Step(model, loss, draw(), plan)
    for done in range(plan.steps):
        scale = min(1.0, (done + 1) / max(cell.warm_up, 1))
        scale *= 0.1 + 0.45 * (1 + math.cos(math.pi * done / plan.steps))
        step(draw(), cell.rate * scale)
        # Now and then: reading a number waits for the GPU.
        if done % 20 == 19 or done == plan.steps - 1:
            if not bool(step.largest.isfinite()):
                return None
            if time.time() > until:
                raise TooLate
    return float(step.largest)


def run_text(cell: Cell, plan: Plan, text: Text, until: float) -> Found:
    """Train a language model and measure it on held-out bytes and sums."""
    model = model_of(cell.arm, cell.layers, plan, cell.seed)
    draw = torch.Generator().manual_seed(Seeds(cell.seed).for_("gpu rows"))
    largest = train(
        model,
        lambda: [batch(text, plan, draw)],
        functools.partial(next_byte_loss, model),
        cell,
        plan,
        until,
    )
    if largest is None:
        return Found(DIVERGED)
    model.eval()
    with torch.autocast(plan.device, torch.bfloat16, enabled=plan.device == "cuda"):
        return measure(model, cell, plan, text)._replace(largest_gradient=largest)


@torch.no_grad()
def measure(model: nn.Module, cell: Cell, plan: Plan, text: Text) -> Found:
    places = torch.linspace(0, len(text.held) - plan.length - 1, 32).long()
    ids = _rows(text.held, places, plan.length).to(plan.device)

    def loss() -> float:
        rows = [float(next_byte_loss(model, part)) for part in ids.split(8)]
        return statistics.mean(rows)

    deep = range(cell.layers - max(1, cell.layers // 4), cell.layers)
    with LayerWatch(model) as watch:
        value = loss()
    if not math.isfinite(value):
        return Found(DIVERGED)
    dropped = drop_sensitivity(model, loss, [deep])[0].change
    return Found(
        OK if value < text.unigram else STUCK,
        value,
        sums_right(model, text.held_sums, plan),
        dropped if math.isfinite(dropped) else None,
        watch.report().growth,
    )


def sums_right(model: nn.Module, sums: Sequence[str], plan: Plan) -> float:
    """Sums of which every byte of the answer is the likeliest one, behind three others as examples."""
    right = 0
    examples = "17+25=42\n31+40=71\n55+66=121\n"
    for length in sorted({len(one) for one in sums}):
        own = [one for one in sums if len(one) == length]
        ids = torch.stack([_bytes(examples + one) for one in own]).to(plan.device)
        begin = len(examples) + own[0].index("=") + 1
        for part in ids.split(256):
            best = logits_of(model, part).argmax(-1)
            right += int((best[:, begin - 1 : -1] == part[:, begin:]).all(1).sum())
    return right / len(sums)


def run_shapes(cell: Cell, plan: Plan, until: float) -> Found:
    """Train a diffusion transformer with flow matching and measure it on held-out shapes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        model = DiffusionTransformer(
            size=plan.shape_width, layers=cell.layers, norm_topology=ARMS[cell.arm]
        ).to(plan.device)
    draw = torch.Generator().manual_seed(Seeds(cell.seed).for_("gpu shapes"))

    def rows(count: int, draw: torch.Generator) -> list[Tensor]:
        images, labels = draw_shapes(count, 32, draw)
        noise = torch.randn(images.shape, generator=draw)
        return [images, labels, noise, torch.rand(count, generator=draw)]

    def loss(*given: Tensor) -> Tensor:
        return flow_loss(model, *given).loss

    largest = train(model, lambda: rows(plan.shape_rows, draw), loss, cell, plan, until)
    if largest is None:
        return Found(DIVERGED)
    held = rows(4 * plan.shape_rows, torch.Generator().manual_seed(99))
    with torch.no_grad():
        value = float(loss(*(one.to(plan.device) for one in held)))
    if not math.isfinite(value):
        return Found(DIVERGED)
    return Found(OK, value, largest_gradient=largest)


def run_cost(cell: Cell, plan: Plan, text: Text) -> Found:
    """Time and memory of a training step; nothing else may run on the GPU."""
    is_gpu = plan.device == "cuda"
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = model_of(cell.arm, cell.layers, plan, cell.seed)
    draw = torch.Generator().manual_seed(1)
    step = Step(model, functools.partial(next_byte_loss, model), [batch(text, plan, draw)], plan)
    times = []
    for _ in range(13):
        ids = batch(text, plan, draw)
        begin = time.perf_counter()
        step([ids], 1e-4)
        if is_gpu:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin))
    memory = torch.cuda.max_memory_allocated() / 2**30 if is_gpu else None
    return Found(OK, step_ms=statistics.median(times[3:]), memory_gib=memory)


class Job(NamedTuple):
    """What a process gets."""

    cell: Cell
    plan: Plan
    path: Path | None
    until: float


def run(job: Job) -> tuple[Cell, Found | None]:
    """One cell; None where the minutes were over."""
    cell, plan = job.cell, job.plan
    torch.set_num_threads(1)
    if time.time() > job.until:
        return cell, None
    try:
        if cell.part == "shapes":
            return cell, run_shapes(cell, plan, job.until)
        text = make_text(job.path)
        if cell.part == "cost":
            return cell, run_cost(cell, plan, text)
        return cell, run_text(cell, plan, text, job.until)
    except TooLate:
        return cell, None
    except torch.OutOfMemoryError:
        print(f"{' '.join(map(str, cell))}: no memory left; start it again, with fewer processes")
        torch.cuda.empty_cache()
        return cell, None


# --- the table

COLUMNS = (*Cell._fields, *Found._fields)


def read_rows(file: Path) -> dict[Cell, Found]:
    """The rows that are there; one that was cut off while it was written does not count."""
    if not file.is_file():
        return {}
    found = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if any(row.get(name) is None for name in COLUMNS):
                continue
            cell = Cell(
                row["part"],
                row["arm"],
                int(row["layers"]),
                float(row["rate"]),
                int(row["warm_up"]),
                int(row["seed"]),
            )
            numbers = {n: float(row[n]) if row[n] else None for n in Found._fields[1:]}
            found[cell] = Found(row["status"], **numbers)
    return found


def write_rows(file: Path, rows: dict[Cell, Found]) -> None:
    """All rows, complete or as they were before."""
    partial = file.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        for cell, found in rows.items():
            writer.writerow(["" if value is None else value for value in (*cell, *found)])
    partial.replace(file)


def _mean(values: Iterable[float | None], digits: int = 3) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.{digits}f}{spread}"


def tokens_line(plan: Plan) -> str:
    """How much a language model reads, as a sentence."""
    tokens = plan.steps * plan.rows * plan.length
    return (
        f"A training on text reads {tokens:,} tokens: {plan.steps:,} steps x {plan.rows} rows x "
        f"{plan.length} bytes."
    )


def report(rows: dict[Cell, Found]) -> str:
    """Means and standard deviations over seeds, as Markdown; diverged trainings are counted."""
    lines = [
        "| part | layers | arm | rate | warm-up | seeds | loss | sums right | without the last quarter "
        "| growth of the stream | largest gradient | stuck | diverged | ms a step | GiB |",
        "|---" * 15 + "|",
    ]
    groups: dict[tuple[Any, ...], list[Found]] = {}
    for cell, found in rows.items():
        groups.setdefault((cell.part, cell.layers, cell.arm, cell.rate, cell.warm_up), []).append(
            found
        )
    order = list(ARMS)
    for key in sorted(groups, key=lambda k: (k[0], k[1], k[4], k[3], order.index(k[2]))):
        own = groups[key]
        part, layers, arm, rate, warm_up = key
        figures = [
            _mean(one.loss for one in own),
            _mean(one.sums_right for one in own),
            _mean((one.drop_change for one in own), 2),
            _mean((one.growth for one in own), 0),
            _mean((one.largest_gradient for one in own), 2),
            str(sum(one.status == STUCK for one in own)),
            str(sum(one.status == DIVERGED for one in own)),
            _mean((one.step_ms for one in own), 1),
            _mean((one.memory_gib for one in own), 2),
        ]
        head = [part, str(layers), arm, f"{rate:g}", str(warm_up), str(len(own))]
        lines.append("| " + " | ".join((*head, *figures)) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("text", type=Path, nargs="?", help="text or Parquet; sums alone without it")
    parser.add_argument("--out", type=Path, default=Path("lab/siamesenorm/results"))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--steps", type=int, default=0, help="500 where not given")
    parser.add_argument("--depths", type=int, nargs="+", help="layers; both where not given")
    parser.add_argument("--rates", type=float, nargs="+", help="all three where not given")
    parser.add_argument("--rows", type=int, default=0, help="of a step; 8 where not given")
    parser.add_argument("--seeds", type=int, default=0, help="3 where not given")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--warm-ups", type=int, nargs="+", help="steps; 0 where not given")
    parser.add_argument("--eager", action="store_true", help="launch each kernel, replay nothing")
    parser.add_argument("--transformers", action="store_true", help="its model instead of ours")
    parser.add_argument("--cpu", action="store_true", help="tiny models, to see that all parts run")
    given = parser.parse_args(arguments)
    plan = TINY if given.cpu else Plan(is_eager=given.eager)
    plan = plan._replace(is_transformers=given.transformers)
    plan = plan._replace(warm_ups=tuple(given.warm_ups or plan.warm_ups))
    plan = plan._replace(steps=given.steps or plan.steps, seeds=given.seeds or plan.seeds)
    usual = plan.rows
    plan = plan._replace(rows=given.rows or usual)
    if plan.rows < 2:
        parser.error(f"--rows: got {plan.rows}, expected 2 or more; half of them are sums")
    if plan.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU here; --cpu runs every part with tiny models")
    until = time.time() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    kind = "gpu-tiny" if given.cpu else f"gpu-{plan.steps}{'-eager' * given.eager}"
    kind += f"-{plan.rows}-rows" * (plan.rows != usual) + "-transformers" * given.transformers
    file = given.out / f"{kind}.csv"
    rows = read_rows(file)
    wanted = [cell for cell in plan.cells() if cell.part in given.parts]
    if given.depths:
        wanted = [c for c in wanted if c.layers in given.depths or c.part == "shapes"]
    if given.rates:
        wanted = [c for c in wanted if c.rate in given.rates or c.part != "text"]
    jobs = [Job(cell, plan, given.text, until) for cell in wanted if cell not in rows]

    def keep(cell: Cell, found: Found | None) -> None:
        if found is None:
            return
        rows[cell] = found
        write_rows(file, rows)
        print(f"{len(rows)}/{len(wanted)} {' '.join(map(str, cell))}: {found.status} {found.loss}")

    # Costs first, one by one and in this process; with others beside them they mean nothing.
    for job in [one for one in jobs if one.cell.part == "cost"]:
        keep(*run(job))
    rest = [one for one in jobs if one.cell.part != "cost"]
    if given.cpu or given.processes < 2:
        for job in rest:
            keep(*run(job))
    else:
        torch.cuda.empty_cache()
        with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
            for cell, found in pool.imap_unordered(run, rest):
                keep(cell, found)
    said = f"{tokens_line(plan)}\n\n{report(rows)}\n"
    file.with_suffix(".md").write_text(said, encoding="utf-8")
    print(said)
    if missing := len(wanted) - sum(cell in rows for cell in wanted):
        print(f"{missing} of {len(wanted)} are missing: the minutes were over; start it again.")


if __name__ == "__main__":
    main(sys.argv[1:])
