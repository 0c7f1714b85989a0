"""Skills on disk, scripted judges and short ways to a judgement, for the tests of Skill-RM."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import yaml

from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Response, Reward, Task
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.simple import DirectPair, PointRating
from burnish.rewards.judges.skill_rm import (
    Mode,
    Ran,
    SandboxRunner,
    SkillJudge,
    SkillPackage,
    load_skill,
)
from burnish.rewards.scorer import checked

MANUAL = "---\nname: demo\ndescription: A demo skill.\n---\nLook closely.\n"


def entry(id: str, **more: Any) -> dict[str, Any]:
    """A file entry with sensible fields."""
    return {
        "id": id, "type": "rubric", "implementation_kind": "text", "path": f"{id}.md",
        "decision_impact": "evidence", "leakage_level": "sample_visible",
        "allowed_setting": "skill_fair",
    } | more  # fmt: skip


def verifier(id: str, kind: str = "reference_match", **more: Any) -> dict[str, Any]:
    """A runtime entry that may read the reference."""
    return {
        "id": id, "type": "verifier", "implementation_kind": kind, "decision_impact": "strong",
        "hard_or_soft": "hard", "inputs_required": ["responses", "reference"],
        "leakage_level": "oracle_only", "allowed_setting": "skill_operational",
    } | more  # fmt: skip


def write_skill(
    folder: Path,
    files: Mapping[str, str] | None = None,
    resources: Sequence[Mapping[str, Any]] = (),
    runtime: Sequence[Mapping[str, Any]] = (),
    manual: str = MANUAL,
) -> Path:
    """A skill folder; each file entry gets a file with its id in it unless `files` has one."""
    folder.mkdir(parents=True, exist_ok=True)
    bank = {"resources": list(map(dict, resources)), "runtime_resources": list(map(dict, runtime))}
    named = {row["path"]: f"text of {row['id']}\n" for row in resources if "path" in row}
    all_files = {"SKILL.md": manual, "resources.yaml": yaml.safe_dump(bank)} | named
    for name, text in (all_files | dict(files or {})).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def a_skill(folder: Path, **parts: Any) -> SkillPackage:
    return load_skill(write_skill(folder, **parts))


def zipped(folder: Path, target: Path, top: str = "") -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_file():
                archive.write(path, top + path.relative_to(folder).as_posix())
    return target


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


def a_task(**fields: Any) -> Task:
    return Task("t1", (Message("user", "What is 2 + 2?"),), fields, labels=("reference", "answer"))


def answers(*texts: str) -> list[Response]:
    return [Response(f"r{i}", text) for i, text in enumerate(texts)]


class EchoRunner(SandboxRunner):
    """Stands for the sandbox: says what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.cases: list[Mapping[str, object]] = []

    async def run(self, code: str, case: Mapping[str, object], *, timeout_s: float) -> Ran:
        self.cases.append(case)
        return Ran(f"ran {len(code)} characters")


def a_judge(
    script: Sequence[str] | Callable[[Sequence[Message], int], str],
    skills: Sequence[SkillPackage] = (),
    *,
    scope: str = "pair",
    mode: Mode = Mode.FAIR,
    **more: Any,
) -> tuple[SkillJudge, ScriptedLM]:
    lm = ScriptedLM(script)
    model = JudgeModel(lm)
    direct = DirectPair(model) if scope == "pair" else PointRating(model)
    return SkillJudge(model, skills, direct=direct, mode=mode, **more), lm


def judged(judge: SkillJudge, task: Task, *texts: str) -> list[Reward]:
    return anyio.run(checked, judge, task, answers(*texts))


def summary(reward: Reward) -> dict[str, Any]:
    """The first piece of evidence, which sums the judgement up."""
    assert reward.evidence[0].source == "skill_rm"
    told: dict[str, Any] = json.loads(reward.evidence[0].observation)
    return told
