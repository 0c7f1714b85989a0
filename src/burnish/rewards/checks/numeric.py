"""Is the response's number the reference's number? Values 0 or 1.

Numbers are read exactly (as fractions) from plain text and simple LaTeX: signs and the unicode
minus, thousands separators, decimals, fractions and mixed numbers, percent, scientific notation,
currency signs. Nothing is evaluated: a tower of exponents is not a number here, and a number of
more than `DIGITS` digits is refused before any arithmetic is done on it. The last number of a text
is no answer where all of its numbers only repeat the question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from burnish.arguments import read_each
from burnish.boundary import NonNegative
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck
from burnish.rewards.checks.extract import (
    LONGEST,
    Found,
    Where,
    find_answer,
    last_boxed,
    references,
    short,
)

DIGITS = 400
"""Digits, and powers of ten, of the largest number that is read."""
SHORT = 200
"""Characters of a response whose number is remembered: short answers come again and again."""
REMEMBERED = 4096
"""Short responses that are remembered, the most recently seen ones."""
TAIL = 4000
"""Characters at the end of a response in which the last number is looked for."""

_UNSIGNED = r"(?:\d{1,3}(?:,\d{3}){1,150}+(?!\d|,\d)|\d+)(?:\.\d+)?|\.\d+"
_DECIMAL = rf"(?:{_UNSIGNED})(?:[eE][-+]?\d+)?"
_NUMBER = re.compile(
    rf"(?P<sign>(?:(?<![\w)])[-+])?)[$£€¥]?(?P<whole>{_DECIMAL})"
    r"(?:\s?/\s?(?P<below>\d+(?:\.\d+)?))?(?P<percent>\s?%)?"
)
_MIXED = re.compile(r"(?P<sign>[-+]?)(?<!\d)(?P<whole>\d++)\s++(?P<top>\d++)/(?P<below>\d++)")
_POWER = re.compile(r"\s*(?:\\times|\\cdot|×|\*)\s*10\s*(?:\^|\*\*)\s*+\{?\s*+([-+]?\d+)\s*\}?")
_FRACTION = re.compile(
    r"\\[dt]?frac\s*(?:\{\s*([-+]?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}|(\d)\s*(\d))"
)
_WITH_UNIT = re.compile(rf"(?P<number>[-+]?[$£€¥]?{_DECIMAL}%?)\s[^\W\d_]{{2,}}[^=]*\Z")
_SPACE = r"(?:\\[,;: ]|[\u00a0\u2009\u202f])"
_APART = re.compile(rf"(?<=\d){_SPACE}+(?=\d(?!\d\d(?!\d)))")
_SPACES = re.compile(rf"\\!|{_SPACE}")
_UNIT = re.compile(
    r"(?:\^?\\(?:circ|degree)|°)\s*[CF]?"
    r"|(?:[^\W\d_]{2,}+|[mgshdlLNJWVAKCF](?![^\W\d_]))(?:[^\W\d_]|[\s/.²³'-]|\^-?[1-3](?!\d))*+"
)
_NAMED = re.compile(r"\\?[^\W\d_][^\W\d_ ]*(?: [^\W\d_]+){0,5}(?:_\w{1,9})?\s*=\s*")
_MONEY = re.compile(r"\\?[$£€¥]")
_TAIL_MIXED = re.compile(r"(?<![\w.,/])[-+]?\d{1,4} \d+/\d+\Z")
_TOKENS = re.compile(r"\d[\d,]*(?:\.\d+)?(?:/\d+)?|[^\W\d_]+|[^\w\s]")
_SIGNS = str.maketrans("\u2212\u2013×·", "--**")
NEAR = 12
"""Words and signs at most between two numbers that are repeated together."""
_DECORATION = re.compile(r"\\(?:left|right|displaystyle|mathrm|mathbf|textbf|text|\(|\)|\[|\])")


LAST_NUMBER = "the last number"


class Number(NamedTuple):
    """An exact number as it was written; a percentage keeps its face value."""

    value: Fraction
    percent: bool = False


class NumericConfig(CheckConfig, frozen=True, tag="numeric"):
    """The number in the response equals the one in the task's field: 1, else 0."""

    field: str = "answer"
    """Task field with the right number."""
    where: Where = "auto"
    """Where the number stands; `auto`: in a tag, a box or behind a marker, else the last number."""
    tag: str = "answer"
    """Name of the tag that holds the answer."""
    absolute: NonNegative = 0.0
    """Largest difference that still counts as equal."""
    relative: NonNegative = 0.0
    """The same, as a share of the reference."""
    percent: Literal["either", "face", "hundredth"] = "either"
    """What `50%` equals: 50 (face), 0.5 (hundredth) or either. Two percentages compare as such."""


