"""Policy optimisation as a recipe of nine pure pieces.

    from burnish.policy import Recipe, advantages, loss

`advantages(recipe, batch)` and `loss(recipe, batch)` are the two doors. The recipe's own types
import without torch; everything that computes is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from burnish.policy.recipe import (
    KL,
    Aggregate,
    BatchWhiten,
    Entropy,
    Function,
    InformativeGroups,
    KeepAll,
    NoPostScale,
    NormaliseThenSum,
    OverlongPenalty,
    Raw,
    Recipe,
    StaticRegion,
    SumThenNormalise,
)

if TYPE_CHECKING:
    from burnish.policy.advantage import (
        gdpo_advantage,
        grpo_advantage,
        normalise_then_sum,
        per_reward_advantages,
        raw_advantage,
    )
    from burnish.policy.aggregate import aggregate_loss, normaliser_of
    from burnish.policy.auxiliary import kl_penalty, token_entropy
    from burnish.policy.batch import (
        Advantages,
        Estimate,
        Loss,
        LossBatch,
        Normaliser,
        RewardBatch,
    )
    from burnish.policy.doors import advantages, loss
    from burnish.policy.objective import policy_loss, policy_loss_gradient
    from burnish.policy.post_scale import batch_whiten
    from burnish.policy.ratio import log_ratio
    from burnish.policy.select.informative import informative_groups
    from burnish.policy.shaping.overlong import overlong_penalty
    from burnish.policy.surrogate import clipped_surrogate
    from burnish.policy.trust_region.static import static_bounds

__all__ = [
    "KL",
    "Advantages",
    "Aggregate",
    "BatchWhiten",
    "Entropy",
    "Estimate",
    "Function",
    "InformativeGroups",
    "KeepAll",
    "Loss",
    "LossBatch",
    "NoPostScale",
    "NormaliseThenSum",
    "Normaliser",
    "OverlongPenalty",
    "Raw",
    "Recipe",
    "RewardBatch",
    "StaticRegion",
    "SumThenNormalise",
    "advantages",
    "aggregate_loss",
    "batch_whiten",
    "clipped_surrogate",
    "gdpo_advantage",
    "grpo_advantage",
    "informative_groups",
    "kl_penalty",
    "log_ratio",
    "loss",
    "normalise_then_sum",
    "normaliser_of",
    "overlong_penalty",
    "per_reward_advantages",
    "policy_loss",
    "policy_loss_gradient",
    "raw_advantage",
    "static_bounds",
    "token_entropy",
]

_HOMES = {
    "advantage": (
        "gdpo_advantage",
        "grpo_advantage",
        "normalise_then_sum",
        "per_reward_advantages",
        "raw_advantage",
    ),
    "aggregate": ("aggregate_loss", "normaliser_of"),
    "auxiliary": ("kl_penalty", "token_entropy"),
    "batch": ("Advantages", "Estimate", "Loss", "LossBatch", "Normaliser", "RewardBatch"),
    "doors": ("advantages", "loss"),
    "objective": ("policy_loss", "policy_loss_gradient"),
    "post_scale": ("batch_whiten",),
    "ratio": ("log_ratio",),
    "select.informative": ("informative_groups",),
    "shaping.overlong": ("overlong_penalty",),
    "surrogate": ("clipped_surrogate",),
    "trust_region.static": ("static_bounds",),
}
_LAZY = {name: home for home, found in _HOMES.items() for name in found}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
