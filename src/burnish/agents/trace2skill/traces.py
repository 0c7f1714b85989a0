"""Trajectories to learn from: of a JSON-lines file, of `burnish export`, or of a run's folder.

    pool = read_traces("traces.jsonl")          # or "runs/NAME"
    pool.failed, pool.passed, pool.left_out     # left_out: without a verdict, with the reason

A row has an id, the task's words, messages and a verdict: `{"task_id": "t1", "instruction": "...",
"messages": [...], "passed": false}`. `score`, `reward` or `status` stand in for `passed`. A rollout
that something outside failed (a dead server) teaches nothing and is left out; one that ran out of
time or crashed by itself has failed. Of a run, every sample without a reward is left out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from burnish.agents.trace2skill.edits import plain_words
from burnish.arguments import shown
from burnish.boundary import Number, public
from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.store import RunStore
from burnish.store.manifest import FILE as MANIFEST

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
        parts = [f"[{one.role}{f' {one.name}' if one.name else ''}]\n{one.text}{_calls(one)}"
                 for one in self.messages]  # fmt: skip
        if self.error:
            parts.append(f"[ended by]\n{self.error}")
        text = "\n\n".join(parts)
        if len(text) <= LONGEST:
            return text
        half = LONGEST // 2
        cut = len(text) - 2 * half
        return f"{text[:half]}\n\n... ({cut:,} characters left out) ...\n\n{text[-half:]}"


def _calls(message: Message) -> str:
    calls = [json.dumps(call, ensure_ascii=False, default=str) for call in message.tool_calls]
    return "".join(f"\n(calls {call})" for call in calls)


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
    if (path / MANIFEST).is_file():
        rows: Iterator[Trace | tuple[str, str]] = _of_run(path, pass_at)
    elif path.is_file():
        rows = _of_file(path, pass_at)
    else:
        raise UserError(
            f"{path}: no such file or run; expected trajectories as JSON lines or runs/NAME."
        )
    traces: list[Trace] = []
    left_out: list[tuple[str, str]] = []
    for row in rows:
        if isinstance(row, Trace):
            traces.append(row)
        else:
            left_out.append(row)
    return pool_of(traces, left_out)


def _of_run(folder: Path, pass_at: float) -> Iterator[Trace | tuple[str, str]]:
    with RunStore.open(folder, read_only=True) as run:
        for sample in run.samples():
            trajectory, task, value = sample.trajectory, sample.task, sample.reward.value
            if value is None:
                yield sample.id, sample.reward.reason or str(sample.reward.status)
                continue
            yield Trace(
                id=sample.id,
                task_id=task.id,
                instruction=task.prompt,
                messages=(*task.messages, *trajectory.messages),
                passed=value >= pass_at,
                score=value,
                gold=gold_of(task),
            )


def gold_of(task: Task) -> tuple[str, ...]:
    """The values of a task's labels, which must never reach a skill."""
    return _texts([task.fields.get(name) for name in task.labels])


def _of_file(path: Path, pass_at: float) -> Iterator[Trace | tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # U+2028 may stand in a text
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); expected JSON lines.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}).") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: got {shown(row)}; expected an object.")
        yield trace_of(row, f"{path}, line {number}", pass_at=pass_at)


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
    messages = _messages(found["messages"], row.get("response"), where)
    instruction = str(
        found["instruction"] or next((m.text for m in messages if m.role == "user"), "")
    )
    status = str(row.get("status") or "ok")
    if status in ("infra_error", "excluded"):
        return name, str(row.get("error") or row.get("reason") or status)
    # A reason explains any verdict; it says what went wrong only where the status does.
    error = str(row.get("error") or ("" if status == "ok" else row.get("reason") or status))
    passed, score = found["passed"], found["score"]
    if passed is not None and passed not in (True, False):
        raise UserError(f"{where}: passed is {shown(passed)}; expected true or false.")
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if score is not None and not (is_number and math.isfinite(score)):
        raise UserError(f"{where}: score is {shown(score)}; expected a finite number.")
    if passed is None and score is None and not error:
        return name, "no verdict: neither passed nor a score"
    if found["messages"] is None and row.get("response") is None and not error:
        return name, f"no log: none of {', '.join(NAMES['messages'])}, response"
    if passed is None:
        passed = score is not None and score >= pass_at
    return Trace(
        id=name,
        task_id=task_id or name,
        instruction=instruction,
        messages=messages,
        passed=bool(passed) and not error,
        score=None if score is None else float(score),
        error=error,
        gold=_texts(found["gold"]),
        artifacts_dir=str(row.get("artifacts_dir") or ""),
    )


def _messages(given: Any, response: Any, where: str) -> tuple[Message, ...]:
    if given is None:
        return (Message("assistant", str(response)),) if response is not None else ()
    rows = given if isinstance(given, list) else None
    if rows is None or not all(isinstance(one, dict) and "role" in one for one in rows):
        raise UserError(
            f"{where}: messages is {shown(given)}; expected a list of role and content."
        )
    return tuple(
        Message(
            str(one["role"]),
            one["content"] if isinstance(one.get("content"), str) else _as_text(one.get("content")),
            name=one.get("name") if isinstance(one.get("name"), str) else None,
            tool_calls=_tool_calls(one.get("tool_calls")),
        )
        for one in rows
    )


def _tool_calls(given: Any) -> tuple[Any, ...]:
    return tuple(c for c in given if isinstance(c, dict)) if isinstance(given, list) else ()


def _as_text(content: Any) -> str:
    """Parts of a message as one text; a part that is no text is named."""
    if isinstance(content, list):
        parts = [
            one.get("text") or f"[{one.get('type')}]" for one in content if isinstance(one, dict)
        ]
        return "".join(map(str, parts))
    return "" if content is None else str(content)


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
