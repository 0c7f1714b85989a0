"""SiameseNorm: two coupled residual streams, as functions, a stack and models (which need transformers 5)."""

import importlib
from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports
from burnish.models import has_transformers

if TYPE_CHECKING:
    from burnish.models.norm_report import LayerWatch as LayerWatch
    from burnish.models.norm_report import drop_sensitivity as drop_sensitivity
    from burnish.models.siamesenorm.functional import StreamPair as StreamPair
    from burnish.models.siamesenorm.functional import TrunkOutput as TrunkOutput
    from burnish.models.siamesenorm.functional import siamese_block as siamese_block
    from burnish.models.siamesenorm.functional import siamese_dit_block as siamese_dit_block
    from burnish.models.siamesenorm.functional import siamese_paper as siamese_paper
    from burnish.models.siamesenorm.functional import siamese_trunk as siamese_trunk
    from burnish.models.siamesenorm.modeling_siamesenorm import (
        SiameseNormConfig as SiameseNormConfig,
    )
    from burnish.models.siamesenorm.modeling_siamesenorm import (
        SiameseNormForCausalLM as SiameseNormForCausalLM,
    )
    from burnish.models.siamesenorm.modeling_siamesenorm import (
        SiameseNormForSequenceClassification as SiameseNormForSequenceClassification,
    )
    from burnish.models.siamesenorm.modeling_siamesenorm import SiameseNormModel as SiameseNormModel
    from burnish.models.siamesenorm.modeling_siamesenorm import from_prenorm as from_prenorm
    from burnish.models.siamesenorm.modeling_siamesenorm import new_model as new_model

__getattr__, __dir__ = lazy_exports(__name__)

if has_transformers():
    importlib.import_module("burnish.models.siamesenorm.modeling_siamesenorm")
