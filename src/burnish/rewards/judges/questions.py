"""What is asked of a judge and what comes back: the nouns that every judge method shares.

question = Question("pair", messages, about=(task.id, a.id, b.id))
heard = await judge.ask(question, read_winner)
heard.verdict, heard.status, heard.reason, heard.evidence
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

from burnish.records import Evidence, Finish, Message, Status

V = TypeVar("V")
Reader = Callable[[str], V]
"""From the reply's text to a verdict; raises `Unreadable` where there is none."""


class Unreadable(ValueError):
    """A reply that is no verdict; the message says what was expected and what came."""


class Question(Struct, frozen=True):
    """One thing that a judge is asked."""

    kind: str
    """What for: pair, point, list, criteria, ...; named in records and forecasts."""
    messages: tuple[Message, ...]
    about: tuple[str, ...] = ()
    """Ids of the task and of the responses in the order in which they are shown."""
    vote: int = 0
    """Asked again with another number, a model that samples draws anew."""


class Reply(Struct, frozen=True, omit_defaults=True):
    """The raw words of a judge, and what they cost."""

    text: str
    model: str = ""
    finish: Finish = Finish.STOP
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    """What the reply cost when it was made."""
    is_cached: bool = False
    """True where it was not paid for now: from a cache, a record or an equal question."""
    seconds: float = 0.0
    """Wall clock of the call, queueing for the server included."""
    is_replayed: bool = False
    """True where this run paid for it before it was interrupted, and did not ask again."""


@dataclass(frozen=True)
class Heard(Generic[V]):
    """What came of a question."""

    verdict: V | None
    status: Status = Status.OK
    reason: str = ""
    replies: tuple[Reply, ...] = ()
    """Raw, the repair round included."""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The replies as evidence, the last one with the reason why it is no verdict."""
        last = len(self.replies) - 1
        return tuple(
            Evidence(
                source=reply.model,
                observation=reply.text,
                cost_usd=0.0 if reply.is_cached else reply.cost_usd,
                error=self.reason if self.verdict is None and place == last else None,
            )
            for place, reply in enumerate(self.replies)
        )
