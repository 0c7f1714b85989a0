"""Reward models that are trained: losses, heads, terms and measures. Loaded when first asked for.

Losses and heads need torch; attributes and measures of pairs do not.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.models.bias_attributes import (
        Attribute as Attribute,
        attribute_labels as attribute_labels,
        attribute_report as attribute_report,
        contaminate as contaminate,
        length_label as length_label,
    )
    from burnish.rewards.models.dir import (
        BiasHead as BiasHead,
        BiasPenalty as BiasPenalty,
        bias_head_loss as bias_head_loss,
        club_categorical as club_categorical,
        dual_lambda as dual_lambda,
        probe_auc as probe_auc,
        total_loss as total_loss,
    )
    from burnish.rewards.models.pair_metrics import (
        accuracy_by_group as accuracy_by_group,
        attribute_correlation as attribute_correlation,
        auc as auc,
        grouped_pair_metrics as grouped_pair_metrics,
        rmbench_metrics as rmbench_metrics,
    )
    from burnish.rewards.models.term import (
        Pair as Pair,
        PairStates as PairStates,
        Term as Term,
        TermConfig as TermConfig,
        TermContext as TermContext,
        TermLoss as TermLoss,
        TermState as TermState,
        bradley_terry_loss as bradley_terry_loss,
        centring_loss as centring_loss,
    )
    from burnish.rewards.models.ties import tie_preference_loss as tie_preference_loss
    from burnish.rewards.models.trained_model import step_value as step_value

__getattr__, __dir__ = lazy_exports(__name__)
