"""A scripted author: it plays every role of Trace2Skill by rule, so that runs can be compared."""

import json
import re

from burnish.agents.trace2skill import Patch, Record, Trace, pool_of
from burnish.agents.trace2skill.patches import united
from burnish.records import Message

SKILL = {
    "SKILL.md": "---\nname: sheets\ndescription: Work on workbooks.\n---\n# Sheets\n\n"
    "## Rules\n- Be brief.\n\n## Steps\n1. Read.\n2. Write.\n"
}


def trace(number, lesson, *, passed=False, **more):
    log = (Message("user", f"Do task {number}."), Message("assistant", f"LESSON: {lesson}"))
    fields = {"id": f"trace-{number:03d}", "task_id": f"item-{number:03d}"} | more
    return Trace(instruction=f"Do task {number}.", messages=log, passed=passed, **fields)


def pool(lessons):
    return pool_of([trace(i, lesson, passed=i % 3 == 0) for i, lesson in enumerate(lessons)])


def append(content, sources, section="## Rules"):
    return {"op": "append_to_section", "file": "SKILL.md", "target_section": section,
            "content": content, "source_ids": sorted(sources)}  # fmt: skip


class StubRoles:
    """Roles by code; `merge` is deterministic."""

    def __init__(self):
        self.calls = []

    async def analyse(self, trace, files):
        self.calls.append(("analyse", trace.id))
        lesson = trace.messages[-1].text.partition("LESSON: ")[2]
        return Record(trace, ({"type": "failure_memory", "content": lesson},))

    async def propose(self, records, files):
        self.calls.append(("propose", *(one.trace.id for one in records)))
        ids = [one.trace.id for one in records]
        contents = [item["content"] for one in records for item in one.items]
        return Patch(tuple(append(f"- {text}", ids) for text in contents), source_ids=tuple(ids))

    async def merge(self, patches, files, level):
        self.calls.append(("merge", level))
        return [united(patches, level)]

    async def anchor(self, edit, text):
        self.calls.append(("anchor", edit["content"]))

    async def fix(self, files, problems):
        self.calls.append(("fix", *problems))
        return Patch()


def answer(messages, index=0):
    """The reply of a scripted language model to any prompt of Trace2Skill."""
    prompt = messages[0].text
    if prompt.startswith("You study"):
        kind = "Success" if "solved" in prompt.split("\n")[0] else "Failure"
        lesson = re.search(r"LESSON: (.*)", prompt)[1]
        return f"# {kind} Memory Item 1\n## Title\nT\n## Description\n\n## Content\n{lesson}\n"
    if prompt.startswith("You improve"):
        rows = re.findall(r'"content": "(.*?)"', prompt)
        edits = [{"op": "append_to_section", "file": "SKILL.md", "target_section": "## Rules",
                  "content": f"- {row}"} for row in rows]  # fmt: skip
        return json.dumps({"reasoning": "r", "edits": edits, "changelog_entries": ["c"]})
    if prompt.startswith("You merge"):
        rows = json.loads(re.search(r"The patches \w+:\n(\[.*?\n\])\nEnd", prompt, re.DOTALL)[1])
        joined = {}
        for row in rows:
            joined.setdefault(row["content"], []).append(row["id"])
        edits = [{"op": "append_to_section", "file": "SKILL.md", "target_section": "## Rules",
                  "content": text, "from": ids} for text, ids in sorted(joined.items())]  # fmt: skip
        return "```json\n" + json.dumps({"edits": edits}) + "\n```"
    if prompt.startswith("Write a first"):
        return "```markdown\n# Guide\n\nTasks.\n\n## Steps\n1. Do it.\n\n## Rules\n- Be brief.\n```"
    return json.dumps({"edits": []})
