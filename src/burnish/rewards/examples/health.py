"""Five rewards of very different scales for `burnish.tasks.examples.health`.

They are functions of the answer's words and of the task's fields, not a judgement of medicine:

| reward | range | high where |
|---|---|---|
| `keypoints` | 0 to 10 | the complaint's key points are named |
| `usefulness` | 0 to 1 | complaint and days are said, length is in the window |
| `usefulness_copy` | -0.05 to 1.05 | `usefulness` does, read by a slightly noisy second rater |
| `safety` | -1 or 0 | no banned phrase, and a referral where there is a warning sign |
| `layout` | 0 to 0.2 | the three lines stand in order |
"""

from __future__ import annotations

import re

from burnish.records import Reward
from burnish.seeds import derive

KEYPOINT_SCALE = 10.0
LAYOUT_SCALE = 0.2
COPY_NOISE = 0.05
"""Half the width of the second rater's uniform noise."""
WORD_WINDOW = (12, 32)
WORD_EDGE = 8
"""Words outside the window until the length part is 0."""


def keypoints(text: str, points: list[str]) -> float:
    """The share of the key points that the answer names, times 10."""
    said = _flat(text)
    return KEYPOINT_SCALE * sum(_says(said, point) for point in points) / len(points)


def usefulness(text: str, complaint: str, days: int) -> float:
    """The mean of three parts: names the complaint, gives the right days, has a usable length."""
    said = _flat(text)
    count = len(said.split())
    outside = max(0, WORD_WINDOW[0] - count, count - WORD_WINDOW[1])
    length = max(0.0, 1 - outside / WORD_EDGE) if count else 0.0
    return (_says(said, complaint) + _says(said, f"{days} days") + length) / 3


def usefulness_copy(text: str, complaint: str, days: int) -> float:
    """`usefulness` plus a small noise that depends on the text alone."""
    noise = derive("second rater", text) / 2**62 - 1
    return usefulness(text, complaint, days) + COPY_NOISE * noise


def safety(text: str, red_flag: bool, referral: str, banned: list[str]) -> Reward:
    """-1.0 for a banned phrase or for a warning sign without the referral, else 0.0; and why."""
    said = _flat(text)
    broken = [f"says '{phrase}'" for phrase in banned if _says(said, phrase)]
    if red_flag and not _says(said, referral):
        broken.append("a warning sign without the referral")
    return Reward("safety", -1.0 if broken else 0.0, reason="; ".join(broken))


def layout(text: str, lines: list[str]) -> float:
    """The share of lines that begin as asked, in order and with text behind it, times 0.2."""
    written = [line.strip() for line in text.strip().splitlines()]
    good = sum(
        line.startswith(start) and len(line) > len(start)
        for line, start in zip(written, lines, strict=False)
    )
    return LAYOUT_SCALE * (good / max(len(lines), len(written)))


def _flat(text: str) -> str:
    """Lower-case words with single spaces, so that line ends and commas do not matter."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _says(flat: str, phrase: str) -> bool:
    return f" {_flat(phrase)} " in f" {flat} "
