"""Models as Hugging Face folders: load any, save one that loads as it lies."""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.errors import UserError, did_you_mean, first_line
from burnish.lm import tokenizer as tokenizer_files
from burnish.lm.architecture import OWN, Architecture, Unsupported, read_architecture
from burnish.lm.base import DIFFUSION, SHIPPED, VISUAL, JsonObject
from burnish.lm.decoder import Decoder
from burnish.lm.sampler.step import laid_side_by_side
from burnish.lm.scalar_head import (
    ScalarHead,
    as_classifier,
    classifier_weights,
    is_classifier,
    score_weight,
    write_padding,
)
from burnish.lm.tokenizer import Tokenizer
from burnish.lm.weights import (
    INDEX,
    WEIGHTS,
    ModelConfig,
    misplaced,
    read_file,
    read_json,
    read_weights,
    weight_files,
    write_json,
    write_weights,
)
from burnish.models import register
from burnish.store.manifest import newest_weights

if TYPE_CHECKING:
    from burnish.lm.transformers_model import TransformersDecoder

logger = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass
class LoadedModel:
    """A model in memory: the module that trains and samples, its tokenizer and its config."""

    module: Decoder | TransformersDecoder
    tokenizer: Tokenizer
    config: JsonObject
    folder: Path
    name: str
    score_head: ScalarHead | None = None
    """Of a reward model, which scores texts and writes none."""

    @property
    def dtype(self) -> torch.dtype:
        return self.module.head_weight.dtype

    @property
    def device(self) -> torch.device:
        return self.module.head_weight.device

    @property
    def parameters(self) -> int:
        """Number of weights; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.module.parameters())


def is_diffusion(loaded: LoadedModel) -> bool:
    """Whether it is a masked diffusion model, which reads both ways and fills masks in."""
    return isinstance(loaded.module, Decoder) and not loaded.module.architecture.is_causal


def check_causal(loaded: LoadedModel, what: str) -> None:
    """Refuse a masked diffusion model where a model that writes from left to right is needed."""
    if is_diffusion(loaded):
        raise UserError(
            f"{what}: '{loaded.name}' is a masked diffusion model, which reads both ways and has no "
            "next token; expected a causal model. Trained with train.kind = 'diffusion', it is "
            "sampled and evaluated like any other"
        )


_OF_SOUND = {
    "burnish-audio-tokenizer": "an audio tokenizer, for burnish audio encode and burnish audio decode",
    "burnish-audio-generator": "a generator of speech, for burnish speak --engine",
    "burnish-audio-representation": "an encoder of audio latents, for burnish audio probe --encoder",
}


def load_model(
    path: str | Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto"
) -> LoadedModel:
    """Load `smollm2` (embedded), `tiny` (random, for tests) or a local Hugging Face folder.

    `dtype` "auto" takes what the config says; `device` "auto" takes a GPU where there is one.
    """
    folder = find_folder(path)
    config, named = _read_config(folder)
    if what := _OF_SOUND.get(named.model_type):
        raise UserError(f"{path}: {what}; expected a language model")
    if dtype == "auto":
        dtype = named.dtype or named.torch_dtype or "float32"
    if isinstance(dtype, str) and dtype not in DTYPES:
        hint = did_you_mean(dtype, ["auto", *DTYPES])
        raise UserError(f"dtype '{dtype}'; expected auto, {', '.join(DTYPES)}.{hint}")
    chosen_dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
    chosen_device = choose_device(device)
    module: Decoder | TransformersDecoder
    head = None
    if is_classifier(config):  # in float32 also where the model is in half precision
        exact = torch.float64 if chosen_dtype == torch.float64 else torch.float32
        weight_1D = check_head(folder)
        head = ScalarHead(weight_1D.to(device=chosen_device, dtype=exact, copy=True))
    try:
        # A classifier has no language-model head; the tied one has no weights of its own.
        architecture = read_architecture(config | ({"tie_word_embeddings": True} if head else {}))
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    except Unsupported as reason:
        register(named.model_type)
        logger.warning("%s runs through transformers, which is slower: %s.", folder.name, reason)
        from burnish.lm.media_model import MediaDecoder, has_processor
        from burnish.lm.transformers_model import TransformersDecoder

        if has_processor(folder):
            module = MediaDecoder.from_folder(folder, chosen_dtype, chosen_device)
            tokenizer = Tokenizer.from_folder(folder, module.media)
            module.check_rendering(folder, tokenizer)
        else:
            module = TransformersDecoder.from_folder(folder, chosen_dtype, chosen_device)
            tokenizer = Tokenizer.from_folder(folder)
    else:
        tokenizer = Tokenizer.from_folder(folder)
        module = _load_decoder(folder, architecture, chosen_dtype, chosen_device)
    return LoadedModel(module, tokenizer, config, folder, name=str(path), score_head=head)


def save_model(
    loaded: LoadedModel, folder: str | Path, weights: dict[str, Tensor] | None = None
) -> Path:
    """Write a folder that `load_model` and transformers' `from_pretrained` read as it lies."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    config = config_for(loaded.config, loaded.dtype)
    weights = weights or loaded.module.weights_to_save()
    if loaded.score_head is not None:
        config = as_classifier(loaded.tokenizer, config)
        weights = classifier_weights(loaded.score_head, weights, loaded.module.head_prefix)
    write_json(target / "config.json", config)
    write_weights(target / WEIGHTS, weights)
    (target / INDEX).unlink(missing_ok=True)
    if target.resolve() != loaded.folder.resolve():
        for name in (*tokenizer_files.FILES, "generation_config.json"):
            source = loaded.folder / name
            if source.is_file():
                shutil.copyfile(source, target / name)
        if not (target / "tokenizer.json").is_file():
            raise UserError(
                f"{loaded.folder} has lost its tokenizer.json since the model was loaded. Put it back"
            )
    if loaded.score_head is not None:
        write_padding(loaded.tokenizer, target)
    generation = target / "generation_config.json"
    if not generation.is_file():
        eos = list(loaded.tokenizer.eos_ids)
        write_json(generation, {"eos_token_id": eos, "pad_token_id": loaded.tokenizer.pad_id})
    return target


