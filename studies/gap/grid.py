"""GAP on the grid world: a picture is changed twice, and the picture between helps to answer.

    python -m studies.gap.grid                      # three seeds; not run yet
    python -m studies.gap.grid --trial              # a few steps: only proves that it runs

3 x 3 coloured cells are drawn as a 24 x 24 picture with noise; a frozen encoder makes one vector of
each 8 x 8 patch. The question has two operations and a cell; the answer is that cell's colour. The
latents of a span are the picture after one operation. Stage 1 trains a decoder of 4 layers without
latents, from small embeddings, so that its hidden states are many times longer than its inputs. Stage
2 goes on from it with each head, and without latents. Every answer is generated: latents by the head,
then replaced by each intervention. A cell is written when it is done, and a second start goes on
behind the last one. There are no parser notes in this world: text alone would solve it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
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
)
from burnish.models.visual_latent.step import decode, embedded, positions
from burnish.seeds import Seeds

SIDE, COLOURS, OPERATIONS, SIZE = 3, 6, 2, 96
CELLS = SIDE * SIDE
TAGS = LatentTags(start=1, end=2, stop=3)
OPS = ("rotate", "flip", "transpose", "shift rows", "shift columns", "swap colours")
FIRST_OP, FIRST_CELL = 4, 4 + len(OPS)
FIRST_COLOUR = FIRST_CELL + CELLS
VOCABULARY = FIRST_COLOUR + COLOURS
ARMS = ("none", "raw", "normed", "ema_norm", "linear", "pca")
PLAYED = ("zero", "mean", "noise", "shuffle", "skip", "oracle")
ROWS, WARM_UP, NOISE, SCALE = 64, 30, 0.1, 0.05


class Cell(NamedTuple):
    """One training: accuracy with its own latents and under each intervention."""

    arm: str
    seed: int
    examples: int
    accuracy: float
    gap: float
    """Norm of the hidden states over that of vision embeddings, after stage 1."""
    fed_ratio: float | None
    """Norm of the latents that are fed, over that of vision embeddings."""
    r2: float | None
    """Of generated latents against the true pictures."""
    interventions: dict[str, float]


class World:
    """The frozen encoder, and rows of the task."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(Seeds(seed).for_("gap encoder"))
        self.palette = torch.rand(COLOURS, 3, generator=draw)
        self.filters = torch.randn(3 * 64, SIZE, generator=draw) * (SCALE * 2 / 14)
        self.places = torch.randn(CELLS, SIZE, generator=draw) * SCALE / 2

    def encode(self, grids: Tensor, draw: torch.Generator) -> Tensor:
        """Colours (..., 9) to one vector a cell (..., 9, D), by way of noisy pixels."""
        pixels = self.palette[grids].unsqueeze(-2).expand(*grids.shape, 64, 3) - 0.5
        pixels = pixels + NOISE * torch.randn(pixels.shape, generator=draw)
        return pixels.flatten(-2) @ self.filters + self.places

    def rows(self, count: int, draw: torch.Generator, *, latents: bool) -> LatentRows:
        """Image, operations, cell, then a span for each operation where there are latents, answer."""
        grids = [torch.randint(COLOURS, (count, CELLS), generator=draw)]
        operations = torch.randint(len(OPS), (count, OPERATIONS), generator=draw)
        asked = torch.randint(CELLS, (count, 1), generator=draw)
        for step in range(OPERATIONS):
            grids.append(changed(grids[-1], operations[:, step]))
        answer = grids[-1].gather(1, asked) + FIRST_COLOUR
        slot, blank = torch.zeros(count, CELLS, dtype=torch.long), torch.zeros(count, CELLS, SIZE)
        parts = [slot, operations + FIRST_OP, asked + FIRST_CELL]
        vectors = [self.encode(grids[0], draw), blank[:, : OPERATIONS + 1]]
        kinds = "i" * CELLS + "q" * (OPERATIONS + 1)
        for grid in grids[1:] if latents else ():
            parts += [filled(count, TAGS.start), slot, filled(count, TAGS.end)]
            vectors += [blank[:, :1], self.encode(grid, draw), blank[:, :1]]
            kinds += "t" + "z" * CELLS + "t"
        parts += [answer, filled(count, TAGS.stop)]
        vectors.append(blank[:, :2])
        kinds += "tt"
        ids = torch.cat(parts, 1)
        of = {kind: torch.tensor([k == kind for k in kinds]).expand_as(ids) for kind in "izt"}
        labels = ids.masked_fill(~of["t"], -100)
        mask = torch.ones_like(ids, dtype=torch.bool)
        return LatentRows(ids, mask, torch.cat(vectors, 1), of["i"], of["z"], labels)


