"""What a model's forward takes, and the door by which conversations become it.

inputs = processor.process(messages)            # the tokenizer is the processor of text models
hidden_RSD = module(inputs)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from burnish.records import Message

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.store.blobs import Blobs


class ModelInput(NamedTuple):
    """One batch of rows for a model."""

    ids_RS: Tensor
    positions_RS: Tensor
    mask: Tensor | None = None
    """bool (R, S, S), True where a query may attend to a key; None is causal, or for a masked
    diffusion model every token of the row."""
    media: Mapping[str, Tensor] | None = None
    """What a media model reads beside the ids, by the name its forward gives it (`pixel_values`,
    `input_features`); None for text."""


@runtime_checkable
class Processor(Protocol):
    """Turns a conversation, media included, into one row of model input."""

    def process(self, messages: Sequence[Message], blobs: Blobs | None = None) -> ModelInput:
        """(1, S) ids with the generation prompt; `blobs` holds the bytes of the media.

        Refuses parts that the model cannot read, in one line.
        """
        ...
