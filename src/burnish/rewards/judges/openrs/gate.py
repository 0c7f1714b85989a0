"""Checks in front of the judge: the first that tells two responses apart decides (OpenRS).

    gate = Verifiable([GroundTruth(judge), LanguageMatch(), Constraints(judge)])
    scorer = FirstDecisive(gate, BothOrders(OpenRS(judge)))

Where two responses are equal on all checks, the judge goes on. In training the checks are a reward
of their own beside the judge's (`anchored`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from msgspec.structs import replace

from burnish.arguments import as_list, as_number, as_word, refused
from burnish.errors import UserError
from burnish.records import Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.checks.language import DETECT, LANGUAGES, READ, is_language
from burnish.rewards.combine import Anchor, Combination, Weighted
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.openrs.aggregate import number_in
from burnish.rewards.judges.openrs.meta_rubric import language_of, prompt, templates_hash
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


_NEITHER = frozenset({"TIE", "S", "SAME", "EQUAL", "A=B", "DRAW", "ABSTAIN"})
TwoOrderRule = Literal["reference", "votes"]


def two_order_verdict(
    forward_backward: Any, min_score: float = 0.0, rule: TwoOrderRule = "reference"
) -> Any:
    """`good`, `bad`, `same` or `error` from the scores in both orders.

    `forward_backward` is (f, b), or a list of such pairs: f with the chosen response as A, b with
    the rejected one as A. `reference`: good where f > m and b <= -m, bad where f <= -m and b > m,
    as published; it is not antisymmetric at 0. `votes`: see `two_order_votes`. A missing score in
    either order is `error`.
    """
    as_word("rule", rule, get_args(TwoOrderRule))
    min_score = as_number("min_score", min_score, low=0)
    what = "forward_backward"
    if _is_many(forward_backward, what):
        return [two_order_verdict(pair, min_score, rule) for pair in forward_backward]
    forward, backward = (number_in(score) for score in _two(forward_backward, what))
    if forward is None or backward is None:
        return "error"
    if rule == "votes":
        lead = _vote(forward, min_score) - _vote(backward, min_score)
        return "good" if lead > 0 else "bad" if lead < 0 else "same"
    if forward > min_score and backward <= -min_score:
        return "good"
    return "bad" if forward <= -min_score and backward > min_score else "same"


def two_order_votes(
    forward_backward: Any, min_score: float = 0.0, rule: TwoOrderRule = "votes"
) -> Any:
    """The recommended rule: each order has one vote, and exchanging the responses exchanges
    `good` and `bad`. Arguments as in `two_order_verdict`."""
    return two_order_verdict(forward_backward, min_score, rule)


def two_order_strict(winners: Any) -> Any:
    """`win` or `lose` only where both orders name the same response, else `tie`.

    `winners` is one pair of verdicts, or a list of them, each in the letters that its order showed:
    the chosen response is A in the first and B in the second; a tie or an abstention names neither.
    A verdict that is none in either order (None, or the `error` of a parser) is `error`.
    """
    if _is_many(winners, "winners"):
        return [two_order_strict(pair) for pair in winners]
    first, second = (_winner(said) for said in _two(winners, "winners"))
    if first is None or second is None:
        return "error"
    return {"AB": "win", "BA": "lose"}.get(first + second, "tie")


def one_vs_n(results: Any) -> Any:
    """One response against several: any -1 is `Loss`, all 1 is `Win`, anything else `Tie`.

    `results` are 1, 0 and -1, one an opponent; a list of such lists gives a list. None is a
    comparison that failed: `error`, unless another one is lost anyway.
    """
    if _is_many(results, "results"):
        return [one_vs_n(row) for row in results]
    numbers = [number_in(result) for result in as_list("results", results, least=1)]
    for number in numbers:
        if number not in (-1, 0, 1, None):
            raise refused("results", number, "1, 0 or -1 for each opponent, None where it failed")
    if any(number == -1 for number in numbers):
        return "Loss"
    if None in numbers:
        return "error"
    return "Win" if all(number == 1 for number in numbers) else "Tie"


def verifiable_verdict(scores_chosen_rejected: Any) -> Any:
    """`chosen_better` or `rejected_better` by the higher score; `equal`: the judge goes on.

    One pair of scores or a list of them; `error` where either is missing.
    """
    what = "scores_chosen_rejected"
    if _is_many(scores_chosen_rejected, what):
        return [verifiable_verdict(pair) for pair in scores_chosen_rejected]
    chosen, rejected = (number_in(score) for score in _two(scores_chosen_rejected, what))
    if chosen is None or rejected is None:
        return "error"
    if chosen == rejected:
        return "equal"
    return "chosen_better" if chosen > rejected else "rejected_better"


def _vote(score: float, min_score: float) -> int:
    return 0 if abs(score) <= min_score else (1 if score > 0 else -1)


def _winner(said: Any) -> str | None:
    """A, B, or TIE for every word that names neither; None for what is no verdict."""
    word = said.strip().upper() if isinstance(said, str) else ""
    return word if word in ("A", "B") else "TIE" if word in _NEITHER else None


def _is_many(value: Any, what: str) -> bool:
    """True for a list of pairs, a table of several rows included."""
    axes = getattr(value, "ndim", None)
    if isinstance(axes, int):
        return axes > 1
    first = next(iter(as_list(what, value)), None)
    return hasattr(first, "__len__") and not isinstance(first, str)


def _two(pair: Any, what: str) -> tuple[Any, Any]:
    values = as_list(what, pair)
    if len(values) != 2:
        raise refused(what, pair, "two values, one an order or a response")
    return values[0], values[1]


class GroundTruth:
    """-1, 0 or 1 by a model that sees the reference: oracle evidence, declared as such.

    A task without the field has no value here.
    """

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()

    def __init__(
        self, judge: JudgeModel, *, field: str = "answer", name: str = "ground_truth"
    ) -> None:
        self.judge, self.field, self.name = judge, field, name

    @property
    def fingerprint(self) -> str:
        return digest(self.judge.fingerprint, templates_hash(), self.field, self.name)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        reference = task.fields.get(self.field)
        if reference is None or not str(reference).strip():
            reason = f"the task has no reference in '{self.field}'"
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


class LanguageMatchConfig(CheckConfig, frozen=True, tag="language_match"):
    """The response is in the language of the request: 1, in another: 0, unsure: no value."""

    field: str = "response_language"
    """Task field with an ISO 639-1 code, for requests that ask for another language."""
    confidence: float = 0.7
    min_letters: int = 20
    """Shorter texts are not judged."""
    timeout_s: float = 5.0


class LanguageMatch(IsolatedCheck[LanguageMatchConfig]):
    """Detects both languages in a child process."""

    child = DETECT

    def __init__(self, config: LanguageMatchConfig | None = None) -> None:
        super().__init__(LanguageMatchConfig() if config is None else config)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        wanted = task.fields.get(self.config.field)
        texts = [response.text for response in responses]
        if wanted is None:
            asked, *found = await self.isolated([_cut(task.prompt), *map(_cut, texts)])
            wanted = self._detected(asked)
            if wanted is None:
                reason = "the request's language cannot be told"
                return [self.abstained(reason) for _ in responses]
        else:
            if str(wanted) not in LANGUAGES and wanted != "zh":
                raise UserError(
                    f"task {task.id}: field '{self.config.field}' is {wanted!r}; expected an "
                    "ISO 639-1 code: de, en, ..."
                )
            found = await self.isolated([_cut(text) for text in texts])
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
        if guess.status != Status.OK:
            return None
        sure = guess.value["probability"] >= self.config.confidence
        return guess.value["language"] if sure and self._is_long(guess) else None

    def _is_long(self, guess: Outcome) -> bool:
        # A Chinese character says as much about its language as several letters do.
        least = self.config.min_letters / (4 if guess.value["language"].startswith("zh") else 1)
        return bool(guess.value["letters"] >= least)


class Constraints:
    """The share of all stated constraints that a response keeps.

    Instructions with an id (those of IFEval) are checked by rule; constraints in words, in the
    field `field`, are put to the judge one by one. One that cannot be decided leaves no value.
    """

    scope = Scope.POINT
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        judge: JudgeModel | None = None,
        *,
        field: str = "constraints",
        instructions: InstructionsConfig | None = None,
        name: str = "constraints",
    ) -> None:
        self.judge, self.field, self.name = judge, field, name
        config = InstructionsConfig(mode="mean") if instructions is None else instructions
        self.rules = Instructions(replace(config, mode="mean"))

    @property
    def fingerprint(self) -> str:
        judge = "" if self.judge is None else self.judge.fingerprint
        return digest(judge, templates_hash(), self.rules.fingerprint, self.field, self.name)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        worded = self._worded(task)
        if worded and self.judge is None:
            raise UserError(
                f"reward '{self.name}': task {task.id} has {len(worded)} constraints in words in "
                f"'{self.field}'; give a judge, or instruction ids that a rule can check."
            )
        by_rule = await checked(self.rules, task, responses) if self._has_ids(task) else []
        rewards = []
        for place, response in enumerate(responses):
            calls = [partial(self._ask, task, response, text) for text in worded]
            judge_reply = list(zip(worded, await gather(calls) if calls else [], strict=True))
            rewards.append(self._reward(by_rule[place] if by_rule else None, judge_reply))
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
        question, mark = _question("constraint", task, response, text)
        if self.judge is None:
            raise TypeError("constraints in words need a judge")
        return await self.judge.ask(question, partial(read_marked, mark=mark, table=_SATISFIED))

    def _has_ids(self, task: Task) -> bool:
        return bool(task.fields.get("instruction_id_list"))

    def _worded(self, task: Task) -> list[str]:
        """Constraints in words: a list of texts or of tables with a `rule`, or that as JSON."""
        given = task.fields.get(self.field) or []
        try:
            listed = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            listed = [given]
        texts = [c.get("rule") if isinstance(c, Mapping) else c for c in listed]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise UserError(
                f"task {task.id}: field '{self.field}' holds {given!r:.60}; expected a list of "
                "texts, or of tables with a text 'rule'."
            )
        return [str(text) for text in texts]


def _question(kind: str, task: Task, response: Response, reference: str) -> tuple[Question, str]:
    request = request_of(task)
    mark = mark_for(request, response.text, reference)
    text = prompt(
        kind,
        language_of(request),
        mark,
        request=request,
        first=response.text,
        reference=reference,
    )
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


def _cut(text: str) -> dict[str, Any]:
    return {"text": text[:READ]}
