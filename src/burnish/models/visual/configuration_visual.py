"""The config of a small vision-language model, in the Hugging Face convention."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import transformers
from msgspec import Meta
from transformers import AutoConfig

from burnish.boundary import PositiveInt
from burnish.errors import ArgumentError
from burnish.models import register
from burnish.models.folders import read_settings
from burnish.models.visual.encoder import LITE0, STRIDES, map_widths

Stride = Literal[2, 4, 8, 16, 32]

IMAGE_TOKEN = "<|image|>"
"""The token that stands for an image; the processor repeats it, once a token of the image."""


class VisualConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    """A frozen encoder, a projector and any decoder of transformers.

    >>> config = VisualConfig(image_size=224, token_stride=32)
    >>> config.image_tokens, config.feature_size
    (49, 1408)
    """

    model_type = "burnish-visual"
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": AutoConfig}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    text_config: Any = None
    """The decoder's own config; as a dict it needs its `model_type`."""
    encoder: Literal["efficientnet-lite0", "tiny"] = LITE0
    """efficientnet-lite0, or tiny: a random one of a few thousand weights, for tests."""
    image_size: Annotated[int, Meta(ge=32, le=4096)] = 224
    """Pixels of a side; images are fitted into a square."""
    strides: Annotated[list[Stride], Meta(min_length=1)] = (8, 16, 32)  # type: ignore[assignment]
    """Feature maps that are read, by the pixels between two neighbours."""
    token_stride: Stride = 32
    """Pixels of a side of one token."""
    projector_size: PositiveInt | None = None
    """Inner width of the projector; None: twice the decoder's."""
    image_token_id: int = 0
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.text_config is None:
            self.text_config = {"model_type": "llama"}
        if isinstance(self.text_config, dict):
            given = dict(self.text_config)
            kind = given.pop("model_type", "llama")
            register(kind)
            self.text_config = AutoConfig.for_model(kind, **given)
        read_settings(self)
        self.strides = sorted(set(self.strides))
        if max(self.strides) > self.token_stride or self.image_size % max(STRIDES):
            raise ArgumentError(
                f"strides: got {self.strides} with token_stride {self.token_stride} and image_size "
                f"{self.image_size}, expected strides up to token_stride and a size that is a multiple "
                f"of {max(STRIDES)}"
            )
        super().__post_init__(**kwargs)

    @property
    def image_tokens(self) -> int:
        """Tokens of one image."""
        return int((self.image_size // self.token_stride) ** 2)

    @property
    def feature_size(self) -> int:
        """Numbers that the encoder says about one token."""
        widths = map_widths(self.encoder)
        return sum(widths[s] * (self.token_stride // s) ** 2 for s in self.strides)