class Numeric(RuleCheck[NumericConfig]):
    """Compares numbers exactly, or within a tolerance."""

    uses_answer = True

    def __init__(self, config: NumericConfig) -> None:
        super().__init__(config)
        self._known = lru_cache(REMEMBERED)(self._answer)

    def judge(self, task: Task, response: Response) -> Reward:
        return self._judge_all(task, [response])[0]

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return self._judge_all(task, responses)

    def _judge_all(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """The reference is read once for the group, and each answer once: many are the same."""
        golds = references(task.fields.get(self.config.field))
        numbers = [number for number in map(read_number, golds) if number is not None]
        if not numbers:
            shown = short(str(task.fields.get(self.config.field)))
            reason = f"the field '{self.config.field}' holds no number: {shown!r}"
            return [self.abstained(reason)] * len(responses)
        reference = f"reference {short(' or '.join(golds))!r}"
        question = Question.of(task)
        texts = dict.fromkeys(response.text for response in responses)
        rewards = {text: self._compare(text, numbers, reference, question) for text in texts}
        return [rewards[response.text] for response in responses]

    def _compare(
        self, text: str, golds: Sequence[Number], reference: str, question: Question
    ) -> Reward:
        answer, saw = (self._known if len(text) <= SHORT else self._answer)(text)
        is_equal = answer is not None and any(self._equal(answer, gold) for gold in golds)
        if is_equal and saw.endswith(f"({LAST_NUMBER})") and question.is_repeated_by(text):
            is_equal, saw = False, f"{saw}, which only repeats the question"
        return self.decided(float(is_equal), f"{saw}; {reference}")

    def _answer(self, text: str) -> tuple[Number | None, str]:
        found = find_answer(text, self.config.where, self.config.tag)
        if found is not None and self.config.where == "auto" and not has_number(found):
            found = None
        if found is not None:
            written, place = found
            number = answer_number(written) if place == "marker" else stated_number(written)
        elif self.config.where in ("auto", "last"):
            written, place = _last_written(text), LAST_NUMBER
            number = read_number(written) if written else None
        else:
            return None, f"no {self.config.where} answer in {short(text)!r}"
        if not written:
            return None, f"no number in {short(text)!r}"
        if number is None:
            return None, f"extracted {short(written)!r} ({place}), which is not a readable number"
        return number, f"extracted {short(written)!r} ({place})"

    def _equal(self, answer: Number, gold: Number) -> bool:
        values: tuple[Fraction, ...] = (answer.value,)
        if answer.percent != gold.percent:
            scaled = answer.value / 100 if answer.percent else answer.value * 100
            by = {"either": (answer.value, scaled), "face": values, "hundredth": (scaled,)}
            values = by[self.config.percent]
        share = Fraction(self.config.relative) * abs(gold.value)
        slack = max(Fraction(self.config.absolute), share)
        return any(abs(value - gold.value) <= slack for value in values)


class Question(NamedTuple):
    """What was asked, to tell an answer from its repetition."""

    tokens: str
    steps: frozenset[tuple[str, ...]]
    """Every two numbers that follow each other, with what stands between them."""

    @classmethod
    def of(cls, task: Task) -> Question:
        asked = next((m.text for m in reversed(task.messages) if m.role == "user"), "")
        tokens = _tokens(asked)
        return cls(_joined(tokens), frozenset(step for _, step in _steps(tokens)))

    def is_repeated_by(self, text: str) -> bool:
        """True where every number of the text stands in an expression of the question, as in
        `0 - 0 is nothing`, or where the text is the question itself."""
        tokens = _tokens(text[-TAIL:])
        while tokens and not tokens[-1][0].isalnum():
            tokens.pop()
        if len(tokens) > 3 and f"{_joined(tokens)}? " in self.tokens:
            return True
        repeated: set[int] = set()
        for places, step in _steps(tokens):
            if step in self.steps:
                repeated.update(places)
        return repeated == {n for n, token in enumerate(tokens) if token[0].isdigit()} != set()


def _tokens(text: str) -> list[str]:
    return _TOKENS.findall(text.casefold().translate(_SIGNS).replace(",", ""))


def _joined(tokens: Sequence[str]) -> str:
    return f" {' '.join(tokens)} "


def _steps(tokens: Sequence[str]) -> Iterator[tuple[tuple[int, int], tuple[str, ...]]]:
    """Every two numbers in a row with what stands between them, and their places.

    Two numbers side by side are one, such as `1 1/2`.
    """
    numbers = [n for n, token in enumerate(tokens) if token[0].isdigit()]
    for first, second in pairwise(numbers):
        if 1 < second - first <= NEAR + 1:
            yield (first, second), tuple(tokens[first : second + 1])


def read_number(text: str) -> Number | None:
    """The number that the whole text is, give or take units of money; None if it is not one."""
    if len(text) > LONGEST:
        return None
    number, rest = _leading(_plain(text))
    return None if rest.strip(" .$") else number


def stated_number(text: str) -> Number | None:
    """The number that a marked answer is: bare, with a unit, or with a name (`x = 5`).

    Anything else in the place of an answer (a list, a power, a sum) is not a number.
    """
    if len(text) > LONGEST:
        return None
    plain = _plain(text).replace("{", "").replace("}", "")
    named = _NAMED.match(plain)
    number, rest = _leading(plain[named.end() :] if named else plain)
    unit = rest.strip(" .$")
    return number if not unit or _UNIT.fullmatch(unit) else None


def _leading(text: str) -> tuple[Number | None, str]:
    """The number at the start of a plain text, and what follows it."""
    mixed = _MIXED.match(text)
    if mixed:
        sign, whole, top, below = mixed.group("sign", "whole", "top", "below")
        if max(len(whole), len(top), len(below)) > DIGITS or int(below) == 0:
            return None, ""
        value = int(whole) + Fraction(int(top), int(below))
        return Number(-value if sign == "-" else value), text[mixed.end() :]
    match = _NUMBER.match(text)
    if match is None:
        return None, ""
    power = _POWER.match(text, match.end())
    end = power.end() if power else match.end()
    return _exact(match, power.group(1) if power else "0"), text[end:]


def answer_number(text: str) -> Number | None:
    """The number that an answer states: all of it, or before its unit, or the last one in it."""
    whole = read_number(text)
    if whole is not None:
        return whole
    leading = _WITH_UNIT.match(_plain(text[:LONGEST]))
    return read_number(leading.group("number")) if leading else last_number(text)


def has_number(found: Found) -> bool:
    """False for a marker that was only a turn of phrase (`the answer is not obvious`)."""
    return found.place != "marker" or any(letter.isdigit() for letter in found.text)


def last_number(text: str) -> Number | None:
    """The last number written in a text, or None."""
    written = _last_written(text)
    return read_number(written) if written else None


def _last_written(text: str) -> str:
    plain = _plain(text[-TAIL:])
    matches = list(_NUMBER.finditer(plain))
    if not matches:
        return ""
    match = matches[-1]
    mixed = _TAIL_MIXED.search(plain, max(0, match.start() - 8), match.end())
    return mixed.group() if mixed else match.group().strip()


def keep_apart(text: str) -> str:
    """The text with a plain blank for LaTeX's between digits that are not one number's groups."""
    return _APART.sub(" ", text)


def _plain(text: str) -> str:
    """The text with LaTeX and typographic dress taken off numbers."""
    text = text.strip().strip("$").strip()
    if text.isascii() and "\\" not in text and "{" not in text:
        return text.strip("*").strip()  # every rule below needs one of these three
    text = text.replace("\u2212", "-").replace("\u2013", "-").replace("{,}", ",")
    text = _SPACES.sub("", keep_apart(text)).replace("\\%", "%").replace("\\$", "$")
    text = _DECORATION.sub("", text)
    text = _FRACTION.sub(_fraction, text)
    return text.strip().strip("*").strip()


def _fraction(match: re.Match[str]) -> str:
    """`a/b`; after a digit with a blank, which makes the two a mixed number."""
    after_digit = match.string[max(0, match.start() - 1) : match.start()].isdigit()
    return f"{' ' * after_digit}{match[1] or match[3]}/{match[2] or match[4]}"


def _exact(match: re.Match[str], power: str) -> Number | None:
    """The matched number, times a power of ten; None where it is larger than we read."""
    below = match.group("below") or "1"
    mantissa, _, exponent = match.group("whole").replace(",", "").lower().partition("e")
    if max(len(mantissa), len(below)) > DIGITS or max(len(exponent), len(power)) > 4:
        return None
    shift = int(exponent or 0) + int(power)
    value, divisor = _fraction_of(mantissa), _fraction_of(below)
    if abs(shift) > DIGITS or divisor == 0:
        return None
    if shift:
        value *= Fraction(10) ** shift
    if divisor != 1:
        value /= divisor
    return Number(-value if match.group("sign") == "-" else value, bool(match.group("percent")))


def _fraction_of(decimal: str) -> Fraction:
    # Fraction's own reading of texts is ten times slower than that of integers.
    return Fraction(int(decimal)) if decimal.isdecimal() else Fraction(decimal)


def normalize_numeric_answer(texts: Any) -> Any:
    """The final answer of a worked solution as bare text: after `####`, else the last \\boxed{},
    else the last number; without commas, blanks, currency signs and trailing punctuation. A list
    gives a list."""

    def read(text: str) -> str | None:
        if "####" in text:
            rest = text.rsplit("####", 1)[1].strip()
            answer = rest.splitlines()[0] if rest else ""
        else:
            answer = last_boxed(text) or _last_written(text)
        return "".join(_MONEY.sub("", answer).replace(",", "").split()).rstrip(".,;:!?") or None

    return read_each("texts", texts, read)
