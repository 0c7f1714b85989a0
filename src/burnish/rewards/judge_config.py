"""Judges of pairs as a recipe file names them.

judge = { kind = "function", path = "my_judge.py:better_story" }
judge = { kind = "lm", url = "http://127.0.0.1:8000/v1", model = "my-model" }
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from burnish.rewards.pair_judges import CallablePairJudge
from burnish.source import find_function

if TYPE_CHECKING:
    from burnish.rewards.model_judge import LMPairJudge


class BaseJudgeConfig(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """Base of every judge's settings; `kind` names the judge in a recipe file."""


class FunctionJudgeConfig(BaseJudgeConfig, frozen=True, tag="function"):
    """Your own function of (prompt, a, b), or of a list of such pairs; gives two scores a pair."""

    path: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    deadline_s: float = 30.0
    """Wall clock of one call."""

    def build(self, base: str | Path) -> CallablePairJudge:
        """The function, looked up relative to `base`."""
        function = find_function(self.path, "judge", Path(base))
        return CallablePairJudge(function, options=self.options, deadline_s=self.deadline_s)


class LMJudgeConfig(BaseJudgeConfig, frozen=True, tag="lm"):
    """A model behind an OpenAI-style server, asked for criteria, evidence and two scores."""

    url: str
    model: str
    api_key_env: str = ""
    """Name of the environment variable that holds the key; empty where none is needed."""
    temperature: float = 0.6
    max_tokens: int = 2048
    seed: int = 0
    concurrency: int = 32
    """Questions of one group under way at once."""

    def build(self) -> LMPairJudge:
        """The judge; no request is sent before the first question."""
        from burnish.lm.http import OpenAILM
        from burnish.rewards.model_judge import LMPairJudge

        return LMPairJudge(
            OpenAILM(self.url, self.model, api_key_env=self.api_key_env or None),
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            concurrency=self.concurrency,
        )
