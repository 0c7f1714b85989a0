"""A small vision-language model of our own: frozen encoder, projector, any decoder.

    new_visual("models/eyes", decoder="path/of/a/decoder")       # then train it: recipes/visual.toml

Importing this makes it known to `AutoConfig`, `AutoModel`, `AutoModelForImageTextToText`,
`AutoImageProcessor` and `AutoProcessor`. It needs transformers 5 and pillow.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports
from burnish.models import has_transformers

if TYPE_CHECKING:
    from burnish.models.visual.configuration_visual import IMAGE_TOKEN, VisualConfig
    from burnish.models.visual.encoder import has_lite0
    from burnish.models.visual.modeling_visual import VisualForConditionalGeneration, VisualModel
    from burnish.models.visual.new import new_visual
    from burnish.models.visual.processing_visual import VisualImageProcessor, VisualProcessor

__all__ = [
    "IMAGE_TOKEN",
    "VisualConfig",
    "VisualForConditionalGeneration",
    "VisualImageProcessor",
    "VisualModel",
    "VisualProcessor",
    "has_lite0",
    "new_visual",
]
__getattr__, __dir__ = lazy_exports(__name__)

if has_transformers() and importlib.util.find_spec("PIL") is not None:
    importlib.import_module("burnish.models.visual.modeling_visual")
