"""A judge that writes its criteria for each pair under fixed principles (OpenRS, PAMR).

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
from msgspec.structs import replace

from burnish.arguments import as_word
from burnish.boundary import Cap, NonNegative, PositiveInt
from burnish.errors import UserError
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict
from burnish.rewards.combine import FirstDecisive, OrderRule, join_orders, two_orders
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.judge_model import GREEDY, JudgeModel
from burnish.rewards.judges.openrs.gate import Constraints, GroundTruth, LanguageMatch, Verifiable
from burnish.rewards.judges.openrs.meta_rubric import (
    ASKED,
    MOST,
    Aggregate,
    Comparison,
    Judgement,
    Language,
    RubricLibrary,
    explain_criteria,
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


class Rules(Options, frozen=True):
    """How criteria become a score; see `aggregate_criteria`."""

    min_score: NonNegative = 0.0
    weights: dict[str, NonNegative] = msgspec.field(default_factory=dict)
    """Of core, important and highlight; by default 5, 2 and 1."""
    strict: bool = False
    fallthrough: bool = False
    clip: Cap = CLIP

    def check(self) -> None:
        self.applied_to(())  # names a weight that has no meaning

    def applied_to(self, criteria: Sequence[Comparison]) -> Aggregate:
        """The unclipped score of these criteria, above 0 where A is better."""
        return explain_criteria.plain(
            [msgspec.structs.asdict(criterion) for criterion in criteria],
            self.min_score,
            weights=self.weights,
            strict=self.strict,
            fallthrough=self.fallthrough,
        )

    def as_evidence(self) -> Evidence:
        """What `rules_of` reads; Python's JSON, which can hold a clip of infinity."""
        numbers = {key: getattr(self, key) for key in Rules.__struct_fields__}
        return Evidence(RULES, json.dumps(numbers))


class OpenRS:
    """A pair scorer: values v and -v, above 0 for the better response, within `rules.clip`.

    The request's language picks prompt and principles; the task's field `query_type`, or else `domain`,
    the domain whose principles are added to the general ones. Equal texts are even, unasked.
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
        rules: Rules | None = None,
        name: str = "openrs",
    ) -> None:
        self.judge, self.name = judge, name
        self.rubrics = RubricLibrary.shipped() if rubrics is None else rubrics
        self.language, self.domain = language, domain
        if domain and self.rubrics.domain_of(domain) is None:
            as_word(f"reward '{name}': domain", domain, self.rubrics.domains)
        self.rules = Rules() if rules is None else rules
        self.vote = 0

    @property
    def fingerprint(self) -> str:
        settings = (self.language, self.domain, self.rules, self.vote)
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
        request = request_of(task)
        language = self.language or language_of(request)
        domain = str(task.for_judge().fields.get("query_type") or self.domain)
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
        if judge_reply.verdict is None:
            return [judge_reply.failed(self.name)] * 2
        seen = judge_reply.verdict.criteria
        # How many of the quoted passages really stand in a response.
        texts = [_plain(response.text) for response in responses]
        pieces = [_pieces(c.evidence) for c in seen if c.winner != "S" and c.evidence]
        found = sum(any(piece in text for text in texts for piece in own) for own in pieces)
        told = f"{found} of {len(pieces)} quotations stand in a response"
        said = (*judge_reply.evidence, Evidence(self.name, told))
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
                _SIGN[criterion.winner] * abs(criterion.score),
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
    if order_rule is not None:
        as_word("order_rule", order_rule, get_args(OrderRule))
    for name in rules:
        as_word("reaggregate", name, Rules.__struct_fields__)
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
_SIGN = {"A": 1.0, "B": -1.0, "S": 0.0}


def _pieces(passage: str) -> list[str]:
    """The passage, and what stands in quotation marks in it."""
    found = [passage]
    for mark in ('"', "'", "\u201c\u201d", "「」", "`"):
        parts = passage.replace(mark[-1], mark[0]).split(mark[0])
        if len(parts) > 2:
            found += parts[1::2]
            break
    return [piece for one in found if len(piece := _plain(one)) > 3]


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


MAX_TOKENS = 8192
"""A reply holds an analysis and up to 15 criteria; the judge's usual limit would cut it."""

Check = Literal["ground_truth", "language", "constraints"]


class OpenRSOptions(Rules, frozen=True):
    rubrics: str = ""
    """Folder with your own meta-rubrics; empty: the shipped ones."""
    language: Language | None = None
    """en or zh; by default that of each request."""
    domain: str = ""
    """Domain of every task whose field does not name one."""
    verify: tuple[Check, ...] = ()
    """Checks in front of the judge, in this order; the first that tells the two apart decides.
    `ground_truth` reads the task's `answer`: oracle evidence, declared as such."""
    max_tokens: PositiveInt | None = None
    """Of one reply. Unset: 8192 where the judge model has no sampling of its own, else its limit."""
    name: str = "openrs"


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    settings = read_options("openrs", options, OpenRSOptions)
    # A judge model that was given no sampling holds the very object `GREEDY`; one that was given the
    # same numbers holds another, and means them.
    most = settings.max_tokens or (MAX_TOKENS if judge.sampling is GREEDY else None)
    if most is not None:
        judge = copy(judge)  # cache, budget and record stay shared
        judge.sampling = replace(judge.sampling, max_tokens=most)
    pair = OpenRS(
        judge,
        rubrics=RubricLibrary.load(settings.rubrics) if settings.rubrics else None,
        language=settings.language,
        domain=settings.domain,
        rules=Rules(**{key: getattr(settings, key) for key in Rules.__struct_fields__}),
        name=settings.name,
    )
    if not settings.verify:
        return pair
    checks: dict[Check, Scorer] = {
        "ground_truth": GroundTruth(judge),
        "language": LanguageMatch(),
        "constraints": Constraints(judge),
    }
    gate = Verifiable([checks[name] for name in settings.verify])
    return FirstDecisive(gate, pair, name=settings.name)
