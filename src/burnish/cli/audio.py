"""`burnish audio`: latents of sounds and back, what can be read from them, and how good a copy is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument, Option

from burnish.arguments import as_word
from burnish.cli.console import Reporter, emit_json, interval, number, say
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import AsJson, Seed
from burnish.texts import shown_path

Model = Annotated[
    str,
    Argument(
        metavar="MODEL", help="Folder of an audio tokenizer, or of a run of burnish train codec."
    ),
]


def encode(
    model: Model,
    file: Annotated[Path, Argument(metavar="FILE", help="A wav, flac, ogg or mp3 file.")],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FILE", help="An .npz or .safetensors file.")
    ],
    as_json: AsJson = False,
) -> int:
    """Write the latents of a sound: z (T, D) in float16, with rate and bottleneck.

    Long files are read in blocks; channels are averaged, and the sound is resampled to the
    tokenizer's rate.

    \b
      burnish audio encode runs/codec-1a2b talk.flac -o talk.npz
    """
    from burnish.api.audio import encode_file

    with Reporter() as tell:
        found = encode_file(model, file, output, tell)
    frames, size = found.z.shape
    if as_json:
        told = {"file": str(output), "frames": frames, "channels": size}
        emit_json(told | msgspec.structs.asdict(found.about))
        return 0
    about = found.about
    say(
        f"{shown_path(output)}: {frames:,} latents of {size} for {about.samples / about.sr:,.2f} s, "
        f"{about.frame_rate * size:,.0f} floats a second, {about.bottleneck}"
    )
    return 0


def decode(
    model: Model,
    file: Annotated[Path, Argument(metavar="LATENTS", help="What encode wrote.")],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FILE", help="A wav, flac or ogg file.")
    ],
    renormalise: Annotated[
        bool, Option("--renormalise", help="Normalise each latent first: for those of a generator.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Write the sound of latents.

    \b
      burnish audio decode runs/codec-1a2b talk.npz -o again.wav
    """
    from burnish.api.audio import decode_file

    with Reporter() as tell:
        cut = decode_file(model, file, output, renormalise=renormalise, tell=tell)
    if as_json:
        emit_json({"file": str(output), "clipped": cut})
        return 0
    note = f"; {cut:,} samples were beyond full scale and cut" if cut else ""
    say(f"{shown_path(output)}{note}")
    return 0


def probe(
    model: Model,
    train: Annotated[Path, Argument(metavar="TRAIN", help="Parquet with sounds and labels.")],
    test: Annotated[Path, Argument(metavar="TEST", help="The same, to test on.")],
    label: Annotated[str, Option(metavar="COLUMN", help="What is probed.")],
    column: Annotated[str, Option(metavar="COLUMN", help="Column of the sounds.")] = "",
    encoder: Annotated[str, Option(metavar="FOLDER", help="A representation encoder, too.")] = "",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """What a linear map reads from latents: accuracy for a label, beside untrained networks.

    Features are means over time. An untrained network of the same size is the
    control: what it reaches, no training has put there.

    \b
      burnish audio probe runs/codec-1a2b train.parquet test.parquet --label speaker
    """
    from burnish.api.audio import probe_labels

    with Reporter() as tell:
        found = probe_labels(
            model, train, test, label, column=column, encoder=encoder, seed=seed, tell=tell
        )
    if as_json:
        rows = [{**row._asdict(), "accuracy": list(row.accuracy)} for row in found.rows]
        emit_json({**found._asdict(), "rows": rows})
        return 0
    say(f"{label}: {found.train} sounds to learn from, {found.test} to test", style="bold")
    cells = [(x.features, interval(x.accuracy), number(x.train_accuracy)) for x in found.rows]
    cells.append(("most frequent label", number(found.majority), ""))
    print_rows(("features", "accuracy, 95 %", "on training sounds"), cells)
    return 0


def metrics(
    made: Annotated[Path, Argument(metavar="MADE", help="The copy.")],
    original: Annotated[Path, Argument(metavar="ORIGINAL", help="What it is a copy of.")],
    text: Annotated[
        str, Option(metavar="TEXT", help="What is said; else as Whisper hears it.")
    ] = "",
    only: Annotated[str, Option(metavar="NAME,...", help="Some of the figures.")] = "",
    as_json: AsJson = False,
) -> int:
    """How good a copy of a sound is: LSD, SI-SDR, MCD, PESQ, STOI, words, voice.

    What cannot be measured says why. Of different lengths, what both have is compared;
    with --json, seconds has the length of each and compared that of both.

    \b
      burnish audio metrics again.wav talk.flac
    """
    from burnish.api.needs import require_torch

    require_torch("figures of sounds")
    from burnish.bench.sound_quality import FIGURES, measure_sound
    from burnish.media import read_sound, sound_info

    named = [as_word("--only", one.strip(), FIGURES) for one in only.split(",") if one.strip()]
    chosen = named or list(FIGURES)
    rate = sound_info(original).rate
    ours, theirs = (read_sound(file, rate=rate).samples for file in (made, original))
    count = min(len(ours), len(theirs))
    found = measure_sound(ours[:count], theirs[:count], rate, text=text, figures=chosen)
    if as_json:
        seconds = {"made": len(ours) / rate, "original": len(theirs) / rate}
        figures = {name: figure._asdict() for name, figure in found.items()}
        emit_json({**figures, "seconds": seconds, "compared": count / rate})
        return 0
    if abs(len(ours) - len(theirs)) > 0.01 * rate:
        say(
            f"of the first {count / rate:,.2f} s: {shown_path(made)} has {len(ours) / rate:,.2f} s and "
            f"{shown_path(original)} {len(theirs) / rate:,.2f} s"
        )
    for name, figure in found.items():
        value = figure.status if figure.value is None else number(figure.value)
        say(f"{name:7} {value}")
    return 0
