"""Skill-RM: a judge that works through a skill, as a scorer of pairs or of single responses.

    scorer = SkillJudge(judge, [load_skill("code")], mode=Mode.FAIR, direct=direct)
    rewards = await scorer.score(task, [a, b])
    rewards[0].value, rewards[0].verdicts, rewards[0].evidence     # +1 / -1 / 0, criteria, the trace

Paper: Skill-RM (arXiv 2606.03980). The model gathers evidence, `readout` decides. Where we differ: a
judgement without an answer has no value instead of 0.5, references are whole tokens, and a pair is
one order of two: wrap it in `BothOrders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from burnish.records import Evidence, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.fingerprint import fingerprint
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.skill_rm.cases import Case
from burnish.rewards.judges.skill_rm.code_runner import CodeRunner
from burnish.rewards.judges.skill_rm.entries import Mode
from burnish.rewards.judges.skill_rm.flat import ask_flat
from burnish.rewards.judges.skill_rm.loop import Judged, judge_case
from burnish.rewards.judges.skill_rm.package import SkillPackage
from burnish.rewards.judges.skill_rm.prompting import all_wording
from burnish.rewards.judges.skill_rm.protocol import PairAnswer, PointAnswer
from burnish.rewards.judges.skill_rm.readout import (
    CRITERIA,
    Item,
    Tier,
    capped_score,
    decide_pair,
    decide_point,
    pair_items,
)
from burnish.rewards.judges.skill_rm.tools import Limits, Toolbox
from burnish.rewards.scorer import Scope, Scorer, checked, gather
from burnish.seeds import digest

Method = Literal["skill", "direct", "flat", "tool"]
"""The method itself and its ablations: no skill, all resources in one prompt, Python alone."""
TOOL_STEPS = 4
"""Steps of a judge that has Python and no skill."""


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
        runner: CodeRunner | None = None,
        name: str = "skill_rm",
    ) -> None:
        """`direct` judges without a skill, and where a judgement ends without an answer; its scope
        is this one's."""
        self.judge, self.skills, self.direct = judge, tuple(skills), direct
        self.mode, self.method, self.runner, self.name = mode, method, runner, name
        self.scope: Scope = direct.scope
        self.limits = limits or Limits.of(mode)
        if method == "tool" and limits is None:
            self.limits = replace(self.limits, steps=TOOL_STEPS)
        self.needs: frozenset[str] = frozenset()
        self.vote = 0

    def for_vote(self, vote: int) -> SkillJudge:
        """The same judge asked once more; with a temperature it draws anew."""
        other = copy(self)
        other.vote = vote
        again = getattr(self.direct, "for_vote", None)
        other.direct = self.direct if again is None else again(vote)
        return other

    @property
    def fingerprint(self) -> str:
        """Changes with the model, the packages, the mode, the limits and the wording."""
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
            return await self._pair(Case.of(task, responses))
        return await gather([partial(self._point, Case.of(task, [one])) for one in responses])

    async def _pair(self, case: Case) -> list[Reward]:
        if case.responses[0].text == case.responses[1].text:
            same = Reward(
                self.name, 0.0, reason="both responses are the same text; nobody was asked"
            )
            return [same, same]
        toolbox, judged = await self._work(case)
        evidence = self._evidence(toolbox, judged)
        if not isinstance(judged.answer, PairAnswer):
            return await self._emergency(case, judged, evidence)
        items = [*pair_items(toolbox.findings), *_rubric_items(toolbox, judged.answer)]
        found = decide_pair([*items, Item(Tier.OPINION, "verdict", judged.answer.side)])
        reason = "; ".join(
            [f"decided by {found.tier.name.lower()} evidence", *found.conflicts]
            + ([judged.answer.rationale] if judged.answer.rationale else [])
        )
        verdicts = tuple(Verdict(i.criterion, float(i.side), reason=i.observation) for i in items)
        first = Reward(
            self.name, float(found.side), evidence=evidence, verdicts=verdicts, reason=reason
        )
        return [first, _other_side(first)]

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
            ceiling = capped_score(1, 1, found.flags)
            value = min(answer.score, 1.0 if ceiling is None else ceiling)
        said = [f"{found.satisfied} of {found.total} requirements met"]
        said += [f"capped for {', '.join(found.flags)}"] if found.flags else []
        said += [f"vetoed by {found.vetoed}"] if found.vetoed else []
        said += [answer.rationale] if answer.rationale else []
        if value is None:
            reason = "the counts could not be read"
            return Reward.failed(self.name, Status.PARSE_ERROR, reason, evidence=evidence)
        return Reward(
            self.name,
            value,
            evidence=evidence,
            verdicts=found.verdicts,
            reason="; ".join(said),
        )

    async def _work(self, case: Case) -> tuple[Toolbox, Judged]:
        """One judgement by this judge's method."""
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
            return [failed for _ in case.responses]
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
        return (self._summary(toolbox, judged, trace), *trace)

    def _summary(self, toolbox: Toolbox, judged: Judged, trace: Sequence[Evidence]) -> Evidence:
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
        return Evidence("skill_rm", msgspec.json.encode(told).decode(), error=judged.reason or None)


def _rubric_items(toolbox: Toolbox, answer: PairAnswer) -> list[Item]:
    """The judge's observations that rest on a rubric, a principle or a checklist it opened."""
    found = []
    for one in answer.items:
        entry = toolbox.loaded_entry(one.resource)
        if entry is not None and entry.type in CRITERIA:
            found.append(Item(Tier.RUBRIC, one.criterion, one.side, one.observation))
    return found


def _other_side(reward: Reward) -> Reward:
    """The second response's reward: the same story with the opposite sign."""
    verdicts = tuple(
        replace(verdict, value=None if verdict.value is None else 0.0 - verdict.value)
        for verdict in reward.verdicts
    )
    value = None if reward.value is None else 0.0 - reward.value
    return replace(reward, value=value, verdicts=verdicts)
