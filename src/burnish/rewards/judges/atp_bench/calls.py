"""Tool calls in the text of an answer: found, read and validated by code (ATP-Bench).

A call stands in place of a picture: `<tool name="NAME">JSON object</tool>`. Function-call JSON and
Markdown images with a scheme are read to the same result (`syntax`). The parser is total: whatever
the text holds, a broken call is a call with `valid=False` and a reason, never an exception.

The syntax and the required arguments are ours: those of the paper (arXiv 2603.29902) are not known.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Count, public
from burnish.errors import SandboxError, UserError
from burnish.media.images import open_image
from burnish.rewards.judges.reading import decoder
from burnish.texts import whole_texts
from burnish.tools.isolation import SandboxLimits
from burnish.tools.sandbox import Sandbox

TOOLS: dict[str, tuple[str, ...]] = {
    "reference": ("image_id",),
    "search": ("query",),
    "diffusion": ("prompt",),
    "code": ("code",),
    "edit": ("image_id", "instruction"),
}
"""The tools of the benchmark and their required arguments, in order."""
IMAGE = "image_id"
"""The argument that names an image of the context."""

Syntax = Literal["tags", "json", "markdown"]
ToolNames = Annotated[Sequence[str], Meta(min_length=1)] | Mapping[str, object]

UNKNOWN, BAD, UNCLOSED = "unknown_tool", "bad_arguments", "unclosed"
OUT_OF_RANGE, DUPLICATE, FENCED = "image_id_out_of_range", "duplicate", "in_code_fence"

MOST_BROKEN = 1_000
"""Openings of function-call JSON that begin no whole object, before the rest is text."""
_BEGIN = re.compile(r"\s*+\{")
_OPEN = re.compile(r'<tool\s+name\s*=\s*"([^"<>]*)"\s*>')
_CLOSE = "</tool>"
_CLOSING = re.compile(rf"\s*+{_CLOSE}")
_OBJECT = re.compile(r'\{\s*"name"\s*:')
_NAME = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]{0,200})"')
_IMAGE = "](tool://"
_ADDRESS = re.compile(r"[?\s<>]")
_ALT = 1_000
"""Characters of a Markdown image's description."""
_MARK = re.compile(
    r"[\[［【](" + r"\W{0,3}".join(["", *"picture", ""]) + r"\d{1,9}\W{0,3}?)[\]］】]", re.I
)
"""What reads like a placeholder."""
_BLOCKS = re.compile(r"(?:\s*+(?:>|[-*+]\s|\d{1,9}[.)]\s))++ ?")
"""The marks of quotes and list items that a line begins with."""
_FENCE = re.compile(
    r"(?P<indent>\s*)(?:(?P<mark>`{3,})(?P<info>[^`]*)|(?P<wave>~{3,})(?P<more>.*))"
)


class Call(NamedTuple):
    """One tool call as it stands in a text."""

    tool: str
    args: dict[str, Any] | None
    """None where they cannot be read."""
    valid: bool
    reason: str = ""
    """Why it is not valid; empty where it is."""


class Validity(NamedTuple):
    valid: bool
    reason: str = ""


class Located(NamedTuple):
    """A call and the characters of the text that it takes."""

    call: Call
    start: int
    end: int


@public
def parse_calls(text: str, tools: ToolNames, *, syntax: Syntax = "tags") -> list[Call]:
    """The calls of a text, in order; `tools` are the known names.

    An unknown name is not valid (`unknown_tool`; its arguments are kept where they can be read), and
    arguments that are no JSON object are None (`bad_arguments`). A tag that is never closed is one
    call (`unclosed`), and what follows it is text. Which arguments a tool needs is for
    `validate_call` to say.

    >>> parse_calls('<tool name="search">{"query": "kite"}</tool>', ["search"])
    [Call(tool='search', args={'query': 'kite'}, valid=True, reason='')]
    """
    return [one.call for one in locate_calls.plain(text, tools, syntax=syntax)]


@public
def locate_calls(text: str, tools: ToolNames, *, syntax: Syntax = "tags") -> list[Located]:
    """The same with the place of each call."""
    find = {"tags": _tags, "json": _objects, "markdown": _images}[syntax]
    return [
        Located(_call(tool, args, reason, tools), start, end)
        for tool, args, reason, start, end in find(text)
    ]


@public
def validate_call(
    tool: str,
    args: Mapping[str, object] | None,
    required: Sequence[str] | Mapping[str, Sequence[str]],
    n_context_images: Count | None = None,
) -> Validity:
    """Whether a call has its arguments: the first that is missing (`missing:NAME`), in the order of
    `required`, then whether the image is one of the context (`image_id_out_of_range`).

    `required` are the names of this tool's arguments, or those of every tool by its name. An image id
    is an integer from 0 up to, and without, `n_context_images`; None: their number is not known.

    >>> validate_call("edit", {"image_id": 2}, ["image_id", "instruction"], n_context_images=2)
    Validity(valid=False, reason='missing:instruction')
    """
    if isinstance(required, Mapping):
        if tool not in required:
            return Validity(False, UNKNOWN)
        required = required[tool]
    if args is None:
        return Validity(False, BAD)
    for name in required:
        if name not in args:
            return Validity(False, f"missing:{name}")
    if IMAGE in required:
        image = args[IMAGE]
        most = math.inf if n_context_images is None else n_context_images
        if not isinstance(image, int) or isinstance(image, bool) or not 0 <= image < most:
            return Validity(False, OUT_OF_RANGE)
    return Validity(True)


