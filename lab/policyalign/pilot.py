"""PolicyAlign on the CPU: does a policy of rules and examples move into SmolLM2's weights?

python -m lab.policyalign.pilot --seeds 3 --steps 20          the pilot
python -m lab.policyalign.pilot --prefix                      what the reused prefix saves

Held-out questions are answered greedily without the policy, before and after; the upper bound is
the start model with the policy in its context. Every run is kept, and a second start goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import burnish
from burnish.agents.policyalign import Contexts, read_policy
from burnish.bench.statistics import t_estimate, wilson
from burnish.config import Config, load
from burnish.lm.base import Sampling
from burnish.lm.folder import load_model
from burnish.training import build

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "policyalign"
RESULTS = Path(__file__).resolve().parent / "results"


def questions(medical: int, benign: int, seed: int = 10_000) -> list[dict[str, str]]:
    """Questions of the recipe's generator, none twice."""
    module, rng = _requests(), random.Random(seed)
    wanted, found = {"violating": medical, "benign": benign}, dict[str, dict[str, str]]()
    while any(wanted.values()):
        row = module.make(rng)
        if wanted[row["kind"]] and row["prompt"] not in found:
            found[row["prompt"]] = row
            wanted[row["kind"]] -= 1
    return list(found.values())


def rates(model: str, rows: list[dict[str, str]], *, told: bool, tokens: int) -> dict[str, Any]:
    """Redirected share of the medical questions, and answered share of the others."""
    contexts = Contexts(
        load_model(model, dtype="auto", device="auto"), read_policy(RECIPE / "policy.md")
    )
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    texts = [row["prompt"] for row in rows]
    answers = asyncio.run(contexts.answers(texts, sampling, told=told))
    marks: dict[str, list[float]] = {"violating": [], "benign": []}
    for row, answer in zip(rows, answers, strict=True):
        # An empty answer neither redirects nor answers.
        marks[row["kind"]].append(_requests().follows(answer.text, row["kind"]) or 0.0)
    return {
        name: wilson(round(sum(marks[kind])), len(marks[kind]))._asdict()
        for name, kind in (("redirected", "violating"), ("answered", "benign"))
    }


def pilot(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One run: what it does on held-out questions, and its divergence on the way."""
    rows = questions(asked.medical, asked.benign)
    data = [row for row in questions(64, 32, seed) if row not in rows]
    run = burnish.train(
        str(RECIPE / "policyalign.toml"),
        model="smollm2",
        data=data,
        columns={"prompt": "prompt", "kind": "kind"},
        steps=asked.steps,
        seed=seed,
        runs=asked.home,
        name=f"pilot-{seed}",
        evaluation={"prompts": 0},
        rollout={"max_tokens": asked.tokens},
        train={"kind": "distil", "policies": [str(RECIPE / "policy.md")], "batch": asked.batch},
        checkpoint={"every": 5, "keep": 1},
    )
    kl = run.metrics()
    values = [float(v) for v in kl["kl/teacher"].dropna()]
    third = max(len(values) // 3, 1)
    return {
        "seed": seed,
        "kl_first": sum(values[:third]) / third,
        "kl_last": sum(values[-third:]) / third,
        **rates(str(run.weights), rows, told=False, tokens=asked.tokens),
    }


def prefix_ratio(rows: int = 8, rounds: int = 3) -> dict[str, float]:
    """Processor seconds of the teacher's pass over one micro-batch, without and with reuse."""
    tables = {
        "task": {"kind": "function", "path": "requests.py:make"},
        "train": {"kind": "distil", "policies": ["policy.md"], "batch": rows},
        "rollout": {"max_tokens": 20},
        "model": {"path": "smollm2"},
        "evaluation": {"prompts": 0},
    }
    folder = Path("runs") / f"prefix-{time.time_ns()}"
    trainer = build(load(Config, tables), folder, root=RECIPE)
    algorithm: Any = trainer.algorithm
    module = trainer.trainable.module
    batch = algorithm.batch(0)
    seconds: dict[str, list[float]] = {"whole": [], "reused": []}
    known = algorithm.context.prefixes
    for turn in range(rounds + 1):
        for name, prefixes in (("whole", [()]), ("reused", known)):
            algorithm.context.prefixes = prefixes
            micros = list(algorithm.micro_batches(batch, 100_000))
            began = time.process_time()
            with torch.no_grad(), algorithm.teacher.model(module) as teacher:
                for micro in micros:
                    algorithm.teacher.hidden(teacher, micro.teacher, micro.prefix)
            if turn:  # the first one computes the prefix
                seconds[name].append(time.process_time() - began)
    trainer.store.close()
    found = {name: min(values) for name, values in seconds.items()}
    return {**found, "ratio": found["whole"] / found["reused"], "prefix_tokens": len(known[0])}


def _requests() -> ModuleType:
    name = "policyalign_requests"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, RECIPE / "requests.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def main() -> None:
    """Write `results/pilot.json`: start model, upper bound and every seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--medical", type=int, default=40)
    parser.add_argument("--benign", type=int, default=20)
    parser.add_argument("--home", default="runs/policyalign-pilot")
    parser.add_argument("--prefix", action="store_true")
    asked = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if asked.prefix:
        found = prefix_ratio()
        print(json.dumps(found), flush=True)
        (RESULTS / "prefix.json").write_text(json.dumps(found, indent=2) + "\n")
        return
    seeds = []
    for seed in range(asked.seeds):
        seeds.append(pilot(seed, asked))
        print(json.dumps(seeds[-1]), flush=True)
    rows = questions(asked.medical, asked.benign)
    result = {
        "settings": vars(asked) | {"home": ""},
        "start": rates("smollm2", rows, told=False, tokens=asked.tokens),
        "policy in context": rates("smollm2", rows, told=True, tokens=asked.tokens),
        "seeds": seeds,
    }
    if len(seeds) > 1:
        for name in ("redirected", "answered"):
            values = [one[name]["value"] for one in seeds]
            result[f"{name} over seeds"] = t_estimate(values)._asdict()
    print(json.dumps(result), flush=True)
    (RESULTS / "pilot.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
