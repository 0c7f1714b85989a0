"""The claims of an answer beside its documents, with what each blind Checker found (MARCH).

    claims_view(sample)        # None where the sample is of no such game

What happened in the game is read from the sample's `info`, never computed again; what is not of that
form, such as the `info` of another tool, is shown as it is elsewhere on the page.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from burnish.store import StoredSample
from burnish.view.pages.groups import TEXT
from burnish.view.pages.runs import Page

KEY = "march"
MOST = 64
"""Documents and claims that are shown."""


class CheckedClaim(Struct, frozen=True):
    question: str
    answer: str
    checks: list[str | None] = []
    """What each Checker found; null where it gave no answer."""
    vote: int = 0
    holds: bool = True
    by_heart: bool | None = None
    """Found without documents too; null where nobody looked."""


class _Trace(Struct, frozen=True):
    """`info["march"]` of a sample."""

    claims: list[CheckedClaim]
    role: str = ""
    sample: int = -1
    query: str = ""
    answer: str = ""
    refusals: int = 0
    leaks: int = 0
    invented: int = 0
    reward: float = 0.0
    documents: str = "documents"


def claims_view(sample: StoredSample) -> Page | None:
    """The game that a sample is part of; None where it is of none."""
    try:
        trace = msgspec.convert(sample.trajectory.info.get(KEY), _Trace)
    except msgspec.ValidationError:
        return None
    given = sample.task.fields.get(trace.documents)
    texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return {
        "role": trace.role,
        "sample": trace.sample,
        "query": trace.query[:TEXT],
        "answer": trace.answer[:TEXT],
        "documents": [str(text)[:TEXT] for text in texts[:MOST]],
        "claims": trace.claims[:MOST],
        "left_out": trace.refusals + trace.leaks + trace.invented,
        "reward": trace.reward,
    }
