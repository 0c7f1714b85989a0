"""What the `mathematics` reward does in a checking process: compare with math-verify.

The process loads this file by its path and imports nothing of burnish, which would take half as long
again as math-verify itself.
"""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import Any


def equal_to_any(answer: str, golds: list[str], explicit: bool) -> dict[str, Any]:
    """Whether math-verify finds the answer equal to one of the references.

    math-verify's own time limits are off (they need signals of a main thread and hide what they
    stop); the pool's clock stands in for them. Its errors are raised, not read as "unequal".
    """
    from math_verify import verify

    parse = _parser()
    read = parse(f"${answer}$" if explicit else answer)
    parsed = [(gold, parse(f"${gold}$")) for gold in golds]
    readable = [expressions for _, expressions in parsed if expressions]
    equal = bool(read) and any(
        verify(gold, read, timeout_seconds=None, raise_on_error=True) for gold in readable
    )
    shown = read[-1] if read and isinstance(read[-1], str) else answer
    return {"equal": equal, "read": shown if read else "", "unreadable_gold": not readable}


def prepare_child() -> None:
    """Import math-verify and build its grammar tables before the first job."""
    equal_to_any("\\frac{1}{2}", ["0.5"], True)


@cache
def _parser() -> Any:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return partial(parse, extraction_config=targets, parsing_timeout=None, raise_on_error=True)
