"""The timeline of a scene as a picture: a lane a speaker, overlaps marked, the arc above.

write_timeline("scene.svg", scene, mix.timeline)        # or .png (needs pillow)
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from burnish.arguments import as_path, refused
from burnish.errors import UserError
from burnish.models.long_speech.scene import Scene, spoken_text
from burnish.models.long_speech.timeline import Span
from burnish.speech.manner import arousal_of

WIDTH, LEFT, LANE, TOP = 1200, 110, 46, 84
COLOURS = ("#3b6ea5", "#c8553d", "#4f8a5b", "#8d6cab", "#b8860b", "#4a7c86")
GREY, INK, PALE = "#c9ccd1", "#22262b", "#f2f0ea"


class Shape(NamedTuple):
    """A rectangle, a line or a text of the picture."""

    kind: str
    x: float
    y: float
    x2: float = 0.0
    y2: float = 0.0
    colour: str = INK
    text: str = ""
    size: int = 12


def timeline_shapes(scene: Scene, timeline: Sequence[Span]) -> tuple[list[Shape], int]:
    """What the picture is made of, and its height."""
    speakers = [one.id for one in scene.overall.speakers]
    length = max((span["end"] for span in timeline), default=0.0) or 1.0
    height = TOP + LANE * len(speakers) + 34
    scale = (WIDTH - LEFT - 20) / length
    bottom = TOP + LANE * len(speakers)
    shapes = [Shape("box", 0, 0, WIDTH, height, PALE)]
    step = next(one for one in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 10**6) if length / one <= 14)  # fmt: skip
    for second in range(0, int(length) + 1, step):
        x = LEFT + second * scale
        shapes.append(Shape("line", x, TOP - 8, x, bottom, GREY))
        label = f"{second // 60}:{second % 60:02d}"
        shapes.append(Shape("text", x, bottom + 18, colour=INK, text=label, size=11))
    for lane, name in enumerate(speakers):
        y = TOP + LANE * lane
        shapes.append(Shape("text", 10, y + 25, colour=COLOURS[lane % len(COLOURS)], text=spoken_text(name)[:14], size=13))  # fmt: skip
    spans = list(zip(scene.sentences, timeline, strict=True))
    for sentence, span in spans:
        lane = speakers.index(sentence.speaker)
        y, colour = TOP + LANE * lane, COLOURS[lane % len(COLOURS)]
        x, x2 = LEFT + span["start"] * scale, LEFT + span["end"] * scale
        shapes.append(Shape("box", x, y + 6, max(x2, x + 1), y + LANE - 8, colour))
        room = int((x2 - x) / 6.2) - 1
        if room > 3:
            words = spoken_text(sentence.text)
            said = words if len(words) <= room else words[: room - 1] + "…"
            shapes.append(Shape("text", x + 3, y + 26, colour="#ffffff", text=said, size=11))
        if span["cut"]:
            shapes.append(Shape("line", x2, y + 2, x2, y + LANE - 4, "#d00000"))
    for start, end in _overlaps([span for _, span in spans]):
        shapes.append(Shape("box", LEFT + start * scale, TOP - 8, LEFT + end * scale, TOP - 4, "#d00000"))  # fmt: skip
    arousal = arousal_of(scene)
    if arousal:
        points = [
            (LEFT + (s["start"] + s["end"]) / 2 * scale, TOP - 16 - 52 * a)
            for s, a in zip(timeline, arousal, strict=True)
        ]
        shapes.append(Shape("text", 10, TOP - 36, text="arousal", size=11))
        shapes += [
            Shape("line", *first, *second, INK)
            for first, second in zip(sorted(points), sorted(points)[1:], strict=False)
        ]
    return shapes, height


def _overlaps(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Stretches in which two or more talk."""
    changes = sorted([(s["start"], 1) for s in spans] + [(s["end"], -1) for s in spans])
    found, talking, since = [], 0, 0.0
    for moment, change in changes:
        if talking < 2 <= talking + change:
            since = moment
        elif talking >= 2 > talking + change and moment > since:
            found.append((since, moment))
        talking += change
    return found


def timeline_svg(scene: Scene, timeline: Sequence[Span]) -> str:
    """The picture as SVG text."""
    shapes, height = timeline_shapes(scene, timeline)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">']  # fmt: skip
    for one in shapes:
        if one.kind == "box":
            parts.append(f'<rect x="{one.x:.1f}" y="{one.y:.1f}" width="{one.x2 - one.x:.1f}" height="{one.y2 - one.y:.1f}" fill="{one.colour}" fill-opacity="0.92"/>')  # fmt: skip
        elif one.kind == "line":
            parts.append(f'<line x1="{one.x:.1f}" y1="{one.y:.1f}" x2="{one.x2:.1f}" y2="{one.y2:.1f}" stroke="{one.colour}" stroke-width="1.5"/>')  # fmt: skip
        else:
            parts.append(f'<text x="{one.x:.1f}" y="{one.y:.1f}" font-size="{one.size}" fill="{one.colour}">{escape(one.text)}</text>')  # fmt: skip
    return "\n".join([*parts, "</svg>\n"])


def write_timeline(path: str | Path, scene: Scene, timeline: Sequence[Span]) -> Path:
    """Write the picture; the name's ending says how: .svg or .png."""
    target = as_path("path", path, "a file that ends in .svg or .png")
    if target.suffix.lower() not in (".svg", ".png"):
        raise refused("path", str(path), "a file that ends in .svg or .png")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix.lower() == ".svg":
            target.write_text(timeline_svg(scene, timeline), encoding="utf-8")
        else:
            _write_png(target, *timeline_shapes(scene, timeline))
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from None
    return target


def _write_png(target: Path, shapes: Sequence[Shape], height: int) -> None:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise UserError(
            "a PNG of the timeline needs pillow: pip install 'burnish[images]', or write an .svg"
        ) from None
    picture = Image.new("RGB", (WIDTH, height), PALE)
    draw = ImageDraw.Draw(picture)
    for one in shapes:
        if one.kind == "box":
            draw.rectangle((one.x, one.y, one.x2, one.y2), fill=one.colour)
        elif one.kind == "line":
            draw.line((one.x, one.y, one.x2, one.y2), fill=one.colour, width=2)
        else:
            font = ImageFont.load_default(one.size)
            draw.text((one.x, one.y - one.size), one.text, fill=one.colour, font=font)
    picture.save(target, optimize=True)
