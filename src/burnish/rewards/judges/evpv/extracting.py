"""Facts from evidence: documents, tables, pictures, recorded facts, a model; one protocol (EVPV).

    found = await extract_all(["AB = 10. AB is parallel to CD.", {"type": "table", "csv": "..."}])
    found.facts, found.unreadable

Evidence is a list of pieces whatever it was: a text (also a tool's result), a table, facts that
somebody recorded, a picture (read by OCR, or described by a model that sees). `EXTRACTORS` names a
function for each type of piece; a further kind of evidence is one file with such a function and a line
there. An extractor that fails gives a status and no facts, and the gate stays open: it is never evidence
against anybody.
"""

from __future__ import annotations

import importlib
import re
import reprlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread

from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.records import Evidence, Message, Status
from burnish.rewards.checks.texts import sentences
from burnish.rewards.judges.evpv.facts import Fact, read_fact
from burnish.rewards.judges.evpv.pictures import picture_of
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import (
    Question,
    Unreadable,
    as_user,
    fence,
    fill,
    mark_for,
    wording,
)
from burnish.rewards.judges.reading import anything, free_table, read_reply

MOST_FACTS = 200_000
"""Facts of one piece of evidence; what comes after them is counted as unreadable."""
MOST_TEXT = 2_000_000
"""Characters of a document that are read."""
SHOWN = 12_000
"""Characters of a document that a model is shown."""
LISTED = 24
"""Facts that a model is asked for."""
PROMPTS = Path(__file__).parent / "prompts"
DEEPEST = 20
"""Lists of evidence inside each other."""
TABLES = ("csv", "markdown", "html", "rows", "xlsx")
"""Forms of a table."""
_DESCRIPTION = free_table("caption", key_facts=anything, uncertain=anything)
_CLAUSE = re.compile(r"\s*[;\n]\s*")


@dataclass(frozen=True)
class Extraction:
    """What was found in evidence."""

    facts: tuple[Fact, ...] = ()
    unreadable: int = 0
    """Facts that were left out: not finite, too long, no text."""
    status: Status = Status.OK
    """Anything else: the evidence could not be read, and the gate stays open."""
    reason: str = ""
    evidence: tuple[Evidence, ...] = field(default=())
    """Raw replies of a model with what they cost."""

    def __add__(self, other: Extraction) -> Extraction:
        failed = self if self.status is not Status.OK else other
        return Extraction(
            (*self.facts, *other.facts),
            self.unreadable + other.unreadable,
            failed.status,
            failed.reason,
            (*self.evidence, *other.evidence),
        )


class Extractor(Protocol):
    """Facts of one piece of evidence; `judge` is the model that may be asked, where there is one."""

    def __call__(
        self, piece: Mapping[str, Any], *, judge: JudgeModel | None, about: tuple[str, ...]
    ) -> Awaitable[Extraction]: ...


EXTRACTORS = {
    "text": "burnish.rewards.judges.evpv.extracting:from_text",
    "table": "burnish.rewards.judges.evpv.tables:from_table",
    "facts": "burnish.rewards.judges.evpv.extracting:from_recorded",
    "llm": "burnish.rewards.judges.evpv.extracting:from_model",
    "ocr": "burnish.rewards.judges.evpv.ocr:from_ocr",
    "vision": "burnish.rewards.judges.evpv.extracting:from_vision",
}
"""A function for each type of piece, imported when one comes."""


def find_extractor(name: str) -> Extractor:
    """The extractor of that type of evidence."""
    if name not in EXTRACTORS:
        raise UserError(
            f"there is no extractor for evidence of type '{name}'; expected "
            f"{', '.join(EXTRACTORS)}.{did_you_mean(name, EXTRACTORS)}"
        )
    module, _, function = EXTRACTORS[name].partition(":")
    found: Extractor = getattr(importlib.import_module(module), function)
    return found


def pieces_of(given: Any, where: str = "evidence", depth: int = 0) -> list[dict[str, Any]]:
    """Evidence as a list of pieces with a `type`.

    A text is a document; a table with `key_facts` or a list of tables with `subject` are recorded
    facts; `csv`, `markdown`, `html`, `rows` and `xlsx` name a table; `image` is a picture, which OCR reads
    where no `type` says otherwise.

    >>> [piece["type"] for piece in pieces_of(["Three towers.", {"csv": "a,b"}])]
    ['text', 'table']
    """
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    if isinstance(given, Mapping):
        if "subject" in given:
            return [{"type": "facts", "facts": [given]}]
        if isinstance(given.get("type"), str):
            return [dict(given)]
        if "key_facts" in given or "facts" in given:
            return [{**given, "type": "facts"}]
        if any(key in given for key in TABLES):
            return [{**given, "type": "table"}]
        if "image" in given or "sha256" in given:
            return [{**given, "type": "ocr"}]
        if "text" in given:
            return [{"type": "text", **given}]
    if isinstance(given, list | tuple):
        if given and all(isinstance(one, Mapping) and "subject" in one for one in given):
            return [{"type": "facts", "facts": list(given)}]
        if depth >= DEEPEST:
            raise UserError(
                f"{where}: lists lie more than {DEEPEST} deep; expected a flat list of pieces"
            )
        return [piece for one in given for piece in pieces_of(one, where, depth + 1)]
    raise UserError(
        f"{where}: got {given!r:.80}; expected a text, a list of pieces, or tables such as "
        '{"type": "table", "csv": "..."} or {"key_facts": [...]}'
    )


