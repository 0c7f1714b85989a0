"""Held-out sounds beside what a model made of them, as samples of a run that can be played.

    distance_CS, heard = reconstructed(model, clips, chosen, strengths, world, device)
    samples = stored_sounds(step, version, heard, "log_spectral_distance", store.blobs)

The task of a sample holds the sound; its turns hold what was made of it, each with a line of words: of an
audio tokenizer the reconstruction, and those with noise on the latents. Bytes go into the run's own `blobs/`: the same sound is kept once,
and the same weights make the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.media import encode_sound
from burnish.models.audio_tokenizer.metrics import wave_distance
from burnish.records import MediaPart, Message, Reward, Task, TextPart, Trajectory
from burnish.seeds import derive
from burnish.store import StoredSample
from burnish.store.blobs import Blobs
from burnish.training.devices import World
from burnish.training.sound_cache import Clips

if TYPE_CHECKING:
    from burnish.models.audio_tokenizer import AudioTokenizerModel

LONGEST_S = 10.0
"""Seconds of a held-out clip that are scored."""

ROLE = "codec"
"""Role of these samples; the viewer shows their sounds side by side."""
SPEECH = "speech"
"""The same, of text that was spoken."""
MEANING = "dB from the sound, negative: higher is better"
MOST_SHOWN = 8
"""Sounds of an evaluation that are kept, spread evenly over those that are scored."""


class ReconstructedClip(NamedTuple):
    """One held-out sound and what was made of it."""

    name: str
    clip: int
    """Its place among the held-out sounds."""
    rate: int
    sound_n: NDArray[np.float32]
    made_Sn: NDArray[np.float32]
    """A reconstruction for each strength of noise."""
    strengths: Sequence[float]
    """In standard deviations of the latents; 0 is none."""
    distances: Sequence[float]
    """dB of each reconstruction."""


class SoundSample(NamedTuple):
    """One held-out sound and what was made of it, with words for each."""

    name: str
    clip: int
    rate: int
    sound_n: NDArray[np.float32]
    made: Sequence[tuple[str, NDArray[np.float32]]]
    reward: Reward
    role: str = ROLE


@torch.no_grad()
def reconstructed(
    model: AudioTokenizerModel,
    clips: Clips,
    chosen: Sequence[int],
    strengths: Sequence[float],
    world: World,
    device: torch.device,
) -> tuple[Tensor, list[ReconstructedClip]]:
    """Distance of each chosen clip with noise of each strength on its latents, (C, S), float64.

    And some of them to listen to. Every process takes its share; all get the whole.
    """
    longest = int(LONGEST_S * clips.rate)
    waves = {
        i: torch.from_numpy(clips.crop(chosen[i], 0, longest)).to(device)
        for i in world.share(range(len(chosen)))
    }
    own = {i: _latents(model, wave_n) for i, wave_n in waves.items()}
    every = world.merge(own)
    spread_D = torch.cat([every[i] for i in range(len(chosen))]).std(0, correction=0)
    kept = shown_places(len(chosen))
    found: dict[int, Tensor] = {}
    made: dict[int, Tensor] = {}
    for i, wave_n in waves.items():
        generator = torch.Generator().manual_seed(derive("perturbation", i))
        noise_TD = torch.randn(own[i].shape, generator=generator).to(own[i])
        noised = (own[i] + strength * spread_D * noise_TD for strength in strengths)
        made_Sn = torch.stack([model.decode(z, num_samples=len(wave_n))[0] for z in noised])
        row = [wave_distance(made_n, wave_n, clips.rate) for made_n in made_Sn]
        found[i] = torch.stack(row).double().cpu()
        if i in kept:
            made[i] = made_Sn.float().cpu()
    merged, sounds = world.merge(found), world.merge(made)
    distance_CS = torch.stack([merged[i].cpu() for i in range(len(chosen))])
    heard = [
        ReconstructedClip(
            clips.places[chosen[i]].name,
            chosen[i],
            clips.rate,
            clips.crop(chosen[i], 0, longest),
            sounds[i].cpu().numpy(),
            strengths,
            distance_CS[i].tolist(),
        )
        for i in kept
    ]
    return distance_CS, heard


def _latents(model: AudioTokenizerModel, wave_n: Tensor) -> Tensor:
    """(n,) -> (T, D)."""
    found = model.encode(wave_n).latents
    assert found is not None
    return found[0]


def shown_places(count: int, most: int = MOST_SHOWN) -> list[int]:
    """Which of `count` scored sounds are kept.

    >>> shown_places(3), shown_places(16)
    ([0, 1, 2], [0, 2, 4, 6, 8, 10, 12, 14])
    """
    kept = min(count, most)
    return [place * count // kept for place in range(kept)]


def stored_sounds(
    step: int, version: int, heard: Sequence[ReconstructedClip], measure: str, blobs: Blobs
) -> list[StoredSample]:
    """Samples of the split `eval:held_out`; their value is minus the distance."""
    return stored_samples(step, version, [_in_words(one, measure) for one in heard], blobs)


def _in_words(one: ReconstructedClip, measure: str) -> SoundSample:
    words = [
        f"{'reconstruction' if not strength else f'with noise of {strength:g} sd'}: {distance:.2f} dB"
        for strength, distance in zip(one.strengths, one.distances, strict=True)
    ]
    reward = Reward(measure, -one.distances[0], reason=MEANING)
    made = list(zip(words, one.made_Sn, strict=True))
    return SoundSample(one.name, one.clip, one.rate, one.sound_n, made, reward)


def stored_samples(
    step: int, version: int, sounds: Sequence[SoundSample], blobs: Blobs
) -> list[StoredSample]:
    """Samples of the split `eval:held_out`, in the order of the sounds."""
    return [_stored(step, version, index, one, blobs) for index, one in enumerate(sounds)]


def _stored(step: int, version: int, index: int, one: SoundSample, blobs: Blobs) -> StoredSample:
    turns = [
        Message("assistant", (TextPart(said), _part(made_n, one.rate, blobs)))
        for said, made_n in one.made
    ]
    sound = Message("user", (TextPart(f"{one.name}\n"), _part(one.sound_n, one.rate, blobs)))
    task = Task(f"held-out-sound-{one.clip}", (sound,))
    name = f"eval.{step}.{index}"
    return StoredSample(
        step=step,
        split="eval:held_out",
        index=index,
        task=task,
        trajectory=Trajectory(
            name,
            task.id,
            name,
            (),
            "; ".join(said for said, _ in one.made),
            role=one.role,
            weight_version=version,
            info={"messages": msgspec.to_builtins(turns)},
        ),
        reward=one.reward,
        keep=False,
    )


def _part(samples_n: NDArray[np.float32], rate: int, blobs: Blobs) -> MediaPart:
    return blobs.add(encode_sound(np.clip(samples_n, -1, 1), rate))
