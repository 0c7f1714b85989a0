"""Is an answer faithful to its documents? Its claims are asked again, blind (MARCH).

A Proposer turns the answer into questions with short answers; K Checkers answer the questions from
the documents alone (images and sounds of the task are documents) and never see the answer. A claim
that most of them do not confirm has failed and stands in the evidence (arXiv 2603.24579). Where we
differ: a Checker reply without any item is no vote, an answer has no value where such a vote could
turn a claim, one without a claim has none unless `no_claims` says otherwise, claims that a Proposer
invents are left out (`invented`), a Checker that answers an item twice and differently has no vote, and
the answer under test is fenced in the Proposer's prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from burnish.boundary import Count
from burnish.records import Evidence, MediaPart, Response, Reward, Status, Task, Verdict
from burnish.rewards.judge_reward import JudgeRewardConfig
from burnish.rewards.judges.build import Options, check_votes, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.march.claims import (
    Agreement,
    Claim,
    FactReward,
    Invented,
    Leaks,
    Matcher,
    NonPositive,
    answers_match,
    checks_of_reply,
    claims_of_reply,
    reward_of_votes,
    same_of_reply,
    split_thinking,
)
from burnish.rewards.judges.march.roles import (
    PROMPTS,
    SHOWN_BELOW,
    Kept,
    asked_together,
    checker_messages,
    documents_of,
    kept_claims,
    proposer_messages,
    query_of,
    wording_of,
)
from burnish.rewards.judges.prompting import JudgeReply, Question, as_user, fill, wording
from burnish.rewards.scorer import Scope, Scorer, gather
from burnish.seeds import digest

CHECKERS = 3
"""Checker samples of the paper."""
TEMPERATURE = 0.6
CONCURRENT = 32
UNSEEN_DOCUMENTS = (
    "the documents are images or sounds alone, and the judge is not shown them (media = 'mark'); expected "
    "texts in the documents, or media = 'send' with a model that reads them"
)

Value = Literal["share", "ztr", "err", "count"]
JudgeMatcher = Literal["strict", "numeric", "exact", "f1", "march-ref", "judge"]


class MarchOptions(Options, frozen=True):
    checkers: Annotated[int, Meta(ge=1, le=101)] | None = None
    """Checker samples; 3, or one at temperature 0, where all would be the same. Choose an odd
    number: of an even one a tie is a claim that fails."""
    value: Value = "share"
    """share: claims that hold, 0 to 1. ztr: -1 where any fails, else 0. err: minus the share that
    fails. count: minus a tenth of those that fail, 13 at most."""
    matcher: JudgeMatcher = "f1"
    """When two answers agree: strict, numeric, exact, f1, march-ref, or judge (the model is asked
    where f1 says no)."""
    claims: Literal["facts", "numbers"] = "facts"
    """What is checked: any short facts, or numbers alone as in the paper."""
    documents: str = "documents"
    """Task field with the documents: a list of texts, or one text."""
    query: str = "query"
    """Task field with the question; the prompt where there is none."""
    no_claims: Literal["abstain", "zero"] = "abstain"
    """An answer without a claim has no value, or the value of one without a fault."""
    min_claims: Count = 3
    """Claims below which `short_penalty` is added."""
    short_penalty: NonPositive = 0.0
    """Added where there are fewer claims; -0.5 keeps a policy from saying nothing."""
    leaks: Leaks = "normalised"
    """When a question states an answer, so that it cannot be asked blind. plain: its own in the same
    words. normalised: also in another spelling (accents, punctuation, numbers); and a question that
    tells another claim's answer is asked in a prompt of its own."""
    invented: Invented = "drop"
    """A claim that the answer does not make (neither its words nor its number stand there): drop
    leaves it out and counts it; keep holds it against the answer."""
    example: bool = True
    """Show Proposer and Checkers a worked example as a turn before their own: small models then keep
    to the form."""
    name: str = "march"


class MarchConfig(JudgeRewardConfig, frozen=True, kw_only=True, tag="march"):
    """Faithfulness to the task's documents by claims that are asked again blind (MARCH); 0 to 1."""

    method: Literal["march"] = msgspec.field(default="march", name="with")
    temperature: float = TEMPERATURE
    """Of sampling; Checkers vote, so it is above 0."""
    both_orders: bool = False
    """Nothing is compared here."""


