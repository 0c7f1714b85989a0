"""What agents and judges may call: a sandbox for untrusted code, and search (`tools.search`).

sandbox = Sandbox(SandboxLimits(cpu_s=5))
sandbox.run("print(6 * 7)").stdout
sandbox.examine(Exam(code="def f(x): return x", tests=("assert f(1) == 1",))).passed
"""

from burnish.tools.attempts import Finding, Hold
from burnish.tools.examine import Exam, Failure, Marks
from burnish.tools.isolation import Layer
from burnish.tools.limits import Limit, Ran, RunStatus, SandboxLimits
from burnish.tools.probe import Report, Strength
from burnish.tools.sandbox import Sandbox

__all__ = [
    "Exam",
    "Failure",
    "Finding",
    "Hold",
    "Layer",
    "Limit",
    "Marks",
    "Ran",
    "Report",
    "RunStatus",
    "Sandbox",
    "SandboxLimits",
    "Strength",
]
