"""Sounds and an audio tokenizer's folder: latents to a file, sounds from them, and what can be read from them.

    encode_file("runs/codec-1a2b", "talk.flac", "talk.npz")     # z (T, D) float16, sr, frame_rate, bottleneck
    decode_file("runs/codec-1a2b", "talk.npz", "again.wav")
    probe_labels("runs/codec-1a2b", "train.parquet", "test.parquet", "speaker")

Long files are read and encoded in blocks where the tokenizer is causal, with the same latents as in one
piece.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.api.needs import require_torch
from burnish.errors import UserError
from burnish.media import read_sound, sound_info, stream_sound, write_sound
from burnish.store.manifest import is_ours, newest_weights
from burnish.texts import shown_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from burnish.bench.statistics import Estimate
    from burnish.models.audio_tokenizer import AudioTokenizerModel

BLOCK_S = 10.0
"""Seconds that are encoded at one time."""
FRAMES = 250
"""Latents that are decoded at one time."""
KINDS = (".npz", ".safetensors")
Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and of how much."""


def _tell_nobody(what: str, done: int, total: int) -> None:
    pass


def open_audio_model(path: str) -> AudioTokenizerModel:
    """The tokenizer of a folder, or the newest checkpoint of a run."""
    require_torch("audio tokenizers")
    from burnish.models import has_transformers

    if not has_transformers():
        raise UserError(
            "audio tokenizers need transformers 5. Run: pip install --upgrade transformers"
        )
    from burnish.models.audio_tokenizer import open_tokenizer

    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"model '{path}': no such folder; expected that of an audio tokenizer, or of a run of "
            "burnish train codec"
        )
    return open_tokenizer(newest_weights(folder) if is_ours(folder) else folder)


class Latents(NamedTuple):
    """Latents of one sound as a file keeps them."""

    z: NDArray[np.float16]
    """(T, D)."""
    sr: int
    frame_rate: float
    bottleneck: str
    samples: int
    """Of the sound at `sr`; the last latent may reach beyond it."""

    @property
    def seconds(self) -> float:
        return self.samples / self.sr


