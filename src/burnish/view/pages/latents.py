"""What an answer imagined: the latents of each span as decoded patches, beside the true picture (GAP).

    latents_view(sample)        # None where the answer has no latents

Everything is read from the stored sample (`info["latents"]`, written by `train.kind = "latents"`).
Pictures are PNG as `data:` text; anything else in their place is not shown.
"""

from __future__ import annotations

from typing import Any

from burnish.png import PREFIX
from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT
from burnish.view.pages.runs import Page

MOST = 32
"""Spans that are shown."""
MOST_CHARACTERS = 200_000
"""Of one picture."""


def latents_view(sample: StoredSample) -> Page | None:
    found = sample.trajectory.info.get("latents")
    if not isinstance(found, list) or not found:
        return None
    spans = [one for one in found if isinstance(one, dict)]
    return {
        "question": _picture(sample.task.fields.get("image")),
        "spans": [_imagined(one) for one in spans[:MOST]],
        "more": max(0, len(spans) - MOST),  # spans that are not shown
        "clipped": max((_whole(one.get("clipped")) for one in spans), default=0),  # by the guard
    }


def _imagined(one: Page) -> Page:
    norm, wanted = _number(one.get("norm")), _number(one.get("target_norm"))
    return {
        "slots": _whole(one.get("slots")),
        "picture": _picture(one.get("picture")),  # what the latents decode to
        "target": _picture(one.get("target")),  # the true picture, by the same decoding
        # Length of the latents over that of the true picture's vectors.
        "ratio": norm / wanted if norm is not None and wanted else None,
        "note": str(one.get("note") or "")[:TEXT],
    }


def _picture(value: Any) -> str:
    is_png = isinstance(value, str) and value.startswith(PREFIX) and len(value) <= MOST_CHARACTERS
    return value if is_png else ""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
