"""Models in this process that read vectors in the place of tokens, with a cache: latents, pictures.

The built-in decoder takes token ids. Here its embedding gives way to the vectors of a row, and its
keys and values are kept between the passes of a generation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.lm.decoder import Decoder
from burnish.lm.model_input import ModelInput
from burnish.models.blocks.topology import Streams, settled
from burnish.models.visual_latent.head import Hidden
from burnish.models.visual_latent.step import Decoded

if TYPE_CHECKING:
    from burnish.lm.transformers_model import TransformersDecoder


class KeyCache:
    """Keys and values of all layers, of the passes so far."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
        """Take in those of one layer and give back all; none before the second pass."""
        past = self._layers.get(index)
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        self._layers[index] = key, value
        return None if past is None else (key, value)


class DecoderVectors(nn.Module):
    """The built-in decoder over vectors; its weights are those of the decoder."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def get_input_embeddings(self) -> nn.Module:
        """The table of token embeddings."""
        return self.decoder.model.embed_tokens

    def decode_vectors(
        self,
        inputs_BTD: Tensor,
        mask_BS: Tensor,
        positions_BT: Tensor,
        cache: Any = None,
        *,
        use_cache: bool = False,
    ) -> Decoded:
        """Logits and hidden states; `mask_BS` covers what the cache holds, too."""
        decoder, (rows, length, _) = self.decoder, inputs_BTD.shape
        window = decoder.architecture.sliding_window
        if window is not None and mask_BS.shape[1] > window:
            raise UserError(
                f"a row of {mask_BS.shape[1]} places: the model's layers see {window}; expected no more. "
                "Shorten pictures, prompts or answers"
            )
        keep = cache or (KeyCache() if use_cache else None)
        seen: list[Streams] = []
        hooks = (
            decoder.model.embed_tokens.register_forward_hook(
                lambda _module, _args, _output: inputs_BTD.flatten(0, 1)
            ),
            decoder.model.layers[-1].register_forward_hook(
                lambda _module, _args, output: seen.append(settled(output))
            ),
        )
        ids_BT = torch.zeros(rows, length, dtype=torch.long, device=inputs_BTD.device)
        try:
            normed_BTD = decoder(ModelInput(ids_BT, positions_BT, _mask(mask_BS, length)), keep)
        finally:
            for hook in hooks:
                hook.remove()
        raw = seen[0].x if seen[0].y is None else seen[0].y
        assert raw is not None
        hidden = Hidden(raw.view(rows, length, -1), normed_BTD)
        return Decoded(decoder.logits(normed_BTD), hidden, keep if use_cache else None)


def vector_model(module: Decoder | TransformersDecoder | Any) -> Any:
    """A module of `load_model` as latents need it: embeddings, and passes over vectors.

    A masked diffusion model is refused: it has no next place.
    """
    if isinstance(module, Decoder):
        if not module.architecture.is_causal:
            raise UserError(
                "a masked diffusion model has no next place to imagine; expected a causal model"
            )
        return DecoderVectors(module)
    return module.model


def _mask(mask_BS: Tensor, length: int) -> Tensor:
    """What each of the last `length` places sees: those up to its own that are no padding, and itself."""
    size = mask_BS.shape[1]
    keys_S = torch.arange(size, device=mask_BS.device)
    queries_T1 = keys_S[size - length :].unsqueeze(1)
    mask_BTS = (keys_S <= queries_T1) & mask_BS.bool().unsqueeze(1)
    return mask_BTS | (keys_S == queries_T1)
