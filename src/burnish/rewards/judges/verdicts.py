"""Read a verdict out of a judge's reply, strictly: the reply is one JSON object, or it is none.

    verdict = own_object(reply, shown=(a.text, b.text))     # {'reasons': ..., 'winner': 'A'}
    winner = one_of(verdict, "winner", ("A", "B", "Tie"))

Strict because a judge that quotes someone else's verdict, or that a response has talked into
repeating one, would otherwise be read as having decided. Thoughts before `</think>` and one code
fence around the object are taken off; prose around it, a second object, a key twice, NaN, and an
object that stands in a text to judge are all `Unreadable`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NoReturn

from burnish.rewards.judges.questions import Unreadable

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


def first_object(text: str) -> dict[str, Any]:
    """The first JSON object in a text that may hold anything else besides, or an empty one."""
    return next(_written(text, "{", most=MOST_OPENINGS), {})


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


def only_keys(found: dict[str, Any], keys: Sequence[str]) -> None:
    """Refuse an object with other keys than the asked ones."""
    missing = [key for key in keys if key not in found]
    foreign = [key for key in found if key not in keys]
    if missing or foreign:
        wanted = ", ".join(f'"{key}"' for key in keys)
        got = ", ".join(f'"{key}"'[:40] for key in list(found)[:8]) or "no keys"
        raise Unreadable(f"expected an object with the keys {wanted}, got {got}")


def one_of(found: dict[str, Any], key: str, known: Sequence[str]) -> str:
    """One of the known words, whatever its case."""
    value = found.get(key)
    same = [w for w in known if isinstance(value, str) and value.strip().lower() == w.lower()]
    if not same:
        raise Unreadable(f'expected "{key}" to be {" or ".join(known)}, got {_shown(value)}')
    return same[0]


def words(found: dict[str, Any], key: str) -> str:
    """A text that says something, or a list of such texts as one."""
    value = found.get(key)
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
        raise Unreadable(f'expected "{key}" to be a text, got {_shown(value)}')
    return " ".join(str(part).strip() for part in parts)


def whole_number(found: dict[str, Any], key: str, lo: int, hi: int) -> int:
    """A whole number of the scale; 7.0 is one, 7.5, "7" and true are not."""
    value: Any = found.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and value in range(lo, hi + 1):
        return int(value)
    raise Unreadable(
        f'expected "{key}" to be a whole number from {lo} to {hi}, got {_shown(value)}'
    )


def truth(found: dict[str, Any], key: str) -> bool:
    """true or false, as JSON writes them."""
    value = found.get(key)
    if not isinstance(value, bool):
        raise Unreadable(f'expected "{key}" to be true or false, got {_shown(value)}')
    return value


def _own(reply: str, opening: str, kind: str, shown: Sequence[str]) -> Any:
    """The one JSON value of that kind which is all of the reply and stands in no text to judge."""
    fenced = _FENCE.fullmatch(after_thoughts(reply))
    said = fenced[1].strip() if fenced else after_thoughts(reply)
    if not said:
        raise Unreadable(f"expected one JSON {kind}, got nothing")
    if not said.startswith(opening):
        raise Unreadable(f"expected one JSON {kind} and nothing else, got {_begin(said)}")
    found, end = _decode(said, 0, kind)
    rest = said[end:].strip()
    if rest:
        what = f"a second {kind}" if rest.startswith(opening) else f"text after it: {_begin(rest)}"
        raise Unreadable(f"expected one JSON {kind} and nothing else, got {what}")
    if any(_holds(text, said[:end], found) for text in shown):
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
        counts = Counter(key for key, _ in pairs)
        twice = min(key for key, count in counts.items() if count > 1)
        raise Unreadable(f'expected each key once, got "{twice[:40]}" twice')
    return found


def _no_number(word: str) -> NoReturn:
    raise Unreadable(f"expected JSON numbers, got {word}")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)


def _holds(text: str, raw: str, found: Any) -> bool:
    """Whether a text contains the value, as it is written or under another layout."""
    return holds(text, raw) or any(one == found for one in _written(text, raw[0], most=MOST_QUOTED))


def _written(text: str, opening: str, most: int | None = None) -> Iterator[Any]:
    """Every JSON value that starts at one of the first `most` openings of a text."""
    for place in islice((match.start() for match in re.finditer(re.escape(opening), text)), most):
        try:
            yield _decode(text, place, "value")[0]
        except Unreadable:
            continue


def _begin(text: str) -> str:
    return repr(" ".join(text[:200].split())[:60])


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60}"
