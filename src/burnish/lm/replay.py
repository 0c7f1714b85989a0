"""Record a model once, replay it for ever: real answers without the server.

    async with OpenAILM(url, "judge") as judge:
        lm = RecordingLM(judge, Path("judge.jsonl"))
        await score_everything(lm)
    lm = ReplayLM(Path("judge.jsonl"))

The log has one JSON line a call, keyed by a hash of model, prompt and sampling. What was not
recorded is an error, never a guess.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from burnish.errors import ModelError, UserError, did_you_mean
from burnish.lm.base import LM, Completion, Prompt, Sampling, Scores
from burnish.lm.lines import LineFile, Place, read_lines
from burnish.records import Message
from burnish.seeds import digest


class Recorded(Struct, frozen=True, omit_defaults=True):
    """One call and its answer. `sampling` is None where the call was `score`."""

    key: str
    model: str
    messages: tuple[Message, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    sampling: Sampling | None = None
    completions: tuple[Completion, ...] = ()
    response_ids: tuple[int, ...] = ()
    top_k: int = 0
    scores: Scores | None = None

    @property
    def prompt_text(self) -> str:
        """The prompt for people."""
        if self.prompt_ids:
            return " ".join(map(str, self.prompt_ids))
        return "\n".join(message.text for message in self.messages)


class RecordingLM:
    """Any model, with every answer also written to a log."""

    def __init__(self, lm: LM, path: Path) -> None:
        self._lm = lm
        self._path = path
        self._known = Place()
        if path.exists():  # a file that is something else is refused before the model is paid
            self._write(None)

    @property
    def name(self) -> str:
        return self._lm.name

    @property
    def identity(self) -> str:
        return getattr(self._lm, "identity", "")

    @property
    def prices(self) -> Any:
        """The model's own; None where it has none."""
        return getattr(self._lm, "prices", None)

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        asked = asked_sample(self.name, prompt, sampling)
        completions = await self._lm.sample(prompt, sampling)
        self._write(msgspec.structs.replace(asked, completions=tuple(completions)))
        return completions

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, top_k: int = 0
    ) -> Scores:
        asked = _asked_score(self.name, prompt_ids, response_ids, top_k)
        scores = await self._lm.score(prompt_ids, response_ids, top_k=top_k)
        self._write(msgspec.structs.replace(asked, scores=scores))
        return scores

    def _write(self, record: Recorded | None) -> None:
        """Append a record, or with None only check the file."""
        with LineFile(self._path, Recorded, self._known) as file:
            self._known = file.end
            if record is not None:
                file.append(record)


class ReplayLM:
    """The answers of a log, as the model that was recorded. Of equal calls the first counts."""

    def __init__(self, path: Path, *, model: str | None = None) -> None:
        self._path = path
        self._records: dict[str, Recorded] = {}
        for record in read_lines(path, Recorded):
            self._records.setdefault(record.key, record)
        models = sorted({record.model for record in self._records.values()})
        self._name = _one_model(models, model, path)

    @property
    def name(self) -> str:
        return self._name

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        return list(self._find(asked_sample(self._name, prompt, sampling)).completions)

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, top_k: int = 0
    ) -> Scores:
        found = self._find(_asked_score(self._name, prompt_ids, response_ids, top_k)).scores
        if found is None:
            raise ModelError(f"{self._path}: a recorded score has no log-probs; record it again")
        return found

    def _find(self, asked: Recorded) -> Recorded:
        found = self._records.get(asked.key)
        if found is None:
            raise ModelError(f"{self._path}: {self._why_missing(asked)}")
        return found

    def _why_missing(self, asked: Recorded) -> str:
        """Name the recorded call that comes nearest, and what differs."""
        kind = "score" if asked.sampling is None else "sample"
        same_kind = [
            record
            for record in self._records.values()
            if record.model == asked.model and (record.sampling is None) == (kind == "score")
        ]
        text = asked.prompt_text
        start = f"no recorded {kind} for the prompt {text[:80]!r}"
        for record in same_kind:
            if record.prompt_text == text:
                return f"{start} with these settings; recorded: {_difference(record, asked)}"
        prompts = [record.prompt_text for record in same_kind]
        near = difflib.get_close_matches(text, prompts, n=1, cutoff=0.0)
        if not near:
            return f"{start}; the log has none at all of model '{asked.model}'"
        return f"{start}; the nearest recorded prompt is {near[0][:80]!r}"


def asked_sample(model: str, prompt: Prompt, sampling: Sampling) -> Recorded:
    """One call of `sample` as a log keeps it, still without its answer."""
    messages = tuple(item for item in prompt if isinstance(item, Message))
    ids = tuple(item for item in prompt if isinstance(item, int))
    key = _key("sample", model, messages, ids, sampling)
    return Recorded(key, model, messages, ids, sampling)


def _asked_score(
    model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], top_k: int
) -> Recorded:
    ids, response = tuple(prompt_ids), tuple(response_ids)
    key = _key("score", model, ids, response, top_k)
    return Recorded(key, model, prompt_ids=ids, response_ids=response, top_k=top_k)


def _key(*parts: object) -> str:
    try:
        return digest(*(msgspec.json.encode(part, order="deterministic") for part in parts))
    except UnicodeEncodeError as error:
        raise UserError(
            f"the prompt cannot be written as UTF-8 ({error.reason}); it holds half a character"
        ) from None


def _difference(record: Recorded, asked: Recorded) -> str:
    """The settings in which two calls with the same prompt differ, as the log has them."""
    if record.sampling is None or asked.sampling is None:
        return f"top_k={record.top_k}, {len(record.response_ids)} response tokens"
    ours, theirs = msgspec.structs.asdict(asked.sampling), msgspec.structs.asdict(record.sampling)
    return ", ".join(f"{k}={theirs[k]!r}" for k in theirs if theirs[k] != ours[k])


def _one_model(models: Sequence[str], wanted: str | None, path: Path) -> str:
    if not models:
        raise UserError(f"{path}: the log is empty; record it with RecordingLM first")
    if wanted is None and len(models) == 1:
        return models[0]
    if wanted is None:
        raise UserError(f"{path}: the log holds {models}; choose one with model=")
    if wanted not in models:
        raise UserError(f"{path}: no model '{wanted}' in it.{did_you_mean(wanted, models)}")
    return wanted
