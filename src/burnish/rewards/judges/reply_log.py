"""Replies of judges that are kept: as a cache, as a record to replay, and for a run that goes on.

    judge = JudgeModel(lm, cache="judge.sqlite", record="judge.jsonl")
    again = replay("judge.jsonl")                    # a JudgeModel that never calls
    paid = PaidReplies(run_folder, judges)           # of a training run; paid.begin("step 12")

A call has one key in all of them: the hash of model, messages and sampling (`asked_sample`). Raw
replies are kept and not verdicts, so another reader, weighting or rule for the two orders can be
tried on the same answers. `open_lm("replay:judge.jsonl")` reads a record, too.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from pathlib import Path
from typing import Protocol, Self
from weakref import WeakValueDictionary

import msgspec

from burnish.errors import ModelError, StoreError, UserError, did_you_mean
from burnish.lm.base import Completion, Prompt, Sampling, Scores
from burnish.lm.failures import BadReply, Refused, TimedOut
from burnish.lm.lines import LineFile, read_lines
from burnish.lm.meter import Cost
from burnish.lm.replay import Recorded
from burnish.records import Message, Status
from burnish.rewards.json_table import JsonTable
from burnish.rewards.judges.budget import Budget, Spent
from burnish.rewards.judges.prompting import Question, Reply
from burnish.seeds import digest

logger = logging.getLogger(__name__)

MOST_IN_MEMORY = 20_000
"""Replies that a cache in memory holds; the oldest goes first."""

_REPLIES = ("replies", "reply")

# --- a cache


class ReplyCache:
    """Replies by key: in a SQLite file that several processes may share, or in memory."""

    def __init__(self, path: str | Path | None = None, *, most: int = MOST_IN_MEMORY) -> None:
        self.path = None if path is None else Path(path).expanduser()
        self._most = most
        self._memory: dict[str, Reply] = {}
        self._is_broken = False
        self._table: JsonTable[Reply] | None = None
        if self.path is not None:
            problem = "the judge's cache {path} cannot be {verb}: {error}"
            self._table = JsonTable(self.path, _REPLIES, Reply, problem)

    def read(self, key: str) -> Reply | None:
        """The reply to the same question, if one is kept."""
        return (self._memory if self._table is None else self._table.read([key])).get(key)

    def write(self, key: str, reply: Reply) -> None:
        """Keep a reply; after a failure the file is not written again, and a warning says so.

        A file that another process locks would hold up every reply.
        """
        if self._table is None:
            self._memory[key] = reply
            if len(self._memory) > self._most:
                del self._memory[next(iter(self._memory))]
        elif not self._is_broken:
            try:
                self._table.write({key: reply})
            except StoreError as error:
                self._is_broken = True
                logger.warning("%s. Replies are not cached any more.", error)

    def close(self) -> None:
        """Close the file; a cache in memory has nothing to close."""
        if self._table is not None:
            self._table.close()


# --- a record, and the model that answers from it


class NotRecorded(ModelError):
    """A question that the record does not hold."""


class AskedCall(Recorded, frozen=True, omit_defaults=True):
    """One call to a judge: a line that `ReplayLM` also reads, with what it was for."""

    kind: str = ""
    about: tuple[str, ...] = ()
    vote: int = 0
    round: int = 0
    """0: the question; 1: its first repair."""
    status: Status = Status.OK
    reason: str = ""
    is_cached: bool = False
    seconds: float = 0.0


class Record:
    """An append-only file of calls, open while the judge lives.

    Judges of one process may write to the same file; two processes may not.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._lines: _Lines | None = None
        if self.path.exists():  # a file that is something else is refused before a call is paid
            self._lines = _open(self.path)

    def write(
        self,
        asked: Recorded,
        question: Question,
        round: int,
        reply: Reply | None,
        status: Status,
        reason: str,
    ) -> None:
        """One line: the call as it was sent, the raw reply, and what was made of it."""
        if self._lines is None:
            self._lines = _open(self.path)
        self._lines.file.append(
            AskedCall(
                key=asked.key,
                model=asked.model,
                messages=asked.messages,
                sampling=asked.sampling,
                completions=() if reply is None else (_completion(reply),),
                kind=question.kind,
                about=question.about,
                vote=question.vote,
                round=round,
                status=status,
                reason=reason,
                is_cached=reply is not None and (reply.is_cached or reply.is_replayed),
                seconds=0.0 if reply is None else _milliseconds(reply.seconds),
            )
        )


