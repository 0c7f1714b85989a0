"""How well are recordings labelled, and what would a filter have kept? Real voices on meeting-like timings.

    python -m lab.long_speech.labels ../shared/data/librispeech_sample/train.parquet

LibriSpeech clips of 1 to 4 speakers are laid on a timeline whose gaps come from 38 real meetings, with white
noise at 5 to 35 dB. The truth is where the single clips have speech. The threshold that decides
whether two windows are one voice was chosen on 12 other mixtures (seeds 0 to 11 of an earlier draw).
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import numpy as np

from burnish.media.sounds import read_sound
from burnish.models.long_speech import label_retention, overlap_statistics
from burnish.seeds import derive
from burnish.speech import label_sound
from burnish.speech.acoustics import MEETING_GAPS, Turn
from burnish.speech.listeners import speech_segments

RESULTS = Path(__file__).parent / "results"
RATE = 16_000


def mixture(
    rng: random.Random, clips: dict[str, list[bytes]], speakers: int, snr_db: float
) -> tuple[np.ndarray, list[Turn]]:
    """Samples, and who really speaks when."""
    names = rng.sample(sorted(clips), speakers)
    parts, turns, now, last = [], [], 0.5, ""
    for _ in range(8):
        name = rng.choice([one for one in names if one != last] or names)
        samples = read_sound(rng.choice(clips[name]), rate=RATE).samples
        samples = samples[: rng.randrange(2 * RATE, 5 * RATE)]
        segments = speech_segments(samples, RATE)
        if not segments:
            continue
        start = max(0.3, now + (rng.choice(MEETING_GAPS[3:-1]) if last not in ("", name) else 0.4))
        parts.append((round(start * RATE), samples / max(1e-6, float(np.abs(samples).max())) * 0.4))
        turns += [Turn(name, start + one.start, start + one.end) for one in segments]
        now, last = start + len(samples) / RATE, name
    mixed = np.zeros(round((now + 1) * RATE), np.float32)
    for place, samples in parts:
        mixed[place : place + len(samples)] += samples[: len(mixed) - place]
    power = float(np.mean(mixed**2))
    noise = np.random.default_rng(rng.randrange(2**31)).normal(0, 1, len(mixed))
    return mixed + noise * np.sqrt(power / 10 ** (snr_db / 10)), turns


def agreement(found: list[Turn], true: list[Turn], step_s: float = 0.05) -> dict[str, float]:
    """Diarisation error: how much of the true speech is missed, invented or given to somebody else.

    Speakers are matched one to one, greedily by the time they share.
    """
    count = math.ceil(max((one.end for one in (*found, *true)), default=0.0) / step_s)

    def grid(turns: list[Turn]) -> dict[str, np.ndarray]:
        rows: dict[str, np.ndarray] = {}
        for turn in turns:
            row = rows.setdefault(turn.speaker, np.zeros(count, bool))
            row[round(turn.start / step_s) : round(turn.end / step_s)] = True
        return rows

    have, want = grid(found), grid(true)
    pairs: dict[str, str] = {}
    for _, a, b in sorted(
        ((int((have[a] & want[b]).sum()), a, b) for a in have for b in want), reverse=True
    ):
        if a not in pairs and b not in pairs.values():
            pairs[a] = b
    said, total = (sum(int(row.sum()) for row in rows.values()) for rows in (have, want))
    right = sum(int((have[a] & want[b]).sum()) for a, b in pairs.items())
    both = (sum(rows.values(), np.zeros(count, int)) for rows in (have, want))
    matched = int(np.minimum(*both).sum())
    parts = {"error": max(total, said) - right, "missed": total - matched}
    parts |= {"invented": said - matched, "confused": matched - right}
    return {name: value / max(1, total) for name, value in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--mixtures", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    import pyarrow.parquet

    clips: dict[str, list[bytes]] = {}
    for row in pyarrow.parquet.read_table(options.data).to_pylist():
        clips.setdefault(str(row["speaker"]), []).append(row["flac"])
    errors, right, overlaps, found = [], 0, [], []
    for number in range(options.mixtures):
        rng = random.Random(derive("labels", number))
        samples, true = mixture(rng, clips, 1 + number % 4, rng.choice([5.0, 15.0, 25.0, 35.0]))
        label = label_sound(samples, RATE)
        errors.append(agreement(label.turns, true))
        right += label.speakers == len({one.speaker for one in true})
        overlaps.append(
            (label.overlap, overlap_statistics([(one.start, one.end) for one in true]).ratio)
        )
        found.append(label.clip())
        print(f"mixture {number + 1}/{options.mixtures}", flush=True)
    kept = label_retention(found)
    count = len(errors)
    means = {name: sum(one[name] for one in errors) / count for name in errors[0]}
    lines = [
        f"{count} mixtures of LibriSpeech voices on gaps of real meetings, 5 to 35 dB of noise; "
        "`python -m lab.long_speech.labels DATA`",
        "",
        "| measure | value |",
        "|---|---|",
        *(f"| diarisation: {name}, share of true speech | {value:.3f} |" for name, value in means.items()),
        f"| right number of speakers | {right} of {count} |",
        f"| overlap found, mean (true mean) | {sum(a for a, _ in overlaps) / count:.3f} ({sum(b for _, b in overlaps) / count:.3f}) |",
        f"| kept by labelling | {len(kept.label_kept)} of {count} |",
        f"| kept by a filter (1 speaker, 20 dB, 5 % overlap) | {len(kept.filter_kept)} of {count} |",
    ]  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "labels.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
