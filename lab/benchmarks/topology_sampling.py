"""What a place for the norms costs in sampling: new tokens a second of models that differ in it alone.

    python lab/benchmarks/topology_sampling.py                       # GPU: 24 layers of 576, float32
    python lab/benchmarks/topology_sampling.py --dtype bfloat16
    python lab/benchmarks/topology_sampling.py --device cpu --layers 2 --width 64 --heads 2 --rows 2 --tokens 8

Models have random weights of the same sizes and sample the same number of tokens after the same prompts, in
the built-in engine. Rounds alternate between the models, so that what else the machine does falls on all
of them; a figure is the median of the rounds behind the first, which is warm-up. Ratios are to the first model.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from burnish.lm.base import Sampling
from burnish.lm.folder import load_model
from burnish.lm.local import LocalLM
from burnish.lm.new_model import NewModel, new_model_folder

TOPOLOGIES = ("pre", "siamese", "siamese_hybrid_pre")


def model(topology: str, given: argparse.Namespace) -> LocalLM:
    """A random model that never ends by itself."""
    sizes = NewModel(
        layers=given.layers, width=given.width, heads=given.heads, topology=topology, context=2048
    )
    loaded = load_model(new_model_folder(sizes, seed=0), dtype=given.dtype, device=given.device)
    loaded.tokenizer = copy.copy(loaded.tokenizer)
    loaded.tokenizer.eos_ids = ()
    return LocalLM(loaded)


def round_s(lm: LocalLM, given: argparse.Namespace) -> float:
    """Seconds of a batch; its ids come to the host, so that the device is done."""
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(10, 250, (given.rows, given.prompt), generator=draw).tolist()
    asked = [
        lm.request(tuple(ids), Sampling(max_tokens=given.tokens, seed=place))
        for place, ids in enumerate(prompts)
    ]
    began = time.perf_counter()
    found = lm.sample_batch(asked)
    seconds = time.perf_counter() - began
    made = sum(len(one.token_ids) for group in found for one in group)
    if made != given.rows * given.tokens:
        raise RuntimeError(f"{made} new tokens; expected {given.rows * given.tokens}")
    return seconds


def main() -> None:
    """One line of JSON a model; all of them as a list with `--out`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topologies", nargs="+", default=list(TOPOLOGIES))
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--dtype", default="auto")
    for name, default in (("layers", 24), ("width", 576), ("heads", 9), ("rows", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("prompt", 64), ("tokens", 256), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, help="write all rows here as JSON")
    given = parser.parse_args()
    models = {name: model(name, given) for name in given.topologies}
    rounds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(given.repeats + 1):
        for name, lm in models.items():
            rounds[name].append(round_s(lm, given))
    rows: list[dict[str, Any]] = []
    first = statistics.median(next(iter(rounds.values()))[1:])
    for name, seconds in rounds.items():
        middle = statistics.median(seconds[1:])
        rows.append(
            {
                "topology": name,
                "rows": given.rows,
                "tokens": given.tokens,
                "tokens_per_s": given.rows * given.tokens / middle,
                "times_the_first": middle / first,
                "seconds": seconds[1:],
                "dtype": str(models[name].loaded.dtype).removeprefix("torch."),
                "device": str(models[name].loaded.device),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
