"""Read a judge's reply: one schema in, a typed value out, or `Unreadable` with what was expected.

    WINNER = Table(Winner, reasons=text, winner=one_of("A", "B", "Tie"))
    read_reply(reply, WINNER, shown=(a.text, b.text))       # Winner(reasons=..., winner="A")

Strict, because a judge that quotes someone else's verdict, or that a response has talked into repeating
one, would otherwise be read as having decided: prose around the object, a second object, a key twice,
NaN, and an object that stands in a text to judge are `Unreadable`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, Literal, NoReturn, TypeVar

from burnish.arguments import as_text, as_whole, read_each
from burnish.rewards.judges.prompting import Unreadable

T = TypeVar("T")
V = TypeVar("V")
MOST_LISTED = 101
"""Whole numbers that a schema lists one by one."""
Field = Callable[[str, Any], Any]
"""From a key and its value to what the value means; raises `Unreadable`."""


class Table(Generic[T]):
    """An object with these keys, and what is made of it; other keys are refused, unless it is
    `open`."""

    def __init__(self, make: Callable[..., T], *, open: bool = False, **fields: Field) -> None:
        self.make, self.open, self.fields = make, open, fields

    def read(self, found: Mapping[str, Any]) -> T:
        needed = [key for key, read in self.fields.items() if not isinstance(read, Maybe)]
        foreign = [] if self.open else [key for key in found if key not in self.fields]
        if foreign or not set(needed) <= set(found):
            wanted = ", ".join(f'"{key}"' for key in (needed if self.open else self.fields))
            got = ", ".join(f'"{key}"'[:40] for key in list(found)[:8]) or "no keys"
            raise Unreadable(f"expected an object with the keys {wanted}, got {got}")
        return self.make(**{key: read(key, found.get(key)) for key, read in self.fields.items()})

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the object, its keys in this order, for servers that can force one."""
        return {
            "type": "object",
            "properties": {key: schema_of(read) for key, read in self.fields.items()},
            "required": list(self.fields),
            "additionalProperties": False,
        }


class Typed:
    """A field that also knows its JSON schema."""

    def __init__(self, read: Field, schema: dict[str, Any]) -> None:
        self.read, self.schema = read, schema

    def __call__(self, key: str, value: Any) -> Any:
        return self.read(key, value)


def field(
    words: str,
    fits: Callable[[Any], bool],
    made: Callable[[Any], Any] = lambda value: value,
    schema: dict[str, Any] | None = None,
) -> Typed:
    """A field of values that fit, told in words; `made` is what such a value means."""

    def read(key: str, value: Any) -> Any:
        if not fits(value):
            got = "nothing" if value is None else f"{value!r:.60}"
            raise Unreadable(f'expected "{key}" to be {words}, got {got}')
        return made(value)

    return Typed(read, schema or {})


def schema_of(read: Field) -> dict[str, Any]:
    """The JSON schema of a field; anything goes where none is known.

    Ranges of numbers stay with the reader: strict servers refuse a schema that has them.
    """
    if isinstance(read, Maybe):
        return {"anyOf": [schema_of(read.read), {"type": "null"}]}
    return read.schema if isinstance(read, Typed) else {}


class Maybe:
    """A field that may be missing or null; `default` then stands in its place."""

    def __init__(self, read: Field, default: Any = "") -> None:
        self.read, self.default = read, default

    def __call__(self, key: str, value: Any) -> Any:
        return self.default if value is None else self.read(key, value)


def free_table(*texts: str, **fields: Field) -> Table[dict[str, Any]]:
    """An object of which each key may be missing; `texts` are read as loose texts."""
    loose = {key: Maybe(loose_text) for key in texts}
    other = {key: Maybe(read, None) for key, read in fields.items()}
    return Table(dict, open=True, **loose, **other)


def read_reply(reply: str, table: Table[T], shown: Sequence[str] = ()) -> T:
    """The value of a reply that is one object of this form, in the judge's own words."""
    return table.read(own_object(reply, shown))


def read_list(reply: str, table: Table[T], shown: Sequence[str] = ()) -> list[T]:
    """The values of a reply that is a list of objects of this form."""
    return [table.read(row) for row in own_list(reply, shown)]


def read_marked(reply: str, mark: str | None, table: Table[T]) -> T:
    """The value of the object that carries the mark, whatever stands around it."""
    return table.read(marked_object(reply, mark))


