"""A `Recipe` names one component of each slot of policy optimisation; names and numbers only.

    shaping  weights  advantage  critic  select  post_scale   rewards -> advantages, once a step
    ratio  trust_region  surrogate  dual_clip                 advantages -> token losses
    tokens  correction                                        which tokens count, and how much
    aggregate  auxiliary                                      token losses -> one number

A method is a choice of components; those that contradict each other are refused here, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

from msgspec import Struct

from burnish.boundary import NonNegative, Settings
from burnish.errors import ArgumentError
from burnish.policy.aggregate import Aggregate
from burnish.policy.auxiliary import KL, SFT, AdaptiveEntropy, Entropy
from burnish.policy.baselines import BatchNormalise, GreedyBaseline
from burnish.policy.brpo import Raw, Skew
from burnish.policy.components import (
    Advantage,
    Auxiliary,
    Correction,
    Critic,
    PostScale,
    Select,
    Shaping,
    Surrogate,
    Tokens,
    TrustRegion,
    Weights,
)
from burnish.policy.conflict import Magnitude, RandomDrop, SignConflict, SnrConflict
from burnish.policy.contrast.component import Contrastive
from burnish.policy.correction import NoCorrection
from burnish.policy.dapo import InformativeGroups, KeepAll
from burnish.policy.grpo import SumThenNormalise
from burnish.policy.objective import Clipped
from burnish.policy.post_scale import BatchWhiten, NoPostScale
from burnish.policy.ppo import GeneralisedAdvantage, NoCritic
from burnish.policy.reference import ReferenceFrozen
from burnish.policy.stepwise import Stepwise
from burnish.policy.surrogates import GeometricMean, Sapo
from burnish.policy.tokens import AllTokens, ClipCov, KlCov, TokenMarker
from burnish.policy.tri_factor import GivenWeights, TriFactor
from burnish.policy.trust_region import StaticRegion

P = TypeVar("P", bound=Struct)


class Recipe(Settings, frozen=True, kw_only=True):
    """The components of one method."""

    shaping: tuple[Shaping, ...] = ()
    """Changes of the rewards before they are compared, one after another."""
    weights: Weights = GivenWeights()
    """How much each reward counts in the advantage."""
    advantage: Advantage = SumThenNormalise()
    """How rewards become the advantage of each rollout."""
    critic: Critic = NoCritic()
    """Who says what reward to expect from each token on, for `gae`."""
    select: Select = KeepAll()
    """Which rollouts are trained on."""
    post_scale: PostScale = NoPostScale()
    """Rescaling of the advantages over the batch."""
    ratio: Literal["token", "sequence", "sequence_token"] = "token"
    """Probability ratio to the policy that sampled: of each token, or one of the whole answer."""
    trust_region: TrustRegion = StaticRegion()
    """How far the ratio may move before it is clipped."""
    surrogate: Surrogate = Clipped()
    """The loss of each token from its ratio, its advantage and its bounds."""
    dual_clip: NonNegative = 0.0
    """Bound c of the dual clip for negative advantages; 0 is off."""
    tokens: Tokens = AllTokens()
    """Which tokens have a policy loss."""
    correction: Correction = NoCorrection()
    """Importance weights for rollouts that a stale, remote or quantised sampler wrote."""
    aggregate: Aggregate = Aggregate()
    """How token losses become one number."""
    auxiliary: tuple[Auxiliary, ...] = ()
    """Terms that are added to the policy loss."""

    def check(self) -> None:
        if self.dual_clip and self.dual_clip <= 1:
            raise ArgumentError(f"dual_clip: got {self.dual_clip}, expected 0 (off) or above 1")
        reason = contradiction(self)
        if reason:
            raise ArgumentError(reason)

    @property
    def needs_reference(self) -> bool:
        """True where a reference model must be held for a KL, in the loss or in the reward."""
        return self.has_kl_term or (self.gae is not None and self.gae.kl != 0)

    @property
    def has_kl_term(self) -> bool:
        """True where every update must bring the reference model's log-probs."""
        return any(isinstance(term, KL) and term.coefficient != 0 for term in self.auxiliary)

    @property
    def gae(self) -> GeneralisedAdvantage | None:
        return self.advantage if isinstance(self.advantage, GeneralisedAdvantage) else None

    @property
    def needs_entropy(self) -> bool:
        """True where the trainer must bring the entropy of every token."""
        has_bonus = any(isinstance(term, Entropy) and term.coefficient for term in self.auxiliary)
        return has_bonus or self.adaptive_entropy is not None

    @property
    def needs_sampler_logprobs(self) -> bool:
        """True where the loss corrects for the policy that sampled."""
        return not isinstance(self.correction, NoCorrection)

    @property
    def adaptive_entropy(self) -> AdaptiveEntropy | None:
        """The entropy bonus whose coefficient follows the entropy of the last step."""
        return _first(self.auxiliary, AdaptiveEntropy)

    @property
    def needs_greedy(self) -> bool:
        """True where each prompt needs a greedy answer beside the sampled ones."""
        return isinstance(self.advantage, GreedyBaseline)

    @property
    def token_markers(self) -> dict[str, TokenMarker]:
        """Components that mark tokens by statistics of the whole mini-batch, by slot."""
        slots = {"surrogate": self.surrogate, "tokens": self.tokens}
        return {slot: one for slot, one in slots.items() if isinstance(one, TokenMarker)}

    @property
    def contrastive(self) -> Contrastive | None:
        return _first(self.shaping, Contrastive)

    @property
    def calibration(self) -> ReferenceFrozen | None:
        """The component that needs the start model's rewards before the first step."""
        return _first(self.shaping, ReferenceFrozen)

    @property
    def stepwise(self) -> Stepwise | None:
        """The component that needs the section of each token."""
        return self.advantage if isinstance(self.advantage, Stepwise) else None

    @property
    def imitation(self) -> SFT | None:
        found = _first(self.auxiliary, SFT)
        return found if found is not None and found.coefficient != 0 else None


