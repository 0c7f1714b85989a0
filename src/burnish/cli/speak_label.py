"""`burnish speak-label`: describe recordings instead of filtering them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from typer import Argument, Option

from burnish.cli.console import emit_json, one_line, say, warn
from burnish.cli.reporter import Reporter
from burnish.cli.shared_options import AsJson
from burnish.errors import UserError
from burnish.texts import counted, shown_path

_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class _Row(msgspec.Struct):
    """What the summary reads of a row; the others stay as they are."""

    file: str
    seconds: _Seconds
    speech_s: _Seconds
    speakers: Annotated[int, msgspec.Meta(ge=0)]
    overlap: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    snr_db: Annotated[float, msgspec.Meta(ge=-1000.0, le=1000.0)] | None
    words: bool = False


def speak_label(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A folder of sounds, or one sound.")],
    out: Annotated[
        Path | None, Option("-o", "--out", metavar="FILE", help="JSON lines, one a recording.")
    ] = None,
    words: Annotated[
        bool, Option("--words", help="Also write down what is said (Whisper).")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Say of every recording who speaks when, how, and over what; nothing is thrown away.

    Only recordings in which nobody speaks have no script. The last line compares that with what a
    usual filter would keep: one speaker, 20 dB, at most 5 % overlap. Files that are done are not
    labelled again, but for --words where they have none.

    \b
      burnish speak-label recordings/ -o labels.jsonl
      burnish speak-label talk.wav --words --json
    """
    try:
        from burnish.models.long_speech import label_retention
        from burnish.speech.label import label_file, sound_files
    except ImportError as error:
        raise UserError(
            f"burnish speak-label needs {error.name}: pip install 'burnish[torch]'"
        ) from error
    files = sound_files(folder)
    done = _labelled(out) if out is not None else {}
    rows = []
    with Reporter() as report:
        for place, file in enumerate(files):
            report("labelling", place, len(files))
            row = done.get(str(file))
            if row is None or (words and not row.get("words")):
                try:
                    label = label_file(file, words=words)
                except UserError as error:
                    warn(str(error))
                    continue
                found = label._asdict()
                found["turns"] = [turn._asdict() for turn in label.turns]
                row = msgspec.to_builtins({"file": str(file), "words": words, **found})
                if out is not None:
                    _append(out, row)
            rows.append(row)
    if not rows:
        raise UserError(f"{folder}: no sound could be read")
    if as_json:
        for row in rows:
            emit_json(row)
        return 0
    clips: list[Any] = [
        {"snr": r["snr_db"], "overlap": r["overlap"], "speakers": r["speakers"]} for r in rows
    ]
    for row in rows:
        _show(row)
    kept = label_retention(clips)
    total = max(1, len(rows))
    say(
        f"kept      {len(kept.label_kept)} of {len(rows)} labelled ({len(kept.label_kept) / total:.0%}); "
        f"a filter (1 speaker, 20 dB, 5 % overlap) would keep {len(kept.filter_kept)} "
        f"({len(kept.filter_kept) / total:.0%})"
    )
    return 0


def _show(row: dict[str, Any]) -> None:
    snr = "SNR unknown" if row["snr_db"] is None else f"SNR {row['snr_db']:.0f} dB"
    what = (
        f"{counted(row['speakers'], 'speaker')}, {row['speech_s']:.1f} of {row['seconds']:.1f} s speech, "
        f"{row['overlap']:.0%} overlap, {snr}"
    )
    say(f"{shown_path(Path(row['file']))}: {what if row['speakers'] else 'nobody speaks'}")
    if row.get("words") and row["scene"]:
        for sentence in row["scene"]["sentences"]:
            say(f"  {sentence['speaker']}: {one_line(sentence.get('text', ''))}")


def _labelled(out: Path) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run, the last one of each file; a last line that was cut off is dropped."""
    from burnish.models.long_speech.scene import decoded
    from burnish.store.durable import write_file

    rows: dict[str, dict[str, Any]] = {}
    try:
        lines = out.read_bytes().splitlines() if out.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                row = decoded(line)
            except ValueError as error:
                if number == len(lines) and line.startswith(b'{"file":'):
                    break
                raise _no_label(out, number, error) from None
            try:
                rows[msgspec.convert(row, _Row).file] = row
            except msgspec.ValidationError as error:
                raise _no_label(out, number, error) from None
        whole = b"".join(msgspec.json.encode(row) + b"\n" for row in rows.values())
        if lines and whole != out.read_bytes():
            write_file(out, whole)
    except OSError as error:
        raise UserError(f"{out} cannot be used: {error.strerror or error}") from None
    return rows


def _no_label(out: Path, number: int, error: Exception) -> UserError:
    return UserError(
        f"{out}: line {number} is no label of a recording ({error}); name another file with -o"
    )


def _append(out: Path, row: dict[str, Any]) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from None
