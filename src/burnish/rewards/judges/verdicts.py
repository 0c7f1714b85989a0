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
from collections.abc import Sequence
from typing import Any, NoReturn

from burnish.rewards.judges.questions import Unreadable

MOST_QUOTED = 200
"""Opening braces of a text to judge that are looked at for a copied verdict."""

_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_BLANKS = re.compile(r"\s+")


def own_object(reply: str, shown: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object that the reply consists of; `shown` are the texts it must not be from."""
    said = _unwrapped(after_thoughts(reply))
    if not said:
        raise Unreadable("expected one JSON object, got nothing")
    if not said.startswith("{"):
        raise Unreadable(f"expected one JSON object and nothing else, got {_begin(said)}")
    found, end = _decode(said)
    rest = said[end:].strip()
    if rest:
        what = "a second object" if rest.startswith("{") else f"text after it: {_begin(rest)}"
        raise Unreadable(f"expected one JSON object and nothing else, got {what}")
    if any(_holds(text, said[:end], found) for text in shown):
        raise Unreadable("expected your own verdict, got one that stands in a text to judge")
    return found


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


def _unwrapped(said: str) -> str:
    """Without the one code fence that encloses all of it."""
    fenced = _FENCE.fullmatch(said)
    return fenced[1].strip() if fenced else said


def _decode(text: str, place: int = 0) -> tuple[dict[str, Any], int]:
    try:
        found, end = _DECODER.raw_decode(text, place)
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        said = str(error).partition(":")[0]
        raise Unreadable(f"expected one JSON object, got broken JSON ({said})") from None
    return found, end


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise Unreadable(f'expected each key once, got "{twice[0][:40]}" twice')
    return dict(pairs)


def _no_number(word: str) -> NoReturn:
    raise Unreadable(f"expected JSON numbers, got {word}")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)


def _holds(text: str, raw: str, found: dict[str, Any]) -> bool:
    """Whether a text contains the object, as it is written or under another layout."""
    if _BLANKS.sub("", raw) in _BLANKS.sub("", text):
        return True
    place, looked = text.find("{"), 0
    while place >= 0 and looked < MOST_QUOTED:
        try:
            if _decode(text, place)[0] == found:
                return True
        except Unreadable:
            pass
        place, looked = text.find("{", place + 1), looked + 1
    return False


def _begin(text: str) -> str:
    return repr(" ".join(text[:200].split())[:60])


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60}"
