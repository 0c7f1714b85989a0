"""Does a plan change what is heard? Random scenes with a Global-Sentence-Token script, beside plain concatenation.

    python -m lab.long_speech.scenes                    # 200 scenes over 3 seeds, espeak-ng
    python -m lab.long_speech.scenes --scenes 12        # a trial
    python -m lab.long_speech.scenes --meetings FILE    # the gaps of both halves of the meetings

A scene has 2 to 4 speakers, 4 to 10 lines, an arc of arousal, captions on some lines (every second scene), a room, and a
background at a given ratio. How lines follow each other is drawn from the gaps of 19 real meetings and
measured against 19 others; no series of meetings is in both. The baseline speaks the same lines in the
same voices with gaps of 0.25 s, without arc, captions, room or background, as sentence-by-sentence
synthesis does. Controls: the same scene with an arc drawn anew, measured against the first arc; and the
same lines with gaps from a normal distribution of the mean and spread of the drawn gaps.

Level, signal-to-noise ratio and arc are measured on the mixed sound, cut where the alignment says that
one speaker talks alone. Pitch and rate are measured on each sentence's own samples, before the room.
Finished scenes are kept in the CSV.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch

from burnish.errors import ArgumentError
from burnish.models.long_speech import Mix, Scene, place_sentences, read_scene
from burnish.models.long_speech.timeline import Span
from burnish.seeds import derive
from burnish.speech import cast_scene, follow_report, measure_speech, mix_scene
from burnish.speech.acoustics import SpeechMeasure, Turn, quantiles, turn_taking
from burnish.speech.following import correlation, measured_arc
from burnish.speech.manner import arousal_of

RESULTS = Path(__file__).parent / "results"
LINES = (
    "The harbour is closed until Monday.", "Nobody told me about it.", "We leave at seven, all of us.",
    "Where did you put the key?", "I have read your letter twice.", "The last train is gone.",
    "Come with me to the station.", "That was my chair, you know.", "It rained the whole night long.",
    "You said so yourself yesterday.", "The soup is cold again.", "They are already here.",
    "I will not sign this paper.", "Look at the sky over there.", "Give it back to your brother.",
    "She has won for the third time.", "The door was open when I came.", "My brother called this morning.",
    "I lost the map on the way.", "Tell me the truth for once.", "We should have taken the boat.",
    "There is nothing in the box.", "The children are asleep upstairs.", "He never answers the telephone.",
)  # fmt: skip
SHORT = ("Mhm.", "Right.", "I see.", "Oh no.", "Of course.")
CAPTIONS = {
    "tone": ("tired", "cheerful", "furious", "sad", "nervous", "neutral"),
    "pace": ("slow", "fast", "a little slow", "very fast"),
    "volume": ("soft", "loud", "whispered", "normal"),
}
PLACES = ("a busy street", "a quiet room", "a café", "an office", "a station")
DRAWN_GAPS = (-3.26, -1.89, -1.37, -1.05, -0.8, -0.6, -0.42, -0.27, -0.14, 0.0, 0.11, 0.21, 0.3, 0.4, 0.53, 0.7, 0.9, 1.18, 1.67, 3.55)  # fmt: skip
"""Twenty quantiles of the gaps of 19 meetings, which the scenes draw from, seconds."""
OTHER_GAPS = (-2.66, -1.65, -1.21, -0.92, -0.68, -0.5, -0.33, -0.18, -0.03, 0.07, 0.18, 0.29, 0.4, 0.53, 0.69, 0.88, 1.11, 1.46, 2.04, 4.21)  # fmt: skip
"""Those of the 19 other meetings, which the scenes are measured against."""
ARMS = ("script", "concatenation", "another arc", "normal gaps")
FIELDS = ("seed", "scene", "arm", "arc", "arc_pitch", "arc_level", "arc_own", "pitch", "rate", "level", "overlap", "snr_error_db", "overlap_error_s", "same_voice", "other_voice")  # fmt: skip
GAPS = "gaps"
LEAST_S = 0.25
"""Of a stretch whose level is measured."""


def meeting_halves(file: str | Path) -> tuple[list[float], list[float]]:
    """Quantiles of the gaps of two halves of `ami_conversation/turns.parquet`, 19 meetings each.

    Series of meetings, by size and name, go whole to the smaller half, so that nobody talks in both.
    """
    import pyarrow.parquet as pq

    series: dict[str, list[Any]] = {}
    for row in pq.read_table(file).to_pylist():
        series.setdefault(row["meeting"][:6], []).append(row["segments_words"])
    halves: tuple[list[Any], list[Any]] = ([], [])
    for name in sorted(series, key=lambda one: (-len(series[one]), one)):
        min(halves, key=len).extend(series[name])
    first, second = (
        [
            gap
            for meeting in half
            for gap in turn_taking(
                [(s["speaker"], s["start"], s["start"] + s["duration"]) for s in meeting]
            ).gaps
        ]
        for half in halves
    )
    return quantiles(first, 20), quantiles(second, 20)


def random_scene(rng: random.Random, captions_on: bool = True, longest: float = 0.9) -> Scene:
    """A script with relations drawn from the first half of the meetings."""
    speakers = [f"S{i + 1}" for i in range(rng.randrange(2, 5))]
    count = rng.randrange(4, 11)
    texts = rng.sample(LINES, count)
    rows: list[dict[str, Any]] = []
    before = 0
    for place, text in enumerate(texts):
        others = [one for one in speakers if not rows or one != rows[before]["speaker"]]
        row: dict[str, Any] = {"speaker": rng.choice(others), "text": text}
        for name, captions in CAPTIONS.items():
            if rng.random() < 0.25 and captions_on:
                row[name] = rng.choice(captions)
        if place and rng.random() < 0.2 and rows[-1].get("relation", {}).get("type") != "with":
            row |= {"text": rng.choice(SHORT), "relation": {"type": "with", "ref": before, "offset": round(rng.uniform(0.3, 0.8), 2)}}  # fmt: skip
        elif place:
            row["relation"] = follows(rng.choice(DRAWN_GAPS), longest)
            before = place
        rows.append(row)
    arc = [{"at": at, "arousal": round(rng.random(), 2)} for at in (0.0, 0.35, 0.7, 1.0)]
    place_ = {"caption": rng.choice(PLACES), "snr_db": float(rng.randrange(5, 26)), "reverb_s": rng.choice([0.0, 0.2, 0.5])}  # fmt: skip
    overall = {"speakers": [{"id": one} for one in speakers], "emotion": {"arc": arc}, "environment": place_}  # fmt: skip
    return read_scene({"global": overall, "sentences": rows})


def follows(gap: float, longest: float) -> dict[str, Any]:
    """A relation with this gap; no line here is longer than about two and a half seconds."""
    if gap < 0:
        return {"type": "overlap", "seconds": round(min(-gap, longest), 2)}
    return {"type": "after", "gap": round(min(gap, 2.5), 2)}


def normal_turns(mix: Mix, rng: random.Random, longest: float) -> list[Turn]:
    """The turns of a scene whose gaps come from a normal distribution like that of the drawn ones."""
    document = msgspec.to_builtins(mix.scene)
    mean, spread = statistics.fmean(DRAWN_GAPS), statistics.pstdev(DRAWN_GAPS)
    for place, row in enumerate(document["sentences"]):
        if place and row.get("relation", {}).get("type") != "with":
            row["relation"] = follows(rng.gauss(mean, spread), longest)
    lengths = [span["end"] - span["start"] for span in mix.timeline]
    return turns_of(mix.scene, place_sentences(read_scene(document), lengths))


def turns_of(scene: Scene, timeline: Iterable[Span]) -> list[Turn]:
    return [
        Turn(one.speaker, span["start"], span["end"])
        for one, span in zip(scene.sentences, timeline, strict=True)
    ]


def talkers(mix: Mix) -> torch.Tensor:
    """How many sentences are heard at each sample by the alignment, (samples,)."""
    count_T = torch.zeros(mix.length, dtype=torch.int64)
    for span in mix.timeline:
        count_T[round(span["start"] * mix.sample_rate) : round(span["end"] * mix.sample_rate)] += 1
    return count_T


def heard(mix: Mix, sound_T: torch.Tensor) -> list[SpeechMeasure]:
    """Pitch and level of each sentence in the mixed sound, over its longest stretch alone."""
    count_T = talkers(mix)
    found = []
    for span in mix.timeline:
        first, last = (round(span[end] * mix.sample_rate) for end in ("start", "end"))
        edges = [-1, *(count_T[first:last] > 1).nonzero()[:, 0].tolist(), last - first]
        size, at = max((b - a - 1, a + 1) for a, b in pairwise(edges))
        is_enough = size >= LEAST_S * mix.sample_rate
        part_T = sound_T[first + at : first + at + size] if is_enough else torch.zeros(1)
        found.append(measure_speech(part_T, mix.sample_rate))
    return found


def heard_snr(mix: Mix, sound_T: torch.Tensor) -> float | None:
    """Power while somebody talks beside power where nobody does and no echo is left, dB."""
    echo = round((mix.scene.overall.environment.reverb_s or 0.0) * mix.sample_rate) + 1
    talk_T = talkers(mix) > 0
    quiet_T = ~talk_T
    for span in mix.timeline:
        last = round(span["end"] * mix.sample_rate)
        quiet_T[last : last + echo] = False
    if not bool(quiet_T.any()):
        return None
    noise = sound_T[quiet_T].double().square().mean().item()
    speech = sound_T[talk_T].double().square().mean().item() - noise
    return 10 * math.log10(speech / noise) if speech > 0 and noise > 0 else None


def bare(scene: Scene) -> Scene:
    """The same lines without their script: what sentence-by-sentence synthesis gets."""
    rows = [{"speaker": one.speaker, "text": one.text} for one in scene.sentences]
    speakers = [msgspec.to_builtins(one) for one in scene.overall.speakers]
    return read_scene({"global": {"speakers": speakers}, "sentences": rows})


def measure(seed: int, place: int, voices: bool) -> list[dict[str, Any]]:
    """One scene with its script, without it, and with somebody else's arc."""
    for longest in (0.9, 0.5):
        rng = random.Random(derive("long_speech", seed, place))
        scene = random_scene(rng, bool(place % 2), longest)
        cast = cast_scene(scene, seed=seed)
        drawn = random.Random(derive("long_speech control", seed, place))
        arc = [{"at": at, "arousal": round(drawn.random(), 2)} for at in (0.0, 0.35, 0.7, 1.0)]
        document = msgspec.to_builtins(scene)
        document["global"]["emotion"]["arc"] = arc
        try:
            planned, _ = mix_scene(scene, cast, seed=seed)
            control, _ = mix_scene(read_scene(document), cast, seed=seed)
            break
        except ArgumentError:
            # A fast short line is over before the overlap would begin: shorter overlaps throughout.
            continue
    asked = arousal_of(scene)
    assert asked is not None
    plain = Mix(bare(scene), cast, seed=seed)
    rows = []
    for arm, mix in zip(ARMS, (planned, plain, control), strict=False):
        found = follow_report(mix, voices=voices, asked_arousal=asked)
        who = [one.speaker for one in mix.scene.sentences]
        sound_T = mix.render()
        measured = heard(mix, sound_T)
        asked_snr, snr = mix.scene.overall.environment.snr_db, heard_snr(mix, sound_T)
        flat = [one._replace(loudness_db=0.0) for one in measured]
        toneless = [one._replace(pitch_hz=100.0) for one in measured]
        levels = [one.loudness_db for one in measured]
        rows.append({
            "seed": seed, "scene": place, "arm": arm, "arc": measured_arc(asked, measured, who),
            "arc_pitch": measured_arc(asked, flat, who),
            "arc_level": measured_arc(asked, toneless, who),
            "arc_own": found.arc, "pitch": found.pitch, "rate": found.rate,
            "level": correlation([one.gain_db for one in mix.manners], levels, who),
            "overlap": found.overlap,
            "snr_error_db": None if asked_snr is None or snr is None else abs(snr - asked_snr),
            "overlap_error_s": found.overlap_error_s,
            "same_voice": found.same_voice, "other_voice": found.other_voice,
            GAPS: gaps_of(turns_of(mix.scene, mix.timeline)),
        })  # fmt: skip
    turns = normal_turns(planned, random.Random(derive("long_speech gaps", seed, place)), longest)
    overlap = turn_taking(turns).overlap
    rows.append({"seed": seed, "scene": place, "arm": ARMS[3], "overlap": overlap, GAPS: gaps_of(turns)})  # fmt: skip
    return rows