async def extract_all(
    given: Any,
    *,
    extractor: str = "auto",
    judge: JudgeModel | None = None,
    about: tuple[str, ...] = (),
) -> Extraction:
    """The facts of all pieces of evidence; `extractor` other than "auto" reads every piece."""
    found = Extraction()
    for piece in pieces_of(given):
        read = find_extractor(piece["type"] if extractor == "auto" else extractor)
        found = found + await read(piece, judge=judge, about=about)
    return found


async def from_text(
    piece: Mapping[str, Any], *, judge: JudgeModel | None = None, about: tuple[str, ...] = ()
) -> Extraction:
    """Each sentence of a document, and each of its clauses, as a fact."""
    text = piece.get("text")
    if not isinstance(text, str):
        raise _no_content("text", "`text`", piece)
    parts: dict[str, None] = {}
    for sentence in sentences(text[:MOST_TEXT]):
        for clause in _CLAUSE.split(sentence):
            if clause.strip(" .-*•"):
                parts[clause.strip(" -*•")] = None
    return collect(list(parts), "sentence {}", cut=len(text) > MOST_TEXT)


async def from_recorded(
    piece: Mapping[str, Any], *, judge: JudgeModel | None = None, about: tuple[str, ...] = ()
) -> Extraction:
    """Facts as somebody recorded them: texts, typed tables, or a caption with key facts.

    `single` = true: labels of a diagram, say, where each subject has one value, so that a claim of
    another one is contradicted even where the two cannot be compared (`x` beside 12).
    """
    given = piece.get("facts", piece.get("key_facts"))
    if not isinstance(given, list | tuple):
        raise _no_content("facts", "a list `facts` or `key_facts`", piece)
    return collect(given, "fact {}", is_single=piece.get("single") is True)


def _no_content(name: str, expected: str, piece: Mapping[str, Any]) -> UserError:
    """The refusal of a piece that an extractor reads nothing of."""
    return UserError(
        f"extractor '{name}' reads {expected}; got evidence of type {piece.get('type')!r} with "
        f"{reprlib.repr({key: piece[key] for key in piece if key != 'type'})}. "
        "extractor = 'auto' reads each piece by its type"
    )


def collect(
    given: Sequence[Any], source: str, *, cut: bool = False, is_single: bool = False
) -> Extraction:
    """Facts of a list, without those that cannot be read, which are counted."""
    facts, unreadable = [], int(cut) + max(0, len(given) - MOST_FACTS)
    for number, one in enumerate(given[:MOST_FACTS], start=1):
        if isinstance(one, str) and not one.strip():
            continue
        try:
            facts.append(read_fact(one, source=source.format(number), is_single=is_single))
        except ArgumentError:
            unreadable += 1
    return Extraction(tuple(facts), unreadable)


async def from_model(
    piece: Mapping[str, Any], *, judge: JudgeModel | None = None, about: tuple[str, ...] = ()
) -> Extraction:
    """Facts that a language model lists; it never sees a solution."""
    if judge is None:
        raise UserError("extractor 'llm' asks a model; give one with --model or `model`")
    if "image" in piece or "sha256" in piece:
        return await from_vision(piece, judge=judge, about=about)
    text = str(piece.get("text") or {key: piece[key] for key in piece if key != "type"})[:SHOWN]
    mark = mark_for(text)
    blanks = {"evidence": fence("evidence", text, mark), "mark": mark, "most": str(LISTED)}
    asked = fill(wording("extract", PROMPTS), blanks)
    return await ask_facts(judge, as_user(asked), about, (text,))


async def from_vision(
    piece: Mapping[str, Any], *, judge: JudgeModel | None = None, about: tuple[str, ...] = ()
) -> Extraction:
    """Facts that a vision-language model lists of a picture.

    It gets the instructions and after them the picture, and nothing of the question or of a solution: what
    it lists cannot depend on the answer that is checked. A reply that is no such list, and a model that
    cannot see, give a status and no facts, so that the gate stays open.
    """
    if judge is None:
        raise UserError(
            "extractor 'vision' asks a model that sees; give one with --model or `model`"
        )
    picture = await anyio.to_thread.run_sync(picture_of, piece)
    if isinstance(picture, str):
        return Extraction(status=Status.PARSE_ERROR, reason=picture)
    text = fill(wording("look", PROMPTS), {"most": str(LISTED)})
    source = f", picture {picture.sha256[:12]}"
    return await ask_facts(judge, as_user(text, (picture.part,)), about, source=source)


async def ask_facts(
    judge: JudgeModel,
    messages: tuple[Message, ...],
    about: tuple[str, ...],
    shown: tuple[str, ...] = (),
    source: str = "",
) -> Extraction:
    """The key facts of a model's description; a reply of another form gives a status and no facts."""

    def read(reply: str) -> list[str]:
        found = read_reply(reply, _DESCRIPTION, shown)
        facts = found.get("key_facts")
        if not isinstance(facts, list):
            raise Unreadable("expected key_facts as a list of texts")
        return [one for one in facts if isinstance(one, str)]

    reply = await judge.ask(Question("facts", messages, about), read)
    if reply.verdict is None:
        return Extraction(status=reply.status, reason=reply.reason, evidence=reply.evidence)
    found = collect(reply.verdict[: 4 * LISTED], "fact {} of " + judge.name + source)
    return Extraction(found.facts, found.unreadable, evidence=reply.evidence)
