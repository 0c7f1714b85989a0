"""Fair mode on IFEval prompts: demands read from the request and checked in the sandbox.

    python -m lab.skill_rm.ifeval

A scripted judge drives the real loop in fair mode: it opens a skill, views its one resource, runs it
in the sandbox over prompt and responses, and answers by what was printed. It never sees the
benchmark's list of instructions; the official checks only say afterwards who was right.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio

from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Response, Task
from burnish.rewards import Scope
from burnish.rewards.checks.instructions import read_instructions
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.simple import DirectPair
from burnish.rewards.judges.skill_rm import (
    Mode,
    SandboxRunner,
    SkillChecks,
    SkillJudge,
    SkillPackage,
    load_skill,
)
from burnish.rewards.scorer import Scorer, gather
from lab.skill_rm.judgebench import Control, coin, longer, sides
from lab.skill_rm.report import DATA, HOME, RESULTS, markdown, row, tally, write
from lab.skill_rm.variants import pair_for

Pairs = list[tuple[Task, list[Response], str]]


def load() -> tuple[Pairs, int]:
    """Pairs by rule, the better response first, and how many prompts gave none."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(DATA / "ifeval" / "test.parquet").to_pylist()
    pairs: Pairs = []
    for one in rows:
        instructions = read_instructions(one["instruction_id_list"], one["kwargs"])
        made = pair_for(instructions, one["key"])
        if made is None:
            continue
        fields = {"instruction_id_list": one["instruction_id_list"], "kwargs": one["kwargs"]}
        task = Task(str(one["key"]), (Message("user", one["prompt"]),), fields)
        pairs.append((task, [Response("x", made.good), Response("y", made.bad)], made.broken))
    return pairs, len(rows) - len(pairs)


def scripted_judge(skill: SkillPackage) -> SkillJudge:
    """A judge that always does the same four things."""
    code = skill.texts["demands.py"]

    def say(messages: Sequence[Message], index: int) -> str:
        step = sum(message.role == "assistant" for message in messages)
        if step == 0:
            return _call("use_skill", name=skill.name)
        if step == 1:
            return _call("view_resource", id="demands", reason="it reads the demands")
        if step == 2:
            return _call("python_sandbox", code=code, reason="count what is kept")
        found: dict[str, int] = {}
        for line in messages[-1].content.splitlines():
            if line.startswith('{"label": '):
                told = json.loads(line)
                found[told["label"]] = told["kept"]
        kept = found
        verdict = "Tie"
        if set(kept) == {"A", "B"} and kept["A"] != kept["B"]:
            verdict = max(kept, key=lambda label: kept[label])
        return _call("final_answer", verdict=verdict, rationale=f"demands kept: {kept}")

    judge = JudgeModel(ScriptedLM(say))
    return SkillJudge(
        judge,
        [skill],
        direct=DirectPair(judge),
        mode=Mode.FAIR,
        runner=SandboxRunner(allow_weak=True),
    )


def _call(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


async def _concurrently(judge: Scorer, pairs: Pairs) -> list[float | None]:
    rows = await gather([partial(sides, judge, [pair]) for pair in pairs], limit=2)
    return [one for found in rows for one in found]


def main() -> int:
    pairs, left_out = load()
    skill = load_skill(HOME / "skills" / "stated_demands")
    operational = SkillChecks(
        load_skill("instruction_following"), scope=Scope.PAIR, only=["constraint_checks"]
    )
    judges: dict[str, Scorer] = {
        "longer wins": Control("longer wins", longer),
        "coin": Control("coin", coin),
        "fair: stated demands, sandbox": scripted_judge(skill),
        "operational: official list of demands": operational,
    }
    found = {name: anyio.run(_concurrently, judge, pairs) for name, judge in judges.items()}
    rows = [row(name, tally(values)) for name, values in found.items()]
    fair = found["fair: stated demands, sandbox"]
    by_demand = []
    for kind, _ in Counter(kind for *_, kind in pairs).most_common():
        own = [value for value, (*_, broken) in zip(fair, pairs, strict=True) if broken == kind]
        by_demand.append({"broken demand": kind, **row("fair", tally(own))})
    text = (
        f"# IFEval, {len(pairs)} pairs: fair mode against heuristics\n\n"
        "Responses are made by rule (`lab/skill_rm/variants.py`), because our copy of IFEval has "
        "prompts only: one keeps every demand by the official checks, the other breaks exactly one. "
        f"{left_out} of 400 prompts gave no such pair and are left out. The fair judge reads demands "
        "out of the request by patterns and checks them in the sandbox; the operational row is the official check itself and therefore a ceiling.\n\n"
        f"{markdown(rows)}\n\nThe fair judge, by the demand that the worse response breaks:\n\n"
        f"{markdown(by_demand)}\n\nSkill: `stated_demands`, sha-256 `{skill.hash}`. Repeat: "
        "`python -m lab.skill_rm.ifeval`.\n"
    )
    write("ifeval", text, rows + by_demand, RESULTS)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
