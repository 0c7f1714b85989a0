"""Record a model once, replay it for ever: real answers without the server."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, Self

from msgspec.structs import replace

from burnish.errors import ModelError, UserError, did_you_mean
from burnish.lm.base import LM, Completion, Messages, Prompt, Sampling, Scores, TokenIds
from burnish.lm.call_log import Call, CallLog, asked_sample, asked_score, read_calls
from burnish.lm.failures import failure_of
from burnish.records import Finish, Message
from burnish.seeds import digest
from burnish.texts import before_stop

Script = Mapping[str, str] | Sequence[str] | Callable[[Messages, int], str]


class Asked(NamedTuple):
    """One recorded call."""

    prompt: Prompt
    sampling: Sampling
    texts: tuple[str, ...]


class ScriptedLM:
    """The `LM` protocol from a dict, a list or a function; `calls` records what was asked."""

    def __init__(self, script: Script, *, name: str = "scripted", tokenizer: Any = None) -> None:
        self._script = script
        self.name = name
        self.tokenizer = tokenizer
        self._used = 0
        self.calls: list[Asked] = []

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """The script's next `n` answers, cut at stop strings and, with a tokenizer, at the
        token budget."""
        messages = self._messages(prompt)
        texts = tuple(self._line(messages, index) for index in range(sampling.n))
        self.calls.append(Asked(prompt, sampling, texts))
        return [self._completion(text, prompt, sampling) for text in texts]

    async def score(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        """A script has no distribution over other answers, so this always raises."""
        raise ModelError(
            f"'{self.name}' is a scripted model and cannot score; use an in-process model"
        )

    def _line(self, messages: Messages, index: int) -> str:
        if callable(self._script):
            return self._script(messages, index)
        if isinstance(self._script, Mapping):
            asked = next((m.text for m in reversed(messages) if m.role == "user"), "")
            if asked not in self._script:
                raise ModelError(
                    f"'{self.name}' has no line for the prompt {asked[:80]!r} "
                    f"({len(self._script)} known).{did_you_mean(asked, self._script)}"
                )
            return self._script[asked]
        if self._used >= len(self._script):
            raise ModelError(f"'{self.name}' has said all of its {len(self._script)} lines")
        self._used += 1
        return self._script[self._used - 1]

    def _messages(self, prompt: Prompt) -> Messages:
        messages = [item for item in prompt if isinstance(item, Message)]
        if messages:
            return messages
        ids = [item for item in prompt if isinstance(item, int)]
        if self.tokenizer is None:
            raise UserError(
                f"'{self.name}' got {len(ids)} token ids but has no tokenizer to read them; "
                "pass messages or ScriptedLM(..., tokenizer=...)"
            )
        return [Message("user", self.tokenizer.decode(ids))]

    def _completion(self, text: str, prompt: Prompt, sampling: Sampling) -> Completion:
        text = before_stop(text, sampling.stop)
        if self.tokenizer is None:
            return Completion(text, model=self.name)
        ids = tuple(self.tokenizer.encode(text))
        is_cut = len(ids) > sampling.max_tokens
        if is_cut:
            ids = ids[: sampling.max_tokens]
            text = self.tokenizer.decode(ids)
        return Completion(
            text,
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            finish=Finish.LENGTH if is_cut else Finish.STOP,
            prompt_ids=tuple(item for item in prompt if isinstance(item, int)),
            model=self.name,
        )


class NotRecorded(ModelError):
    """A call that the log does not hold."""


class RecordingLM:
    """Any model, with every answer also written to a log."""

    def __init__(self, lm: LM, path: str | Path) -> None:
        self._lm, self.log = lm, CallLog(path)

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
        asked = asked_sample(self.name, prompt, sampling, self.identity)
        completions = await self._lm.sample(prompt, sampling)
        self.log.append(replace(asked, completions=tuple(completions)))
        return completions

    async def score(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        asked = asked_score(self.name, prompt_ids, response_ids, self.identity)
        scores = await self._lm.score(prompt_ids, response_ids)
        self.log.append(replace(asked, scores=scores))
        return scores


class ReplayLM:
    """The answers of a log, as the model that was recorded. Of equal calls the first counts.

    With `by_words` a sample is also found by the words of its prompt and its seed, and by the words
    alone where the same vote on them was asked once: settings such as `max_tokens` need not be the
    recorded ones, because nothing is generated.
    """

    is_replay = True

    def __init__(
        self,
        path: str | Path,
        *,
        model: str | None = None,
        identity: str = "",
        by_words: bool = False,
    ) -> None:
        """`identity` is that of the model on record (`model_key`), where it is known."""
        self.path, self.identity, self.by_words = Path(path).expanduser(), identity, by_words
        calls = read_calls(self.path)
        models = sorted({call.model for call in calls})
        self.name = models[0] if model is None and len(models) == 1 else model or ""
        if self.name not in models:
            held = ", ".join(models) or "nothing: the log is empty; record a model first"
            hint = did_you_mean(self.name, models)
            raise UserError(f"{self.path}: the log holds {held}; choose one with model=.{hint}")
        self._vote = 0
        self._by_key: dict[str, Call] = {}
        self._by_words: dict[str, dict[int, Call]] = {}
        for call in calls:
            if call.model != self.name:
                continue
            _keep(self._by_key, call.key, call)
            if by_words and call.sampling is not None:
                of_words = self._by_words.setdefault(_words(call.messages), {})
                _keep(of_words, call.sampling.seed, call)

    def voter(self, vote: int) -> Self:
        """The log asked for that vote: an answer given as one vote is not another one."""
        if vote == self._vote:
            return self
        other = copy(self)
        other._vote = vote
        return other

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        found = self._find(asked_sample(self.name, prompt, sampling))
        if not found.completions:
            raise failure_of(found.status, f"recorded: {found.reason}")
        return list(found.completions)

    async def score(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        found = self._find(asked_score(self.name, prompt_ids, response_ids)).scores
        assert found is not None
        return found

    def _find(self, asked: Call) -> Call:
        if self.by_words and asked.sampling is not None:
            by_seed = self._by_words.get(_words(asked.messages), {})
            same_vote = [one for one in by_seed.values() if one.vote == self._vote]
            only = same_vote[0] if len(same_vote) == 1 else None
            found = by_seed.get(asked.sampling.seed) or only
            why = f"it was asked {len(by_seed)} times with other seeds" if by_seed else ""
        else:
            found, why = self._by_key.get(asked.key), ""
        if found is None:
            raise NotRecorded(f"{self.path}: {self._missing(asked)}{why and '; '}{why}")
        return found

    def _missing(self, asked: Call) -> str:
        """Name the recorded call that comes nearest, and what differs."""
        is_score, text = asked.sampling is None, asked.prompt_text
        calls = [call for call in self._by_key.values() if (call.sampling is None) == is_score]
        start = f"no recorded {'score' if is_score else 'sample'} for the prompt {text[:80]!r}"
        prompts = [call.prompt_text for call in calls]
        if text in prompts:
            return f"{start} with {asked.sampling or 'this response'}; ask as it was recorded"
        near = difflib.get_close_matches(text, prompts, n=1, cutoff=0.0)
        if not near:
            return f"{start}; the log has none at all of model '{asked.model}'"
        return f"{start}; the nearest recorded prompt is {near[0][:80]!r}"


def _keep(calls: dict[Any, Call], key: object, call: Call) -> None:
    """The first call of a key; one that failed and was asked again later has its answer."""
    kept = calls.get(key)
    if kept is None or (not kept.is_answered and call.is_answered):
        calls[key] = call


def _words(messages: Messages) -> str:
    return digest(*(part for m in messages for part in (m.role, m.text)))
