"""The folder of voices that speak from text: a tokenizer and a generator on its latents, as one.

    save_speech_folder("runs/speech", tokenizer, generator)
    tokenizer, generator = open_speech_folder("runs/speech")    # burnish speak --engine runs/speech

It holds two Hugging Face folders, `tokenizer` and `generator`, in half precision. A checkpoint of `burnish
train speech` opens too: there the generator is the folder itself. Alphabet and names of
voices are in the generator's config.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedModel

from burnish.arguments import as_path
from burnish.errors import UserError
from burnish.models.audio_tokenizer.generator import AudioGeneratorModel, open_generator
from burnish.models.audio_tokenizer.model_folders import not_finite, save_own
from burnish.models.audio_tokenizer.modeling_audio_tokenizer import (
    AudioTokenizerModel,
    open_tokenizer,
)

PARTS = ("tokenizer", "generator")
EXPECTED = (
    "expected a folder with tokenizer and generator, as save_speech_folder writes it, or a run of burnish "
    "train speech"
)


class SpeechModels(NamedTuple):
    """What turns ids of text into samples."""

    tokenizer: AudioTokenizerModel
    generator: AudioGeneratorModel


def save_speech_folder(
    folder: str | Path, tokenizer: AudioTokenizerModel, generator: AudioGeneratorModel
) -> Path:
    """Write both models, in half precision; one line if they do not belong together.

    Weights that half precision cannot hold are refused, and nothing is written.
    """
    place = as_path("folder", folder, "a folder to write")
    check_pair(str(place), tokenizer, generator)
    models: tuple[PreTrainedModel, ...] = (tokenizer, generator)
    halves = [copy.deepcopy(model).cpu().half() for model in models]
    halves[1].config.tokenizer_fingerprint = tokenizer.fingerprint()
    for part, half in zip(PARTS, halves, strict=True):
        if (name := not_finite(half)) is not None:
            raise UserError(
                f"{place}: the {part}'s weight {name} holds NaN, infinity or what half precision cannot "
                "hold; expected numbers up to 65,504. Train it again, or start from a checkpoint before"
            )
    for part, half in zip(PARTS, halves, strict=True):
        save_own(half, place / part)
    return place


def open_speech_folder(folder: str | Path) -> SpeechModels:
    """Both models in single precision, on the CPU; one line for whatever is wrong with the folder."""
    place = check_speech_folder(folder)
    tokenizer, generator = open_tokenizer(place / PARTS[0]), open_generator(generator_folder(place))
    check_pair(str(place), tokenizer, generator)
    return SpeechModels(tokenizer.float(), generator.float())


def check_speech_folder(folder: str | Path) -> Path:
    """The folder, if both parts lie in it; no weights are read."""
    place = as_path("folder", folder, "a folder that save_speech_folder wrote").expanduser()
    if not place.is_dir():
        raise UserError(f"{place}: no such folder; {EXPECTED}")
    for name, part in zip(PARTS, (place / PARTS[0], generator_folder(place)), strict=True):
        if not (part / "config.json").is_file():
            raise UserError(f"{place}: has no {name}/config.json; {EXPECTED}")
    return place


def generator_folder(place: Path) -> Path:
    """Where the generator of a folder lies: in `generator`, or as a checkpoint in the folder itself."""
    inner = place / PARTS[1]
    return inner if inner.is_dir() else place


def check_pair(where: str, tokenizer: AudioTokenizerModel, generator: AudioGeneratorModel) -> None:
    """Refuse a generator that was not made for the latents of this tokenizer."""
    sizes = tokenizer.config.latent_size, generator.config.latent_size
    if sizes[0] != sizes[1]:
        raise UserError(
            f"{where}: the tokenizer's latents have {sizes[0]} channels, the generator makes {sizes[1]}; "
            "expected as many. Train the generator on latents of this tokenizer"
        )
    scaled = tokenizer.config.is_normalised, generator.config.is_normalised
    if scaled[0] != scaled[1]:
        raise UserError(
            f"{where}: is_normalised is {scaled[0]} for the tokenizer's latents and {scaled[1]} for the "
            "generator's; expected the same. Train the generator on latents of this tokenizer"
        )
    learned = generator.config.tokenizer_fingerprint
    if learned and learned != (own := tokenizer.fingerprint()):
        raise UserError(
            f"{where}: the generator learned latents of another tokenizer ({learned}, this is {own}); "
            "expected its own. Name that one, or train a generator on this one: model.path=new"
        )
    if not generator.config.alphabet:
        raise UserError(
            f"{where}: the generator has no alphabet; expected its characters by id. Make it with "
            "new_generator(alphabet=...)"
        )
