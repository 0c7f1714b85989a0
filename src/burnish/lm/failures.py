"""Errors of calls to a model server.

`classify` is the one place that decides which status a failure has and whether it is worth another try.
None is a `parse_error`: that is about the words of a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from burnish.errors import BoundaryError, ModelError, NoServer
from burnish.records import Status
from burnish.texts import counted


class CallFailed(ModelError):
    """One call to a model failed. `str()` says what happened and, once retries ended, why."""

    def __init__(self, what: str, *, after_s: float | None = None, code: int = 0) -> None:
        """`after_s`: how long the server asked us to wait; `code`: the HTTP status, where it has one."""
        super().__init__(what)
        self.what, self.after_s, self.code = what, after_s, code
        self.attempts = 1
        self.gave_up = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.gave_up}" if self.gave_up else self.what


class RateLimited(CallFailed):
    """The server said 429: too many requests or tokens."""


class ServerFailed(CallFailed):
    """The server said 5xx, or 408: it gave up waiting for the request."""


class TimedOut(CallFailed):
    """A deadline passed before the answer came."""


class Unreachable(CallFailed):
    """The connection could not be made, or broke before the reply was complete."""


class NotSent(Unreachable):
    """The connection could not be made at all, so nothing was asked."""


class Rejected(CallFailed):
    """The server refused the request itself (4xx other than 408 and 429, or a redirect)."""


class BadReply(CallFailed):
    """A model server answered, in another shape than the protocol promises."""


class ForeignReply(BadReply):
    """Something else than a model server answered: a proxy's page, an error, nothing at all."""


class Refused(CallFailed):
    """The model declined to answer, or a content filter took the answer away."""


class WrongModel(CallFailed):
    """The reply says that another model wrote it."""


class Unsupported(CallFailed):
    """The server cannot do what was asked for."""


class Failure(NamedTuple):
    """What the pool makes of an error."""

    status: Status
    retry: bool
    after_s: float | None = None


UNREACHED = 3
"""Questions that find no server before a judge's work stops."""
TRIES = 5
"""Attempts to connect, of any questions, that are as much as that."""


class Reach:
    """Whether any call of a judge found a server."""

    def __init__(self) -> None:
        self.unreached = 0
        """Calls that found none, while no other did."""
        self.remedy = ""
        """What a person may do; where it is set, `note` raises `NoServer` when none is found."""
        self._tries = 0
        self._said = ""
        self._is_reached = False

    def note(self, error: BaseException | None) -> None:
        """Hear how a call ended, retries included; None: with a reply."""
        if isinstance(error, Unreachable):
            if not self._is_reached:
                self.unreached, self._said = self.unreached + 1, str(error)
                self._tries += error.attempts if isinstance(error, NotSent) else 0
            if self.remedy:
                self.check(self.remedy)
        elif error is None or (isinstance(error, CallFailed) and not isinstance(error, TimedOut)):
            # Also a refusal was written by a server.
            self._is_reached, self.unreached, self._tries = True, 0, 0

    def check(self, remedy: str) -> None:
        """Raise `NoServer` where the first questions found none: the others would not either."""
        if self.unreached >= UNREACHED or self._tries >= TRIES:
            asked = counted(self.unreached, "question")
            raise NoServer(
                f"no server answers: {self._said}; stopped after {asked} without an answer. {remedy}"
            )


EXPECTED = (BoundaryError, TimeoutError, ConnectionError)
"""Errors that belong to a job. Anything else is a bug or a wrong setting and ends the run."""


def classify(error: BaseException) -> Failure:
    """The status of an expected error and whether another attempt may help."""
    match error:
        case RateLimited() | ServerFailed():
            return Failure(Status.INFRA_ERROR, True, error.after_s)
        case TimedOut() | TimeoutError():
            return Failure(Status.TIMEOUT, True)
        case Unreachable() | ConnectionError() | ForeignReply():
            return Failure(Status.INFRA_ERROR, True)
        case Refused():
            return Failure(Status.REFUSED, False)
        case _:
            return Failure(Status.INFRA_ERROR, False)


_OF_STATUS: dict[Status, type[CallFailed]] = {
    Status.TIMEOUT: TimedOut,
    Status.REFUSED: Refused,
    Status.PARSE_ERROR: BadReply,
}


def failure_of(status: Status, reason: str) -> ModelError:
    """The error that stands for a status: what `classify` makes a status of again."""
    return _OF_STATUS.get(status, ModelError)(reason)


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds in a `Retry-After` header (a number or a date), or None where it says nothing."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def failure_of_code(code: int, what: str, after_s: float | None = None) -> CallFailed:
    """The failure that an HTTP status tells of."""
    if code == 429:
        return RateLimited(what, after_s=after_s)
    kind = ServerFailed if code >= 500 or code == 408 else Rejected
    return kind(what, after_s=after_s, code=code)


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Let an error surface as itself, not wrapped in the groups of the tasks it happened in."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None
