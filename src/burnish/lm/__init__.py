"""Talk to language models: one `LM` protocol, several backends.

Names that need torch or an HTTP library are imported when they are first used.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.lm.base import (
        LM as LM,
        Completion as Completion,
        MediaIds as MediaIds,
        Prompt as Prompt,
        Sampler as Sampler,
        Sampling as Sampling,
        Scores as Scores,
    )
    from burnish.lm.call_log import CallLog as CallLog, read_calls as read_calls
    from burnish.lm.embedded import (
        SentenceEncoder as SentenceEncoder,
        embedded_encoder as embedded_encoder,
        embedded_model as embedded_model,
    )
    from burnish.lm.folder import (
        LoadedModel as LoadedModel,
        load_model as load_model,
        save_model as save_model,
    )
    from burnish.lm.hardware import choose_threads as choose_threads
    from burnish.lm.http import OpenAILM as OpenAILM
    from burnish.lm.local import LocalLM as LocalLM
    from burnish.lm.model_input import ModelInput as ModelInput
    from burnish.lm.named import open_lm as open_lm
    from burnish.lm.new_model import (
        NewModel as NewModel,
        new_model_folder as new_model_folder,
        tiny_model as tiny_model,
        train_bpe as train_bpe,
    )
    from burnish.lm.replay import (
        RecordingLM as RecordingLM,
        ReplayLM as ReplayLM,
        ScriptedLM as ScriptedLM,
    )
    from burnish.lm.request_pool import RequestPool as RequestPool

__getattr__, __dir__ = lazy_exports(__name__)
