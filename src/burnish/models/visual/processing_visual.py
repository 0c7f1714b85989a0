"""Images and chats to what the model reads: pixels, and ids with a placeholder for each image token.

Pillow and numpy alone. An image is fitted into a square without changing its proportions and the rest
is filled with white, so that a chart keeps its axes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_backends import PilBackend
from transformers.processing_utils import ProcessorMixin

from burnish.arguments import refused
from burnish.errors import ArgumentError
from burnish.models.visual.configuration_visual import IMAGE_TOKEN

MEAN, STD = 127.0, 128.0
"""What EfficientNet-Lite subtracts from a pixel, and divides by."""


class VisualImageProcessor(PilBackend):  # type: ignore[misc]
    """Images (PIL, or arrays of bytes) to pixels (N, 3, H, W)."""

    size: ClassVar[dict[str, int]] = {"height": 224, "width": 224}
    do_resize = True
    do_rescale = True
    do_normalize = True
    do_convert_rgb = True
    image_mean: ClassVar[list[float]] = [MEAN / 255] * 3
    image_std: ClassVar[list[float]] = [STD / 255] * 3
    resample = 2
    """Bilinear, which averages over what it shrinks."""

    def resize(self, image: np.ndarray, size: Any, resample: Any = None, **_: Any) -> np.ndarray:
        """Fit an image (C, H, W) into the square, centred on white."""
        from PIL import Image

        if image.dtype != np.uint8 or image.shape[0] != 3 or image.size == 0:
            raise refused("images", image, "PIL images, or bytes with 3 channels")
        picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(image, 0, -1)), "RGB")
        ratio = min(size.width / picture.width, size.height / picture.height)
        fitted = (max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio)))
        if fitted != picture.size:
            picture = picture.resize(fitted, self.resample)
        if fitted != (size.width, size.height):
            sheet = Image.new("RGB", (size.width, size.height), (255, 255, 255))
            sheet.paste(picture, ((size.width - fitted[0]) // 2, (size.height - fitted[1]) // 2))
            picture = sheet
        return np.moveaxis(np.asarray(picture), -1, 0)


class VisualProcessor(ProcessorMixin):  # type: ignore[misc]
    """Texts with images to input_ids, attention_mask and pixel_values.

    Each placeholder in a text becomes `image_tokens` of them; there must be as many as images.
    """

    attributes: ClassVar[list[str]] = ["image_processor", "tokenizer"]

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        image_tokens: int = 49,
        image_token: str = IMAGE_TOKEN,
        **kwargs: Any,
    ) -> None:
        self.image_token, self.image_tokens = image_token, image_tokens
        self.image_token_id = tokenizer.convert_tokens_to_ids(image_token)
        super().__init__(image_processor, tokenizer, chat_template=chat_template, **kwargs)

    def __call__(
        self, images: Any = None, text: str | list[str] | None = None, **kwargs: Any
    ) -> BatchFeature:
        """Texts (one, or a list) and all their images in order."""
        if text is None:
            raise ArgumentError("text: got none, expected a text or a list of them")
        kind = kwargs.pop("return_tensors", None)
        texts = [text] if isinstance(text, str) else list(text)
        flat = [] if images is None else [images]
        while any(isinstance(one, list | tuple) for one in flat):
            flat = [y for x in flat for y in (x if isinstance(x, list | tuple) else [x])]
        if any(isinstance(one, str | bytes) for one in flat):
            raise ArgumentError("images: got a text, expected opened images (PIL or arrays)")
        places = sum(one.count(self.image_token) for one in texts)
        if places != len(flat):
            raise ArgumentError(f"images: got {len(flat)} for {places} places, expected as many")
        whole = [
            one.replace(self.image_token, self.image_token * self.image_tokens) for one in texts
        ]
        found = dict(self.tokenizer(whole, **kwargs))
        if flat:
            found["pixel_values"] = self.image_processor(flat)["pixel_values"]
        return BatchFeature(data=found, tensor_type=kind)

    @property
    def model_input_names(self) -> list[str]:
        return [*self.tokenizer.model_input_names, "pixel_values"]


def chat_template_with_images(template: str) -> str:
    """A template for messages of text that takes lists of parts too: images become the placeholder."""
    return _PARTS.replace("IMAGE", IMAGE_TOKEN) + template


_PARTS = (
    "{%- set parts = namespace(messages=[]) -%}"
    "{%- for message in messages -%}"
    "{%- if message['content'] is string or message['content'] is none"
    " or message['content'] is not defined -%}"
    "{%- set parts.messages = parts.messages + [message] -%}"
    "{%- else -%}"
    "{%- set told = namespace(text='') -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{%- set told.text = told.text + 'IMAGE' -%}"
    "{%- else -%}{%- set told.text = told.text + part['text'] -%}{%- endif -%}"
    "{%- endfor -%}"
    "{%- set parts.messages = parts.messages + [dict(message, content=told.text)] -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- set messages = parts.messages -%}"
)
