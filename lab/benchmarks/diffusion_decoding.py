"""Decoding speed of masked diffusion models beside a plain loop, same model, prompts and steps.

    python lab/benchmarks/diffusion_decoding.py                                  # SmolLM2, on a GPU if there is one
    python lab/benchmarks/diffusion_decoding.py --model tiny --rows 4 --tokens 16    # a trial

The plain loop is LLaDA's `generate`: every step computes the logits of the whole row over the whole
vocabulary, a softmax in float64, and keeps the most confident tokens of the block. Rows have prompts
of different lengths: the loop pads them on the left of its batch; ours pads and tells them apart. Both
write every token of the canvas (no end token is heeded), greedily. A row of figures is the median of
`--repeats` after a warm-up; tokens a second are those of the answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from burnish.lm.base import Sampling
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.masked_rows import PADDING, segment_mask
from burnish.lm.diffusion.sampler import Decoding, DiffusionSampler, step_counts
from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.sampler.rows import Request
from burnish.lm.tokenizer import Tokenizer


class Endless(Tokenizer):
    """A tokenizer without end tokens, so that both ways write the same number of tokens."""

    def __init__(self, own: Tokenizer) -> None:
        self.__dict__ = {**own.__dict__, "eos_ids": ()}


def prompts(rows: int, size: int) -> list[list[int]]:
    """Rows of `size` tokens down to three quarters of it."""
    generator = torch.Generator().manual_seed(0)
    lengths = [size - (i * size // (4 * rows)) for i in range(rows)]
    return [torch.randint(10, 250, (n,), generator=generator).tolist() for n in lengths]


@torch.inference_mode()
def plain_loop(
    module: Decoder, rows: list[list[int]], tokens: int, decoding: Decoding
) -> list[list[int]]:
    """LLaDA's way, in as few lines as it takes."""
    mask_id = module.architecture.mask_id
    assert mask_id is not None
    device = module.head_weight.device
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest + tokens), mask_id, device=device)
    padding = torch.tensor([longest - len(row) for row in rows], device=device)
    for i, row in enumerate(rows):
        ids[i, longest - len(row) : longest] = torch.tensor(row, device=device)
    columns = torch.arange(ids.shape[1], device=device)
    positions = (columns - padding[:, None]).clamp(min=0)
    attention: Tensor | None = None
    if bool((padding > 0).any()):
        attention = segment_mask(torch.where(columns < padding[:, None], PADDING, 0))
    for start in range(longest, longest + tokens, decoding.block):
        end = min(start + decoding.block, longest + tokens)
        for count in step_counts(end - start, decoding.steps):
            logits = module.logits(module(ModelInput(ids, positions, attention))).double()
            logits[..., mask_id] = float("-inf")
            best = logits.argmax(-1)
            sure = logits.softmax(-1).gather(-1, best[..., None])[..., 0]
            is_open = ids == mask_id
            is_open[:, :start], is_open[:, end:] = False, False
            sure = sure.masked_fill(~is_open, float("-inf"))
            for i in range(len(rows)):
                keep = sure[i].topk(count).indices
                ids[i, keep] = best[i, keep]
    return [row[longest:].tolist() for row in ids]


def timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds after one warm-up."""
    found = []
    for number in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number:
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure(
    model: str, rows: int, prompt: int, tokens: int, decoding: Decoding, repeats: int, dtype: str
) -> dict[str, object]:
    """Both ways on one device, and how many tokens they agree on."""
    loaded = load_model(f"diffusion:{model}", dtype=dtype)
    module = loaded.module
    assert isinstance(module, Decoder)
    given = prompts(rows, prompt)
    sampler = DiffusionSampler(module, Endless(loaded.tokenizer), decoding=decoding)
    asked = [Request(tuple(row), Sampling(temperature=0.0, max_tokens=tokens)) for row in given]
    ours = [found[0].token_ids for found in sampler.generate(asked)]
    theirs = plain_loop(module, given, tokens, decoding)
    pairs = [(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
    own_s = timed(lambda: sampler.generate(asked), loaded.device, repeats)
    plain_s = timed(lambda: plain_loop(module, given, tokens, decoding), loaded.device, repeats)
    return {
        "model": model,
        "device": str(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "rows": rows,
        "prompt": prompt,
        "tokens": tokens,
        "block": decoding.block,
        "steps": decoding.steps or decoding.block,
        "burnish_tokens_per_s": rows * tokens / own_s,
        "plain_tokens_per_s": rows * tokens / plain_s,
        "times_faster": plain_s / own_s,
        "same_tokens": sum(a == b for a, b in pairs) / len(pairs),
    }


def main() -> None:
    """One line of JSON for each number of steps; all of them as a list with `--out`."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--model", default="smollm2", choices=("smollm2", "tiny"))
    reader.add_argument("--rows", type=int, default=32)
    reader.add_argument("--prompt", type=int, default=64)
    reader.add_argument("--tokens", type=int, default=128)
    reader.add_argument("--block", type=int, default=32)
    reader.add_argument("--steps", type=int, nargs="*", default=[0, 8], help="of a block; 0: all")
    reader.add_argument("--repeats", type=int, default=3)
    reader.add_argument("--dtype", default="auto")
    reader.add_argument("--out", type=Path, help="write all rows here as JSON")
    given = reader.parse_args()
    rows = []
    for steps in given.steps:
        decoding = Decoding(block=given.block, steps=steps)
        sizes = (given.rows, given.prompt, given.tokens)
        found = measure(given.model, *sizes, decoding, given.repeats, given.dtype)
        rows.append(found)
        print(json.dumps(found), flush=True)
        if given.out:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
