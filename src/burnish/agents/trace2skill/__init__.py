"""Trace2Skill: many trajectories become one skill, by patches, a merge tree and support.

No weights change. `evolve` also runs an agent and accepts the new skill only where it is not worse.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.trace2skill.distillation import Distilled as Distilled
    from burnish.agents.trace2skill.distillation import Settings as Settings
    from burnish.agents.trace2skill.distillation import distil as distil
    from burnish.agents.trace2skill.distillation import unified_diff as unified_diff
    from burnish.agents.trace2skill.edits import anchored as anchored
    from burnish.agents.trace2skill.edits import apply_edit as apply_edit
    from burnish.agents.trace2skill.edits import dedupe as dedupe
    from burnish.agents.trace2skill.edits import section_bounds as section_bounds
    from burnish.agents.trace2skill.evolution import Choice as Choice
    from burnish.agents.trace2skill.evolution import Evolved as Evolved
    from burnish.agents.trace2skill.evolution import TaskAgent as TaskAgent
    from burnish.agents.trace2skill.evolution import choose_skill as choose_skill
    from burnish.agents.trace2skill.evolution import evolve as evolve
    from burnish.agents.trace2skill.evolution import held_out as held_out
    from burnish.agents.trace2skill.guards import Dropped as Dropped
    from burnish.agents.trace2skill.guards import Sifted as Sifted
    from burnish.agents.trace2skill.guards import enforce_pairs as enforce_pairs
    from burnish.agents.trace2skill.guards import sanitize as sanitize
    from burnish.agents.trace2skill.patches import Patch as Patch
    from burnish.agents.trace2skill.patches import balanced_chunks as balanced_chunks
    from burnish.agents.trace2skill.patches import merge_tree as merge_tree
    from burnish.agents.trace2skill.patches import needed_support as needed_support
    from burnish.agents.trace2skill.patches import united as united
    from burnish.agents.trace2skill.report import markdown as markdown
    from burnish.agents.trace2skill.report import report_of as report_of
    from burnish.agents.trace2skill.roles import LMRoles as LMRoles
    from burnish.agents.trace2skill.roles import Record as Record
    from burnish.agents.trace2skill.roles import Refused as Refused
    from burnish.agents.trace2skill.roles import Roles as Roles
    from burnish.agents.trace2skill.roles import parse_failures as parse_failures
    from burnish.agents.trace2skill.roles import parse_successes as parse_successes
    from burnish.agents.trace2skill.skill_files import read_skill as read_skill
    from burnish.agents.trace2skill.skill_files import skill_problems as skill_problems
    from burnish.agents.trace2skill.skill_files import skill_prompt as skill_prompt
    from burnish.agents.trace2skill.skill_files import split_long as split_long
    from burnish.agents.trace2skill.skill_files import write_skill as write_skill
    from burnish.agents.trace2skill.traces import Pool as Pool
    from burnish.agents.trace2skill.traces import Trace as Trace
    from burnish.agents.trace2skill.traces import pool_of as pool_of
    from burnish.agents.trace2skill.traces import read_traces as read_traces

__getattr__, __dir__ = lazy_exports(__name__)
