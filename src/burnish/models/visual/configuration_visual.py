"""The config of a small vision-language model, in the Hugging Face convention."""

from __future__ import annotations

from typing import Any, ClassVar

import transformers
from transformers import AutoConfig

from burnish.arguments import as_list, as_whole, as_word
from burnish.errors import ArgumentError, UserError
from burnish.models import register
from burnish.models.visual.encoder import ENCODERS, LITE0, STRIDES, map_widths

if int(transformers.__version__.partition(".")[0]) < 5:
    raise UserError(
        f"models of type burnish-visual need transformers 5; got {transformers.__version__}. "
        "Run: pip install --upgrade transformers"
    )

IMAGE_TOKEN = "<|image|>"
"""The token that stands for an image; the processor repeats it, once a token of the image."""


class VisualConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    """A frozen encoder, a projector and any decoder of transformers.

    >>> from burnish.models.visual import VisualConfig
    >>> config = VisualConfig(image_size=224, token_stride=32)
    >>> config.image_tokens, config.feature_size
    (49, 1408)
    """

    model_type = "burnish-visual"
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": AutoConfig}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    text_config: Any = None
    """The decoder's own config; as a dict it needs its `model_type`."""
    encoder: str = LITE0
    """efficientnet-lite0, or tiny: a random one of a few thousand weights, for tests."""
    image_size: int = 224
    """Pixels of a side; images are fitted into a square."""
    strides: list[int] | tuple[int, ...] = (8, 16, 32)
    """Feature maps that are read, by the pixels between two neighbours."""
    token_stride: int = 32
    """Pixels of a side of one token."""
    projector_size: int | None = None
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
        self.encoder = as_word("encoder", self.encoder, ENCODERS)
        self.image_size = as_whole("image_size", self.image_size, low=32, high=4096)
        self.token_stride = as_whole("token_stride", self.token_stride, low=2, high=32)
        strides = as_list("strides", self.strides, least=1)
        self.strides = sorted({as_whole("strides", one, low=2, high=32) for one in strides})
        if self.token_stride not in STRIDES or not set(self.strides) <= set(STRIDES):
            raise ArgumentError(
                f"strides: got {self.strides} and token_stride {self.token_stride}, expected some of "
                f"{', '.join(map(str, STRIDES))}"
            )
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
