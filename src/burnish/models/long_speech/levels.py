"""How loud things are beside each other: noise at a signal-to-noise ratio, and fades."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import LARGEST_COUNT, as_number, as_whole
from burnish.errors import ArgumentError
from burnish.tensors import as_finite, as_mask, torch

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.tensors import Numbers

LARGEST_DB = 300.0


class Fades(NamedTuple):
    """Factors of what ends and of what begins; their squares add up to 1."""

    fade_out: Tensor
    fade_in: Tensor


def noise_gain(speech: Numbers, active: Numbers, noise: Numbers, snr_db: float) -> float:
    """The factor of a noise that puts it `snr_db` below the speech.

    The speech's power is its mean square over the active samples, the noise's over all that is
    given of it. 1.0 without active samples, and for a silent noise, which no factor changes.

    >>> from burnish.models.long_speech import noise_gain
    >>> noise_gain([1.0, -1.0, 0.0], [1, 1, 0], [0.5, -0.5, 0.5], snr_db=20.0)
    0.2
    """
    speech_T, noise_N = as_finite(speech, "speech"), as_finite(noise, "noise")
    for what, values in (("speech", speech_T), ("noise", noise_N)):
        if values.ndim != 1:
            raise ArgumentError(f"{what}: got shape {tuple(values.shape)}, expected (samples,)")
    if not len(noise_N):
        raise ArgumentError("noise: got no sample, expected at least 1")
    active_T = as_mask(active, "active", tuple(speech_T.shape))
    snr_db = as_number("snr_db", snr_db, low=-LARGEST_DB, high=LARGEST_DB)
    heard_T = speech_T[active_T]
    if not len(heard_T):
        return 1.0
    return gain_of_powers(
        heard_T.square().mean().item(), noise_N.square().mean().item(), snr_db=snr_db
    )


def gain_of_powers(speech: float, noise: float, *, snr_db: float) -> float:
    """The factor of a noise of one power that puts it `snr_db` below a speech of another."""
    return math.sqrt(speech / noise) * 10 ** (-snr_db / 20) if noise > 0 else 1.0


def equal_power_fades(n: int) -> Fades:
    """Factors that fade one sound out and another in at constant power, float64 (n,) each.

    A quarter of a cosine and of a sine over n points, both ends included.

    >>> from burnish.models.long_speech import equal_power_fades
    >>> [[round(one, 4) for one in fade.tolist()] for fade in equal_power_fades(3)]
    [[1.0, 0.7071, 0.0], [0.0, 0.7071, 1.0]]
    """
    n = as_whole("n", n, low=0, high=LARGEST_COUNT)
    angle_N = torch.linspace(0, math.pi / 2, n, dtype=torch.float64)
    return Fades(angle_N.cos(), angle_N.sin())
