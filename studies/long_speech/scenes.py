"""Does a plan change what is heard? Random scenes with a Global-Sentence-Token script, beside plain concatenation.

    python -m studies.long_speech.scenes                    # 200 scenes over 3 seeds, espeak-ng
    python -m studies.long_speech.scenes --scenes 12        # a trial

A scene has 2 to 4 speakers, 4 to 10 lines, an arc of arousal, captions on some lines (every second scene), a room, and a
background at a given ratio; how lines follow each other is drawn from the gaps of 38 real meetings.
The baseline speaks the same lines in the same voices with gaps of 0.25 s, without arc, captions, room or
background, as sentence-by-sentence synthesis does. Control: the script of another scene (its arc and
captions, shuffled among scenes) measured against this one's arc. Finished scenes are kept in the CSV.
"""

from __future__ import annotations

import argparse
import csv
import random
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import ArgumentError
from burnish.models.long_speech import Mix, Scene, read_scene
from burnish.seeds import derive
from burnish.speech import cast_scene, follow_report, mix_scene
from burnish.speech.manner import arousal_of
from burnish.speech.turns import MEETING_GAPS, Turn, meeting_distance, quantiles, turn_taking

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
FIELDS = ("seed", "scene", "arm", "arc", "pitch", "rate", "loudness", "overlap", "gap_s", "snr_error_db", "overlap_error_s", "same_voice", "other_voice")  # fmt: skip
GAPS = "gaps"


def random_scene(rng: random.Random, captions_on: bool = True, longest: float = 0.9) -> Scene:
    """A script with relations drawn from real meetings."""
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
            gap = rng.choice(MEETING_GAPS)
            # No line here is longer than about two and a half seconds.
            row["relation"] = {"type": "overlap", "seconds": round(min(-gap, longest), 2)} if gap < 0 else {"type": "after", "gap": round(min(gap, 2.5), 2)}  # fmt: skip
            before = place
        rows.append(row)
    arc = [{"at": at, "arousal": round(rng.random(), 2)} for at in (0.0, 0.35, 0.7, 1.0)]
    place_ = {"caption": rng.choice(PLACES), "snr_db": float(rng.randrange(5, 26)), "reverb_s": rng.choice([0.0, 0.2, 0.5])}  # fmt: skip
    overall = {"speakers": [{"id": one} for one in speakers], "emotion": {"arc": arc}, "environment": place_}  # fmt: skip
    return read_scene({"global": overall, "sentences": rows})


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
    for arm, mix in (("script", planned), ("concatenation", plain), ("another arc", control)):
        found = follow_report(mix, voices=voices, asked_arousal=asked)
        who = [one.speaker for one in mix.scene.sentences]
        turns = [Turn(w, s["start"], s["end"]) for w, s in zip(who, mix.timeline, strict=True)]
        gaps = turn_taking(turns).gaps
        rows.append({
            "seed": seed, "scene": place, "arm": arm, "arc": found.arc, "pitch": found.pitch, "rate": found.rate,
            "loudness": found.loudness, "overlap": found.overlap, "gap_s": meeting_distance(turns).gap_s,
            "snr_error_db": found.snr_error_db, "overlap_error_s": found.overlap_error_s,
            "same_voice": found.same_voice, "other_voice": found.other_voice,
            GAPS: " ".join(f"{one:.3f}" for one in gaps),
        })  # fmt: skip
    return rows


def interval(values: list[float], rng: random.Random) -> str:
    """Mean over scenes with a 95 % bootstrap interval."""
    if not values:
        return "-"
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(1000))
    return f"{sum(values) / len(values):.3f} [{means[25]:.3f}, {means[974]:.3f}]"


def report(rows: list[dict[str, str]]) -> str:
    """The table of all arms."""
    rng = random.Random(0)
    arms = ("script", "concatenation", "another arc")
    count = len({(one["seed"], one["scene"]) for one in rows})
    seeds = len({one["seed"] for one in rows})
    lines = [
        f"{count} random scenes over {seeds} seeds; means over scenes with 95 % bootstrap intervals. "
        "`python -m studies.long_speech.scenes`",
        "",
        "| measure | " + " | ".join(arms) + " |",
        "|---|" + "---|" * len(arms),
    ]
    names = {
        "arc": "arc score (arousal asked, pitch and loudness measured)",
        "pitch": "pitch asked and measured, correlation", "rate": "rate, correlation",
        "loudness": "loudness, correlation", "overlap": "overlap, share of speech (meetings: 0.142)",
        "snr_error_db": "SNR error, dB", "overlap_error_s": "overlap error, s",
        "same_voice": "cosine of one speaker's lines", "other_voice": "cosine of two speakers' lines",
    }  # fmt: skip
    alone = [one for one in rows if not int(one["scene"]) % 2]
    cells = [
        interval(
            [float(one["arc"]) for one in alone if one["arm"] == arm and one["arc"] != ""], rng
        )
        for arm in arms
    ]
    lines.append("| arc score, scenes without captions of sentences | " + " | ".join(cells) + " |")
    for key, name in names.items():
        cells = [interval([float(one[key]) for one in rows if one["arm"] == arm and one[key] != ""], rng) for arm in arms]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    cells = []
    for arm in arms:
        gaps = [float(gap) for one in rows if one["arm"] == arm for gap in one[GAPS].split()]
        own = quantiles(gaps, len(MEETING_GAPS))
        distance = sum(abs(a - b) for a, b in zip(own, MEETING_GAPS, strict=True)) / len(own)
        cells.append(f"{distance:.3f}")
    lines.append("| gaps beside real meetings, Wasserstein, s (all scenes together) | " + " | ".join(cells) + " |")  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=200, help="over all seeds")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--voices", type=int, default=30, help="scenes whose voices are compared")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
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
