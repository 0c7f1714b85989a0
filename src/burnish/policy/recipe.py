"""A `Recipe` names one of each of the nine pieces of policy optimisation; names and numbers only.

    1 shaping  2 advantage  3 select  4 post_scale  5 ratio  6 trust_region  7 dual_clip
    8 aggregate  9 auxiliary

A method is a choice of pieces, written out in `recipes/<method>.toml`. A new piece is a struct in
`pieces.py`, a pure function in its own module and one line in `doors.py`; or, from outside the
package, `{ kind = "function", path = "my_file.py:my_piece" }` in slots 1, 2, 3, 6 and 9. Pieces
that contradict each other are refused here, with the reason.
"""

from __future__ import annotations

import math
from typing import Literal, TypeVar

from msgspec import Struct

from burnish.errors import ArgumentError
from burnish.policy.pieces import (
    KL,
    SFT,
    Advantage,
    Aggregate,
    Auxiliary,
    BatchWhiten,
    Contrastive,
    Entropy,
    GivenWeights,
    KeepAll,
    Magnitude,
    NoPostScale,
    PostScale,
    RandomDrop,
    Raw,
    ReferenceFrozen,
    Select,
    Shaping,
    SignConflict,
    Skew,
    SnrConflict,
    StaticRegion,
    Stepwise,
    SumThenNormalise,
    TriFactor,
    TrustRegion,
    Weights,
    require,
)

P = TypeVar("P", bound=Struct)


class Recipe(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The nine pieces of one method."""

    shaping: tuple[Shaping, ...] = ()
    weights: Weights = GivenWeights()
    """How much each reward counts in the advantage."""
    advantage: Advantage = SumThenNormalise()
    select: Select = KeepAll()
    post_scale: PostScale = NoPostScale()
    ratio: Literal["token", "sequence", "sequence_token"] = "token"
    trust_region: TrustRegion = StaticRegion()
    dual_clip: float = 0.0
    """Bound c of the dual clip for negative advantages; 0 is off."""
    aggregate: Aggregate = Aggregate()
    auxiliary: tuple[Auxiliary, ...] = ()

    def __post_init__(self) -> None:
        is_off_or_bound = self.dual_clip == 0 or 1 < self.dual_clip < math.inf
        require(is_off_or_bound, "dual_clip", self.dual_clip, "0 (off) or above 1")
        reason = contradiction(self)
        if reason:
            raise ArgumentError(reason)

    @property
    def needs_reference(self) -> bool:
        """True where a reference model must be held for a KL term."""
        return any(isinstance(piece, KL) and piece.coefficient != 0 for piece in self.auxiliary)

    @property
    def needs_entropy(self) -> bool:
        """True where the trainer must bring the entropy of every token."""
        return any(
            isinstance(piece, Entropy) and piece.coefficient != 0 for piece in self.auxiliary
        )

    @property
    def contrastive(self) -> Contrastive | None:
        """The piece that needs hidden states and a head of its own."""
        return _first(self.shaping, Contrastive)

    @property
    def calibration(self) -> ReferenceFrozen | None:
        """The piece that needs the start model's rewards before the first step."""
        return _first(self.shaping, ReferenceFrozen)

    @property
    def stepwise(self) -> Stepwise | None:
        """The piece that needs to know which token belongs to which section."""
        return self.advantage if isinstance(self.advantage, Stepwise) else None

    @property
    def imitation(self) -> SFT | None:
        """The piece that needs demonstrations."""
        found = _first(self.auxiliary, SFT)
        return found if found is not None and found.coefficient != 0 else None


def contradiction(recipe: Recipe) -> str:
    """Why the pieces of a recipe make no sense together, or nothing."""
    for find in (_in_shaping, _in_selection, _in_credit):
        reason = find(recipe)
        if reason:
            return reason
    return ""


def _in_shaping(recipe: Recipe) -> str:
    kinds = [type(piece) for piece in recipe.shaping]
    for kind in (Contrastive, ReferenceFrozen):
        if kinds.count(kind) > 1:
            return f"shaping: names '{_tag(kind)}' twice; its state is one, so name it once"
    if Contrastive in kinds and ReferenceFrozen in kinds:
        return (
            "shaping: 'contrastive' adds at most 0.5 to rewards of 0 and 1, 'reference_frozen' turns "
            "them into deviations of up to its clip; use one of the two"
        )
    if Contrastive in kinds and isinstance(recipe.advantage, Raw):
        return (
            "shaping: 'contrastive' changes rewards inside a group, and 'raw' never compares them "
            "there; use sum_then_normalise or normalise_then_sum"
        )
    if isinstance(recipe.weights, TriFactor) and ReferenceFrozen not in kinds:
        return (
            "weights: 'tri_factor' compares rewards in deviations of the start model; add "
            "{ kind = 'reference_frozen' } to shaping"
        )
    if sum(isinstance(piece, SFT) for piece in recipe.auxiliary) > 1:
        return "auxiliary: names 'sft' twice; add the coefficients"
    return ""


def _in_selection(recipe: Recipe) -> str:
    is_raw = isinstance(recipe.advantage, Raw)
    filters = (SignConflict, SnrConflict, Magnitude, RandomDrop)
    if isinstance(recipe.select, Skew) and not is_raw:
        return (
            "select: 'skew' counts wins and losses against a reference, and the advantage piece "
            f"'{_tag(type(recipe.advantage))}' centres them away; use advantage 'raw'"
        )
    if isinstance(recipe.select, filters) and (is_raw or recipe.stepwise):
        return (
            f"select: '{_tag(type(recipe.select))}' looks for rewards that disagree on a rollout; "
            f"advantage '{_tag(type(recipe.advantage))}' keeps them apart or never weighs them. "
            "Use normalise_then_sum or sum_then_normalise"
        )
    return ""


def _in_credit(recipe: Recipe) -> str:
    if recipe.stepwise is None:
        return ""
    if recipe.ratio != "token":
        return (
            f"ratio: '{recipe.ratio}' gives the whole answer one ratio, 'stepwise' each section its "
            "own advantage; use ratio 'token'"
        )
    if isinstance(recipe.post_scale, BatchWhiten):
        return (
            "post_scale: 'batch_whiten' scales one number a rollout, 'stepwise' has one a token; "
            "use 'none'"
        )
    if isinstance(recipe.weights, TriFactor):
        return (
            "weights: 'tri_factor' trades rewards of a whole answer against each other, 'stepwise' "
            "gives each its own tokens; use 'given'"
        )
    return ""


def _first(pieces: tuple[Struct, ...], kind: type[P]) -> P | None:
    return next((piece for piece in pieces if isinstance(piece, kind)), None)


def _tag(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag)
