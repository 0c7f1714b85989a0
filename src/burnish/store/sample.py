"""`StoredSample`: one rollout with its task, its reward and what the update made of it.

A sample becomes one row of `samples` and comes back equal, every log-prob to the last bit, with two
exceptions: a tuple in a task's fields or in `info` comes back as a list, and half of a surrogate
pair, which no UTF-8 text can hold, comes back as U+FFFD (the token ids stay what they were). What
JSON would change in silence (NaN, keys that are not text, bytes) is refused by name.

Its tokens are in four separate columns: see `tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.errors import StoreError
from burnish.records import AudioPart, Author, Finish, ImagePart, Reward, Span, Task, Trajectory
from burnish.store.database import Row
from burnish.store.sample_name import shown_step
from burnish.texts import whole_texts


class TokenCells(NamedTuple):
    """One sample's tokens as its row has them."""

    prompt: int
    """Tokens before the model's first."""
    sampled: int
    """Tokens that the model wrote, trained on or not."""
    ids: str
    mask: str
    logprobs: str
    spans: str


class SpanWriter:
    """Encodes the tokens of many rollouts; a prompt that rollouts share, once.

    The rollouts of a group begin with the very same span objects. These are known by identity, so
    they must stay alive while this is used.
    """

    def __init__(self) -> None:
        self._prompts: dict[tuple[int, ...], _Stretch] = {}

    def cells(self, spans: tuple[Span, ...]) -> TokenCells:
        """The cells of one rollout; `ValueError` where a log-prob is missing or not finite."""
        start = 0
        for span in spans:
            if span.author is _MODEL and span.token_ids:
                break
            start += 1
        lead, own = spans[:start], spans[start:]
        key = tuple(map(id, lead))
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = _joined(_EMPTY, lead)
        sampled = sum([len(span.token_ids) for span in own if span.author is _MODEL])
        _, *cells = _joined(prompt, own)
        return TokenCells(prompt.tokens, sampled, *[f"[{cell[:-1]}]" for cell in cells])


def read_spans(shapes: str, token_ids: str, logprobs: str) -> tuple[Span, ...]:
    """The spans from their cells, as they were."""
    tokens = _TOKENS.decode(token_ids)
    sampled = _LOGPROBS.decode(logprobs)
    spans = []
    start = 0
    for shape in _SHAPES.decode(shapes):
        end = start + shape.tokens
        own = tuple(p for p in sampled[start:end] if p is not None)
        spans.append(Span(shape.author, tokens[start:end], own, shape.trainable, shape.media))
        start = end
    return tuple(spans)


class SpanShape(Struct, frozen=True, omit_defaults=True):
    """Who wrote a stretch of tokens, how many, whether they are trained, and their media."""

    author: Author
    tokens: int
    trainable: bool
    media: tuple[ImagePart | AudioPart, ...] = ()


class _Stretch(NamedTuple):
    """Consecutive tokens as JSON arrays without their brackets; every entry ends with a comma."""

    tokens: int
    ids: str
    mask: str
    logprobs: str
    shapes: str


_EMPTY = _Stretch(0, "", "", "", "")
_MODEL = Author.MODEL
_SHAPES = msgspec.json.Decoder(tuple[SpanShape, ...])
_TOKENS = msgspec.json.Decoder(tuple[int, ...])
_LOGPROBS = msgspec.json.Decoder(tuple[float | None, ...])


def _joined(before: _Stretch, spans: Sequence[Span]) -> _Stretch:
    count, ids, mask, logprobs, shapes = before
    for span in spans:
        tokens = len(span.token_ids)
        if span.logprobs:
            # JSON has no NaN. The sum is a quick test; only where it is bad does each number matter.
            if not math.isfinite(sum(span.logprobs)):
                _check_exact(span.logprobs, "the log-probs of a span")
            if len(span.logprobs) != tokens:
                raise ValueError(
                    f"{len(span.logprobs)} log-probs for the {tokens} tokens of a span"
                )
            logprobs += _entries(span.logprobs)
        else:
            logprobs += "null," * tokens
        ids += _entries(span.token_ids)
        mask += ("1," if span.trainable else "0,") * tokens
        shapes += _shape(span.author, tokens, span.trainable, span.media)
        count += tokens
    return _Stretch(count, ids, mask, logprobs, shapes)


def _entries(values: tuple[float, ...]) -> str:
    return _ENCODER.encode(values)[1:-1].decode() + "," if values else ""


@lru_cache(maxsize=4096)
def _shape(
    author: Author, tokens: int, trainable: bool, media: tuple[ImagePart | AudioPart, ...]
) -> str:
    return _ENCODER.encode(SpanShape(author, tokens, trainable, media)).decode() + ","


