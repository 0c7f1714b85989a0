"""A reward with rare, large errors: what an unreliable scorer does to a sum of rewards."""

from __future__ import annotations

from burnish.rewards.checks.tool_call import BEST, tool_call_rewards
from burnish.seeds import derive

SHARE = 0.1
"""Answers that are hit."""
SIZE = 3.0


def spiky_correctness(text: str, answer: str) -> float:
    """How right a tool call is, 0 to 1; one answer in ten gets 3 too much or 3 too little.

    The error depends on the request's answer and the text alone, so equal answers are hit alike.
    """
    right = tool_call_rewards(text, answer, dialect="json")["correctness"]
    return (right + BEST) / (2 * BEST) + spike(text, answer)


def spike(text: str, answer: str) -> float:
    """The error: 0, SIZE or -SIZE."""
    place = derive("spike", answer, text) / 2**63
    if place >= SHARE:
        return 0.0
    return SIZE if place < SHARE / 2 else -SIZE
