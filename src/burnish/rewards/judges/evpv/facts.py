"""Facts that evidence shows, typed and in a canonical form, whatever the evidence was (EVPV).

A statement is read as subject, relation and value. The subject becomes a key under which other
wordings of the same thing are found: points in any order, no articles, no case. What cannot be read
so has no key and is compared by its words alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from msgspec import Struct, structs

from burnish.arguments import as_text, refused
from burnish.boundary import public
from burnish.numbers import NUMBER_WORDS
from burnish.rewards.checks.quantities import Quantity, bare_text, read_quantity

DEEPEST = 12
"""Brackets inside each other."""
SYMMETRIC = frozenset([
    "parallel", "perpendicular", "congruent", "similar", "equal", "equals", "intersects", "connected",
    "adjacent", "tangent", "line", "arc", "intersectat",
])  # fmt: skip
"""Relations whose two sides may stand in any order."""
_FORM_TOKEN = re.compile(r"\s*([(),]|[^(),]{1,200})")


class Node(NamedTuple):
    """A name with what stands in its brackets."""

    name: str
    parts: tuple[Node, ...]


def canonical(node: Node) -> str:
    """A form in one spelling: points in order, no name of a radius."""
    name, parts = node.name.casefold(), [canonical(part) for part in node.parts]
    if not parts:
        return re.sub(r"\s", "", node.name)
    if name in ("lengthof", "measureof") and len(parts) == 1:
        return parts[0]
    if name == "line" and len(parts) == 2:
        return f"line {''.join(sorted(parts))}"
    if name == "angle" and len(parts) == 3:
        first, vertex, last = parts
        return f"angle {min(first, last)}-{vertex}-{max(first, last)}"
    if name == "circle":
        parts = parts[:1]  # the second is the name of its radius
    if name in SYMMETRIC:
        parts.sort()
    return f"{name}({','.join(parts)})"


def parse_form(text: str) -> Node | None:
    """A logic form as a tree; None where brackets do not match or lie too deep."""
    stack: list[tuple[str, list[Node]]] = [("", [])]
    name, was_closed = "", False
    for found in _FORM_TOKEN.finditer(text):
        token = found[1]
        if token == "(":
            if not name or len(stack) > DEEPEST:
                return None
            stack.append((name, []))
            name = ""
        elif token in ("),"):
            if name:
                stack[-1][1].append(Node(name, ()))
                name = ""
            elif not was_closed:
                return None
            if token == ")":
                if len(stack) == 1:
                    return None
                head, parts = stack.pop()
                stack[-1][1].append(Node(head, tuple(parts)))
        else:
            if name or (was_closed and token.strip()):
                return None
            name = token.strip()
        was_closed = token == ")"
    if len(stack) != 1 or len(stack[0][1]) != 1 or name:
        return None
    return stack[0][1][0]


LONGEST = 400
"""Characters of a fact or a claim; a longer one is a text about many and is read by nobody."""

Kind = Literal["numeric", "geometric", "structural", "text"]
_SIGNS = {
    "≤": "<=", "≥": ">=", "≠": "!=", "∥": " parallel to ", "⊥": " perpendicular to ", "∠": " angle ",
    "≅": "=", "≈": "=", "−": "-", "–": "-", "==": "=", "△": " triangle ", "≡": "=",
}  # fmt: skip
_RELATIONS: dict[str, Kind] = {
    "parallel": "geometric", "perpendicular": "geometric", "congruent": "geometric",
    "similar": "geometric", "tangent": "geometric", "equal": "geometric", "intersects": "geometric",
    "connected": "structural", "adjacent": "structural", "part": "structural", "inside": "structural",
}  # fmt: skip
_RELATED = re.compile(
    r"(?P<one>.{1,150}?) (?:is|are|was|were)? ?(?P<no>not |n't )?"
    r"(?P<how>parallel|perpendicular|congruent|similar|tangent|equal|connected|adjacent)"
    r" (?:to|with) (?P<two>.{1,150})",
    re.IGNORECASE,
)
_INSIDE = re.compile(
    r"(?P<one>.{1,150}?) (?:is|are|lies) (?P<no>not )?(?P<how>part of|inside|inside of) (?P<two>.{1,150})",
    re.IGNORECASE,
)
_COMPARED = re.compile(
    r"(?P<one>[^<>=!]{1,200}?) ?(?P<how><=|>=|!=|=|<|>) ?(?P<two>[^<>=!]{1,200})"
)
_WORDED = re.compile(
    r"(?P<one>.{1,200}?)(?: (?:is|are|was|were|equals|measures|has)| ?:) (?P<no>not )?"
    r"(?P<how>greater than|more than|larger than|less than|smaller than|fewer than|at least|at most|"
    r"no more than|no less than|equal to)? ?(?P<two>.{1,200})",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"(?:there\s+(?:is|are|was|were)\s+|it\s+shows\s+)(?:exactly\s+)?(?P<two>\S{1,40})\s+(?P<one>.{1,150})",
    re.IGNORECASE,
)
_SIGN_OF = {
    "greater than": ">", "more than": ">", "larger than": ">", "less than": "<", "smaller than": "<",
    "fewer than": "<", "at least": ">=", "at most": "<=", "no more than": "<=", "no less than": ">=",
    "equal to": "=",
}  # fmt: skip
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}
_COUNTS = {word: str(number) for number, word in enumerate(("no", *NUMBER_WORDS[1:13]))}
_JOINING = frozenset([
    "the", "a", "an", "of", "in", "on", "at", "its", "their", "has", "have", "with", "for", "by",
    "and", "that", "which", "there", "exactly", "about", "is", "are",
])  # fmt: skip
"""Words of a subject that only join others."""
_IDLE = _JOINING | frozenset([
    "to", "m", "length", "measure", "measurement", "value", "segment", "line", "side", "number",
    "count", "amount", "degree", "degrees", "unit", "units",
])  # fmt: skip
"""Words of a subject that tell no two things apart."""
_MEASURES = frozenset(["length", "measure", "measurement", "value", "number", "count", "amount"])
"""Of these, words that name columns."""
_WORD = re.compile(r"\w+(?:['’.]\w+)*")
_NAME = re.compile(r"(?<!\w)[A-Z]{1,3}-(?![\w-])|\w+(?:['’.]\w+)*(?:(?:\+{1,2}|#)(?![\w+#]))?")
"""A word with the signs that tell names apart: C++ and C, A+ and A-."""
_POINTS = re.compile(r"[A-Z]{2,3}'?\Z")
_FORM = re.compile(r"[A-Z][A-Za-z]{2,40}\(.*\)\Z", re.DOTALL)
_NO_NUMBER = re.compile(r"[-+]?(?:nan|inf|infinity|∞)\b", re.IGNORECASE)


class Statement(NamedTuple):
    """A claim or a fact as subject, relation and value."""

    key: str
    """The subject in canonical form."""
    relation: str
    """<, >, <=, >=, =, !=, or a word such as `parallel`."""
    value: str
    """In canonical form; empty for a relation between two things, which the key holds."""
    quantity: Quantity | None = None
    kind: Kind = "text"
    subject: str = ""
    """What stands before the relation, as it was written; empty for a relation between two things."""


class Fact(Struct, frozen=True, gc=False):
    """One thing that the evidence shows.

    >>> read_fact("AB = 10").kind
    'numeric'
    """

    text: str
    kind: Kind = "text"
    statement: Statement | None = None
    """None where it could not be read as subject, relation and value."""
    source: str = ""
    """Where it was found: `row 3, column Price`."""
    is_single: bool = False
    """A cell: its subject has this value and no other, so that another word contradicts it."""
    aliases: tuple[str, ...] = ()
    """Its subject as `squeeze` writes it, where a reader of pictures may have glued words."""
    spellings: tuple[str, ...] = ()
    """Of a cell: its row and column in words, as `spell` writes them, in each order that names it. A
    claim about it has all words of the last."""


@public
def read_fact(fact: object, *, source: str = "", is_single: bool = False) -> Fact:
    """A fact from a text, a table {type, subject, relation, value}, or a fact itself.

    A text over 400 characters, and a number that is not finite, are refused.

    >>> read_fact({"subject": "AB", "value": 10}).text
    'AB = 10'
    """
    if isinstance(fact, Fact):
        return fact
    given, kind = fact, None
    if isinstance(given, Mapping):
        kind, source = given.get("type"), str(given.get("source", source))
        given = given.get("text") or _written(given)
    text = " ".join(as_text("fact", given).split())
    found = read_statement(text)
    is_endless = found and found.quantity is None and _NO_NUMBER.match(found.value)
    if not text or len(text) > LONGEST or is_endless:
        raise refused("fact", text, f"a text of 1 to {LONGEST} characters whose numbers are finite")
    if kind not in ("numeric", "geometric", "structural"):
        kind = found.kind if found is not None else "text"
    return Fact(text, kind, found, source, is_single)


def read_cell(row: str, column: str, value: str, *, short: bool = False, source: str = "") -> Fact:
    """A value of a table or a chart: its row and column are names and keep all of their words.

    `short`: the row alone says which value is meant.

    >>> read_cell("Tea", "Count", "3").spellings
    ('tea count', 'count tea')
    """
    names = [name for name in (row, column) if name]
    subject = row if short else " ".join(names)
    spellings = [" ".join(map(spell, order)) for order in (names, names[::-1])]
    spellings += [spell(row)] if short else []
    fact = read_fact(f"{subject} = {value}", source=source, is_single=True)
    said = fact.statement
    # Signs inside a name can make its text a statement about something else.
    is_own = said is not None and said.subject == _plain(subject)
    return structs.replace(
        fact, statement=said if is_own else None, spellings=tuple(dict.fromkeys(spellings))
    )


def _written(table: Mapping[str, Any]) -> str:
    if "subject" not in table or "value" not in table:
        raise refused("fact", dict(table), "a text, or a table with subject and value")
    relation = str(table.get("relation") or "=")
    if relation in _RELATIONS:
        return f"{table['subject']} is {relation} to {table['value']}"
    return f"{table['subject']} {relation if relation in _TURNED else '='} {table['value']}"


@lru_cache(8192)
def read_statement(text: str) -> Statement | None:
    """A text as subject, relation and value; None where it has no such form.

    >>> read_statement("The length of BA is 10 cm").key
    'line AB'
    >>> read_statement("Nothing of that kind") is None
    True
    """
    if len(text) > LONGEST:
        return None
    plain = _plain(text).rstrip(".;, ")
    if _FORM.match(plain):
        return _from_form(plain)
    # Most facts are comparisons; the slower patterns are tried where their words stand.
    has_words = any(word in plain for word in (" to ", " with ", " of ", " inside "))
    found = _RELATED.fullmatch(plain) or _INSIDE.fullmatch(plain) if has_words else None
    if found is not None:
        how = found["how"].lower().split()[0]
        sides = [subject_key(found["one"]), subject_key(found["two"])]
        relation = f"not {how}" if found["no"] else how
        return _between(how, relation, sides, _RELATIONS[how]) if all(sides) else None
    if (found := _COMPARED.fullmatch(plain)) is not None:
        return _compared(found["one"], found["how"], found["two"])
    if (found := _COUNTED.fullmatch(plain)) is not None:
        count = _COUNTS.get(found["two"].casefold(), found["two"])
        if read_quantity(count) is not None:
            return _compared(found["one"], "=", "0" if count == "0" else count)
    if (found := _WORDED.fullmatch(plain)) is not None:
        how = _SIGN_OF.get((found["how"] or "").lower(), "=")
        return _compared(found["one"], _OPPOSITE[how] if found["no"] else how, found["two"])
    return None


def _plain(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text)
    for sign, written in _SIGNS.items():
        plain = plain.replace(sign, written)
    return " ".join(plain.split())


def _compared(left: str, how: str, right: str) -> Statement | None:
    value, quantity = _value(right)
    if quantity is None and (turned := _value(left))[1] is not None:
        left, (value, quantity), how = right, turned, _TURNED[how]
    key = subject_key(left)
    if not key or not value:
        return None
    other = subject_key(right) if quantity is None else ""
    if key.startswith(("line ", "angle ")) and other.startswith(("line ", "angle ")):
        words = {"=": "equal", "!=": "not equal"}
        return _between("equal", words[how], [key, other], "geometric") if how in words else None
    kind: Kind = "numeric" if quantity is not None else "text"
    return Statement(key, how, value, quantity, kind, left.strip())


def _between(how: str, relation: str, sides: list[str], kind: Kind) -> Statement:
    """A relation between things, in any order where it is symmetric."""
    ordered = sorted(sides) if how in SYMMETRIC else sides
    return Statement(f"{how}: {' | '.join(ordered)}", relation, "", None, kind)


def _value(text: str) -> tuple[str, Quantity | None]:
    """A value in canonical form, and the quantity that it is."""
    bare = bare_text(text)
    bare = _COUNTS.get(bare, bare)
    quantity = read_quantity(bare)
    if quantity is not None and quantity.unit in ("x", "y", "z", "a", "b"):
        quantity = None
    has_sign = re.search(r"[-+*/^]", bare) is not None
    return (bare.replace(" ", "") if has_sign else bare), quantity


def subject_key(text: str) -> str:
    """What a statement is about, in a form that other wordings of it share.

    >>> subject_key("the segment BA"), subject_key("angle CBA"), subject_key("Price of Tea")
    ('line AB', 'angle A-B-C', 'price tea')
    """
    words = _words(text)
    points = [word for word in words if _POINTS.match(word)]
    rest = [word.casefold() for word in words if word not in points]
    told = [word for word in rest if word not in _IDLE]
    if len(points) == 1 and not told and len(points[0].rstrip("'")) == 2:
        return f"line {''.join(sorted(points[0]))}"
    if len(points) == 1 and told == ["angle"] and len(points[0]) == 3:
        first, vertex, last = list(points[0])
        return f"angle {min(first, last)}-{vertex}-{max(first, last)}"
    return name_key(text)


def name_key(text: str) -> str:
    """The words of a subject in the order of the alphabet, without those that tell nothing apart.

    >>> name_key("the number of AB"), name_key("cat cat")
    ('ab', 'cat cat')
    """
    words = _words(text)
    kept = [w for n, w in enumerate(words) if w.casefold() not in _IDLE or _is_letter(n, w)]
    found = [_singular(word.casefold()) for word in kept]
    return " ".join(sorted(found) or sorted({word.casefold() for word in words}))


@lru_cache(8192)
def spell(text: str) -> str:
    """The words of a subject in their own order, without those that only join them.

    >>> spell("the exports of China to Japan"), spell("Price of A")
    ('export china to japan', 'price a')
    """
    words = _words(text)
    kept = [w for n, w in enumerate(words) if w.casefold() not in _JOINING or _is_letter(n, w)]
    return " ".join(_singular(word.casefold()) for word in kept or words)


def is_named(fact: Fact, subject: str) -> bool:
    """Whether a claim about `subject` names the row and the column of a cell.

    >>> tea = read_cell("Tea", "Count", "3", short=True)
    >>> is_named(tea, "the tea"), is_named(tea, "value of tea")
    (True, False)
    """
    words = {_singular(word.casefold()) for word in _words(subject)}
    own = {word for one in fact.spellings for word in one.split()}
    is_other = bool(words & _MEASURES) and own.isdisjoint(words & _MEASURES)
    return words.issuperset(fact.spellings[-1].split()) and not (is_other and own & _MEASURES)


def _is_letter(place: int, word: str) -> bool:
    """Whether a word is a name of one letter: "A" in front of a subject is mostly the article."""
    return word == "M" or (word == "A" and place > 0)


def _words(text: str) -> list[str]:
    return _NAME.findall(unicodedata.normalize("NFKC", text))


def squeeze(text: str) -> str:
    """A subject without its blanks: a reader of pictures glues words. Whole numbers stand last.

    >>> squeeze("GooglePlay 2017") == squeeze("2017, Google Play")
    True
    """
    words = [one.casefold() for one in _words(text)]
    numbers = sorted(word for word in words if word.isdecimal())
    names = "".join(word for word in words if not word.isdecimal())
    letters = "".join(letter for letter in names if letter.isalnum() or letter in "+#-")
    return "|".join([letters, *numbers])


def subject_of(text: str) -> str:
    """The words before the first sign of relation; nothing where there is none."""
    found = re.match(r"([^<>=!≤≥≠]{1,200})(?:[<>=≤≥≠]|!=)", text)
    return found[1].strip() if found else ""


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] not in "su" else word


def words_of(text: str) -> set[str]:
    """The words of a text that tell things apart."""
    return {_singular(w.casefold()) for w in _WORD.findall(text[:4000])} - _IDLE


def _from_form(text: str) -> Statement | None:
    """A logic form such as `Equals(LengthOf(Line(A, B)), 10)`."""
    tree = parse_form(text)
    if tree is None:
        return None
    name = tree.name.casefold()
    if name == "equals" and len(tree.parts) == 2:
        left, right = tree.parts
        if not left.parts and right.parts:
            left, right = right, left
        if left.parts and not right.parts:
            value, quantity = _value(right.name)
            kind: Kind = "numeric" if quantity is not None else "text"
            return Statement(canonical(left), "=", value, quantity, kind)
    kind = "structural" if name.startswith(("pointlies", "isdiagonal", "ispart")) else "geometric"
    relation = "equal" if name == "equals" else name
    return _between(relation, relation, [canonical(part) for part in tree.parts], kind)
