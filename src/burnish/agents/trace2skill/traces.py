"""Trajectories to learn from: of a JSON-lines file, of `burnish export`, or of a run's folder.

A rollout that something outside failed (a dead server) teaches nothing and is left out; one that ran
out of time or crashed by itself has failed. Of a run, every sample without a reward is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.agents.trace2skill.edits import plain_words
from burnish.boundary import Number, public
from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.store import RunStore
from burnish.store.manifest import FILE as MANIFEST
from burnish.tasks.rows import read_table

LONGEST = 24_000
"""Characters of one trajectory that an analyst is shown; of a longer one both ends."""
NAMES = {
    "id": ("id", "trajectory_id", "sample"),
    "task_id": ("task_id", "task"),
    "instruction": ("instruction", "prompt", "question", "task_prompt"),
    "messages": ("messages", "conversation", "trajectory", "steps"),
    "passed": ("passed", "success", "correct", "is_correct"),
    "score": ("score", "reward"),
    "gold": ("gold", "gold_values", "answer", "expected"),
}
"""Columns that are looked for, the first that is there."""


class Trace(Struct, frozen=True, kw_only=True):
    id: str
    task_id: str
    instruction: str
    messages: tuple[Message, ...] = ()
    passed: bool = False
    score: float | None = None
    error: str = ""
    """What ended it early: a time-out, a crash."""
    gold: tuple[str, ...] = ()
    """Values that must never reach a skill."""
    artifacts_dir: str = ""

    @property
    def log(self) -> str:
        """The messages for an analyst; of a long log the beginning and the end."""
        parts = []
        for one in self.messages:
            calls = [json.dumps(c, ensure_ascii=False, default=str) for c in one.tool_calls]
            shown = "".join(f"\n(calls {call})" for call in calls)
            parts.append(f"[{one.role}{f' {one.name}' if one.name else ''}]\n{one.text}{shown}")
        if self.error:
            parts.append(f"[ended by]\n{self.error}")
        text = "\n\n".join(parts)
        if len(text) <= LONGEST:
            return text
        half = LONGEST // 2
        cut = len(text) - 2 * half
        return f"{text[:half]}\n\n... ({cut:,} characters left out) ...\n\n{text[-half:]}"


class _Turn(Struct):
    """A message as other programs write it."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None

    @property
    def message(self) -> Message:
        """As text; a part that is none is named."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "".join(str(one.get("text") or f"[{one.get('type')}]") for one in content)
        return Message(self.role, content, name=self.name, tool_calls=self.tool_calls or ())


class Pool(NamedTuple):
    """Trajectories, sorted by id so that their order of arrival changes nothing."""

    passed: tuple[Trace, ...]
    failed: tuple[Trace, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def all(self) -> tuple[Trace, ...]:
        return tuple(sorted((*self.passed, *self.failed), key=lambda one: one.id))


def pool_of(traces: Iterable[Trace], left_out: Iterable[tuple[str, str]] = ()) -> Pool:
    """The pool of given trajectories; ids that occur twice get a number, copies are left out.

    A copy has the words of another, whatever its id and task are called: it would be evidence twice.
    """
    seen: Counter[str] = Counter()
    first: dict[tuple[bool, str], str] = {}
    named, copies = [], []
    for one in sorted(traces, key=lambda one: (one.id, one.task_id, one.passed, one.log)):
        seen[one.id] += 1
        name = one.id if seen[one.id] == 1 else f"{one.id}#{seen[one.id]}"
        words = plain_words(f"{one.instruction}\n{one.log}")
        if one.log and first.setdefault((one.passed, words), name) != name:
            copies.append((name, f"a copy of {first[one.passed, words]}"))
            continue
        named.append(replace(one, id=name))
    passed = tuple(one for one in named if one.passed)
    failed = tuple(one for one in named if not one.passed)
    return Pool(passed, failed, (*left_out, *copies))


@public
def read_traces(place: str | Path, *, pass_at: Number = 1.0) -> Pool:
    """Trajectories of a file or a run; a score of `pass_at` and above is a pass."""
    path = Path(place).expanduser()
    traces: list[Trace] = []
    left_out: list[tuple[str, str]] = []
    if not (path / MANIFEST).is_file():
        if not path.exists():
            raise UserError(f"{path}: no such file or run; expected JSON lines or runs/NAME.")
        table = read_table(path, "jsonl")
        if table.bad:
            raise UserError(f"{path}, line {table.bad[0].number}: {table.bad[0].why}.")
        for row in table.rows:
            found = trace_of(row.values, f"{path}, line {row.number}", pass_at=pass_at)
            if isinstance(found, Trace):
                traces.append(found)
            else:
                left_out.append(found)
        return pool_of(traces, left_out)
    with RunStore.open(path, read_only=True) as run:
        for sample in run.samples():
            task, value = sample.task, sample.reward.value
            if value is None:
                left_out.append((sample.id, sample.reward.reason or str(sample.reward.status)))
                continue
            one = Trace(
                id=sample.id,
                task_id=task.id,
                instruction=task.prompt,
                messages=(*task.messages, *sample.trajectory.messages),
                passed=value >= pass_at,
                score=value,
                gold=gold_of(task),
            )
            traces.append(one)
    return pool_of(traces, left_out)


def gold_of(task: Task) -> tuple[str, ...]:
    """The values of a task's labels, which must never reach a skill."""
    return _texts([task.fields.get(name) for name in task.labels])


