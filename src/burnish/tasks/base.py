"""Where work comes from: index-seeded training tasks and a held-out set that never overlaps them.

`train(index)` gives the same task on every machine, whatever was asked for before. Held-out tasks do
not depend on the run's seed: two runs with different seeds are measured on the same questions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from burnish.boundary import Settings
from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.seeds import derive, digest


class TaskSettings(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """Base of the settings of a kind of task; `kind` names it in a recipe file."""

    def build(self, seed: int, root: Path) -> TaskSet:
        raise NotImplementedError


@runtime_checkable
class TaskSet(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def fields(self) -> frozenset[str]:
        """Names that rewards may bind; every task has all of them."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the data changes: content of files, settings of generators."""
        ...

    @property
    def train_size(self) -> int | None:
        """Tasks in one epoch; None where training tasks never run out."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know before training: rows skipped, duplicates, overlaps."""
        ...

    def train(self, index: int) -> Task:
        """The training task at a position of the endless stream; `index` >= 0."""
        ...

    def held_out(self, limit: int | None = None) -> list[Task]:
        """Tasks that training never sees. A smaller limit gives a prefix of a larger one."""
        ...

    def sample(self, k: int) -> list[Task]:
        """The first `k` training tasks, for a look at what the model will be asked."""
        ...


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, size: int) -> tuple[int, ...]:
    """A permutation of `range(size)`, fixed by seed and epoch alone: the order of hashes.

    It does not rest on the algorithm of any random generator.
    """
    start = hashlib.sha256(derive(seed, "epoch", epoch).to_bytes(8, "big"))

    def rank(position: int) -> bytes:
        hasher = start.copy()
        hasher.update(position.to_bytes(8, "big"))
        return hasher.digest()

    return tuple(sorted(range(size), key=rank))


def content_key(messages: tuple[Message, ...]) -> str:
    """What makes two tasks the same question: the messages the model sees."""
    return digest(msgspec.json.encode(messages))


def is_held_out(key: str, share: float) -> bool:
    """Whether a question belongs to the held-out share; depends on the question alone.

    Because no other question enters, appending data moves nothing from one side to the other.
    """
    return derive("held-out", key) < share * 2**63


def in_epoch(task: Task, epoch: int) -> Task:
    """The task as it appears in one epoch: ids stay unique when an epoch border falls in a batch."""
    return task if epoch == 0 else msgspec.structs.replace(task, id=f"{task.id}@{epoch}")


@dataclass(frozen=True)
class FiniteTasks:
    name: str
    fields: frozenset[str]
    fingerprint: str
    seed: int
    train_tasks: tuple[Task, ...]
    held_out_tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()

    @property
    def train_size(self) -> int:
        return len(self.train_tasks)

    def train(self, index: int) -> Task:
        epoch, position = divmod(index, self.train_size)
        row = epoch_order(self.seed, epoch, self.train_size)[position]
        return in_epoch(self.train_tasks[row], epoch)

    def held_out(self, limit: int | None = None) -> list[Task]:
        return list(self.held_out_tasks[:limit])

    def sample(self, k: int) -> list[Task]:
        return [self.train(index) for index in range(min(k, self.train_size))]


class EndlessTasks:
    """What sets have in common that make their questions."""

    train_size: int | None = None
    notes: tuple[str, ...] = ()

    def train(self, index: int) -> Task:
        raise NotImplementedError

    def sample(self, k: int) -> list[Task]:
        return [self.train(index) for index in range(k)]


class NoTasks(TaskSettings, frozen=True, kw_only=True, tag="none"):
    """Nothing is asked: for a training that only reads text."""

    def build(self, seed: int, root: Path) -> EmptyTasks:
        return EmptyTasks()


@dataclass(frozen=True)
class EmptyTasks:
    name: str = "none"
    fields: frozenset[str] = frozenset()
    fingerprint: str = "none"
    train_size: int = 0
    notes: tuple[str, ...] = ()

    def train(self, index: int) -> Task:
        raise UserError("this run has no tasks (task.kind = 'none'); set [task] to ask something.")

    def held_out(self, limit: int | None = None) -> list[Task]:
        return []

    def sample(self, k: int) -> list[Task]:
        return []