def encode_file(
    model: str | AudioTokenizerModel,
    source: str | Path,
    out: str | Path,
    tell: Progress = _tell_nobody,
) -> Latents:
    """Write the latents of a sound file as `.npz` or `.safetensors`; mono, at the tokenizer's rate."""
    import numpy as np

    target = _target(out, KINDS)
    opened = open_audio_model(model) if isinstance(model, str) else model
    config = opened.config
    total = round(sound_info(source).seconds)
    parts: list[NDArray[Any]] = []
    samples = 0
    for block, latents in _encoded(opened, source):
        samples += block
        parts.append(latents)
        tell("encoding", min(samples // config.sampling_rate, total), total)
    found = Latents(
        # In this order in memory, too: safetensors writes what lies there.
        np.ascontiguousarray(np.concatenate(parts), dtype=np.float16),
        config.sampling_rate,
        config.frame_rate,
        config.bottleneck,
        samples,
    )
    if not np.isfinite(found.z).all():
        raise UserError(f"{source}: a latent does not fit float16; expected numbers below 65504")
    _write_latents(target, found)
    return found


def _encoded(model: AudioTokenizerModel, source: str | Path) -> Iterator[tuple[int, NDArray[Any]]]:
    """How many samples were read, and the latents (t, D) that they complete."""
    import torch

    from burnish.models.audio_tokenizer import StreamingEncoder

    rate = model.config.sampling_rate
    with torch.no_grad():
        if not model.config.causal:
            samples = read_sound(source, rate=rate).samples
            latents = model.encode(torch.from_numpy(samples)).latents
            assert latents is not None
            yield len(samples), latents[0].float().numpy()
            return
        encoder = StreamingEncoder(model)
        for block in stream_sound(source, BLOCK_S, rate=rate):
            yield len(block), encoder.push(torch.from_numpy(block))[0].float().numpy()
        yield 0, encoder.finish()[0].float().numpy()


def decode_file(
    model: str | AudioTokenizerModel,
    source: str | Path,
    out: str | Path,
    *,
    renormalise: bool = False,
    tell: Progress = _tell_nobody,
) -> int:
    """Write the sound of a file of latents; how many samples were beyond full scale and cut."""
    import numpy as np
    import torch

    from burnish.models.audio_tokenizer import StreamingDecoder

    target = _target(out, (".wav", ".flac", ".ogg"))
    opened = open_audio_model(model) if isinstance(model, str) else model
    found = read_latents(source)
    config = opened.config
    if found.z.shape[1] != config.latent_size or found.sr != config.sampling_rate:
        raise UserError(
            f"{source}: has {found.z.shape[1]} channels at {found.sr} Hz, and the tokenizer "
            f"{config.latent_size} at {config.sampling_rate} Hz; expected latents of this tokenizer"
        )
    latents = torch.from_numpy(found.z.astype(np.float32))
    if config.causal:
        decoder, parts = StreamingDecoder(opened, renormalise=renormalise), []
        for start in range(0, len(latents), FRAMES):
            parts.append(decoder.push(latents[start : start + FRAMES])[0])
            tell("decoding", start, len(latents))
        wave = torch.cat((*parts, decoder.finish()[0]))
    else:
        with torch.no_grad():
            wave = opened.decode(latents, renormalise=renormalise)[0]
    samples = wave[: found.samples].float().numpy()
    cut = int((np.abs(samples) > 1).sum())
    write_sound(target, np.clip(samples, -1, 1), found.sr)
    return cut


def read_latents(source: str | Path) -> Latents:
    """Read and check a file that `encode_file` wrote."""
    import numpy as np

    file = Path(source).expanduser()
    if file.suffix.lower() not in KINDS:
        raise UserError(f"{file}: expected a file of latents that ends in {' or '.join(KINDS)}")
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    try:
        found = _npz(file) if file.suffix.lower() == ".npz" else _safetensors(file)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{file}: is no file of latents ({first_line}); expected what burnish audio encode writes"
        ) from None
    if found.z.ndim != 2 or not found.z.size or not np.isfinite(found.z.astype(np.float32)).all():
        raise UserError(
            f"{file}: z has shape {found.z.shape}; expected finite latents (T, D), at least one"
        )
    if not found.samples > 0 or found.sr <= 0:
        raise UserError(f"{file}: says {found.samples} samples at {found.sr} Hz; expected above 0")
    return found


def _npz(file: Path) -> Latents:
    import numpy as np

    with np.load(file, allow_pickle=False) as content:
        z = np.asarray(content["z"])
        numbers = (int(content["sr"]), float(content["frame_rate"]))
        return Latents(z, *numbers, str(content["bottleneck"]), int(content["samples"]))


def _safetensors(file: Path) -> Latents:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="np") as content:
            about, z = content.metadata() or {}, content.get_tensor("z")
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    numbers = (int(about["sr"]), float(about["frame_rate"]))
    return Latents(z, *numbers, about["bottleneck"], int(about["samples"]))


def _write_latents(target: Path, found: Latents) -> None:
    import numpy as np

    about = {key: value for key, value in found._asdict().items() if key != "z"}
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix.lower() == ".npz":
            with part.open("wb") as file:
                np.savez(file, z=found.z, **about)
        else:
            from safetensors.numpy import save_file

            save_file({"z": found.z}, part, {key: str(value) for key, value in about.items()})
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from error


def _target(out: str | Path, kinds: tuple[str, ...]) -> Path:
    target = Path(out).expanduser()
    if target.suffix.lower() not in kinds:
        raise UserError(f"{target}: expected a file that ends in {', '.join(kinds)}")
    return target


# --- probes


class ProbeRow(NamedTuple):
    """What a linear map reads from one kind of features."""

    features: str
    accuracy: Estimate
    train_accuracy: float


class ProbeReport(NamedTuple):
    """Probes of one label."""

    label: str
    majority: float
    """What the most frequent label reaches."""
    train: int
    test: int
    rows: list[ProbeRow]


