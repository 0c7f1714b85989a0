"""Sounds and an audio tokenizer's folder: latents to a file, sounds from them, and what can be read from them.

Long files are read and encoded in blocks where the tokenizer is causal, with the same latents as in one
piece.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from burnish.api.needs import require_torch
from burnish.errors import UserError, first_line
from burnish.media import read_sound, sound_info, sound_writer, stream_sound
from burnish.store.durable import store_errors, whole_file
from burnish.store.manifest import is_ours, newest_weights
from burnish.texts import shown_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from burnish.bench.statistics import Estimate
    from burnish.models.audio_tokenizer import AudioTokenizerModel

KINDS = (".npz", ".safetensors")
BLOCK_S = 10.0
"""Seconds that are encoded at one time."""
FRAMES = 250
"""Latents that are decoded at one time."""
Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and of how much."""


def _tell_nobody(what: str, done: int, total: int) -> None:
    pass


class About(msgspec.Struct, frozen=True):
    """What a file says beside its latents; numbers may be texts, as safetensors keeps them."""

    sr: Annotated[int, Meta(ge=1, le=10_000_000)]
    frame_rate: Annotated[float, Meta(gt=0.0)]
    bottleneck: str
    samples: Annotated[int, Meta(ge=1, le=1 << 50)]
    """Of the sound at `sr`; the last latent may reach beyond it."""
    tokenizer: str = ""
    """Fingerprint of the one that made them; empty: not known."""


class Latents(NamedTuple):
    """Latents of one sound as a file keeps them."""

    z: NDArray[np.float16]
    """(T, D)."""
    about: About


def read_latents(source: str | Path) -> Latents:
    """Read and check a file that `burnish audio encode` wrote."""
    import numpy as np

    file = _target(source, KINDS)
    try:
        if file.suffix.lower() == ".npz":
            with zipfile.ZipFile(file), np.load(file, allow_pickle=False) as content:
                z, given = np.asarray(content["z"]), {k: content[k].tolist() for k in content}
        else:
            from safetensors import safe_open

            with safe_open(str(file), framework="np") as content:
                z, given = content.get_tensor("z"), content.metadata() or {}
        return Latents(z.astype(np.float16), msgspec.convert(given, About, strict=False))
    except Exception as error:  # boundary: numpy, zip and safetensors meet whatever the file holds
        raise UserError(
            f"{file}: is no file of latents ({first_line(error)}); expected what burnish audio encode "
            "writes"
        ) from None


def write_latents(target: Path, found: Latents) -> None:
    """Write a file whole or not at all."""
    import numpy as np

    about = msgspec.structs.asdict(found.about)
    with store_errors(f"write {target}", target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as draft:
        if target.suffix.lower() == ".npz":
            with draft.open("wb") as file:
                np.savez(file, z=found.z, **about)
        else:
            from safetensors.numpy import save_file

            save_file({"z": found.z}, draft, {key: str(value) for key, value in about.items()})


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
    return open_tokenizer(newest_weights(folder) if is_ours(folder) else folder)


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
        About(
            config.sampling_rate,
            config.frame_rate,
            config.bottleneck,
            samples,
            opened.fingerprint(),
        ),
    )
    if not np.isfinite(found.z).all():
        raise UserError(
            f"{source}: its latents hold NaN, or a number that float16 has not; expected numbers below "
            "65504. Is the tokenizer trained, and the sound within full scale?"
        )
    write_latents(target, found)
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

    target = _target(out, (".wav", ".flac", ".ogg"))
    opened = open_audio_model(model) if isinstance(model, str) else model
    (z, about), own = read_latents(source), opened.fingerprint()
    config = opened.config
    rates = (config.sampling_rate, config.frame_rate, config.bottleneck)
    if (about.sr, about.frame_rate, about.bottleneck) != rates or about.tokenizer not in ("", own):
        raise UserError(
            f"{source}: was encoded by another tokenizer ({about}, this is {own} {rates}); decode it "
            "with the one that encoded it, or encode the sound again"
        )
    cut, left = 0, about.samples
    with sound_writer(target, about.sr) as write:
        for block in _decoded(opened, z, renormalise):
            samples = block[:left]
            left -= len(samples)
            if not len(samples):
                continue
            if not np.isfinite(samples).all():
                raise UserError(
                    f"{source}: these latents give NaN or infinity. Encode the sound again, or use "
                    "--renormalise for what a generator made"
                )
            cut += int((np.abs(samples) > 1).sum())
            write(samples)
            tell("decoding", about.samples - left, about.samples)
    return cut


