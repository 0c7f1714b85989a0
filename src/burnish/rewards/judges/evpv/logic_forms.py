"""Logic forms of diagrams as trees, and one spelling for those that say the same (EVPV).

    canonical(parse_form("LengthOf(Line(B, A))"))          # 'line AB'

The forms are those of Geometry3K (arXiv 2105.04165). A text is data: nothing is evaluated.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DEEPEST = 12
"""Brackets inside each other."""
SYMMETRIC = frozenset(
    [
        "parallel",
        "perpendicular",
        "congruent",
        "similar",
        "equal",
        "equals",
        "intersects",
        "connected",
        "adjacent",
        "tangent",
        "line",
        "arc",
        "intersectat",
    ]
)
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
