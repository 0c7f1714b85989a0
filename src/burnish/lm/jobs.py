"""The nouns of the pool: what is to be done, under which limits, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from burnish.errors import UserError, did_you_mean
from burnish.records import Status

T = TypeVar("T")


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How hard one endpoint may be driven, and how long anything may take."""

    concurrency: int = 16
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    attempt_s: float = 120.0
    """Deadline of one request."""
    deadline_s: float = 300.0
    """Deadline of one job with all its attempts and waits, from its first request on."""
    batch_deadline_s: float = 3600.0
    """Deadline of a whole `run`, queueing included."""
    retries: int = 4
    """Further requests that one job may send, for whatever reason, a hedge included."""
    retry_share: float = 0.5
    """Further requests of the whole pool, as a share of the jobs it has started ..."""
    retry_floor: int = 16
    """... on top of this many."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    hedge_after_s: float | None = None
    """Send a second copy of a request that has taken this long; the first answer wins."""

    def __post_init__(self) -> None:
        _require("concurrency", self.concurrency, at_least=1)
        _require("retries", self.retries, at_least=0)
        _require("retry_share", self.retry_share, at_least=0)
        _require("retry_floor", self.retry_floor, at_least=0)
        _require("backoff_base_s", self.backoff_base_s, at_least=0)
        _require("backoff_cap_s", self.backoff_cap_s, at_least=0)
        for name in ("attempt_s", "deadline_s", "batch_deadline_s"):
            _require(name, getattr(self, name), above=0)
        for name in ("requests_per_minute", "tokens_per_minute"):
            if getattr(self, name) is not None:
                _require(name, getattr(self, name), at_least=1)
        if self.hedge_after_s is not None:
            _require("hedge_after_s", self.hedge_after_s, above=0)


class Job(Struct, frozen=True):
    """One piece of work."""

    id: str
    payload: Any = None
    tokens: int = 0
    """Estimate for the tokens-per-minute limit; replaced by the real count when known."""
    endpoint: str = ""


class Answer(Struct, Generic[T], frozen=True):
    """What a worker returns: a value and what it cost."""

    value: T
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Outcome(Struct, Generic[T], frozen=True, kw_only=True):
    """What came of one job. `value` is None, with a reason in `error`, unless status is ok."""

    id: str
    value: T | None
    status: Status
    error: str = ""
    attempts: int = 0
    """Requests sent, retries and hedges included."""
    seconds: float = 0.0
    tokens: int = 0
    cost_usd: float = 0.0


class Totals(Struct, kw_only=True):
    """What a pool has done and spent so far in this process."""

    ok: int = 0
    failed: int = 0
    attempts: int = 0
    hedges: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


def check_jobs(jobs: Sequence[Job], endpoints: Mapping[str, Limits], default: Limits) -> None:
    """Refuse jobs that could never be done, before the first request."""
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            raise UserError(f"two jobs have the id '{job.id}'; expected one each")
        seen.add(job.id)
        if endpoints and job.endpoint and job.endpoint not in endpoints:
            raise UserError(
                f"job '{job.id}': no endpoint '{job.endpoint}'; expected one of "
                f"{sorted(endpoints)}.{did_you_mean(job.endpoint, endpoints)}"
            )
        most = endpoints.get(job.endpoint, default).tokens_per_minute
        if most is not None and job.tokens > most:
            raise UserError(
                f"job '{job.id}': {job.tokens} tokens never fit tokens_per_minute={most:g}; "
                "raise the limit or split the job"
            )


def _require(
    name: str, value: float, *, at_least: float | None = None, above: float | None = None
) -> None:
    good = not math.isnan(value)
    good = good and (at_least is None or value >= at_least)
    good = good and (above is None or value > above)
    if not good:
        bound = f"at least {at_least}" if at_least is not None else f"more than {above}"
        raise UserError(f"limits.{name} is {value}; expected a number of {bound}")
