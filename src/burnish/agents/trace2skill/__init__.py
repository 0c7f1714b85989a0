"""Trace2Skill: many trajectories become one skill, by patches, a merge tree and support.

    pool = read_traces("traces.jsonl")                        # or "runs/NAME"
    roles = LMRoles(JudgeModel(open_lm("http://localhost:8000/v1#m"), cache="journal.jsonl"))
    found = await distil(pool, read_skill("skills/xlsx"), roles)
    found.status, found.diff

No weights change. `evolve` also runs an agent and accepts the new skill only where it is not worse.
"""

from burnish.agents.trace2skill.analyses import parse_failures, parse_successes
from burnish.agents.trace2skill.anchoring import anchored
from burnish.agents.trace2skill.distil import Distilled, Settings, distil, unified_diff
from burnish.agents.trace2skill.edits import apply_edit, dedupe, section_bounds
from burnish.agents.trace2skill.evolve import Choice, Evolved, choose_skill, evolve, held_out
from burnish.agents.trace2skill.guards import Dropped, Sifted, enforce_pairs, sanitize
from burnish.agents.trace2skill.patches import (
    Patch,
    balanced_chunks,
    merge_by_meaning,
    merge_tree,
    united,
)
from burnish.agents.trace2skill.report import markdown, report_of
from burnish.agents.trace2skill.roles import LMRoles, Record, Refused, Roles
from burnish.agents.trace2skill.sizes import split_long
from burnish.agents.trace2skill.skill_files import (
    read_skill,
    skill_problems,
    skill_prompt,
    write_skill,
)
from burnish.agents.trace2skill.support import needed_support
from burnish.agents.trace2skill.task_agent import TaskAgent
from burnish.agents.trace2skill.traces import Pool, Trace, pool_of, read_traces

__all__ = [
    "Choice",
    "Distilled",
    "Dropped",
    "Evolved",
    "LMRoles",
    "Patch",
    "Pool",
    "Record",
    "Refused",
    "Roles",
    "Settings",
    "Sifted",
    "TaskAgent",
    "Trace",
    "anchored",
    "apply_edit",
    "balanced_chunks",
    "choose_skill",
    "dedupe",
    "distil",
    "enforce_pairs",
    "evolve",
    "held_out",
    "markdown",
    "merge_by_meaning",
    "merge_tree",
    "needed_support",
    "parse_failures",
    "parse_successes",
    "pool_of",
    "read_skill",
    "read_traces",
    "report_of",
    "sanitize",
    "section_bounds",
    "skill_problems",
    "skill_prompt",
    "split_long",
    "unified_diff",
    "united",
    "write_skill",
]
