"""What an answer imagined: the latents of each span as decoded patches, beside the true picture (GAP).

    latents_view(sample)        # None where the answer has no latents

Everything is read from the stored sample (`info["latents"]`, written by `train.kind = "latents"`).
Pictures are PNG as `data:` text; anything else in their place is not shown.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from burnish.png import PREFIX
from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT

MOST = 32
"""Spans that are shown."""
MOST_CHARACTERS = 200_000
"""Of one picture."""


class ImaginedView(Struct, frozen=True, kw_only=True):
    slots: int
    picture: str
    """What the latents decode to; empty where they cannot be."""
    target: str
    """The true picture, by the same decoding."""
    ratio: float | None
    """Length of the latents over that of the true picture's vectors."""
    note: str
    """What the record says that the picture shows."""


class LatentsView(Struct, frozen=True, kw_only=True):
    question: str
    """The picture of the question."""
    spans: list[ImaginedView]
    more: int
    """Spans that are not shown."""
    clipped: int
    """Latents that the guard cut."""


def latents_view(sample: StoredSample) -> LatentsView | None:
    found = sample.trajectory.info.get("latents")
    if not isinstance(found, list) or not found:
        return None
    spans = [one for one in found if isinstance(one, dict)]
    return LatentsView(
        question=_picture(sample.task.fields.get("image")),
        spans=[_imagined(one) for one in spans[:MOST]],
        more=max(0, len(spans) - MOST),
        clipped=max((_whole(one.get("clipped")) for one in spans), default=0),
    )


def _imagined(one: dict[str, Any]) -> ImaginedView:
    norm, wanted = _number(one.get("norm")), _number(one.get("target_norm"))
    return ImaginedView(
        slots=_whole(one.get("slots")),
        picture=_picture(one.get("picture")),
        target=_picture(one.get("target")),
        ratio=norm / wanted if norm is not None and wanted else None,
        note=str(one.get("note") or "")[:TEXT],
    )


def _picture(value: Any) -> str:
    is_png = isinstance(value, str) and value.startswith(PREFIX) and len(value) <= MOST_CHARACTERS
    return value if is_png else ""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
