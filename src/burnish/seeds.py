"""Seeds derived per purpose from the run's seed, so that order and concurrency change nothing.

Built on SHA-256, never on `hash()`, and there is no global state to save or to restore.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass


def derive(*parts: str | int) -> int:
    """A 63-bit integer from the parts; equal parts give equal seeds everywhere."""
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return (
        int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big") >> 1
    )


def digest(*parts: str | bytes) -> str:
    """A stable 16-character content id of texts or bytes."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "big"))
        hasher.update(data)
    return hasher.hexdigest()[:16]


@dataclass(frozen=True)
class Seeds:
    """The seeds of one run."""

    run: int

    def for_(self, purpose: str, *parts: str | int) -> int:
        """The seed of one purpose, for example `for_("rollout", step, index)`."""
        return derive(self.run, purpose, *parts)

    def rng(self, purpose: str, *parts: str | int) -> random.Random:
        """A private generator for one purpose."""
        return random.Random(self.for_(purpose, *parts))
