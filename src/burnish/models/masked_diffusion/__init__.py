"""Masked diffusion language models: the loss, its noise, and six ways to reduce that (arXiv 2511.18159).

Pure functions: random numbers (`u`, `t`) are arguments. The mask rate is drawn by `sample_t` from a
density that `fit_epr` fits (P-POTS) or in strata (`stratum_counts`, StraTS); masks come in
complementary pairs (`mirror_masks`) or hit delimiters more often (`isad_mask_prob`); `mdm_loss` is the
loss, `decompose_variance` says where its noise comes from.
"""

from burnish.models.masked_diffusion.control import (
    GradientBaseline,
    LossBaseline,
    ema_control_variate,
)
from burnish.models.masked_diffusion.epr import epr_density, fit_epr
from burnish.models.masked_diffusion.masks import IndependentMasks, MirrorMasks
from burnish.models.masked_diffusion.objective import (
    isad_mask_prob,
    mdm_loss,
    mirror_masks,
    token_nll,
)
from burnish.models.masked_diffusion.probe import Probe, probe_losses
from burnish.models.masked_diffusion.rates import (
    optimal_t_density,
    probe_moments,
    sample_t,
    sampler_variance,
    stratum_counts,
)
from burnish.models.masked_diffusion.report import VarianceReport, variance_report
from burnish.models.masked_diffusion.rows import collate
from burnish.models.masked_diffusion.samplers import (
    Noise,
    Noised,
    PPots,
    UniformRates,
    build_noise,
    evaluation_uniforms,
)
from burnish.models.masked_diffusion.syntax import is_syntax, syntax_eligible, template_tokens
from burnish.models.masked_diffusion.variance import decompose_variance

__all__ = [
    "GradientBaseline",
    "IndependentMasks",
    "LossBaseline",
    "MirrorMasks",
    "Noise",
    "Noised",
    "PPots",
    "Probe",
    "UniformRates",
    "VarianceReport",
    "build_noise",
    "collate",
    "decompose_variance",
    "ema_control_variate",
    "epr_density",
    "evaluation_uniforms",
    "fit_epr",
    "is_syntax",
    "isad_mask_prob",
    "mdm_loss",
    "mirror_masks",
    "optimal_t_density",
    "probe_losses",
    "probe_moments",
    "sample_t",
    "sampler_variance",
    "stratum_counts",
    "syntax_eligible",
    "template_tokens",
    "token_nll",
    "variance_report",
]
