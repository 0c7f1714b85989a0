"""The skill as a reward in training: one async function of the verl shape, failures masked.

    compute_score = score_function(scorer)
    await compute_score("ifeval", text, ground_truth, {"prompt": "...", "index": 7})
    # {"score": 0.75, "valid": 1.0, "satisfied": 3.0, "total": 4.0, "steps": 4.0, ...}

A judgement that failed has `valid` 0 and the score NaN: a trainer must leave that sample out of its
group (advantage 0), and one that forgets to is stopped by its first NaN instead of learning from a
made-up number. The published code returns 0.5. For other scorers, and for verl's own pieces, there
is `burnish.engines.as_verl`: the same shape, whose failures have `valid` 0 too and the score 0.0, or
NaN as here with `missing="nan"`. This one adds the skill's counts. `verified` is the same reward without a model, for a
recipe.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from burnish.errors import UserError
from burnish.records import Evidence, Message, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.judges.skill_rm.package import SkillPackage, load_skill
from burnish.rewards.judges.skill_rm.readout import decide_pair, decide_point, mirrored, pair_items
from burnish.rewards.judges.skill_rm.resources import Mode
from burnish.rewards.judges.skill_rm.verifiers import Case, Finding, make_verifier, run_verifier
from burnish.rewards.scorer import Scope, Scorer, checked, gather
from burnish.seeds import digest

COUNTERS = ("steps", "refused", "oracle", "prompt_tokens", "completion_tokens")
ScoreFunction = Callable[..., Awaitable[dict[str, float]]]


def score_function(
    scorer: Scorer, *, deadline_s: float = 300.0, failed: float = math.nan
) -> ScoreFunction:
    """`compute_score(data_source, solution_str, ground_truth, extra_info, **kw)` for a scorer.

    `extra_info` holds `prompt` (text or messages) and any field that the scorer needs; the ground
    truth becomes the field `answer`, which no judge sees unless a resource declares it. `failed`
    stands in `score` where `valid` is 0, for trainers that cannot carry a NaN as far as their mask.
    """
    if scorer.scope is not Scope.POINT:
        raise UserError(
            f"reward '{scorer.name}' has scope {scorer.scope.value}; expected point. "
            "Wrap a pair judge in Anchor."
        )

    async def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> dict[str, float]:
        task = _task(data_source, ground_truth, extra_info or {})
        response = Response(digest(task.id, solution_str), solution_str)
        (reward,) = await checked(scorer, task, [response], deadline_s=deadline_s)
        return flat(reward, failed)

    return compute_score


def flat(reward: Reward, failed: float = math.nan) -> dict[str, float]:
    """A reward as plain numbers, the same keys for every sample."""
    known = [verdict.value for verdict in reward.verdicts if verdict.value is not None]
    told = _summary(reward)
    oracle = sum(one.visibility is Visibility.ORACLE for one in reward.evidence)
    return {
        "score": failed if reward.value is None else reward.value,
        "valid": float(reward.value is not None),
        "satisfied": float(sum(value >= 1 for value in known)),
        "total": float(len(known)),
        "tool_calls": float(sum(one.source.startswith("tool:") for one in reward.evidence)),
        **{name: float(told.get(name, 0)) for name in COUNTERS},
        "oracle": float(oracle),
    }


def _summary(reward: Reward) -> dict[str, Any]:
    first = next((one for one in reward.evidence if one.source == "skill_rm"), None)
    told: dict[str, Any] = json.loads(first.observation) if first else {}
    return told


def _task(source: str, ground_truth: Any, extra: Mapping[str, Any]) -> Task:
    prompt = extra.get("prompt", "")
    messages: tuple[Message, ...]
    if isinstance(prompt, str):
        messages = (Message("user", prompt),)
    elif isinstance(prompt, list | tuple):
        messages = tuple(Message(str(turn["role"]), str(turn["content"])) for turn in prompt)
    else:
        raise UserError(
            f"extra_info['prompt'] is {type(prompt).__name__}; expected text or messages"
        )
    fields = {key: value for key, value in extra.items() if key not in ("prompt", "index")}
    if ground_truth is not None:
        fields["answer"] = ground_truth
    index = extra.get("index")
    name = f"{source}/{index}" if index is not None else f"{source}/{digest(repr(messages))}"
    return Task(name, messages, fields)


async def verified(
    task: Task,
    response: Response,
    skill: str = "instruction_following",
    only: Sequence[str] = (),
) -> Reward:
    """A skill's verifiers as a reward of `kind = "function"`: counts, caps and vetoes, no model."""
    (reward,) = await _checks(skill, tuple(only)).score(task, [response])
    return reward