def config_for(config: JsonObject, dtype: torch.dtype) -> JsonObject:
    """The config with the dtype the weights now have."""
    name = str(dtype).removeprefix("torch.")
    written = {**config, "dtype": name}
    if "torch_dtype" in config:
        written["torch_dtype"] = name
    written.pop("quantization_config", None)
    return written


def find_folder(path: str | Path) -> Path:
    """The folder of a name or path; a `UserError` says what is missing."""
    if path == "smollm2":
        from burnish.lm.embedded import embedded_model

        return embedded_model()
    if path == "tiny":
        from burnish.lm.new_model import cached_tiny_model

        return cached_tiny_model()
    if str(path).startswith((DIFFUSION, VISUAL)):
        start, _, name = str(path).partition(":")
        if name not in SHIPPED:
            raise UserError(
                f"model '{path}': expected {' or '.join(f'{start}:{one}' for one in SHIPPED)}. Another "
                f"model is converted into a folder: burnish convert {name} FOLDER --to {start}"
            )
        if start == "visual":
            return _visual(name)
        from burnish.lm.diffusion.convert import cached_conversion

        return cached_conversion(find_folder(name))
    folder = Path(path).expanduser()
    if not folder.is_dir():
        siblings = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
        hint = did_you_mean(folder.name, [*siblings, *SHIPPED])
        kind = "is a file" if folder.exists() else "does not exist"
        if str(path).startswith(("http://", "https://")):
            kind, hint = "is a server, and its weights are needed here", ""
        raise UserError(
            f"model '{path}' {kind}; expected {' or '.join(SHIPPED)} or a local folder with "
            f"config.json, tokenizer.json and {WEIGHTS}.{hint}"
        )
    return folder


