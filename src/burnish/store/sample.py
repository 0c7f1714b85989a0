"""`StoredSample`: one rollout with its task, its reward and what the update made of it.

A sample becomes one row of `samples` and comes back equal, every log-prob to the last bit, with two
exceptions: a tuple in a task's fields or in `info` comes back as a list, and half of a surrogate
pair, which no UTF-8 text can hold, comes back as U+FFFD (the token ids stay what they were). What
JSON would change in silence (NaN, keys that are not text, bytes) is refused by name.

Token ids, mask and log-probs lie side by side, one entry a token (`null` where nobody sampled it),
and `spans` says who wrote which stretch of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.errors import StoreError
from burnish.records import Author, Finish, Reward, Span, Task, Trajectory
from burnish.store.database import Row

COLUMNS = (
    "id",
    "trajectory_id",
    "step",
    "split",
    "idx",
    "task_id",
    "group_key",
    "role",
    "prompt",
    "response",
    "finish",
    "weight_version",
    "reward",
    "status",
    "advantage",
    "keep",
    "prompt_tokens",
    "response_tokens",
    "token_ids",
    "loss_mask",
    "logprobs",
    "spans",
    "task",
    "reward_tree",
    "info",
)
PART_COLUMNS = ("sample_id", "name", "value", "weight", "status", "reason")
EVIDENCE_COLUMNS = ("sample_id", "part", "source", "observation", "visibility", "error")


class StoredSample(Struct, frozen=True, kw_only=True):
    """One rollout as the store keeps it."""

    step: int
    split: str
    """`train`, `dropped` (sampled, then put aside) or `eval:<name>`."""
    index: int
    """Position within its step and split."""
    task: Task
    trajectory: Trajectory
    reward: Reward
    advantage: float | None = None
    keep: bool = True
    """False where the recipe left it out of the loss."""

    @property
    def id(self) -> str:
        """Its address in the run: `12/train/3` is step 12, split train, index 3."""
        return f"{self.step}/{self.split}/{self.index}"


class SpanShape(Struct, frozen=True):
    """Who wrote a stretch of tokens, how many, and whether they are trained."""

    author: Author
    tokens: int
    trainable: bool


class EncodedSamples(NamedTuple):
    """Rows for the three tables, in the order of their columns."""

    samples: list[Row]
    parts: list[Row]
    evidence: list[Row]


def encode(samples: Sequence[StoredSample]) -> EncodedSamples:
    """Rows of `samples`, `reward_parts` and `evidence`.

    Raises `StoreError` with the sample and the key where a value has no exact JSON.
    """
    encoded = EncodedSamples([], [], [])
    # Rollouts of a group share one task object; it is encoded once.
    tasks: dict[int, str] = {}
    for sample in samples:
        identity = sample.id
        try:
            if id(sample.task) not in tasks:
                tasks[id(sample.task)] = _task_json(sample.task)
            encoded.samples.append(_valid(_row(sample, identity, tasks[id(sample.task)])))
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"{_named(sample)} cannot be stored: {error}.") from error
        for name, reward in flatten(sample.reward).items():
            status = reward.status.value
            encoded.parts.append(
                _valid((identity, name, reward.value, reward.weight, status, reward.reason))
            )
            encoded.evidence.extend(
                _valid((identity, name, e.source, e.observation, e.visibility.value, e.error))
                for e in reward.evidence
            )
    return encoded


def decode(row: Row) -> StoredSample:
    """A sample from its row, equal to the one that was stored; `StoreError` where it is damaged."""
    cell = dict(zip(COLUMNS, row, strict=True))
    try:
        return _sample(cell)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise StoreError(f"sample {cell['id']} is damaged and cannot be read: {error}.") from error


def _sample(cell: dict[str, Any]) -> StoredSample:
    trajectory = Trajectory(
        id=cell["trajectory_id"],
        task_id=cell["task_id"],
        group=cell["group_key"],
        spans=_spans(
            _SPANS.decode(cell["spans"]),
            _TOKENS.decode(cell["token_ids"]),
            _LOGPROBS.decode(cell["logprobs"]),
        ),
        text=cell["response"],
        role=cell["role"],
        finish=Finish(cell["finish"]),
        weight_version=cell["weight_version"],
        info=_INFO.decode(cell["info"]),
    )
    return StoredSample(
        step=cell["step"],
        split=cell["split"],
        index=cell["idx"],
        task=_TASK.decode(cell["task"]),
        trajectory=trajectory,
        reward=_REWARD.decode(cell["reward_tree"]),
        advantage=cell["advantage"],
        keep=bool(cell["keep"]),
    )


def flatten(reward: Reward) -> dict[str, Reward]:
    """Every node of a reward tree under a name such as `total/format`; a namesake gets `#2`."""
    nodes: dict[str, Reward] = {}
    waiting = [(reward.name, reward)]
    while waiting:
        path, node = waiting.pop()
        count = 1
        name = path
        while name in nodes:
            count += 1
            name = f"{path}#{count}"
        nodes[name] = node
        waiting.extend((f"{name}/{part.name}", part) for part in reversed(node.parts))
    return nodes


_ENCODER = msgspec.json.Encoder()
_SPANS = msgspec.json.Decoder(tuple[SpanShape, ...])
_TOKENS = msgspec.json.Decoder(tuple[int, ...])
_LOGPROBS = msgspec.json.Decoder(tuple[float | None, ...])
_TASK = msgspec.json.Decoder(Task)
_REWARD = msgspec.json.Decoder(Reward)
_INFO = msgspec.json.Decoder(dict[str, Any])


_HALF_PAIR = re.compile("[\ud800-\udfff]")


def _json(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        return _ENCODER.encode(_whole(msgspec.to_builtins(value))).decode()


def _task_json(task: Task) -> str:
    _check_exact(task.fields, "task.fields")
    for number, message in enumerate(task.messages):
        _check_exact(message.tool_calls, f"task.messages[{number}].tool_calls")
    return _json(task)


def _check_exact(value: Any, where: str) -> None:
    """Raise where JSON has no such value, or gives back another one."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}; expected text as keys")
            _check_exact(inner, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            _check_exact(inner, f"{where}[{position}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}; expected a finite number or None")
    elif value is not None and not isinstance(value, str | int | float):
        raise ValueError(
            f"{where} is of type {type(value).__name__}; expected text, numbers, true or false, "
            "None, or lists and dicts of these"
        )


def _valid(row: Row) -> Row:
    """The row with texts that are valid Unicode, as SQLite demands."""
    return tuple(_whole(cell) if isinstance(cell, str) else cell for cell in row)


def _whole(value: Any) -> Any:
    """The value with U+FFFD for each half of a surrogate pair, in keys too."""
    if isinstance(value, str):
        return value if value.isascii() else _HALF_PAIR.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole(key): _whole(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(inner) for inner in value]
    return value


def _row(sample: StoredSample, identity: str, task: str) -> Row:
    trajectory, reward = sample.trajectory, sample.reward
    if sample.advantage is not None and not math.isfinite(sample.advantage):
        raise ValueError(f"its advantage is {sample.advantage}; expected a finite float or None")
    _check_exact(trajectory.info, "info")
    tokens = _aligned(trajectory.spans)
    return (
        identity,
        trajectory.id,
        sample.step,
        sample.split,
        sample.index,
        trajectory.task_id,
        trajectory.group,
        trajectory.role,
        sample.task.prompt,
        trajectory.text,
        trajectory.finish.value,
        trajectory.weight_version,
        reward.value,
        reward.status.value,
        sample.advantage,
        int(sample.keep),
        tokens.prompt,
        tokens.sampled,
        _json(tokens.ids),
        _json(tokens.mask),
        _json(tokens.logprobs),
        _json([SpanShape(s.author, len(s.token_ids), s.trainable) for s in trajectory.spans]),
        task,
        _json(reward),
        _json(trajectory.info),
    )


class _Tokens(NamedTuple):
    """A trajectory's tokens laid side by side, one entry each."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float | None]
    """None in spans that carry no log-probs."""
    prompt: int
    """Tokens before the model's first."""
    sampled: int
    """Tokens that the model wrote, trained on or not."""


def _aligned(spans: Sequence[Span]) -> _Tokens:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float | None] = []
    prompt = sampled = 0
    for span in spans:
        length = len(span.token_ids)
        if span.logprobs:
            _check_logprobs(span, start=len(ids))
        if span.author is Author.MODEL:
            sampled += length
        elif not sampled:
            prompt += length
        ids.extend(span.token_ids)
        mask.extend([int(span.trainable)] * length)
        logprobs.extend(span.logprobs or [None] * length)
    return _Tokens(ids, mask, logprobs, prompt, sampled)


def _check_logprobs(span: Span, start: int) -> None:
    if len(span.logprobs) != len(span.token_ids):
        raise ValueError(
            f"a span has {len(span.logprobs)} log-probs for {len(span.token_ids)} tokens"
        )
    # JSON has no NaN. The sum is a quick test; only where it is bad does each number matter.
    if math.isfinite(sum(span.logprobs)):
        return
    for position, logprob in enumerate(span.logprobs, start):
        if not math.isfinite(logprob):
            raise ValueError(
                f"the log-prob of token {position} is {logprob}; expected a finite float"
            )


def _spans(
    shapes: Sequence[SpanShape], tokens: tuple[int, ...], logprobs: tuple[float | None, ...]
) -> tuple[Span, ...]:
    spans = []
    start = 0
    for shape in shapes:
        end = start + shape.tokens
        sampled = tuple(p for p in logprobs[start:end] if p is not None)
        spans.append(Span(shape.author, tokens[start:end], sampled, shape.trainable))
        start = end
    return tuple(spans)


def _named(sample: StoredSample) -> str:
    return f"sample {sample.trajectory.id} (step {sample.step}, {sample.split})"
