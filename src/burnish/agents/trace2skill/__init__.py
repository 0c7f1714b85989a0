"""Trace2Skill: many trajectories become one skill, by patches, a merge tree and support.

No weights change. `evolve` also runs an agent and accepts the new skill only where it is not worse.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.trace2skill.distillation import (
        Distilled as Distilled,
        Settings as Settings,
        distil as distil,
        unified_diff as unified_diff,
    )
    from burnish.agents.trace2skill.edits import (
        anchored as anchored,
        apply_edit as apply_edit,
        dedupe as dedupe,
        section_bounds as section_bounds,
    )
    from burnish.agents.trace2skill.evolution import (
        Choice as Choice,
        Evolved as Evolved,
        TaskAgent as TaskAgent,
        choose_skill as choose_skill,
        evolve as evolve,
        held_out as held_out,
    )
    from burnish.agents.trace2skill.guards import (
        Dropped as Dropped,
        Sifted as Sifted,
        enforce_pairs as enforce_pairs,
        sanitize as sanitize,
    )
    from burnish.agents.trace2skill.patches import (
        Patch as Patch,
        balanced_chunks as balanced_chunks,
        merge_tree as merge_tree,
        needed_support as needed_support,
        united as united,
    )
    from burnish.agents.trace2skill.report import markdown as markdown, report_of as report_of
    from burnish.agents.trace2skill.roles import (
        LMRoles as LMRoles,
        Record as Record,
        Refused as Refused,
        Roles as Roles,
        parse_failures as parse_failures,
        parse_successes as parse_successes,
    )
    from burnish.agents.trace2skill.skill_files import (
        read_skill as read_skill,
        skill_problems as skill_problems,
        skill_prompt as skill_prompt,
        split_long as split_long,
        write_skill as write_skill,
    )
    from burnish.agents.trace2skill.traces import (
        Pool as Pool,
        Trace as Trace,
        pool_of as pool_of,
        read_traces as read_traces,
    )

__getattr__, __dir__ = lazy_exports(__name__)