def _visual(name: str) -> Path:
    """A shipped model with eyes, made once: `tiny` gets a random encoder of its own size."""
    from burnish.lm.embedded import make_once

    source = find_folder(name)
    sizes: JsonObject = {}
    if name == "tiny":
        sizes = {"encoder": "tiny", "image_size": 64, "strides": (8, 16), "token_stride": 16}

    def build(folder: Path) -> None:
        from burnish.models.visual import make_visual

        make_visual(folder, source, **sizes)

    return make_once(f"{source.name}-visual-v1", build)


def _read_config(folder: Path) -> tuple[JsonObject, ModelConfig]:
    file = folder / "config.json"
    if (folder / "run.db").is_file():
        raise UserError(f"{folder} is a run; expected a model: {newest_weights(folder)}")
    present = {path.name for path in folder.iterdir()}
    if "config.json" not in present or not present & {WEIGHTS, INDEX}:
        lacking = WEIGHTS if "config.json" in present else "config.json"
        found = ", ".join(sorted(present)[:6]) or "nothing"
        raise UserError(
            f"{folder} has no {lacking} (found: {found}); expected a Hugging Face model folder. "
            "Pickled weights are not read: convert them with save_pretrained(folder)."
        )
    return read_json(file), read_file(file, ModelConfig)


def choose_device(device: str | torch.device) -> torch.device:
    """The device of a name; `auto` is a GPU where there is one."""
    if isinstance(device, torch.device):
        return device
    has_gpu = torch.cuda.is_available()
    if device == "auto":
        return torch.device("cuda" if has_gpu else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and not has_gpu:
            raise RuntimeError("no GPU is usable here")
    except RuntimeError as error:
        raise UserError(
            f"device '{device}': {first_line(error)[:80]}; expected auto, cpu, cuda or cuda:0"
        ) from error
    return chosen


def check_head(folder: Path) -> Tensor:
    """The weight of a reward model's head; refused where it cannot score. Nothing else is read."""
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        found |= read_weights(file, "score.")
    weight_1D = score_weight(folder, found)
    width = read_json(folder / "config.json").get("hidden_size", weight_1D.shape[1])
    if weight_1D.shape[1] != width or not bool(torch.isfinite(weight_1D.float()).all()):
        raise UserError(
            f"{folder}: score.weight is damaged; expected (1, {width}), all finite. Write the model again"
        )
    return weight_1D


def _load_decoder(
    folder: Path, architecture: Architecture, dtype: torch.dtype, device: torch.device
) -> Decoder:
    with torch.device("meta"):
        module = Decoder(architecture)
    expected = dict(module.state_dict())
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        for name, tensor in read_weights(file).items():
            if name not in expected:
                if _is_misplaced(name, architecture):
                    raise misplaced(folder, name)
                continue
            if tensor.dtype not in DTYPES.values() or tensor.shape != expected[name].shape:
                kind = str(tensor.dtype).removeprefix("torch.")
                raise UserError(
                    f"{file}: weight {name} is stored as {kind} and has shape {tuple(tensor.shape)}; "
                    f"expected {', '.join(DTYPES)} and {tuple(expected[name].shape)}, as config.json "
                    "says. Quantised weights are not read: save the model in bfloat16"
                )
            # A copy: what the file's memory map holds is unaligned and may change under us.
            weights[name] = tensor.to(device=device, dtype=dtype, copy=True)
    missing = [name for name in expected if name not in weights]
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} of {len(expected)} weights of its config.json: {missing[0]}"
        )
    module.load_state_dict(laid_side_by_side(weights), assign=True)
    return module


def _is_misplaced(name: str, architecture: Architecture) -> bool:
    """Whether a weight says that the model is another one: of a further layer, or of ours an unknown one."""
    layer = re.match(r"model\.layers\.(\d{1,9})\.", name)
    if layer is not None and int(layer[1]) >= architecture.layers:
        return True
    return architecture.family == OWN and not name.startswith(("score.", "lm_head.weight"))
