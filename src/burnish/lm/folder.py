"""Models as Hugging Face folders: load any, save one that loads as it lies.

    loaded = load_model("smollm2", dtype="bfloat16")   # or "tiny", or a folder
    loaded.module, loaded.tokenizer
    save_model(loaded, "out/step-100")

Weights are safetensors, never pickle, and code that comes with a model is never run. Families
that the built-in decoder knows load without importing transformers; others go through it.
"""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.errors import UserError, did_you_mean
from burnish.lm import tokenizer as tokenizer_files
from burnish.lm.architecture import OWN, Architecture, Unsupported, read_architecture
from burnish.lm.base import DIFFUSION, SHIPPED, VISUAL
from burnish.lm.decoder import Decoder
from burnish.lm.model_input import Processor
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
    config: dict[str, Any]
    folder: Path
    name: str
    score_head: ScalarHead | None = None
    """Of a reward model, which scores texts and writes none."""

    @property
    def processor(self) -> Processor:
        """Turns conversations into what the module's forward takes."""
        return self.tokenizer

    @property
    def reads(self) -> tuple[str, ...]:
        """What it reads beside text: image, audio."""
        return tuple(getattr(self.tokenizer.media, "kinds", ()))

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
"""Models of ours that write no text, and what they are for."""


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
    chosen_dtype = _choose_dtype(dtype, named.dtype or named.torch_dtype or "float32")
    chosen_device = choose_device(device)
    module: Decoder | TransformersDecoder
    head = _load_head(folder, chosen_device, chosen_dtype) if is_classifier(config) else None
    try:
        # A classifier has no language-model head; the tied one has no weights of its own.
        architecture = read_architecture(config | ({"tie_word_embeddings": True} if head else {}))
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    except Unsupported as reason:
        register(named.model_type)
        logger.warning("%s runs through transformers, which is slower: %s.", folder.name, reason)
        module, tokenizer = _through_transformers(folder, chosen_dtype, chosen_device)
    else:
        tokenizer = Tokenizer.from_folder(folder)
        module = _load_decoder(folder, architecture, chosen_dtype, chosen_device)
    return LoadedModel(module, tokenizer, config, folder, name=str(path), score_head=head)


def _through_transformers(
    folder: Path, dtype: torch.dtype, device: torch.device
) -> tuple[TransformersDecoder, Tokenizer]:
    """A family that the built-in decoder does not know: text, or text with images and sounds."""
    from burnish.lm.media_model import MediaDecoder, has_processor
    from burnish.lm.transformers_model import TransformersDecoder

    if not has_processor(folder):
        return TransformersDecoder.from_folder(folder, dtype, device), Tokenizer.from_folder(folder)
    module = MediaDecoder.from_folder(folder, dtype, device)
    tokenizer = Tokenizer.from_folder(folder, module.media)
    module.check_rendering(folder, tokenizer)
    return module, tokenizer


