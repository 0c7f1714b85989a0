"""The model under training: its weights, optional adapters, its reference, how it is written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from burnish.config.schema import (
    CodecTrain,
    Config,
    DiffusionPolicyTrain,
    DiffusionTrain,
    Lora,
    SpeechTrain,
)
from burnish.errors import UserError
from burnish.lm.base import DIFFUSION, SHIPPED
from burnish.lm.decoder import Decoder
from burnish.lm.diffusion.convert import cached_conversion
from burnish.lm.folder import LoadedModel, config_for, find_folder, load_model, save_model
from burnish.lm.new_model import NEW, new_model_folder
from burnish.lm.weights import WEIGHTS, write_json, write_weights
from burnish.models import has_transformers
from burnish.seeds import Seeds
from burnish.store.manifest import is_ours, newest_weights
from burnish.training.forecast import Forecast, Workload
from burnish.training.guards import check_saved
from burnish.training.packing import CausalModel
from burnish.training.sharding import Shards
from burnish.training.sound_data import new_generator_folder, new_tokenizer_folder

if TYPE_CHECKING:
    from burnish.config.schema import Config
    from burnish.lm.transformers_model import TransformersDecoder
    from burnish.training.devices import World

    Module = Decoder | TransformersDecoder


class OtherModel(LoadedModel):
    """A Hugging Face model without tokenizer and head; saved as `save_pretrained` does."""

    def __init__(self, module: Any, folder: Path, name: str, bytes_per_token: int = 0) -> None:
        tokenizer: Any = None
        super().__init__(module, tokenizer, module.config.to_dict(), folder, name)
        self.bytes_per_token = bytes_per_token
        """What a token of the algorithm keeps for the backward pass, about; for the forecast."""

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.module.parameters())).dtype

    @property
    def device(self) -> torch.device:
        return next(iter(self.module.parameters())).device

    def weights(self) -> dict[str, Tensor]:
        return dict(self.module.state_dict())

    def write(self, folder: Path) -> None:
        """A folder that the model's class and transformers' `AutoModel` read."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {**self.config, "architectures": [type(self.module).__name__]}
        write_json(folder / "config.json", config_for(config, self.dtype))
        write_weights(folder / WEIGHTS, self.weights())


