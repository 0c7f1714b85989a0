"""Quantities in texts: a number with its scale and unit, and whether two of them are the same.

read_quantity("about 1.2 million")            # Quantity(value=1200000.0, unit='', ...)
same_quantity(read_quantity("10 cm"), read_quantity("0.1 m"))    # True
"""

from __future__ import annotations

import math
import re
import unicodedata
from itertools import islice
from typing import NamedTuple

from burnish.numbers import NUMBER_WORDS, TENS_WORDS

LONGEST = 200
"""Characters of a text that can be a quantity."""
_SCALES = {
    "k": 1e3, "w": 1e4, "%": 1e-2, "‰": 1e-3, "万": 1e4, "亿": 1e8, "bn": 1e9, "mn": 1e6,
    "hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12,
    "percent": 1e-2, "per cent": 1e-2,
}  # fmt: skip
_MONEY = {"dollar": "$", "usd": "$", "euro": "€", "eur": "€", "gbp": "£", "yen": "¥", "jpy": "¥"}
_PERCENT = ("%", "percent", "per cent")
_WORDS = "|".join(
    sorted((word for word in _SCALES if word.isascii() and word != "%"), key=len)[::-1]
)
_NUMBER = re.compile(
    r"(?:about|around|approximately|roughly|approx\.?|~|≈)?\s*"
    r"(?P<sign>[-+]?)\s*(?P<money>[$£€¥]?)\s*"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?P<power>e[-+]?\d{1,4})?\s*"
    rf"(?P<scale>[%‰万亿]|(?:{_WORDS})(?![^\W\d_]))?\s*(?P<unit>\D*|[a-z]{{1,5}}\^?[23])",
    re.IGNORECASE,
)
_UNITS = {
    "length": {"mm": 1e-3, "cm": 1e-2, "m": 1.0, "meter": 1.0, "metre": 1.0, "km": 1e3, "in": 0.0254,
               "inch": 0.0254, "inche": 0.0254, "ft": 0.3048, "feet": 0.3048, "foot": 0.3048,
               "yd": 0.9144, "yard": 0.9144, "mile": 1609.344, "centimeter": 1e-2,
               "centimetre": 1e-2, "kilometer": 1e3, "kilometre": 1e3},
    "area": {"mm2": 1e-6, "cm2": 1e-4, "m2": 1.0, "km2": 1e6},
    "volume": {"ml": 1e-3, "l": 1.0, "liter": 1.0, "litre": 1.0, "cm3": 1e-3, "m3": 1e3},
    "mass": {"mg": 1e-3, "g": 1.0, "gram": 1.0, "kg": 1e3, "kilogram": 1e3, "t": 1e6, "lb": 453.59237,
             "pound": 453.59237, "oz": 28.349523125},
    "time": {"ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0,
             "hr": 3600.0, "hour": 3600.0, "day": 86400.0},
    "angle": {"°": 1.0, "deg": 1.0, "degree": 1.0, "rad": 180 / math.pi, "radian": 180 / math.pi},
}  # fmt: skip
_BASES = {unit: (kind, size) for kind, units in _UNITS.items() for unit, size in units.items()}
_UNITED = re.compile(
    r"(?:(?<![\w.,])[-+−]|(?<![a-z0-9]))\d[\d.,]*(?:\s?(?:per cent\b|[^\W\d_]+|[%‰]))?",
    re.IGNORECASE,
)
"""A number in running text with the word or sign behind it; a digit in a name (CO2, Q3) is none."""
_WORTH = dict(zip(NUMBER_WORDS, range(20), strict=True))
_WORTH |= {word: 10 * tens for tens, word in enumerate(TENS_WORDS, 2)}
_TIMES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_TENS = rf"(?:(?:{'|'.join(TENS_WORDS)})(?:[\s-]++(?:{'|'.join(NUMBER_WORDS[1:10])})\b)?|(?:{'|'.join(NUMBER_WORDS)}))\b"
_HUNDREDS = rf"(?:(?:{_TENS}[\s-]++)?hundred\b(?:\s++(?:and\s++)?{_TENS})?|{_TENS})"
_THOUSANDS = rf"(?:{_HUNDREDS}[\s-]++)?(?:thousand|million|billion|dozen)\b"
_IN_WORDS = re.compile(
    r"(?<![\w.,-])(?<!\d\s)"
    rf"(?:{_THOUSANDS}(?:\s++{_THOUSANDS}){{0,3}}+(?:\s++(?:and\s++)?{_HUNDREDS})?|{_HUNDREDS})",
    re.IGNORECASE,
)
"""One number: `two hundred and five`; "one and three" are two, and so are "nineteen ninety"."""
PRONOUN = "one"
"""In running text mostly no number: "which one", "no one"."""


