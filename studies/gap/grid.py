"""GAP on the grid world: a picture is changed several times, and the pictures between help to answer.

    python -m studies.gap.grid                                          # small decoder, CPU, 3 seeds
    python -m studies.gap.grid --size smollm2 --device cuda --processes 8   # SmolLM2, one GPU
    python -m studies.gap.grid --trial                                  # a few steps, nothing is kept
    python -m studies.gap.report                                        # tables and pictures again

Stage 1 trains a decoder to answer at once, without latents; stage 2 goes on from it with each arm.
`small`: 3 x 3 cells, 1 or 2 operations, 4 layers of width 96 from small embeddings, so that hidden
states become many times longer than inputs. `smollm2`: 4 x 4 cells, 1 to 4 operations, the embedded
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
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.models.visual_latent import (
    LatentHead,
    LatentRows,
    LatentTags,
    generate_latents,
    latent_step,
    norm_ratio,
    use_latent,
)
from burnish.models.visual_latent.step import decode, embedded, positions
from burnish.seeds import Seeds
from studies.gap.world import (
    COLOUR_NAMES,
    Example,
    Words,
    World,
    joined,
    moved,
    own_words,
    vocabulary,
)

LADDER = ("raw", "normed", "ema_norm", "linear", "pca")
CONTROLS = ("none", "none_long", "filler", "notes")
GATED = ("pca_gate", "pca_random")
ARMS = (*CONTROLS, *LADDER, *GATED)
PLAYED = ("zero", "mean", "noise", "shuffle", "skip", "oracle")
WARM_UP, SAMPLES, TAU = 30, 8, 0.5
SMOL_CELLS = " A B C D E F G H I J K L M N O P"
SMOL_OPS = " rotate flip transpose rows columns swap"


OWN = {"tiny": (2, 3, 64, 3), "small": (3, 2, 96, 4)}
"""Side, operations at most, width and layers of decoders that are trained from nothing."""
STD = 0.05
"""Of their embeddings, so that hidden states become many times longer."""


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


class Plan(NamedTuple):
    """What a process needs to do a cell."""

    size: str
    device: str
    first: int
    steps: int
    rows: int
    rate: float
    rho: float
    held: int
    out: Path
    is_trial: bool

    @property
    def name(self) -> str:
        return f"{self.size}-{self.first}-{self.steps}"


def new_world(size: str, seed: int) -> World:
    """The world of a seed, with the words of the decoder."""
    if size in OWN:
        side, operations, width, _ = OWN[size]
        # Embeddings of std 0.05, as the decoder's.
        return World(seed, side, operations, width, STD * width**0.5, own_words(side))
    from burnish.lm.folder import load_model

    loaded = load_model("smollm2")
    encode = loaded.tokenizer.encode_data

    def ids(text: str) -> tuple[int, ...]:
        return tuple(encode(f" {word}")[0] for word in text.split())

    special = {word: loaded.tokenizer.backend.token_to_id(word) for word in TAG_NAMES}
    tags = LatentTags(*(int(special[word] or 0) for word in TAG_NAMES))
    words = Words(tags, ids(SMOL_OPS), ids(SMOL_CELLS), ids(" ".join(COLOUR_NAMES)))
    weight = loaded.module.head_weight.detach().float()
    norm = float(weight.norm(dim=1).mean())
    return World(seed, 4, 4, weight.shape[1], norm, words, patch=2)


TAG_NAMES = ("<file_sep>", "<filename>", "<|im_end|>")
"""Tokens of SmolLM2 that are never text: start, end, stop."""


def new_decoder(world: World, size: str) -> Any:
    """A Llama of 4 layers with small embeddings of its own, or SmolLM2."""
    import transformers

    if size == "smollm2":
        from burnish.lm.embedded import embedded_model

        return transformers.AutoModelForCausalLM.from_pretrained(
            str(embedded_model()), dtype=torch.float32, local_files_only=True
        )
    torch.manual_seed(Seeds(world.seed).for_("gap decoder") % 2**31)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary(world.words),
        hidden_size=world.size,
        intermediate_size=2 * world.size,
        num_hidden_layers=OWN[size][3],
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=STD)
    return model


def train(
    plan: Plan,
    model: Any,
    head: LatentHead,
    rows_of: Callable[[int], LatentRows],
    steps: int,
    *,
    rho: float,
    alpha: float,
    seed: int,
) -> int:
    """AdamW with a warm-up and a cosine; the share of steps fed with own latents rises to `rho`.

    Gives the positions computed; a pass without gradients counts as a third of one with them.
    """
    weights = [*model.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(weights, plan.rate, betas=(0.9, 0.95), weight_decay=0.01)
    draw = torch.Generator().manual_seed(Seeds(seed).for_("gap own latents"))
    is_cuda, computed, began = plan.device == "cuda", 0.0, time.monotonic()
    model.train()
    for step in range(steps):
        scale = 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * scale * min(1.0, (step + 1) / WARM_UP)
        rows = rows_of(step)
        # A whole step at once: its passes are one after another, for one row or for all.
        is_own = float(torch.rand((), generator=draw)) < rho * step / steps
        is_own = is_own and bool(rows.is_latent_BT.any())
        own_B = torch.ones(len(rows.ids_BT), dtype=torch.bool, device=rows.ids_BT.device)
        with torch.autocast("cuda", torch.bfloat16, enabled=is_cuda):
            found = latent_step(model, head, rows, alpha=alpha, own_B=own_B if is_own else None)
        optimiser.zero_grad()
        found.loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        head.observe(rows.vectors_BTD[rows.is_image_BT])
        count, length = rows.ids_BT.shape
        computed += count * length
        if is_own:
            slots = int(rows.is_latent_BT.sum(1).max())
            computed += count * slots * length / 6  # a third; half of the row is seen on average
        if (step + 1) % max(1, steps // 4) == 0:
            told = ", ".join(f"{name} {part.item():.3f}" for name, part in found.parts.items())
            took = (time.monotonic() - began) / (step + 1)
            print(
                f"  {step + 1}/{steps}: {told}  {took:.3f} s a step", file=sys.stderr, flush=True
            )
    model.eval()
    return round(computed)


class Task:
    """Batches and held-out questions of one seed."""

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.world, self.seeds = plan, world, Seeds(world.seed)
        self.device = torch.device(plan.device)

    def generator(self, purpose: str, index: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seeds.for_(purpose, index))

    def drawn(self, count: int, draw: torch.Generator) -> list[Example]:
        """As many questions of each number of operations."""
        numbers = range(1, self.world.operations + 1)
        return [self.world.examples(-(-count // len(numbers)), n, draw) for n in numbers]

    def batch(self, purpose: str, step: int, format_: str) -> LatentRows:
        draw = self.generator(purpose, step)
        groups = [self.world.rows(e, format_, draw) for e in self.drawn(self.plan.rows, draw)]
        return moved(joined(groups), self.device)

    def gated(self, step: int, is_hard: Callable[[Example, torch.Generator], Tensor]) -> LatentRows:
        """A batch with latents for the questions that are called hard."""
        draw, groups = self.generator("gap stage 2", step), []
        for example in self.drawn(self.plan.rows, draw):
            hard_B = is_hard(example, self.generator("gap gate", step))
            for format_, mask_B in (("latents", hard_B), ("text", ~hard_B)):
                if mask_B.any():
                    groups.append(self.world.rows(example.chosen(mask_B), format_, draw))
        return moved(joined(groups), self.device)

    def embeddings(self) -> Tensor:
        """Vectors of pictures as latents have them, for the basis."""
        draw = self.generator("gap basis")
        grids = torch.cat([grid for e in self.drawn(400, draw) for grid in e.grids[1:]])
        return self.world.encode(grids, draw, self.world.patch).flatten(0, 1)

    @torch.no_grad()
    def pass_rates(self, model: Any, example: Example, draw: torch.Generator) -> Tensor:
        """1 or 0 for each of 8 answers of a decoder that answers at once, (B, 8), at temperature 1."""
        prompts = moved(self.world.prompts(example, draw), self.device)
        unused = LatentHead.fit("raw", torch.eye(self.world.size))
        out = decode(
            model, embedded(model, unused, prompts), prompts.mask_BT, positions(prompts.mask_BT)
        )
        chances = out.logits[:, -1].float().softmax(1).cpu()
        answers = torch.multinomial(chances, SAMPLES, replacement=True, generator=draw)
        truth = torch.tensor(self.world.words.colours)[example.truth_B]
        return (answers == truth.unsqueeze(1)).float()


class Measured(NamedTuple):
    """Of held-out questions."""

    accuracy: float
    by_operations: dict[str, float]
    spans: float
    fed_ratio: float | None
    r2: float | None
    clipped: float | None


def measure(task: Task, model: Any, head: LatentHead, arm: str) -> tuple[Measured, dict[str, float]]:
    """Generate the answers of held-out questions, plain and under each intervention."""
    world, found = task.world, Collected(head)
    has_spans = arm not in ("none", "none_long", "notes")
    for number in range(1, world.operations + 1):
        draw = task.generator("gap held out", number)
        count = -(-task.plan.held // world.operations)
        example = world.examples(count, number, draw)
        prompts = moved(world.prompts(example, draw), task.device)
        targets = [world.encode(grid, draw, world.patch) for grid in example.grids[1:]]
        targets_BSKD = torch.stack(targets, 1).to(task.device)
        truth = torch.tensor(world.words.colours)[example.truth_B].tolist()
        noise = torch.Generator(task.device).manual_seed(task.seeds.for_("gap interventions"))

        def run(
            intervention: str,
            latents: Any = None,
            prompts: LatentRows = prompts,
            number: int = number,
            noise: torch.Generator = noise,
        ) -> Any:
            return generate_latents(
                *(model, head, prompts, world.words.tags),
                slots=world.slots,
                max_tokens=(world.cells * number if arm == "notes" else 2 * number) + 2,
                max_spans=number if has_spans else 0,
                intervention=intervention,
                latents=latents,
                generator=noise,
            )

        plain = run("mean" if arm == "filler" else "none")
        found.add(number, plain, truth, targets_BSKD)
        if not has_spans or arm == "filler":
            continue
        for name in PLAYED:
            given: Any = None
            if name == "oracle":
                given = [list(spans) for spans in targets_BSKD]
            elif name == "shuffle":
                given = [answer.latents for answer in plain]
                if sum(map(bool, given)) < 2:
                    continue  # nothing to exchange: the model writes no latents
            found.played.setdefault(name, []).extend(right(run(name, given), truth))
    return found.measured(), {name: mean_of(marks) for name, marks in found.played.items()}


class Collected:
    """Sums over the numbers of operations."""

    def __init__(self, head: LatentHead) -> None:
        self.mean_D = head.mean
        self.marks: list[float] = []
        self.by: dict[str, float] = {}
        self.played: dict[str, list[float]] = {}
        self.spans = self.clipped = 0
        self.fed: list[Tensor] = []
        self.wanted: list[Tensor] = []

    def add(self, number: int, answers: Any, truth: list[int], targets_BSKD: Tensor) -> None:
        marks = right(answers, truth)
        self.marks += marks
        self.by[str(number)] = mean_of(marks)
        for answer, spans in zip(answers, targets_BSKD, strict=True):
            self.spans += len(answer.latents)
            self.clipped += answer.clipped
            for fed, wanted in zip(answer.latents, spans, strict=False):
                self.fed.append(fed.float())
                self.wanted.append(wanted)

    def measured(self) -> Measured:
        accuracy, spans = mean_of(self.marks), self.spans / len(self.marks)
        if not self.fed:
            return Measured(accuracy, self.by, spans, None, None, None)
        fed, wanted = torch.stack(self.fed), torch.stack(self.wanted)
        error = (fed - wanted).square().sum() / (wanted - self.mean_D).square().sum()
        latents = fed.shape[0] * fed.shape[1]
        ratio = norm_ratio(fed, wanted)
        return Measured(
            accuracy, self.by, spans, ratio, float(1 - error), self.clipped / latents
        )


def right(answers: Any, truth: list[int]) -> list[float]:
    """1 where an answer ends in the right colour and stops."""
    return [
        float(answer.is_finished and len(answer.ids) > 1 and answer.ids[-2] == wanted)
        for answer, wanted in zip(answers, truth, strict=True)
    ]


def mean_of(marks: list[float]) -> float:
    return sum(marks) / len(marks)


# --- the two stages


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


# --- cells in files


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
    parser.add_argument("--out", type=Path, default=Path("studies/gap/results"))
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
    values = {n: v if getattr(given, n) is None else getattr(given, n) for n, v in DEFAULTS[given.size].items()}
    if given.trial:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            values |= {"first": 3, "steps": 2, "rows": 8}
            plan = Plan(given.size, given.device, **values, rho=1.0, held=8, out=Path(folder), is_trial=True)
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
    from studies.gap.report import write

    print(write(plan.out / f"{plan.name}.csv"))


if __name__ == "__main__":
    main(sys.argv[1:])
