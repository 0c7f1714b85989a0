"""Texts of models, files and servers, made safe to show.

safe("a\\x1b[31mb")      # the escape is written out, not obeyed
"""

from __future__ import annotations

import re
from pathlib import Path

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """A text that cannot steer what shows it: control and direction characters are written out.

    What a model, a file or a server said is data; an escape sequence in it must not be obeyed.
    """
    return _STEERING.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def shown_path(path: Path) -> Path:
    """A path as one types it from the working folder; as it is where it lies elsewhere."""
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path
