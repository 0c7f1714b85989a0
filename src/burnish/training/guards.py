"""Stop before a bad number reaches the weights, name it, and keep what is needed to see it again.

Guards stand after reward, advantage, log-prob, loss and gradient. A tripped guard leaves
`crash/step-N/` in the run folder: the weights before the step, its samples and a report;
`burnish replay FOLDER` runs the step again and arrives at the same line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
from torch import Tensor

from burnish.errors import GuardTripped
from burnish.training.collect import Scored

HINTS = {
    "advantage": "Check the recipe's advantage piece and the rewards of these samples.",
    "logprob": "The model's output is not finite: lower optimiser.learning_rate or use "
    "model.dtype=float32.",
    "loss": "Check the recipe's trust region and auxiliary terms.",
    "gradient": "Lower optimiser.learning_rate or set optimiser.clip_norm.",
}


def check_rows(stage: str, name: str, values_BX: Tensor, ids: Sequence[str], step: int) -> None:
    """Trip where a row (one a sample) holds a NaN or an infinity; names the guilty samples."""
    fine = torch.isfinite(values_BX)
    if bool(fine.all()):
        return
    bad = (~fine).reshape(len(ids), -1).any(1).nonzero()[:, 0].tolist()
    trip(stage, name, step, tuple(ids[i] for i in bad), values_BX[~fine][0].item())


def check_tensors(
    stage: str, named: Iterable[tuple[str, Tensor]], ids: Sequence[str], step: int
) -> None:
    """Trip at the first tensor that is not finite."""
    for name, tensor in named:
        fine = torch.isfinite(tensor)
        if not bool(fine.all()):
            trip(stage, name, step, tuple(ids), tensor[~fine].flatten()[0].item())


def trip(stage: str, tensor: str, step: int, samples: tuple[str, ...], value: float) -> NoReturn:
    """Raise with one line: what, where, got, next step."""
    shown = ", ".join(samples[:3]) + (f" and {len(samples) - 3} more" if len(samples) > 3 else "")
    raise GuardTripped(
        f"{stage} guard: {tensor} is {value} at step {step} (samples {shown}). {HINTS[stage]}",
        stage=stage,
        tensor=tensor,
        step=step,
        samples=samples,
    )


def save_crash(place: Path, error: GuardTripped, scored: Sequence[Scored]) -> None:
    """Write the report and the samples of the step that tripped."""
    place.mkdir(parents=True, exist_ok=True)
    report = {
        "message": str(error),
        "stage": error.stage,
        "tensor": error.tensor,
        "step": error.step,
        "samples": error.samples,
    }
    (place / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    with (place / "samples.jsonl").open("wb") as lines:
        for item in scored:
            lines.write(msgspec.json.encode(item) + b"\n")


def load_crash(place: Path) -> list[Scored]:
    """The samples of a crash folder."""
    lines = (place / "samples.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Scored) for line in lines]
