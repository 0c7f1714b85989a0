"""Does the response say what the reference says? Values 0 or 1; `f1` any value between.

`normalised` is the question-answering convention of SQuAD: lower case, no punctuation, no
articles, single blanks.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from burnish.boundary import public
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck
from burnish.rewards.checks.extract import Found, find_answer, references, short
from burnish.rewards.checks.texts import spaced

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SEPARATORS = re.compile(r"(?<=\d)[,.'’_ \u00a0\u2009\u202f](?=\d{3}(?!\d))")
_MARKS = re.compile(r"[^\w\s]|_")
_STROKES = str.maketrans(
    {"ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"}
)
"""Letters that Unicode does not take apart."""
READ = 200_000
"""Characters at the end of an answer that are compared."""


class MatchConfig(CheckConfig, frozen=True, tag="match"):
    """The answer equals (or contains, or overlaps with) the task's field; values in [0, 1]."""

    field: str = "answer"
    """Task field with the right answer."""
    mode: Literal["exact", "normalised", "contains", "f1"] = "normalised"
    """Equal letter by letter, equal without case, articles and punctuation, contained, or overlap
    of words."""
    where: Literal["auto", "boxed", "tag", "marker", "whole"] = "auto"
    """Where the answer stands; with `auto` the whole text where nothing marks an answer."""
    tag: str = "answer"
    """Name of the tag that holds the answer."""


class Match(RuleCheck[MatchConfig]):
    """Compares texts."""

    uses_answer = True

    def judge(self, task: Task, response: Response) -> Reward:
        config = self.config
        golds = references(task.fields.get(config.field))
        if config.mode != "exact":
            golds = [gold for gold in golds if normalize_answer.plain(gold)]
        if not golds:
            return self.abstained(f"the field '{config.field}' is empty: nothing to match")
        found = find_answer(response.text, config.where, config.tag)
        if found is None and config.where == "auto":
            found = Found(response.text.strip(), "whole text")
        if found is None:
            return self.decided(0.0, f"no {config.where} answer in {short(response.text)!r}")
        if len(found.text) > READ:
            found = Found(found.text[-READ:], f"end of the {found.place}")
        rules: dict[str, Callable[[str, list[str]], float]] = {
            "exact": lambda text, known: float(text in known),
            "normalised": exact_match.plain,
            "contains": contained_match.plain,
            "f1": token_f1.plain,
        }
        value = rules[config.mode](found.text, golds)
        saw = (
            f"extracted {short(found.text)!r} ({found.place}); "
            f"reference {short(' or '.join(golds))!r}"
        )
        return self.decided(value, saw)


@public
def normalize_answer(text: str) -> str:
    """Lower case, without punctuation and articles, blanks collapsed."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


@public
def exact_match(pred: object, golds: object) -> float:
    """1 if the prediction equals one of the references after normalisation, else 0.

    References are one value or a list of them, texts or not. An empty one is no reference: it
    matches nothing, not even an empty prediction. None and NaN are neither.
    """
    answer = _read(pred)
    return float(any(answer == gold for gold in _normalised(golds)))


@public
def contained_match(pred: object, golds: object) -> float:
    """1 if a reference stands in the prediction as whole words, else 0 (`4` is not in `14`).

    Chinese and Japanese letters count as a word each, for they stand without blanks.
    """
    answer = _padded(_read(pred))
    return float(any(_padded(gold) in answer for gold in _normalised(golds)))


@public
def token_f1(pred: object, golds: object) -> float:
    """Best harmonic mean of word precision and recall over the references."""
    got, best = _read(pred).split(), 0.0
    for gold in _normalised(golds):
        wanted = gold.split()
        shared = sum((Counter(got) & Counter(wanted)).values())
        best = max(best, 2 * shared / (len(got) + len(wanted)))
    return best


@public
def states(text: str, golds: object) -> bool:
    """Whether a text gives a reference away, however it is written.

    Case, accents, full-width and other forms of a letter, hidden characters, punctuation, line
    breaks and thousands separators make no difference: `1 200` stands in `1,200 towers`, `Zürich` in
    `ZURICH`, `New York` in `new-york`. Whole words alone count.

    >>> states("Which of the 1 200 towers?", "1,200"), states("It is 14.", "4")
    (True, False)
    """
    given = golds if isinstance(golds, list | tuple) else [golds]
    said = loose_forms(text)
    return any(is_stated_in(said, loose_forms(str(one))) for one in given)


def is_stated_in(text: tuple[str, str], gold: tuple[str, str]) -> bool:
    """The same of `loose_forms`, for a text in which many references are looked up."""
    return any(one.strip() and one in form for one, form in zip(gold, text, strict=True))


def loose_forms(text: str) -> tuple[str, str]:
    """A text without case, accents and separators, between blanks; its punctuation left out, and made
    blanks."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_STROKES)
    wide = [c for c in unicodedata.normalize("NFKD", folded) if unicodedata.category(c) != "Mn"]

    def form(mark: str) -> str:
        # A hidden character may stand inside a word, or in the place of a blank.
        shown = "".join(mark if unicodedata.category(c) == "Cf" else c for c in wide)
        bare = _SEPARATORS.sub("", unicodedata.normalize("NFC", shown))
        return _padded(normalize_answer.plain(_MARKS.sub(mark, bare)))

    return form(""), form(" ")


def _normalised(golds: Any) -> list[str]:
    values = golds if isinstance(golds, list | tuple) else [golds]
    return [text for text in map(_read, values) if text]


def _read(value: Any) -> str:
    """A value as normalised text; nothing for None and NaN, which are no answers."""
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if is_missing else normalize_answer.plain(str(value))


def _padded(text: str) -> str:
    """Between blanks, so that whole words alone are found."""
    return f" {' '.join(spaced(text).split())} "
