"""Talk to language models: one `LM` protocol, several backends.

Names that need torch or an HTTP library are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from burnish.lm.base import LM, Completion, Prompt, Sampling, Scores

if TYPE_CHECKING:
    from burnish.lm.embedded import embedded_model
    from burnish.lm.fleet import Fleet
    from burnish.lm.folder import LoadedModel, load_model, save_model
    from burnish.lm.http import OpenAILM
    from burnish.lm.local import LocalLM
    from burnish.lm.named import open_lm
    from burnish.lm.replay import RecordingLM, ReplayLM
    from burnish.lm.scripted import ScriptedLM
    from burnish.lm.threads import choose_threads
    from burnish.lm.tiny import tiny_model

__all__ = [
    "LM",
    "Completion",
    "Fleet",
    "LoadedModel",
    "LocalLM",
    "OpenAILM",
    "Prompt",
    "RecordingLM",
    "ReplayLM",
    "Sampling",
    "Scores",
    "ScriptedLM",
    "choose_threads",
    "embedded_model",
    "load_model",
    "open_lm",
    "save_model",
    "tiny_model",
]

_HOME = {
    "Fleet": "fleet",
    "LoadedModel": "folder",
    "LocalLM": "local",
    "OpenAILM": "http",
    "RecordingLM": "replay",
    "ReplayLM": "replay",
    "ScriptedLM": "scripted",
    "choose_threads": "threads",
    "embedded_model": "embedded",
    "load_model": "folder",
    "open_lm": "named",
    "save_model": "folder",
    "tiny_model": "tiny",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
