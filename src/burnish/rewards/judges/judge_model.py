"""Ask a language model for a verdict: one question, at most one repair, every reply kept.

    judge = JudgeModel(lm, budget=Budget(calls=1000), cache="cache.jsonl", record="judge.jsonl")
    reply = await judge.ask(Question("pair", messages, about=(task.id, a.id, b.id)), read)
    reply.verdict       # what `read` made of the reply, or None with a status and a reason

A reader is a function from the reply's text to a verdict that raises `Unreadable` where there is
none. Nothing else makes a verdict: no reply, no number.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import anyio
from anyio.lowlevel import current_token
from msgspec.structs import replace

from burnish.errors import UserError
from burnish.lm.base import (
    LM,
    Completion,
    Sampling,
    TooLong,
    TooMuchMedia,
    model_key,
)
from burnish.lm.budget import SAFETY, Budget, Cost, Meter, Spent, estimate_tokens, metered
from burnish.lm.call_log import Call, CallLog, Paid, asked_sample, note_judge
from burnish.lm.failures import (
    EXPECTED,
    BadReply,
    NotSent,
    Reach,
    Refused,
    TimedOut,
    Unreachable,
    WrongModel,
    classify,
)
from burnish.lm.replay import NotRecorded, ReplayLM
from burnish.records import Finish, Message, Status, TextPart
from burnish.rewards.judges.prompting import (
    JudgeReply,
    Media,
    Question,
    Reader,
    Reply,
    Unreadable,
    V,
    naming_judge,
    shown,
)
from burnish.seeds import derive, digest
from burnish.texts import whole_characters

MEDIA_TOKENS = 1000
"""What one of them costs, roughly."""
GREEDY = Sampling(temperature=0.0, max_tokens=1024)
WAIT_S = 0.02
"""How often a call asks again whether it still fits into the budget."""

logger = logging.getLogger(__name__)


class _InFlight:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.reply: Reply | None = None
        self.error: Exception | None = None


class _Round(NamedTuple):
    question: Question
    number: int
    asked: Call
    sampling: Sampling


class JudgeModel:
    """A model that is asked for verdicts, with its cache, its budget and its record.

    The seed of a call follows from what is asked and from the vote, so equal questions are equal
    calls: sent once while one is under way, and answered by the cache afterwards.
    """

    def __init__(
        self,
        lm: LM,
        *,
        sampling: Sampling = GREEDY,
        repairs: int = 1,
        seed: int = 0,
        cache: CallLog | str | Path | None = None,
        budget: Budget | None = None,
        record: str | Path | None = None,
        deadline_s: float | None = None,
        media: Media = "send",
    ) -> None:
        """`cache` and `record` are logs of calls, and may be the same file.

        `media`: send the images and sounds of a question, or only marks that stand for them, to a
        model that reads text alone.

        `deadline_s` bounds one call; a server's own limits (`Limits`) hold besides.
        """
        self.lm, self.sampling, self.repairs, self.seed = lm, sampling, repairs, seed
        self.budget = _payable(lm, budget)
        self.deadline_s = deadline_s
        self.media: Media = media
        self.shows_media = True
        """False where its only scorer asks about texts alone; set by who makes both of them."""
        self.record = None if record is None else CallLog(record)
        if isinstance(cache, str | Path):
            log = CallLog(cache, is_needed=False)
            is_same = self.record is not None and log.path == self.record.path
            cache = self.record if is_same else log
        self.cache = cache
        self._in_flight: dict[tuple[object, str], _InFlight] = {}
        self.paid = Paid()
        """What a training run has paid for already; shared by copies of this judge."""
        self.reach = Reach()
        """Whether a server was found at all; shared by copies of this judge."""
        note_judge(self)

    @property
    def name(self) -> str:
        return self.lm.name

    @property
    def fingerprint(self) -> str:
        settings: tuple[str, ...] = (repr(self.sampling), str(self.repairs), str(self.seed))
        structured = getattr(self.lm, "structured", "auto")
        settings += () if structured == "auto" else (structured,)
        settings += () if self.media == "send" else (self.media,)
        return digest(*model_key(self.lm), *settings)

    @property
    def spent(self) -> Spent:
        """What the judge's budget has been used for so far."""
        return self.budget.spent

    async def ask(self, question: Question, read: Reader[V]) -> JudgeReply[V]:
        """The verdict that `read` makes of the reply; an unreadable one is asked for once more."""
        messages = [shown(_writable(message), self.media) for message in question.messages]
        replies: list[Reply] = []
        reason = ""
        for number in range(1 + self.repairs):
            this = self._round(question, number, messages)
            try:
                reply = await self._reply(this)
            except (*EXPECTED, TooLong) as error:
                if number and isinstance(error, NotRecorded | TooLong):
                    break  # no room for a repair, or the record's reader asked for another one
                said = " ".join(_advised(error, question.kind).split())[:500]
                return self._recorded(
                    this, JudgeReply(None, classify(error).status, said, (*replies,))
                )
            replies.append(reply)
            if reply.finish is Finish.ERROR:
                said = "the judge's backend failed"
                outcome: JudgeReply[V] = JudgeReply(None, Status.INFRA_ERROR, said, tuple(replies))
                return self._recorded(this, outcome, reply)
            try:
                return self._recorded(
                    this, JudgeReply(read(reply.text), replies=tuple(replies)), reply
                )
            except Unreadable as error:
                cut = " (the reply was cut at max_tokens)" if reply.finish is Finish.LENGTH else ""
                reason = f"{error}{cut}"
            self._recorded(this, JudgeReply(None, Status.PARSE_ERROR, reason), reply)
            repair = Message(
                "user",
                f"Your reply could not be read: {reason}. Answer once more, in the asked format and "
                "nothing else.",
            )
            messages += [_writable(Message("assistant", reply.text)), _writable(repair)]
        return JudgeReply(None, Status.PARSE_ERROR, reason, tuple(replies))

    def _round(self, question: Question, number: int, messages: Sequence[Message]) -> _Round:
        seed = question.seed
        if seed is None:
            words = digest(*(part for m in messages for part in (m.role, m.text)))
            seed = derive(self.seed, question.kind, words, question.vote)
        sampling = replace(self.sampling, seed=seed)
        identity = getattr(self.lm, "identity", "")
        asked = asked_sample(self.name, messages, sampling, identity)
        return _Round(question, number, asked, sampling)

    def _recorded(
        self, this: _Round, outcome: JudgeReply[V], reply: Reply | None = None
    ) -> JudgeReply[V]:
        if self.record is not None:
            self.record.append(
                replace(
                    this.asked if reply is None else _answered(this.asked, reply),
                    kind=this.question.kind,
                    about=this.question.about,
                    vote=this.question.vote,
                    round=this.number,
                    status=outcome.status,
                    reason=outcome.reason,
                    is_cached=reply is not None and (reply.is_cached or reply.is_replayed),
                )
            )
        return outcome

    async def _reply(self, this: _Round) -> Reply:
        """The reply from the cache, from an equal call under way, or from the model."""
        kept = None if self.cache is None else self.cache.find(this.asked)
        if kept is not None:
            return self._unpaid(_reply_of(kept.completions[0], self.name, kept.seconds))
        # Events belong to one event loop; a judge may serve several.
        place = (current_token(), this.asked.place)
        while (call := self._in_flight.get(place)) is not None:
            await call.done.wait()
            if call.error is not None:
                raise call.error
            if call.reply is not None:
                return self._unpaid(call.reply)
            # Its asker was cancelled: the first to come here asks.
        call = self._in_flight[place] = _InFlight()
        try:
            call.reply = await self._send(this)
            return call.reply
        except (*EXPECTED, TooLong) as error:
            call.error = error
            raise
        finally:
            del self._in_flight[place]
            call.done.set()

    async def _send(self, this: _Round) -> Reply:
        if getattr(self.lm, "is_replay", False):
            return self._unpaid(await self._sampled(this))
        if (paid := self.paid.read(this.asked)) is not None:
            reply = _reply_of(paid.completions[0], self.name, paid.seconds)
            return replace(reply, is_replayed=True)
        # The most that a request may cost; each retry and hedged copy may be billed like it.
        most = self._priced(_read_tokens(this), this.sampling.n * this.sampling.max_tokens)
        pool = getattr(self.lm, "pool", None)
        requests = 1 if pool is None else 1 + pool.limits.retries
        all_of_them = Cost(
            requests * most.prompt_tokens, requests * most.completion_tokens, requests * most.usd
        )
        # Several event loops may share a budget, so there is no event of one of them to wait for.
        while (held := self.budget.take(all_of_them)) is None:  # noqa: ASYNC110
            await anyio.sleep(WAIT_S)
        with metered() as meter:
            try:
                reply = await self._sampled(this)
            except BaseException as error:
                lost = meter.cost if meter.is_used else _lost(error, most)
                is_estimated = meter.is_estimated or (not meter.is_used and lost.tokens > 0)
                self.budget.fail(lost, held, is_estimated=is_estimated)
                if is_estimated and isinstance(error, Refused | BadReply | WrongModel):
                    self._warn_of_estimates()
                self.reach.note(error)
                raise
        self.reach.note(None)
        self._settle(this, reply, meter, held)
        if reply.finish is not Finish.ERROR:
            answered = replace(_answered(this.asked, reply), messages=())
            self.paid.write(answered)
            if self.cache is not None and self.cache is not self.record:
                self.cache.append(answered)
        return reply

    def _priced(self, read: int, written: int) -> Cost:
        """Estimated tokens, dear enough for a limit to hold where there are more of them."""
        prices = getattr(self.lm, "prices", None)
        if prices is None:
            return Cost(read, written)
        usd = read * prices.prompt_usd + written * prices.completion_usd
        return Cost(read, written, SAFETY * usd / 1e6)

    def _settle(self, this: _Round, reply: Reply, meter: Meter, held: Cost) -> None:
        """Pay for a reply: by the meter, by its own count, or by the length of the texts."""
        cost, is_estimated = meter.cost, meter.is_estimated
        if not meter.is_used:
            cost = Cost(reply.prompt_tokens, reply.completion_tokens, reply.cost_usd)
            is_estimated = cost.tokens == 0 or not cost.is_possible
        if not meter.is_used and is_estimated:
            guessed = self._priced(_read_tokens(this), estimate_tokens(reply.text))
            cost = guessed._replace(usd=(cost.usd if cost.is_possible else 0) or guessed.usd)
        self.budget.settle(cost, held, is_estimated=is_estimated)
        if is_estimated:
            self._warn_of_estimates()

    def _warn_of_estimates(self) -> None:
        """Say once that a limit in dollars rests on estimates."""
        if self.budget.usd is not None and not self.budget.is_estimate_warned:
            self.budget.is_estimate_warned = True
            logger.warning(
                "Judge '%s': the server does not count tokens (no usable 'usage' in a reply); they "
                "are estimated from the texts and priced %g times as high, so that the budget of "
                "$%g holds.",
                self.name,
                SAFETY,
                self.budget.usd,
            )

    async def _sampled(self, this: _Round) -> Reply:
        start = perf_counter()
        limit = anyio.move_on_after(math.inf if self.deadline_s is None else self.deadline_s)
        messages, schema = this.asked.messages, this.question.schema
        lm = self.lm.voter(this.question.vote) if isinstance(self.lm, ReplayLM) else self.lm
        force = getattr(lm, "sample_json", None)
        with naming_judge(self.name), limit:
            if schema is None or force is None:
                completions = await lm.sample(messages, this.sampling)
            else:
                completions = await force(messages, this.sampling, schema)
        if limit.cancelled_caught:
            raise TimedOut(f"{self.name}: no answer within {self.deadline_s:g} s (deadline_s)")
        seconds = perf_counter() - start
        if not completions:
            return Reply("", self.name, Finish.ERROR, seconds=seconds)
        return _reply_of(completions[0], self.name, seconds)

    def _unpaid(self, reply: Reply) -> Reply:
        self.budget.save()
        return replace(reply, is_cached=True)


