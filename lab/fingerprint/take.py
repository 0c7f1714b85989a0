"""Take the fingerprint of the `burnish` that can be imported; a part of it, in a process of its own.

python -m lab.fingerprint.take OUT recipes tiny grpo
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.fingerprint.flow import Entry, entry
from lab.fingerprint.replies import server


def take(part: str, names: Sequence[str]) -> dict[str, list[Entry]]:
    """The flow of each name; one that fails has its error as its only entry."""
    with server() as judge:
        return {name: _flow_or_error(lambda name=name: _flow(part, name, judge)) for name in names}


def _flow(part: str, name: str, judge: str) -> list[Entry]:
    if part == "recipes":
        from lab.fingerprint.runs import recipe_flow

        return recipe_flow(name, judge)
    from lab.fingerprint import scored

    if part == "scorers":
        return scored.scorer_flow(name, judge)
    return scored.judge_flow(name) if part == "judges" else scored.function_flow(name)


def _flow_or_error(flow: Callable[[], list[Entry]]) -> list[Entry]:
    start = time.process_time()
    try:
        return flow()
    except Exception as error:
        if os.environ.get("FINGERPRINT_TRACE"):
            traceback.print_exc()
        return [entry("runs at all", exact=[f"{type(error).__name__}: {error}"[:300]])]
    finally:
        if os.environ.get("FINGERPRINT_TRACE"):
            print(f"{time.process_time() - start:.1f} s", file=sys.stderr)


def main(out: str, part: str, *names: str) -> None:
    """Write the flows of these names to a file."""
    random.seed(0)
    target = Path(out).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = take(part, names)
        os.chdir(target.parent)
    target.write_text(json.dumps({part: found}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
