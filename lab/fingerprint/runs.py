"""Every recipe in its smallest form, as the run folder tells it.

A run is read in the order in which one thing causes the next: tokens, rewards, advantages, losses of
each step, then weights. So the first entry that differs is the cause of those behind it.
"""

from __future__ import annotations

import json
import re
import struct
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import burnish
from burnish.config.recipes import all_recipes
from burnish.store import RunStore
from lab.fingerprint.flow import Entry, checksum, entry, figure

HERE = Path(__file__).parent
SPREAD = tuple(
    {"kind": "function", "name": name, "path": f"{HERE / 'rewards.py'}:{name}"}
    for name in ("letters", "digits", "even")
)
SMALL = (
    "steps=2",
    "run.seed=7",
    "run.name={name}",
    "model.threads=1",
    "model.device=cpu",
    "evaluation.every=0",
    "evaluation.prompts=2",
    "guards.failed_share=1",
    "guards.useless_steps=100",
)
ROLLOUT = ("rollout.prompts=2", "rollout.samples=4", "rollout.max_tokens=10")
EXTRA = {
    "afrl": ('policy.advantage.rewards=["letters", "digits", "even"]',),
    "policyalign": ("train.allow_truncate=true",),
}
"""What a recipe needs beside this to be small, or to be one at all on a random model."""
UNPAID = ("sft", "dpo", "distil", "diffusion", "pretrain", "latents", "codec", "speech")
FUNCTION = re.compile(r"[\w./]+\.py:\w+")


def recipe_flow(name: str, judge: str) -> list[Entry]:
    """Train a recipe in the working folder; `judge`: the address of a judge that answers."""
    words, settings = smallest(name, judge)
    run = burnish.train(name, *words, show=False, **settings)
    stages = sorted((run.folder / "stages").glob("*")) if (run.folder / "stages").is_dir() else []
    found = [one for stage in stages for one in weight_entries(stage, f"{stage.name}: ")]
    return [*found, *run_flow(run.folder)]


def smallest(name: str, judge: str) -> tuple[list[str], dict[str, Any]]:
    """The words and the settings that make a recipe small."""
    path = all_recipes()[name]
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    train = recipe.get("train", "policy")
    kind = train if isinstance(train, str) else train.get("kind", "policy")
    words = [word.format(name=name) for word in SMALL]
    model = recipe["model"]["path"]
    if model != "new":
        before = model.rpartition(":")[0]
        words.append(f"model.path={before}:tiny" if before else "model.path=tiny")
    if "rollout" in recipe:
        words += ROLLOUT
    for number, _ in enumerate(recipe.get("stages", [])):
        words += [f"stages.{number}.steps=1", f"stages.{number}.train.batch=2"]
    if isinstance(train, Mapping) and "batch" in train:
        words.append("train.batch=4")
    words += [word.format(judge=judge) for word in EXTRA.get(name, ())]
    rewards = rooted(recipe.get("rewards", []), path.parent)
    for reward in rewards:
        if "model" in reward:
            reward["model"] = f"{judge}#judge"
    if kind == "policy" or kind == "diffusion_policy":
        rewards = [*rewards, *SPREAD]
    return words, {"rewards": rewards} if rewards else {}


def rooted(value: Any, folder: Path) -> Any:
    """Paths of functions from the recipe's own folder."""
    if isinstance(value, dict):
        return {key: rooted(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [rooted(item, folder) for item in value]
    if isinstance(value, str) and FUNCTION.fullmatch(value):
        return str(folder / value)
    return value


def run_flow(folder: Path, prefix: str = "") -> list[Entry]:
    """The entries of one run folder."""
    with RunStore.open(folder, read_only=True) as store:
        samples = list(store.samples())
        metrics = store.metrics()
        status = store.summary().status.value
    steps = {one.step for one in samples} | {p.step for points in metrics.values() for p in points}
    found = []
    for step in sorted(steps):
        own = [one for one in samples if one.step == step]
        for split in sorted({one.split for one in own}):
            part = sorted((one for one in own if one.split == split), key=lambda one: one.index)
            found += sample_entries(part, f"{prefix}step {step}, {split}")
        values = {
            name: point.value
            for name, points in sorted(metrics.items())
            for point in points
            if point.step == step and not is_of_clock(name)
        }
        if values:
            found.append(entry(f"{prefix}step {step}, losses", near=values))
    found.append(entry(f"{prefix}status", exact=[status]))
    return [*found, *weight_entries(folder, prefix)]


def is_of_clock(name: str) -> bool:
    """Whether a metric says how long or how large, which no two runs share."""
    return "time/" in name or "memory" in name or "per_s" in name


def sample_entries(samples: Sequence[Any], label: str) -> Iterator[Entry]:
    """What was read and written, what it earned, what the update made of it."""
    tokens = [checksum(one.trajectory.token_ids) for one in samples]
    logprobs = [[x.hex() for x in one.trajectory.logprobs] for one in samples]
    yield entry(f"{label}: tokens", exact=tokens)
    yield entry(f"{label}: log-probs", bits=logprobs)
    rewards = [reward_text(one.reward) for one in samples]
    yield entry(
        f"{label}: rewards", exact=rewards, bits=[reward_bits(one.reward) for one in samples]
    )
    advantages = [None if one.advantage is None else one.advantage for one in samples]
    if any(one is not None for one in advantages):
        exact = [None if one is None else figure(one) for one in advantages]
        yield entry(f"{label}: advantages", exact=exact, bits=advantages)


def reward_text(reward: Any) -> str:
    """`total 0.5 (digit 1, short none timeout)`."""
    value = reward.status.value if reward.value is None else figure(reward.value)
    parts = ", ".join(map(reward_text, reward.parts))
    return f"{reward.name} {value}{f' ({parts})' if parts else ''}"


def reward_bits(reward: Any) -> list[Any]:
    """Every number of a reward, to the bit."""
    verdicts = [(one.criterion, one.value) for one in reward.verdicts]
    return [reward.value, reward.weight, verdicts, *map(reward_bits, reward.parts)]


def weight_entries(folder: Path, prefix: str) -> Iterator[Entry]:
    """Norm of all weights of the newest checkpoint, and every tensor to the bit."""
    files = sorted(folder.glob("checkpoints/*/*.safetensors")) or sorted(
        folder.glob("final/*.safetensors")
    )
    newest = [file for file in files if file.parent == files[-1].parent]
    for file in newest:
        norms, bits = {}, {}
        for name, dtype, content in tensors(file):
            bits[name] = checksum(content)
            norms[name] = norm(dtype, content)
        total = sum(one * one for one in norms.values()) ** 0.5
        spread = sum(one * (place + 1) for place, one in enumerate(norms.values()))
        label = f"{prefix}weights of {file.parent.name}/{file.name}"
        yield entry(label, near={"norm": total, "norms, each by its place": spread}, bits=bits)


def tensors(file: Path) -> Iterator[tuple[str, str, bytes]]:
    """Name, type and bytes of every tensor of a safetensors file."""
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    for name in sorted(header.keys() - {"__metadata__"}):
        start, end = header[name]["data_offsets"]
        yield name, header[name]["dtype"], content[8 + size + start : 8 + size + end]


def norm(dtype: str, content: bytes) -> float:
    """The length of a tensor as one vector; of its bytes where it holds no floats."""
    import torch

    kinds = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.half}
    kind = kinds.get(dtype, torch.uint8)
    if not content:
        return 0.0
    return float(torch.frombuffer(bytearray(content), dtype=kind).double().norm())
