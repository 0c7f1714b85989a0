"""Talk to language models: one `LM` protocol, several backends.

Names that need torch or an HTTP library are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports
from burnish.lm.base import LM, Completion, MediaIds, Prompt, Sampler, Sampling, Scores

if TYPE_CHECKING:
    from burnish.lm.call_log import CallLog, read_calls
    from burnish.lm.embedded import embedded_model
    from burnish.lm.encoder import SentenceEncoder, embedded_encoder
    from burnish.lm.folder import LoadedModel, load_model, save_model
    from burnish.lm.hardware import choose_threads
    from burnish.lm.http import OpenAILM
    from burnish.lm.local import LocalLM
    from burnish.lm.model_input import ModelInput, Processor
    from burnish.lm.named import open_lm
    from burnish.lm.new_model import NewModel, new_model_folder
    from burnish.lm.new_tokenizer import train_bpe
    from burnish.lm.remote import RemoteSampler
    from burnish.lm.replay import RecordingLM, ReplayLM
    from burnish.lm.request_pool import RequestPool
    from burnish.lm.scripted import ScriptedLM
    from burnish.lm.tiny import tiny_model
    from burnish.lm.tiny_media import tiny_media_model

__all__ = [
    "LM",
    "CallLog",
    "Completion",
    "LoadedModel",
    "LocalLM",
    "MediaIds",
    "ModelInput",
    "NewModel",
    "OpenAILM",
    "Processor",
    "Prompt",
    "RecordingLM",
    "RemoteSampler",
    "ReplayLM",
    "RequestPool",
    "Sampler",
    "Sampling",
    "Scores",
    "ScriptedLM",
    "SentenceEncoder",
    "choose_threads",
    "embedded_encoder",
    "embedded_model",
    "load_model",
    "new_model_folder",
    "open_lm",
    "read_calls",
    "save_model",
    "tiny_media_model",
    "tiny_model",
    "train_bpe",
]

__getattr__, __dir__ = lazy_exports(__name__)