def replay(path: str | Path, *, model: str | None = None, **settings: Any) -> JudgeModel:
    """A judge that answers from a record and never calls; `settings` as for `JudgeModel`."""
    return JudgeModel(ReplayLM(path, model=model, by_words=True), **settings)


def _lost(error: BaseException, most: Cost) -> Cost:
    """What a call without a reply has cost where the model keeps no books.

    Nothing where there is no price, or where nothing was answered.
    """
    perhaps = (TimedOut, TimeoutError, Unreachable, anyio.get_cancelled_exc_class())
    is_paid = isinstance(error, (Refused, BadReply, WrongModel, *perhaps))
    return most if most.usd and is_paid and not isinstance(error, NotSent) else Cost()


def _advised(error: Exception, kind: str) -> str:
    """The error's line; who asks a judge did not write its prompt and cannot shorten it."""
    if not isinstance(error, TooLong) or isinstance(error, TooMuchMedia):
        return str(error)
    # `direct` and `point` give a model the least to read.
    is_shortest = kind in ("pair", "rating", "rubric items")
    shorter = "" if is_shortest else ", or a judge with a shorter question (direct, point)"
    return (
        f"{error.what} Give the judge a model that reads more (smollm2, a folder, a server), or less "
        f"to read: shorter answers{shorter}."
    )


