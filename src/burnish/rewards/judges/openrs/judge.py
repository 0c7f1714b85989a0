"""A judge that writes its criteria for each pair under fixed principles (OpenRS, PAMR).

    scorer = BothOrders(OpenRS(JudgeModel(lm)))
    rewards = await checked(scorer, task, [response, other])
    reaggregate(rewards[0], weights={"core": 3})        # other weights, no new call

One call to the model gives an analysis of the request, the criteria on which the two responses
differ, and a comparison with a quotation on each. The score is worked out here, not by the model:
a decided critical flaw is a veto, else the mean of the decided criteria with weights 5, 2 and 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Literal, Self, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.errors import UserError, did_you_mean
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict
from burnish.rewards.combine import FirstDecisive, OrderRule, join_orders, two_orders
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.judge_model import GREEDY, JudgeModel
from burnish.rewards.judges.openrs.aggregate import Aggregate, explain_criteria
from burnish.rewards.judges.openrs.gate import Constraints, GroundTruth, LanguageMatch, Verifiable
from burnish.rewards.judges.openrs.meta_rubric import (
    ASKED,
    MOST,
    Comparison,
    Judgement,
    Language,
    RubricLibrary,
    language_of,
    prompt,
    read_comparison,
    templates_hash,
)
from burnish.rewards.judges.prompting import JudgeReply, Question, as_user, mark_for, request_of
from burnish.rewards.scorer import Scope, Scorer
from burnish.seeds import digest

CLIP = 4.0
"""The critical sum grows with the number of flaws; a reward for training stays within this."""
RECORD = "openrs/criteria"
"""Source of the evidence that holds the criteria as JSON, seen from the response it belongs to."""
RULES = "openrs/rules"
"""Source of the evidence that holds the rules of the value as JSON."""


class Rules(Struct, frozen=True, kw_only=True):
    """How criteria become a score; see `aggregate_criteria`."""

    min_score: float = 0.0
    weights: dict[str, float] = msgspec.field(default_factory=dict)
    strict: bool = False
    fallthrough: bool = False
    clip: float = CLIP

    def applied_to(self, criteria: Sequence[Comparison]) -> Aggregate:
        """The unclipped score of these criteria, above 0 where A is better."""
        return explain_criteria(
            [msgspec.structs.asdict(criterion) for criterion in criteria],
            self.min_score,
            weights=self.weights or None,
            strict=self.strict,
            fallthrough=self.fallthrough,
        )

    def as_evidence(self) -> Evidence:
        """What `rules_of` reads; Python's JSON, which can hold a clip of infinity."""
        numbers = msgspec.convert(msgspec.to_builtins(self), Rules, strict=False)  # 3 is 3.0
        return Evidence(RULES, json.dumps(msgspec.to_builtins(numbers)))


class OpenRS:
    """A pair scorer: values v and -v, above 0 for the better response, within `rules.clip`.

    The request's language picks prompt and principles; the task's field `domain_field`, or else
    `domain`, the domain whose principles are added to the general ones. Equal texts are even,
    unasked.
    """

    scope = Scope.PAIR
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        judge: JudgeModel,
        *,
        rubrics: RubricLibrary | None = None,
        language: Language | None = None,
        domain: str = "",
        domain_field: str = "query_type",
        rules: Rules | None = None,
        name: str = "openrs",
        weight: float = 1.0,
    ) -> None:
        self.judge, self.name, self.weight = judge, name, weight
        self.rubrics = RubricLibrary.shipped() if rubrics is None else rubrics
        self.language, self.domain, self.domain_field = language, domain, domain_field
        if domain and self.rubrics.domain_of(domain) is None:
            known = self.rubrics.domains
            raise UserError(
                f"reward '{name}': there is no domain '{domain}'; expected {', '.join(known)}."
                f"{did_you_mean(domain, known)}"
            )
        self.rules = Rules() if rules is None else rules
        if not (self.rules.min_score >= 0 and self.rules.clip > 0):
            raise UserError(
                f"reward '{name}': min_score is {self.rules.min_score:g} and clip "
                f"{self.rules.clip:g}; expected at least 0 and above 0."
            )
        self.vote = 0
        self.rules.applied_to(())  # names a weight that has no meaning before the first call

    @property
    def fingerprint(self) -> str:
        settings = (self.language, self.domain, self.domain_field, self.rules, self.vote)
        return digest(
            self.judge.fingerprint, self.rubrics.hash, templates_hash(), repr(settings), self.name
        )

    def for_vote(self, vote: int) -> Self:
        """The same judge asked once more; with a temperature it samples again."""
        other = copy(self)
        other.vote = vote
        return other

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        first, second = responses
        if first.text == second.text:
            return [Reward(self.name, 0.0, reason="the texts are the same") for _ in responses]
        question, mark = self.question(task, first, second)
        judge_reply = await self.judge.ask(question, partial(read_comparison, mark=mark))
        return self.rewards(judge_reply, (first, second))

    def question(self, task: Task, first: Response, second: Response) -> tuple[Question, str]:
        """What the judge is asked, and the mark that its answer must carry."""
        shown = task.for_judge()
        request = request_of(task)
        language = self.language or language_of(request)
        domain = str(shown.fields.get(self.domain_field) or self.domain)
        rubric = self.rubrics.for_request(request, domain, language).as_prompt()
        mark = mark_for(request, first.text, second.text)
        text = prompt(
            "pair",
            language,
            mark,
            request=request,
            first=first.text,
            second=second.text,
            rubric=rubric,
            least=str(ASKED),
            most=str(MOST),
        )
        about = (task.id, first.id, second.id)
        return Question("openrs pair", as_user(text, task.media, mark), about, self.vote), mark

    def rewards(
        self, judge_reply: JudgeReply[Judgement], responses: tuple[Response, Response]
    ) -> list[Reward]:
        """The two rewards of what the judge said."""
        said = judge_reply.evidence
        if judge_reply.verdict is None:
            return [judge_reply.failed(self.name)] * 2
        seen = judge_reply.verdict.criteria
        said = (*said, Evidence(self.name, _quotations(seen, responses)))
        mirror = tuple(criterion.mirrored() for criterion in seen)
        place = len(judge_reply.replies) - 1
        return [self._reward(criteria, said, place) for criteria in (seen, mirror)]

    def _reward(
        self, criteria: Sequence[Comparison], said: tuple[Evidence, ...], place: int
    ) -> Reward:
        """The reward of the response that these criteria call A; the reply read is at `place`."""
        record = Evidence(RECORD, msgspec.json.encode(criteria).decode())
        verdicts = tuple(
            Verdict(
                f"{criterion.type}: {criterion.title}",
                _signed(criterion),
                evidence=(place,),
                reason=criterion.reason or criterion.evidence,
            )
            for criterion in criteria
        )
        evidence = (*said, record, self.rules.as_evidence())
        reward = Reward(self.name, 0.0, evidence=evidence, verdicts=verdicts)
        return valued(reward, criteria, self.rules)


