"""Policy optimisation: components as pure tensor functions, and `Recipe`, which names one of each.

    from burnish.policy import Recipe, advantages, loss

`advantages(recipe, batch, state)` computes what a step learns from, `loss(recipe, batch)` what an
update minimises. Everything here imports without torch; torch is loaded when something is computed.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.policy.aggregate import (
        Aggregate as Aggregate,
        aggregate_loss as aggregate_loss,
        normaliser_of as normaliser_of,
    )
    from burnish.policy.answer_first import (
        answer_kd as answer_kd,
        first_token_grade as first_token_grade,
        label_tokens as label_tokens,
    )
    from burnish.policy.auxiliary import (
        KL as KL,
        SFT as SFT,
        AdaptiveEntropy as AdaptiveEntropy,
        Entropy as Entropy,
        adapted_entropy_coefficient as adapted_entropy_coefficient,
        kl_penalty as kl_penalty,
        mode_balanced_loss as mode_balanced_loss,
        sft_nll as sft_nll,
        token_entropy as token_entropy,
    )
    from burnish.policy.balance import (
        BalanceState as BalanceState,
        GradientOverlap as GradientOverlap,
        adapted_coefficient as adapted_coefficient,
        gradient_overlap as gradient_overlap,
    )
    from burnish.policy.baselines import (
        BatchNormalise as BatchNormalise,
        GreedyBaseline as GreedyBaseline,
        LeaveOneOut as LeaveOneOut,
        LengthWeightedBaseline as LengthWeightedBaseline,
        opo_advantage as opo_advantage,
        reinforce_pp_advantage as reinforce_pp_advantage,
        remax_advantage as remax_advantage,
        rloo_advantage as rloo_advantage,
    )
    from burnish.policy.batch import (
        Advantages as Advantages,
        Estimate as Estimate,
        Loss as Loss,
        LossBatch as LossBatch,
        Normaliser as Normaliser,
        RewardBatch as RewardBatch,
    )
    from burnish.policy.brpo import (
        PositionWeight as PositionWeight,
        Raw as Raw,
        Skew as Skew,
        brpo_advantages as brpo_advantages,
        raw_advantage as raw_advantage,
        skew_filter as skew_filter,
    )
    from burnish.policy.compute import (
        advantages as advantages,
        informative as informative,
        loss as loss,
    )
    from burnish.policy.conflict import (
        Magnitude as Magnitude,
        RandomDrop as RandomDrop,
        SignConflict as SignConflict,
        SnrConflict as SnrConflict,
        group_keep_ratio as group_keep_ratio,
        magnitude_filter as magnitude_filter,
        random_filter as random_filter,
        sign_conflict as sign_conflict,
        snr_ratio as snr_ratio,
    )
    from burnish.policy.contrast.component import (
        Contrastive as Contrastive,
        clipo_advantage as clipo_advantage,
        pool_hidden as pool_hidden,
    )
    from burnish.policy.contrast.head import (
        ContrastiveHead as ContrastiveHead,
        HeadState as HeadState,
        contrastive_reward as contrastive_reward,
        head_step as head_step,
    )
    from burnish.policy.contrast.losses import contrastive_losses as contrastive_losses
    from burnish.policy.correction import (
        MaskedImportance as MaskedImportance,
        NoCorrection as NoCorrection,
        TruncatedImportance as TruncatedImportance,
        masked_importance as masked_importance,
        truncated_importance as truncated_importance,
    )
    from burnish.policy.dapo import (
        InformativeGroups as InformativeGroups,
        KeepAll as KeepAll,
        OverlongPenalty as OverlongPenalty,
        informative_groups as informative_groups,
        overlong_penalty as overlong_penalty,
    )
    from burnish.policy.distillation import (
        distil_loss as distil_loss,
        ema as ema,
        policy_sensitivity as policy_sensitivity,
        sampled_kl as sampled_kl,
        token_forward_kl as token_forward_kl,
        token_reverse_kl as token_reverse_kl,
    )
    from burnish.policy.dry_run import (
        WeightingComparison as WeightingComparison,
        compare_weightings as compare_weightings,
    )
    from burnish.policy.elastic import (
        Elastic as Elastic,
        elastic_bounds as elastic_bounds,
        group_variance as group_variance,
        mean_elastic_budget as mean_elastic_budget,
    )
    from burnish.policy.gdpo import (
        NormaliseThenSum as NormaliseThenSum,
        gd2po_advantage as gd2po_advantage,
        gdpo_advantage as gdpo_advantage,
        normalise_then_sum as normalise_then_sum,
    )
    from burnish.policy.groups import per_reward_advantages as per_reward_advantages
    from burnish.policy.grpo import (
        SumThenNormalise as SumThenNormalise,
        grpo_advantage as grpo_advantage,
    )
    from burnish.policy.objective import (
        Clipped as Clipped,
        clipped_surrogate as clipped_surrogate,
        log_ratio as log_ratio,
        policy_loss as policy_loss,
        policy_loss_gradient as policy_loss_gradient,
    )
    from burnish.policy.plugins import Function as Function
    from burnish.policy.post_scale import (
        BatchWhiten as BatchWhiten,
        NoPostScale as NoPostScale,
        batch_whiten as batch_whiten,
    )
    from burnish.policy.ppo import (
        GeneralisedAdvantage as GeneralisedAdvantage,
        NoCritic as NoCritic,
        SeparateCritic as SeparateCritic,
        SharedCritic as SharedCritic,
        gae as gae,
        terminal_rewards as terminal_rewards,
        value_loss as value_loss,
    )
    from burnish.policy.preference import (
        completion_logp as completion_logp,
        dpo_loss as dpo_loss,
        ipo_loss as ipo_loss,
    )
    from burnish.policy.recipe import Recipe as Recipe
    from burnish.policy.reference import (
        ReferenceFrozen as ReferenceFrozen,
        fit_reference_stats as fit_reference_stats,
        reference_frozen_normalise as reference_frozen_normalise,
    )
    from burnish.policy.state import (
        PolicyState as PolicyState,
        ReferenceStats as ReferenceStats,
        WeightState as WeightState,
    )
    from burnish.policy.stepwise import (
        Stepwise as Stepwise,
        process_advantages as process_advantages,
        stepwise_advantages as stepwise_advantages,
    )
    from burnish.policy.surrogates import (
        Cispo as Cispo,
        GeometricMean as GeometricMean,
        Sapo as Sapo,
        cispo_surrogate as cispo_surrogate,
        gmpo_surrogate as gmpo_surrogate,
        sapo_surrogate as sapo_surrogate,
    )
    from burnish.policy.tokens import (
        AllTokens as AllTokens,
        ClipCov as ClipCov,
        HighEntropy as HighEntropy,
        KlCov as KlCov,
        clip_cov_tokens as clip_cov_tokens,
        high_entropy_tokens as high_entropy_tokens,
        kl_cov_tokens as kl_cov_tokens,
        token_covariance as token_covariance,
    )
    from burnish.policy.tri_factor import (
        GivenWeights as GivenWeights,
        TriFactor as TriFactor,
        medalign_advantage as medalign_advantage,
        redundancy_factor as redundancy_factor,
        risk_factor as risk_factor,
        tri_factor_weights as tri_factor_weights,
        weakness_factor as weakness_factor,
    )
    from burnish.policy.trust_region import (
        PASS_BUCKETS as PASS_BUCKETS,
        StaticRegion as StaticRegion,
        bucket_shares as bucket_shares,
        bucket_sums as bucket_sums,
        pass_buckets as pass_buckets,
        pass_rates as pass_rates,
        static_bounds as static_bounds,
    )

__getattr__, __dir__ = lazy_exports(__name__)
