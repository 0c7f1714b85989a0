"""A small vision-language model of our own: frozen encoder, projector, any decoder.

    new_visual("models/eyes", decoder="path/of/a/decoder")       # then train it: recipes/visual.toml

Importing this makes it known to `AutoConfig`, `AutoModel`, `AutoModelForImageTextToText`,
`AutoImageProcessor` and `AutoProcessor`. It needs transformers 5 and pillow.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.lazy import lazy_exports
from burnish.models import has_transformers, quiet_transformers

if TYPE_CHECKING:
    from burnish.models.visual.configuration_visual import (
        IMAGE_TOKEN as IMAGE_TOKEN,
        VisualConfig as VisualConfig,
    )
    from burnish.models.visual.encoder import has_lite0 as has_lite0
    from burnish.models.visual.modeling_visual import (
        VisualForConditionalGeneration as VisualForConditionalGeneration,
        VisualModel as VisualModel,
        new_visual as new_visual,
    )
    from burnish.models.visual.processing_visual import (
        VisualImageProcessor as VisualImageProcessor,
        VisualProcessor as VisualProcessor,
    )

__getattr__, __dir__ = lazy_exports(__name__)


def is_usable() -> bool:
    """Whether transformers 5 and pillow are here."""
    return has_transformers() and importlib.util.find_spec("PIL") is not None


def make_visual(folder: Path, decoder: Path, **settings: Any) -> None:
    """`new_visual` without its progress bars; says in one line what is not installed."""
    if not is_usable():
        raise UserError("eyes need: pip install 'burnish[torch,images]' 'transformers>=5'")
    from burnish.models.visual.modeling_visual import new_visual

    with quiet_transformers():
        new_visual(folder, decoder, **settings)


if is_usable():
    importlib.import_module("burnish.models.visual.modeling_visual")
