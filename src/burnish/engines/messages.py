"""What travels between a reward server and its clients: closed schemas, JSON, one-line errors."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from burnish.errors import UserError
from burnish.lm.base import JsonObject
from burnish.records import Finish, Message, Response, Reward, Task
from burnish.rewards.scorer import Scope
from burnish.seeds import digest

T = TypeVar("T")


class MessageBody(Message, frozen=True, forbid_unknown_fields=True):
    """A message without further keys."""


class TaskBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A task: `messages`, or `prompt` for a single user message."""

    id: str = ""
    prompt: str = ""
    messages: tuple[MessageBody, ...] = ()
    fields: JsonObject = {}
    labels: tuple[str, ...] = ("answer",)
    source: str = ""

    def task(self) -> Task:
        if self.prompt and self.messages:
            raise UserError("task has both prompt and messages; expected one of them.")
        given = (Message(*msgspec.structs.astuple(one)) for one in self.messages)
        messages = tuple(given) or (Message("user", self.prompt),)
        name = self.id or digest(msgspec.json.encode((messages, self.fields), order="sorted"))
        return Task(name, messages, self.fields, self.labels, self.source)


class ResponseBody(Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    id: str = ""
    finish: Finish = Finish.STOP
    tokens: int = 0
    info: JsonObject = {}


class ScoreBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `/score`, and one item of a batch or a job."""

    task: TaskBody
    responses: tuple[ResponseBody | str, ...]

    def parts(self) -> tuple[Task, list[Response]]:
        """What a scorer takes."""
        try:
            task = self.task.task()
        except RecursionError:  # what could just be read may be too deep to be written
            raise UserError("task is nested too deeply; expected less.") from None
        if not self.responses:
            raise UserError("responses is empty; expected at least one.")
        bodies = [ResponseBody(one) if isinstance(one, str) else one for one in self.responses]
        return task, [
            Response(one.id or f"{task.id}/{place}", one.text, one.finish, one.tokens, one.info)
            for place, one in enumerate(bodies)
        ]


class BatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `/score_batch` and `/jobs`; each item is read on its own, when its turn comes."""

    items: tuple[Raw, ...]


class JobBody(Struct):
    """A job, and its results once it is done."""

    id: str
    total: int
    done: int = 0
    state: Literal["running", "done"] = "running"
    results: list[JsonObject] | None = None


class About(Struct, frozen=True):
    """What a server says of its scorer."""

    name: str
    scope: Scope
    needs: tuple[str, ...]
    fingerprint: str
    version: str = ""


class ScoreReply(Struct, frozen=True):
    fingerprint: str
    rewards: tuple[Reward, ...]


class Problem(Struct, frozen=True):
    """An error as a client reads it; `kind` is user, reward, busy or server."""

    error: str
    kind: str = "user"


def read(data: bytes | Raw, kind: type[T], what: str) -> T:
    """JSON of a closed schema, or one line that says where it differs."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{what} cannot be read: {error}.") from error


def reward_body(reward: Reward) -> JsonObject:
    """A reward with every key written out, defaults included."""
    return {**msgspec.structs.asdict(reward), "parts": [reward_body(part) for part in reward.parts]}
