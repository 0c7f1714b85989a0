"""Decoders of the grid study, the questions of a seed, and one training of them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.models.visual_latent import LatentHead, LatentRows, LatentTags, latent_step
from burnish.models.visual_latent.step import decode, embedded, positions
from burnish.seeds import Seeds
from lab.gap.world import (
    COLOUR_NAMES,
    Example,
    Words,
    World,
    joined,
    moved,
    own_words,
    vocabulary,
)

WARM_UP, SAMPLES = 30, 8
SMOL_CELLS = " A B C D E F G H I J K L M N O P"
SMOL_OPS = " rotate flip transpose rows columns swap"


OWN = {"tiny": (2, 3, 64, 3), "small": (3, 2, 96, 4)}
"""Side, operations at most, width and layers of decoders that are trained from nothing."""
STD = 0.05
"""Of their embeddings, so that hidden states become many times longer."""


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
            print(f"  {step + 1}/{steps}: {told}  {took:.3f} s a step", file=sys.stderr, flush=True)
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
