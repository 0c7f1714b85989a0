"""A skill's verifiers alone, without a model: a verifier in front of a judge, or a cheap reward.

    verifier = SkillChecks(load_skill("instruction_following"), scope=Scope.POINT)
    scorer = FirstDecisive(verifier, judge)             # the judge is asked only where it abstains

Everything that is run is operational evidence. The read-out is the judge's: a pair by the first tier
that agrees, a single response by counts, caps and vetoes. Nothing decided is an abstention.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from burnish.errors import UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict
from burnish.rewards.judges.skill_rm.cases import Case
from burnish.rewards.judges.skill_rm.entries import Mode
from burnish.rewards.judges.skill_rm.package import SkillPackage
from burnish.rewards.judges.skill_rm.readout import decide_pair, decide_point, pair_items
from burnish.rewards.judges.skill_rm.verifiers import Finding, make_verifier, run_verifier
from burnish.rewards.scorer import Scope, gather
from burnish.seeds import digest


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
        opposite = tuple(replace(v, value=0.0 - (v.value or 0.0)) for v in verdicts)
        return [
            Reward(self.name, side, evidence=evidence, verdicts=seen, reason=reason)
            for side, seen in ((float(found.side), verdicts), (float(-found.side), opposite))
        ]

    async def _one(self, case: Case) -> Reward:
        findings = await self._findings(case)
        found = decide_point(findings, (), ())
        if not found.total or found.value is None:
            return self._open(findings)
        reason = f"{found.satisfied} of {found.total} requirements met"
        reason += f"; capped for {', '.join(found.flags)}" if found.flags else ""
        reason += f"; vetoed by {found.vetoed}" if found.vetoed else ""
        return Reward(
            self.name,
            found.value,
            evidence=_evidence(findings),
            verdicts=found.verdicts,
            reason=reason,
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