COLUMNS = (
    *("id", "trajectory_id", "step", "split", "idx", "task_id", "group_key", "role"),
    *("prompt", "response", "finish", "weight_version", "reward", "status", "advantage", "keep"),
    *("prompt_tokens", "response_tokens", "token_ids", "loss_mask", "logprobs", "spans"),
    *("task", "reward_tree", "info"),
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
        """The store's key: `2/train/11` is step 2, split train, index 11, all from 0.

        People read the name of `sample_name`, which needs the whole step.
        """
        return sample_id(self.step, self.split, self.index)


def sample_id(step: int, split: str, index: int) -> str:
    return f"{step}/{split}/{index}"


class EncodedSamples(NamedTuple):
    """Rows for the three tables, in the order of their columns."""

    samples: list[Row]
    parts: list[Row]
    evidence: list[Row]


def encode(samples: Sequence[StoredSample]) -> EncodedSamples:
    """Rows of `samples`, `reward_parts` and `evidence`.

    Raises `StoreError` with the sample and the key where a value has no exact JSON.
    """
    rows: list[Row] = []
    parts: list[Row] = []
    evidence: list[Row] = []
    # Rollouts of a group share one task object; it is encoded once.
    tasks: dict[int, tuple[str, str]] = {}
    spans = SpanWriter()
    for sample in samples:
        task = sample.task
        try:
            if id(task) not in tasks:
                _check_exact(task.fields, "task.fields")
                for number, message in enumerate(task.messages):
                    _check_exact(message.tool_calls, f"task.messages[{number}].tool_calls")
                tasks[id(task)] = whole_texts(task.prompt), as_json(task)
            row = _row(sample, *tasks[id(task)], spans)
        except (TypeError, ValueError, OverflowError) as error:
            where = f"step {shown_step(sample.step, sample.split)}, {sample.split}"
            name = f"sample {sample.trajectory.id} ({where})"
            raise StoreError(f"{name} cannot be stored: {error}.") from error
        rows.append(row)
        for path, reward in flatten(sample.reward).items():
            name, reason = whole_texts(path), whole_texts(reward.reason)
            parts.append((row[0], name, reward.value, reward.weight, str(reward.status), reason))
            for e in reward.evidence:
                failure = None if e.error is None else whole_texts(e.error)
                seen = whole_texts(e.source), whole_texts(e.observation), str(e.visibility)
                evidence.append((row[0], name, *seen, failure))
    return EncodedSamples(rows, parts, evidence)


def decode(row: Row) -> StoredSample:
    """A sample from its row, equal to the one that was stored; `StoreError` where it is damaged."""
    cell = dict(zip(COLUMNS, row, strict=True))
    try:
        trajectory = Trajectory(
            id=cell["trajectory_id"],
            task_id=cell["task_id"],
            group=cell["group_key"],
            spans=read_spans(cell["spans"], cell["token_ids"], cell["logprobs"]),
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
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise StoreError(f"sample {cell['id']} is damaged and cannot be read: {error}.") from error


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
        if node.parts:
            waiting.extend([(f"{name}/{part.name}", part) for part in reversed(node.parts)])
    return nodes


_ENCODER = msgspec.json.Encoder()
_TASK = msgspec.json.Decoder(Task)
_REWARD = msgspec.json.Decoder(Reward)
_INFO = msgspec.json.Decoder(dict[str, Any])


def as_json(value: Any) -> str:
    """The value as JSON; U+FFFD for half of a surrogate pair, which no database takes."""
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        return _ENCODER.encode(whole_texts(msgspec.to_builtins(value))).decode()


def _check_exact(value: Any, where: str) -> None:
    """Raise where JSON has no such value, or gives back another one."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}; expected a finite number or None")
    elif value is not None and not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise ValueError(
            f"{where} is of type {kind}; expected text, numbers, lists or dicts of text keys"
        )
    for key, one in inner:
        _check_exact(one, f"{where}[{key!r}]")


def _row(sample: StoredSample, prompt: str, task: str, spans: SpanWriter) -> Row:
    trajectory, reward = sample.trajectory, sample.reward
    if not math.isfinite(sample.advantage or 0.0):
        _check_exact(sample.advantage, "its advantage")
    if trajectory.info:
        _check_exact(trajectory.info, "info")
    tokens = spans.cells(trajectory.spans)
    return (
        whole_texts(sample.id),
        whole_texts(trajectory.id),
        sample.step,
        whole_texts(sample.split),
        sample.index,
        whole_texts(trajectory.task_id),
        whole_texts(trajectory.group),
        whole_texts(trajectory.role),
        prompt,
        whole_texts(trajectory.text),
        str(trajectory.finish),
        trajectory.weight_version or 0,
        reward.value,
        str(reward.status),
        sample.advantage,
        int(sample.keep),
        *tokens,
        task,
        as_json(reward),
        as_json(trajectory.info) if trajectory.info else "{}",
    )
