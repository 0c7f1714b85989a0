"""A small vision-language model: a frozen encoder, a projector, any decoder.

    pixels (N, 3, H, W) -> feature maps -> one vector a token (N, T, F)      frozen, `encoder.py`
                        -> projector    -> image tokens (N, T, D)            trained
    ids (B, S) with T placeholders an image -> embeddings, image tokens put in their places -> decoder

At first the projector's output has the root mean square of the decoder's embeddings, so that image tokens
begin as long as words are.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedModel,
    initialization as init,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from burnish.arguments import as_new_folder, as_path, as_seed, refused
from burnish.errors import ArgumentError, ModelError, UserError, first_line
from burnish.models import register
from burnish.models.blocks.layers import rms_norm
from burnish.models.folders import causal_output, check_names
from burnish.models.visual.configuration_visual import IMAGE_TOKEN, VisualConfig
from burnish.models.visual.encoder import LITE0, Encoder, FrozenConv, lite0_weights, on_one_grid
from burnish.models.visual.processing_visual import (
    VisualImageProcessor,
    VisualProcessor,
    chat_template_with_images,
)

_GENERATION = "generation_config.json"


class Projector(nn.Module):
    """What the encoder says about a token (..., T, F) to an image token (..., T, D)."""

    def __init__(self, config: VisualConfig) -> None:
        super().__init__()
        size = config.text_config.hidden_size
        inner = config.projector_size or 2 * size
        self.features = config.feature_size
        self.first = nn.Linear(config.feature_size, inner)
        self.second = nn.Linear(inner, size)
        self.positions = nn.Parameter(torch.empty(config.image_tokens, size))
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, features: Tensor) -> Tensor:
        h = F.layer_norm(features, (self.features,))
        h = self.second(F.gelu(self.first(h))) + self.positions
        return rms_norm(h, self.scale, None, 1e-6)


class VisualPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What the models share: how weights begin."""

    config_class = VisualConfig
    base_model_prefix = "model"
    input_modalities: ClassVar[tuple[str, ...]] = ("image", "text")
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["Projector"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Called for every module of this file; the decoder begins by its own rules."""
        if isinstance(module, FrozenConv):
            fan = module.weight[0].numel()
            init.normal_(module.weight, std=(2 / fan) ** 0.5)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, Projector):
            init.normal_(module.positions, std=0.5)
            spread = getattr(self.config.text_config, "initializer_range", None)
            init.constant_(module.scale, spread or 0.02)


class VisualModel(VisualPreTrainedModel):
    """Token ids and pixels to hidden states."""

    def __init__(self, config: VisualConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config.encoder)
        self.projector = Projector(config)
        self.language_model = AutoModel.from_config(config.text_config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        table: nn.Module = self.language_model.get_input_embeddings()
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.set_input_embeddings(value)

    def encode(self, pixel_values: Tensor) -> Tensor:
        """Pixels (N, 3, H, W) to what the encoder says of them (N, T, F); needs no gradient."""
        side = self.config.image_size
        if pixel_values.ndim != 4 or tuple(pixel_values.shape[1:]) != (3, side, side):
            raise refused("pixel_values", pixel_values, f"(images, 3, {side}, {side})")
        dtype = self.encoder.stem.weight.dtype
        maps = self.encoder(pixel_values.to(dtype))
        return on_one_grid(maps, self.config.strides, self.config.token_stride)

    def get_image_features(self, pixel_values: Tensor, **_: Any) -> Tensor:
        """Image tokens (N, T, D) of pixels (N, 3, H, W)."""
        image_tokens: Tensor = self.projector(self.encode(pixel_values))
        return image_tokens

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        encoded_images: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (B, S, D).

        `encoded_images` (N, T, F), from `encode`, stand in for pixels: a trainer that sees an image many
        times encodes it once.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            encoded_images = self.encode(pixel_values)
        if encoded_images is not None:
            if input_ids is None:
                raise ValueError("images need input_ids, which say where they stand")
            images = self.projector(encoded_images.to(self.projector.scale.dtype))
            places = input_ids == self.config.image_token_id
            self._check_places(places, images.shape[0])
            images_of_text = images.to(inputs_embeds.dtype)
            inputs_embeds = inputs_embeds.masked_scatter(places.unsqueeze(-1), images_of_text)
        elif input_ids is not None and past_key_values is None:
            self._check_places(input_ids == self.config.image_token_id, 0)
        outputs = self.language_model(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            **kwargs,
        )
        return BaseModelOutputWithPast(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            hidden_states=getattr(outputs, "hidden_states", None),
            attentions=getattr(outputs, "attentions", None),
        )

    def _check_places(self, places: Tensor, images: int) -> None:
        each = self.config.image_tokens
        # A count on a GPU would wait for it; masked_scatter itself refuses too few images there.
        if places.device.type == "cpu" and (found := int(places.sum())) != images * each:
            raise ArgumentError(
                f"input_ids: got {found} image tokens for {images} images, expected {each} an image. The "
                "model's processor puts them in"
            )


class VisualForConditionalGeneration(VisualPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """`VisualModel` with the decoder's head over the vocabulary."""

    def __init__(self, config: VisualConfig) -> None:
        super().__init__(config)
        self.model = VisualModel(config)
        text = config.text_config
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        if config.tie_word_embeddings:
            table = self.model.get_input_embeddings()
            name = next(n for n, module in self.model.named_modules() if module is table)
            self._tied_weights_keys = {"lm_head.weight": f"model.{name}.weight"}
        self.post_init()

    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> Tensor:
        return self.model.get_image_features(pixel_values, **kwargs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        encoded_images: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits (B, S, V), and the mean loss where there are labels."""
        outputs = self.model(
            input_ids=input_ids,
            pixel_values=pixel_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            encoded_images=encoded_images,
            **kwargs,
        )
        size = self.config.text_config.vocab_size
        return causal_output(self, outputs, size, labels, logits_to_keep, return_dict)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, past_key_values: Cache | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Images go in with the prompt alone; afterwards they are in the cache."""
        given = super().prepare_inputs_for_generation(
            input_ids, past_key_values=past_key_values, **kwargs
        )
        if past_key_values is not None and past_key_values.get_seq_length() > 0:
            given["pixel_values"] = given["encoded_images"] = None
        return dict(given)

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Each row several times, with its images in the order of its placeholders."""
        held = {}
        for name in ("pixel_values", "encoded_images"):
            if expand_size > 1 and kwargs.get(name) is not None and input_ids is not None:
                places_B = (input_ids == self.config.image_token_id).sum(1)
                counts = (places_B // self.config.image_tokens).tolist()
                rows = torch.split(kwargs.pop(name), counts)
                held[name] = torch.cat(
                    [row.repeat(expand_size, 1, *[1] * (row.ndim - 2)) for row in rows]
                )
        input_ids, kwargs = super()._expand_inputs_for_generation(
            expand_size=expand_size,
            is_encoder_decoder=is_encoder_decoder,
            input_ids=input_ids,
            **kwargs,
        )
        return input_ids, kwargs | held


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
    check_names(VisualConfig, sizes)
    source = as_path("decoder", decoder, "the folder of a language model")
    target = as_new_folder("folder", folder)
    text = _text_config(source)
    tokenizer = AutoTokenizer.from_pretrained(str(source), local_files_only=True)
    if IMAGE_TOKEN in tokenizer.get_vocab():
        raise UserError(f"{source} has {IMAGE_TOKEN} already; expected a model of text alone")
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
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(as_seed(seed))
            model: VisualForConditionalGeneration = VisualForConditionalGeneration(config)
            _put(model, written, image_id, encoder_file)
            model = model.to(written.dtype).eval()
            _check_logits(model, written, image_id)
    except (UserError, ModelError):
        raise
    # Boundary: a decoder's own code, which may want more than embeddings or give other outputs.
    except Exception as error:
        raise UserError(
            f"{source} cannot be the decoder of a model with eyes: {first_line(error)}. Use one like "
            "Llama, Qwen or GPT-2"
        ) from error
    config.dtype = str(written.dtype).removeprefix("torch.")
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    if tokenizer.chat_template:
        tokenizer.chat_template = chat_template_with_images(tokenizer.chat_template)
    pixels = VisualImageProcessor(size={"height": config.image_size, "width": config.image_size})
    processor = VisualProcessor(
        pixels,
        tokenizer,
        chat_template=tokenizer.chat_template,
        image_tokens=config.image_tokens,
    )
    processor.save_pretrained(target)
    # The decoder's settings of generation; the placeholder is never sampled.
    if (source / _GENERATION).is_file():
        shutil.copyfile(source / _GENERATION, target / _GENERATION)
    file = target / _GENERATION
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    settings["suppress_tokens"] = [*(settings.get("suppress_tokens") or []), image_id]
    file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    model.tie_weights()
    return model


def _text_config(source: Path) -> Any:
    file = source / "config.json"
    if not file.is_file():
        raise UserError(f"{source} has no config.json; expected the folder of a language model")
    register(json.loads(file.read_text(encoding="utf-8")).get("model_type"))
    return AutoConfig.from_pretrained(str(source), local_files_only=True)


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
        raise ValueError("its logits are more than its head over its hidden states")


AutoConfig.register(VisualConfig.model_type, VisualConfig, exist_ok=True)
AutoModel.register(VisualConfig, VisualModel, exist_ok=True)
AutoModelForImageTextToText.register(VisualConfig, VisualForConditionalGeneration, exist_ok=True)
AutoImageProcessor.register(
    VisualConfig, image_processor_classes={"pil": VisualImageProcessor}, exist_ok=True
)
AutoProcessor.register(VisualConfig, VisualProcessor, exist_ok=True)