def trace_of(
    row: Mapping[str, Any], where: str = "row", *, pass_at: float = 1.0
) -> Trace | tuple[str, str]:
    """One row as a trajectory, or its id and why it teaches nothing."""
    found = {
        key: next((row[name] for name in names if row.get(name) is not None), None)
        for key, names in NAMES.items()
    }
    task = found["task_id"]
    task_id = str(task if isinstance(task, str | int) else found["id"] or "")
    name = str(found["id"] or task_id)
    if not name:
        raise UserError(f"{where}: no id; expected one of {', '.join(NAMES['id'])} or task_id.")
    response = row.get("response")
    turns = [] if response is None else [_Turn("assistant", str(response))]
    try:
        if found["messages"] is not None:
            turns = msgspec.convert(found["messages"], list[_Turn])
        score = msgspec.convert(found["score"], Number | None)
        passed = msgspec.convert(found["passed"], bool | None, strict=False)
    except msgspec.ValidationError as why:
        raise UserError(f"{where}: messages, score or passed: {why}.") from None
    messages = tuple(turn.message for turn in turns)
    instruction = str(
        found["instruction"] or next((m.text for m in messages if m.role == "user"), "")
    )
    status = str(row.get("status") or "ok")
    if status in ("infra_error", "excluded"):
        return name, str(row.get("error") or row.get("reason") or status)
    # A reason explains any verdict; it says what went wrong only where the status does.
    error = str(row.get("error") or ("" if status == "ok" else row.get("reason") or status))
    if passed is None and score is None and not error:
        return name, "no verdict: neither passed nor a score"
    if found["messages"] is None and response is None and not error:
        return name, f"no log: none of {', '.join(NAMES['messages'])}, response"
    if passed is None:
        passed = score is not None and score >= pass_at
    return Trace(
        id=name,
        task_id=task_id or name,
        instruction=instruction,
        messages=messages,
        passed=bool(passed) and not error,
        score=score,
        error=error,
        gold=_texts(found["gold"]),
        artifacts_dir=str(row.get("artifacts_dir") or ""),
    )


def _texts(value: Any) -> tuple[str, ...]:
    """Every plain value of a nested one, as text; however deep it is."""
    found: list[str] = []
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            one = list(one.values())
        if isinstance(one, list | tuple):
            left.extend(reversed(one))
        elif one is not None and one != "":
            found.append(str(one))
    return tuple(found)
