"""A held-out sound beside what a model made of it (`train.kind` `codec` and `speech`).

    sounds_view(sample)         # None where the sample has no sounds to compare

Everything is read from the stored sample: the sound from its task, what was made of it from its turns.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from burnish.records import AudioPart, Message, TextPart
from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT

ROLES = ("codec", "speech")
MOST = 16
"""Sounds that are shown."""


class SoundView(Struct, frozen=True):
    label: str
    part: AudioPart


def sounds_view(sample: StoredSample) -> list[SoundView] | None:
    """The sound and what was made of it, the sound first."""
    if sample.trajectory.role not in ROLES:
        return None
    found = [_sound("original", message) for message in sample.task.messages]
    found += [_sound("", turn) for turn in _turns(sample.trajectory.info.get("messages"))]
    return [one for one in found if one is not None][:MOST] or None


def _sound(label: str, message: Message) -> SoundView | None:
    part = next((one for one in message.media if isinstance(one, AudioPart)), None)
    if part is None:
        return None
    words = " ".join(one.text.strip() for one in message.content if isinstance(one, TextPart))
    return SoundView((f"{label}: {words}" if label else words)[:TEXT], part)


def _turns(value: Any) -> list[Message]:
    """What is no list of messages has no sound."""
    try:
        return msgspec.convert(value, list[Message])
    except msgspec.ValidationError:
        return []
