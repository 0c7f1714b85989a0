"""`burnish speak`: a script or any text becomes a sound file with several voices."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from typer import Argument, Option

from burnish.api.needs import needed
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
Plan = Annotated[
    bool | None,
    Option(
        "--plan/--no-plan",
        help="Fill in what the script leaves open; by default for texts that are no script.",
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
    plan: Plan = None,
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
    wanted = {"timeline": timeline, "alignment": alignment, "report": report}
    if out is None and (script_out is None or any(wanted.values())):
        raise UserError("nothing to write: name a sound with -o FILE, or a plan with --script-out")
    _check_outputs(
        {"-o": out, "--script-out": script_out, "--timeline": timeline, "--alignment": alignment}
    )
    if instruction and not planner:
        raise UserError("--instruction is for a planning model: name one with --planner MODEL")
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
    elif plan or lively or (plan is None and given.is_draft):
        scene, planned_by = plan_scene(scene, seed=seed, lively=lively), "rules"
    if planner and lively:
        scene = plan_scene(scene, seed=seed, lively=True)
    given = given._replace(scene=scene)
    _check_inputs(given, script, (out, timeline, alignment), script_out)
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


def _check_outputs(outputs: Mapping[str, Path | None]) -> None:
    """Refuse what would fail only after minutes of rendering."""
    names: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        other = names.setdefault(path.resolve(), option)
        if path.is_dir() or other != option:
            raise UserError(
                f"{option}: {path} is a folder, or what {other} writes; name another file"
            )
        if option == "--timeline" and path.suffix.lower() != ".svg":
            raise UserError(f"--timeline: got {path}, expected a file that ends in .svg")


def _check_inputs(
    given: Script, script: Path, outputs: Iterable[Path | None], script_out: Path | None
) -> None:
    """Refuse to write over what is read; only its own plan may take a script's place."""
    background = [given.background] if given.background else []
    sounds = {
        one.resolve(): "a sound of the script" for one in (*given.sounds.values(), *background)
    }
    read = {**sounds, script.resolve(): "the script"}
    for path, inputs in (*((one, read) for one in outputs), (script_out, sounds)):
        if path is not None and path.resolve() in inputs:
            raise UserError(f"{path} is {inputs[path.resolve()]}; write another file")


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
    with needed("labels of recordings", "torch"):
        from burnish.models.long_speech import label_retention
        from burnish.speech.label import label_file, sound_files
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
                    _append_row(out, row)
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
        _show_label(row)
    kept = label_retention(clips)
    total = max(1, len(rows))
    say(
        f"kept      {len(kept.label_kept)} of {len(rows)} labelled ({len(kept.label_kept) / total:.0%}); "
        f"a filter (1 speaker, 20 dB, 5 % overlap) would keep {len(kept.filter_kept)} "
        f"({len(kept.filter_kept) / total:.0%})"
    )
    return 0


def _show_label(row: dict[str, Any]) -> None:
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
    lines = out.read_bytes().splitlines() if out.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            row = decoded(line)
            rows[msgspec.convert(row, _Row).file] = row
        except ValueError as error:
            is_cut = number == len(lines) and line.startswith(b'{"file":')
            if is_cut and not isinstance(error, msgspec.ValidationError):
                break
            raise UserError(
                f"{out}: line {number} is no label of a recording ({error}); name another file with -o"
            ) from None
    whole = b"".join(msgspec.json.encode(row) + b"\n" for row in rows.values())
    if lines and whole != out.read_bytes():
        write_file(out, whole)
    return rows


def _append_row(out: Path, row: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")
