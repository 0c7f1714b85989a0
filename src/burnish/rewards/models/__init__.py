"""Reward models that are trained: losses, heads, terms and measures. Loaded when first asked for.

Losses and heads need torch; attributes and measures of pairs do not.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.models.bias_attributes import Attribute as Attribute
    from burnish.rewards.models.bias_attributes import attribute_labels as attribute_labels
    from burnish.rewards.models.bias_attributes import attribute_report as attribute_report
    from burnish.rewards.models.bias_attributes import contaminate as contaminate
    from burnish.rewards.models.bias_attributes import length_label as length_label
    from burnish.rewards.models.dir import BiasHead as BiasHead
    from burnish.rewards.models.dir import BiasPenalty as BiasPenalty
    from burnish.rewards.models.dir import bias_head_loss as bias_head_loss
    from burnish.rewards.models.dir import club_categorical as club_categorical
    from burnish.rewards.models.dir import dual_lambda as dual_lambda
    from burnish.rewards.models.dir import probe_auc as probe_auc
    from burnish.rewards.models.dir import total_loss as total_loss
    from burnish.rewards.models.pair_metrics import accuracy_by_group as accuracy_by_group
    from burnish.rewards.models.pair_metrics import attribute_correlation as attribute_correlation
    from burnish.rewards.models.pair_metrics import auc as auc
    from burnish.rewards.models.pair_metrics import grouped_pair_metrics as grouped_pair_metrics
    from burnish.rewards.models.pair_metrics import rmbench_metrics as rmbench_metrics
    from burnish.rewards.models.term import Pair as Pair
    from burnish.rewards.models.term import PairStates as PairStates
    from burnish.rewards.models.term import Term as Term
    from burnish.rewards.models.term import TermConfig as TermConfig
    from burnish.rewards.models.term import TermContext as TermContext
    from burnish.rewards.models.term import TermLoss as TermLoss
    from burnish.rewards.models.term import TermState as TermState
    from burnish.rewards.models.term import bradley_terry_loss as bradley_terry_loss
    from burnish.rewards.models.term import centring_loss as centring_loss
    from burnish.rewards.models.ties import tie_preference_loss as tie_preference_loss
    from burnish.rewards.models.trained_model import step_value as step_value

__getattr__, __dir__ = lazy_exports(__name__)
