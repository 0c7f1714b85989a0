"""Skill-RM: a judge that works through a skill, as a scorer of pairs or of single responses.

Paper: Skill-RM (arXiv 2606.03980). The model gathers evidence, `readout` decides. Where we differ: a
judgement without an answer has no value instead of 0.5, references are whole tokens, and a pair is
one order of two: wrap it in `BothOrders`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from burnish.boundary import Count, NonNegative, PositiveInt, Seconds
from burnish.errors import UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Visibility
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Question, as_user
from burnish.rewards.judges.simple import DirectPair, PointRating
from burnish.rewards.judges.skill_rm.loop import (
    Judged,
    Limits,
    SandboxRunner,
    Toolbox,
    ToolUse,
    all_wording,
    cut,
    flat_message,
    judge_case,
    read_answer,
)
from burnish.rewards.judges.skill_rm.package import SkillPackage, load_skill, shipped_skills
from burnish.rewards.judges.skill_rm.readout import (
    CRITERIA,
    Answer,
    Item,
    PairAnswer,
    PointAnswer,
    Tier,
    as_pair,
    capped_score,
    decide_pair,
    decide_point,
    pair_items,
    read_call,
)
from burnish.rewards.judges.skill_rm.verifiers import Case, Mode, run_verifier
from burnish.rewards.scorer import Scope, Scorer, checked, fingerprint, gather
from burnish.seeds import digest

Method = Literal["skill", "direct", "flat", "tool"]
"""The method itself and its ablations: no skill, all resources in one prompt, Python alone."""


class SkillJudge:
    """A judge with skills; without any it is the direct judge."""

    def __init__(
        self,
        judge: JudgeModel,
        skills: Sequence[SkillPackage] = (),
        *,
        direct: Scorer,
        mode: Mode = Mode.FAIR,
        method: Method = "skill",
        limits: Limits | None = None,
        runner: SandboxRunner | None = None,
        name: str = "skill_rm",
    ) -> None:
        """`direct` judges without a skill, and where a judgement ends without an answer; its scope
        is this one's."""
        self.judge, self.skills, self.direct = judge, tuple(skills), direct
        self.mode, self.method, self.runner, self.name = mode, method, runner, name
        self.scope: Scope = direct.scope
        self.limits = limits or Limits.of(mode, is_tool=method == "tool")
        self.needs: frozenset[str] = frozenset()
        self.vote = 0

    def for_vote(self, vote: int) -> SkillJudge:
        """The same judge asked once more; with a temperature it samples again."""
        other = copy(self)
        other.vote = vote
        again = getattr(self.direct, "for_vote", None)
        other.direct = self.direct if again is None else again(vote)
        return other

    @property
    def fingerprint(self) -> str:
        hashes = [skill.hash for skill in self.skills]
        settings = (self.mode.value, self.method, self.limits, self.runner is None, self.vote)
        parts = (self.judge.fingerprint, fingerprint(self.direct), repr(settings), all_wording())
        return digest(*parts, *hashes)

    @property
    def is_direct(self) -> bool:
        """Whether nothing but the direct judge is asked."""
        has_none = self.method != "tool" and not self.skills
        return self.method == "direct" or self.mode is Mode.BASELINE or has_none

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        if self.is_direct:
            rewards = await checked(self.direct, task, responses)
            return [replace(reward, name=self.name) for reward in rewards]
        if self.scope is Scope.PAIR:
            return await self._pair(Case(task, responses))
        return await gather([partial(self._point, Case(task, [one])) for one in responses])

    async def _pair(self, case: Case) -> list[Reward]:
        if case.responses[0].text == case.responses[1].text:
            why = "both responses are the same text; nobody was asked"
            return [Reward(self.name, 0.0, reason=why)] * 2
        toolbox, judged = await self._work(case)
        evidence = self._evidence(toolbox, judged)
        if not isinstance(judged.answer, PairAnswer):
            return await self._emergency(case, judged, evidence)
        items = pair_items(toolbox.findings)
        for one in judged.answer.items:
            # Observations that rest on a rubric, a principle or a checklist that the judge opened.
            entry = toolbox.loaded_entry(one["resource"])
            if entry is not None and entry.type in CRITERIA:
                items.append(
                    Item(Tier.RUBRIC, one["criterion"], one["decision"], one["observation"])
                )
        found = decide_pair.plain([*items, Item(Tier.OPINION, "verdict", judged.answer.side)])
        said = f"decided by {found.tier.name.lower()} evidence"
        reason = "; ".join(filter(None, [said, *found.conflicts, judged.answer.rationale]))
        return as_pair(self.name, found.side, items, evidence, reason)

    async def _point(self, case: Case) -> Reward:
        toolbox, judged = await self._work(case)
        evidence = self._evidence(toolbox, judged)
        answer = judged.answer
        if not isinstance(answer, PointAnswer):
            return (await self._emergency(case, judged, evidence))[0]
        found = decide_point(toolbox.findings, answer.counts, answer.flags)
        value = found.value
        if not found.total and answer.score is not None and not found.vetoed:
            # Nothing was counted, so the judge's own number stands, under the same caps.
            ceiling = capped_score.plain(1, 1, found.flags)
            value = min(answer.score, 1.0 if ceiling is None else ceiling)
        reason = f"{found.reason}; {answer.rationale}" if answer.rationale else found.reason
        if value is None:
            unread = "the counts could not be read"
            return Reward.failed(self.name, Status.PARSE_ERROR, unread, evidence=evidence)
        return Reward(self.name, value, evidence=evidence, verdicts=found.verdicts, reason=reason)

    async def _work(self, case: Case) -> tuple[Toolbox, Judged]:
        skills = () if self.method == "tool" else self.skills
        toolbox = Toolbox(
            case, skills, self.mode, self.limits, self.runner, has_python=self.method == "tool"
        )
        if self.method == "flat":
            return toolbox, await ask_flat(self.judge, case, toolbox, vote=self.vote)
        return toolbox, await judge_case(self.judge, case, toolbox, skills, vote=self.vote)

    async def _emergency(
        self, case: Case, judged: Judged, evidence: tuple[Evidence, ...]
    ) -> list[Reward]:
        """The direct judge where an answer could not be read; no value where that fails too."""
        if judged.status is not Status.PARSE_ERROR:
            # The model could not be reached; asking it something else would not help.
            failed = Reward.failed(self.name, judged.status, judged.reason, evidence=evidence)
            return [failed] * len(case.responses)
        rewards = await checked(self.direct, case.task, case.responses)
        why = f"{judged.reason}; the direct judge was asked instead"
        return [
            replace(
                reward,
                name=self.name,
                evidence=(*evidence, *reward.evidence),
                reason=f"{why}: {reward.reason}" if reward.reason else why,
            )
            for reward in rewards
        ]

    def _evidence(self, toolbox: Toolbox, judged: Judged) -> tuple[Evidence, ...]:
        """The summary, then every reply with the tool calls that followed it."""
        tools = [(used.step, used.as_evidence()) for used in toolbox.trace]
        trace = [evidence for step, evidence in tools if step == 0]
        for place, reply in enumerate(judged.replies, start=1):
            cost_usd = 0.0 if reply.is_cached else reply.cost_usd
            trace.append(Evidence(reply.model, reply.text, cost_usd=cost_usd))
            is_last = place == len(judged.replies)
            trace += [e for step, e in tools if step == place or (is_last and step > place)]
        told: dict[str, Any] = {
            "method": self.method,
            "mode": self.mode.value,
            "skills": {skill.name: skill.hash for skill in self.skills},
            "opened": [skill.name for skill in toolbox.opened],
            "resources": toolbox.loaded,
            "answer": judged.source or "none",
            "steps": judged.steps,
            "prompt_tokens": sum(reply.prompt_tokens for reply in judged.replies),
            "completion_tokens": sum(reply.completion_tokens for reply in judged.replies),
            "seconds": round(sum(reply.seconds for reply in judged.replies), 3),
            "finish": [reply.finish.value for reply in judged.replies],
            "refused": sum(used.is_refused for used in toolbox.trace),
            "oracle": sum(one.visibility is Visibility.ORACLE for one in trace),
        }
        summary = msgspec.json.encode(told).decode()
        return (Evidence("skill_rm", summary, error=judged.reason or None), *trace)


