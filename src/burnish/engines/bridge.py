"""What every adapter shares: a trainer's rows become tasks and responses, rewards become numbers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.engines.background import call, call_async
from burnish.errors import StoreError, UserError
from burnish.lm.lines import read_lines
from burnish.records import Finish, Message, Response, Reward, Task
from burnish.rewards.combine import Anchor
from burnish.rewards.scorer import Scope, Scorer, bind_check, score_groups
from burnish.seeds import digest

LABELS = ("answer", "ground_truth", "label", "labels", "solution", "target")
"""Columns that give the label away: rewards may ask for them, judges never see them."""

Prompt = str | Sequence[Any]
"""A text, or chat messages as dicts (or objects) with a role and a content."""


class Item(NamedTuple):
    """One response with its task."""

    task: Task
    response: Response


class Scored(NamedTuple):
    """One reward, and the key of its trace."""

    reward: Reward
    key: str


class Bridge:
    """A scorer as a trainer can use it. Holds no lock and no open file: it may be pickled."""

    def __init__(
        self,
        scorer: Scorer,
        *,
        columns: Mapping[str, str] | None = None,
        labels: Sequence[str] = LABELS,
        anchor: Response | str | None = None,
        trace: str | Path | None = None,
        deadline_s: float | None = 300.0,
        limit: int = 32,
    ) -> None:
        """`columns`: a data column's name -> the task field that rewards ask for; the others keep
        their names. `anchor`: what a pair scorer compares with, a response or a field's name.
        `deadline_s`: wall clock of one task's responses; `limit`: how many tasks at a time.
        """
        self.scorer = pointwise(scorer, anchor)
        self.name = scorer.name
        self.columns, self.labels = dict(columns or {}), tuple(labels)
        self.trace = TraceFile(trace) if trace else None
        self.deadline_s, self.limit = deadline_s, limit
        children: Sequence[Scorer] = getattr(self.scorer, "children", ())
        self.parts = tuple(dict.fromkeys(c.name for c in children if c.name != self.scorer.name))
        """Names that the components of a reward may have, beside its own."""
        taken = sorted({"score", "valid"} & set(self.parts))
        if taken:
            raise UserError(
                f"reward '{scorer.name}' has a part named '{taken[0]}', as a trainer's log names the whole"
            )
        self._bound: set[frozenset[str]] = set()

    def item(
        self,
        prompt: Prompt,
        completion: Prompt,
        fields: Mapping[str, Any],
        *,
        tokens: int = 0,
        finish: Finish = Finish.STOP,
    ) -> Item:
        """One row of a trainer's batch as a task and a response."""
        named = {self.columns.get(key, key): value for key, value in fields.items()}
        messages = as_messages(prompt)
        own = named.get("task_id", named.get("id"))
        if own is None:  # from what the task is: every process and every epoch gives the same one
            own = digest(msgspec.json.encode((messages, named), order="sorted", enc_hook=repr))
        name = str(own)
        labels = {*self.labels, *(self.columns[key] for key in self.labels if key in self.columns)}
        task = Task(name, messages, named, tuple(sorted(labels & named.keys())))
        text = completion_text(completion)
        return Item(task, Response(f"{name}/{digest(text)}", text, finish, tokens))

    async def score(self, items: Sequence[Item]) -> list[Scored]:
        """One reward for each item, in order. Neighbours with the same task are asked together."""
        if items and (names := frozenset(items[0].task.fields)) not in self._bound:
            bind_check(self.scorer, names)
            self._bound.add(names)
        groups = [list(group) for _, group in groupby(items, key=lambda item: item.task)]
        calls = [(group[0].task, [item.response for item in group]) for group in groups]
        rewards = await score_groups(
            self.scorer, calls, limit=self.limit, deadline_s=self.deadline_s
        )
        flat = [reward for group in rewards for reward in group]
        keep = self.trace.write if self.trace else trace_key
        return [Scored(r, keep(*item, r)) for item, r in zip(items, flat, strict=True)]

    def score_now(self, items: Sequence[Item]) -> list[Scored]:
        """`score` for code that cannot await; works inside a running event loop too."""
        return call(lambda: self.score(items))

    async def score_from(self, items: Sequence[Item]) -> list[Scored]:
        """`score` for code that runs on another event loop."""
        return await call_async(lambda: self.score(items))

    def numbers(self, reward: Reward) -> dict[str, float]:
        """The reward as numbers under the same keys for every sample: `valid` is 1 or 0, and each
        part comes with its own `_valid`. Where that is 0 the number beside it means nothing."""
        values = reward.components
        numbers = {"valid": float(reward.value is not None)}
        for name in self.parts:
            value = values.get(name)
            numbers |= {name: value or 0.0, f"{name}_valid": float(value is not None)}
        return numbers


