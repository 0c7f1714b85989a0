"""Checks in front of the judge: the first that tells two responses apart decides (OpenRS).

    gate = Verifiable([GroundTruth(judge), LanguageMatch(), Constraints(judge)])
    scorer = FirstDecisive(gate, BothOrders(OpenRS(judge)))

Where two responses are equal on all checks, the judge goes on. In training the checks are a reward
of their own beside the judge's (`anchored`).
"""

from __future__ import annotations

from collections.abc import Sequence

from burnish.errors import UserError
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.combine import Combination, Weighted
from burnish.rewards.judges.openrs.outcomes import verifiable_verdict
from burnish.rewards.pair_scorers import Anchor
from burnish.rewards.scorer import Scope, Scorer, checked


class Verifiable(Combination):
    """A pair scorer made of point checks: the first on which the two differ decides, +1 and -1.

    Equal on all of them, or none applies: no value, so that `FirstDecisive` asks the next scorer. A
    check that failed gives its status where no other decides.
    """

    def __init__(self, checks: Sequence[Scorer], *, name: str = "verifiable") -> None:
        for check in checks:
            if check.scope is not Scope.POINT:
                raise UserError(
                    f"reward '{name}': '{check.name}' is of scope {check.scope.value}; expected "
                    "checks that score one response at a time."
                )
        if not checks:
            raise UserError(f"reward '{name}' has no checks; expected at least one.")
        super().__init__(name, checks, Scope.PAIR)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        said: list[list[Reward]] = [[] for _ in responses]
        notes: list[str] = []
        status = Status.ABSTAIN
        for check in self.children:
            both = await checked(check, task, responses)
            for parts, reward in zip(said, both, strict=True):
                parts.append(reward)
            values = (both[0].value, both[1].value)
            verdict = verifiable_verdict(values)
            if verdict in ("chosen_better", "rejected_better"):
                lead = 1.0 if verdict == "chosen_better" else -1.0
                reason = f"{check.name}: {values[0]:g} against {values[1]:g}"
                return [
                    Reward(self.name, sign * lead, parts=tuple(parts), reason=reason)
                    for sign, parts in zip((1.0, -1.0), said, strict=True)
                ]
            silent = next((reward for reward in both if reward.value is None), None)
            notes.append(f"{check.name}: {f'no value ({silent.reason})' if silent else 'equal'}")
            if silent is not None and status is Status.ABSTAIN:
                status = silent.status
        reason = "undecided; " + ", ".join(notes)
        return [Reward.failed(self.name, status, reason, parts=tuple(parts)) for parts in said]


def anchored(
    pair: Scorer,
    reference: Response | str,
    verifiable: Scorer | None = None,
    *,
    mu: float = 1.0,
    name: str = "openrs",
) -> Scorer:
    """The reward for training: s_pair(y, anchor) + mu * s_verifiable(y).

    `reference` is a response, or the name of a task field that holds one. A part without a value
    leaves the total without one, so that the rollout is masked.
    """
    against = Anchor(pair, reference)
    if verifiable is None:
        return against
    weights = {against.name: 1.0, verifiable.name: mu}
    return Weighted([against, verifiable], weights=weights, name=name)
