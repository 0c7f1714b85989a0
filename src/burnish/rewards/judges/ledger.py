"""What the judges of a training run were paid for, in the run's folder.

    with judges_built() as judges:
        scorer = build_all(config.rewards)
    ledger = Ledger(folder / "judges.sqlite", judges)
    ledger.begin("step 12")             # before anything of step 12 is asked

A run that was killed in the middle of a step samples the same answers again and asks the same
questions: what was answered before is read back, not paid for again, and every budget goes on from
what was spent, calls that were under way included. Replies are kept until the next part of the run
begins; by then what was made of them is in the store.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import msgspec

from burnish.errors import StoreError
from burnish.lm.meter import Cost
from burnish.rewards.judges.budget import Budget, Spent
from burnish.rewards.judges.questions import Reply

logger = logging.getLogger(__name__)

LEDGER = "judges.sqlite"
"""Name of the file in a run's folder."""


def ledger_name(rank: int = 0) -> str:
    """Of several processes each has a file of its own."""
    return f"judges-{rank}.sqlite" if rank else LEDGER


_TABLES = (
    "CREATE TABLE IF NOT EXISTS spent (judge TEXT PRIMARY KEY, spent TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS replies (scope TEXT NOT NULL, key TEXT NOT NULL, "
    "number INTEGER NOT NULL, reply TEXT NOT NULL, PRIMARY KEY (scope, key, number))",
)


class Account(msgspec.Struct, frozen=True):
    """What one judge has spent, and what its calls under way may still cost."""

    spent: Spent = Spent()
    held: Cost = Cost()
    under_way: int = 0


class PaidReplies:
    """A judge's place in the ledger of a run; without one nothing is kept."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.name = ""

    def read(self, key: str) -> Reply | None:
        """The reply that this part of the run has paid for already."""
        return None if self.ledger is None else self.ledger.read(f"{self.name} {key}")

    def write(self, key: str, reply: Reply) -> None:
        """Keep a reply that was paid for now."""
        if self.ledger is not None:
            self.ledger.write(f"{self.name} {key}", reply)


class PaidJudge(Protocol):
    """A judge that keeps what it was paid for."""

    @property
    def name(self) -> str: ...

    @property
    def paid(self) -> PaidReplies: ...


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


class Ledger:
    """Replies and spendings of a run's judges in a SQLite file."""

    def __init__(self, path: Path, judges: Sequence[PaidJudge]) -> None:
        self.path = path
        self._scope = ""
        self._numbers: Counter[str] = Counter()
        """How many replies to the same question this part of the run has had."""
        self._is_told = False
        self._lock = threading.Lock()  # invariant: one statement at a time on the connection
        self._db = self._open()
        budgets: set[int] = set()
        for number, judge in enumerate(judges):
            judge.paid.ledger, judge.paid.name = self, f"{number} {judge.name}"
            budget: Budget | None = getattr(judge, "budget", None)
            if budget is not None and id(budget) not in budgets:
                budgets.add(id(budget))
                self._go_on(budget, judge.paid.name)

    def begin(self, scope: str) -> None:
        """The part of the run that is asked about from now on; replies to earlier parts go."""
        self._scope = scope
        self._numbers.clear()
        self._change("DELETE FROM replies WHERE scope != ?", (scope,))

    def read(self, key: str) -> Reply | None:
        """The next reply to this question that is kept of this part."""
        query = "SELECT reply FROM replies WHERE scope = ? AND key = ? AND number = ?"
        place = (self._scope, key, self._numbers[key])
        found: Reply | None = self._find(query, place, Reply)
        if found is not None:
            self._numbers[key] += 1
        return found

    def write(self, key: str, reply: Reply) -> None:
        """Keep a reply as the next one to this question."""
        row = (self._scope, key, self._numbers[key], msgspec.json.encode(reply).decode())
        self._numbers[key] += 1
        self._change("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)", row)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _go_on(self, budget: Budget, judge: str) -> None:
        """Give a budget what was spent before, and note what it spends from now on."""
        query = "SELECT spent FROM spent WHERE judge = ?"
        before = self._find(query, (judge,), Account) or Account()
        # Nobody knows what came of calls under way; they count as the most they may have cost.
        lost = before.under_way
        budget.resume(before.spent.plus(before.held, failed=lost, estimated=lost))

        def changed(spent: Spent, held: Cost, under_way: int) -> None:
            account = msgspec.json.encode(Account(spent, held, under_way)).decode()
            self._change("INSERT OR REPLACE INTO spent VALUES (?, ?)", (judge, account))

        budget.changed = changed

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.path, check_same_thread=False, timeout=30)
            with connection as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=NORMAL")
                for table in _TABLES:
                    db.execute(table)
        except sqlite3.Error as error:
            raise self._broken(error) from error
        return connection

    def _find(self, query: str, values: tuple[Any, ...], kind: type[Any]) -> Any:
        try:
            with self._lock:
                row = self._db.execute(query, values).fetchone()
            return None if row is None else msgspec.json.decode(row[0], type=kind)
        except (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._broken(error) from error

    def _change(self, query: str, values: tuple[Any, ...]) -> None:
        """Write; where that fails the run goes on, and a resumed one would pay again."""
        try:
            with self._lock, self._db as db:
                db.execute(query, values)
        except sqlite3.Error as error:
            if not self._is_told:
                logger.warning("What the judges cost is not kept in %s: %s.", self.path, error)
            self._is_told = True

    def _broken(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self.path}, what the run's judges were paid for, cannot be read: {error}. Remove it "
            "to go on: the questions of the step under way are asked again, and budgets begin anew"
        )
