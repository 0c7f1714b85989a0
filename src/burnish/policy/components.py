"""The list of components: every slot of a recipe, and what it may name.

A component is one module with its settings, its function and its docstring. Its name in the union of
its slot makes it known to recipe files, `burnish methods` and error messages, and `__all__` exports
it from `burnish.policy`.
"""

from __future__ import annotations

from burnish.policy.adaptive_entropy import AdaptiveEntropy
from burnish.policy.aggregate import Aggregate
from burnish.policy.auxiliary import KL, SFT, Entropy
from burnish.policy.brpo import Raw, Skew
from burnish.policy.cispo import Cispo
from burnish.policy.conflict import Magnitude, RandomDrop, SignConflict, SnrConflict
from burnish.policy.contrast.component import Contrastive
from burnish.policy.correction import MaskedImportance, NoCorrection, TruncatedImportance
from burnish.policy.covariance import ClipCov, KlCov
from burnish.policy.critic import NoCritic, SeparateCritic, SharedCritic
from burnish.policy.elastic import Elastic
from burnish.policy.gae import GeneralisedAdvantage
from burnish.policy.gdpo import NormaliseThenSum
from burnish.policy.gmpo import GeometricMean
from burnish.policy.grpo import SumThenNormalise
from burnish.policy.high_entropy import HighEntropy
from burnish.policy.informative import InformativeGroups, KeepAll
from burnish.policy.objective import Clipped
from burnish.policy.opo import LengthWeightedBaseline
from burnish.policy.overlong import OverlongPenalty
from burnish.policy.plugins import Function
from burnish.policy.position import PositionWeight
from burnish.policy.post_scale import BatchWhiten, NoPostScale
from burnish.policy.reference import ReferenceFrozen
from burnish.policy.reinforce_pp import BatchNormalise
from burnish.policy.remax import GreedyBaseline
from burnish.policy.rloo import LeaveOneOut
from burnish.policy.sapo import Sapo
from burnish.policy.stepwise import Stepwise
from burnish.policy.tokens import AllTokens
from burnish.policy.tri_factor import GivenWeights, TriFactor
from burnish.policy.trust_region import StaticRegion

Shaping = OverlongPenalty | ReferenceFrozen | Contrastive | PositionWeight | Function
Weights = GivenWeights | TriFactor
Advantage = (
    SumThenNormalise
    | NormaliseThenSum
    | LeaveOneOut
    | LengthWeightedBaseline
    | BatchNormalise
    | GreedyBaseline
    | GeneralisedAdvantage
    | Raw
    | Stepwise
    | Function
)
Critic = NoCritic | SharedCritic | SeparateCritic
Select = (
    KeepAll
    | InformativeGroups
    | SignConflict
    | SnrConflict
    | Magnitude
    | RandomDrop
    | Skew
    | Function
)
PostScale = NoPostScale | BatchWhiten
TrustRegion = StaticRegion | Elastic | Function
Surrogate = Clipped | Cispo | Sapo | GeometricMean | ClipCov | KlCov
Tokens = AllTokens | HighEntropy
Correction = NoCorrection | TruncatedImportance | MaskedImportance
Auxiliary = KL | Entropy | AdaptiveEntropy | SFT | Function

__all__ = [
    "KL",
    "SFT",
    "AdaptiveEntropy",
    "Aggregate",
    "AllTokens",
    "BatchNormalise",
    "BatchWhiten",
    "Cispo",
    "ClipCov",
    "Clipped",
    "Contrastive",
    "Elastic",
    "Entropy",
    "Function",
    "GeneralisedAdvantage",
    "GeometricMean",
    "GivenWeights",
    "GreedyBaseline",
    "HighEntropy",
    "InformativeGroups",
    "KeepAll",
    "KlCov",
    "LeaveOneOut",
    "LengthWeightedBaseline",
    "Magnitude",
    "MaskedImportance",
    "NoCorrection",
    "NoCritic",
    "NoPostScale",
    "NormaliseThenSum",
    "OverlongPenalty",
    "PositionWeight",
    "RandomDrop",
    "Raw",
    "ReferenceFrozen",
    "Sapo",
    "SeparateCritic",
    "SharedCritic",
    "SignConflict",
    "Skew",
    "SnrConflict",
    "StaticRegion",
    "Stepwise",
    "SumThenNormalise",
    "TriFactor",
    "TruncatedImportance",
]
