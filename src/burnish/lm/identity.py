"""Which weights a name stands for, told from the files without reading them.

files_identity("smollm2", folder)       # "": the shipped models never change
files_identity("out/step-100", folder)  # another text after the folder was trained in place
"""

from __future__ import annotations

from pathlib import Path

from burnish.lm.base import SHIPPED
from burnish.seeds import digest

SUFFIXES = frozenset({".safetensors", ".json", ".jinja"})
"""Weights, config, tokenizer and chat template: what a reply depends on."""


def files_identity(name: str, folder: Path) -> str:
    """A digest of the names, sizes and times of a model's files; empty for a shipped model.

    Weights of the same shape have the same size, so the times are needed; a copied folder counts as
    another model, which costs calls and never a wrong answer.
    """
    if name in SHIPPED:
        return ""
    files = sorted(file for file in folder.glob("*") if file.suffix in SUFFIXES)
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return digest(repr(facts))
