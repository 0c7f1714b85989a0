"""Text as a generator of speech reads it: lower case, few signs, numbers in words.

    spelled("It's 21 km, naïve?")       # "it's twenty one km, naive?"

A small alphabet is learned from little speech. What cannot be written with it stays as it is, and
`AudioGeneratorModel.ids` refuses it by name.
"""

from __future__ import annotations

import re
import unicodedata

from burnish.boundary import public
from burnish.numbers import NUMBER_WORDS, TENS_WORDS

ALPHABET = "abcdefghijklmnopqrstuvwxyz' .,;!?"
_MINUS = re.compile(r"(?<![\w.)\]-])-(?=[$£€]?\d)")
"""A hyphen that is a sign: not that of 3-5 or of COVID-19."""
_POWERS = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_SIGNS = {
    "’": "'", "‘": "'", "`": "'", "“": " ", "”": " ", '"': " ", "«": " ", "»": " ", "(": ", ", ")": ", ",
    "[": ", ", "]": ", ", "—": ", ", "–": ", ", "-": " ", "…": ".", ":": ",", "&": " and ", "%": " percent ",
    "+": " plus ", "−": " minus ", "=": " equals ", "$": " dollars ", "£": " pounds ", "€": " euros ", "/": " ", "_": " ",
    "*": " ", "ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "th", "þ": "th",
}  # fmt: skip


@public
def spelled(text: str) -> str:
    """Text as a generator reads it: lower case, few signs, numbers in words, no accents.
    >>> spelled("Room 21: 1,204 naïve “guests” — 50% of them?")
    'room twenty one, one thousand two hundred four naive guests, fifty percent of them?'
    >>> spelled("-5 to 3-4 degrees")
    'minus five to three four degrees'
    """
    lower = "".join(_SIGNS.get(one, one) for one in _numbered(text).lower())
    plain = (one for one in unicodedata.normalize("NFKD", lower) if not unicodedata.combining(one))
    joined = " ".join("".join(plain).split())
    joined = re.sub(r"\s+([.,;!?])", r"\1", joined)
    # Of several signs the last is heard: `),.` is a full stop.
    joined = re.sub(r"[.,;!?]+([.,;!?])", r"\1", joined)
    return re.sub(r"([.,;!?])(?=[^\s.,;!?])", r"\1 ", joined).strip(",; ")


def _numbered(text: str) -> str:
    """Digits as words: whole numbers by thousands, digits behind a point one by one."""

    def words(match: re.Match[str]) -> str:
        whole, point = match[1].replace(",", ""), match[2]
        is_code = len(whole) > 12 or (whole.startswith("0") and len(whole) > 1)
        said = " ".join(NUMBER_WORDS[int(c)] for c in whole) if is_code else _whole(int(whole))
        if point:
            said += " point " + " ".join(NUMBER_WORDS[int(c)] for c in point)
        return f" {said} "

    plain = _MINUS.sub(" minus ", unicodedata.normalize("NFKC", text))
    found = re.sub(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.([0-9]+))?", words, plain)
    return re.sub(r" +", " ", found)


def _whole(number: int) -> str:
    if number < 20:
        return NUMBER_WORDS[number]
    if number < 100:
        tens = TENS_WORDS[number // 10 - 2]
        return f"{tens} {NUMBER_WORDS[number % 10]}" if number % 10 else tens
    power, name = next(one for one in _POWERS if number >= one[0])
    rest = f" {_whole(number % power)}" if number % power else ""
    return f"{_whole(number // power)} {name}{rest}"
