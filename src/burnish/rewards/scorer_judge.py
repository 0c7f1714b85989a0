"""Any pair scorer as the judge of `versus` (BRPO): an OpenRS judge against a group's own response.

    judge = ScorerJudge(DirectPair(JudgeModel(lm)))
    scorer = VersusReference(judge, seed=0)

`versus` asks in both orders and votes by itself, so the pair scorer is given in one order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Self

from burnish.errors import UserError
from burnish.records import Evidence, Message, Response, Reward, Task, Visibility
from burnish.rewards.combine import can_vote, next_vote
from burnish.rewards.fingerprint import fingerprint
from burnish.rewards.pair_judges import ExplainingJudge, Opinion, Pair
from burnish.rewards.pair_scorers import compare
from burnish.rewards.scorer import Scope, Scorer, gather
from burnish.seeds import digest


class ScorerJudge(ExplainingJudge):
    """A pair scorer asked for opinions; v and -v are the two scores.

    A scorer with `for_vote(n)` is asked as another voter where the same pair comes again; any other
    one repeats itself, and `versus` takes one vote of it.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        task: Task | None = None,
        responses: Sequence[Response] = (),
        concurrency: int = 64,
    ) -> None:
        if scorer.scope is not Scope.PAIR:
            raise UserError(
                f"judge of pairs: '{scorer.name}' has scope {scorer.scope.value}; expected pair. "
                'A reward of single texts is used with judge = { kind = "score", ... }'
            )
        self.scorer, self.name, self.needs = scorer, scorer.name, scorer.needs
        self.concurrency = concurrency
        self._task = task
        self._known = {response.text: response for response in reversed(responses)}

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.scorer)

    @property
    def repeats_itself(self) -> bool:
        """True where further votes on a pair would be the first one again."""
        return not can_vote(self.scorer)

    def about(self, task: Task, responses: Sequence[Response]) -> Self:
        """With the whole conversation and the responses' own ids."""
        return type(self)(self.scorer, task=task, responses=responses, concurrency=self.concurrency)

    async def opinions(self, pairs: Sequence[Pair]) -> list[Opinion]:
        seen: Counter[Pair] = Counter()
        calls = []
        for pair in pairs:
            calls.append(partial(self._one, pair, seen[pair]))
            seen[pair] += 1
        return await gather(calls, limit=self.concurrency) if calls else []

    async def _one(self, pair: Pair, vote: int) -> Opinion:
        prompt, first, second = pair
        scorer = next_vote(self.scorer, vote) if vote else self.scorer
        task = self._task or Task("pair", (Message("user", prompt),))
        reward, _ = await compare(scorer, task, self._response(first), self._response(second))
        return _opinion(reward)

    def _response(self, text: str) -> Response:
        known = self._known.get(text)
        return known or Response(digest(text.encode("utf-8", "surrogatepass")), text)


def _opinion(reward: Reward) -> Opinion:
    """What a pair scorer said of the response that was shown first."""
    words = [evidence.observation for evidence in _evidence(reward)]
    said = "\n\n".join(words) or reward.reason
    if reward.value is None:
        return Opinion.none(reward.status, reward.reason, said)
    saw_label = any(e.visibility is Visibility.ORACLE for e in _evidence(reward))
    sight = Visibility.ORACLE if saw_label else Visibility.VISIBLE
    return Opinion((reward.value, 0.0 - reward.value), said, visibility=sight)


def _evidence(reward: Reward) -> list[Evidence]:
    return [*reward.evidence, *(one for part in reward.parts for one in _evidence(part))]