class _Lines:
    """One open record file, closed when its last judge is gone."""

    def __init__(self, path: Path) -> None:
        self.file = LineFile(path, AskedCall)
        self.file.__enter__()
        self.file.records.clear()  # checked while they were read; nobody here needs them

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.__exit__(None, None, None)


_opened: WeakValueDictionary[Path, _Lines] = WeakValueDictionary()


def _open(path: Path) -> _Lines:
    """The file's one writer in this process; another one after it was deleted or replaced."""
    place = path.absolute()
    lines = _opened.get(place)
    if lines is None or not (place.exists() and lines.file.is_same(place)):
        lines = _opened[place] = _Lines(place)
    return lines


def _milliseconds(seconds: float) -> float:
    return round(seconds, 3)


def read_record(path: str | Path) -> list[AskedCall]:
    """Every call of a record, in the order of asking."""
    return read_lines(Path(path).expanduser(), AskedCall)


class RecordLM:
    """The recorded judge as an `LM`.

    A question is found by its words and its seed; by its words alone where the same vote on it was
    asked once. Settings such as `max_tokens` need not be the recorded ones: nothing is generated.
    """

    is_replay = True

    def __init__(self, path: str | Path, *, model: str | None = None, identity: str = "") -> None:
        """`identity` is that of the model on record, which its lines do not tell (`model_key`)."""
        self.path = Path(path).expanduser()
        self.identity = identity
        calls = read_record(self.path)
        self._name = _one_model(calls, model, self.path)
        self._vote = 0
        self._calls: dict[str, dict[int, AskedCall]] = {}
        for call in calls:
            if call.model == self._name and call.sampling is not None:
                of_words = self._calls.setdefault(_words(call.messages), {})
                kept = of_words.get(call.sampling.seed)
                # A question that failed and was asked again later has its answer.
                if kept is None or (not kept.completions and call.completions):
                    of_words[call.sampling.seed] = call

    @property
    def name(self) -> str:
        return self._name

    def voter(self, vote: int) -> Self:
        """The record asked for that vote: an answer given as one vote is not another one."""
        if vote == self._vote:
            return self
        other = copy(self)
        other._vote = vote
        return other

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        messages = tuple(item for item in prompt if isinstance(item, Message))
        by_seed = self._calls.get(_words(messages), {})
        call = by_seed.get(sampling.seed)
        same_vote = [one for one in by_seed.values() if one.vote == self._vote]
        if call is None and len(same_vote) == 1:
            call = same_vote[0]
        if call is None:
            seen = f"asked {len(by_seed)} times with other seeds" if by_seed else "never asked"
            said = messages[-1].text[:60] if messages else ""
            raise NotRecorded(f"{self.path}: the question ending in {said!r} was {seen}")
        if not call.completions:
            raise _FAILURES.get(call.status, ModelError)(f"recorded: {call.reason}")
        return list(call.completions)

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, top_k: int = 0
    ) -> Scores:
        raise ModelError(f"{self.path} is a record of a judge and cannot score tokens")


_FAILURES: dict[Status, type[ModelError]] = {
    Status.TIMEOUT: TimedOut,
    Status.REFUSED: Refused,
    Status.PARSE_ERROR: BadReply,
}


def _completion(reply: Reply) -> Completion:
    return Completion(
        reply.text,
        finish=reply.finish,
        model=reply.model,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cost_usd=reply.cost_usd,
    )


def _words(messages: Sequence[Message]) -> str:
    return digest(*(part for m in messages for part in (m.role, m.text)))


def _one_model(calls: Sequence[AskedCall], wanted: str | None, path: Path) -> str:
    models = sorted({call.model for call in calls})
    if not models:
        raise UserError(f"{path}: the record is empty; write one with JudgeModel(record=...)")
    if wanted is None and len(models) > 1:
        raise UserError(f"{path}: the record holds {', '.join(models)}; choose one with model=")
    if wanted is not None and wanted not in models:
        raise UserError(
            f"{path}: no model '{wanted}' in it, only {', '.join(models)}."
            f"{did_you_mean(wanted, models)}"
        )
    return wanted or models[0]


# --- replies that a training run has paid for


class Account(msgspec.Struct, frozen=True):
    """What one judge has spent, and what its calls under way may still cost."""

    spent: Spent = Spent()
    held: Cost = Cost()
    under_way: int = 0


