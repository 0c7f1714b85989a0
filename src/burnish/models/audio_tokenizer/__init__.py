"""Audio tokenizer: continuous latents that survive noise, and what is learned on them (arXiv 2606.06357).

The method as pure functions, an autoencoder (`new_tokenizer`, `burnish train codec`) that runs in chunks
too, and on its latents `new_representation`, an encoder of what is said, and `new_generator`, speech from
text with a flow head (`burnish speak --engine`). The models need transformers 5; the rest torch alone.
"""

import importlib
from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports
from burnish.models import has_transformers

if TYPE_CHECKING:
    from burnish.models.audio_tokenizer.generator import (
        AudioGeneratorModel as AudioGeneratorModel,
        draw_flow as draw_flow,
        new_generator as new_generator,
        open_generator as open_generator,
        open_speech_folder as open_speech_folder,
        save_speech_folder as save_speech_folder,
    )
    from burnish.models.audio_tokenizer.modeling_audio_tokenizer import (
        AudioTokenizerConfig as AudioTokenizerConfig,
        AudioTokenizerModel as AudioTokenizerModel,
        draw_noise as draw_noise,
        new_tokenizer as new_tokenizer,
        open_tokenizer as open_tokenizer,
    )
    from burnish.models.audio_tokenizer.objective import (
        channel_normalise as channel_normalise,
        patchify_latents as patchify_latents,
        perturb_latents as perturb_latents,
        rq_codes as rq_codes,
        rq_mtp_loss as rq_mtp_loss,
    )
    from burnish.models.audio_tokenizer.representation import (
        AudioRepresentationModel as AudioRepresentationModel,
        FrozenLMBridge as FrozenLMBridge,
        new_representation as new_representation,
    )
    from burnish.models.audio_tokenizer.spectral import (
        SpectralDiscriminator as SpectralDiscriminator,
        codec_loss as codec_loss,
        frechet_distance as frechet_distance,
        log_spectral_distance as log_spectral_distance,
        si_sdr as si_sdr,
    )
    from burnish.models.audio_tokenizer.spelling import spelled as spelled
    from burnish.models.audio_tokenizer.streaming import (
        StreamingDecoder as StreamingDecoder,
        StreamingEncoder as StreamingEncoder,
    )
    from burnish.models.blocks.flow import (
        euler_sample as euler_sample,
        flow_pair as flow_pair,
        guided_velocity as guided_velocity,
    )

__getattr__, __dir__ = lazy_exports(__name__)

if has_transformers():
    importlib.import_module("burnish.models.audio_tokenizer.modeling_audio_tokenizer")