def one_of(*known: str) -> Field:
    """One of the known words, whatever its case."""
    return choice({word: word for word in known})


def choice(meanings: Mapping[str, V]) -> Typed:
    """One of the known words, whatever its case, and what it means."""
    by_word = {word.lower(): meaning for word, meaning in meanings.items()}
    return field(
        " or ".join(meanings),
        lambda value: isinstance(value, str) and value.strip().lower() in by_word,
        lambda value: by_word[value.strip().lower()],
        {"type": "string", "enum": list(meanings)},
    )


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


text = field(
    "a text",
    lambda value: value != [] and all(isinstance(p, str) and p.strip() for p in _parts(value)),
    lambda value: " ".join(part.strip() for part in _parts(value)),
    {"type": "string"},
)
"""A text that says something, or a list of such texts as one."""
plain_text = field("a text", lambda value: isinstance(value, str))
"""A text, which may be empty."""
truth = field("true or false", lambda value: isinstance(value, bool), schema={"type": "boolean"})


def loose_text(key: str, value: Any) -> str:
    """Any value as one text; lists and objects are joined, and nothing is an empty text."""
    if isinstance(value, Mapping):
        parts = [f"{name}: {loose_text(key, part)}" for name, part in value.items() if part]
    elif isinstance(value, list):
        parts = [loose_text(key, part) for part in value if part]
    else:
        parts = [] if value is None else [str(value).strip()]
    said = "; ".join(parts)
    # The dots of the form that the prompt shows, copied back, say nothing.
    return said if said.strip(".… ") else ""


def anything(key: str, value: Any) -> Any:
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(lo: float, hi: float) -> Field:
    words = f"a number from {lo:g} to {hi:g}"
    return field(words, lambda value: _is_number(value) and lo <= value <= hi, float)


def whole(lo: int, hi: int) -> Field:
    """A whole number of the scale; 7.0 is one, 7.5, "7" and true are not."""
    listed = {"enum": list(range(lo, hi + 1))} if hi - lo < MOST_LISTED else {}
    return field(
        f"a whole number from {lo} to {hi}",
        lambda value: _is_number(value) and value in range(lo, hi + 1),
        int,
        {"type": "integer", **listed},
    )


def rows(table: Table[T]) -> Field:
    return field(
        "a list of objects",
        lambda value: isinstance(value, list) and all(isinstance(row, dict) for row in value),
        lambda value: [table.read(row) for row in value],
        {"type": "array", "items": table.schema},
    )


# --- where the value stands in a reply

MOST_OPENINGS = 500
"""Braces of a reply that are tried as the beginning of an object: a reply of nothing but braces
would otherwise be read for minutes."""
MOST_QUOTED = 200
"""Openings of a text to judge that are looked at for a copied verdict."""

_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)
_BLANKS = re.compile(r"\s+")


def own_object(reply: str, shown: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object that the reply consists of; `shown` are the texts it must not be from."""
    found: dict[str, Any] = _own(reply, "{", "object", shown)
    return found


def own_list(reply: str, shown: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The JSON list of objects that the reply consists of, under the same rules."""
    found = _own(reply, "[", "list", shown)
    if not found or not all(isinstance(row, dict) for row in found):
        raise Unreadable(f"expected a JSON list of objects, got {_begin(after_thoughts(reply))}")
    return list(found)


def holds(text: str, words: str) -> bool:
    """Whether a text to judge has these words in it, whatever their blanks."""
    return _BLANKS.sub("", words) in _BLANKS.sub("", text)


def after_thoughts(reply: str) -> str:
    """What follows a model's thoughts; thoughts that never end are no reply."""
    if "</think>" in reply:
        return reply.rpartition("</think>")[2].strip()
    if reply.lstrip().startswith("<think>"):
        raise Unreadable("expected an answer after the thoughts, got thoughts without an end")
    return reply.strip()


def _own(reply: str, opening: str, kind: str, shown: Sequence[str]) -> Any:
    """The one JSON value of that kind which is all of the reply and stands in no text to judge."""
    fenced = _FENCE.fullmatch(after_thoughts(reply))
    said = fenced[1].strip() if fenced else after_thoughts(reply)
    found, end = _decode(said, 0, kind) if said.startswith(opening) else (None, 0)
    rest = said[end:].strip()
    if rest or not said:
        got = f"{_begin(rest)}{' after it' * (end > 0)}" if said else "nothing"
        raise Unreadable(f"expected one JSON {kind} and nothing else, got {got}")
    # As it is written or under another layout.
    if any(
        holds(text, said[:end])
        or any(one == found for one in _written(text, opening, most=MOST_QUOTED))
        for text in shown
    ):
        raise Unreadable("expected your own verdict, got one that stands in a text to judge")
    return found


def _decode(text: str, place: int, kind: str) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, place)
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        said = str(error).partition(":")[0]
        raise Unreadable(f"expected one JSON {kind}, got broken JSON ({said})") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = min(Counter(key for key, _ in pairs) - Counter([*found]))
        raise Unreadable(f'expected each key once, got "{twice[:40]}" twice')
    return found