def gaps_of(turns: list[Turn]) -> str:
    return " ".join(f"{one:.3f}" for one in turn_taking(turns).gaps)


def interval(values: list[float], rng: random.Random) -> str:
    """Mean over scenes with a 95 % bootstrap interval; of fewer than ten it says nothing."""
    if len(values) < 10:
        return "-"
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(1000))
    return f"{sum(values) / len(values):.3f} [{means[25]:.3f}, {means[974]:.3f}]"


def report(rows: list[dict[str, str]]) -> str:
    """The table of all arms."""
    rng = random.Random(0)
    count = len({(one["seed"], one["scene"]) for one in rows})
    seeds = len({one["seed"] for one in rows})
    lines = [
        f"{count} random scenes over {seeds} seeds; means over scenes with 95 % bootstrap intervals. "
        "`python -m lab.long_speech.scenes`",
        "",
        "| measure | " + " | ".join(ARMS) + " |",
        "|---|" + "---|" * len(ARMS),
    ]
    arcs = {
        "arc": "pitch and level", "arc_pitch": "pitch alone", "arc_level": "level alone",
        "arc_own": "pitch and level of each sentence's own samples, whose level is the mixer's",
    }  # fmt: skip
    names = {
        "pitch": "pitch asked and measured on each sentence's own samples, correlation",
        "rate": "rate, the same", "level": "level asked and heard, correlation",
        "overlap": "overlap, share of speech (meetings: 0.142)",
        "snr_error_db": "SNR asked and heard, difference in dB", "overlap_error_s": "overlap error, s",
        "same_voice": "cosine of one speaker's lines", "other_voice": "cosine of two speakers' lines",
    }  # fmt: skip
    alone = [one for one in rows if not int(one["scene"]) % 2]
    thin = [one for one in alone if float(one["overlap"]) < 0.15]
    asked = [
        *((alone, key, f"arc by {name}, scenes without captions of sentences") for key, name in arcs.items()),
        (thin, "arc", "arc by pitch and level, of these with overlap below 0.15"),
        *((rows, key, f"arc by {name}, all scenes") for key, name in arcs.items()),
        *((rows, key, name) for key, name in names.items()),
    ]  # fmt: skip
    for scenes, key, name in asked:
        values = [[float(one[key]) for one in scenes if one["arm"] == arm and one[key]] for arm in ARMS]  # fmt: skip
        cells = " | ".join(interval(one, rng) for one in values)
        lines.append(f"| {name} ({len(values[0])} scenes) | {cells} |")
    cells = " | ".join(f"{distance(rows, arm):.3f}" for arm in ARMS)
    lines.append(f"| gaps beside the 19 other meetings, Wasserstein, s (all scenes together) | {cells} |")  # fmt: skip
    own = apart(DRAWN_GAPS, OTHER_GAPS)
    lines += ["", f"The two halves of the meetings are {own:.3f} s apart themselves."]
    return "\n".join(lines) + "\n"