async def ask_flat(judge: JudgeModel, case: Case, toolbox: Toolbox, *, vote: int = 0) -> Judged:
    """One question with everything in it, and the judge's ordinary repair."""
    most = 18_000 if toolbox.mode is Mode.OPERATIONAL else 12_000
    text = cut(await pasted(case, toolbox), most)
    messages = as_user(flat_message(case, text, 6_000), case.task.media, case.mark)

    def read(reply: str) -> Answer:
        return read_answer(case, read_call(reply, case.shown))

    said = await judge.ask(Question("skill_flat", messages, case.about, vote), read)
    source = "" if said.verdict is None else "flat"
    replies = list(said.replies)
    return Judged(said.verdict, source, said.status, said.reason, len(replies), replies)


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


class SkillOptions(Options, frozen=True):
    name: str = "skill_rm"
    skills: tuple[str, ...] | None = None
    """Folders, zips or names of shipped skills; all shipped ones by default, none: the direct
    judge."""
    scope: Literal["pair", "point"] = "pair"
    mode: Literal["baseline", "fair", "operational"] = "fair"
    method: Method = "skill"
    """`direct`, `flat` and `tool` are the ablations."""
    python: bool = True
    """Whether the judge may run Python in the sandbox."""
    allow_weak_sandbox: bool = False
    steps: PositiveInt | None = None
    """5 in fair mode, 6 in operational mode, 4 for `tool`."""
    tokens: Count | None = None
    """What the judge may write for one case, all steps together; no limit by default."""
    time_s: Seconds | None = None
    """Wall clock of one case: 900."""
    cost_usd: NonNegative | None = None
    """What a server may charge for one case; no limit by default."""


def build(judge: JudgeModel, options: Mapping[str, Any]) -> SkillJudge:
    """The scorer; a pair is one order, `burnish.rewards.judges.build` puts both around it."""
    settings = read_options("skill_rm", options, SkillOptions)
    mode = Mode(settings.mode)
    limits = Limits.of(mode, is_tool=settings.method == "tool")
    stated = {key: getattr(settings, key) for key in ("steps", "tokens", "time_s", "cost_usd")}
    given = {key: value for key, value in stated.items() if value is not None}
    words = tuple(shipped_skills()) if settings.skills is None else settings.skills
    skills = [load_skill(word) for word in words]
    if len({skill.name for skill in skills}) < len(skills):
        raise UserError(f"judge 'skill_rm': got skills {', '.join(words)}, expected each name once")
    is_pair = settings.scope == "pair"
    direct: Scorer = DirectPair(judge) if is_pair else PointRating(judge)
    runner = SandboxRunner(allow_weak=settings.allow_weak_sandbox) if settings.python else None
    return SkillJudge(
        judge,
        skills,
        direct=direct,
        mode=mode,
        method=settings.method,
        limits=replace(limits, **given),
        runner=runner,
        name=settings.name,
    )