class Paid:
    """A judge's part of a run's paid replies; outside a run nothing is kept."""

    def __init__(self) -> None:
        self.replies: PaidReplies | None = None
        self.name = ""

    def read(self, key: str) -> Reply | None:
        """The reply that this part of the run has paid for already."""
        return None if self.replies is None else self.replies.read(f"{self.name} {key}")

    def write(self, key: str, reply: Reply) -> None:
        """Keep a reply that was paid for now."""
        if self.replies is not None:
            self.replies.write(f"{self.name} {key}", reply)


class PaidJudge(Protocol):
    """A judge that keeps what it was paid for."""

    @property
    def name(self) -> str: ...

    @property
    def paid(self) -> Paid: ...


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
    """Replies and spendings of a run's judges, in a SQLite file of the run's folder.

    A run that was killed in the middle of a step samples the same answers again and asks the same
    questions: what was answered before is read back, not paid for again, and every budget goes on
    from what was spent, calls that were under way included. Replies are kept until the next part
    of the run begins; by then what was made of them is in the store.
    """

    def __init__(self, folder: Path, judges: Sequence[PaidJudge], *, rank: int = 0) -> None:
        """Of several processes each has a file of its own."""
        self.path = folder / (f"judges-{rank}.sqlite" if rank else "judges.sqlite")
        self._scope = ""
        self._numbers: Counter[str] = Counter()
        """How many replies to the same question this part of the run has had."""
        # invariant: a number is read and counted in one step, so no reply is taken twice
        self._lock = threading.Lock()
        self._is_broken = False
        self._replies = JsonTable(self.path, _REPLIES, Reply, _PROBLEM)
        self._spent = JsonTable(self.path, ("accounts", "account"), Account, _PROBLEM)
        self._judges = tuple(judges)
        self._budgets: list[Budget] = []
        for number, judge in enumerate(judges):
            judge.paid.replies, judge.paid.name = self, f"{number} {judge.name}"
            budget: Budget | None = getattr(judge, "budget", None)
            if budget is not None and not any(budget is known for known in self._budgets):
                self._budgets.append(budget)
                self._resume(budget, judge.paid.name)

    def begin(self, scope: str) -> None:
        """The part of the run that is asked about from now on; replies to earlier parts go."""
        self._scope = scope
        self._numbers.clear()
        self._try(lambda: self._replies.keep_only(f"{scope}\t"))

    def read(self, key: str) -> Reply | None:
        """The next reply to this question that is kept of this part."""
        with self._lock:
            place = self._place(key)
            found = self._replies.read([place]).get(place)
            self._numbers[key] += found is not None
        return found

    def write(self, key: str, reply: Reply) -> None:
        """Keep a reply as the next one to this question."""
        with self._lock:
            place = self._place(key)
            self._numbers[key] += 1
        self._try(lambda: self._replies.write({place: reply}))

    def close(self) -> None:
        """Close the file; the judges keep nothing in it from now on."""
        for judge in self._judges:
            judge.paid.replies = None
        for budget in self._budgets:
            budget.changed = None
        self._replies.close()
        self._spent.close()

    def _place(self, key: str) -> str:
        return f"{self._scope}\t{key}\t{self._numbers[key]}"

    def _resume(self, budget: Budget, judge: str) -> None:
        """Give a budget what was spent before, and note what it spends from now on."""
        before = self._spent.read([judge]).get(judge) or Account()
        # Nobody knows what came of calls under way; they count as the most they may have cost.
        lost = before.under_way
        budget.resume(before.spent.plus(before.held, failed=lost, estimated=lost))

        def changed(spent: Spent, held: Cost, under_way: int) -> None:
            account = Account(spent, held, under_way)
            self._try(lambda: self._spent.write({judge: account}))

        budget.changed = changed

    def _try(self, write: Callable[[], None]) -> None:
        """Write; where that fails the run goes on, and a resumed one would pay again."""
        try:
            write()
        except StoreError as error:
            if not self._is_broken:
                logger.warning("What the judges cost is not kept: %s.", error)
            self._is_broken = True


_PROBLEM = (
    "{path}, what the run's judges were paid for, cannot be {verb}: {error}. Remove it to go on: "
    "the questions of the step under way are asked again, and budgets begin at 0"
)


def remove_paid_replies(folder: Path) -> None:
    """Delete the files of all processes of a run."""
    for path in [*folder.glob("judges.sqlite*"), *folder.glob("judges-*.sqlite*")]:
        path.unlink(missing_ok=True)
