"""Pre-training's speed beside a plain loop in torch: one run, same weights, same text, same batches.

    python lab/benchmarks/pretrain.py                           # GPU: about 100 M weights, bfloat16
    python lab/benchmarks/pretrain.py --device cpu --layers 2 --width 64 --heads 2 --sequence 64 \
        --batch 4 --vocabulary 0 --steps 6 --plain-eager    # a trial of the script itself

The plain loop is what one writes after nanochat: a Llama model in a screenful, float32 weights under
bfloat16 autocast, `torch.compile`, fused AdamW, cross entropy over all logits. It keeps no store, no
guards and no master weights beside half-precision ones. Ours is `burnish train pretrain` as it is,
store, guards and metrics included; documents see each other in both, and a further row has them apart.
SiameseNorm's rows say what its second stream costs. Each row is a process of its own. Model FLOPs are
6 x weights + 6 x layers x width x sequence a token (causal attention counted once), the peak is that of
a large matrix product on the same card.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WARM = 4
"""Steps that are not timed: kernels are compiled and memory is taken in them."""
RATE = 1e-3


def documents(count: int, words: int) -> Iterator[str]:
    """Texts of made-up words, some of which are frequent."""
    draw = random.Random(0)
    letters = "aeioubcdfghklmnprstvwz"
    known = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(words)]
    shares = list(itertools.accumulate(1 / (rank + 3) for rank in range(words)))
    for _ in range(count):
        yield " ".join(draw.choices(known, cum_weights=shares, k=draw.randint(40, 900)))


def settings(job: dict[str, Any], topology: str = "", **train: Any) -> dict[str, Any]:
    """The config of our rows."""
    new = {key: job[key] for key in ("layers", "width", "heads")}
    new |= {"topology": topology} if topology else {}
    return {
        "steps": job["steps"] + WARM,
        "train": {
            "kind": "pretrain",
            "data": job["data"],
            "held_out": 0.0,
            "sequence": job["sequence"],
            "batch": job["batch"],
            **train,
        },
        "model": {
            "path": "new",
            "new": {**new, "context": job["sequence"], "tokenizer": job["tokenizer"]},
            "dtype": job["dtype"],
            "device": job["device"],
            "threads": job["threads"],
        },
        "update": {"micro_batch_tokens": job["micro"]},
        "optimiser": {"learning_rate": RATE, "beta2": 0.95},
        "evaluation": {"prompts": 0},
        "checkpoint": {"every": 0},
    }


def clock(device: str) -> float:
    """Seconds now: of the processor on the CPU, of the wall when the GPU is done."""
    if device == "cpu":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


# --- the two sides


def ours(job: dict[str, Any], topology: str = "", **train: Any) -> dict[str, Any]:
    """Losses and seconds of each step of `burnish train pretrain`."""
    import torch

    from burnish.config import Config, load
    from burnish.training import build
    from burnish.training.events import Prepared, StepDone

    trainer = build(
        load(Config, settings(job, topology, **train)), Path(tempfile.mkdtemp()) / "run"
    )
    losses, seconds, began = [], [], 0.0
    for event in trainer.run():
        now = clock(job["device"])
        if isinstance(event, StepDone):
            losses.append(event.metrics["loss/total"])
            seconds.append(now - began)
        if isinstance(event, Prepared | StepDone):
            began = now
    memory = torch.cuda.max_memory_allocated() if job["device"] != "cpu" else 0
    return {
        "losses": losses,
        "seconds": seconds,
        "memory": memory,
        "parameters": trainer.trainable.parameters,
    }


def plain_model(job: dict[str, Any], start: Any) -> Any:
    """A Llama model in a screenful, with the weights of a built-in decoder."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    heads, width = job["heads"], job["width"]
    size = width // heads

    def turn(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    class Block(nn.Module):
        def __init__(self, inner: int) -> None:
            super().__init__()
            self.one, self.two = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            z = self.one(x)
            rows, steps, _ = z.shape
            q, k, v = (f(z).view(rows, steps, heads, size) for f in (self.q, self.k, self.v))
            q, k = turn(q, cos, sin), turn(k, cos, sin)
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(o.transpose(1, 2).reshape(rows, steps, width))
            z = self.two(x)
            return x + self.down(F.silu(self.gate(z)) * self.up(z))

    class Model(nn.Module):
        def __init__(self, vocabulary: int, inner: int) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(Block(inner) for _ in range(job["layers"]))
            self.norm = nn.RMSNorm(width, 1e-5)

        def forward(self, ids: Any, targets: Any, cos: Any, sin: Any) -> Any:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x, cos, sin)
            logits = F.linear(self.norm(x), self.embed.weight)
            return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    weights = {k: v.detach() for k, v in start.module.state_dict().items()}
    inner = weights["model.layers.0.mlp.up_proj.weight"].shape[0]
    model = Model(start.module.head_weight.shape[0], inner)
    model.load_state_dict({_short(name): value for name, value in weights.items()})
    return model


