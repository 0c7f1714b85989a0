"""Masked diffusion language models: the loss, its noise, and six ways to reduce that (arXiv 2511.18159)."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.masked_diffusion.control import (
        GradientBaseline as GradientBaseline,
        LossBaseline as LossBaseline,
        ema_control_variate as ema_control_variate,
    )
    from burnish.models.masked_diffusion.objective import (
        IndependentMasks as IndependentMasks,
        MirrorMasks as MirrorMasks,
        collate as collate,
        is_syntax as is_syntax,
        isad_mask_prob as isad_mask_prob,
        mdm_loss as mdm_loss,
        mirror_masks as mirror_masks,
        syntax_eligible as syntax_eligible,
        template_tokens as template_tokens,
        token_nll as token_nll,
    )
    from burnish.models.masked_diffusion.rates import (
        epr_density as epr_density,
        fit_epr as fit_epr,
        optimal_t_density as optimal_t_density,
        probe_moments as probe_moments,
        sample_t as sample_t,
        sampler_variance as sampler_variance,
        stratum_counts as stratum_counts,
    )
    from burnish.models.masked_diffusion.report import (
        VarianceReport as VarianceReport,
        decompose_variance as decompose_variance,
        variance_report as variance_report,
    )
    from burnish.models.masked_diffusion.samplers import (
        Noise as Noise,
        Noised as Noised,
        PPots as PPots,
        Probe as Probe,
        UniformRates as UniformRates,
        build_noise as build_noise,
        evaluation_uniforms as evaluation_uniforms,
        probe_table as probe_table,
    )

__getattr__, __dir__ = lazy_exports(__name__)