def _decoded(
    model: AudioTokenizerModel, z: NDArray[Any], renormalise: bool
) -> Iterator[NDArray[Any]]:
    """Samples (n,) of latents (T, D), in blocks where the tokenizer is causal."""
    import numpy as np
    import torch

    from burnish.models.audio_tokenizer import StreamingDecoder

    if not model.config.causal:
        with torch.no_grad():
            latents = torch.from_numpy(z.astype(np.float32))
            yield model.decode(latents, renormalise=renormalise)[0].float().numpy()
        return
    decoder = StreamingDecoder(model, renormalise=renormalise)
    for start in range(0, len(z), FRAMES):
        latents = torch.from_numpy(z[start : start + FRAMES].astype(np.float32))
        yield decoder.push(latents)[0].float().numpy()
    yield decoder.finish()[0].float().numpy()


def _target(out: str | Path, kinds: tuple[str, ...]) -> Path:
    target = Path(out).expanduser()
    if target.suffix.lower() not in kinds:
        raise UserError(f"{target}: expected a file that ends in {' or '.join(kinds)}")
    return target


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
    import torch

    from burnish.bench.statistics import mean_estimate
    from burnish.models.audio_tokenizer.representation import linear_probe

    opened = open_audio_model(model) if isinstance(model, str) else model
    tables = [_labelled(file, column, label, opened.config.sampling_rate) for file in (train, test)]
    known = set(tables[0][1])
    if len(known) < 2 or not known & set(tables[1][1]):
        raise UserError(
            f"--label {label}: {shown_path(Path(train))} has {len(known)} of its values, and "
            f"{len(known & set(tables[1][1]))} of them are in {shown_path(Path(test))}; expected at "
            "least two to tell apart, and some of them in both files"
        )
    networks = _networks(opened, encoder, seed)
    rows: list[ProbeRow] = []
    majority = 0.0
    for place, (name, network) in enumerate(networks.items()):
        tell("probing", place, len(networks))
        with torch.no_grad():
            sides = [
                torch.stack([network(torch.from_numpy(x)[None])[0].mean(0) for x in sounds])
                for sounds, _ in tables
            ]
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

    def sizes(network: Any) -> dict[str, Any]:
        names = type(network.config).__annotations__.keys() - {"model_type"}
        return {key: one for key, one in network.config.to_dict().items() if key in names}

    def latents(network: AudioTokenizerModel) -> Callable[[Any], Any]:
        return lambda wave: network.encode(wave).latents

    fresh = new_tokenizer(seed=seed, **sizes(model)).eval()
    found = {"latents": latents(model), "untrained tokenizer": latents(fresh)}
    if not encoder:
        return found
    from burnish.models.audio_tokenizer.representation import (
        new_representation,
        open_representation,
    )

    trained = open_representation(encoder)
    untrained = new_representation(seed=seed, **sizes(trained)).eval()
    found["encoder"] = lambda wave: trained(model.encode(wave).latents)
    found["untrained encoder"] = lambda wave: untrained(model.encode(wave).latents)
    return found


def _labelled(
    source: str | Path, column: str, label: str, rate: int
) -> tuple[list[NDArray[Any]], list[str]]:
    import pyarrow.parquet as pq

    from burnish.tasks.sounds import SoundCorpus

    file = _target(source, (".parquet",))
    corpus = SoundCorpus((str(file),), rate, column)
    corpus.check()
    names = pq.read_schema(file).names
    if label not in names:
        raise UserError(f"{shown_path(file)}: no column '{label}'; it has {', '.join(names)}")
    labels = []
    for place, value in enumerate(pq.read_table(file, columns=[label]).column(0).to_pylist()):
        if value is None or value != value:
            raise UserError(f"{shown_path(file)}: row {place + 1} has no label; leave it out")
        # One table may hold as floats what another holds as integers.
        labels.append(str(int(value) if isinstance(value, float) and value.is_integer() else value))
    return [clip.samples for clip in corpus.clips()], labels