@cache
def _checks(skill: str, only: tuple[str, ...]) -> SkillChecks:
    return SkillChecks(load_skill(skill), only=only)


class SkillChecks:
    """The runtime resources of one skill as a scorer of pairs or single responses."""

    def __init__(
        self,
        skill: SkillPackage,
        *,
        scope: Scope = Scope.POINT,
        only: Sequence[str] = (),
        name: str = "skill_checks",
        weight: float = 1.0,
    ) -> None:
        """`only`: ids of the verifiers to run; all of them by default."""
        if scope not in (Scope.PAIR, Scope.POINT):
            raise UserError(f"reward '{name}': scope is {scope.value}; expected pair or point")
        there = [e for e in skill.seen_in(Mode.OPERATIONAL).resources if e.is_runtime]
        missing = sorted(set(only) - {entry.id for entry in there})
        if missing or not there:
            known = ", ".join(entry.id for entry in there) or "none"
            what = f"no verifier '{missing[0]}'" if missing else "no verifiers"
            raise UserError(f"reward '{name}': skill '{skill.name}' has {what}; it has {known}")
        self.entries = tuple(entry for entry in there if not only or entry.id in only)
        self.skill, self.scope, self.name, self.weight = skill, scope, name, weight
        scorers = [make_verifier(entry) for entry in self.entries]
        self.needs: frozenset[str] = frozenset().union(*(scorer.needs for scorer in scorers))

    @property
    def fingerprint(self) -> str:
        return digest(self.skill.hash, self.scope.value, *(entry.id for entry in self.entries))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        if self.scope is Scope.PAIR:
            findings = await self._findings(Case.of(task, responses))
            return self._pair(findings)
        return await gather([partial(self._one, Case.of(task, [one])) for one in responses])

    async def _findings(self, case: Case) -> list[Finding]:
        return [await run_verifier(entry, case) for entry in self.entries]

    def _pair(self, findings: Sequence[Finding]) -> list[Reward]:
        items, evidence = pair_items(findings), _evidence(findings)
        found = decide_pair(items)
        if not found.side:
            return [self._open(findings)] * 2
        verdicts = tuple(Verdict(i.criterion, float(i.side), reason=i.observation) for i in items)
        reason = f"decided by {found.tier.name.lower()} evidence"
        first = Reward(
            self.name, float(found.side), evidence=evidence, verdicts=verdicts, reason=reason
        )
        return [first, mirrored(first)]

    async def _one(self, case: Case) -> Reward:
        findings = await self._findings(case)
        found = decide_point(findings, (), ())
        if not found.total or found.value is None:
            return self._open(findings)
        return Reward(
            self.name,
            found.value,
            evidence=_evidence(findings),
            verdicts=found.verdicts,
            reason=found.reason,
        )

    def _open(self, findings: Sequence[Finding]) -> Reward:
        """No decision: an outage where one was, else an abstention."""
        errors = [finding.error for finding in findings if finding.error]
        status = Status.INFRA_ERROR if errors and len(errors) == len(findings) else Status.ABSTAIN
        reason = errors[0] if errors else "no verifier came to a decision"
        return Reward.failed(self.name, status, str(reason), evidence=_evidence(findings))


def _evidence(findings: Sequence[Finding]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"verifier:{f.entry.id}", f.observation, f.visibility, error=f.error)
        for f in findings
    )