def probe_labels(
    model: str | AudioTokenizerModel,
    train: str | Path,
    test: str | Path,
    label: str,
    *,
    column: str = "",
    encoder: str = "",
    seed: int = 0,
    tell: Progress = _tell_nobody,
) -> ProbeReport:
    """Linear probes of a label on latents pooled over time, each beside an untrained network's.

    `encoder` is the folder of a representation encoder, whose features are probed too.
    """
    from burnish.bench.statistics import mean_estimate
    from burnish.models.linear_probe import linear_probe

    opened = open_audio_model(model) if isinstance(model, str) else model
    tables = [_labelled(file, column, label, opened.config.sampling_rate) for file in (train, test)]
    networks = _networks(opened, encoder, seed)
    rows: list[ProbeRow] = []
    majority = 0.0
    for place, (name, network) in enumerate(networks.items()):
        tell("probing", place, len(networks))
        sides = [_pooled(network, sounds) for sounds, _ in tables]
        found = linear_probe(sides[0], tables[0][1], sides[1], tables[1][1])
        majority = found.majority
        marks = [float(hit) for hit in found.hits]
        rows.append(ProbeRow(name, mean_estimate(marks), found.train_accuracy))
    return ProbeReport(label, majority, len(tables[0][1]), len(tables[1][1]), rows)


def _networks(
    model: AudioTokenizerModel, encoder: str, seed: int
) -> dict[str, Callable[[Any], Any]]:
    """Samples (1, n) to features (T, F), of the trained networks and of untrained ones of their sizes."""
    from burnish.models.audio_tokenizer import new_tokenizer

    sizes = model.config.to_dict()
    kept = {key: sizes[key] for key in type(model.config).__annotations__ if key in sizes}
    fresh = new_tokenizer(seed=seed, **{k: v for k, v in kept.items() if k != "model_type"}).eval()

    def latents(network: AudioTokenizerModel) -> Callable[[Any], Any]:
        return lambda wave: network.encode(wave).latents

    found = {"latents": latents(model), "untrained tokenizer": latents(fresh)}
    if not encoder:
        return found
    from burnish.models.audio_tokenizer.representation import (
        AudioRepresentationConfig,
        new_representation,
        open_representation,
    )

    trained = open_representation(encoder)
    if trained.config.latent_size != model.config.latent_size:
        raise UserError(
            f"{encoder}: reads {trained.config.latent_size} channels, and the tokenizer has "
            f"{model.config.latent_size}; expected an encoder for this tokenizer"
        )
    about = trained.config.to_dict()
    names = AudioRepresentationConfig.__annotations__
    own = {key: about[key] for key in names if key in about and key != "model_type"}
    untrained = new_representation(seed=seed, **own).eval()
    found["encoder"] = lambda wave: trained(model.encode(wave).latents)
    found["untrained encoder"] = lambda wave: untrained(model.encode(wave).latents)
    return found


def _pooled(network: Callable[[Any], Any], sounds: list[NDArray[Any]]) -> Any:
    import torch

    with torch.no_grad():
        return torch.stack([network(torch.from_numpy(one)[None])[0].mean(0) for one in sounds])


def _labelled(
    source: str | Path, column: str, label: str, rate: int
) -> tuple[list[NDArray[Any]], list[str]]:
    """Sounds and labels of a Parquet file."""
    import pyarrow.parquet as pq

    from burnish.tasks.sounds import SoundCorpus

    file = Path(source).expanduser()
    if file.suffix.lower() != ".parquet":
        raise UserError(f"{file}: expected a Parquet file with sounds and a column '{label}'")
    corpus = SoundCorpus((str(file),), rate, column)
    corpus.check()
    names = pq.read_schema(file).names
    if label not in names:
        raise UserError(f"{shown_path(file)}: no column '{label}'; it has {', '.join(names)}")
    labels = [str(value) for value in pq.read_table(file, columns=[label]).column(0).to_pylist()]
    return [clip.samples for clip in corpus.clips()], labels
