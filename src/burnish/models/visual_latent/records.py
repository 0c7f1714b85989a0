"""Answers that imagine a picture: their text with its tags, parsed strictly (GAP, section 3).

    found = parse_response("Turn it. <latent/> <parser>Red is left.</parser> <answer>red</answer>", 1)
    found.pieces, found.notes, found.answer, found.plain

A `<latent/>` stands for one span of latents. A `<parser>` note follows it at once and says in words what
the imagined picture shows. The answer stands in `<answer>`. What does not keep to this is refused with a
reason, so that a data set can say what it left out and why.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from burnish.arguments import as_flag, as_text, as_whole
from burnish.errors import ArgumentError

LATENT = "<latent/>"
_TAG = re.compile(r"<(/?)(latent|parser|answer)\s*(/?)>")

TEACHER_PROMPT = """\
Answer the question about the picture. First say in one or two short sentences what you will do.
At the point where another picture would help (the same one turned, cropped, redrawn or marked), write
<latent/> in the place of that picture. Directly behind it write <parser>, then one sentence that says what
that picture shows: objects, places, relations, numbers; nothing that cannot be seen in it; then </parser>.
Then conclude in words. Write the final answer, and nothing else, between <answer> and </answer>.
Use <latent/> only where a picture helps, and never without its <parser> sentence."""
"""What a teacher model is asked that writes such answers."""


class RejectedResponse(ArgumentError):
    """An answer that cannot be learned from; `reason` is the same for all of a kind."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"text: {reason}")
        self.reason = reason


class LatentResponse(NamedTuple):
    """One answer."""

    pieces: tuple[str, ...]
    """Text before, between and behind the spans: one more than there are spans."""
    notes: tuple[str, ...]
    """What each imagined picture shows, by the answer itself; empty without a note."""
    answer: str
    plain: str
    """The same without spans and notes, for questions that need no picture."""

    @property
    def spans(self) -> int:
        return len(self.pieces) - 1


def parse_response(
    text: str, pictures: int, *, needs_note: bool = True, needs_answer: bool = True
) -> LatentResponse:
    """Read an answer for which there are so many auxiliary pictures.

    Refused: tags that do not match, `<latent>` in any other form than `<latent/>`, another number of
    spans than of pictures, a span without its note (`needs_note`), no answer or two.

    >>> from burnish.models.visual_latent import parse_response
    >>> text = "Turn it. <latent/> <parser>Red is left.</parser> <answer>red</answer>"
    >>> parse_response(text, pictures=1).plain
    'Turn it. <answer>red</answer>'
    """
    if not as_text("text", text).strip():
        raise RejectedResponse("no text")
    pictures = as_whole("pictures", pictures, low=0)
    needs_note, needs_answer = (
        as_flag("needs_note", needs_note),
        as_flag("needs_answer", needs_answer),
    )
    _check_tags(text)
    pieces = tuple(text.split(LATENT))
    if len(pieces) - 1 != pictures:
        raise RejectedResponse(f"{len(pieces) - 1} spans for {pictures} auxiliary pictures")
    notes = []
    for piece in pieces[1:]:
        found = re.match(r"\s*<parser>(.*?)</parser>", piece, re.DOTALL)
        if needs_note and (found is None or not found[1].strip()):
            raise RejectedResponse("a span without a <parser> note behind it")
        notes.append(found[1].strip() if found else "")
    answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if len(answers) > 1:
        raise RejectedResponse("more than one <answer>")
    answer = answers[0].strip() if answers else ""
    if needs_answer and not answer:
        raise RejectedResponse("no <answer>")
    plain = re.sub(r"[ \t]{2,}", " ", without_notes(text.replace(LATENT, ""))).strip()
    return LatentResponse(pieces, tuple(notes), answer, plain)


def without_notes(text: str) -> str:
    """A text without its `<parser>` notes and the space in front of them."""
    return re.sub(r"\s*<parser>.*?</parser>", "", text, flags=re.DOTALL)


def answer_of(text: str) -> str | None:
    """What stands between the last answer tags of a written text; None without them.

    >>> from burnish.models.visual_latent import answer_of
    >>> answer_of("It is <answer> red </answer>.")
    'red'
    """
    found = re.findall(r"<answer>(.*?)</answer>", as_text("text", text), re.DOTALL)
    return found[-1].strip() if found else None


def _check_tags(text: str) -> None:
    """Refuse tags that are not closed, closed twice, or inside each other."""
    is_open = ""
    for found in _TAG.finditer(text):
        closes, name, alone = found.groups()
        if name == "latent":
            if found[0] != LATENT:
                raise RejectedResponse(f"{found[0]} in the place of {LATENT}")
            if is_open:
                raise RejectedResponse(f"{LATENT} inside <{is_open}>")
        elif alone or (closes and is_open != name) or (not closes and is_open):
            raise RejectedResponse("tags that do not match")
        else:
            is_open = "" if closes else name
    if is_open:
        raise RejectedResponse(f"<{is_open}> without its end")
