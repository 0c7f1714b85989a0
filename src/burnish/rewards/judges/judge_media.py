"""What a judge gets of a task's images and sounds: the files themselves, or marks for them.

    check_reads_media([judge], task.media)   # one line before anything is asked, or nothing
    shown(message, "mark")                   # the message as a judge that reads text is sent it

`as_user` of `prompting` fences them. A judge in this process that cannot read them is refused before
anything starts; what a server can read is known to nobody before it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from msgspec.structs import replace

from burnish.errors import MediaError
from burnish.lm.base import refuse_unread_media
from burnish.records import MediaPart, Message

Media = Literal["send", "mark"]
"""What becomes of a question's images and sounds."""
UNSEEN = (
    "Marks such as [image 3f2a91c0d1e2] stand for images and sounds that are not shown to you. Do not "
    "guess what is in them."
)
"""What a judge is told that gets marks instead of media."""


def shown(message: Message, media: Media) -> Message:
    """The message as a judge is sent it.

    >>> shown(Message("user", "Is it right?"), "mark").content
    'Is it right?'
    """
    if media == "send" or not message.media:
        return message
    return replace(message, content=f"{message.text}\n{UNSEEN}")


@contextmanager
def naming_judge(name: str) -> Iterator[None]:
    """Say which judge cannot read an image or a sound, and the way out."""
    try:
        yield
    except MediaError as error:
        raise MediaError(
            f"judge '{name}': {error}. Or set media = 'mark' (--media mark): the judge is then told "
            "that it does not see them",
            sha256=error.sha256,
        ) from error


def check_reads_media(judges: Iterable[Any], media: Iterable[MediaPart]) -> None:
    """Refuse a judge that would be sent what its model cannot read.

    `judges` are those that `judges_built` noted; one with `shows_media = False` asks about texts alone.
    """
    parts = tuple(dict.fromkeys(media))
    for judge in judges:
        if getattr(judge, "media", "mark") == "send" and getattr(judge, "shows_media", True):
            with naming_judge(judge.name):
                refuse_unread_media(judge.lm, parts)
