"""A vision-language model of a decoder's folder: encoder and decoder as they are, a fresh projector."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from burnish.arguments import as_new_folder, as_path, as_seed
from burnish.errors import ModelError, UserError, first_line
from burnish.models import check_known, register
from burnish.models.visual.configuration_visual import IMAGE_TOKEN, VisualConfig
from burnish.models.visual.encoder import LITE0, lite0_weights
from burnish.models.visual.modeling_visual import VisualForConditionalGeneration
from burnish.models.visual.processing_visual import (
    VisualImageProcessor,
    VisualProcessor,
    chat_template_with_images,
)

_GENERATION = "generation_config.json"


def new_visual(
    folder: str | Path,
    decoder: str | Path,
    *,
    encoder: str = LITE0,
    encoder_file: str | Path | None = None,
    seed: int = 0,
    **sizes: Any,
) -> VisualForConditionalGeneration:
    """Write a vision-language model to `folder`, made of a decoder's folder; the model.

    The decoder is any causal model that transformers opens and whose logits are its head over its
    hidden states. Its tokenizer gets one token, the placeholder, and its chat template takes image
    parts. `encoder` is efficientnet-lite0, from its package or `encoder_file`, or tiny (random).
    `sizes` are further settings of `VisualConfig`. The projector is random: the model sees nothing
    until it is trained.
    """
    check_known(VisualConfig, sizes)
    source = as_path("decoder", decoder, "the folder of a language model")
    target = as_new_folder("folder", folder)
    text = _text_config(source)
    tokenizer = AutoTokenizer.from_pretrained(str(source), local_files_only=True)
    if IMAGE_TOKEN in tokenizer.get_vocab():
        raise UserError(
            f"{source} has a token {IMAGE_TOKEN} already; expected a model of text alone"
        )
    written = AutoModelForCausalLM.from_pretrained(str(source), local_files_only=True)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    image_id = int(tokenizer.convert_tokens_to_ids(IMAGE_TOKEN))
    if image_id >= written.get_input_embeddings().weight.shape[0]:
        written.resize_token_embeddings(image_id + 1, mean_resizing=False)
    text.vocab_size = written.get_input_embeddings().weight.shape[0]
    config = VisualConfig(
        text_config=text,
        encoder=encoder,
        image_token_id=image_id,
        tie_word_embeddings=bool(text.tie_word_embeddings),
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id,
        **sizes,
    )
    with _about(source), torch.random.fork_rng(devices=[]):
        torch.manual_seed(as_seed("seed", seed))
        model: VisualForConditionalGeneration = VisualForConditionalGeneration(config)
        _put(model, written, image_id, encoder_file)
        model = model.to(written.dtype).eval()
        _check_logits(model, written, image_id)
    config.dtype = str(written.dtype).removeprefix("torch.")
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    _write_processor(target, config, tokenizer)
    _copy_generation(source, target, image_id)
    model.tie_weights()
    return model


def _text_config(source: Path) -> Any:
    file = source / "config.json"
    if not file.is_file():
        raise UserError(f"{source} has no config.json; expected the folder of a language model")
    kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    register(kind)
    try:
        return AutoConfig.from_pretrained(str(source), local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        raise UserError(
            f"{source} (model_type {kind!r}) cannot be opened by transformers; expected a causal "
            f"language model: {first_line(error)}"
        ) from None


@torch.no_grad()
def _put(
    model: VisualForConditionalGeneration, written: Any, image_id: int, file: str | Path | None
) -> None:
    """Weights of the decoder and the encoder into their places."""
    model.model.language_model.load_state_dict(written.base_model.state_dict())
    model.lm_head.weight.copy_(written.get_output_embeddings().weight)
    table: Tensor = model.get_input_embeddings().get_parameter("weight")
    # Never read, but sampled or trained numbers should not depend on what lay in memory.
    table[image_id].zero_()
    model.lm_head.weight[image_id].zero_()
    model.model.projector.scale.fill_(table[:image_id].float().square().mean().sqrt())
    if model.config.encoder == LITE0:
        model.model.encoder.load_state_dict(lite0_weights(file))


@torch.no_grad()
def _check_logits(model: VisualForConditionalGeneration, written: Any, image_id: int) -> None:
    """Refuse a decoder that scales, caps or shifts its logits: here they would be others."""
    ids_1S = torch.tensor([[token for token in range(1, 6) if token != image_id]])
    got, expected = (one(input_ids=ids_1S).logits[..., :image_id] for one in (model, written))
    if not torch.allclose(got, expected, rtol=1e-2, atol=1e-2):
        raise ValueError(
            "its logits are more than its head over its hidden states (difference "
            f"{float((got - expected).abs().max()):.3g})"
        )


@contextmanager
def _about(source: Path) -> Iterator[None]:
    """Say which decoder cannot be given eyes."""
    try:
        yield
    except (UserError, ModelError):
        raise
    # Boundary: a decoder's own code, which may want more than embeddings or give other outputs.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{source} cannot be the decoder of a model with eyes: {reason}. Use one like "
            "Llama, Qwen or GPT-2"
        ) from error


def _write_processor(target: Path, config: VisualConfig, tokenizer: Any) -> None:
    template = tokenizer.chat_template
    if template:
        template = chat_template_with_images(template)
        tokenizer.chat_template = template
    size = {"height": config.image_size, "width": config.image_size}
    VisualProcessor(
        VisualImageProcessor(size=size),
        tokenizer,
        chat_template=template,
        image_tokens=config.image_tokens,
    ).save_pretrained(target)


def _copy_generation(source: Path, target: Path, image_id: int) -> None:
    """The decoder's settings of generation; the placeholder is never sampled."""
    if (source / _GENERATION).is_file():
        shutil.copyfile(source / _GENERATION, target / _GENERATION)
    file = target / _GENERATION
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    settings["suppress_tokens"] = [*(settings.get("suppress_tokens") or []), image_id]
    file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