def distance(rows: list[dict[str, str]], arm: str) -> float:
    """Of an arm's gaps, all scenes together, to those of the meetings that nothing is drawn from."""
    gaps = [float(gap) for one in rows if one["arm"] == arm for gap in one[GAPS].split()]
    return apart(quantiles(gaps, len(OTHER_GAPS)), OTHER_GAPS)


def apart(first: Iterable[float], second: Iterable[float]) -> float:
    """Mean distance of quantiles (Wasserstein)."""
    return statistics.fmean(abs(a - b) for a, b in zip(first, second, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=200, help="over all seeds")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--voices", type=int, default=200, help="scenes whose voices are compared")
    parser.add_argument("--meetings", help="turns.parquet of ami_conversation: print both halves")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.meetings:
        for half in meeting_halves(options.meetings):
            print([round(one, 2) for one in half])
        return
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "scenes.csv"
    rows = list(csv.DictReader(file.open())) if file.exists() else []
    done = {(one["seed"], one["scene"]) for one in rows}
    for number in range(options.scenes):
        seed, place = options.seeds[number % len(options.seeds)], number // len(options.seeds)
        if (str(seed), str(place)) in done:
            continue
        found = measure(seed, place, voices=number < options.voices)
        is_new = not file.exists()
        with file.open("a", newline="") as into:
            writer = csv.DictWriter(into, [*FIELDS, GAPS])
            if is_new:
                writer.writeheader()
            writer.writerows(found)
        print(f"scene {number + 1}/{options.scenes}", flush=True)
    rows = list(csv.DictReader(file.open()))
    (options.out / "scenes.md").write_text(report(rows))
    print(report(rows))


if __name__ == "__main__":
    main()
