"""Tiny random models that read images or sounds, as Hugging Face folders, for tests and benchmarks.

    tiny_media_model("out/vlm", "smolvlm")
    load_model("out/vlm")

They know nothing, but everything around them is real: a byte-level tokenizer with the family's
placeholder tokens, a chat template, the family's own processor, config and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from burnish.arguments import as_word
from burnish.lm.new_model import write_byte_tokenizer
from burnish.lm.pretrained import without_videos

FAMILIES = ("qwen2_5_vl", "smolvlm", "idefics3", "idefics2", "llava", "qwen2_audio")

_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
_IDEFICS_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}


class Sizes(NamedTuple):
    """Settings of the two configs."""

    text: dict[str, Any]
    vision: dict[str, Any]

    @property
    def patches(self) -> int:
        """Of one image."""
        return int((self.vision["image_size"] // self.vision["patch_size"]) ** 2)


_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'KIND' %}PLACEHOLDER"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""KIND and PLACEHOLDER are the family's."""


def tiny_media_model(
    folder: str | Path,
    family: str = "smolvlm",
    *,
    seed: int = 0,
    text: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
) -> Path:
    """Write the folder of a tiny random model of a family and return it.

    `family` is one of `FAMILIES`: qwen2_5_vl, smolvlm, idefics3, idefics2, llava, qwen2_audio. `text`
    and `vision` change settings of the two configs, for a larger one; `vision` of smolvlm, idefics3 and
    llava alone.
    """
    import torch

    name = as_word("family", family, FAMILIES)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_byte_tokenizer(target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = Sizes({**_TEXT, **(text or {})}, {**_IDEFICS_VISION, **(vision or {})})
        model, processor = _MAKERS[name](target, sizes)
    model.eval()
    # Weights of 0.02 make every token about as likely, whatever the picture.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    model.save_pretrained(target)
    processor.save_pretrained(target)
    return target


def _tokenizer(folder: Path, tokens: list[str], template: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    tokenizer.chat_template = template
    return tokenizer


def _template(kind: str, placeholder: str) -> str:
    return _TEMPLATE.replace("KIND", kind).replace("PLACEHOLDER", placeholder)


def _ids(tokenizer: Any) -> dict[str, Any]:
    """Settings of a text config that follow from the tokenizer."""
    return {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _qwen2_5_vl(folder: Path, sizes: Sizes) -> tuple[Any, Any]:
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
    )

    marks = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    template = _template("image", "<|vision_start|><|image_pad|><|vision_end|>")
    tokenizer = _tokenizer(folder, marks, template)
    start, end, image, video = tokenizer.convert_tokens_to_ids(marks)
    text = {
        **sizes.text,
        **_ids(tokenizer),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [1, 1, 2],
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 32,
        "out_hidden_size": sizes.text["hidden_size"],
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    grid = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2}
    images = _image_processor("Qwen2VLImageProcessor")(
        size={"shortest_edge": 16 * 16, "longest_edge": 64 * 64}, **grid
    )
    kind = without_videos(Qwen2_5_VLProcessor)
    processor = kind(images, tokenizer, None, chat_template=template)
    return Qwen2_5_VLForConditionalGeneration(config), processor


def _idefics(family: str) -> Callable[[Path, Sizes], tuple[Any, Any]]:
    def make(folder: Path, sizes: Sizes) -> tuple[Any, Any]:
        import transformers

        grid = [f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)]
        marks = [
            "<image>",
            "<fake_token_around_image>",
            "<global-img>",
            "<end_of_utterance>",
            *grid,
        ]
        template = _template("image", "<image>")
        tokenizer = _tokenizer(folder, marks, template)
        side = sizes.vision["image_size"]
        prefix = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[family]
        config = getattr(transformers, f"{prefix}Config")(
            text_config={"model_type": "llama", **sizes.text, **_ids(tokenizer)},
            vision_config=sizes.vision,
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
            scale_factor=2,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
        )
        images = _image_processor(f"{prefix}ImageProcessor")(
            size={"longest_edge": 2 * side}, max_image_size={"longest_edge": side}
        )
        kind = without_videos(getattr(transformers, f"{prefix}Processor"))
        videos = [None] if family == "smolvlm" else []
        processor = kind(
            images, tokenizer, *videos, image_seq_len=sizes.patches // 4, chat_template=template
        )
        model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config)
        return model, processor

    return make


def _idefics2(folder: Path, sizes: Sizes) -> tuple[Any, Any]:
    from transformers import Idefics2Config, Idefics2ForConditionalGeneration, Idefics2Processor

    template = _template("image", "<image>")
    marks = ["<fake_token_around_image>", "<image>", "<end_of_utterance>"]
    tokenizer = _tokenizer(folder, marks, template)
    perceiver = {
        "hidden_size": sizes.text["hidden_size"],
        "resampler_n_latents": 4,
        "resampler_depth": 1,
        "resampler_n_heads": 2,
        "resampler_head_dim": 8,
        "num_key_value_heads": 1,
    }
    config = Idefics2Config(
        text_config={
            "model_type": "mistral",
            **sizes.text,
            **_ids(tokenizer),
            "sliding_window": None,
        },
        vision_config=sizes.vision,
        perceiver_config=perceiver,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=False,
    )
    images = _image_processor("Idefics2ImageProcessor")(
        size={"shortest_edge": 16, "longest_edge": 32}, do_image_splitting=False
    )
    processor = Idefics2Processor(images, tokenizer, image_seq_len=4, chat_template=template)
    return Idefics2ForConditionalGeneration(config), processor


def _llava(folder: Path, sizes: Sizes) -> tuple[Any, Any]:
    from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

    template = _template("image", "<image>")
    tokenizer = _tokenizer(folder, ["<image>"], template)
    config = LlavaConfig(
        text_config={"model_type": "llama", **sizes.text, **_ids(tokenizer)},
        vision_config={"model_type": "clip_vision_model", **sizes.vision, "projection_dim": 16},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        image_seq_length=sizes.patches,
    )
    side = sizes.vision["image_size"]
    images = _image_processor("CLIPImageProcessor")(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}
    )
    processor = LlavaProcessor(
        images,
        tokenizer,
        patch_size=sizes.vision["patch_size"],
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    )
    return LlavaForConditionalGeneration(config), processor


def _qwen2_audio(folder: Path, sizes: Sizes) -> tuple[Any, Any]:
    from transformers import (
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        WhisperFeatureExtractor,
    )

    marks = ["<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>"]
    template = _template("audio", "<|audio_bos|><|AUDIO|><|audio_eos|>")
    tokenizer = _tokenizer(folder, marks, template)
    mels, seconds = 16, 2
    config = Qwen2AudioConfig(
        audio_config={
            "num_mel_bins": mels,
            "d_model": 16,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "max_source_positions": 50 * seconds,
        },
        text_config={"model_type": "qwen2", **sizes.text, **_ids(tokenizer)},
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    sounds = WhisperFeatureExtractor(feature_size=mels, chunk_length=seconds)
    processor = Qwen2AudioProcessor(sounds, tokenizer, chat_template=template)
    return Qwen2AudioForConditionalGeneration(config), processor


def _image_processor(name: str) -> Any:
    """A family's image processor on Pillow: torchvision is not needed."""
    import transformers

    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


_MAKERS: dict[str, Callable[[Path, Sizes], tuple[Any, Any]]] = {
    "qwen2_5_vl": _qwen2_5_vl,
    "smolvlm": _idefics("smolvlm"),
    "idefics3": _idefics("idefics3"),
    "idefics2": _idefics2,
    "llava": _llava,
    "qwen2_audio": _qwen2_audio,
}
