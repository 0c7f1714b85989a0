"""The ablation without an agent: every resource of a mode pasted into one prompt.

    judged = await ask_flat(judge, case, toolbox)

In operational mode verifiers are run beforehand and their findings are pasted too.
"""

from __future__ import annotations

from burnish.records import Message
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.questions import Question, Unreadable
from burnish.rewards.judges.skill_rm.cases import Case
from burnish.rewards.judges.skill_rm.entries import Mode
from burnish.rewards.judges.skill_rm.loop import Judged, read_answer
from burnish.rewards.judges.skill_rm.prompting import flat_message
from burnish.rewards.judges.skill_rm.protocol import Answer, Broken, read_call
from burnish.rewards.judges.skill_rm.tools import Toolbox, ToolUse, cut
from burnish.rewards.judges.skill_rm.verifiers import run_verifier

RESOURCE_CHARS = {Mode.FAIR: 12_000, Mode.OPERATIONAL: 18_000}
SAMPLE_CHARS = 6_000


async def ask_flat(judge: JudgeModel, case: Case, toolbox: Toolbox, *, vote: int = 0) -> Judged:
    """One question with everything in it, and the judge's ordinary repair."""
    text = cut(await pasted(case, toolbox), RESOURCE_CHARS[toolbox.mode])
    message = Message("user", flat_message(case, text, SAMPLE_CHARS))

    def read(reply: str) -> Answer:
        call = read_call(reply, case.shown)
        if isinstance(call, Broken):
            raise Unreadable(call.why)
        if call.tool != "final_answer":
            raise Unreadable(f"the tool is {call.tool!r:.60}; expected final_answer")
        answer, why = read_answer(case, call)
        if answer is None:
            raise Unreadable(why)
        return answer

    heard = await judge.ask(Question("skill_flat", (message,), case.about, vote), read)
    source = "" if heard.verdict is None else "flat"
    replies = list(heard.replies)
    return Judged(heard.verdict, source, heard.status, heard.reason, len(replies), replies)


async def pasted(case: Case, toolbox: Toolbox) -> str:
    """Procedures, texts and findings of every skill, as the mode may see them.

    They are only shown: what comes of them is the judge's opinion, as the ablation wants it.
    """
    blocks: list[str] = []
    for skill in toolbox.skills.values():
        blocks.append(skill.procedure)
        for entry in skill.resources:
            tool, text = "view_resource", skill.texts.get(entry.path, "")
            if entry.is_runtime:
                finding = await run_verifier(entry, case)
                tool, text = "run_resource", f"decision: {finding.decision}\n{finding.observation}"
            where = {"id": f"{skill.name}/{entry.id}"}
            used = ToolUse(step=0, tool=tool, arguments=where, visibility=entry.visibility)
            toolbox.trace.append(used)
            blocks.append(f"[{entry.id}]\n{text}")
    return "\n\n".join(blocks)