class MarchJudge:
    """A point scorer: the claims of an answer, asked again from the documents alone."""

    scope = Scope.POINT
    usual_reply = "- Question: is it so? [Answer: yes]\n1. Evidence: none. [Answer: no]"
    """One claim that any answer may make, and a check that differs from it: a forecast hears it, so
    that it counts the Checkers and, with the matcher `judge`, the question whether the two agree."""

    def __init__(self, judge: JudgeModel, options: MarchOptions | None = None, **more: Any) -> None:
        """`more` are options by name."""
        chosen = read_options("march", more, MarchOptions) if options is None else options
        self.judge, self.options, self.name = judge, chosen, chosen.name
        usual = 1 if judge.sampling.temperature == 0 else CHECKERS
        self.checkers = chosen.checkers or usual
        check_votes(judge, self.name, "checkers", self.checkers)
        self.words = wording_of(chosen.claims)
        self.needs = frozenset({chosen.documents})

    @property
    def flags_below(self) -> float:
        """The value under which an answer has a claim that fails."""
        return 1.0 if self.options.value == "share" else 0.0

    @property
    def inputs(self) -> frozenset[str]:
        """Columns that belong to the question and are no labels: `burnish judge` shows them."""
        return frozenset({self.options.documents, self.options.query})

    @property
    def fingerprint(self) -> str:
        settings = msgspec.json.encode(self.options)
        has_example = self.options.example
        words = self.words
        asked = proposer_messages(
            "query", "answer", words, is_fenced=True, with_example=has_example
        )
        asked += checker_messages(["document"], ["question"], words, with_example=has_example)
        texts = [message.text for message in asked]
        texts += [SHOWN_BELOW, wording("same", PROMPTS)]
        return digest("march", self.judge.fingerprint, *words, *texts, settings)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        calls = [partial(self._one, task, response) for response in responses]
        return await gather(calls, limit=CONCURRENT)

    async def _one(self, task: Task, response: Response) -> Reward:
        # A task without documents is refused before anything is asked.
        documents, query = self.check_task(task)
        if not documents and self.judge.media == "mark":
            return Reward.failed(self.name, Status.ABSTAIN, UNSEEN_DOCUMENTS)
        answer = split_thinking(response.text).answer
        about = (task.id, response.id)
        proposed = JudgeReply[list[Claim]]([], reason="the answer is empty")
        if answer.strip():
            messages = proposer_messages(
                query, answer, self.words, with_example=self.options.example, is_fenced=True
            )
            asked = Question("claims", messages, about)
            proposed = await self.judge.ask(asked, claims_of_reply)
        if proposed.verdict is None and proposed.status is not Status.PARSE_ERROR:
            return proposed.failed(self.name)
        own_to = answer if self.options.invented == "drop" else None
        found = kept_claims(proposed.verdict or [], leaks=self.options.leaks, own_to=own_to)
        evidence, first = proposed.evidence, len(proposed.evidence)
        if not found.claims:
            return self._without_claims(found, evidence, proposed.reason)
        replies = await self._check(documents, task.media, found.claims, about)
        evidence += tuple(one for reply in replies for one in reply.evidence)
        silent = [one for one in replies if one.verdict is None]
        samples = [one.verdict for one in replies if one.verdict is not None]
        if not samples:
            return Reward.failed(self.name, silent[0].status, silent[0].reason, evidence=evidence)
        agreement, same = await self._agreement(found.claims, samples, about)
        if same is not None and same.verdict is None:
            evidence += same.evidence
            return Reward.failed(self.name, same.status, same.reason, evidence=evidence)
        # Whether the votes that are missing could turn a claim: one holds where the sum is above 0.
        sums = [sum(votes) for votes in zip(*agreement, strict=True)]
        if any(vote - len(silent) <= 0 < vote + len(silent) for vote in sums):
            told = (
                f"{len(silent)} of {self.checkers} checkers gave no answer and a claim hangs on it"
            )
            why = f"{told}: {silent[0].reason}"
            return Reward.failed(self.name, silent[0].status, why, evidence=evidence)
        return self._reward(found, samples, agreement, evidence, first)

    def check_task(self, task: Task) -> tuple[list[str], str]:
        """The documents and the question of a task; `UserError` where it lacks one of them."""
        return documents_of(task, self.options.documents), query_of(task, self.options.query)

    async def _check(
        self,
        documents: Sequence[str],
        media: Sequence[MediaPart],
        claims: Sequence[Claim],
        about: tuple[str, ...],
    ) -> list[JudgeReply[dict[int, str]]]:
        """Ask each Checker, in as many prompts as it takes that no question tells another's answer."""
        blind = self.options.leaks == "normalised"
        groups = asked_together(claims) if blind else [list(range(len(claims)))]
        calls = []
        for vote in range(self.checkers):
            for group in groups:
                questions = [claims[place].question for place in group]
                messages = checker_messages(
                    documents, questions, self.words, media, with_example=self.options.example
                )
                read = partial(checks_of_reply, count=len(group))
                calls.append(
                    partial(self.judge.ask, Question("checks", messages, about, vote), read)
                )
        said = await gather(calls)
        starts = range(0, len(said), len(groups))
        return [_joined(said[start : start + len(groups)], groups) for start in starts]

    async def _agreement(
        self, claims: Sequence[Claim], samples: Sequence[Mapping[int, str]], about: tuple[str, ...]
    ) -> tuple[list[list[Agreement]], JudgeReply[dict[int, str]] | None]:
        """+1 or -1 by sample and claim; with the matcher `judge` the model settles what differs.

        Beside it what the model said, where it was asked.
        """
        matcher = self.options.matcher
        rule: Matcher = "f1" if matcher == "judge" else matcher
        answers = [
            (number, claim, sample[number])
            for sample in samples
            for number, claim in enumerate(claims, start=1)
            if number in sample
        ]
        agrees = {(n, said): answers_match(claim.answer, said, rule) for n, claim, said in answers}
        heard = None
        places = [pair for pair, is_same in agrees.items() if not is_same]
        if matcher == "judge" and places:
            lines = [
                f"{n}. Question: {' '.join(claims[number - 1].question.split())} | "
                f"first: {' '.join(claims[number - 1].answer.split())} | second: {said}"
                for n, (number, said) in enumerate(places, start=1)
            ]
            text = fill(wording("same", PROMPTS), {"items": "\n".join(lines)})
            question = Question("same answers", as_user(text), about)
            heard = await self.judge.ask(question, same_of_reply)
            # A pair that the reply leaves out is different.
            told = heard.verdict or {}
            agrees |= {pair: told.get(n) == "same" for n, pair in enumerate(places, start=1)}
        numbers = range(1, len(claims) + 1)
        rows: list[list[Agreement]] = [
            [1 if agrees.get((n, sample.get(n, ""))) else -1 for n in numbers] for sample in samples
        ]
        return rows, heard

    def _without_claims(self, found: Kept, evidence: tuple[Evidence, ...], told: str) -> Reward:
        if found.left_out:
            told = f"{found.left_out} proposed ones refuse, state their own answer or are not the answer's"
        reason = f"no claim to check: {told}"
        if self.options.no_claims == "abstain":
            return Reward.failed(self.name, Status.ABSTAIN, reason, evidence=evidence)
        return Reward(self.name, self._counted([], 0).reward, evidence=evidence, reason=reason)

    def _counted(self, agreement: Sequence[Sequence[Agreement]], count: int) -> FactReward:
        options = self.options
        is_share = options.value == "share"
        found = reward_of_votes(
            agreement,
            range(count),
            mode="err" if options.value == "share" else options.value,
            min_claims=options.min_claims,
            short_penalty=options.short_penalty,
        )
        return found._replace(reward=found.reward + 1.0) if is_share else found

    def _reward(
        self,
        found: Kept,
        samples: Sequence[Mapping[int, str]],
        agreement: Sequence[Sequence[Agreement]],
        replies: tuple[Evidence, ...],
        first: int,
    ) -> Reward:
        claims = found.claims
        counted = self._counted(agreement, len(claims))
        verdicts, failed = [], []
        seen = tuple(range(first, len(replies)))
        for place, (claim, vote) in enumerate(zip(claims, counted.votes, strict=True)):
            said = [sample.get(place + 1, "(no answer)") for sample in samples]
            holds = place not in counted.faulty
            why = f"stated {claim.answer!r}; checkers found {', '.join(map(repr, said))}; vote {vote:+d}"
            why += " (a tie fails)" * (vote == 0)
            verdicts.append(Verdict(claim.question, float(holds), evidence=seen, reason=why))
            if not holds:
                failed.append(Evidence(self.name, f"fails: {claim.question} {why}"))
        told = [f"{len(claims) - counted.faults} of {len(claims)} claims hold"]
        others = {
            "claims state their own answer and were left out": found.leaks,
            "that the answer does not make were left out": found.invented,
            "that came again were left out": found.repeated,
            "checkers could not be read": self.checkers - len(samples),
        }
        told += [f"{count} {words}" for words, count in others.items() if count]
        return Reward(
            self.name,
            counted.reward,
            evidence=(*replies, *failed),
            verdicts=tuple(verdicts),
            reason="; ".join(told),
        )


def _joined(
    parts: Sequence[JudgeReply[dict[int, str]]], groups: Sequence[Sequence[int]]
) -> JudgeReply[dict[int, str]]:
    """One Checker's answers to all claims; none where a part of them cannot be read."""
    replies = tuple(reply for part in parts for reply in part.replies)
    answers: dict[int, str] = {}
    for part, group in zip(parts, groups, strict=True):
        if part.verdict is None:
            return JudgeReply(None, part.status, part.reason, replies)
        answers |= {group[number - 1] + 1: answer for number, answer in part.verdict.items()}
    return JudgeReply(answers, replies=replies)


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    return MarchJudge(judge, read_options("march", options, MarchOptions))
