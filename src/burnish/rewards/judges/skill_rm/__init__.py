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
    from burnish.rewards.judges.skill_rm.judge import (
        SkillJudge as SkillJudge,
        SkillOptions as SkillOptions,
        build as build,
    )
    from burnish.rewards.judges.skill_rm.loop import (
        Limits as Limits,
        Ran as Ran,
        SandboxRunner as SandboxRunner,
        Toolbox as Toolbox,
    )
    from burnish.rewards.judges.skill_rm.package import (
        SkillPackage as SkillPackage,
        check_skill as check_skill,
        load_skill as load_skill,
        problems_of as problems_of,
        shipped_skills as shipped_skills,
    )
    from burnish.rewards.judges.skill_rm.readout import (
        Item as Item,
        SkillChecks as SkillChecks,
        Tier as Tier,
        capped_score as capped_score,
        decide_pair as decide_pair,
        decide_point as decide_point,
        score_function as score_function,
    )
    from burnish.rewards.judges.skill_rm.verifiers import (
        CAPS as CAPS,
        Finding as Finding,
        Mode as Mode,
        Resource as Resource,
        register_verifier as register_verifier,
        run_verifier as run_verifier,
    )

__getattr__, __dir__ = lazy_exports(__name__)