def _no_number(word: str) -> NoReturn:
    raise Unreadable(f"expected JSON numbers, got {word}")


def _finite(word: str) -> float:
    number = float(word)
    return number if math.isfinite(number) else _no_number(word[:40])


def decoder(*, once: bool = True, strict: bool = True) -> json.JSONDecoder:
    """A reader of JSON from a model: numbers are finite and, with `once`, each key stands once."""
    return json.JSONDecoder(
        object_pairs_hook=_once if once else None,
        parse_constant=_no_number,
        parse_float=_finite,
        strict=strict,
    )


_DECODER = decoder()


def _written(text: str, opening: str, most: int) -> Iterator[Any]:
    """Every JSON value that starts at one of the first `most` openings of a text."""
    for place in islice((match.start() for match in re.finditer(re.escape(opening), text)), most):
        try:
            yield _decode(text, place, "value")[0]
        except Unreadable:
            continue


def _begin(text: str) -> str:
    return repr(" ".join(text[:200].split())[:60])


# --- a value that carries a mark, or stands in a fence

_MARKED = re.compile(r'\{\s*"mark"\s*:')
MOST_MARKS = 50
"""Objects with a mark that are read, from the last: each that is broken costs the rest of the text."""


def marked_object(reply: str, mark: str | None) -> dict[str, Any]:
    """The last JSON object of a reply that carries the mark; `Unreadable` says what came instead.

    Without a mark (replies that were recorded elsewhere) it is the object that `extract_json` finds.
    """
    said = after_thoughts(reply)
    problem = ""
    if mark is not None:
        for found in reversed([one.start() for one in _MARKED.finditer(said)][-MOST_MARKS:]):
            try:
                table = _decoded(said, found)
            except ValueError as error:
                problem = problem or str(error)
                continue
            if table["mark"] == mark:
                return table
            problem = problem or f'expected "mark": "{mark}", got {table["mark"]!r:.40}'
    try:
        table = _decoded(json_text(said))
    except ValueError as error:
        raise Unreadable(problem or str(error)) from None
    if mark is not None and table.get("mark") != mark:
        raise Unreadable(problem or f'expected "mark": "{mark}", got {table.get("mark")!r:.40}')
    return table


_FENCES = (
    re.compile(r"```[ \t]*json\b(.*?)```", re.DOTALL | re.IGNORECASE),
    re.compile(r"```(?:[ \t]*(?:[\w+-]+[ \t]*)?\n)?(.*?)```", re.DOTALL),
)


def extract_json(texts: Any) -> Any:
    """The object of each text, or None where there is none; one text gives one result."""

    def read(text: str) -> dict[str, Any] | None:
        try:
            return _decoded(json_text(text))
        except ValueError:
            return None

    return read_each("texts", texts, read)


