"""Images into a model: how long it waits for them, and the throughput beside transformers alone.

    python lab/benchmarks/images.py                                     # a tiny random Idefics3, on the CPU
    python lab/benchmarks/images.py --size small --device cuda --images 512 --batch 64 --tokens 32
    python lab/benchmarks/images.py --model FOLDER --device cuda

One picture a prompt, each seen once, in steps of `--batch` prompts, as a training run takes them.

  burnish       rendering, sampling through `LocalLM`; threads process the pictures of the next step
  transformers  a loop of its processor, then `generate`, on the same prompts and the same weights
  training      burnish: loss and gradients of given answers behind the pictures, step by step

`waits` is the share of the wall clock in which the model stood still for a picture that was not ready:
for transformers all of its processing. Both sample greedily, and their answers are compared. On the
CPU threads and the model share the cores: only the GPU's figures say what overlap is worth.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lab.tiny_media import tiny_media_model

from burnish.lm.base import Sampling
from burnish.lm.folder import LoadedModel, load_model
from burnish.lm.local import LocalLM
from burnish.lm.media_model import MediaDecoder
from burnish.lm.media_processor import MediaProcessor
from burnish.records import Author, ImagePart, Message, Span, TextPart, Trajectory
from burnish.store.blobs import shared_blobs
from burnish.training.packing import token_scores
from burnish.training.update import MicroBatcher

SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tiny": ({}, {}),
    # About SmolVLM-256M: SmolLM2-135M behind SigLIP's base encoder.
    "small": (
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
        },
        {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 256,
            "patch_size": 16,
        },
    ),
}


class Result(NamedTuple):
    """One way through all pictures."""

    wall_s: float
    waits: float
    """Share of the wall clock."""
    answers: list[str]


class Job(NamedTuple):
    """What every way gets."""

    loaded: LoadedModel
    parts: list[ImagePart]
    batch: int
    tokens: int

    def steps(self) -> list[list[ImagePart]]:
        return [self.parts[i : i + self.batch] for i in range(0, len(self.parts), self.batch)]

    @property
    def module(self) -> MediaDecoder:
        assert isinstance(self.loaded.module, MediaDecoder)
        return self.loaded.module

    def fresh(self) -> MediaProcessor:
        """Forget every picture; what was processed and waited for begins at 0."""
        media = MediaProcessor(self.module.media.processor, self.loaded.name)
        media.probe()
        self.module.media = self.loaded.tokenizer.media = media
        self.loaded.tokenizer._remembered.cache_clear()
        return media


def talk(part: ImagePart) -> list[Message]:
    return [Message("user", (part, TextPart(" What is in the picture?")))]


def pictures(count: int, side: int) -> list[ImagePart]:
    """Noise with a slope, as PNG; PNG is slow to open, as photographs are."""
    found = []
    for seed in range(count):
        noise = np.random.default_rng(seed).integers(0, 64, (side * 3 // 4, side, 3))
        slope = np.linspace(0, 190, side)[None, :, None]
        file = io.BytesIO()
        _pil().fromarray((noise + slope).astype(np.uint8)).save(file, "PNG")
        part = shared_blobs().add(file.getvalue())
        assert isinstance(part, ImagePart)
        found.append(part)
    return found


def _pil() -> Any:
    from PIL import Image

    return Image


def by_burnish(job: Job) -> Result:
    """As a run does: the pictures of the next step are processed while this one is sampled."""
    media, lm = job.fresh(), LocalLM(job.loaded)
    sampling = Sampling(temperature=0, max_tokens=job.tokens)
    answers: list[str] = []
    steps = job.steps()
    began = time.perf_counter()
    for place, step in enumerate(steps):
        coming = [part for some in steps[place : place + 2] for part in some]
        job.loaded.tokenizer.prefetch(talk(part) for part in coming)
        requests = [lm.request(talk(part), sampling) for part in step]
        answers += [own[0].text for own in lm.sample_batch(requests)]
    wall = time.perf_counter() - began
    return Result(wall, media.waited_s / wall, answers)


def by_transformers(job: Job) -> Result:
    """The processor, then `generate`, one batch after the other."""
    processor, model = job.module.media.processor, job.module.model
    tokenizer, device = job.loaded.tokenizer, job.loaded.device
    processor.tokenizer.padding_side = "left"
    waited, answers = 0.0, []
    began = time.perf_counter()
    for step in job.steps():
        start = time.perf_counter()
        opened = [_pil().open(shared_blobs().path(p.sha256)).convert("RGB") for p in step]
        texts = [tokenizer.render_text(talk(part)) for part in step]
        made = processor(
            text=texts, images=[[one] for one in opened], return_tensors="pt", padding=True
        )
        waited += time.perf_counter() - start
        made = made.to(device, job.loaded.dtype)
        with torch.inference_mode():
            ids = model.generate(
                **made,
                max_new_tokens=job.tokens,
                do_sample=False,
                eos_token_id=list(tokenizer.eos_ids),
                pad_token_id=tokenizer.pad_id,
                bad_words_ids=[[token] for token in job.module.forbidden],
            )
        rows = ids[:, made["input_ids"].shape[1] :].tolist()
        answers += [tokenizer.decode(row) for row in rows]
    wall = time.perf_counter() - began
    return Result(wall, waited / wall, answers)


def by_training(job: Job) -> Result:
    """Forward and backward of answers that are given, with the next step's pictures under way."""
    media, module = job.fresh(), job.module
    module.requires_grad_(True)
    batches = MicroBatcher(module, job.loaded.device)
    answer = Span(Author.MODEL, (70,) * job.tokens, (0.0,) * job.tokens, trainable=True)
    steps = job.steps()
    began = time.perf_counter()
    for place, step in enumerate(steps):
        coming = [part for some in steps[place : place + 2] for part in some]
        job.loaded.tokenizer.prefetch(talk(part) for part in coming)
        rows = [
            Trajectory(
                f"{place}.{i}",
                str(i),
                str(i),
                (*job.loaded.tokenizer.render_spans(talk(part)), answer),
                "",
            )
            for i, part in enumerate(step)
        ]
        for packed in batches.split(rows):
            loss = -token_scores(module, packed, 1.0).logp_BT.sum()
            torch.autograd.backward(loss)
        module.zero_grad(set_to_none=True)
    if job.loaded.device.type == "cuda":
        torch.cuda.synchronize()
    wall = time.perf_counter() - began
    module.requires_grad_(False)
    return Result(wall, media.waited_s / wall, [])


