"""A tiny collection, and an encoder that needs no model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.tools.search import tokens

ROWS = [
    {"id": "lamp", "title": "Lamp", "text": "The lamp has two batteries and one lamp cover."},
    {"id": "kettle", "title": "Kettle", "text": "The kettle has no batteries. Descale it often."},
    {"id": "chinese", "title": "水壶", "text": "水壶很热"},
    {"id": "radio", "title": "Radio", "text": "The radio has an aerial."},
]


def write_rows(path: Path, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class WordEncoder:
    """Texts with the same words have the same vector; counts its calls, and can stop."""

    def __init__(self, stop_after: int = 10**9, fingerprint: str = "words") -> None:
        self.fingerprint, self.texts, self.stop_after = fingerprint, 0, stop_after

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.texts >= self.stop_after:
            raise KeyboardInterrupt
        self.texts += len(texts)
        vectors = np.zeros((len(texts), 64), np.float32)
        for row, text in enumerate(texts):
            for word in tokens(text):
                vectors[row, hashlib.sha256(word.encode()).digest()[0] % 64] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
