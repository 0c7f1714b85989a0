"""SiameseNorm: two coupled residual streams, as functions, a stack and models.

Importing this makes the models known to `AutoConfig`, `AutoModel` and `AutoModelForCausalLM`. The
language models need transformers 5; the rest needs torch alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports
from burnish.models import has_transformers
from burnish.models.siamesenorm.functional import (
    StreamPair,
    TrunkOutput,
    siamese_block,
    siamese_dit_block,
    siamese_paper,
    siamese_trunk,
)

if TYPE_CHECKING:
    from burnish.models.norm_report import LayerWatch, drop_sensitivity
    from burnish.models.siamesenorm.configuration_siamesenorm import SiameseNormConfig
    from burnish.models.siamesenorm.modeling_siamesenorm import (
        SiameseNormForCausalLM,
        SiameseNormForSequenceClassification,
        SiameseNormModel,
    )
    from burnish.models.siamesenorm.new import new_model
    from burnish.models.siamesenorm.prenorm import from_prenorm

__all__ = [
    "LayerWatch",
    "SiameseNormConfig",
    "SiameseNormForCausalLM",
    "SiameseNormForSequenceClassification",
    "SiameseNormModel",
    "StreamPair",
    "TrunkOutput",
    "drop_sensitivity",
    "from_prenorm",
    "new_model",
    "siamese_block",
    "siamese_dit_block",
    "siamese_paper",
    "siamese_trunk",
]
__getattr__, __dir__ = lazy_exports(__name__)

if has_transformers():
    importlib.import_module("burnish.models.siamesenorm.modeling_siamesenorm")
