"""What agents and judges may call: a sandbox for untrusted code, and search (`tools.search`).

sandbox = Sandbox(SandboxLimits(cpu_s=5))
sandbox.run("print(6 * 7)").stdout
sandbox.examine(Exam(code="def f(x): return x", tests=("assert f(1) == 1",))).passed
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.tools.isolation import Layer as Layer
    from burnish.tools.isolation import Limit as Limit
    from burnish.tools.isolation import Ran as Ran
    from burnish.tools.isolation import RunStatus as RunStatus
    from burnish.tools.isolation import SandboxLimits as SandboxLimits
    from burnish.tools.probe import Finding as Finding
    from burnish.tools.probe import Hold as Hold
    from burnish.tools.probe import Report as Report
    from burnish.tools.probe import Strength as Strength
    from burnish.tools.sandbox import Exam as Exam
    from burnish.tools.sandbox import Failure as Failure
    from burnish.tools.sandbox import Marks as Marks
    from burnish.tools.sandbox import Sandbox as Sandbox

__getattr__, __dir__ = lazy_exports(__name__)