def pointwise(scorer: Scorer, anchor: Response | str | None = None) -> Scorer:
    """The scorer, if it can score one response at a time; a pair scorer against `anchor`."""
    if scorer.scope is Scope.PAIR and anchor is not None:
        return Anchor(scorer, anchor)
    if anchor is not None:
        raise UserError(
            f"reward '{scorer.name}' of scope {scorer.scope.value} takes no anchor; leave it out"
        )
    if scorer.scope in (Scope.POINT, Scope.STEP):
        return scorer
    cure = "Score the gathered group yourself, or use a reward of scope point."
    if scorer.scope is Scope.PAIR:
        cure = "Give the adapter anchor='FIELD', the task field that holds the response to compare with."
    raise UserError(
        f"reward '{scorer.name}' compares responses (scope {scorer.scope.value}), and trainers "
        f"split the responses to one prompt over processes. {cure}"
    )


def as_messages(prompt: Prompt) -> tuple[Message, ...]:
    """A prompt as messages; a bare text is a user's message."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    return tuple(Message(str(_of(m, "role")), _text(_of(m, "content"))) for m in prompt)


def completion_text(completion: Prompt) -> str:
    """What the model said last: the text, or the content of the last assistant message."""
    if isinstance(completion, str):
        return completion
    said = [m for m in completion if _of(m, "role") == "assistant"]
    return _text(_of(said[-1], "content")) if said else ""


def missing(reward: Reward) -> str:
    """Why a reward has no value, on one line."""
    reason = " ".join(reward.reason.split())
    return f"reward '{reward.name}' has no value ({reward.status.value}): {reason}"


def engine(name: str) -> Any:
    """A module of an engine's package, or one line that says to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name != package:
            raise
        raise UserError(
            f"this adapter needs the package '{package}', which is not installed: pip install {package}"
        ) from error


def _of(message: Any, key: str) -> Any:
    return message.get(key) if isinstance(message, Mapping) else getattr(message, key, None)


def _text(content: Any) -> str:
    """A message's content as text: a text, or the text parts of a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part if isinstance(part, str) else _of(part, "text") for part in content]
    return "".join(text for text in texts if isinstance(text, str))


class Trace(Struct, frozen=True):
    """One scored response."""

    key: str
    """`task id/response hash`: what the trainer's own tables show."""
    task: str
    response: str
    reward: Reward


class TraceFile:
    """JSON lines of `Trace`; opened when the first reward is written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, task: Task, response: Response, reward: Reward) -> str:
        """Append one reward and give its key."""
        key = trace_key(task, response, reward)
        line = msgspec.json.encode(Trace(key, task.id, digest(response.text), reward)) + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:  # one system call a line
                file.write(line)
        except OSError as error:
            raise StoreError(f"the trace file {self.path} cannot be written: {error}.") from error
        return key


def trace_key(task: Task, response: Response, reward: Reward) -> str:
    return f"{task.id}/{digest(response.text)}"


def read_traces(path: str | Path) -> Iterator[Trace]:
    """The traces of a file, in the order of writing."""
    return iter(read_lines(Path(path), Trace))
