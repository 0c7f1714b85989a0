"""The log of calls to models: cache, record, replay, and the journal of a run, in one file format.

A log is a JSON-lines file with one `Call` a line, under one key: the hash of model, prompt and
sampling. Raw answers are kept and not what was made of them, so another reader, weighting or rule
can be tried on the same answers. Who uses a log for what:
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.arguments import as_path
from burnish.errors import StoreError, UserError
from burnish.lm.base import Completion, Prompt, Sampling, Scores, TokenIds, media_of
from burnish.lm.budget import Budget, Cost, Spent
from burnish.lm.failures import Reach
from burnish.lm.lines import LineFile, read_lines
from burnish.records import Finish, Message, Status
from burnish.seeds import digest
from burnish.store.durable import write_file

logger = logging.getLogger(__name__)
T = TypeVar("T")

MOST_IN_MEMORY = 20_000
"""Different calls that a log in memory holds; the oldest goes first."""


class Account(Struct, frozen=True):
    """What one judge has spent, and what its calls under way may still cost."""

    spent: Spent = Spent()
    held: Cost = Cost()
    under_way: int = 0


class Call(Struct, frozen=True, omit_defaults=True):
    """One call and its answer; a log fills in what it is for."""

    key: str
    model: str
    messages: tuple[Message, ...] = ()
    """The prompt; a cache and a journal leave it out."""
    prompt_ids: tuple[int, ...] = ()
    sampling: Sampling | None = None
    """None where the call was `score`."""
    completions: tuple[Completion, ...] = ()
    response_ids: tuple[int, ...] = ()
    scores: Scores | None = None
    kind: str = ""
    about: tuple[str, ...] = ()
    """Ids of the task and of the responses, in the order in which they were shown."""
    vote: int = 0
    round: int = 0
    """0: the question; 1: its first repair."""
    status: Status = Status.OK
    reason: str = ""
    is_cached: bool = False
    seconds: float = 0.0
    identity: str = ""
    """Which model of that name: a server's address, a digest of weights (`model_key`)."""
    scope: str = ""
    owner: str = ""
    account: Account | None = None

    @property
    def is_answered(self) -> bool:
        """Whether it holds an answer that may stand for the next equal call."""
        failed = any(one.finish is Finish.ERROR for one in self.completions)
        return bool(self.completions or self.scores or self.account) and not failed

    @property
    def place(self) -> str:
        """What an equal call has in common with it."""
        return "\t".join((self.scope, self.owner, self.identity, self.key))

    @property
    def prompt_text(self) -> str:
        """The prompt for people."""
        if self.prompt_ids:
            return " ".join(map(str, self.prompt_ids))
        return "\n".join(message.text for message in self.messages)


def asked_sample(model: str, prompt: Prompt, sampling: Sampling, identity: str = "") -> Call:
    """One call of `sample`, still without its answer."""
    messages = tuple(item for item in prompt if isinstance(item, Message))
    ids = tuple(item for item in prompt if isinstance(item, int))
    key = _key(prompt, "sample", model, messages, ids, sampling)
    return Call(key, model, messages, ids, sampling, identity=identity)


def asked_score(
    model: str, prompt_ids: TokenIds, response_ids: TokenIds, identity: str = ""
) -> Call:
    """One call of `score`, still without its answer."""
    ids, response = tuple(prompt_ids), tuple(response_ids)
    key = _key(prompt_ids, "score", model, ids, response, 0)  # the 0 as in logs of old
    return Call(key, model, prompt_ids=ids, response_ids=response, identity=identity)


def _key(prompt: object, *parts: object) -> str:
    # Equal ids may stand for another picture.
    seen = (*parts, media) if (media := media_of(prompt)) else parts
    try:
        return digest(*(msgspec.json.encode(part, order="deterministic") for part in seen))
    except UnicodeEncodeError as error:
        raise UserError(
            f"the prompt cannot be written as UTF-8 ({error.reason}); it holds half a character"
        ) from None