def language_model_faults(config: Config, what: str) -> Iterator[str]:
    """Settings that only language models have, where a run trains `what`."""
    kind, path = config.train.__struct_config__.tag, config.model.path
    if not has_transformers():
        yield f"train.kind = '{kind}' needs transformers 5. Run: pip install --upgrade transformers"
    if path in SHIPPED or path.startswith(DIFFUSION):
        yield f"model.path: '{path}' is a language model; expected {NEW}, or the folder of {what}"
    if config.model.lora is not None:
        yield f"model.lora: got adapters with train.kind = '{kind}', whose layers have none; leave it out"
    if len({type(one.train) for one in config.stages} | {type(config.train)}) > 1:
        yield (
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


@dataclass
class Trainable:
    loaded: LoadedModel
    lora: Lora | None = None
    seed: int = 0
    start: str | Path | None = None
    """The model to freeze as the reference, where it is not the one that is trained; for a replay."""

    def __post_init__(self) -> None:
        self._frozen: Module | None = None
        self.shards: Shards | None = None
        """Where several processes hold the model together."""
        if self.lora is None:
            self.module.requires_grad_(True)
        else:
            _attach(self.module, self.lora, self.seed)

    @property
    def module(self) -> Module:
        return self.loaded.module

    @property
    def device(self) -> torch.device:
        return self.loaded.device

    @property
    def dtype(self) -> torch.dtype:
        return self.loaded.dtype if self.shards is None else self.shards.dtype

    @property
    def parameters(self) -> int:
        return self.loaded.parameters

    def cut(self, world: World) -> Shards:
        """Leave a slice of every weight in this process; copies of the model are made before."""
        self.shards = Shards.cut(self.module, world)
        return self.shards

    def whole(self) -> AbstractContextManager[None]:
        """Inside, this process holds every weight of the model; all processes enter together."""
        return nullcontext() if self.shards is None else self.shards.whole()

    def freeze_reference(self) -> None:
        """Keep the weights of this moment for the KL term; adapters need no copy."""
        if self.start is not None:
            self._frozen = load_model(self.start, dtype=self.dtype, device=self.device).module
            self._frozen.requires_grad_(False)
        elif self.lora is None:
            self._frozen = copy.deepcopy(self.module)
            self._frozen.requires_grad_(False)

    @contextmanager
    def reference(self) -> Iterator[CausalModel]:
        """The model as it was when the run began."""
        if self._frozen is not None:
            yield self._frozen
            return
        from peft.tuners.lora import LoraLayer

        layers = [m for m in self.module.modules() if isinstance(m, LoraLayer)]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            yield self.module
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def weights(self) -> dict[str, Tensor]:
        if isinstance(self.loaded, OtherModel):
            return self.loaded.weights()
        return _merged(self.module) if self.lora else self.module.weights_to_save()

    def write(self, folder: Path, *, step: int | None = None) -> None:
        """A Hugging Face folder with the weights as they are now, adapters merged.

        With the `step` they are of, weights that are not finite trip the guard and are not written.
        """
        weights = self.weights()
        if step is not None:
            check_saved(weights, step)
        if isinstance(self.loaded, OtherModel):
            self.loaded.write(folder)
        else:
            save_model(self.loaded, folder, weights)


def start_model(config: Config) -> str | Path:
    """The model that a run begins with: a name, a folder, or a fresh one of the sizes asked for.

    A run that trains a masked diffusion model converts a shipped or a fresh one on the way.
    """
    path = config.model.path
    first = config.stages[0].train if config.stages else config.train
    is_diffusion = isinstance(first, DiffusionTrain | DiffusionPolicyTrain)
    if isinstance(first, CodecTrain) and path == NEW:
        return new_tokenizer_folder(first.sizes, Seeds(config.run.seed).for_("model"))
    if isinstance(first, SpeechTrain):
        if path == NEW:
            return new_generator_folder(first, Seeds(config.run.seed).for_("model"))
        from burnish.models.audio_tokenizer.generator import generator_folder

        return generator_folder(find_folder(model_of(path)))
    if path != NEW:
        return f"{DIFFUSION}{path}" if is_diffusion and path in SHIPPED else model_of(path)
    fresh = new_model_folder(config.model.new, Seeds(config.run.seed).for_("model"))
    return cached_conversion(fresh) if is_diffusion else fresh


def model_of(path: str) -> str | Path:
    """The newest checkpoint where `path` is a run's folder; anything else as it is."""
    if path in SHIPPED:
        return path
    folder = Path(path).expanduser()
    return newest_weights(folder) if is_ours(folder) else path


def _attach(module: nn.Module, lora: Lora, seed: int) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError(
            "model.lora is set but peft is not installed; run: pip install 'burnish[lora]'"
        ) from error
    module.requires_grad_(False)
    names = {name.rsplit(".", 1)[-1] for name, m in module.named_modules() if name}
    linear = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    missing = [target for target in lora.targets if target not in names]
    if missing:
        raise UserError(
            f"model.lora.targets names no layer of this model: {', '.join(missing)}; "
            f"its linear layers are {', '.join(sorted({n.rsplit('.', 1)[-1] for n in linear}))}"
        )
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets))
    # peft draws from the global generator; a run must not depend on what was drawn before.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, module)


@torch.no_grad()
def _merged(module: Module) -> dict[str, Tensor]:
    """The weights of the plain model: base weights plus each adapter's product."""
    from peft.tuners.lora import LoraLayer

    layers = [m for m in module.modules() if isinstance(m, LoraLayer)]
    by_place = {layer.get_base_layer().weight.data_ptr(): layer for layer in layers}
    tensors: dict[str, Tensor] = {}
    for name, value in module.weights_to_save().items():
        if ".lora_" in name:
            continue
        layer = by_place.get(value.data_ptr())
        if layer is not None:
            delta = layer.get_delta_weight("default")
            value = (value.float() + delta.float()).to(value.dtype)
        tensors[name.replace(".base_layer", "")] = value
    return tensors
