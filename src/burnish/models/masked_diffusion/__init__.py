"""Masked diffusion language models: the loss, its noise, and six ways to reduce that (arXiv 2511.18159)."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.models.masked_diffusion.control import GradientBaseline as GradientBaseline
    from burnish.models.masked_diffusion.control import LossBaseline as LossBaseline
    from burnish.models.masked_diffusion.control import ema_control_variate as ema_control_variate
    from burnish.models.masked_diffusion.objective import IndependentMasks as IndependentMasks
    from burnish.models.masked_diffusion.objective import MirrorMasks as MirrorMasks
    from burnish.models.masked_diffusion.objective import collate as collate
    from burnish.models.masked_diffusion.objective import is_syntax as is_syntax
    from burnish.models.masked_diffusion.objective import isad_mask_prob as isad_mask_prob
    from burnish.models.masked_diffusion.objective import mdm_loss as mdm_loss
    from burnish.models.masked_diffusion.objective import mirror_masks as mirror_masks
    from burnish.models.masked_diffusion.objective import syntax_eligible as syntax_eligible
    from burnish.models.masked_diffusion.objective import template_tokens as template_tokens
    from burnish.models.masked_diffusion.objective import token_nll as token_nll
    from burnish.models.masked_diffusion.rates import epr_density as epr_density
    from burnish.models.masked_diffusion.rates import fit_epr as fit_epr
    from burnish.models.masked_diffusion.rates import optimal_t_density as optimal_t_density
    from burnish.models.masked_diffusion.rates import probe_moments as probe_moments
    from burnish.models.masked_diffusion.rates import sample_t as sample_t
    from burnish.models.masked_diffusion.rates import sampler_variance as sampler_variance
    from burnish.models.masked_diffusion.rates import stratum_counts as stratum_counts
    from burnish.models.masked_diffusion.report import VarianceReport as VarianceReport
    from burnish.models.masked_diffusion.report import decompose_variance as decompose_variance
    from burnish.models.masked_diffusion.report import variance_report as variance_report
    from burnish.models.masked_diffusion.samplers import Noise as Noise
    from burnish.models.masked_diffusion.samplers import Noised as Noised
    from burnish.models.masked_diffusion.samplers import PPots as PPots
    from burnish.models.masked_diffusion.samplers import Probe as Probe
    from burnish.models.masked_diffusion.samplers import UniformRates as UniformRates
    from burnish.models.masked_diffusion.samplers import build_noise as build_noise
    from burnish.models.masked_diffusion.samplers import evaluation_uniforms as evaluation_uniforms
    from burnish.models.masked_diffusion.samplers import probe_table as probe_table

__getattr__, __dir__ = lazy_exports(__name__)
