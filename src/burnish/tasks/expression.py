"""Whole-number expressions: their text, their value, and what makes two of them the same question."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

Operator = Literal["+", "-", "*", "//"]
Digits = Annotated[int, Meta(ge=1, le=6)]


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of question in a mixture."""

    operators: Annotated[tuple[Operator, ...], Meta(min_length=1)] = ("+",)
    """Each gap between two terms draws one of these."""
    digits: Digits | tuple[Digits, ...] = 1
    """Digits of every operand, or one number per term. One digit means 0 to 9."""
    terms: Annotated[int, Meta(ge=2, le=6)] = 2
    weight: Annotated[float, Meta(gt=0.0)] = 1.0

    @property
    def digits_per_term(self) -> tuple[int, ...]:
        return (self.digits,) * self.terms if isinstance(self.digits, int) else self.digits

    @property
    def label(self) -> str:
        """A short name for tables: `1-digit +`, `3-digit,1-digit *`, `2-digit + - (3 terms)`."""
        digits = self.digits_per_term
        shown = digits[:1] if len(set(digits)) == 1 else digits
        terms = f" ({self.terms} terms)" if self.terms > 2 else ""
        return f"{','.join(f'{d}-digit' for d in shown)} {' '.join(self.operators)}{terms}"

    @property
    def size(self) -> int:
        """Expressions that can be written down, invalid ones included."""
        count: int = len(self.operators) ** (self.terms - 1)
        for digits in self.digits_per_term:
            count *= len(operand_range(digits))
        return count


@dataclass(frozen=True)
class Expression:
    """Operands with an operator in each gap; `*` and `//` bind before `+` and `-`."""

    operands: tuple[int, ...]
    operators: tuple[Operator, ...]

    @property
    def text(self) -> str:
        pairs = zip(self.operators, self.operands[1:], strict=True)
        return str(self.operands[0]) + "".join(f" {symbol} {value}" for symbol, value in pairs)

    @property
    def key(self) -> str:
        """Equal for expressions that differ only in the order of a pure sum or product."""
        if len(set(self.operators)) == 1 and self.operators[0] in ("+", "*"):
            return Expression(tuple(sorted(self.operands)), self.operators).text
        return self.text

    @property
    def value(self) -> int | None:
        """The result, or None where it divides by zero."""
        total, sign, product = 0, 1, self.operands[0]
        for symbol, operand in zip(self.operators, self.operands[1:], strict=True):
            if symbol == "*":
                product *= operand
            elif symbol == "//":
                if operand == 0:
                    return None
                product //= operand
            else:
                total += sign * product
                sign, product = (1 if symbol == "+" else -1), operand
        return total + sign * product


def operand_range(digits: int) -> range:
    """0 to 9 for one digit, else the numbers written with exactly that many digits."""
    return range(0, 10) if digits == 1 else range(10 ** (digits - 1), 10**digits)


def draw(part: Part, rng: random.Random) -> Expression:
    """A uniform draw over all expressions of a part, invalid ones included."""
    operands = tuple(rng.choice(operand_range(digits)) for digits in part.digits_per_term)
    return Expression(operands, tuple(rng.choice(part.operators) for _ in range(part.terms - 1)))


def every(part: Part) -> Iterator[Expression]:
    """All expressions of a part, invalid ones included; meant for small parts."""
    ranges = [operand_range(digits) for digits in part.digits_per_term]
    symbols = sorted(set(part.operators))
    for operands in itertools.product(*ranges):
        for operators in itertools.product(symbols, repeat=part.terms - 1):
            yield Expression(operands, operators)
