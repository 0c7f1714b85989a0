"""Python for a judge, in the sandbox, over the texts that it sees anyway.

    ran = await SandboxRunner().run(code, visible_case(prompt, {"A": "...", "B": "..."}), timeout_s=3)

The code finds `prompt` and `responses` (by label) and the counting functions of the checks: `words`,
`sentences`, `paragraphs`, `lines`, `bullets`, `headings`, `count_occurrences`, `constraint_tools`.
It finds neither fields of the task nor files of this machine.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from burnish.errors import SandboxError
from burnish.rewards.checks import texts

MEMORY_MB = 256
OUTPUT_KB = 64
_PRELUDE = """\
def _open_case():
    import json
    with open("case.json", encoding="utf-8") as file:
        case = json.load(file)
    with open("texts.txt", encoding="utf-8") as file:
        exec(compile(file.read(), "texts", "exec"), globals())
    with open("code.txt", encoding="utf-8") as file:
        code = file.read()
    globals().update(prompt=case["prompt"], responses=case["responses"])
    return compile(code, "code", "exec")


exec(_open_case())
"""


class Ran(NamedTuple):
    """What code printed, or why it did not end well."""

    output: str
    error: str = ""


class CodeRunner(Protocol):
    """Anything that runs code apart from this process."""

    async def run(self, code: str, case: Mapping[str, object], *, timeout_s: float) -> Ran: ...


def visible_case(prompt: str, responses: Mapping[str, str]) -> dict[str, object]:
    """All that code may look at."""
    return {"prompt": prompt, "responses": dict(responses)}


class SandboxRunner:
    """Runs code in `burnish.tools.sandbox`, whose walls are tried out before the first run."""

    def __init__(self, *, allow_weak: bool = False) -> None:
        self.allow_weak = allow_weak

    async def run(self, code: str, case: Mapping[str, object], *, timeout_s: float) -> Ran:
        """What the code printed; trouble of the sandbox itself is an error, never a finding."""
        from burnish.tools.limits import SandboxLimits
        from burnish.tools.sandbox import Sandbox

        limits = SandboxLimits(
            cpu_s=math.ceil(timeout_s),
            wall_s=timeout_s,
            memory_mb=MEMORY_MB,
            output_kb=OUTPUT_KB,
        )
        files = {
            "case.json": json.dumps(case),
            "texts.txt": inspect.getsource(texts),
            "code.txt": code.encode("utf-8", "replace").decode(),
        }
        try:
            ran = await Sandbox(limits, allow_weak=self.allow_weak).arun(_PRELUDE, files=files)
        except SandboxError as error:
            return Ran("", f"the sandbox failed: {' '.join(str(error).split())}")
        if ran.status == "ok":
            return Ran(ran.stdout)
        last = (ran.stderr.strip().splitlines() or [""])[-1]
        return Ran(ran.stdout, f"{ran}: {last}" if last else str(ran))
