"""Checks in front of the judge: the first that tells two responses apart decides (OpenRS).

Where two responses are equal on all checks, the judge goes on. In training the checks are a reward
of their own beside the judge's (`anchored`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from burnish.arguments import as_list, as_word, refused
from burnish.boundary import NonNegative, Share, public
from burnish.errors import UserError
from burnish.records import Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.checks.language import DETECT, LANGUAGES, READ, is_language
from burnish.rewards.combine import Anchor, Combination, Weighted
from burnish.rewards.judges.benchmarks import is_many, of_pairs
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.openrs.meta_rubric import language_of, number_in, prompt, templates_hash
from burnish.rewards.judges.prompting import JudgeReply, Question, as_user, mark_for, request_of
from burnish.rewards.judges.reading import Maybe, Table, choice, loose_text, read_marked, whole
from burnish.rewards.pool import Outcome
from burnish.rewards.scorer import Scope, Scorer, checked, gather
from burnish.seeds import digest


class Verifiable(Combination):
    """A pair scorer made of point checks: the first on which the two differ decides, +1 and -1.

    Equal on all of them, or none applies: no value, so that `FirstDecisive` asks the next scorer. A
    check that failed gives its status where no other decides.
    """

    def __init__(self, checks: Sequence[Scorer], *, name: str = "verifiable") -> None:
        super().__init__(name, checks, Scope.PAIR)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        said: list[list[Reward]] = [[] for _ in responses]
        notes: list[str] = []
        status = Status.ABSTAIN
        for check in self.children:
            both = await checked(check, task, responses)
            for parts, reward in zip(said, both, strict=True):
                parts.append(reward)
            first, second = both[0].value, both[1].value
            if first is not None and second is not None and first != second:
                lead = math.copysign(1.0, first - second)
                reason = f"{check.name}: {first:g} against {second:g}"
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


_NEITHER = frozenset({"TIE", "S", "SAME", "EQUAL", "A=B", "DRAW", "ABSTAIN"})
TwoOrderRule = Literal["reference", "votes"]


@public
def two_order_verdict(
    forward_backward: object, min_score: NonNegative = 0.0, rule: TwoOrderRule = "reference"
) -> Any:
    """`good`, `bad`, `same` or `error` from the scores in both orders.

    `forward_backward` is (f, b), or a list of such pairs: f with the chosen response as A, b with
    the rejected one as A. `reference`: good where f > m and b <= -m, bad where f <= -m and b > m,
    as published; it is not antisymmetric at 0. `votes`: see `two_order_votes`. A missing score in
    either order is `error`.
    """

    def verdict(first: Any, second: Any) -> str:
        forward, backward = number_in(first), number_in(second)
        if forward is None or backward is None:
            return "error"
        if rule == "votes":
            # Each order has a vote beyond min_score.
            votes = [(one > min_score) - (one < -min_score) for one in (forward, backward)]
            return ("same", "good", "bad")[(votes[0] > votes[1]) - (votes[0] < votes[1])]
        if forward > min_score and backward <= -min_score:
            return "good"
        return "bad" if forward <= -min_score and backward > min_score else "same"

    return of_pairs("forward_backward", forward_backward, verdict)


@public
def two_order_votes(
    forward_backward: object, min_score: NonNegative = 0.0, rule: TwoOrderRule = "votes"
) -> Any:
    """The recommended rule: each order has one vote, and exchanging the responses exchanges
    `good` and `bad`. Arguments as in `two_order_verdict`."""
    return two_order_verdict.plain(forward_backward, min_score, rule)


def two_order_strict(winners: Any) -> Any:
    """`win` or `lose` only where both orders name the same response, else `tie`.

    `winners` is one pair of verdicts, or a list of them, each in the letters that its order showed:
    the chosen response is A in the first and B in the second; a tie or an abstention names neither.
    A verdict that is none in either order (None, or the `error` of a parser) is `error`.
    """

    def verdict(*said: Any) -> str:
        words = [word.strip().upper() if isinstance(word, str) else "" for word in said]
        if any(word not in {"A", "B", *_NEITHER} for word in words):
            return "error"
        return {"AB": "win", "BA": "lose"}.get("".join(words), "tie")

    return of_pairs("winners", winners, verdict)


def one_vs_n(results: Any) -> Any:
    """One response against several: any -1 is `Loss`, all 1 is `Win`, anything else `Tie`.

    `results` are 1, 0 and -1, one an opponent; a list of such lists gives a list. None is a
    comparison that failed: `error`, unless another one is lost anyway.
    """
    if is_many(results, "results"):
        return [one_vs_n(row) for row in results]
    numbers = [number_in(result) for result in as_list("results", results, least=1)]
    if not {*numbers} <= {-1, 0, 1, None}:
        raise refused("results", results, "1, 0 or -1 for each opponent, None where it failed")
    if -1 in numbers:
        return "Loss"
    if None in numbers:
        return "error"
    return "Tie" if 0 in numbers else "Win"


def verifiable_verdict(scores_chosen_rejected: Any) -> Any:
    """`chosen_better` or `rejected_better` by the higher score; `equal`: the judge goes on.

    One pair of scores or a list of them; `error` where either is missing.
    """

    def verdict(first: Any, second: Any) -> str:
        chosen, rejected = number_in(first), number_in(second)
        if chosen is None or rejected is None:
            return "error"
        if chosen == rejected:
            return "equal"
        return "chosen_better" if chosen > rejected else "rejected_better"

    return of_pairs("scores_chosen_rejected", scores_chosen_rejected, verdict)


class GroundTruth:
    """-1, 0 or 1 by a model that sees the reference: oracle evidence, declared as such.

    A task without the field has no value here.
    """

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()

    name = "ground_truth"

    def __init__(self, judge: JudgeModel) -> None:
        self.judge = judge

    @property
    def fingerprint(self) -> str:
        return digest(self.judge.fingerprint, templates_hash(), self.name)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        reference = task.fields.get("answer")
        if reference is None or not str(reference).strip():
            reason = "the task has no reference in 'answer'"
            return [Reward.failed(self.name, Status.ABSTAIN, reason) for _ in responses]
        calls = [partial(self._one, task, response, str(reference)) for response in responses]
        return await gather(calls)

    async def _one(self, task: Task, response: Response, reference: str) -> Reward:
        question, mark = _question("ground_truth", task, response, reference)
        judge_reply = await self.judge.ask(question, partial(read_marked, mark=mark, table=_SCORE))
        evidence = tuple(replace(e, visibility=Visibility.ORACLE) for e in judge_reply.evidence)
        if judge_reply.verdict is None:
            return replace(judge_reply.failed(self.name), evidence=evidence)
        value, reason = judge_reply.verdict
        return Reward(self.name, value, evidence=evidence, reason=reason)


LETTERS = 20
"""Texts with fewer are not judged."""


class LanguageMatchConfig(CheckConfig, frozen=True, tag="language_match"):
    """A class of its own: checks are found by that of their settings."""

    confidence: Share = 0.7
    timeout_s: float = 5.0


class LanguageMatch(IsolatedCheck[LanguageMatchConfig]):
    """The response is in the language of the request: 1, in another: 0, unsure: no value.

    The task's field `response_language`, an ISO 639-1 code, is for requests that ask for another one.
    Both languages are detected in a child process.
    """

    child = DETECT

    def __init__(self) -> None:
        super().__init__(LanguageMatchConfig())

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        wanted = task.fields.get("response_language")
        if wanted is not None:
            known = (*LANGUAGES, "zh")
            as_word(f"task {task.id}: field 'response_language'", wanted, known)
        texts = [task.prompt, *(response.text for response in responses)]
        asked, *found = await self.isolated([{"text": text[:READ]} for text in texts])
        if wanted is None and (wanted := self._detected(asked)) is None:
            return [self.abstained("the request's language cannot be told") for _ in responses]
        return [self._reward(guess, str(wanted)) for guess in found]

    def _reward(self, guess: Outcome, wanted: str) -> Reward:
        if guess.status != Status.OK:
            return self.undecided(guess, "the language could not be detected")
        found = self._detected(guess)
        if found is None:
            return self.abstained("the response's language cannot be told")
        matches = is_language(found, wanted) or is_language(wanted, found[:2])
        return self.decided(float(matches), f"looks like '{found}'; wanted '{wanted}'")

    def _detected(self, guess: Outcome) -> str | None:
        """The language, where the text is long enough and the detector sure enough."""
        if guess.status != Status.OK or guess.value["probability"] < self.config.confidence:
            return None
        # A Chinese character says as much about its language as several letters do.
        language = str(guess.value["language"])
        least = LETTERS / (4 if language.startswith("zh") else 1)
        return language if guess.value["letters"] >= least else None


class Constraints:
    """The share of all stated constraints that a response keeps.

    Instructions with an id (those of IFEval) are checked by rule; constraints in words, in the field
    `constraints`, are put to the judge one by one. One that cannot be decided leaves no value.
    """

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()
    name = "constraints"

    def __init__(self, judge: JudgeModel | None = None) -> None:
        self.judge = judge
        self.rules = Instructions(InstructionsConfig(mode="mean"))

    @property
    def fingerprint(self) -> str:
        judge = "" if self.judge is None else self.judge.fingerprint
        return digest(judge, templates_hash(), self.rules.fingerprint, self.name)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        worded = self._worded(task)
        by_rule: Sequence[Reward | None] = [None] * len(responses)
        if task.fields.get("instruction_id_list"):
            by_rule = await checked(self.rules, task, responses)
        rewards = []
        for response, ruled in zip(responses, by_rule, strict=True):
            calls = [partial(self._ask, task, response, text) for text in worded]
            said = await gather(calls) if calls else []
            rewards.append(self._reward(ruled, list(zip(worded, said, strict=True))))
        return rewards

    def _reward(
        self, ruled: Reward | None, judge_reply: Sequence[tuple[str, JudgeReply[tuple[float, str]]]]
    ) -> Reward:
        if ruled is None and not judge_reply:
            return Reward.failed(self.name, Status.ABSTAIN, "the task states no constraints")
        if ruled is not None and not ruled.verdicts:
            return Reward.failed(self.name, ruled.status, ruled.reason)
        evidence = list(ruled.evidence) if ruled else []
        verdicts = list(ruled.verdicts) if ruled else []
        status = Status.OK if ruled is None else ruled.status
        for text, one in judge_reply:
            places = tuple(range(len(evidence), len(evidence) + len(one.replies)))
            value, reason = (None, one.reason) if one.verdict is None else one.verdict
            verdicts.append(Verdict(text, value, evidence=places, reason=reason))
            evidence += [replace(e, visibility=Visibility.BENCHMARK) for e in one.evidence]
            status = status if one.verdict is not None or status is not Status.OK else one.status
        more: dict[str, Any] = {"evidence": tuple(evidence), "verdicts": tuple(verdicts)}
        kept = [verdict.value for verdict in verdicts if verdict.value is not None]
        if len(kept) < len(verdicts):
            open_ones = len(verdicts) - len(kept)
            reason = f"{open_ones} of {len(verdicts)} constraints undecided"
            status = Status.ABSTAIN if status is Status.OK else status
            return Reward.failed(self.name, status, reason, **more)
        reason = f"{sum(kept):g} of {len(kept)} constraints kept"
        return Reward(self.name, sum(kept) / len(kept), reason=reason, **more)

    async def _ask(
        self, task: Task, response: Response, text: str
    ) -> JudgeReply[tuple[float, str]]:
        if self.judge is None:
            raise UserError(
                f"reward '{self.name}': task {task.id} has constraints in words; give a judge, or "
                "instruction ids that a rule can check."
            )
        question, mark = _question("constraint", task, response, text)
        return await self.judge.ask(question, partial(read_marked, mark=mark, table=_SATISFIED))

    def _worded(self, task: Task) -> list[str]:
        """Constraints in words: a list of texts or of tables with a `rule`, or that as JSON."""
        given = task.fields.get("constraints") or []
        try:
            listed = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            listed = [given]
        texts = [c.get("rule") if isinstance(c, Mapping) else c for c in listed]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError(
                f"task {task.id}: field 'constraints' holds {given!r:.60}; expected a list of "
                "texts, or of tables with a text 'rule'."
            )
        return [str(text) for text in texts]


def _question(kind: str, task: Task, response: Response, reference: str) -> tuple[Question, str]:
    request = request_of(task)
    mark = mark_for(request, response.text, reference)
    blanks = {"request": request, "first": response.text, "reference": reference}
    text = prompt(kind, language_of(request), mark, **blanks)
    asked = as_user(text, task.media, mark)
    return Question(f"openrs {kind}", asked, (task.id, response.id)), mark


_YES_OR_NO = choice({"yes": 1.0, "true": 1.0, "是": 1.0, "no": 0.0, "false": 0.0, "否": 0.0})
_SCORE = Table(
    lambda score, reason: (float(score), reason),
    open=True,
    score=whole(-1, 1),
    reason=Maybe(loose_text),
)
_SATISFIED = Table(
    lambda satisfied, reason: (satisfied, reason),
    open=True,
    satisfied=lambda key, value: _YES_OR_NO(key, str(value)),
    reason=Maybe(loose_text),
)