def criteria_of(reward: Reward) -> tuple[Comparison, ...] | None:
    """The criteria that a reward was worked out from, A being its own response; None: not there."""
    stored = [e.observation for e in reward.evidence if e.source == RECORD]
    return msgspec.json.decode(stored[-1], type=tuple[Comparison, ...]) if stored else None


def rules_of(reward: Reward) -> Rules:
    """The rules that a reward was worked out by; the default ones where it does not say."""
    stored = [e.observation for e in reward.evidence if e.source == RULES]
    return msgspec.convert(json.loads(stored[-1]), Rules) if stored else Rules()


def valued(reward: Reward, criteria: Sequence[Comparison], rules: Rules) -> Reward:
    """The reward with the score of its criteria."""
    found = rules.applied_to(criteria)
    if found.value is None:
        return replace(reward, value=None, status=Status.PARSE_ERROR, reason=found.reason)
    notes = [f"decided by {_BY[found.decided_by]}: {found.value:+.4g} of {len(criteria)} criteria"]
    if found.inconsistent:
        notes.append(f"{found.inconsistent} winners contradict their score")
    if found.unknown_types:
        notes.append(f"left out: type {', '.join(found.unknown_types)}")
    value = math.copysign(min(abs(found.value), rules.clip), found.value) + 0.0
    return replace(reward, value=value, status=Status.OK, reason="; ".join(notes))


def reaggregate(reward: Reward, *, order_rule: OrderRule | None = None, **rules: Any) -> Reward:
    """The same judgement under other rules (`weights`, `min_score`, `strict`, ...), without a call.

    Goes through both orders, an anchor and a gate in front. What holds no criteria stays as it is:
    a failed judgement, or a pair that a gate decided. `order_rule` joins both orders; by default the
    rule that made the stored value. Where several would have made it (both orders at 1, say), votes
    is taken: give the rule if you change others.
    """
    unknown = sorted(set(rules) - set(Rules.__struct_fields__))
    if unknown:
        known = Rules.__struct_fields__
        raise UserError(
            f"reaggregate got '{unknown[0]}'; expected {', '.join(known)}."
            f"{did_you_mean(unknown[0], known)}"
        )
    if order_rule is not None and order_rule not in get_args(OrderRule):
        known = get_args(OrderRule)
        raise UserError(
            f"reaggregate: order_rule is '{order_rule}'; expected {', '.join(known)}."
            f"{did_you_mean(order_rule, known)}"
        )
    return _again(reward, rules, order_rule)


def _again(reward: Reward, changed: dict[str, Any], order_rule: OrderRule | None) -> Reward:
    criteria = criteria_of(reward)
    if criteria is not None:
        rules = replace(rules_of(reward), **changed)
        kept = (e for e in reward.evidence if e.source != RULES)
        return valued(replace(reward, evidence=(*kept, rules.as_evidence())), criteria, rules)
    if not any(map(_holds_criteria, reward.parts)):
        return reward
    parts = tuple(_again(part, changed, order_rule) for part in reward.parts)
    if [part.name for part in parts] == ["forward", "backward"]:
        return join_orders(reward.name, parts[0], parts[1], order_rule or _order_rule(reward))
    if reward.value == reward.parts[-1].value and reward.status is reward.parts[-1].status:
        last = parts[-1]
        return replace(
            reward, value=last.value, status=last.status, parts=parts, reason=last.reason
        )
    raise _own_rule(reward)


