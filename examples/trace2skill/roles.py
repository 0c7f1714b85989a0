"""Analysts by rule instead of a language model: what a log shows becomes a lesson.

burnish skill distill examples/trace2skill/traces.jsonl --skill examples/trace2skill/skill/tables \
    --roles examples/trace2skill/roles.py:make --out /tmp/new_skill
"""

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.trace2skill import Patch, Record, Refused, Trace, united

LESSONS = {
    "stops one row early": "- Include the last row of the table.",
    "adds text": "- Convert text numbers before you add them up.",
    "writes to the first sheet": "- Write to the sheet that the task names.",
    "screen flickers": "- Restart the machine when the screen flickers.",
}


class RuleRoles:
    """Every role of a distillation, in a few lines each."""

    async def analyse(self, trace: Trace, files: Mapping[str, str]) -> Record | Refused:
        """Lessons whose sign is in the log."""
        found = tuple({"content": text} for sign, text in LESSONS.items() if sign in trace.log)
        return Record(trace, found) if found else Refused("nothing that we know is in the log")

    async def propose(self, records: Sequence[Record], files: Mapping[str, str]) -> Patch:
        """One edit for each lesson."""
        ids = [record.trace.id for record in records]
        place = {"op": "append_to_section", "file": "SKILL.md", "target_section": "## Rules"}
        edits = [
            {**place, "content": item["content"], "source_ids": ids}
            for record in records
            for item in record.items
        ]
        return Patch(tuple(edits), source_ids=tuple(ids))

    async def merge(
        self, patches: Sequence[Patch], files: Mapping[str, str], level: int
    ) -> list[Patch]:
        """Equal edits become one, with all their trajectories."""
        return [united(patches, level)]

    async def anchor(self, edit: dict[str, Any], text: str) -> None:
        """Targets are exact here."""

    async def fix(self, files: Mapping[str, str], problems: Sequence[str]) -> Patch:
        """Nothing to repair."""
        return Patch()


def make() -> RuleRoles:
    """The roles for `--roles`."""
    return RuleRoles()
