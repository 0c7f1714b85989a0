"""A model with scripted answers: for tests, demos and dry runs.

    ScriptedLM({"What is 3 + 4?": "7"})                        # by the last user message
    ScriptedLM(["first answer", "second answer"])              # in the order of asking
    ScriptedLM(lambda messages, index: f"answer {index}")      # by anything; index counts 0 .. n-1

With a tokenizer its completions carry token ids, with log-prob 0: a script is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from burnish.errors import ModelError, UserError, did_you_mean
from burnish.lm.base import Completion, Prompt, Sampling, Scores, check_sampling
from burnish.records import Finish, Message
from burnish.texts import before_stop

Script = Mapping[str, str] | Sequence[str] | Callable[[Sequence[Message], int], str]


class TextCodec(Protocol):
    """The part of a tokenizer that a script needs."""

    def encode(self, text: str, /) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int], /) -> str: ...


class Asked(NamedTuple):
    """One recorded call."""

    prompt: Prompt
    sampling: Sampling
    texts: tuple[str, ...]


class ScriptedLM:
    """The `LM` protocol from a dict, a list or a function; `calls` records what was asked."""

    def __init__(
        self, script: Script, *, name: str = "scripted", tokenizer: TextCodec | None = None
    ) -> None:
        if isinstance(script, str):
            raise UserError("the script is one text; expected a dict, a list or a function")
        self._script = script
        self._name = name
        self._tokenizer = tokenizer
        self._used = 0
        self.calls: list[Asked] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def tokenizer(self) -> TextCodec | None:
        return self._tokenizer

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """The script's next `n` answers, cut at stop strings and, with a tokenizer, at the
        token budget."""
        check_sampling(sampling)
        messages = self._messages(prompt)
        texts = tuple(self._line(messages, index) for index in range(sampling.n))
        self.calls.append(Asked(prompt, sampling, texts))
        return [self._completion(text, prompt, sampling) for text in texts]

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, top_k: int = 0
    ) -> Scores:
        """A script has no distribution over other answers, so this always raises."""
        raise ModelError(
            f"'{self._name}' is a scripted model and cannot score; use an in-process model"
        )

    def _line(self, messages: Sequence[Message], index: int) -> str:
        if callable(self._script):
            return self._script(messages, index)
        if isinstance(self._script, Mapping):
            asked = next((m.text for m in reversed(messages) if m.role == "user"), "")
            if asked not in self._script:
                raise ModelError(
                    f"'{self._name}' has no line for the prompt {asked[:80]!r} "
                    f"({len(self._script)} known).{did_you_mean(asked, self._script)}"
                )
            return self._script[asked]
        if self._used >= len(self._script):
            raise ModelError(f"'{self._name}' has said all of its {len(self._script)} lines")
        self._used += 1
        return self._script[self._used - 1]

    def _messages(self, prompt: Prompt) -> Sequence[Message]:
        messages = [item for item in prompt if isinstance(item, Message)]
        if messages:
            return messages
        ids = [item for item in prompt if isinstance(item, int)]
        if self._tokenizer is None:
            raise UserError(
                f"'{self._name}' got {len(ids)} token ids but has no tokenizer to read them; "
                "pass messages or ScriptedLM(..., tokenizer=...)"
            )
        return [Message("user", self._tokenizer.decode(ids))]

    def _completion(self, text: str, prompt: Prompt, sampling: Sampling) -> Completion:
        text = before_stop(text, sampling.stop)
        if self._tokenizer is None:
            return Completion(text, model=self._name)
        ids = tuple(self._tokenizer.encode(text))
        is_cut = len(ids) > sampling.max_tokens
        if is_cut:
            ids = ids[: sampling.max_tokens]
            text = self._tokenizer.decode(ids)
        return Completion(
            text,
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            finish=Finish.LENGTH if is_cut else Finish.STOP,
            prompt_ids=tuple(item for item in prompt if isinstance(item, int)),
            model=self._name,
        )
