"""A model that is no language model, such as an audio tokenizer, as the trainer holds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.lm.base import DIFFUSION, SHIPPED
from burnish.lm.embedded import make_once
from burnish.lm.folder import LoadedModel, config_for
from burnish.lm.new_model import NEW
from burnish.lm.weights import WEIGHTS, write_json, write_weights
from burnish.models import has_transformers
from burnish.seeds import digest
from burnish.training.forecast import Forecast, Workload

if TYPE_CHECKING:
    from burnish.config.schema import CodecSizes, Config
    from burnish.models.audio_tokenizer import AudioTokenizerConfig


class OtherModel(LoadedModel):
    """A Hugging Face model without tokenizer and head; saved as `save_pretrained` does."""

    def __init__(self, module: Any, folder: Path, name: str, bytes_per_token: int = 0) -> None:
        tokenizer: Any = None
        super().__init__(module, tokenizer, module.config.to_dict(), folder, name)
        self.bytes_per_token = bytes_per_token
        """What a token of the algorithm keeps for the backward pass, about; for the forecast."""

    @property
    def dtype(self) -> torch.dtype:
        return self._first.dtype

    @property
    def device(self) -> torch.device:
        return self._first.device

    @property
    def _first(self) -> Tensor:
        first: Tensor = next(self.module.parameters())
        return first

    def weights(self) -> dict[str, Tensor]:
        """The weights as they are now."""
        return dict(self.module.state_dict())

    def write(self, folder: Path) -> None:
        """A folder that the model's class and transformers' `AutoModel` read."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {**self.config, "architectures": [type(self.module).__name__]}
        write_json(folder / "config.json", config_for(config, self.dtype))
        write_weights(folder / WEIGHTS, self.weights())


def refuse_language_model(config: Config, what: str) -> None:
    """Refuse settings that only language models have, where a run trains `what`."""
    kind, path = config.train.__struct_config__.tag, config.model.path
    if not has_transformers():
        raise UserError(
            f"train.kind = '{kind}' needs transformers 5. Run: pip install --upgrade transformers"
        )
    if path in SHIPPED or path.startswith(DIFFUSION):
        raise UserError(
            f"model.path: '{path}' is a language model; expected {NEW}, or the folder of {what}"
        )
    if config.model.lora is not None:
        raise UserError(
            f"model.lora: got adapters with train.kind = '{kind}', whose layers have none; expected no "
            "table model.lora"
        )
    kinds = {type(one.train) for one in config.stages} | {type(config.train)}
    if len(kinds) > 1:
        raise UserError(
            "stages: got language models and others in one run, or several kinds of others; expected one "
            "kind of model. Train them in runs of their own"
        )


def other_forecast(model: OtherModel, trained: int, work: Workload, free: int) -> Forecast:
    """Memory of a step: weights, float32 master weights with two moments and a gradient, activations."""
    memory = {
        "weights": sum(p.numel() * p.element_size() for p in model.module.parameters()),
        "optimiser": trained * 4 * 3,
        "activations": work.prompts * work.samples * work.answer_tokens * model.bytes_per_token,
    }
    return Forecast(memory, free)


def tokenizer_config(sizes: CodecSizes) -> AudioTokenizerConfig:
    """The config of an audio tokenizer of these sizes; sizes that do not fit are refused."""
    from burnish.models.audio_tokenizer import AudioTokenizerConfig

    return AudioTokenizerConfig(**_plain(sizes))


def new_tokenizer_folder(sizes: CodecSizes, seed: int) -> Path:
    """The folder of a fresh audio tokenizer in burnish's cache; the same for the same sizes and seed."""
    from burnish.models.audio_tokenizer import new_tokenizer

    name = digest(f"{seed}", msgspec.json.encode(_plain(sizes)))

    def build(folder: Path) -> None:
        new_tokenizer(folder, seed=seed, **_plain(sizes))

    return make_once(f"audio-tokenizer-{name}", build)


def _plain(sizes: CodecSizes) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(sizes)
    return plain