def _answered(asked: Call, reply: Reply) -> Call:
    """The call with the reply as a log keeps it."""
    completion = Completion(
        reply.text,
        finish=reply.finish,
        model=reply.model,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cost_usd=reply.cost_usd,
    )
    return replace(asked, completions=(completion,), seconds=round(reply.seconds, 3))


def _reply_of(completion: Completion, name: str, seconds: float) -> Reply:
    return Reply(
        whole_characters(completion.text),
        whole_characters(completion.model or name),
        completion.finish,
        completion.prompt_tokens or len(completion.prompt_ids),
        completion.completion_tokens or len(completion.token_ids),
        completion.cost_usd,
        seconds=seconds,
    )


def _writable(message: Message) -> Message:
    """Half a character in a model's text cannot be sent or stored."""
    if isinstance(message.content, str):
        text = whole_characters(message.content)
        return message if text == message.content else replace(message, content=text)
    parts = [
        TextPart(whole_characters(part.text)) if isinstance(part, TextPart) else part
        for part in message.content
    ]
    return replace(message, content=tuple(parts))


def _read_tokens(this: _Round) -> int:
    """What the model will read, estimated."""
    return sum(
        estimate_tokens(message.text) + MEDIA_TOKENS * len(message.media)
        for message in this.asked.messages
    )


def _payable(lm: LM, budget: Budget | None) -> Budget:
    """The budget; one in dollars needs a model that has prices, or a record, which costs nothing."""
    prices = getattr(lm, "prices", None)
    has_prices = prices is not None and (prices.prompt_usd or prices.completion_usd)
    can_spend = has_prices or getattr(lm, "is_replay", False)
    if budget is not None and budget.usd is not None and not can_spend:
        raise UserError(
            f"judge '{lm.name}' has a budget of ${budget.usd:g} but no prices, so nothing would "
            "ever be spent; give prices (dollars for a million tokens) or limit calls or tokens"
        )
    return budget or Budget()
