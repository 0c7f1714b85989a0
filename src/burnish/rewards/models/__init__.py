"""Reward models that are trained: losses, heads, terms and measures. Loaded when first asked for.

Losses and heads need torch; attributes and measures of pairs do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.models.bias_attributes import (
        Attribute,
        attribute_labels,
        attribute_report,
        contaminate,
        length_label,
    )
    from burnish.rewards.models.bias_penalty import (
        BiasHead,
        BiasPenalty,
        dual_lambda,
        probe_auc,
    )
    from burnish.rewards.models.bradley_terry import (
        bradley_terry_loss,
        centring_loss,
        pair_calibration,
    )
    from burnish.rewards.models.dir import (
        bias_head_loss,
        club_categorical,
        length_penalty,
        pearson_penalty,
        product_of_experts_loss,
        total_loss,
    )
    from burnish.rewards.models.pair_metrics import (
        accuracy_by_group,
        attribute_correlation,
        auc,
        grouped_pair_metrics,
        rmbench_metrics,
    )
    from burnish.rewards.models.process_reward import step_value
    from burnish.rewards.models.term import (
        Pair,
        PairStates,
        Term,
        TermConfig,
        TermContext,
        TermLoss,
        TermState,
    )
    from burnish.rewards.models.ties import tie_preference_loss

__all__ = [
    "Attribute",
    "BiasHead",
    "BiasPenalty",
    "Pair",
    "PairStates",
    "Term",
    "TermConfig",
    "TermContext",
    "TermLoss",
    "TermState",
    "accuracy_by_group",
    "attribute_correlation",
    "attribute_labels",
    "attribute_report",
    "auc",
    "bias_head_loss",
    "bradley_terry_loss",
    "centring_loss",
    "club_categorical",
    "contaminate",
    "dual_lambda",
    "grouped_pair_metrics",
    "length_label",
    "length_penalty",
    "pair_calibration",
    "pearson_penalty",
    "probe_auc",
    "product_of_experts_loss",
    "rmbench_metrics",
    "step_value",
    "tie_preference_loss",
    "total_loss",
]

__getattr__, __dir__ = lazy_exports(__name__)
