"""What agents and judges may call: a sandbox for untrusted code, and search (`tools.search`).

sandbox = Sandbox(SandboxLimits(cpu_s=5))
sandbox.run("print(6 * 7)").stdout
sandbox.examine(Exam(code="def f(x): return x", tests=("assert f(1) == 1",))).passed
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.tools.isolation import (
        Layer as Layer,
        Limit as Limit,
        Ran as Ran,
        RunStatus as RunStatus,
        SandboxLimits as SandboxLimits,
    )
    from burnish.tools.probe import (
        Finding as Finding,
        Hold as Hold,
        Report as Report,
        Strength as Strength,
    )
    from burnish.tools.sandbox import (
        Exam as Exam,
        Failure as Failure,
        Marks as Marks,
        Sandbox as Sandbox,
    )

__getattr__, __dir__ = lazy_exports(__name__)