MOST_BROKEN = 1_000
"""Braces of one reply that begin no whole object."""


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Whole JSON objects of a text in their order, whatever stands around them or was cut.

    After `MOST_BROKEN` braces that begin none it stops: each costs a look at the whole text.
    """
    place = broken = 0
    while broken < MOST_BROKEN and (place := text.find("{", place)) >= 0:
        try:
            value, place = _LOOSE.raw_decode(text, place)
        except (ValueError, RecursionError):
            place, broken = place + 1, broken + 1
            continue
        yield value


def json_text(text: str) -> str:
    """The part of a reply that should be JSON."""
    return next((found[-1].strip() for f in _FENCES if (found := f.findall(text))), text.strip())


def _decoded(text: str, start: int | None = None) -> dict[str, Any]:
    """The object that is all of a text, or that begins at a place of it."""
    try:
        value = _LENIENT.decode(text) if start is None else _LENIENT.raw_decode(text, start)[0]
    except RecursionError:
        raise ValueError("expected a JSON object, got one that is nested too deep") from None
    except ValueError as error:
        got = " ".join(text[start or 0 :][:60].split()) or "nothing"
        raise ValueError(f"expected a JSON object, got {got!r}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got a {type(value).__name__}")
    return value


_LENIENT = decoder(once=False)
_LOOSE = decoder(once=False, strict=False)
"""Takes line feeds inside of texts."""


Letter = Literal["A", "B", "Tie", "Abstain", "error"]

TAIL = 500
"""Characters at the end of a reply that was cut; only they can hold its verdict."""

# Capitals alone: `if a > b` in a judge's words is code, not a verdict.
_LABEL = re.compile(r"\b(A\s*>>?\s*B|A\s*=\s*B|B\s*>>?\s*A)\b")
_OUTPUT = re.compile(r"Output\s*\(([ab])\)", re.IGNORECASE)
_FINAL = re.compile(r"^[^\S\n]*Final:\s*(A|B|Tie|Abstain)\s*\.?\s*$", re.IGNORECASE | re.MULTILINE)
_BRACKET = re.compile(r"\[\[(A|B|Tie|Abstain)\]\]", re.IGNORECASE)
_NAMED = re.compile(r"(?:(?:response|assistant|answer|output)\s+)?\(?([ab])\)?", re.IGNORECASE)
_RATING = re.compile(r"(?<![\w.,/-])(-?\d{1,9})(?:\s*(?:/|out of)\s*(\d{1,9}))?$", re.IGNORECASE)


def parse_pairwise_verdict(texts: Any, finish_reason: str | None = None) -> Any:
    """A, B, Tie, Abstain or error. The first form that occurs counts, at its last place:

    A>>B .. B>>A; "Output (a)"; a line "Final: A"; [[A]]; the first JSON object's winner. Of a
    reply that was cut (`finish_reason="length"`) only the last 500 characters count, JSON not. A list of texts gives a list.
    """
    return read_each("texts", texts, lambda text: _verdict(text, finish_reason == "length"))


def _verdict(text: str, is_cut: bool) -> Letter:
    seen = text[-TAIL:] if is_cut else text
    for form in (_LABEL, _OUTPUT, _FINAL, _BRACKET):
        if found := form.findall(seen):
            label = "".join(found[-1].upper().split())
            if label in ("A=B", "A==B", "TIE"):
                return "Tie"
            return "Abstain" if label == "ABSTAIN" else "A" if label.startswith("A") else "B"
    table: dict[str, Any] = {} if is_cut else next(_written(text, "{", most=MOST_OPENINGS), {})
    for name in ("winner", "verdict", "best_label", "choice", "answer"):
        value = table.get(name)
        if not isinstance(value, str):
            continue
        said = " ".join(value.lower().split())
        if said in ("tie", "same", "draw", "equal", "no preference"):
            return "Tie"
        if said in ("abstain", "unclear", "cannot determine"):
            return "Abstain"
        if named := _NAMED.fullmatch(said):
            return "A" if named[1] == "a" else "B"
    return "error"


def parse_pairwise_verdict_truncated(text: str, finish_reason: str | None = "length") -> Letter:
    """The verdict of one reply that may have been cut."""
    return _verdict("" if text is None else as_text("text", text), finish_reason == "length")


def parse_rating(texts: Any, lo: int = 1, hi: int = 10) -> Any:
    """The whole number that a reply ends with, `8`, `8.`, `8/10` or `8 out of 10`; else None.

    None also where it is out of range, or where the scale named is another one. Takes a text or a list.
    """
    lo = as_whole("lo", lo)
    hi = as_whole("hi", hi, low=lo)
    return read_each("texts", texts, lambda text: _rating(text, lo, hi))


def _rating(text: str, lo: int, hi: int) -> int | None:
    end = text.strip().strip("*`_[]()\"' \n\t").removesuffix(".").rstrip("*`_[]()\"' \n\t")
    found = _RATING.search(end)
    if found is None or (found[2] is not None and int(found[2]) != hi):
        return None
    rating = int(found[1])
    return rating if lo <= rating <= hi else None
