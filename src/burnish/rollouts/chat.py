"""A conversation of a person with a model, turn by turn.

    chat = Chat(open_lm("smollm2"), system="You are brief.", sampling=Sampling(temperature=0.7))
    reply = await chat.say("What is a kite?")
    chat.save(Path("kite.json"))

What the model wrote stays as it was sampled, token by token, as in training. A reply that fails
leaves the conversation as it was before.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import MediaError, UserError
from burnish.lm.base import LM, Sampling, TooLong
from burnish.records import Finish, MediaPart, Message, TextPart
from burnish.rollouts.session import LimitReached, Session
from burnish.seeds import derive


class Chat:
    """One model, one person, and what they said so far."""

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
            session = self._with(said)
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

    def _with(self, said: Message) -> Session:
        """A copy of the conversation, or a new one, that goes on with a message."""
        if self._session is None:
            # Each conversation draws other numbers, and the same ones when all is repeated.
            seed = derive(self.seed, "chat", self._begun)
            return Session(self.lm, [*self.messages, said], seed=seed)
        session = copy.copy(self._session)
        session.messages, session.shown = [*session.messages], [*session.shown]
        session.observe([said])
        return session

    def reset(self, system: str | None = None) -> None:
        if system is not None:
            self.system = system
        self._session, self._attached = None, ()
        self._begun += 1

    def save(self, path: Path) -> None:
        """Write the conversation as JSON, to a file that does not exist yet.

        One line of the form that `task.kind = "file"` reads with `messages`.
        """
        sampling: dict[str, Any] = msgspec.to_builtins(self.sampling)
        row = {
            "messages": [
                {"role": m.role, "content": msgspec.to_builtins(m.content)} for m in self.messages
            ],
            "model": self.lm.name,
            "sampling": {**sampling, "seed": self.seed},
        }
        try:
            with path.open("xb") as file:
                file.write(msgspec.json.encode(row) + b"\n")
        except FileExistsError:
            raise UserError(f"{path} exists already; expected the name of a new file") from None
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; name another file") from error
