"""What tells reconstructions from sounds by their spectra, for the adversarial phase of a tokenizer.

    judge = SpectralDiscriminator(windows=(256, 1024))
    real, fake = judge(sound), judge(reconstruction)
    hinge_loss(real, fake)                      # of the discriminator
    adversarial_terms(real, fake)               # of the tokenizer: verdict, and distance of features

As in DAC: a small network of 2-D convolutions for each window size, on the real and imaginary part of the
spectrum; hinge loss; the L1 distance of hidden layers, relative to their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.models.audio_tokenizer.spectral import spectrum

STRIDES = ((1, 1), (1, 2), (1, 2), (1, 2), (1, 1))
"""Over frames and bins, of the convolutions of one network."""


class Verdict(NamedTuple):
    """What one network says of a batch."""

    scores: Tensor
    """(B, 1, K, F'): high for sounds, low for reconstructions."""
    features: tuple[Tensor, ...]
    """Hidden layers."""


class SpectralDiscriminator(nn.Module):
    """One network for each window size.

    >>> import torch
    >>> from burnish.models.audio_tokenizer.discriminator import SpectralDiscriminator
    >>> judge = SpectralDiscriminator(windows=(64,), channels=4)
    >>> [verdict.scores.shape[0] for verdict in judge(torch.zeros(3, 500))]
    [3]
    """

    def __init__(self, windows: Sequence[int], channels: int = 32) -> None:
        super().__init__()
        self.windows = tuple(windows)
        self.networks = nn.ModuleList(_network(channels) for _ in self.windows)

    def forward(self, samples_Bn: Tensor) -> list[Verdict]:
        """Samples (B, n) to a verdict for each window size."""
        found = []
        for size, network in zip(self.windows, self.networks, strict=True):
            hop = size // 4
            padded = F.pad(samples_Bn, (size // 2, size // 2 + -samples_Bn.shape[1] % hop))
            frames_BKF = spectrum(padded, size, hop)
            x = torch.stack((frames_BKF.real, frames_BKF.imag), dim=1)
            features: list[Tensor] = []
            assert isinstance(network, nn.ModuleList)
            for layer in network[:-1]:
                x = F.leaky_relu(layer(x), 0.1)
                features.append(x)
            found.append(Verdict(network[-1](x), tuple(features)))
        return found


def _network(channels: int) -> nn.ModuleList:
    inputs, layers = 2, []
    for stride in STRIDES:
        layers.append(nn.Conv2d(inputs, channels, (3, 5), stride=stride, padding=(1, 2)))
        inputs = channels
    return nn.ModuleList([*layers, nn.Conv2d(channels, 1, 3, padding=1)])


def hinge_loss(real: Sequence[Verdict], fake: Sequence[Verdict]) -> Tensor:
    """Of the discriminator: sounds above 1, reconstructions below -1; mean over networks."""
    each = [
        F.relu(1 - one.scores).mean() + F.relu(1 + two.scores).mean()
        for one, two in zip(real, fake, strict=True)
    ]
    return torch.stack(each).mean()


class AdversarialTerms(NamedTuple):
    """Of the tokenizer; both keep the gradient to the reconstruction."""

    verdict: Tensor
    features: Tensor


def adversarial_terms(real: Sequence[Verdict], fake: Sequence[Verdict]) -> AdversarialTerms:
    """Minus the score of reconstructions, and how far their hidden layers are from those of sounds."""
    verdicts = [-two.scores.mean() for two in fake]
    distances = [
        (ours - theirs.detach()).abs().mean() / theirs.detach().abs().mean().clamp(min=1e-6)
        for one, two in zip(real, fake, strict=True)
        for theirs, ours in zip(one.features, two.features, strict=True)
    ]
    return AdversarialTerms(torch.stack(verdicts).mean(), torch.stack(distances).mean())
