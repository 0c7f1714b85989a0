"""What a judge may not see of a sample's metadata: labels, scores, model names, order.

    sanitize_metadata({"topic": "law", "is_chosen": True, "extra": {"modelB": "x"}})   # {'topic': 'law'}

A key is dropped where one of its words gives something away, at any depth: `is_chosen`,
`human_rating`, `gpt4Verdict`, `ANSWER-ORDER`. What is left empty by that goes too; cleaning twice
changes nothing more. A key dropped in vain costs the judge a hint, a key kept in error tells it the
answer: in doubt it goes (`label_free_text`, `user_preferences` and `order_id` do, `prefix`,
`border`, `original_prompt` and `underscore` stay). Only keys are read: a label inside a text is not
found.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

_TELLING = (
    "label labelled labeled gold golden groundtruth winner winning won win loser losing "
    "preference preferred prefer pref chosen rejected accepted better best worse worst "
    "correct incorrect correctness valid invalid validity truth oracle "
    "score scored scoring rating rated reward rank ranked ranking vote upvote downvote elo verdict "
    "judgment judgement judged judgments judgements "
    "model generator author origin order ordering swap swapped flipped"
)
WORDS = frozenset(_TELLING.split())
"""Singular; an s at the end is read past. `order` too: which response came first is not the judge's
business."""

EVERYWHERE = re.compile(
    "chosen|rejected|winner|verdict|preferred|preference|groundtruth|correctness|judge?ment|label"
)
"""Words that give a label away in the middle of another one too, such as `ischosen`."""

_GLUED = (
    "is was has the my our human user crowd expert llm gpt judge rater gold true gt final total mean "
    "avg max min raw new old response answer candidate assistant source base first second left right "
    "display"
)
BEFORE, AFTER = frozenset(_GLUED.split()), frozenset(("a", "b", "name", "id", "value", "key", "by"))
"""What may be grown on to a word without a separator: `humanscore`, `modelname`, `orderid`."""

DEEPEST = 64
"""Levels of nesting that are walked; what lies deeper is dropped."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TRUTH = re.compile(r"ground[\W_]*truth", re.IGNORECASE)
_RUN = re.compile(r"[^\W\d_]+")
_LOOK_ALIKES = str.maketrans(
    "аеорсухіѕԁһјкмтвнԛԝɡɩοαεικνρτυχ",
    "aeopcyxisdhjkmtbhqwgioaeikvptux",
)
"""Cyrillic, Greek and phonetic letters that look like Latin ones."""


def is_blocked(key: str) -> bool:
    """Whether a key gives away a label, a score, who wrote a response, or its place."""
    words = _words(key)
    return any(map(_tells, words)) or bool(_TRUTH.search(key))


def sanitize_metadata(metadata: Any) -> Any:
    """The metadata without keys that give something away, and without what became empty.

    Mappings and lists are walked; any other value is returned as it is. 0 and False are values,
    not emptiness.
    """
    return _cleaned(metadata, DEEPEST)


def _cleaned(value: Any, levels: int) -> Any:
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return value
    if not levels:
        return None
    if isinstance(value, Mapping):
        walked = {
            str(key): _cleaned(inner, levels - 1)
            for key, inner in value.items()
            if not is_blocked(str(key))
        }
        return {key: inner for key, inner in walked.items() if not _is_empty(inner)}
    cleaned = [_cleaned(inner, levels - 1) for inner in value]
    return [inner for inner in cleaned if not _is_empty(inner)]


def _words(key: str) -> list[str]:
    """The words of a name in small Latin letters: cut at separators, digits and capitals."""
    letters = unicodedata.normalize("NFKD", key)
    plain = "".join(c for c in letters if unicodedata.category(c) not in ("Mn", "Cf"))
    found: list[str] = []
    for run in _RUN.findall(plain):
        # Whole as well as in its parts: `cHosen` has a hump inside its only word.
        found += [part.casefold().translate(_LOOK_ALIKES) for part in (*_HUMP.split(run), run)]
    return found


def _tells(word: str) -> bool:
    if word in WORDS or word.removesuffix("s") in WORDS or EVERYWHERE.search(word):
        return True
    for known in WORDS:
        before, found, after = word.partition(known)
        if found and (not before or before in BEFORE) and after.removesuffix("s") in {"", *AFTER}:
            return True
    return False


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)
