"""The pieces a recipe may name, slot by slot: names and numbers only, checked when they are read.

A piece says what is to be computed; the pure function that computes it stands in a module of its
own, and `doors.py` brings the two together.
"""

from burnish.policy.pieces.base import Function, Piece, require
from burnish.policy.pieces.credit import (
    Advantage,
    BatchWhiten,
    InformativeGroups,
    KeepAll,
    Magnitude,
    NoPostScale,
    NormaliseThenSum,
    PostScale,
    RandomDrop,
    Raw,
    Select,
    SignConflict,
    Skew,
    SnrConflict,
    Stepwise,
    SumThenNormalise,
)
from burnish.policy.pieces.rewards import (
    Contrastive,
    GivenWeights,
    OverlongPenalty,
    ReferenceFrozen,
    Shaping,
    TriFactor,
    Weights,
)
from burnish.policy.pieces.update import (
    KL,
    SFT,
    Aggregate,
    Auxiliary,
    Elastic,
    Entropy,
    StaticRegion,
    TrustRegion,
)

__all__ = [
    "KL",
    "SFT",
    "Advantage",
    "Aggregate",
    "Auxiliary",
    "BatchWhiten",
    "Contrastive",
    "Elastic",
    "Entropy",
    "Function",
    "GivenWeights",
    "InformativeGroups",
    "KeepAll",
    "Magnitude",
    "NoPostScale",
    "NormaliseThenSum",
    "OverlongPenalty",
    "Piece",
    "PostScale",
    "RandomDrop",
    "Raw",
    "ReferenceFrozen",
    "Select",
    "Shaping",
    "SignConflict",
    "Skew",
    "SnrConflict",
    "StaticRegion",
    "Stepwise",
    "SumThenNormalise",
    "TriFactor",
    "TrustRegion",
    "Weights",
    "require",
]
