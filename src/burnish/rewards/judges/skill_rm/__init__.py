"""Skill-RM: reward evaluation as an agent skill, with modes, verifiers and a trace.

    judge = JudgeModel(lm)
    scorer = build_judge("skill_rm", judge, {"skills": ["code"], "mode": "fair"})
    rewards = await scorer.score(task, [a, b])

A skill is a folder or zip that says how one family of tasks is judged; `burnish skill validate` lists
what is wrong with one. Card: `docs/methods/skill_rm.md`.
"""

from burnish.rewards.judges.skill_rm.judge import SkillJudge, SkillOptions, build
from burnish.rewards.judges.skill_rm.package import (
    SkillPackage,
    check_skill,
    load_skill,
    problems_of,
    shipped_skills,
)
from burnish.rewards.judges.skill_rm.readout import (
    Item,
    Tier,
    capped_score,
    decide_pair,
    decide_point,
)
from burnish.rewards.judges.skill_rm.resources import CAPS, Mode, Resource
from burnish.rewards.judges.skill_rm.rl import SkillChecks, score_function
from burnish.rewards.judges.skill_rm.tools import Limits, Ran, SandboxRunner, Toolbox
from burnish.rewards.judges.skill_rm.verifiers import Finding, register_verifier, run_verifier

__all__ = [
    "CAPS",
    "Finding",
    "Item",
    "Limits",
    "Mode",
    "Ran",
    "Resource",
    "SandboxRunner",
    "SkillChecks",
    "SkillJudge",
    "SkillOptions",
    "SkillPackage",
    "Tier",
    "Toolbox",
    "build",
    "capped_score",
    "check_skill",
    "decide_pair",
    "decide_point",
    "load_skill",
    "problems_of",
    "register_verifier",
    "run_verifier",
    "score_function",
    "shipped_skills",
]
