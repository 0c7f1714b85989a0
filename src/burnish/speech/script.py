"""Scripts from files: TOML or JSON in the schema of scenes, or any text.

    script = read_script("scene.toml")      # script.scene, script.sounds, script.background
    script = read_script("play.txt")        # names with colons become speakers, prose a narrator
    write_script(script, Path("plan.json"))

A TOML or JSON script may also have `sounds` (caption of an event to a sound file) and `background`
(a sound file that is repeated); paths start at the script's folder.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import ArgumentError, UserError
from burnish.models.long_speech.scene import Scene, checked_scene, write_scene
from burnish.models.long_speech.scene_text import parse_scene_text, scene_text
from burnish.speech.planner import drafted

LARGEST_BYTES = 4_000_000


class Script(NamedTuple):
    """A scene and the sound files that it names."""

    scene: Scene
    sounds: dict[str, Path]
    background: Path | None
    is_draft: bool
    """True if it was made from text that is no script: a planner has to fill it in."""
    directions: Sequence[str] = ()
    """Stage directions of a text, which are not spoken."""


def read_script(path: str | Path) -> Script:
    """The script of a file; everything that is wrong with it is told in one line."""
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise UserError(f"{file} has over {LARGEST_BYTES:,} bytes; cut the text into scenes")
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{file} is no text in UTF-8; expected a script or a text") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    if "\0" in text:
        raise UserError(f"{file} holds binary data; expected a script or a text")
    kind = file.suffix.lower()
    try:
        if kind in (".toml", ".json"):
            return _from_table(_table(text, kind), file)
        if text.lstrip().startswith("[instruct]"):
            return Script(parse_scene_text(text), {}, None, False)
        draft = drafted(text, "text")
        return Script(draft.scene, {}, None, True, draft.directions)
    except ArgumentError as error:
        raise UserError(f"{file}: {str(error).removeprefix('document: ')}") from None


def _table(text: str, kind: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text) if kind == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of over 4,300 digits
        raise ArgumentError(f"no {kind[1:].upper()}: {error}") from None
    if not isinstance(table, dict):
        raise ArgumentError(f"got a {type(table).__name__}, expected a table with sentences")
    return table


def _from_table(table: dict[str, Any], file: Path) -> Script:
    sounds, background = table.pop("sounds", {}), table.pop("background", None)
    if not isinstance(sounds, dict) or not all(isinstance(one, str) for one in sounds.values()):
        raise ArgumentError("sounds: expected a table of captions and sound files")
    if background is not None and not isinstance(background, str):
        raise ArgumentError(f"background: got {background!r}, expected a sound file")
    scene = checked_scene(table, "script")
    return Script(
        scene,
        {caption: file.parent / one for caption, one in sounds.items()},
        None if background is None else file.parent / background,
        False,
    )


def write_script(script: Script, file: Path) -> str:
    """The text of a script for a file: `.txt` in lines or `.json`; sounds by paths from its folder.

    A `.txt` has no room for sounds, and is refused where there are any.
    """
    if file.suffix.lower() not in (".json", ".txt"):
        raise UserError(f"{file}: expected a file that ends in .json or .txt")
    if file.suffix.lower() == ".txt":
        if script.sounds or script.background:
            raise UserError(f"{file}: a .txt cannot name the script's sounds; write a .json")
        return scene_text(script.scene)
    table = json.loads(write_scene(script.scene))
    if script.sounds:
        table["sounds"] = {name: _from(one, file) for name, one in script.sounds.items()}
    if script.background is not None:
        table["background"] = _from(script.background, file)
    return json.dumps(table, indent=2, ensure_ascii=False)


def _from(sound: Path, file: Path) -> str:
    return os.path.relpath(sound.resolve(), file.resolve().parent)