def contradiction(recipe: Recipe) -> str:
    """Why the components of a recipe make no sense together; empty where they do."""
    return next((why for find in (_in_rewards, _in_loss) for why in find(recipe) if why), "")


def _in_rewards(recipe: Recipe) -> Iterator[str]:
    kinds, select = [type(component) for component in recipe.shaping], recipe.select
    advantage = _tag(type(recipe.advantage))
    is_raw = isinstance(recipe.advantage, Raw)
    for kind in (Contrastive, ReferenceFrozen):
        if kinds.count(kind) > 1:
            yield f"shaping: names '{_tag(kind)}' twice; its state is one, so name it once"
    if Contrastive in kinds and ReferenceFrozen in kinds:
        yield (
            "shaping: 'contrastive' adds at most 0.5 to rewards of 0 and 1, 'reference_frozen' turns "
            "them into deviations of up to its clip; use one of the two"
        )
    if Contrastive in kinds and is_raw:
        yield (
            "shaping: 'contrastive' changes rewards inside a group, and 'raw' never compares them "
            "there; use sum_then_normalise or normalise_then_sum"
        )
    if isinstance(recipe.weights, TriFactor) and ReferenceFrozen not in kinds:
        yield (
            "weights: 'tri_factor' compares rewards in deviations of the start model; add "
            "{ kind = 'reference_frozen' } to shaping"
        )
    if isinstance(select, Skew) and not is_raw:
        yield (
            "select: 'skew' counts wins and losses against a reference, and the advantage "
            f"'{advantage}' centres them away; use advantage 'raw'"
        )
    filters = SignConflict | SnrConflict | Magnitude | RandomDrop
    if isinstance(select, filters) and (is_raw or recipe.stepwise or recipe.gae):
        yield (
            f"select: '{_tag(type(select))}' looks for rewards that disagree on a rollout; "
            f"advantage '{advantage}' keeps them apart or never compares them. "
            "Use normalise_then_sum or sum_then_normalise"
        )
    if recipe.stepwise or recipe.gae:
        yield token_credit_conflict(recipe, f"'{advantage}'")
    if recipe.needs_greedy and recipe.shaping:
        yield (
            "shaping: changes the rewards of the sampled answers, and 'greedy_baseline' compares them "
            "with that of a greedy one as it is; use shaping = []"
        )
    without_groups = isinstance(recipe.advantage, BatchNormalise | GeneralisedAdvantage)
    if without_groups and isinstance(select, InformativeGroups):
        yield (
            "select: 'informative_groups' drops groups of equal rewards, and "
            f"'{advantage}' learns from them too; use select 'all'"
        )


def _in_loss(recipe: Recipe) -> Iterator[str]:
    surrogate, tag, gae = recipe.surrogate, _tag(type(recipe.surrogate)), recipe.gae
    has_critic = not isinstance(recipe.critic, NoCritic)
    if gae and not has_critic:
        yield (
            "critic: 'gae' reads the values of a critic, and the recipe has none; use critic 'shared' "
            "or 'separate'"
        )
    if has_critic and not gae:
        yield (
            f"critic: advantage '{_tag(type(recipe.advantage))}' never reads its values; use "
            "advantage 'gae', or critic 'none'"
        )
    if gae and gae.kl and recipe.has_kl_term:
        yield (
            "auxiliary: 'kl' is a term of the loss, and advantage.kl takes the same from every token's "
            "reward; use one of the two"
        )
    if recipe.ratio != "token" and isinstance(surrogate, GeometricMean | ClipCov | KlCov):
        yield (
            f"ratio: '{recipe.ratio}' gives the whole answer one ratio, '{tag}' reads that of each "
            "token; use ratio 'token'"
        )
    if recipe.dual_clip and not isinstance(surrogate, Clipped | ClipCov):
        yield f"dual_clip: belongs to the clipped loss, and '{tag}' has none; use 0"
    if recipe.trust_region != StaticRegion() and isinstance(surrogate, Sapo | KlCov):
        yield f"trust_region: '{tag}' has no clip to bound; leave it out"
    if sum(isinstance(term, SFT) for term in recipe.auxiliary) > 1:
        yield "auxiliary: names 'sft' twice; add the coefficients"
    entropies = [t for t in recipe.auxiliary if isinstance(t, Entropy | AdaptiveEntropy)]
    if recipe.adaptive_entropy and len(entropies) > 1:
        yield "auxiliary: names 'adaptive_entropy' beside another entropy term; name one"


def token_credit_conflict(recipe: Recipe, advantage: str) -> str:
    """Why the recipe cannot use an advantage a token, with the remedy; empty where it can."""
    if recipe.ratio != "token":
        return (
            f"ratio: '{recipe.ratio}' gives the whole answer one ratio, {advantage} each token its "
            "own advantage; use ratio 'token'"
        )
    if isinstance(recipe.post_scale, BatchWhiten):
        return (
            f"post_scale: 'batch_whiten' scales one number a rollout, {advantage} has one a token; "
            "use 'none'"
        )
    if isinstance(recipe.weights, TriFactor):
        return (
            f"weights: 'tri_factor' trades rewards of a whole answer against each other, {advantage} "
            "has an advantage a token; use 'given'"
        )
    return ""


def _first(components: tuple[Struct, ...], kind: type[P]) -> P | None:
    return next((one for one in components if isinstance(one, kind)), None)


def _tag(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag)