WAYS: dict[str, Callable[[Job], Result]] = {
    "burnish": by_burnish,
    "transformers": by_transformers,
    "training": by_training,
}


def measure(job: Job, repeats: int) -> dict[str, list[Result]]:
    """Every way once to warm up, then in turn."""
    warm = job._replace(parts=job.parts[: min(len(job.parts), 2 * job.batch)])
    for name, way in WAYS.items():
        _tell(name, "warm", way(warm))
    found: dict[str, list[Result]] = {name: [] for name in WAYS}
    for turn in range(repeats):
        for name, way in WAYS.items():
            found[name].append(way(job))
            _tell(name, f"{turn + 1}/{repeats}", found[name][-1])
    return found


def _tell(name: str, which: str, result: Result) -> None:
    """A pass that is over: a benchmark that is cut short has said something."""
    told = f"{name}, {which}: {result.wall_s:.1f} s, waits {result.waits:.1%}"
    print(told, file=sys.stderr, flush=True)


def table(job: Job, found: dict[str, list[Result]]) -> list[str]:
    lines = [f"{'':14}{'pictures/s':>12}{'tokens/s':>12}{'waits':>9}"]
    for name, results in found.items():
        rate = statistics.median(len(job.parts) / one.wall_s for one in results)
        waits = statistics.median(one.waits for one in results)
        written = f"{rate * job.tokens:12.0f}" if name != "training" else f"{'':>12}"
        lines.append(f"{name:14}{rate:12.1f}{written}{waits:9.1%}")
    pairs = zip(found["burnish"][0].answers, found["transformers"][0].answers, strict=True)
    same = sum(a == b for a, b in pairs)
    lines.append(f"equal greedy answers: {same} of {len(job.parts)}")
    return lines


def main(words: Sequence[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="", help="a folder; by default a random Idefics3")
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto", help="auto: bfloat16 on a GPU, else float32")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--side", type=int, default=320, help="width of a picture in pixels")
    parser.add_argument("--batch", type=int, default=8, help="prompts of a step")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(words)
    dtype = given.dtype
    if dtype == "auto":
        dtype = "bfloat16" if given.device.startswith("cuda") else "float32"
    with tempfile.TemporaryDirectory() as scratch:
        text, vision = SIZES[given.size]
        folder = given.model or tiny_media_model(
            Path(scratch) / "model", "idefics3", text=text, vision=vision
        )
        loaded = load_model(folder, dtype=dtype, device=given.device)
        job = Job(loaded, pictures(given.images, given.side), given.batch, given.tokens)
        lines = table(job, measure(job, given.repeats))
    head = f"{given.images} pictures of {given.side} pixels, steps of {given.batch}, {given.tokens} tokens, "
    head += f"{loaded.parameters / 1e6:.2f} M weights, {given.device}, {dtype}"
    return [head, *lines]


if __name__ == "__main__":
    print("\n".join(main()))
