"""The list of components: every slot of a recipe, and what it may name.

A component is one module with its settings, its function and its docstring. Its name in the union of
its slot makes it known to recipe files, `burnish methods` and error messages.
"""

from __future__ import annotations

from burnish.policy.auxiliary import KL, SFT, AdaptiveEntropy, Entropy
from burnish.policy.baselines import (
    BatchNormalise,
    GreedyBaseline,
    LeaveOneOut,
    LengthWeightedBaseline,
)
from burnish.policy.brpo import PositionWeight, Raw, Skew
from burnish.policy.conflict import Magnitude, RandomDrop, SignConflict, SnrConflict
from burnish.policy.contrast.component import Contrastive
from burnish.policy.correction import MaskedImportance, NoCorrection, TruncatedImportance
from burnish.policy.dapo import InformativeGroups, KeepAll, OverlongPenalty
from burnish.policy.elastic import Elastic
from burnish.policy.gdpo import NormaliseThenSum
from burnish.policy.grpo import SumThenNormalise
from burnish.policy.objective import Clipped
from burnish.policy.plugins import Function
from burnish.policy.post_scale import BatchWhiten, NoPostScale
from burnish.policy.ppo import GeneralisedAdvantage, NoCritic, SeparateCritic, SharedCritic
from burnish.policy.reference import ReferenceFrozen
from burnish.policy.stepwise import Stepwise
from burnish.policy.surrogates import Cispo, GeometricMean, Sapo
from burnish.policy.tokens import AllTokens, ClipCov, HighEntropy, KlCov
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
