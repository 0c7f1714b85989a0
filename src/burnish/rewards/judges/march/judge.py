"""Is an answer faithful to its documents? Its claims are asked again, blind (MARCH).

    [[rewards]]
    kind = "march"
    model = "http://127.0.0.1:8000/v1#my-model"       # the task has `documents`, and `query` or a prompt

    scorer = MarchJudge(JudgeModel(lm, sampling=Sampling(temperature=0.6)), checkers=3)
    (reward,) = await scorer.score(task, [response])
    reward.value, reward.verdicts           # share of the claims that hold; one verdict a claim

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
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from burnish.boundary import Count, PositiveInt
from burnish.records import Evidence, MediaPart, Response, Reward, Status, Task, Verdict
from burnish.rewards.judge_reward import JudgeRewardConfig
from burnish.rewards.judges.build import Options, check_votes, read_options
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.march.claims import (
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
    most_claims: PositiveInt = 10
    """Claims that are checked at most."""
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


class Checked(NamedTuple):
    answers: list[dict[int, str]]
    replies: list[JudgeReply[dict[int, str]]]


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
        asked = (
            *proposer_messages(
                "query", "answer", self.words, with_example=has_example, is_fenced=True
            ),
            *checker_messages(["document"], ["question"], self.words, with_example=has_example),
        )
        texts = (message.text for message in asked)
        same = wording("same", PROMPTS)
        return digest(
            "march", self.judge.fingerprint, *self.words, *texts, SHOWN_BELOW, same, settings
        )

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
        proposed = await self._propose(query, answer, about) if answer.strip() else None
        if (
            proposed is not None
            and proposed.verdict is None
            and proposed.status is not Status.PARSE_ERROR
        ):
            return proposed.failed(self.name)
        proposed_claims = proposed.verdict or [] if proposed else []
        own_to = answer if self.options.invented == "drop" else None
        found = kept_claims(proposed_claims, self.options.most_claims, self.options.leaks, own_to)
        evidence = proposed.evidence if proposed else ()
        if not found.claims:
            return self._without_claims(found, evidence, proposed.reason if proposed else "")
        checked = await self._check(documents, task.media, found.claims, about)
        evidence += tuple(one for reply in checked.replies for one in reply.evidence)
        silent = [one for one in checked.replies if one.verdict is None]
        if not checked.answers:
            return Reward.failed(self.name, silent[0].status, silent[0].reason, evidence=evidence)
        agreement, same = await self._agreement(found.claims, checked.answers, about)
        if same is not None and same.verdict is None:
            evidence += same.evidence
            return Reward.failed(self.name, same.status, same.reason, evidence=evidence)
        if _is_open(agreement, len(silent)):
            why = (
                f"{len(silent)} of {self.checkers} checkers gave no answer and a claim hangs on it"
            )
            why += f": {silent[0].reason}"
            return Reward.failed(self.name, silent[0].status, why, evidence=evidence)
        first = len(proposed.evidence) if proposed else 0
        return self._reward(found, checked, agreement, evidence, first)

    def check_task(self, task: Task) -> tuple[list[str], str]:
        """The documents and the question of a task; `UserError` where it lacks one of them."""
        return documents_of(task, self.options.documents), query_of(task, self.options.query)

    async def _propose(
        self, query: str, answer: str, about: tuple[str, ...]
    ) -> JudgeReply[list[Claim]]:
        most = self.options.most_claims
        messages = proposer_messages(
            query,
            answer,
            self.words,
            least=min(3, most),
            most=most,
            with_example=self.options.example,
            is_fenced=True,
        )
        return await self.judge.ask(Question("claims", messages, about), claims_of_reply)

    async def _check(
        self,
        documents: Sequence[str],
        media: Sequence[MediaPart],
        claims: Sequence[Claim],
        about: tuple[str, ...],
    ) -> Checked:
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
        replies = [
            _joined(said[start : start + len(groups)], groups)
            for start in range(0, len(said), len(groups))
        ]
        return Checked([one.verdict for one in replies if one.verdict is not None], replies)

    async def _agreement(
        self,
        claims: Sequence[Claim],
        samples: Sequence[Mapping[int, str]],
        about: tuple[str, ...],
    ) -> tuple[list[list[int]], JudgeReply[dict[int, str]] | None]:
        """+1 or -1 by sample and claim; with the matcher `judge` the model settles what differs.

        Beside it what the model said, where it was asked.
        """
        matcher = self.options.matcher
        rule: Matcher = "f1" if matcher == "judge" else matcher
        open_pairs: dict[tuple[int, str], bool] = {}
        rows = []
        for sample in samples:
            row = []
            for number, claim in enumerate(claims, start=1):
                said = sample.get(number)
                agrees = said is not None and answers_match(claim.answer, said, rule)
                if matcher == "judge" and said is not None and not agrees:
                    open_pairs[number, said] = False
                row.append(1 if agrees else -1)
            rows.append(row)
        heard = None
        if open_pairs:
            heard = await self._ask_same(claims, open_pairs, about)
            for row, sample in zip(rows, samples, strict=True):
                for number in range(1, len(claims) + 1):
                    if open_pairs.get((number, sample.get(number, ""))):
                        row[number - 1] = 1
        return rows, heard

    async def _ask_same(
        self,
        claims: Sequence[Claim],
        pairs: dict[tuple[int, str], bool],
        about: tuple[str, ...],
    ) -> JudgeReply[dict[int, str]]:
        """Fill in which pairs say the same; a pair that the reply leaves out is different."""
        places = list(pairs)
        lines = [
            f"{n}. Question: {' '.join(claims[number - 1].question.split())} | "
            f"first: {' '.join(claims[number - 1].answer.split())} | second: {said}"
            for n, (number, said) in enumerate(places, start=1)
        ]
        text = fill(wording("same", PROMPTS), {"items": "\n".join(lines)})
        heard = await self.judge.ask(Question("same answers", as_user(text), about), same_of_reply)
        for n, word in (heard.verdict or {}).items():
            if 1 <= n <= len(places):
                pairs[places[n - 1]] = word == "same"
        return heard

    def _without_claims(self, found: Kept, evidence: tuple[Evidence, ...], problem: str) -> Reward:
        told = problem or "the answer is empty"
        if found.left_out:
            told = f"{found.left_out} proposed ones refuse, state their own answer or are not the answer's"
        reason = f"no claim to check: {told}"
        if self.options.no_claims == "abstain":
            return Reward.failed(self.name, Status.ABSTAIN, reason, evidence=evidence)
        value = self._value(self._counted([], []))
        return Reward(self.name, value, evidence=evidence, reason=reason)

    def _counted(self, agreement: Sequence[Sequence[int]], places: Sequence[int]) -> FactReward:
        options = self.options
        return reward_of_votes(
            agreement,
            places,
            mode="err" if options.value == "share" else options.value,
            min_claims=options.min_claims,
            short_penalty=options.short_penalty,
        )

    def _value(self, counted: FactReward) -> float:
        return counted.reward + 1.0 if self.options.value == "share" else counted.reward

    def _reward(
        self,
        found: Kept,
        checked: Checked,
        agreement: list[list[int]],
        replies: tuple[Evidence, ...],
        first: int,
    ) -> Reward:
        claims = found.claims
        counted = self._counted(agreement, range(len(claims)))
        verdicts, failed = [], []
        seen = tuple(range(first, len(replies)))
        for place, (claim, vote) in enumerate(zip(claims, counted.votes, strict=True)):
            said = [sample.get(place + 1, "(no answer)") for sample in checked.answers]
            holds = place not in counted.faulty
            why = f"stated {claim.answer!r}; checkers found {', '.join(map(repr, said))}; vote {vote:+d}"
            why += " (a tie fails)" * (vote == 0)
            verdicts.append(Verdict(claim.question, float(holds), evidence=seen, reason=why))
            if not holds:
                failed.append(Evidence(self.name, f"fails: {claim.question} {why}"))
        silent = len(checked.replies) - len(checked.answers)
        told = [f"{len(claims) - counted.faults} of {len(claims)} claims hold"]
        told += [f"{found.leaks} claims state their own answer and were left out"] * bool(
            found.leaks
        )
        told += [f"{found.invented} that the answer does not make were left out"] * bool(
            found.invented
        )
        told += [f"{found.repeated} that came again were left out"] * bool(found.repeated)
        told += [f"{silent} checkers could not be read"] * bool(silent)
        return Reward(
            self.name,
            self._value(counted),
            evidence=(*replies, *failed),
            verdicts=tuple(verdicts),
            reason="; ".join(told),
        )


def _joined(
    parts: Sequence[JudgeReply[dict[int, str]]], groups: Sequence[Sequence[int]]
) -> JudgeReply[dict[int, str]]:
    """One Checker's answers to all claims; none where a part of them cannot be read."""
    replies = tuple(reply for part in parts for reply in part.replies)
    for part in parts:
        if part.verdict is None:
            return JudgeReply(None, part.status, part.reason, replies)
    answers = {
        group[number - 1] + 1: answer
        for part, group in zip(parts, groups, strict=True)
        for number, answer in (part.verdict or {}).items()
    }
    return JudgeReply(answers, replies=replies)


def _is_open(agreement: Sequence[Sequence[int]], silent: int) -> bool:
    """Whether the votes that are missing could turn a claim: one holds where the sum is above 0."""
    sums = [sum(votes) for votes in zip(*agreement, strict=True)]
    return any(vote - silent <= 0 < vote + silent for vote in sums)


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    return MarchJudge(judge, read_options("march", options, MarchOptions))
