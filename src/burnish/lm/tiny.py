"""A tiny random Llama as a Hugging Face folder, for tests, benchmarks and dry runs.

It knows nothing, but everything around it is real: a byte-level tokenizer, a chat template, a
config and safetensors that transformers reads too. Models of other sizes: `lm/new_model.py`.
"""

from __future__ import annotations

from pathlib import Path

from burnish.lm.embedded import make_once
from burnish.lm.new_model import write_llama
from burnish.lm.new_tokenizer import write_byte_tokenizer


def tiny_model(
    folder: str | Path,
    *,
    seed: int = 0,
    layers: int = 2,
    hidden_size: int = 64,
    intermediate_size: int = 192,
    heads: int = 4,
    kv_heads: int = 2,
    dtype: str = "float32",
) -> Path:
    """Write the folder and return it: 115,264 weights as it comes, the same for the same seed."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_byte_tokenizer(target)
    return write_llama(
        target,
        seed=seed,
        layers=layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        heads=heads,
        kv_heads=kv_heads,
        dtype=dtype,
    )


def cached_tiny_model() -> Path:
    """The default tiny model in burnish's cache folder, written once."""
    return make_once("tiny-llama-115k-v1", _build_default)


def _build_default(folder: Path) -> None:
    tiny_model(folder)
