"""SiameseNorm: two coupled residual streams, as functions, a stack and models (which need transformers 5)."""

import importlib
from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports
from burnish.models import has_transformers

if TYPE_CHECKING:
    from burnish.models.norm_report import (
        LayerWatch as LayerWatch,
        drop_sensitivity as drop_sensitivity,
    )
    from burnish.models.siamesenorm.functional import (
        StreamPair as StreamPair,
        TrunkOutput as TrunkOutput,
        siamese_block as siamese_block,
        siamese_dit_block as siamese_dit_block,
        siamese_paper as siamese_paper,
        siamese_trunk as siamese_trunk,
    )
    from burnish.models.siamesenorm.modeling_siamesenorm import (
        SiameseNormConfig as SiameseNormConfig,
        SiameseNormForCausalLM as SiameseNormForCausalLM,
        SiameseNormForSequenceClassification as SiameseNormForSequenceClassification,
        SiameseNormModel as SiameseNormModel,
        from_prenorm as from_prenorm,
        new_model as new_model,
    )

__getattr__, __dir__ = lazy_exports(__name__)

if has_transformers():
    importlib.import_module("burnish.models.siamesenorm.modeling_siamesenorm")
