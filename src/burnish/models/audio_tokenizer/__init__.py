"""Audio tokenizer: continuous latents that survive noise, and what is learned on them (arXiv 2606.06357).

The method as pure functions: latents normalised over channels and perturbed (`channel_normalise`,
`perturb_latents`), targets of a random quantiser (`rq_codes`, `rq_mtp_loss`), rectified flow on
patches of frames (`patchify_latents`, `flow_pair`, `guided_velocity`, `euler_sample`) and distances
between recordings (`si_sdr`, `log_spectral_distance`, `frechet_distance`).
"""

from burnish.models.audio_tokenizer.metrics import (
    frechet_distance,
    log_spectral_distance,
    si_sdr,
)
from burnish.models.audio_tokenizer.objective import (
    channel_normalise,
    patchify_latents,
    perturb_latents,
    rq_codes,
    rq_mtp_loss,
)
from burnish.models.blocks.flow import euler_sample, flow_pair, guided_velocity

__all__ = [
    "channel_normalise",
    "euler_sample",
    "flow_pair",
    "frechet_distance",
    "guided_velocity",
    "log_spectral_distance",
    "patchify_latents",
    "perturb_latents",
    "rq_codes",
    "rq_mtp_loss",
    "si_sdr",
]
