"""A conversation with one model, kept as the tokens that it really read and wrote.

Sampled tokens are never decoded and encoded again: what was sampled is what is trained. What comes
between two replies (the end of the turn, tool results, the next generation prompt) is the
difference that the chat template itself makes when the new messages are added. Only MODEL spans
are trainable, so the loss mask is 0 on everything else.

A model without a tokenizer here (a server) is asked with messages; its trajectory has the texts and
whatever token ids the server returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from burnish.boundary import Count, NonNegative, Positive, PositiveInt, Settings
from burnish.errors import ArgumentError, MediaError, UserError
from burnish.lm.base import (
    LM,
    Completion,
    JsonObject,
    Messages,
    Sampling,
    TooLong,
    ids_of,
    media_of,
)
from burnish.records import (
    Author,
    Finish,
    MediaPart,
    Message,
    Span,
    Status,
    Task,
    TextPart,
    Trajectory,
)
from burnish.seeds import derive

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer


class Limits(Settings, frozen=True, kw_only=True):
    """How far one rollout may go. A task's field `limits` holds its own, with the same keys."""

    turns: PositiveInt = 8
    """Replies of the model, in each role."""
    tokens: Count = 0
    """Sampled tokens of all turns of a role; 0: no limit."""
    time_s: Positive = 300.0
    """Wall clock of a rollout; beyond it the rollout fails with status timeout."""
    cost_usd: NonNegative = 0.0
    """What a server may charge for a rollout; 0: no limit."""

    def of_task(self, task: Task) -> Limits:
        own = task.fields.get("limits")
        if own is None:
            return self
        try:
            return msgspec.structs.replace(self, **own)
        except (TypeError, ArgumentError) as error:
            known = ", ".join(self.__struct_fields__)
            raise UserError(
                f"task {task.id}: field 'limits' is {own!r:.80} ({error}); expected any of {known}"
            ) from None


NO_LIMITS = Limits(turns=1_000_000_000)


class LimitReached(Exception):
    """A session has used up a limit: the rollout ends here, cut but valid."""


@contextmanager
def naming_task(*tasks: Task) -> Iterator[None]:
    """Say whose image or sound it is that a model cannot read."""
    try:
        yield
    except MediaError as error:
        sha256 = error.sha256
        holds = [t for t in tasks if sha256 in {part.sha256 for part in t.media}]
        named = holds[:1] if sha256 else tasks[: len(tasks) == 1]
        if not named or str(error).startswith("task "):
            raise
        raise MediaError(f"task {named[0].id}: {error}", sha256=sha256) from None


def renderer_of(lm: LM) -> Tokenizer | None:
    """The model's own tokenizer, where it is in this process."""
    found = getattr(lm, "tokenizer", None)
    # Not isinstance: asking a protocol takes longer than opening a session.
    return found if hasattr(found, "render_spans") else None


class Mark(NamedTuple):
    spans: int
    messages: int
    shown: int
    turns: int
    sampled: int
    text: str
    finish: Finish