def _nth(found: Sequence[T], number: int) -> T | None:
    return found[number] if -len(found) <= number < len(found) else None


def read_calls(path: str | Path) -> list[Call]:
    """Every call of a log, in the order of asking."""
    return read_lines(Path(path).expanduser(), Call)


class CallLog:
    """Calls in a file that several processes may share, or in memory.

    A file that is something else is refused at once, before a call is paid. Without `is_needed` a
    failure to write is a warning, said once, and the log is not written again.
    """

    def __init__(self, path: str | Path | None = None, *, is_needed: bool = True) -> None:
        self.path = None if path is None else as_path("path", path).expanduser()
        self.is_needed, self.is_broken = is_needed, False
        self._memory: dict[str, list[Call]] = {}
        self._starts: dict[str, list[int]] | None = None
        """Where the answered calls of a file begin; made when the first is looked for."""
        self._file: LineFile[Call] | None = None
        # invariant: the file is read and its index brought up to date in one step
        self._lock = threading.RLock()
        if self.path is not None and self.path.exists():
            self._opened(self.path)

    def find(self, asked: Call, number: int = 0) -> Call | None:
        """The answered call that is equal to this one: the first, or that of this number."""
        with self._lock:
            if self.path is None:
                return _nth(self._memory.get(asked.place, []), number)
            if self._file is None and not self.path.exists():
                return None
            file = self._opened(self.path)
            if self._starts is None:
                self._starts = {}
                file.refresh(anew=True)
                self._index(file)
            start = _nth(self._starts.get(asked.place, []), number)
            if start is None:
                file.refresh()
                self._index(file)
                start = _nth(self._starts.get(asked.place, []), number)
            return None if start is None else file.at(start)

    def append(self, call: Call) -> None:
        """Add one call."""
        with self._lock:
            if self.path is None:
                if call.is_answered:
                    self._memory.setdefault(call.place, []).append(call)
                if len(self._memory) > MOST_IN_MEMORY:
                    del self._memory[next(iter(self._memory))]
            elif self.is_needed:
                self._append(self.path, call)
            elif not self.is_broken:
                try:
                    self._append(self.path, call)
                except StoreError as error:
                    self.is_broken = True
                    logger.warning("%s. Calls are not kept there any more.", error)

    def keep_only(self, wanted: Callable[[Call], bool]) -> None:
        """Leave out all other calls; a kill on the way leaves the file as it was."""
        if self.path is None or not self.path.exists():
            return
        with self._lock:
            kept = [msgspec.json.encode(call) for call in read_calls(self.path) if wanted(call)]
            write_file(self.path, b"".join(line + b"\n" for line in kept), is_synced=False)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._file is not None:
                file, self._file, self._starts = self._file, None, None
                file.__exit__(None, None, None)

    def _opened(self, path: Path) -> LineFile[Call]:
        if self._file is not None and self._file.is_gone:
            self.close()
        if self._file is None:
            self._file = LineFile(path, Call, shared=True).__enter__()
            self._file.records.clear()  # checked while they were read; nobody needs them yet
        return self._file

    def _append(self, path: Path, call: Call) -> None:
        file = self._opened(path)
        start = file.append(call)
        self._index(file)
        if self._starts is not None and call.is_answered:
            self._starts.setdefault(call.place, []).append(start)

    def _index(self, file: LineFile[Call]) -> None:
        if self._starts is not None:
            for start, call in zip(file.starts, file.records, strict=True):
                if call.is_answered:
                    self._starts.setdefault(call.place, []).append(start)


# --- the journal of a training run


class Paid:
    """A judge's part of a run's journal; outside a run nothing is kept."""

    def __init__(self) -> None:
        self.replies: PaidReplies | None = None
        self.name = ""

    def read(self, asked: Call) -> Call | None:
        """The call that this part of the run has paid for already."""
        return None if self.replies is None else self.replies.read(replace(asked, owner=self.name))

    def write(self, call: Call) -> None:
        """Keep a call that was paid for now."""
        if self.replies is not None:
            self.replies.write(replace(call, owner=self.name))