def _holds_criteria(reward: Reward) -> bool:
    return criteria_of(reward) is not None or any(map(_holds_criteria, reward.parts))


def _order_rule(reward: Reward) -> OrderRule:
    """The rule that makes the reward's value of its two orders."""
    one, two = reward.parts
    if one.value is None or two.value is None:
        return "votes"  # an order without a value stays without one, whatever the rule
    if reward.value is None:
        # Opposite winners abstain under both of these; a tie beside a winner under one.
        return "mean" if one.value * two.value < 0 else "abstain"
    known: tuple[OrderRule, ...] = ("votes", "mean", "strict")
    for rule in known:
        if two_orders(one.value, two.value, rule) == reward.value:
            return rule
    raise _own_rule(reward)


def _own_rule(reward: Reward) -> UserError:
    return UserError(
        f"reward '{reward.name}' combines {len(reward.parts)} parts by a rule of its own; "
        "reaggregate its parts one by one."
    )


_BY = {"critical": "critical flaws", "weighted": "weights", "nothing": "nothing, all are even"}


def _signed(criterion: Comparison) -> float:
    return {"A": 1.0, "B": -1.0, "S": 0.0}[criterion.winner] * abs(criterion.score)


def _quotations(criteria: Sequence[Comparison], responses: tuple[Response, Response]) -> str:
    """How many of the quoted passages really stand in a response."""
    texts = [_plain(response.text) for response in responses]
    quoted = [c.evidence for c in criteria if c.winner != "S" and c.evidence]
    found = sum(any(_stands(passage, text) for text in texts) for passage in quoted)
    return f"{found} of {len(quoted)} quotations stand in a response"


def _stands(passage: str, text: str) -> bool:
    """True where the passage, or a piece of it in quotation marks, is part of the text."""
    pieces = [_plain(piece) for piece in _pieces(passage)]
    return any(piece in text for piece in pieces if len(piece) > 3)


def _pieces(passage: str) -> list[str]:
    for mark in ('"', "'", "\u201c\u201d", "「」", "`"):
        parts = passage.replace(mark[-1], mark[0]).split(mark[0])
        if len(parts) > 2:
            return [passage, *parts[1::2]]
    return [passage]


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


MAX_TOKENS = 8192
"""A reply holds an analysis and up to 15 criteria; the judge's usual limit would cut it."""

Check = Literal["ground_truth", "language", "constraints"]


class OpenRSOptions(Options, frozen=True):
    rubrics: str = ""
    """Folder with your own meta-rubrics; empty: the shipped ones."""
    language: Language | None = None
    """en or zh; by default that of each request."""
    domain: str = ""
    """Domain of every task whose field does not name one."""
    domain_field: str = "query_type"
    """Task field that names the domain, in English or Chinese."""
    verify: tuple[Check, ...] = ()
    """Checks in front of the judge, in this order; the first that tells the two apart decides."""
    reference_field: str = "answer"
    """For `ground_truth`: oracle evidence, declared as such."""
    constraints_field: str = "constraints"
    min_score: float = 0.0
    weights: dict[str, float] = msgspec.field(default_factory=dict)
    """Of core, important and highlight; by default 5, 2 and 1."""
    strict: bool = False
    fallthrough: bool = False
    clip: float = CLIP
    max_tokens: int | None = None
    """Of one reply. Unset: 8192 where the judge model has no sampling of its own, else its limit."""
    name: str = "openrs"


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    settings = read_options("openrs", options, OpenRSOptions)
    judge = _with_room(judge, settings.max_tokens)
    pair = OpenRS(
        judge,
        rubrics=RubricLibrary.load(settings.rubrics) if settings.rubrics else None,
        language=settings.language,
        domain=settings.domain,
        domain_field=settings.domain_field,
        rules=Rules(**{key: getattr(settings, key) for key in Rules.__struct_fields__}),
        name=settings.name,
    )
    if not settings.verify:
        return pair
    checks: dict[Check, Scorer] = {
        "ground_truth": GroundTruth(judge, field=settings.reference_field),
        "language": LanguageMatch(),
        "constraints": Constraints(judge, field=settings.constraints_field),
    }
    gate = Verifiable([checks[name] for name in settings.verify])
    return FirstDecisive(gate, pair, name=settings.name)


def _with_room(judge: JudgeModel, max_tokens: int | None) -> JudgeModel:
    """The judge with room for a whole reply; a limit that somebody set is kept.

    A judge model that was given no sampling holds the very object `GREEDY`; one that was given the
    same numbers holds another, and means them.
    """
    if max_tokens is None:
        if judge.sampling is not GREEDY:
            return judge
        max_tokens = MAX_TOKENS
    sampling = replace(judge.sampling, max_tokens=max_tokens)
    judge = copy(judge)  # cache, budget and record stay shared
    judge.sampling = sampling
    return judge