class Session:
    """One role's conversation. `generate`, `branch`, `observe` and `append` add spans; nothing
    else does."""

    def __init__(
        self,
        lm: LM,
        messages: Messages,
        *,
        tools: Sequence[JsonObject] = (),
        role: str = "policy",
        group: str = "",
        seed: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """`tools` are JSON schemas that the chat template offers; `group` tells baseline groups of
        one task and role apart."""
        self.lm, self.role, self.group, self.seed = lm, role, group, seed
        self.limits = limits or NO_LIMITS
        renderer = renderer_of(lm)
        self._renderer = renderer.with_tools(tools) if renderer and tools else renderer
        self.messages = list(messages)
        self.spans = self._renderer.render_spans(messages) if self._renderer else ()
        self.shown: list[Message] = []
        """The turns behind the prompt as scorers and people see them."""
        self.turns = self.sampled = 0
        self.cost_usd = 0.0
        self.weight_version: int | None = None
        """The oldest weights that wrote any of it; None: not known."""
        self.finish = Finish.STOP
        self.text = ""
        self.info: JsonObject = {}
        """What else the trajectory is to know, such as the environment's `rewards`."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """What the model reads next, with the media of its placeholder tokens."""
        return ids_of(self.spans)

    async def generate(self, sampling: Sampling) -> Message:
        """One reply; `LimitReached` where a limit leaves no room for it."""
        limits = self.limits
        for name, limit, used in (
            ("turns", limits.turns, self.turns),
            ("cost_usd", limits.cost_usd, self.cost_usd),
            ("tokens", limits.tokens, self.sampled),
        ):
            if limit and used >= limit:
                raise LimitReached(name)
        room = limits.tokens and limits.tokens - self.sampled
        own = msgspec.structs.replace(
            sampling,
            n=1,
            seed=derive(self.seed, self.turns),
            max_tokens=min(sampling.max_tokens, room or sampling.max_tokens),
        )
        try:
            (completion,) = await self.lm.sample(self.token_ids or self.messages, own)
        except TooLong:
            if not self.turns:
                raise
            raise LimitReached("context") from None
        return self._append(completion)

    async def branch(self, sampling: Sampling) -> list[Session]:
        """`sampling.n` copies of this session, each with its own reply to the same prompt."""
        completions = await self.lm.sample(self.token_ids or self.messages, sampling)
        branches = []
        for completion in completions:
            own = self.copy()
            own._append(completion)
            branches.append(own)
        return branches

    def copy(self) -> Session:
        """A session that goes on by itself from where this one stands."""
        # Not copy.copy(), which takes longer than everything else in a branch.
        own = object.__new__(Session)
        own.__dict__.update(self.__dict__)
        own.messages, own.shown, own.info = [*self.messages], [*self.shown], {**self.info}
        return own

    def observe(self, messages: Messages, shown: Messages = ()) -> None:
        """Add what the environment says; the model answers next.

        `shown` is how scorers and people see the messages, where that differs.
        """
        if self._renderer:
            self.spans = (*self.spans, *self._difference(self._renderer, messages))
        self.messages += messages
        self.shown += shown or messages

    def append(
        self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()
    ) -> tuple[int, ...]:
        """Add a reply that was written elsewhere, and return its tokens.

        Without token ids the text is encoded behind the conversation, and the end of the turn is
        added. The span is trainable where its log-probs are given.
        """
        ids = tuple(token_ids)
        if not ids and self._renderer:
            ids = self._encoded(self._renderer, text)
        span = Span(Author.MODEL, ids, tuple(logprobs), trainable=bool(ids and logprobs))
        self.spans = (*self.spans, span)
        self._said(text, len(ids))
        return ids

    @property
    def mark(self) -> Mark:
        """Where the session stands, for `rewind` and `fork`."""
        counts = len(self.spans), len(self.messages), len(self.shown), self.turns, self.sampled
        return Mark(*counts, self.text, self.finish)

    def rewind(self, mark: Mark) -> None:
        """Forget what came after the mark; what it cost stays counted."""
        self.spans = self.spans[: mark.spans]
        self.messages, self.shown = self.messages[: mark.messages], self.shown[: mark.shown]
        self.turns, self.sampled, self.text, self.finish = mark[3:]

    def fork(self, mark: Mark, seed: int) -> Session:
        """Another session that goes on from the mark with the same tokens.

        The replies before the mark are read there as they were sampled, and trained here alone.
        """
        own = self.copy()
        own.rewind(mark)
        own.seed, own.cost_usd = seed, 0.0
        own.spans = tuple(Span(s.author, s.token_ids, media=s.media) for s in own.spans)
        return own

    def train_on(self, logprobs: Sequence[float]) -> None:
        *before, last = self.spans
        trained = Span(last.author, last.token_ids, tuple(logprobs), trainable=True)
        self.spans = (*before, trained)

    def trajectory(
        self,
        task: Task,
        index: int = 0,
        *,
        finish: Finish | None = None,
        status: Status = Status.OK,
        reason: str = "",
    ) -> Trajectory:
        info = self.info
        if len(self.shown) > 1:
            info = {"messages": msgspec.to_builtins(self.shown), "turns": self.turns, **info}
        role = "" if self.role == "policy" else f".{self.role}"
        return Trajectory(
            id=f"{task.id}.{index}{role}",
            task_id=task.id,
            group=f"{task.id}{role}{'.' if self.group else ''}{self.group}",
            spans=self.spans,
            text=self.text,
            role=self.role,
            finish=finish or self.finish,
            weight_version=self.weight_version,
            info=info,
            status=status,
            reason=reason,
        )

    def _append(self, completion: Completion) -> Message:
        ids, logprobs = completion.token_ids, completion.logprobs
        if not self.spans and completion.prompt_ids:
            read = completion.prompt_ids
            self.spans = (Span(Author.PROMPT, tuple(read), media=media_of(read)),)
        is_whole = len(ids) == len(logprobs)
        span = Span(Author.MODEL, ids, logprobs if is_whole else (), trainable=is_whole)
        self.spans = (*self.spans, span)
        self.finish = completion.finish
        self.cost_usd += completion.cost_usd
        versions = (self.weight_version, completion.weight_version)
        self.weight_version = min((v for v in versions if v is not None), default=None)
        if completion.top_logprobs:
            self.info["top_logprobs"] = msgspec.to_builtins(completion.top_logprobs, str_keys=True)
        if completion.weight_runs:
            runs = {str(self.turns): [list(run) for run in completion.weight_runs]}
            self.info["weight_versions"] = {**self.info.get("weight_versions", {}), **runs}
        if completion.unmasked:
            self.info["unmasked"] = [*self.info.get("unmasked", ()), list(completion.unmasked)]
        return self._said(completion.text, len(ids) or completion.completion_tokens)

    def _said(self, text: str, tokens: int) -> Message:
        reply = Message("assistant", text)
        self.messages.append(reply)
        self.shown.append(reply)
        self.turns += 1
        self.sampled += tokens
        self.text = text
        return reply

    def _difference(self, renderer: Tokenizer, new: Messages) -> tuple[Span, ...]:
        """What the template writes behind the last reply when the messages are added.

        Most templates show it where the reply's turn ends (`after_reply`). Else, first choice: the
        conversation with the new messages begins, token by token, with the conversation without
        them. A template that rewrites earlier turns (Qwen 3 drops thoughts) breaks that; then the new
        part is what two renderings have in common behind two different replies, and it has to hold
        every new message. Sampled tokens stay as they are either way.
        """
        history = self.messages
        if history[-1].role != "assistant":
            raise UserError("a session observes after a reply; generate one first")
        own = self.spans[-1].token_ids[-1:]
        has_ended = bool(own) and own[0] in renderer.eos_ids
        seen = renderer.after_reply(history, new)
        if seen and (not has_ended or own == seen[0].token_ids[:1]):
            return _observed(_drop(seen, int(has_ended)))
        before = renderer.render_spans(history, add_generation_prompt=False)
        known, after = _ids(before), renderer.render_spans([*history, *new])
        end = self._common_end(renderer, (), add_generation_prompt=False, own=before)
        if _ids(after)[: len(known)] == known:
            added = _drop(after, len(known))
            is_shown = _holds(renderer, added, new)
            if not is_shown and _ids(after) == _ids(renderer.render_spans(history)):
                self._refuse("leaves out", new)
            written = [*end, *added]
        else:
            written = self._common_end(renderer, new, add_generation_prompt=True)
            if not _holds(renderer, written, new):
                self._refuse("rewrites earlier turns for", new)
        ended = _ids(written)[: len(_ids(end))]
        # A reply that ended by itself has already written the token with which a turn ends.
        if has_ended and own[0] in ended:
            written = _drop(written, ended.index(own[0]) + 1)
        return _observed(written)

    def _common_end(
        self,
        renderer: Tokenizer,
        new: Messages,
        *,
        add_generation_prompt: bool,
        own: Sequence[Span] = (),
    ) -> list[Span]:
        """What follows the last reply whatever it says: the same behind two different ones.

        `own` is the conversation rendered as it is. It saves one of the two where a turn ends with
        an end token; another text may have grown together with the end of the reply.
        """

        def behind(word: str) -> Sequence[Span]:
            return renderer.render_spans(
                [*self.messages[:-1], Message("assistant", word), *new],
                add_generation_prompt=add_generation_prompt,
            )

        first = behind("8" if self.messages[-1].text.rstrip().endswith("a") else "a")
        end = _common(first, own)
        if end and end[0].token_ids[0] in renderer.eos_ids:
            return end
        return _common(first, behind("b"))

    def _refuse(self, does: str, new: Messages) -> NoReturn:
        roles = ", ".join(message.role for message in new)
        raise UserError(
            f"the chat template of '{self.lm.name}' {does} messages of roles [{roles}], so that "
            "what is new cannot be added to what was sampled; multi-turn rollouts need a template "
            "that appends. Mend chat_template.jinja of the model."
        )

    def _encoded(self, renderer: Tokenizer, text: str) -> tuple[int, ...]:
        place = renderer.behind(self.messages, text)
        prompt, joined = place.encode(place.before), place.encode(place.before + place.text)
        is_prefix = joined[: len(prompt)] == prompt
        ids = joined[len(prompt) :] if is_prefix else place.encode(place.text)
        self.messages.append(Message("assistant", text))
        end = _ids(self._common_end(renderer, (), add_generation_prompt=False))
        self.messages.pop()
        ended = [token for token in end[:1] if token in renderer.eos_ids] or renderer.eos_ids[:1]
        return (*ids, *ended)


class Chat:
    """A conversation of a person with a model; a reply that fails leaves it as it was before."""

    def __init__(
        self, lm: LM, *, system: str = "", sampling: Sampling | None = None, seed: int = 0
    ) -> None:
        self.lm, self.system, self.seed = lm, system, seed
        self.sampling = sampling or Sampling()
        self._session: Session | None = None
        self._begun = 0
        self._attached: tuple[MediaPart, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """The conversation, the system message first where there is one."""
        if self._session is not None:
            return list(self._session.messages)
        return [Message("system", self.system)] if self.system else []

    @property
    def is_cut(self) -> bool:
        return self._session is not None and self._session.finish is Finish.LENGTH

    def attach(self, *media: MediaPart) -> None:
        """Images and sounds that go with the next message."""
        self._attached += media

    async def say(self, text: str) -> str:
        if not text.strip():
            raise UserError("chat: the message is empty; expected some text")
        media = self._attached
        said = Message("user", (*media, TextPart(text)) if media else text)
        try:
            if self._session is None:
                # Each conversation draws other numbers, and the same ones when all is repeated.
                seed = derive(self.seed, "chat", self._begun)
                session = Session(self.lm, [*self.messages, said], seed=seed)
            else:
                session = self._session.copy()
                session.observe([said])
            reply = await session.generate(self.sampling)
        except (TooLong, LimitReached):
            raise UserError(
                f"the conversation is longer than '{self.lm.name}' can read; /reset begins a new one"
            ) from None
        except MediaError:
            # The next message would fail of the same image or sound.
            self._attached = ()
            raise
        self._session, self._attached = session, ()
        return reply.text

    def reset(self, system: str | None = None) -> None:
        if system is not None:
            self.system = system
        self._session, self._attached = None, ()
        self._begun += 1

    def save(self, path: Path) -> None:
        """Write the conversation as JSON, to a file that does not exist yet.

        One line of the form that `task.kind = "file"` reads with `messages`.
        """
        row = {
            "messages": [{"role": m.role, "content": m.content} for m in self.messages],
            "model": self.lm.name,
            "sampling": msgspec.structs.replace(self.sampling, seed=self.seed),
        }
        try:
            with path.open("xb") as file:
                file.write(msgspec.json.encode(row) + b"\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; name a new file") from error


def _ids(spans: Sequence[Span]) -> list[int]:
    return [token for span in spans for token in span.token_ids]


def _common(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    ids, others = _ids(first), _ids(second)
    common = 0
    while common < min(len(ids), len(others)) and ids[-1 - common] == others[-1 - common]:
        common += 1
    return _drop(first, len(ids) - common)


def _holds(renderer: Tokenizer, spans: Sequence[Span], messages: Messages) -> bool:
    """Whether the texts and the media of every message stand in the spans."""
    text = renderer.decode(_ids(spans), skip_special=False)
    media = [part for span in spans for part in span.media]
    if media != [part for message in messages for part in message.media]:
        return False
    return all(own.strip() in text for message in messages for own in message.texts)


def _drop(spans: Sequence[Span], count: int) -> list[Span]:
    rest = []
    for span in spans:
        if count < len(span.token_ids):
            # An image's tokens are a span of their own: what is cut has none.
            rest.append(Span(span.author, span.token_ids[count:]) if count else span)
        count = max(0, count - len(span.token_ids))
    return rest


def _observed(spans: Sequence[Span]) -> tuple[Span, ...]:
    """What the template wrote stays the template's; everything else is an observation."""
    found = []
    for is_template, group in groupby(spans, key=lambda span: span.author is Author.TEMPLATE):
        ids = ids_of(group)
        author = Author.TEMPLATE if is_template else Author.TOOL
        found.append(Span(author, tuple(ids), media=media_of(ids)))
    return tuple(found)