def filled(count: int, token: int) -> Tensor:
    """(count, 1) of one token."""
    return torch.full((count, 1), token)


def changed(grids: Tensor, operations: Tensor) -> Tensor:
    """Grids (B, 9) after the operation of each row (B,)."""
    square = grids.view(-1, SIDE, SIDE)
    swapped = torch.where(square == 0, 1, torch.where(square == 1, 0, square))
    all_ = torch.stack(
        (
            square.rot90(1, (1, 2)),
            square.flip(2),
            square.transpose(1, 2),
            square.roll(1, 1),
            square.roll(1, 2),
            swapped,
        )
    )
    return all_[operations, torch.arange(len(grids))].reshape(-1, CELLS)


def new_decoder(seed: int) -> Any:
    """A Llama of 4 layers with small embeddings of its own, apart from its head."""
    import transformers

    torch.manual_seed(Seeds(seed).for_("gap decoder") % 2**31)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=SIZE,
        intermediate_size=2 * SIZE,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=SCALE)
    return model


def train(
    model: Any, head: LatentHead, rows_of: Any, steps: int, *, rate: float, rho: float, seed: int
) -> None:
    """AdamW with a warm-up and a cosine; the share of rows fed with own latents rises to `rho`."""
    weights = [*model.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(weights, rate, betas=(0.9, 0.95), weight_decay=0.01)
    draw = torch.Generator().manual_seed(Seeds(seed).for_("gap own latents"))
    model.train()
    for step in range(steps):
        scale = min(1.0, (step + 1) / WARM_UP) * (
            0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
        )
        for group in optimiser.param_groups:
            group["lr"] = rate * scale
        rows = rows_of(step)
        own = torch.rand(len(rows.ids_BT), generator=draw) < rho * step / steps
        has_latents = bool(rows.is_latent_BT.any())
        # Mean over the coefficients, so that the text is not drowned.
        alpha = 1.0 / len(head.eigenvalues)
        found = latent_step(model, head, rows, alpha=alpha, own_B=own if has_latents else None)
        optimiser.zero_grad()
        found.loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        head.observe(rows.vectors_BTD[rows.is_image_BT])
        if (step + 1) % max(1, steps // 5) == 0:
            told = ", ".join(f"{name} {part.item():.3f}" for name, part in found.parts.items())
            print(f"  {step + 1}/{steps}: {told}", file=sys.stderr, flush=True)
    model.eval()


def measure(
    arm: str, seed: int, model: Any, head: LatentHead, rows: LatentRows, examples: int, gap: float
) -> Cell:
    """Generate the answers of held-out rows, plain and under each intervention."""
    is_plain = arm == "none"
    end = CELLS + OPERATIONS + (1 if is_plain else 2)
    prompts = LatentRows(*(part[:, :end] for part in rows[:5] if part is not None))
    truth = rows.ids_BT[:, -2]
    slots = rows.vectors_BTD[rows.is_latent_BT].view(len(truth), -1, CELLS, SIZE)
    targets = [list(spans) for spans in slots] if not is_plain else []
    draw = torch.Generator().manual_seed(Seeds(seed).for_("gap interventions"))

    def run(intervention: str, latents: Any = None) -> Any:
        return generate_latents(
            *(model, head, prompts, TAGS),
            slots=CELLS,
            max_tokens=2 if is_plain else 2 * OPERATIONS + 1,
            max_spans=0 if is_plain else OPERATIONS,
            intervention=intervention,
            latents=latents,
            generator=draw,
        )

    def accuracy(answers: Any) -> float:
        right = [
            answer.is_finished and len(answer.ids) > 1 and answer.ids[-2] == int(wanted)
            for answer, wanted in zip(answers, truth, strict=True)
        ]
        return statistics.mean(map(float, right))

    plain = run("none")
    if is_plain:
        return Cell(arm, seed, examples, accuracy(plain), gap, None, None, {})
    played = {}
    for name in PLAYED:
        given = targets if name == "oracle" else [answer.latents for answer in plain]
        played[name] = accuracy(run(name, given if name in ("oracle", "shuffle") else None))
    fed = torch.stack([span for answer in plain for span in answer.latents[:1]])
    wanted = slots[:, 0]
    error = (fed - wanted).square().sum() / (wanted - head.mean).square().sum()
    ratio = norm_ratio(fed, wanted)
    return Cell(arm, seed, examples, accuracy(plain), gap, ratio, float(1 - error), played)


@torch.no_grad()
def norm_gap(model: Any, head: LatentHead, rows: LatentRows) -> float:
    """How many times longer hidden states are than vision embeddings."""
    out = decode(model, embedded(model, head, rows), rows.mask_BT, positions(rows.mask_BT))
    return norm_ratio(out.hidden.raw, rows.vectors_BTD[rows.is_image_BT])


def run_seed(seed: int, arms: list[str], given: argparse.Namespace) -> Any:
    """Stage 1 once, then stage 2 of each arm from its weights."""
    world, seeds = World(seed), Seeds(seed)

    def drawn(purpose: str, count: int, *, latents: bool, index: int = 0) -> LatentRows:
        draw = torch.Generator().manual_seed(seeds.for_(purpose, index))
        return world.rows(count, draw, latents=latents)

    vision = drawn("gap basis", 400, latents=False)
    embeddings = vision.vectors_BTD[vision.is_image_BT]
    start, unused = new_decoder(seed), LatentHead.fit("raw", embeddings)
    print(f"seed {seed}: stage 1", file=sys.stderr)
    first = {"rate": given.rate, "rho": 0.0, "seed": seed}
    train(
        start,
        unused,
        lambda step: drawn("gap stage 1", ROWS, latents=False, index=step),
        given.first,
        **first,
    )
    gap = norm_gap(start, unused, vision)
    for arm in arms:
        print(f"seed {seed}: {arm} (hidden states {gap:.0f} times their inputs)", file=sys.stderr)
        torch.manual_seed(seeds.for_("gap head") % 2**31)
        model, head = new_decoder(seed), LatentHead.fit("pca" if arm == "none" else arm, embeddings)
        model.load_state_dict(start.state_dict())
        has_latents = arm != "none"
        pool = drawn("gap pool", given.examples, latents=has_latents) if given.examples else None

        def rows_of(
            step: int, pool: LatentRows | None = pool, latents: bool = has_latents
        ) -> LatentRows:
            if pool is None:
                return drawn("gap stage 2", ROWS, latents=latents, index=step)
            draw = torch.Generator().manual_seed(seeds.for_("gap chosen", step))
            chosen = torch.randint(given.examples, (ROWS,), generator=draw)
            return LatentRows(*(part[chosen] for part in pool if part is not None))

        train(model, head, rows_of, given.steps, rate=given.rate, rho=given.rho, seed=seed)
        held = drawn("gap held out", given.held, latents=has_latents)
        yield measure(arm, seed, model, head, held, given.examples, gap)


def table(cells: list[Cell]) -> str:
    """Means and standard deviations over seeds, as Markdown."""
    names = ("accuracy", "fed/vision norm", "R2", *PLAYED)
    lines = [f"| arm | seeds | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for arm in ARMS:
        own = [cell for cell in cells if cell.arm == arm]
        if not own:
            continue
        columns: list[list[float | None]] = [
            [cell.accuracy for cell in own],
            [cell.fed_ratio for cell in own],
            [cell.r2 for cell in own],
            *([cell.interventions.get(name) for cell in own] for name in PLAYED),
        ]
        lines.append(f"| {arm} | {len(own)} | {' | '.join(map(shown, columns))} |")
    return "\n".join(lines)


def shown(values: list[float | None]) -> str:
    """Mean and standard deviation over seeds."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.2f}{spread}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("studies/gap/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--first", type=int, default=900, help="steps of stage 1")
    parser.add_argument("--steps", type=int, default=1600, help="steps of stage 2")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--rho", type=float, default=0.5, help="own latents at the end of stage 2")
    parser.add_argument("--examples", type=int, default=0, help="rows of stage 2; 0: always new")
    parser.add_argument("--held", type=int, default=500, help="held-out rows")
    parser.add_argument("--trial", action="store_true", help="a few steps, nothing is written")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.trial:
        given.seeds, given.first, given.steps, given.held = [0], 3, 2, 8
    settings = f"{given.first}-{given.steps}-{given.rate:g}-{given.rho:g}-{given.examples}"
    file = given.out / f"grid-{settings}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    cells = [] if given.trial else [Cell(**json.loads(line)) for line in lines]
    done = {(cell.arm, cell.seed) for cell in cells}
    for seed in given.seeds:
        arms = [arm for arm in given.arms if (arm, seed) not in done]
        for cell in run_seed(seed, arms, given) if arms else ():
            cells.append(cell)
            print(json.dumps(cell._asdict()), flush=True)
            if not given.trial:
                given.out.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(cell._asdict()) + "\n")
    if not given.trial:
        file.with_suffix(".md").write_text(table(cells) + "\n", encoding="utf-8")
    print(table(cells))


if __name__ == "__main__":
    main(sys.argv[1:])
