"""Probe the isolation: real attempts to escape from the sandbox, watched from outside.

report = probe(frozenset(Layer), interpreter_sight())
report.strength, report.plan, report.findings
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from burnish.errors import SandboxError
from burnish.tools.attempts import (
    ATTEMPTS,
    FILL,
    FILL_UNNAMED,
    KEPT_IN_KERNEL,
    SCATTER,
    TRIAL,
    Finding,
    Hold,
    outside,
)
from burnish.tools.inside.confine import KEEPERS
from burnish.tools.isolation import EXTRAS, Layer, Mounts, Plan, bases
from burnish.tools.launch import run_spec, work_folder
from burnish.tools.limits import Limit, RunStatus, SandboxLimits
from burnish.tools.process import Finished, Run


class Strength(StrEnum):
    """How much a sandbox holds back, as tried on this machine."""

    STRONG = "strong"
    """Every attempt was held."""
    MEDIUM = "medium"
    """Nothing outside can be changed or reached, but some of it can be seen."""
    WEAK = "weak"
    """Something outside can be changed or reached, or a limit does not hold."""


SIGHTS = frozenset({Hold.READ, Hold.WATCH})
"""What a medium sandbox may let through: looking, not touching."""


@dataclass(frozen=True)
class Report:
    """Strength of the isolation on this machine."""

    plan: Plan
    findings: tuple[Finding, ...]
    refused: tuple[str, ...]
    """Plans that were tried first and why they did not work."""

    @property
    def breaches(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_held]

    @property
    def strength(self) -> Strength:
        if not self.breaches:
            return Strength.STRONG
        only_sights = all(finding.hold in SIGHTS for finding in self.breaches)
        return Strength.MEDIUM if only_sights else Strength.WEAK

    def holds(self, hold: Hold) -> bool:
        return all(finding.is_held for finding in self.findings if finding.hold is hold)

    @property
    def summary(self) -> str:
        """One line: the strength, the layers, and every breach."""
        breaches = "; ".join(f"{breach.hold.value}: {breach.detail}" for breach in self.breaches)
        return f"{self.strength.value} (layers: {self.plan}){': ' if breaches else ''}{breaches}"

    def __str__(self) -> str:
        """For people: the strength, the layers, and every breach."""
        lines = [f"{self.strength.value} (layers: {self.plan})"]
        lines += [
            f"  {f.hold.value}: {'held' if f.is_held else 'OPEN'}, {f.detail}"
            for f in self.findings
        ]
        return "\n".join([*lines, *(f"  not available: {line}" for line in self.refused)])


LIMITS = SandboxLimits(
    cpu_s=5, wall_s=10, memory_mb=256, disk_mb=4, files=64, threads=4, output_kb=64
)

MOST_KEPT = 4
"""A limit is not held where the kernel keeps more than this part of it beside the address space."""


def probe(wanted: frozenset[Layer], mounts: Mounts, processes: int = 1) -> Report:
    """Find the strongest plan that works here, then try to get out of it."""
    plan, refused = find_plan(wanted, mounts)
    with outside() as things:
        limits = replace(LIMITS, processes=processes)
        memory = limits.memory_mb << 20
        target = {**things.target, "memory": memory, "most_kept": memory // MOST_KEPT}
        finished = _run(plan, mounts, ATTEMPTS, limits, json.dumps(target))
        got = _results(finished)
        findings = [*things.findings(got), *_limit_findings(got, limits)]
    is_clean = finished.is_clean
    if is_clean and int(got.get("forks", "0")):
        is_clean = _run(plan, mounts, SCATTER, replace(limits, wall_s=0.5)).is_clean
    said = "nothing outlived the run" if is_clean else "a process outlived the run"
    findings.append(Finding(Hold.SURVIVE, is_clean, said))
    findings.append(_disk(plan, mounts))
    return Report(plan, tuple(findings), refused)


def find_plan(wanted: frozenset[Layer], mounts: Mounts) -> tuple[Plan, tuple[str, ...]]:
    """The strongest plan that runs ordinary code, and why stronger ones did not."""
    refused: list[str] = []
    last = SandboxError("no plan was tried")
    for base in bases(wanted):
        extras = wanted & EXTRAS if sys.platform == "linux" else frozenset()
        if os.name == "posix" and os.geteuid() != 0:
            extras -= {Layer.NOBODY}
        full = base.with_layers(extras)
        trouble = _trouble(full, mounts)
        if not trouble:
            return full, tuple(refused)
        last = SandboxError(trouble)
        refused.append(trouble)
        plan = base
        if not extras or _trouble(plan, mounts):
            continue
        for layer in sorted(extras):
            more = plan.with_layers({layer})
            plan = plan if _trouble(more, mounts) else more
        return plan, tuple(refused)
    raise last


def _trouble(plan: Plan, mounts: Mounts) -> str:
    """Why ordinary code does not run under a plan, or an empty text."""
    try:
        finished = _run(plan, mounts, TRIAL, LIMITS)
    except SandboxError as error:
        return str(error)
    if finished.ran.stdout == "written e3b0\n":
        return ""
    words = finished.ran.stderr.strip().splitlines() or [str(finished.ran)]
    return f"ordinary code fails under {plan}: {words[-1][:200]}"


def _run(plan: Plan, mounts: Mounts, code: str, limits: SandboxLimits, stdin: str = "") -> Finished:
    with work_folder(plan) as work:
        spec = run_spec(plan, mounts, limits, work, "program", code)
        return Run(plan, spec, mounts, limits, stdin=stdin.encode()).finish()


def _results(finished: Finished) -> dict[str, str]:
    try:
        got: dict[str, str] = json.loads(finished.ran.stdout)
    except ValueError:
        words = finished.ran.stderr.strip().splitlines() or [str(finished.ran)]
        raise SandboxError(f"the probe of the sandbox did not end: {words[-1][:200]}") from None
    return got


def _limit_findings(got: dict[str, str], limits: SandboxLimits) -> Iterator[Finding]:
    """Limits, as the attempts met them."""
    most_kept = (limits.memory_mb << 20) // MOST_KEPT
    taken = [f"{got['memory']} bytes"] if "memory" in got else []
    kept = {name: int(got[name]) for name in KEPT_IN_KERNEL if name in got}
    taken += [f"{size} bytes in {name}" for name, size in kept.items() if size > most_kept]
    said = f"{', '.join(taken)} could be taken" if taken else "the limit held"
    yield Finding(Hold.MEMORY, not taken, said)
    forks, most = int(got.get("forks", "0")), limits.processes + limits.threads + KEEPERS
    yield Finding(Hold.PROCESSES, forks <= most, f"{forks} processes could be started")


def _disk(plan: Plan, mounts: Mounts) -> Finding:
    """Write many times the limit, into files with names and without."""
    said = ""
    for attempt in (FILL, FILL_UNNAMED):
        ran = _run(plan, mounts, attempt, LIMITS).ran
        if ran.killed_by is Limit.DISK:
            said = said or "killed when it wrote more than it may"
            continue
        if ran.status is not RunStatus.OK:
            return Finding(Hold.DISK, False, f"the attempt to fill it {ran}")
        size, count = map(int, ran.stdout.split())
        written = f"{size >> 20} MB and {count} files could be written"
        if size >> 20 > LIMITS.disk_mb or count > LIMITS.files + 2:
            return Finding(Hold.DISK, False, written)
        said = said or written
    return Finding(Hold.DISK, True, said)
