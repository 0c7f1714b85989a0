"""One, two and four processes: are samples and weights those of one, and what does each hold?

    python -m lab.processes

Real processes of torchrun over gloo on the CPU, the `tiny` model in float32, 20 steps of GRPO with three
prompts of four answers. Shard `none` copies the model, `full` cuts it. Memory is counted from the
tensors that a process holds when an optimiser step begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.config import Config, load
from burnish.store import RunStore
from burnish.training import Trainer, build
from burnish.training.events import Saved

STEPS = 20
LIMIT_S = 600
CASES = ((1, "none"), (2, "none"), (4, "none"), (2, "full"), (4, "full"))
CHAIN = ((4, 7), (2, 14), (1, STEPS))
"""Processes, and the step after which they stop."""


def letters(text: str) -> float:
    return sum(one in "aeiou" for one in text) / max(len(text), 1)


def settings(folder: Path, shard: str) -> dict[str, Any]:
    return {
        "steps": STEPS,
        "model": {"path": "tiny", "dtype": "float32", "device": "cpu", "shard": shard},
        "task": {"kind": "file", "path": str(folder / "questions.jsonl"), "prompt": "question"},
        "rewards": [{"kind": "function", "path": f"{Path(__file__).resolve()}:letters"}],
        "rollout": {"prompts": 3, "samples": 4, "max_tokens": 8},
        "optimiser": {"learning_rate": 1e-3},
        "update": {"micro_batch_tokens": 128},
        "evaluation": {"prompts": 0},
        "checkpoint": {"every": 7, "keep": 9},
    }


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes of these tensors, of a sliced one those of the slice."""
    own = (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    return sum(t.numel() * t.element_size() for t in own)


def watched(trainer: Trainer, note: Callable[[dict[str, int]], None]) -> None:
    """Counts what the optimiser holds as each of its steps begins."""
    optimiser, step = trainer.optimiser, trainer.optimiser.step

    def counted(rate: float, norm: Tensor) -> None:
        gradients = size(p.grad for p in optimiser.parameters if p.grad is not None)
        moments = size([*optimiser.first, *optimiser.second])
        held = {"parameters": size(p.detach() for p in optimiser.parameters)}
        note({**held, "gradients": gradients, "moments": moments})
        step(rate, norm)

    optimiser.step = counted  # type: ignore[method-assign]


def work(folder: Path, name: str, shard: str, stop: int) -> None:
    """One process of a run, up to the checkpoint of a step."""
    held: dict[str, int] = {}
    trainer = build(load(Config, settings(folder, shard)), folder / name, root=folder)
    watched(trainer, held.update)
    with contextlib.closing(trainer.run()) as events:
        for event in events:
            if isinstance(event, Saved) and event.step == stop:
                break
    trainer.store.close()
    (folder / f"{name}-{trainer.world.rank}.json").write_text(json.dumps(held))


def start(folder: Path, name: str, count: int, shard: str, stop: int = STEPS) -> None:
    own = ["-m", "lab.processes", "--work", str(folder), name, shard, str(stop)]
    many = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={count}",
        "--no-python",
    ]
    command = (
        [sys.executable, *own] if count == 1 else [sys.executable, *many, sys.executable, *own]
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, timeout=LIMIT_S, env=environment)


def samples(folder: Path) -> list[tuple[str, tuple[int, ...], float | None]]:
    with RunStore.open(folder, read_only=True) as store:
        return [
            (one.trajectory.id, one.trajectory.spans[-1].token_ids, one.reward.value)
            for one in store.samples()
        ]


def difference(one: Path, other: Path) -> float:
    """The largest of any weight after the last step."""
    from safetensors.torch import load_file

    last = f"checkpoints/step-{STEPS:06d}/model.safetensors"
    first, second = load_file(one / last), load_file(other / last)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def report(folder: Path, name: str, reference: str) -> str:
    held = json.loads((folder / f"{name}-0.json").read_text())
    same = samples(folder / name) == samples(folder / reference)
    apart = difference(folder / name, folder / reference)
    kib = "".join(f"{held[part] / 1024:12.1f}" for part in ("parameters", "gradients", "moments"))
    return f"{name:22}{'equal' if same else 'DIFFER':>9}{apart:14.1e}{kib}"


def main(folder: Path) -> None:
    rows = [json.dumps({"question": f"Which word is number {i}?"}) for i in range(32)]
    (folder / "questions.jsonl").write_text("\n".join(rows) + "\n")
    head = "".join(f"{part:>12}" for part in ("parameters", "gradients", "moments"))
    print(f"{'processes':22}{'samples':>9}{'weights':>14}{head}  (KiB)")
    for count, shard in CASES:
        start(folder, f"{count} {shard}", count, shard)
        print(report(folder, f"{count} {shard}", "1 none"), flush=True)
    for count, stop in CHAIN:
        start(folder, "4 -> 2 -> 1 full", count, "full", stop)
    print(report(folder, "4 -> 2 -> 1 full", "1 none"))
    print(
        f"against 4 undisturbed: {difference(folder / '4 -> 2 -> 1 full', folder / '4 full'):.1e}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
