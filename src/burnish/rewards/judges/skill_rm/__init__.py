"""Skill-RM: reward evaluation as an agent skill, with modes, verifiers and a trace.

    judge = JudgeModel(lm)
    scorer = build_judge("skill_rm", judge, {"skills": ["code"], "mode": "fair"})
    rewards = await scorer.score(task, [a, b])

A skill is a folder or zip that says how one family of tasks is judged; `burnish skill validate` lists
what is wrong with one. Card: `docs/methods/skill_rm.md`.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.skill_rm.judge import SkillJudge as SkillJudge
    from burnish.rewards.judges.skill_rm.judge import SkillOptions as SkillOptions
    from burnish.rewards.judges.skill_rm.judge import build as build
    from burnish.rewards.judges.skill_rm.loop import Limits as Limits
    from burnish.rewards.judges.skill_rm.loop import Ran as Ran
    from burnish.rewards.judges.skill_rm.loop import SandboxRunner as SandboxRunner
    from burnish.rewards.judges.skill_rm.loop import Toolbox as Toolbox
    from burnish.rewards.judges.skill_rm.package import SkillPackage as SkillPackage
    from burnish.rewards.judges.skill_rm.package import check_skill as check_skill
    from burnish.rewards.judges.skill_rm.package import load_skill as load_skill
    from burnish.rewards.judges.skill_rm.package import problems_of as problems_of
    from burnish.rewards.judges.skill_rm.package import shipped_skills as shipped_skills
    from burnish.rewards.judges.skill_rm.readout import Item as Item
    from burnish.rewards.judges.skill_rm.readout import SkillChecks as SkillChecks
    from burnish.rewards.judges.skill_rm.readout import Tier as Tier
    from burnish.rewards.judges.skill_rm.readout import capped_score as capped_score
    from burnish.rewards.judges.skill_rm.readout import decide_pair as decide_pair
    from burnish.rewards.judges.skill_rm.readout import decide_point as decide_point
    from burnish.rewards.judges.skill_rm.readout import score_function as score_function
    from burnish.rewards.judges.skill_rm.verifiers import CAPS as CAPS
    from burnish.rewards.judges.skill_rm.verifiers import Finding as Finding
    from burnish.rewards.judges.skill_rm.verifiers import Mode as Mode
    from burnish.rewards.judges.skill_rm.verifiers import Resource as Resource
    from burnish.rewards.judges.skill_rm.verifiers import register_verifier as register_verifier
    from burnish.rewards.judges.skill_rm.verifiers import run_verifier as run_verifier

__getattr__, __dir__ = lazy_exports(__name__)