def _short(name: str) -> str:
    """A weight's name in the plain model."""
    names = {"self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v"}
    names |= {"self_attn.o_proj": "o", "mlp.gate_proj": "gate", "mlp.up_proj": "up"}
    names |= {"mlp.down_proj": "down", "input_layernorm": "one", "post_attention_layernorm": "two"}
    names |= {"embed_tokens": "embed", "layers.": "blocks."}
    name = name.removeprefix("model.")
    for long, own in names.items():
        name = name.replace(long, own)
    return name


def plain(job: dict[str, Any]) -> dict[str, Any]:
    """The same with a loop of one's own; begins with the same weights, reads the same batches."""
    import numpy as np
    import torch

    from burnish.config import Config, load
    from burnish.lm import load_model
    from burnish.seeds import Seeds
    from burnish.training.packed_text import corpus_of, window_start
    from burnish.training.token_cache import open_tokens
    from burnish.training.trainable import start_model

    config = load(Config, settings(job)).value
    device, length = torch.device(job["device"]), job["sequence"]
    torch.set_num_threads(job["threads"])
    torch.set_float32_matmul_precision("high")
    start = load_model(start_model(config), dtype="float32", device="cpu")
    model = plain_model(job, start).to(device)
    size = job["width"] // job["heads"]
    frequencies = 1.0 / 10_000 ** (torch.arange(0, size, 2, device=device).float() / size)
    angles = torch.arange(length, device=device)[:, None] * frequencies
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    tokens = open_tokens(corpus_of(config.train), start.tokenizer, held_out=0.0)
    seed = Seeds(config.run.seed).for_("text")
    optimiser = torch.optim.AdamW(
        model.parameters(), RATE, (0.9, 0.95), weight_decay=0.0, fused=device.type == "cuda"
    )
    run = model if job["plain_eager"] else torch.compile(model, dynamic=False)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=job["dtype"] == "bfloat16")
    rows, batch = max(1, job["micro"] // length), job["batch"]
    losses, seconds = [], []
    for step in range(job["steps"] + WARM):
        began = clock(job["device"])
        indices = range(step * batch, (step + 1) * batch)
        places = [window_start(tokens.train, length, index, seed) for index in indices]
        ids = torch.from_numpy(np.stack([tokens.train.read(p, length + 1) for p in places]))
        ids = ids.to(device, non_blocking=True)
        total = torch.zeros((), device=device)
        for part in ids.split(rows):
            with autocast:
                loss = run(part[:, :-1], part[:, 1:], cos, sin) * len(part) / batch
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(float(total))
        seconds.append(clock(job["device"]) - began)
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {"losses": losses, "seconds": seconds, "memory": memory}


def peak(job: dict[str, Any]) -> dict[str, Any]:
    """FLOPs a second of a large matrix product in the dtype of the run."""
    import torch

    device = torch.device(job["device"])
    torch.set_num_threads(job["threads"])
    size = 8192 if device.type == "cuda" else 512
    dtype = getattr(torch, job["dtype"])
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(20):
        began = clock(job["device"])
        for _ in range(5):
            a @ b
        best = min(best, (clock(job["device"]) - began) / 5)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return {"flops": 2 * size**3 / best, "name": name}


ROWS = {
    "peak": peak,
    "plain": plain,
    "burnish": lambda job: ours(job, separate=False),
    "burnish, compiled": lambda job: ours(job, separate=False, compile=True),
    "burnish, documents apart": lambda job: ours(job, separate=True),
    "burnish, SiameseNorm": lambda job: ours(job, "siamese", separate=False),
    "burnish, SiameseNorm, compiled": lambda job: ours(
        job, "siamese", separate=False, compile=True
    ),
}


def child(name: str, job: dict[str, Any]) -> dict[str, Any]:
    """One row, in a process of its own."""
    words = [sys.executable, __file__, "--child", name, "--job", json.dumps(job)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"failed": tail}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def prepare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The text and the tokenizer of all rows."""
    from burnish.lm.new_model import train_bpe

    text = folder / "text.jsonl"
    with text.open("w") as file:
        for one in documents(options.documents, 20_000):
            file.write(json.dumps({"text": one}) + "\n")
    tokenizer = "byte"
    if options.vocabulary:
        sample = documents(min(options.documents, 2000), 20_000)
        train_bpe(sample, options.vocabulary, folder / "tokenizer")
        tokenizer = str(folder / "tokenizer")
    keys = ("layers", "width", "heads", "sequence", "batch", "steps", "device", "threads")
    return {
        **{key: getattr(options, key) for key in keys},
        "data": str(text),
        "tokenizer": tokenizer,
        "dtype": options.dtype or ("float32" if options.device == "cpu" else "bfloat16"),
        "micro": options.micro or options.batch * options.sequence,
        "plain_eager": options.plain_eager,
    }


def table(job: dict[str, Any], found: dict[str, dict[str, Any]]) -> list[str]:
    """The rows as lines of a Markdown table."""
    weights = found.get("burnish", {}).get("parameters", 0)
    attention = 6 * job["layers"] * job["width"] * job["sequence"]
    flops = 6 * weights + attention
    peak = found.get("peak", {})
    top = peak.get("flops", 0.0)
    lines = [
        f"{peak.get('name')}, {weights / 1e6:.1f} M weights, {job['batch']} sequences of "
        f"{job['sequence']} tokens, {job['dtype']}, a matrix product reaches {top / 1e12:.3g} "
        "TFLOP/s",
        "",
        "| | tokens/s | share of that peak | memory | loss at the end |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, row in found.items():
        if name == "peak":
            continue
        if "failed" in row:
            lines.append(f"| {name} | failed: {row['failed'][:120]} | | | |")
            continue
        timed = sorted(row["seconds"][WARM:])
        rate = job["batch"] * job["sequence"] / timed[len(timed) // 2]
        share = f"{rate * flops / top:.1%}" if top and weights else ""
        memory = f"{row['memory'] / 2**30:.1f} GiB" if row["memory"] else ""
        lines.append(f"| {name} | {rate:,.0f} | {share} | {memory} | {row['losses'][-1]:.4f} |")
    both = [found.get(name, {}).get("losses", []) for name in ("plain", "burnish")]
    if all(both):
        apart = max(abs(a - b) for a, b in zip(*both, strict=False))
        lines += ["", f"largest difference of a step's loss, plain and burnish: {apart:.2e}"]
    return lines


def main() -> int:
    """Measure and print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    is_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if is_gpu else "cpu")
    parser.add_argument("--dtype", default="")
    for name, default in (
        ("layers", 12),
        ("width", 768),
        ("heads", 12),
        ("sequence", 1024),
        ("batch", 64),
        ("steps", 20),
        ("vocabulary", 16384),
        ("documents", 4000),
        ("micro", 0),
        ("threads", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--plain-eager", action="store_true", help="the plain loop without compile")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), help="which rows to measure")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(ROWS[options.child](json.loads(options.job))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(options, Path(folder))
        found = {name: child(name, job) for name in ROWS if name in options.rows}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"job": job, "rows": found}, indent=1) + "\n")
    print("\n".join(table(job, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
