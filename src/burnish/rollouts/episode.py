"""One run of an agent program: its requests, matched to sessions.

A program knows messages, a session knows tokens. A request that extends a conversation goes on in
its `Session`, so that what was sampled stays what is read and trained; one that goes on from an
earlier reply (another try, a branch) reads the same tokens and trains its own reply alone; every
other one opens another conversation of the same episode. A request that fails, or whose program
hangs up, leaves no trace in the tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import anyio
import msgspec

from burnish.concurrency import gather
from burnish.errors import UserError
from burnish.lm.base import JsonObject, TooLong
from burnish.records import Task
from burnish.rollouts.base import Players
from burnish.rollouts.endpoint import BadRequest, ChatRequest, Reply, key_of, message_key
from burnish.rollouts.session import LimitReached, Mark, Session, renderer_of
from burnish.rollouts.tool import Tool, ToolForm, messages_behind, tool_form, whole_conversation
from burnish.seeds import derive, digest

MOST_REFUSED = 100
"""Requests that an episode may send in vain before its program is ended."""
MOST_PAST_LIMIT = 8
MOST_CHARACTERS = 128
"""Of one token: no vocabulary has many that are longer."""
OVERLONG = "context_length_exceeded"
"""What the protocol calls a prompt that is too long."""


class Point(NamedTuple):
    length: int
    mark: Mark


@dataclass(eq=False)
class Conversation:
    session: Session
    offer: str
    """Which tools were offered: they stand in the prompt."""
    keys: list[str]
    points: list[Point] = field(default_factory=list)
    is_busy: bool = False

    def extended_by(self, keys: Sequence[str], is_reply: Sequence[bool]) -> Point | None:
        """The last reply behind which the messages go on; None where they do not."""
        for point in reversed(self.points):
            is_new = len(keys) > point.length and not any(is_reply[point.length :])
            if is_new and list(keys[: point.length]) == self.keys[: point.length]:
                return point
        return None

    def at(self, point: Point, session: Session) -> Conversation:
        """Another one that begins with this one up to the point."""
        points = self.points[: self.points.index(point) + 1]
        return Conversation(session, self.offer, self.keys[: point.length], points)


class Episode:
    """One rollout of a task by a program, as the endpoint sees it."""

    def __init__(self, task: Task, players: Players, *, most_tokens: int, in_rounds: bool) -> None:
        """`in_rounds`: a reply waits until every episode of the step waits for one."""
        self.task, self.most_tokens = task, most_tokens
        self.players = players if in_rounds else replace(players, rounds=None)
        self.conversations: list[Conversation] = []
        self.turns = self.requests = self.refused = 0
        self.limit = ""
        self.refusal = ""
        self.error: BaseException | None = None
        self.over = anyio.Event()
        """Set where the program is to be ended."""
        self.is_overlong = False
        self._past_limit = 0
        self._asked: Counter[str] = Counter()
        self._forms: dict[str, ToolForm] = {}
        self._running: set[anyio.CancelScope] = set()
        self._was_parallel = False

    # --- what the endpoint calls

    async def answer(self, asked: ChatRequest) -> list[Reply]:
        """The replies to a request; `BadRequest` where it is refused."""
        self.requests += 1
        self._was_parallel |= bool(self._running)
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                return await self._answer(asked)
            except (BadRequest, LimitReached, UserError) as error:
                raise self._refuse(error) from None
            except Exception as error:
                # Ours, not the program's: it fails the rollout, or is a bug and ends the run.
                self.error = self.error or error
                self.over.set()
                raise
            finally:
                self._running.discard(scope)
        raise BadRequest("the episode has ended", "episode_over")

    def refuse(self, error: Exception) -> BadRequest:
        """Count a request that could not even be read."""
        self.requests += 1
        return self._refuse(error)

    def close(self) -> None:
        for scope in tuple(self._running):
            scope.cancel()

    def sessions(self) -> list[Session]:
        """Those that the model spoke in, in the order in which they were opened."""
        found = [c.session for c in self.conversations if c.session.turns]
        # Requests that were under way together have no order of their own.
        return sorted(found, key=lambda s: s.seed) if self._was_parallel else found

    @property
    def counts(self) -> dict[str, int]:
        """For the trajectory's `info`."""
        return {
            "requests": self.requests,
            "refused": self.refused,
            "conversations": len(self.sessions()),
        }

    # --- how a request is answered

    async def _answer(self, asked: ChatRequest) -> list[Reply]:
        limits = self.players.limits
        if self.limit or self.turns + asked.n > limits.turns:
            raise LimitReached(self.limit or "turns")
        self.turns += asked.n
        try:
            form = self._form(asked.tools)
            keys = [key_of(message) for message in asked.messages]
            own = self._continued(asked, keys, form) or self._opened(asked, keys, form)
            return await self._generate(own, asked, form)
        except BaseException:
            self.turns -= asked.n
            raise

    def _refuse(self, error: Exception) -> BadRequest:
        """The refusal that the program gets. A prompt that is too long it may shorten; every other
        limit stays reached."""
        self.refused += 1
        match error:
            case BadRequest():
                found = error
            case TooLong():
                found = BadRequest(error.what, OVERLONG)
            case LimitReached() if str(error) == "context":
                found = BadRequest("the conversation fills the model's context", OVERLONG)
            case LimitReached():
                self.limit = self.limit or str(error)
                self._past_limit += 1
                found = BadRequest(f"the episode has reached its limit of {self.limit}", "limit")
            case _:
                found = BadRequest(str(error))
        self.is_overlong |= found.code == OVERLONG
        self.refusal = str(found)
        if self.refused >= MOST_REFUSED or self._past_limit > MOST_PAST_LIMIT:
            self.over.set()
        return found

    def _form(self, tools: Sequence[JsonObject]) -> ToolForm | None:
        """How the model is offered the tools of a request; found once for each set of them."""
        if not tools:
            return None
        offer = _offer(tools)
        if offer not in self._forms:
            offered = [Tool.offered(tool) for tool in tools]
            self._forms[offer] = tool_form(renderer_of(self.players.lm), offered)
        return self._forms[offer]

    def _continued(
        self, asked: ChatRequest, keys: list[str], form: ToolForm | None
    ) -> list[_Turn] | None:
        """The conversation that a request extends, `n` times; None where it extends none."""
        offer = _offer(asked.tools)
        is_reply = [message.role == "assistant" for message in asked.messages]
        point, known, is_free = None, None, False
        for one in self.conversations:
            found = one.extended_by(keys, is_reply) if one.offer == offer else None
            if found is None:
                continue
            # The longest; of several as long, the first that goes on from its end.
            own_end = found == one.points[-1] and not one.is_busy
            if point is None or (found.length, own_end) > (point.length, is_free):
                point, known, is_free = found, one, own_end
        if point is None or known is None:
            return None
        new = list(asked.messages[point.length :])
        turns = []
        for number in range(asked.n):
            one = known
            if number or not is_free:
                one = known.at(point, known.session.fork(point.mark, self._seed(keys)))
            turn = _Turn(one, point.mark, is_new=one is not known)
            one.is_busy = True
            turns.append(turn)
            try:
                one.session.observe(messages_behind(form, new), new)
            except UserError:
                # A template that cannot append these messages; they open a conversation instead.
                for made in turns:
                    made.undo()
                return None
            one.keys = list(keys)
        return turns

    def _opened(self, asked: ChatRequest, keys: list[str], form: ToolForm | None) -> list[_Turn]:
        """A conversation that begins with the request, `n` times."""
        # Before it is cut into tokens, which would take seconds for megabytes and hold up others.
        size, most = sum(len(m.text) for m in asked.messages), self.most_tokens
        if size > most * MOST_CHARACTERS:
            raise BadRequest(
                f"a prompt of {size} characters; rollout.max_prompt_tokens is {most}", OVERLONG
            )
        messages = whole_conversation(form, asked.messages)
        schemas = form.schemas if form is not None else ()
        turns = []
        for _ in range(asked.n):
            # Not listed: the conversation joins the episode once it has a reply.
            session = self.players.session(messages, tools=schemas, is_listed=False)
            session.seed = self._seed(keys)
            length = len(session.token_ids)
            if length > most:
                raise BadRequest(
                    f"a prompt of {length} tokens; rollout.max_prompt_tokens is {most}", OVERLONG
                )
            conversation = Conversation(session, _offer(asked.tools), list(keys), is_busy=True)
            turns.append(_Turn(conversation, session.mark, is_new=True))
        return turns

    async def _generate(
        self, turns: Sequence[_Turn], asked: ChatRequest, form: ToolForm | None
    ) -> list[Reply]:
        base = self.players.sampling
        tokens = self.players.turn_tokens or base.max_tokens
        sampling = msgspec.structs.replace(
            base,
            max_tokens=min(tokens, asked.max_tokens or tokens),
            stop=tuple(dict.fromkeys((*base.stop, *asked.stop))),
        )
        players = replace(self.players, sampling=sampling, turn_tokens=0)
        sessions = [turn.conversation.session for turn in turns]
        read = len(sessions[0].token_ids)
        try:
            await gather([partial(players.generate, session) for session in sessions])
        except BaseException:
            for turn in turns:
                turn.undo()
            raise
        replies = []
        for turn in turns:
            reply = self._reply(turn.conversation.session, asked, form, read)
            self._keep(turn, reply)
            replies.append(reply)
        return replies

    def _keep(self, turn: _Turn, reply: Reply) -> None:
        conversation, session = turn.conversation, turn.conversation.session
        if reply.calls:
            called = tuple(call.as_dict() for call in reply.calls)
            session.shown[-1] = msgspec.structs.replace(session.shown[-1], tool_calls=called)
        conversation.keys.append(message_key("assistant", reply.content, reply.calls))
        conversation.points.append(Point(len(conversation.keys), session.mark))
        conversation.is_busy = False
        if turn.is_new:
            self.conversations.append(conversation)
            self.players.sessions.append(session)

    def _reply(
        self, session: Session, asked: ChatRequest, form: ToolForm | None, read: int
    ) -> Reply:
        text, span = session.text, session.spans[-1]
        calls = tuple(call for call in form.parse(text) if not call.problem) if form else ()
        renderer = renderer_of(session.lm)
        tokens: tuple[tuple[str, float], ...] = ()
        if asked.has_logprobs and renderer is not None:
            tokens = tuple(
                (renderer.decode([token], skip_special=False), value)
                for token, value in zip(span.token_ids, span.logprobs, strict=False)
            )
        name = f"{session.seed} {session.turns}"
        before, mark, _ = text.partition("<tool_call>")
        outside = before.strip() if mark else ""
        return Reply(
            outside if calls else text,
            calls,
            tuple(f"call_{digest(name, str(place))}" for place in range(len(calls))),
            session.finish,
            tokens,
            read,
            len(span.token_ids),
        )

    def _seed(self, keys: Sequence[str]) -> int:
        """Of what is asked, and of how often it was asked before."""
        asked = digest(*keys)
        self._asked[asked] += 1
        return derive(self.players.sampling.seed, asked, self._asked[asked])


@dataclass(eq=False)
class _Turn:
    conversation: Conversation
    before: Mark
    is_new: bool

    def undo(self) -> None:
        """Nobody got the reply: as if it had never been asked for."""
        conversation = self.conversation
        conversation.is_busy = False
        if not self.is_new:
            conversation.session.rewind(self.before)
            conversation.keys = conversation.keys[: conversation.points[-1].length]


def _offer(tools: Sequence[JsonObject]) -> str:
    return digest(json.dumps(tools, sort_keys=True)) if tools else ""