@public
def check_calls(
    text: str,
    tools: Annotated[Mapping[str, Sequence[str]], Meta(min_length=1)] = TOOLS,
    n_context_images: Count | None = None,
    *,
    syntax: Syntax = "tags",
) -> list[Located]:
    """Calls through the whole deterministic layer: arguments, images, repetitions, code fences.

    The same tool with the same arguments again is not valid (`duplicate`), and neither is a call that
    is only quoted in a Markdown code fence (`in_code_fence`).
    """
    found = locate_calls.plain(text, tools, syntax=syntax)
    quoted = _fences(text, found) if found else []
    seen: set[str] = set()
    checked = []
    fence = 0
    for call, start, end in found:
        while fence < len(quoted) and quoted[fence][1] <= start:
            fence += 1
        reason = call.reason
        if call.valid:
            reason = validate_call.plain(call.tool, call.args, tools, n_context_images).reason
        if not reason and fence < len(quoted) and quoted[fence][0] <= start:
            reason = FENCED
        if not reason:
            key = f"{call.tool} {json.dumps(call.args, sort_keys=True)}"
            reason = DUPLICATE if key in seen else ""
            seen.add(key)
        checked.append(Located(call._replace(valid=not reason, reason=reason), start, end))
    return checked


@public
def render_call(
    tool: Annotated[str, Meta(pattern=r'^[^"<>]*$')], args: Mapping[str, object]
) -> str:
    """A call as text that `parse_calls` reads back to the same tool and arguments.

    >>> render_call("reference", {"image_id": 2})
    '<tool name="reference">{"image_id": 2}</tool>'
    """
    try:
        written = json.dumps(dict(args), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise refused("args", args, "values that JSON can hold") from None
    # JSON may write a slash with a backslash before it; so no text of an argument ends the call.
    closed = written.replace("</", "<\\/")
    return f'<tool name="{tool}">{closed}{_CLOSE}'


@public
def with_placeholders(text: str, calls: Sequence[Located]) -> str:
    """The text with `[picture 1]`, `[picture 2]`, ... in place of its calls, and nowhere else."""
    parts, end = [], 0
    for number, (_, start, stop) in enumerate(calls, start=1):
        parts += [without_marks(text[end:start]), f"[picture {number}]"]
        end = stop
    return "".join([*parts, without_marks(text[end:])])


def without_marks(text: str) -> str:
    """A text of the same length in which nothing reads like a placeholder."""
    return _MARK.sub(r"(\1)", text)


# --- syntaxes: name, arguments or None, a reason of the syntax itself, and the place

_Found = tuple[str, "dict[str, Any] | None", str, int, int]


def _tags(text: str) -> Iterator[_Found]:
    at = 0
    while (found := _OPEN.search(text, at)) is not None:
        args, end = _object_at(text, found.end())
        if args is not None and (close := _CLOSING.match(text, end)) is not None:
            at = close.end()
            yield found[1], args, "", found.start(), at
            continue
        # What the JSON reader did not take up to a closing tag is unreadable up to the next one.
        stop = text.find(_CLOSE, found.end())
        if stop < 0:
            yield found[1], None, UNCLOSED, found.start(), found.end()
            return
        at = stop + len(_CLOSE)
        yield found[1], None, "", found.start(), at


def _objects(text: str) -> Iterator[_Found]:
    at = broken = 0
    while broken < MOST_BROKEN and (found := _OBJECT.search(text, at)) is not None:
        value, at = _object_at(text, found.start())
        if value is None:
            named = _NAME.match(text, found.start())
            at, broken = found.end(), broken + 1
            yield named[1] if named else "", None, "", found.start(), at
            continue
        args, name = value.get("arguments", value.get("parameters")), value["name"]
        if isinstance(args, str):  # some servers write the arguments as a text
            args = _object_at(args, 0)[0]
        args = args if isinstance(args, dict) else None
        yield name if isinstance(name, str) else "", args, "", found.start(), at


def _images(text: str) -> Iterator[_Found]:
    at = 0
    while (place := text.find(_IMAGE, at)) >= 0:
        at = place + len(_IMAGE)
        start = text.rfind("[", max(0, place - _ALT), place) - 1
        if start < 0 or text[start] != "!":  # a link, no image
            continue
        end = text.find(")", at)
        if end < 0:
            yield unquote(_ADDRESS.split(text[at : at + _ALT])[0]), None, UNCLOSED, start, at
            return
        tool, _, query = text[at:end].partition("?")
        is_whole = not _ADDRESS.search(tool) and not _ADDRESS.search(query)
        at = end + 1
        args = _arguments(query) if is_whole else None
        yield unquote(_ADDRESS.split(tool)[0]), args, "", start, at


def _arguments(query: str) -> dict[str, Any] | None:
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
    except ValueError:
        return None
    args = {key: _value(value) for key, value in pairs}
    return args if len(args) == len(pairs) else None


def _value(text: str) -> Any:
    """A number, a list or the like where the text is one, else the text itself."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return text


def _call(tool: str, args: dict[str, Any] | None, reason: str, known: Collection[str]) -> Call:
    try:
        tool, args = whole_texts(tool), whole_texts(args)
    except RecursionError:  # hundreds of lists inside each other
        args = None
    if tool not in known:
        return Call(tool, args, False, UNKNOWN)
    reason = reason or (BAD if args is None else "")
    return Call(tool, args, not reason, reason)


def _object_at(text: str, at: int) -> tuple[dict[str, Any] | None, int]:
    """The JSON object that begins here, blanks before it left out, and where it ends."""
    begin = _BEGIN.match(text, at)
    if begin is None:
        return None, at
    try:
        return _DECODER.raw_decode(text, begin.end() - 1)
    except (ValueError, RecursionError):
        return None, at


_DECODER = decoder(strict=False)
"""Takes line breaks inside of texts: programs have them."""


def _fences(text: str, calls: Sequence[Located]) -> list[tuple[int, int]]:
    """Where Markdown code fences begin and end, also behind the marks of quotes and lists.

    One that is never closed reaches to the end of its quote, or of the text. Lines that begin inside
    a call are its arguments.
    """
    spans: list[tuple[int, int]] = []
    opened, fence, is_quoted = 0, "", False
    start = call = 0
    for written in text.split("\n"):
        begin, start = start, start + len(written) + 1
        while call < len(calls) and calls[call].end <= begin:
            call += 1
        if call < len(calls) and calls[call].start < begin:
            continue
        marks = _BLOCKS.match(written)
        behind = marks.end() if marks else 0
        if fence and is_quoted and ">" not in written[:behind]:
            spans.append((opened, begin))
            fence = ""
        found = _FENCE.fullmatch(written.rstrip(), behind)
        if found is None:
            continue
        mark = found["mark"] or found["wave"]
        if not fence:
            # Four blanks or more are code of another kind; behind a mark they belong to its item.
            if len(found["indent"].expandtabs(4)) < 4:
                opened, fence, is_quoted = begin, mark, ">" in written[:behind]
        elif mark.startswith(fence) and not (found["info"] or found["more"]):
            spans.append((opened, begin + len(written)))
            fence = ""
    return [*spans, (opened, len(text))] if fence else spans


LARGEST = 600_000
"""Bytes of an image that comes back; a chart has less."""
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
    ok: bool | None
    """None: not carried out, such as a search."""
    reason: str
    image: bytes = b""
    """The picture that a program drew."""


@public
def execute_call(call: Call, images: Sequence[object] = ()) -> Executed:
    """Carry out a call where that is cheap; a failure has a reason and never raises.

    An image of the context is its caption, or a `Path`, which must be a file.
    """
    if not call.valid or call.args is None:
        return Executed(False, call.reason or "not valid")
    checked = validate_call.plain(call.tool, call.args, TOOLS, len(images))
    if not checked.valid:
        return Executed(False, checked.reason)
    if call.tool == "reference":
        image = images[call.args["image_id"]]
        is_there = not isinstance(image, Path) or image.is_file()
        return Executed(is_there, "the image is there" if is_there else OUT_OF_RANGE)
    if call.tool == "code":
        return draw_chart(call.args["code"])
    return Executed(None, f"{call.tool} is not carried out here")


def draw_chart(code: Any) -> Executed:
    """Run a program that draws; its first PNG or JPEG file comes back.

    What a program prints proves nothing, so the image itself is asked for and read.
    """
    if not isinstance(code, str) or not code.strip():
        return Executed(False, "the code is no text")
    limits = SandboxLimits(cpu_s=5, wall_s=10, output_kb=1024)
    try:
        ran = Sandbox(limits).run(_DRIVER, files={"chart.py": code})
    except SandboxError as error:
        return Executed(None, f"the sandbox failed: {error}")
    if ran.status.value != "ok":
        return Executed(False, f"{ran.status.value}: {ran.stderr.strip()[-200:]}")
    _, mark, written = ran.stdout.rpartition(f"\n{_LINE}")
    try:
        image = base64.b64decode(written.strip(), validate=True)
        open_image(image)
    except (ValueError, UserError) as error:
        told = f"the program drew no picture: {error}" if mark else "the program wrote no image"
        return Executed(False, told)
    return Executed(True, f"{len(image)} bytes", image)
