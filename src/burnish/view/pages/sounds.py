"""A held-out sound beside what a model made of it (`train.kind` `codec` and `speech`).

    sounds_view(sample)         # None where the sample has no sounds to compare

Everything is read from the stored sample: the sound from its task, what was made of it from its turns.
"""

from __future__ import annotations

import msgspec

from burnish.records import AudioPart, Message, TextPart
from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT
from burnish.view.pages.runs import Page

ROLES = ("codec", "speech")
MOST = 16
"""Sounds that are shown."""


def sounds_view(sample: StoredSample) -> list[Page] | None:
    """The sound and what was made of it, the sound first."""
    if sample.trajectory.role not in ROLES:
        return None
    try:
        turns = msgspec.convert(sample.trajectory.info.get("messages"), list[Message])
    except msgspec.ValidationError:
        turns = []
    found = []
    for label, message in [
        *(("original", m) for m in sample.task.messages),
        *(("", m) for m in turns),
    ]:
        part = next((one for one in message.media if isinstance(one, AudioPart)), None)
        if part is not None:
            words = " ".join(p.text.strip() for p in message.content if isinstance(p, TextPart))
            found.append({"label": (f"{label}: {words}" if label else words)[:TEXT], "part": part})
    return found[:MOST] or None
