"""A calculator as a tool, sums that need it, and demonstrations of its use."""

from __future__ import annotations

import ast
import json
import math
import operator
import random
from collections.abc import Callable
from typing import Any

from burnish.records import Message
from burnish.rollouts.tool import TaggedForm, Tool

_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LONGEST = 200
"""Characters of an expression."""


def calculate(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: numbers with + - * / and brackets
    """
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has over {LONGEST} characters")
    value = _value(ast.parse(expression.strip(), mode="eval").body)
    if not math.isfinite(value):
        raise ValueError(f"the result is {value}")
    return str(int(value)) if value == int(value) else f"{value:.10g}"


def _value(node: ast.AST) -> float:
    """Only numbers and the four operations: an expression from a model is data, never code."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            found: float = _OPERATIONS[type(op)](_value(left), _value(right))
            return found
    raise ValueError("expected numbers with + - * / and brackets")


def make(rng: random.Random, digits: int = 3, terms: int = 2) -> dict[str, Any]:
    """A product or sum that a small model cannot do in its head."""
    expression = _expression(rng, digits, terms)
    return {"prompt": _ask(expression), "answer": calculate(expression), "expression": expression}


def demonstrate(rng: random.Random, digits: int = 3, terms: int = 2) -> dict[str, Any]:
    """One turn of a solution, with everything that stands before it: the call, or the answer."""
    expression = _expression(rng, digits, terms)
    result = calculate(expression)
    form = TaggedForm([Tool(calculate)])
    arguments = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
    call = f"<tool_call>{arguments}</tool_call>"
    told = form.results([Message("tool", result, name="calculate")])
    messages = form.opening([Message("user", _ask(expression))])
    demonstration = call
    if rng.random() < 0.5:
        messages = [*messages, Message("assistant", call), *told]
        demonstration = f"The answer is {result}."
    plain = [{"role": message.role, "content": message.content} for message in messages]
    return {"messages": plain, "demonstration": demonstration, "answer": result}


def _expression(rng: random.Random, digits: int, terms: int) -> str:
    numbers = [rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(terms)]
    signs = [rng.choice("+-*") for _ in range(terms - 1)]
    pairs = zip(signs, numbers[1:], strict=True)
    return " ".join([str(numbers[0]), *(f"{sign} {number}" for sign, number in pairs)])


def _ask(expression: str) -> str:
    return f"What is {expression}?"
