"""Carry out the cheap tools of a plan: look up a cited image, draw a chart by code in the sandbox.

    ran = execute_call(Call("reference", {"image_id": 0}, True), images=["a.png"])
    ran.ok, ran.reason

A well-written call may still be infeasible. `reference` is done where the image is there; `code` where the
program runs in the sandbox and leaves an image file, whose bytes come back and are checked. Search,
diffusion and edit are not carried out here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.arguments import as_list, refused
from burnish.errors import SandboxError
from burnish.rewards.judges.atp_bench.calls import OUT_OF_RANGE, TOOLS, Call, validate_call
from burnish.tools.limits import SandboxLimits
from burnish.tools.sandbox import Sandbox

LARGEST = 600_000
"""Bytes of an image that comes back; a chart has less."""
PIXELS = 20_000_000
SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_LINE = "image of the program: "
_DRIVER = f"""
import base64, os, runpy, sys
runpy.run_path("chart.py", run_name="__main__")
found = [n for n in sorted(os.listdir(".")) if n.lower().endswith((".png", ".jpg", ".jpeg"))]
if found and os.path.getsize(found[0]) <= {LARGEST}:
    with open(found[0], "rb") as file:
        print("\\n{_LINE}" + base64.b64encode(file.read()).decode(), flush=True)
"""


class Executed(NamedTuple):
    """What came of carrying out one call."""

    ok: bool | None
    """None: not carried out, such as a search."""
    reason: str
    image: bytes = b""
    """The picture that a program drew."""


def execute_call(
    call: Call, images: Sequence[Any] = (), sandbox: Sandbox | None = None
) -> Executed:
    """Carry out a call where that is cheap; a failure has a reason and never raises.

    An image of the context is its caption, or a `Path`, which must be a file.

    >>> execute_call(Call("reference", {"image_id": 3}, True), images=["a", "b"])
    Executed(ok=False, reason='image_id_out_of_range', image=b'')
    """
    if not isinstance(call, Call):
        raise refused("call", call, "a call, as parse_calls gives it")
    known = as_list("images", images)
    if not call.valid or call.args is None:
        return Executed(False, call.reason or "not valid")
    checked = validate_call(call.tool, call.args, TOOLS, len(known))
    if not checked.valid:
        return Executed(False, checked.reason)
    if call.tool == "reference":
        image = known[call.args["image_id"]]
        is_there = not isinstance(image, Path) or image.is_file()
        return Executed(is_there, "the image is there" if is_there else OUT_OF_RANGE)
    if call.tool == "code":
        return draw_chart(call.args["code"], sandbox)
    return Executed(None, f"{call.tool} is not carried out here")


def draw_chart(code: Any, sandbox: Sandbox | None = None) -> Executed:
    """Run a program that draws; its first PNG or JPEG file comes back.

    What a program prints proves nothing, so the image itself is asked for and read.
    """
    if not isinstance(code, str) or not code.strip():
        return Executed(False, "the code is no text")
    place = sandbox or Sandbox(SandboxLimits(cpu_s=5, wall_s=10, output_kb=1024))
    try:
        ran = place.run(_DRIVER, files={"chart.py": code})
    except SandboxError as error:
        return Executed(None, f"the sandbox failed: {error}")
    if ran.status.value != "ok":
        said = ran.stderr.strip().splitlines()[-1:] or [""]
        return Executed(False, f"{ran.status.value}: {said[0][:200]}")
    _, mark, written = ran.stdout.rpartition(f"\n{_LINE}")
    if not mark:
        return Executed(False, "the program wrote no image")
    try:
        image = base64.b64decode(written.strip(), validate=True)
    except (binascii.Error, ValueError):
        return Executed(False, "the program wrote no image")
    problem = image_problem(image)
    return Executed(not problem, problem or f"{len(image)} bytes", b"" if problem else image)


def image_problem(image: bytes) -> str:
    """Why these bytes are no picture that can be shown; empty where they are."""
    if not any(image.startswith(start) for start in SIGNATURES):
        return "no PNG and no JPEG"
    if len(image) > LARGEST:
        return "too large"
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:  # the first bytes are all that can be looked at
        return ""
    from io import BytesIO

    try:
        with Image.open(BytesIO(image)) as opened:
            if opened.width * opened.height > PIXELS:
                return "too many pixels"
            opened.verify()
    # The boundary to a decoder of foreign bytes: it raises many kinds.
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return "a broken image"
    return ""