class PaidJudge(Protocol):
    """A judge that keeps what it was paid for."""

    @property
    def name(self) -> str: ...

    @property
    def paid(self) -> Paid: ...

    @property
    def reach(self) -> Reach: ...


_built: ContextVar[list[PaidJudge] | None] = ContextVar("burnish_judges_built", default=None)


@contextmanager
def judges_built() -> Iterator[list[PaidJudge]]:
    """Every judge that is made inside."""
    judges: list[PaidJudge] = []
    token = _built.set(judges)
    try:
        yield judges
    finally:
        _built.reset(token)


def note_judge(judge: PaidJudge) -> None:
    """Tell `judges_built` of a new judge."""
    if (judges := _built.get()) is not None:
        judges.append(judge)


class PaidReplies:
    """Replies and spendings of a run's judges, in a log in the run's folder."""

    def __init__(self, folder: Path, judges: Sequence[PaidJudge], *, rank: int = 0) -> None:
        """Of several processes each has a file of its own."""
        self.path = folder / (f"judges-{rank}.jsonl" if rank else "judges.jsonl")
        self._scope = ""
        self._numbers: Counter[str] = Counter()
        """How many replies to the same question this part of the run has had."""
        # invariant: a number is read and counted in one step, so no reply is taken twice
        self._lock = threading.Lock()
        self._judges = tuple(judges)
        self._budgets: list[Budget] = []
        try:
            self._log = CallLog(self.path, is_needed=False)
            for number, judge in enumerate(judges):
                judge.paid.replies, judge.paid.name = self, f"{number} {judge.name}"
                budget: Budget | None = getattr(judge, "budget", None)
                if budget is not None and budget not in self._budgets:
                    self._budgets.append(budget)
                    self._resume(budget, judge.paid.name)
        except StoreError as error:
            raise StoreError(
                f"{error}. It holds what the judges were paid for. Remove it to go on: they are asked again"
            ) from error

    def begin(self, scope: str) -> None:
        """The part of the run that is asked about from now on; replies to earlier parts go."""
        with self._lock:
            self._scope = scope
            self._numbers.clear()
            accounts = [self._log.find(_account(judge.paid.name), -1) for judge in self._judges]
            try:
                self._log.keep_only(lambda call: call.scope == scope or call in accounts)
            except StoreError as error:
                logger.warning("What the judges cost is not kept: %s.", error)

    def read(self, asked: Call) -> Call | None:
        """The next reply to this question that is kept of this part."""
        with self._lock:
            own = replace(asked, scope=self._scope)
            found = self._log.find(own, self._numbers[own.place])
            self._numbers[own.place] += found is not None
        return found

    def write(self, call: Call) -> None:
        """Keep a reply as the next one to this question."""
        with self._lock:
            own = replace(call, scope=self._scope, messages=())
            self._numbers[own.place] += 1
            self._log.append(own)

    def close(self) -> None:
        """Close the file; the judges keep nothing in it from now on."""
        for judge in self._judges:
            judge.paid.replies = None
        for budget in self._budgets:
            budget.changed = None
        self._log.close()

    def _resume(self, budget: Budget, judge: str) -> None:
        """Give a budget what was spent before, and note what it spends from now on."""
        found = self._log.find(_account(judge), -1)
        before = found.account if found is not None and found.account else Account()
        # Nobody knows what came of calls under way; they count as the most they may have cost.
        lost = before.under_way
        budget.resume(before.spent.plus(before.held, failed=lost, estimated=lost))

        def changed(spent: Spent, held: Cost, under_way: int) -> None:
            self._log.append(_account(judge, Account(spent, held, under_way)))

        budget.changed = changed


def _account(judge: str, account: Account | None = None) -> Call:
    return Call("spent", "", owner=judge, account=account)


def remove_paid_replies(folder: Path) -> None:
    """Delete the files of all processes of a run."""
    for path in [*folder.glob("judges.jsonl*"), *folder.glob("judges-*.jsonl*")]:
        path.unlink(missing_ok=True)