def save_model(
    loaded: LoadedModel, folder: str | Path, weights: dict[str, Tensor] | None = None
) -> Path:
    """Write a folder that `load_model` and transformers' `from_pretrained` read as it lies.

    `weights` replaces the module's own, for example with adapters merged in.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    config = config_for(loaded.config, loaded.dtype)
    weights = weights or loaded.module.weights_to_save()
    if loaded.score_head is not None:
        head, start = loaded.score_head, loaded.module.head_prefix
        config = as_classifier(loaded.tokenizer, config)
        weights = classifier_weights(head, weights, start)
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
                f"{loaded.folder} has lost its tokenizer.json since the model was loaded; a model "
                "saved without it cannot be used. Put it back"
            )
    if loaded.score_head is not None:
        write_padding(loaded.tokenizer, target)
    generation = target / "generation_config.json"
    if not generation.is_file():
        write_json(generation, _generation_config(loaded))
    return target


def config_for(config: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
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
    if str(path).startswith(DIFFUSION):
        from burnish.lm.diffusion.convert import cached_conversion

        name = str(path).removeprefix(DIFFUSION)
        if name not in SHIPPED:
            raise UserError(
                f"model '{path}': expected {' or '.join(DIFFUSION + one for one in SHIPPED)}. Another "
                f"model is converted into a folder: burnish convert {name} FOLDER"
            )
        return cached_conversion(find_folder(name))
    if str(path).startswith(VISUAL):
        return _visual(str(path).removeprefix(VISUAL))
    if str(path).startswith(("http://", "https://")):
        raise UserError(
            f"model '{path}' is a server, and its weights are needed here; expected "
            f"{' or '.join(SHIPPED)} or a local folder."
        )
    folder = Path(path).expanduser()
    if not folder.is_dir():
        siblings = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
        hint = did_you_mean(folder.name, [*siblings, *SHIPPED])
        kind = "is a file" if folder.exists() else "does not exist"
        raise UserError(
            f"model '{path}' {kind}; expected {' or '.join(SHIPPED)} or a local folder with "
            f"config.json, tokenizer.json and {WEIGHTS}.{hint}"
        )
    return folder


def _visual(name: str) -> Path:
    """A shipped model with eyes, made once: `tiny` gets a random encoder of its own size."""
    from burnish.lm.embedded import make_once

    if name not in SHIPPED:
        raise UserError(
            f"model '{VISUAL}{name}': expected {' or '.join(VISUAL + one for one in SHIPPED)}. Another "
            f"model gets eyes in a folder of its own: burnish convert {name} FOLDER --to visual"
        )
    source = find_folder(name)
    sizes: dict[str, Any] = {}
    if name == "tiny":
        sizes = {"encoder": "tiny", "image_size": 64, "strides": (8, 16), "token_stride": 16}

    def build(folder: Path) -> None:
        from burnish.models.visual import make_visual

        make_visual(folder, source, **sizes)

    return make_once(f"{source.name}-visual-v1", build)


def _read_config(folder: Path) -> tuple[dict[str, Any], ModelConfig]:
    """`config.json` as it is, and as its type."""
    file = folder / "config.json"
    if (folder / "run.db").is_file():
        raise UserError(f"{folder} is a run; expected a model: {newest_weights(folder)}")
    if not file.is_file():
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:6]) or "nothing"
        raise UserError(
            f"{folder} has no config.json (found: {found}); expected a Hugging Face model folder"
        )
    named = read_file(file, ModelConfig)
    if not ((folder / WEIGHTS).is_file() or (folder / INDEX).is_file()):
        raise UserError(
            f"{folder} has no {WEIGHTS} (nor {INDEX}); pickled weights are not read. Convert them "
            "with save_pretrained(folder)."
        )
    return read_json(file), named


def _choose_dtype(dtype: str | torch.dtype, own: str) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        dtype = own
    if dtype not in DTYPES:
        known = ["auto", *DTYPES]
        raise UserError(
            f"dtype '{dtype}'; expected {', '.join(known)}.{did_you_mean(dtype, known)}"
        )
    return DTYPES[dtype]


def choose_device(device: str | torch.device) -> torch.device:
    """The device of a name; `auto` is a GPU where there is one."""
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device '{device}'; expected auto, cpu, cuda or cuda:0") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device '{device}': no GPU is usable here; use device = 'cpu' or 'auto'")
    return chosen


def _load_head(folder: Path, device: torch.device, dtype: torch.dtype) -> ScalarHead:
    """The head of a reward model, in float32 also where the model is in half precision."""
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        found |= {k: v for k, v in read_weights(file).items() if k.startswith("score.")}
    weight_1D = score_weight(folder, found)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    return ScalarHead(weight_1D.to(device=device, dtype=exact, copy=True))


def check_head(folder: Path) -> None:
    """Refuse a reward model whose head cannot score; nothing but the head is read."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            with safe_open(str(file), framework="pt") as weights:
                names = [name for name in weights.keys() if name.startswith("score.")]  # noqa: SIM118
                found |= {name: weights.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} cannot be read as a safetensors file: {error}") from None
    weight_1D = score_weight(folder, found)
    width = read_json(folder / "config.json").get("hidden_size", weight_1D.shape[1])
    if weight_1D.shape[1] != width or not bool(torch.isfinite(weight_1D.float()).all()):
        raise UserError(
            f"{folder}: score.weight is damaged: it has shape {tuple(weight_1D.shape)} and "
            f"{int((~torch.isfinite(weight_1D.float())).sum())} numbers that are not finite; "
            f"expected (1, {width}), all finite. Write the model again"
        )


def _load_decoder(
    folder: Path, architecture: Architecture, dtype: torch.dtype, device: torch.device
) -> Decoder:
    with torch.device("meta"):
        module = Decoder(architecture)
    expected = dict(module.state_dict())
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        for name, tensor in read_weights(file).items():
            if name not in expected and _is_misplaced(name, architecture):
                raise misplaced(folder, name)
            if name in expected:
                if tensor.dtype not in DTYPES.values():
                    raise _quantised(file, name, tensor.dtype)
                # A copy: what the file's memory map holds is unaligned and may change under us.
                weights[name] = tensor.to(device=device, dtype=dtype, copy=True)
    _check_weights(folder, expected, weights)
    module.load_state_dict(laid_side_by_side(weights), assign=True)
    return module


def _is_misplaced(name: str, architecture: Architecture) -> bool:
    """Whether a weight says that the model is another one: of a further layer, or of ours an unknown one.

    The head of a reward model, or a tied one, may lie beside those of the layers.
    """
    layer = re.match(r"model\.layers\.(\d{1,9})\.", name)
    if layer is not None and int(layer[1]) >= architecture.layers:
        return True
    return architecture.family == OWN and not name.startswith(("score.", "lm_head.weight"))


def _quantised(file: Path, name: str, dtype: torch.dtype) -> UserError:
    """Whole numbers, flags or 8-bit floats are weights only together with scales we do not read."""
    kind = str(dtype).removeprefix("torch.")
    return UserError(
        f"{file}: weight {name} is stored as {kind}; expected {', '.join(DTYPES)}. Quantised "
        "weights are not read: save the model in bfloat16"
    )


def _check_weights(folder: Path, expected: dict[str, Tensor], got: dict[str, Tensor]) -> None:
    missing = [name for name in expected if name not in got]
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} of {len(expected)} weights that its config.json asks "
            f"for; the first is {missing[0]}"
        )
    for name, tensor in expected.items():
        if tensor.shape != got[name].shape:
            raise UserError(
                f"{folder}: weight {name} has shape {tuple(got[name].shape)}; its config.json asks "
                f"for {tuple(tensor.shape)}"
            )


def _generation_config(loaded: LoadedModel) -> dict[str, Any]:
    eos = list(loaded.tokenizer.eos_ids)
    return {"eos_token_id": eos, "pad_token_id": loaded.tokenizer.pad_id}
