"""`burnish speak`: a script or any text becomes a sound file with several voices."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from typer import Argument, Option

from burnish.api.needs import needed
from burnish.arguments import as_word
from burnish.cli.console import Reporter, complain, emit_json, one_line, say, warn
from burnish.cli.shared_options import AsJson
from burnish.errors import UserError
from burnish.texts import counted, duration, shown_path

if TYPE_CHECKING:
    from burnish.speech.planner import Script
    from burnish.speech.render import Rendering

ScriptFile = Annotated[
    Path,
    Argument(
        metavar="SCRIPT", help="A scene (.toml, .json), or any text: a play, a dialogue, prose."
    ),
]
OutFile = Annotated[
    Path | None, Option("-o", "--out", metavar="FILE", help="A .wav, .flac or .ogg file.")
]
Engine = Annotated[
    str,
    Option(
        metavar="NAME|FOLDER",
        help="espeak, hibari, piper, tone (no voice), mixed (neural voices where they fit, else "
        "espeak-ng), or a folder with a generator of speech and its audio tokenizer.",
    ),
]
PlannerName = Annotated[
    str, Option(metavar="MODEL", help="A language model that plans, instead of the rules.")
]
Instruction = Annotated[str, Option(metavar="TEXT", help="What the planning model is told.")]
Timeline = Annotated[Path | None, Option(metavar="FILE", help="A picture of it: .svg or .png.")]
ScriptOut = Annotated[
    Path | None, Option(metavar="FILE", help="The whole script with its plan: .json, or .txt.")
]
Alignment = Annotated[Path | None, Option(metavar="FILE", help="JSON: when each word is heard.")]
Report = Annotated[
    bool, Option("--report", help="Measure what came out beside what was asked for.")
]
Chunk = Annotated[float, Option(min=0.1, metavar="SECONDS", help="Written at a time.")]
Lively = Annotated[bool, Option("--lively", help="Let people overlap as in real meetings.")]
Seed = Annotated[int, Option(min=0, help="The same seed, the same file.")]


def speak(
    script: ScriptFile,
    out: OutFile = None,
    engine: Engine = "espeak",
    seed: Seed = 0,
    lively: Lively = False,
    planner: PlannerName = "",
    instruction: Instruction = "",
    timeline: Timeline = None,
    script_out: ScriptOut = None,
    alignment: Alignment = None,
    report: Report = False,
    chunk: Chunk = 10.0,
    as_json: AsJson = False,
) -> int:
    """Speak a script or any text with several voices, overlaps, a room and a background.

    A scene says who speaks, how, and when: after a gap, over somebody's end, cutting in, or as a
    back-channel. What an engine cannot do is said once. Stopped, the same command continues.

    In a text, `Ann: Hello.` names a speaker. Stage directions are not spoken: (quietly) is the tone of
    what follows. A paragraph without a name is read by a narrator, unless the name before it stands on a
    line of its own.

    \b
      burnish speak play.txt -o play.wav --lively --timeline play.svg
      burnish speak scene.toml -o scene.wav --engine mixed
      burnish speak scene.toml -o scene.wav --engine runs/speech   # voices of your own
      burnish speak play.txt --script-out play.json        # the plan alone, to edit
    """
    if out is None and (script_out is None or timeline or alignment or report):
        raise UserError("nothing to write: name a sound with -o FILE, or a plan with --script-out")
    if timeline is not None:  # refused before minutes of rendering
        as_word("--timeline", timeline.suffix.lower(), (".svg",))
    with needed("voices", "torch"):
        from burnish.speech.cast import engine_folder
        from burnish.speech.planner import plan_scene, read_script, write_script

        engine_folder(engine)  # refused before a model plans for minutes
    given = read_script(script)
    if given.directions:
        count, first = len(given.directions), given.directions[0]
        warn(f"{count} stage direction{'s'[: count > 1]} not spoken, the first: {first[:60]}")
    scene, planned_by = given.scene, "nobody"
    if planner:
        scene, planned_by = _plan_by_model(scene, planner, instruction, seed)
    elif lively or given.is_draft:
        scene, planned_by = plan_scene(scene, seed=seed, lively=lively), "rules"
    if planner and lively:
        scene = plan_scene(scene, seed=seed, lively=True)
    given = given._replace(scene=scene)
    # Only its own plan may take a script's place.
    inputs = [*given.sounds.values(), *([given.background] if given.background else [])]
    read = {one.resolve() for one in inputs}
    written = {one.resolve() for one in (out, timeline, alignment, script_out) if one is not None}
    own = {script.resolve()} - ({script_out.resolve()} if script_out is not None else set())
    if over := written & (read | own):
        raise UserError(f"{over.pop()} is read by the script; write another file")
    if script_out is not None:
        _write(script_out, write_script(given, script_out))
    if out is None:
        _tell_script(script_out, scene, planned_by, as_json)
        return 0
    started = time.perf_counter()
    try:
        done = _render(given, out, engine, seed, chunk)
    except KeyboardInterrupt:
        complain("stopped; the lines that are spoken are kept, and the same command goes on")
        return 130
    seconds = time.perf_counter() - started
    if timeline is not None:
        from burnish.speech.render import write_timeline

        write_timeline(timeline, scene, done.timeline)
    if alignment is not None:
        _write(alignment, json.dumps(done.alignment, indent=1, ensure_ascii=False) + "\n")
    _tell(done, planned_by, seconds, report, as_json)
    return 0


def _tell_script(script_out: Path | None, scene: Any, planned_by: str, as_json: bool) -> None:
    if as_json:
        emit_json({
            "script": str(script_out), "sentences": len(scene.sentences),
            "speakers": len(scene.overall.speakers), "planned_by": planned_by,
        })  # fmt: skip
    elif script_out is not None:
        say(f"script    {shown_path(script_out)}: {_size(scene)}, planned by {planned_by}")


def _plan_by_model(scene: Any, model: str, instruction: str, seed: int) -> tuple[Any, str]:
    from functools import partial

    import anyio

    from burnish.api.models import open_model
    from burnish.speech.plan_text import plan_with_lm

    ask = partial(plan_with_lm, scene, open_model(model), instruction=instruction, seed=seed)
    planned = anyio.run(ask)
    if planned.by == "rules":
        warn(f"{model} wrote no plan that can be read, twice; the rules planned instead: {planned.problems[-1]}")  # fmt: skip
        return planned.scene, "rules"
    return planned.scene, model


def _size(scene: Any) -> str:
    return f"{counted(len(scene.sentences), 'sentence')} by {counted(len(scene.overall.speakers), 'speaker')}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _render(given: Script, out: Path, engine: str, seed: int, chunk: float) -> Rendering:
    from burnish.speech.cast import SAMPLE_RATE
    from burnish.speech.render import load_sounds, render_scene

    sounds = load_sounds(given.sounds, SAMPLE_RATE)
    background = None
    if given.background is not None:
        background = load_sounds({"background": given.background}, SAMPLE_RATE)["background"]
    with Reporter() as report:
        return render_scene(
            given.scene,
            out,
            engine=engine,
            seed=seed,
            chunk_s=chunk,
            sounds=sounds,
            background=background,
            progress=report,
        )


def _tell(done: Rendering, planned_by: str, seconds: float, report: bool, as_json: bool) -> None:
    from burnish.models.long_speech import overlap_statistics
    from burnish.speech.following import follow_report

    measured = follow_report(done.mix)._asdict() if report else None
    overlap = overlap_statistics(done.timeline).ratio
    if as_json:
        emit_json({
            "file": str(done.path), "seconds": done.seconds, "render_seconds": seconds,
            "planned_by": planned_by, "voices": done.voices, "overlap": overlap,
            "timeline": done.timeline, "warnings": done.warnings, "report": measured,
        })  # fmt: skip
        return
    for line in done.warnings:
        warn(line)
    say(f"sound     {shown_path(done.path)}: {duration(done.seconds)}, {_size(done.mix.scene)}, {overlap:.0%} of the speech overlaps")  # fmt: skip
    if done.voices:
        say("voices    " + ", ".join(f"{who}: {voice}" for who, voice in done.voices.items()))
    say(f"plan      by {planned_by}; {duration(seconds)} to render, {done.seconds / max(seconds, 1e-9):.1f} times as fast as it plays")  # fmt: skip
    for name, value in (measured or {}).items():
        if value is not None and not isinstance(value, list | dict):
            say(f"  {name:22} {value:.3f}")


class Row(msgspec.Struct, kw_only=True):
    """A recording's label as a line of a file."""

    file: str
    words: bool = False
    seconds: float
    speech_s: float
    speakers: int
    overlap: float
    snr_db: float | None
    clipped: float | None = None
    bandwidth_hz: float | None = None
    turns: list[dict[str, Any]] = []
    scene: dict[str, Any] | None = None


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
    from burnish.lm.lines import LineFile

    with needed("labels of recordings", "torch"):
        from burnish.models.long_speech import label_retention
        from burnish.speech.label import label_file, sound_files
    files = sound_files(folder)
    rows: list[Row] = []
    with Reporter() as report, nullcontext() if out is None else LineFile(out, Row) as kept:
        done = {} if kept is None else {row.file: row for row in kept.records}
        for place, file in enumerate(files):
            report("labelling", place, len(files))
            row = done.get(str(file))
            if row is None or (words and not row.words):
                try:
                    label = label_file(file, words=words)
                except UserError as error:
                    warn(str(error))
                    continue
                found = {**label._asdict(), "turns": [turn._asdict() for turn in label.turns]}
                row = Row(file=str(file), words=words, **msgspec.to_builtins(found))
                if kept is not None:
                    kept.append(row)
            rows.append(row)
    if not rows:
        raise UserError(f"{folder}: no sound could be read")
    if as_json:
        for row in rows:
            emit_json(row)
        return 0
    for row in rows:
        _show_label(row)
    clips: list[Any] = [
        {"snr": r.snr_db, "overlap": r.overlap, "speakers": r.speakers} for r in rows
    ]
    own, usual = (len(side) for side in label_retention(clips)[:2])
    say(
        f"kept      {own} of {len(rows)} labelled ({own / len(rows):.0%}); a filter (1 speaker, 20 dB, "
        f"5 % overlap) would keep {usual} ({usual / len(rows):.0%})"
    )
    return 0


def _show_label(row: Row) -> None:
    snr = "SNR unknown" if row.snr_db is None else f"SNR {row.snr_db:.0f} dB"
    what = (
        f"{counted(row.speakers, 'speaker')}, {row.speech_s:.1f} of {row.seconds:.1f} s speech, "
        f"{row.overlap:.0%} overlap, {snr}"
    )
    say(f"{shown_path(Path(row.file))}: {what if row.speakers else 'nobody speaks'}")
    for sentence in row.scene["sentences"] if row.words and row.scene else ():
        say(f"  {sentence['speaker']}: {one_line(sentence.get('text', ''))}")