class Quantity(NamedTuple):
    """A number with what stands behind it."""

    value: float
    unit: str
    whole: int | None
    """The number itself where it is a whole one, written out."""
    is_percent: bool = False


def bare_text(text: str) -> str:
    """Lower case, single blanks, full-width forms made plain."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def read_quantity(text: str) -> Quantity | None:
    """The number that the whole text is, with its scale and unit; None if it is not a finite one.

    >>> read_quantity("12 cm").unit, read_quantity("$3").unit, read_quantity("nan") is None
    ('cm', '$', True)
    """
    if len(text) > 4 * LONGEST:
        return None
    bare = bare_text(text).replace("−", "-").replace("–", "-").rstrip(".")
    found = _NUMBER.fullmatch(bare) if len(bare) <= LONGEST else None
    if found is None:
        return None
    digits = found["digits"].replace(",", "")
    scale = (found["scale"] or "").lower()
    value = float(digits + (found["power"] or "")) * _SCALES.get(scale, 1.0)
    if not math.isfinite(value):
        return None
    sign = -1 if found["sign"] == "-" else 1
    is_plain = digits.isdecimal() and not found["power"] and not scale
    unit = found["unit"].strip(" .")
    unit = unit if unit in _BASES else unit.removesuffix("s")
    unit = _MONEY.get(unit, unit)
    unit = found["money"] + unit.removeprefix(found["money"])
    return Quantity(sign * value, unit, sign * int(digits) if is_plain else None, scale in _PERCENT)


def quantities_in(text: str, most: int = 1000) -> list[Quantity]:
    """The numbers of a running text, each once: in digits with their unit, and in English words.

    "one" alone is not counted: it is mostly a pronoun. `most` are read at the most.

    >>> [one.value for one in quantities_in("Forty-one towers, 1,200 m and 50 % of two hundred.")]
    [41.0, 200.0, 1200.0, 0.5]
    """
    words = dict.fromkeys(match[0].lower() for match in _IN_WORDS.finditer(text))
    words.pop(PRONOUN, None)
    found = dict.fromkeys(Quantity(float(n), "", n) for n in map(_value, words))
    for one in dict.fromkeys(match[0].rstrip(".,") for match in _UNITED.finditer(text)):
        if len(found) >= most:
            break
        if (quantity := read_quantity(one)) is not None:
            found[quantity] = None
    return list(islice(found, most))


def read_number_words(text: str) -> Quantity | None:
    """The number that the whole text is in English words; None if it is not one.

    >>> read_number_words("Two hundred and five").whole, read_number_words("One Direction")
    (205, None)
    """
    found = _IN_WORDS.fullmatch(text.strip()[:LONGEST])
    return None if found is None else Quantity(float(n := _value(found[0].lower())), "", n)


def _value(words: str) -> int:
    """The number that number words make: `two hundred and five` is 205."""
    total = part = 0
    for word in re.findall("[a-z]+", words):
        if word in _WORTH:
            part += _WORTH[word]
        elif word in ("dozen", "hundred"):
            part = max(part, 1) * _TIMES[word]
        elif word != "and":
            total, part = total + max(part, 1) * _TIMES[word], 0
    return total + part


def same_quantity(first: Quantity, second: Quantity, relative: float = 1e-3) -> bool | None:
    """Whether two quantities are equal; None where their units cannot be compared.

    Units of one kind are converted. A number without a unit is compared as it is, beside a percentage
    also as one. Whole numbers of one unit must be equal, others within `relative`.

    >>> same_quantity(read_quantity("10 cm"), read_quantity("0.1 m"))
    True
    >>> same_quantity(read_quantity("40%"), read_quantity("40")), same_quantity(
    ...     read_quantity("2019"), read_quantity("2020"))
    (True, False)
    """
    bases = [_BASES.get(one.unit.replace("^", "")) for one in (first, second)]
    if first.unit and second.unit and first.unit != second.unit:
        if bases[0] is None or bases[1] is None or bases[0][0] != bases[1][0]:
            return None
        return _close(first.value * bases[0][1], second.value * bases[1][1], relative)
    if first.whole is not None and second.whole is not None:
        return first.whole == second.whole
    if first.is_percent != second.is_percent and not (first.unit or second.unit):
        share, plain = (first, second) if first.is_percent else (second, first)
        return any(_close(share.value * by, plain.value, relative) for by in (1, 100))
    return _close(first.value, second.value, relative)


def _close(first: float, second: float, relative: float) -> bool:
    return abs(first - second) <= max(relative * max(abs(first), abs(second)), 1e-9)
