"""SiameseNorm: two coupled residual streams, as functions, a stack and models.

Importing this makes the models known to `AutoConfig`, `AutoModel` and `AutoModelForCausalLM`.
"""

from burnish.models.siamesenorm.configuration_siamesenorm import SiameseNormConfig
from burnish.models.siamesenorm.dit import DiffusionTransformer
from burnish.models.siamesenorm.from_prenorm import from_prenorm
from burnish.models.siamesenorm.functional import (
    StreamPair,
    TrunkOutput,
    siamese_block,
    siamese_dit_block,
    siamese_paper,
    siamese_trunk,
)
from burnish.models.siamesenorm.modeling_siamesenorm import (
    SiameseNormForCausalLM,
    SiameseNormModel,
)
from burnish.models.siamesenorm.new import new_model
from burnish.models.siamesenorm.vit import VisionTransformer

__all__ = [
    "DiffusionTransformer",
    "SiameseNormConfig",
    "SiameseNormForCausalLM",
    "SiameseNormModel",
    "StreamPair",
    "TrunkOutput",
    "VisionTransformer",
    "from_prenorm",
    "new_model",
    "siamese_block",
    "siamese_dit_block",
    "siamese_paper",
    "siamese_trunk",
]
