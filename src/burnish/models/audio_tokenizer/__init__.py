"""Audio tokenizer: continuous latents that survive noise, and what is learned on them (arXiv 2606.06357).

The method as pure functions: latents normalised over channels and perturbed (`channel_normalise`,
`perturb_latents`), targets of a random quantiser (`rq_codes`, `rq_mtp_loss`), rectified flow on
patches of frames (`patchify_latents`, `flow_pair`, `guided_velocity`, `euler_sample`), losses of a
reconstruction (`codec_loss`) and distances between recordings (`si_sdr`, `log_spectral_distance`,
`frechet_distance`). `new_tokenizer` makes an autoencoder, which `burnish train codec` trains;
`StreamingEncoder` and `StreamingDecoder` run it in chunks. On its latents: `new_representation` (with
`FrozenLMBridge`), an encoder of what is said, and `new_generator`, speech from text with a flow head;
`save_speech_folder` writes that with its tokenizer for `burnish speak --engine`.

Importing this makes the model known to `AutoConfig`, `AutoModel` and `AutoModelForAudioTokenization`.
The model needs transformers 5; the rest needs torch alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports
from burnish.models import has_transformers
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
from burnish.models.audio_tokenizer.spectral import codec_loss, multi_scale_spectral_loss
from burnish.models.audio_tokenizer.spelling import spelled
from burnish.models.blocks.flow import euler_sample, flow_pair, guided_velocity

if TYPE_CHECKING:
    from burnish.models.audio_tokenizer.configuration_audio_tokenizer import AudioTokenizerConfig
    from burnish.models.audio_tokenizer.discriminator import SpectralDiscriminator
    from burnish.models.audio_tokenizer.generator import (
        AudioGeneratorModel,
        draw_flow,
        new_generator,
        open_generator,
    )
    from burnish.models.audio_tokenizer.modeling_audio_tokenizer import (
        AudioTokenizerModel,
        draw_noise,
        new_tokenizer,
        open_tokenizer,
    )
    from burnish.models.audio_tokenizer.representation import (
        AudioRepresentationModel,
        FrozenLMBridge,
        new_representation,
    )
    from burnish.models.audio_tokenizer.speech_folder import open_speech_folder, save_speech_folder
    from burnish.models.audio_tokenizer.streaming import StreamingDecoder, StreamingEncoder

__all__ = [
    "AudioGeneratorModel",
    "AudioRepresentationModel",
    "AudioTokenizerConfig",
    "AudioTokenizerModel",
    "FrozenLMBridge",
    "SpectralDiscriminator",
    "StreamingDecoder",
    "StreamingEncoder",
    "channel_normalise",
    "codec_loss",
    "draw_flow",
    "draw_noise",
    "euler_sample",
    "flow_pair",
    "frechet_distance",
    "guided_velocity",
    "log_spectral_distance",
    "multi_scale_spectral_loss",
    "new_generator",
    "new_representation",
    "new_tokenizer",
    "open_generator",
    "open_speech_folder",
    "open_tokenizer",
    "patchify_latents",
    "perturb_latents",
    "rq_codes",
    "rq_mtp_loss",
    "save_speech_folder",
    "si_sdr",
    "spelled",
]
__getattr__, __dir__ = lazy_exports(__name__)

if has_transformers():
    importlib.import_module("burnish.models.audio_tokenizer.modeling_audio_tokenizer")
