"""Answers of a decoder in the grid world: generated, marked, and with latents replaced."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.models.visual_latent import LatentHead, LatentRows, generate_latents, norm_ratio
from lab.gap.decoders import Task
from lab.gap.world import moved

PLAYED = ("zero", "mean", "noise", "shuffle", "skip", "oracle")


class Measured(NamedTuple):
    """Of held-out questions."""

    accuracy: float
    by_operations: dict[str, float]
    spans: float
    fed_ratio: float | None
    r2: float | None
    clipped: float | None


def measure(
    task: Task, model: Any, head: LatentHead, arm: str
) -> tuple[Measured, dict[str, float]]:
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
        return Measured(accuracy, self.by, spans, ratio, float(1 - error), self.clipped / latents)


def right(answers: Any, truth: list[int]) -> list[float]:
    """1 where an answer ends in the right colour and stops."""
    return [
        float(answer.is_finished and len(answer.ids) > 1 and answer.ids[-2] == wanted)
        for answer, wanted in zip(answers, truth, strict=True)
    ]


def mean_of(marks: list[float]) -> float:
    return sum(marks) / len(marks)
