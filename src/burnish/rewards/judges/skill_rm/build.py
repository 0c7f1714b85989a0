"""The judge by the name `skill_rm`, from options that a person writes.

build(judge, {"skills": ["code"], "mode": "operational"})
build(judge, {"scope": "point", "skills": ["my_skill.zip"], "steps": 7})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from burnish.errors import UserError
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.options import Options, read_options
from burnish.rewards.judges.pair import DirectPair
from burnish.rewards.judges.point import PointRating
from burnish.rewards.judges.skill_rm.code_runner import SandboxRunner
from burnish.rewards.judges.skill_rm.entries import Mode
from burnish.rewards.judges.skill_rm.judge import TOOL_STEPS, Method, SkillJudge
from burnish.rewards.judges.skill_rm.package import SkillPackage, load_skill, shipped_skills
from burnish.rewards.judges.skill_rm.tools import Limits
from burnish.rewards.scorer import Scorer

Count = Annotated[int, Meta(ge=0)]


class SkillOptions(Options, frozen=True):
    """Options of `skill_rm`."""

    name: str = "skill_rm"
    skills: tuple[str, ...] | None = None
    """Folders, zips or names of shipped skills; all shipped ones by default, none: the direct
    judge."""
    scope: Literal["pair", "point"] = "pair"
    mode: Literal["baseline", "fair", "operational"] = "fair"
    method: Method = "skill"
    """`direct`, `flat` and `tool` are the ablations."""
    python: bool = True
    """Whether the judge may run Python in the sandbox."""
    allow_weak_sandbox: bool = False
    steps: Annotated[int, Meta(ge=1)] | None = None
    """5 in fair mode, 6 in operational mode, 4 for `tool`."""
    resources: Count | None = None
    """How many resources may be opened: 4 and 5."""
    resource_chars: Annotated[int, Meta(ge=1)] | None = None
    """8,000 and 10,000."""
    run_calls: Count | None = None
    """How many verifiers may be run: 0 and 3."""
    sandbox_calls: Count | None = None
    """3."""


_LIMITS = ("steps", "resources", "resource_chars", "run_calls", "sandbox_calls")


def build(judge: JudgeModel, options: Mapping[str, Any]) -> SkillJudge:
    """The scorer; a pair is one order, `burnish.rewards.judges.build` puts both around it."""
    settings = read_options("skill_rm", options, SkillOptions)
    mode = Mode(settings.mode)
    limits = Limits.of(mode)
    if settings.method == "tool":
        limits = replace(limits, steps=TOOL_STEPS)
        if not settings.python:
            raise UserError("judge 'skill_rm': method 'tool' without python has no tool at all")
    given = {key: getattr(settings, key) for key in _LIMITS if getattr(settings, key) is not None}
    is_pair = settings.scope == "pair"
    direct: Scorer = DirectPair(judge) if is_pair else PointRating(judge)
    runner = SandboxRunner(allow_weak=settings.allow_weak_sandbox) if settings.python else None
    return SkillJudge(
        judge,
        _skills(settings),
        direct=direct,
        mode=mode,
        method=settings.method,
        limits=replace(limits, **given),
        runner=runner,
        name=settings.name,
    )


def _skills(settings: SkillOptions) -> list[SkillPackage]:
    words = tuple(shipped_skills()) if settings.skills is None else settings.skills
    packages = [load_skill(word) for word in words]
    names = [package.name for package in packages]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"judge 'skill_rm': two skills are named '{twice[0]}'; give one of them")
    return packages
